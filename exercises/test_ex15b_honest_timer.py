"""Grader of ex15b: a timer, on simulated clocks."""

import pytest

from fa_numba.workbook.graders.causes import Wrong, diagnosis

KERNELS = {  # enqueue, cold, warm
    "long": (10, 500, 500),
    "as long as a launch": (10, 11, 11),
    "short": (10, 3, 2),
    "twice as fast from L2": (10, 80, 40),
    "by Numba's dispatcher": (410, 50, 30),
}
EACH = pytest.mark.parametrize("name", KERNELS)


def timed(function, enqueue, cold, warm, *, compile=0, disturbed=()):
    """(result, names of the launches) of a timer, in the process where it is."""
    arguments = function, enqueue, cold, warm, compile, list(disturbed)
    return function._answer.request("call", _timed, args=arguments)


def _timed(function, enqueue, cold, warm, compile, disturbed):
    """Runs in the answering process, as code; so it imports what it needs."""
    from fa_numba.analysis.stream_clock import SimulatedGpu

    gpu = SimulatedGpu(enqueue=enqueue, compile=compile)
    kernel = gpu.kernel("kernel", cold=cold, warm=warm, disturbed=disturbed)
    result = function(gpu, kernel)
    return result, [bar[1] for bar in gpu.bars if bar[0] == "GPU"], gpu.perf_counter()


def check(exercise, enqueue, cold, warm, *, compile=0, disturbed=()):
    options = {"compile": compile, "disturbed": disturbed}
    got, runs, _ = timed(exercise.timer, enqueue, cold, warm, **options)
    case = f"enqueue {enqueue}, cold {cold}, warm {warm}"
    if compile:
        case += f", the first launch compiles for {compile:,}"
    if disturbed:
        case += f", disturbed launches: {sum(x > 0 for x in disturbed)} of {len(disturbed)}"
    assert isinstance(got, int | float), f"{case}: timer must return a number, got {got!r:.40}"
    if not abs(got - cold) <= 1e-6 * cold:
        causes = []
        for option, cause in (
            ("compile", "The time in which the kernel is compiled is in the result."),
            ("disturbed", "A disturbed sample moves the result: the median would ignore it."),
        ):
            with diagnosis():
                others = {name: value for name, value in options.items() if name != option}
                if timed(exercise.timer, enqueue, cold, warm, **others)[0] != got:
                    causes.append(cause)
        known = {
            enqueue + cold: "The GPU idles between the first event and the kernel, so that the "
                            "launch is in the result.",
            enqueue + warm: "The inputs are in L2 from the call before, and the launch is in the "
                            "result, because the GPU idles after the first event.",
            warm: "The inputs are in L2 from the call before.",
            0: "Nothing runs between the two events.",
            2000 + enqueue + cold: "The flush is between the events.",
            enqueue: "That is how long the CPU takes: a launch is asynchronous.",
        }  # fmt: skip
        causes += [cause for value, cause in known.items() if abs(got - value) <= 1e-6 * value]
        raise Wrong(
            f"{case}: the kernel runs for {cold:g}, timer says {got:g} after {len(runs)} launches",
            causes=causes[:1],
            where=case,
        )
    return runs


@EACH
def test_compiled_before(exercise, name):
    """kernels that are compiled already, whatever a launch takes"""
    check(exercise, *KERNELS[name])


@EACH
def test_compiles(exercise, name):
    """kernels that the first launch compiles"""
    check(exercise, *KERNELS[name], compile=400_000)


@pytest.mark.parametrize("at", range(10))
def test_one_disturbed_sample(exercise, at):
    """one launch is disturbed, whichever"""
    disturbed = [0.0] * 40
    disturbed[at] = 900.0
    check(exercise, 10, 80, 40, disturbed=disturbed, compile=1000)


def test_some_disturbed_samples(exercise):
    """a launch of five is disturbed"""
    check(exercise, 10, 80, 40, disturbed=[300.0 * (i % 5 == 3) for i in range(1000)])


def test_several_samples(exercise):
    """more than two samples, and no more than a hundred launches"""
    runs = check(exercise, 10, 80, 40)
    launches = runs.count("kernel")
    assert 3 <= launches <= 100, f"the kernel was launched {launches} times"


def test_broken_timer_stays(exercise):
    """broken_timer is as it was given"""
    got, _, _ = timed(exercise.broken_timer, 10, 80, 40, compile=900)
    want = (900 + 10 + 80 + 8 * (10 + 40)) / 9
    assert abs(got - want) < 1e-9, "broken_timer is to stay: mend `timer`"
