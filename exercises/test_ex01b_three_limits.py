"""Grader of ex01b: the limits of six computations on three GPUs."""

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong

LAUNCH = 11e-6
GPUS = {  # as in the statement: peaks in float32 and float16, bandwidth
    "T4": (8.1e12, 65e12, 0.32e12),
    "A100": (19.5e12, 312e12, 1.555e12),
    "H200": (66.9e12, 989e12, 4.8e12),
}
WEIGHTS = 4096**2
SIX = {  # dtype, FLOPs, bytes, kernels
    "add": ("float32", 2**26, 3 * 4 * 2**26, 1),
    "product": ("float16", 2 * 4096**3, 3 * 2 * WEIGHTS, 1),
    "token": ("float16", 2 * WEIGHTS, 2 * WEIGHTS, 1),
    "batch": ("float32", 32 * 2 * WEIGHTS, 4 * WEIGHTS, 1),
    "softmax": ("float32", 5 * 2**20, 5 * 2 * 4 * 2**20, 5),
    "step": ("float16", 2 * 124e6, 2 * 124e6, 150),
}
NAMES = "arithmetic", "memory", "overhead"


def times(name, gpu):
    dtype, flops, num_bytes, kernels = SIX[name]
    single, half, bandwidth = GPUS[gpu]
    peak = single if dtype == "float32" else half
    return dict(zip(NAMES, (flops / peak, num_bytes / bandwidth, kernels * LAUNCH), strict=True))


def expect_limit(got, arithmetic, memory, kernels, exchanged=None):
    """Fail unless `got` is the name of the longest time; `exchanged` by the other rate each."""
    three = arithmetic, memory, kernels * LAUNCH
    want = NAMES[int(np.argmax(three))]
    if got == want:
        return
    known = [
        ("It is the longest of the three times, not the shortest.", np.negative(three)),
        ("Each kernel takes LAUNCH, so the overhead is kernels * LAUNCH.", (*three[:2], LAUNCH)),
        ("The launches take time as well: kernels * LAUNCH.", (*three[:2], 0)),
    ]
    if exchanged:
        known.append(("FLOPs go by peak, bytes by bandwidth.", (*exchanged, three[2])))
    said = ", ".join(f"{name} {t:.4g} s" for name, t in zip(NAMES, three, strict=True))
    causes = [words for words, times in known if got == NAMES[int(np.argmax(times))]]
    if got not in NAMES:
        causes = ["limit returns the name of the longest time, one of the three."]
    raise Wrong(f"{said}: want {want!r}, got {got!r}", causes=causes)


@pytest.mark.parametrize(
    "want, flops, num_bytes, kernels",
    [
        ("arithmetic", 3e9, 1e9, 1),
        ("memory", 1e9, 3e9, 1),
        ("overhead", 1e6, 1e6, 1),
        ("overhead", 1e9, 1e9, 200),
        ("memory", 1e9, 1.1e9, 90),
        ("arithmetic", 1.2e9, 1.1e9, 90),
        ("overhead", 1.09e7, 1e6, 1),
        ("memory", 1e6, 1.11e7, 1),
    ],
)
def test_limit(exercise, want, flops, num_bytes, kernels):
    """limit: the longest of three times"""
    got = exercise.limit(flops, num_bytes, kernels, 1e12, 1e12)
    expect_limit(got, flops / 1e12, num_bytes / 1e12, kernels)


def test_limit_of_other_gpus(exercise):
    """limit: takes the rates of the GPU, and LAUNCH for each kernel"""
    rng = np.random.default_rng(0)
    for _ in range(200):
        peak, bandwidth, flops, num_bytes = (float(x) for x in 10 ** rng.uniform(9, 13, 4))
        kernels = int(rng.integers(1, 300))
        exchanged = flops / bandwidth, num_bytes / peak
        got = exercise.limit(flops, num_bytes, kernels, peak, bandwidth)
        expect_limit(got, flops / peak, num_bytes / bandwidth, kernels, exchanged)


def predicted(exercise, name):
    table = exercise.predictions()
    assert isinstance(table, dict), f"predictions() must return a dict, got {table!r}"
    assert name in table, f"predictions() has no entry {name!r}"
    row = table[name]
    assert isinstance(row, tuple | list) and len(row) == 3, (
        f"{name!r} must have three limits, for the T4, A100 and H200, got {row!r}"
    )
    for word in row:
        assert word in NAMES, f"{name!r}: a limit is one of {', '.join(NAMES)}, got {word!r}"
    return row


@pytest.mark.parametrize("name", SIX)
def test_predictions(exercise, name):
    """predictions: what each computation waits for"""
    for gpu, got in zip(GPUS, predicted(exercise, name), strict=True):
        seconds = times(name, gpu)
        want = max(seconds, key=seconds.get)
        if got == want:
            continue
        ratio = seconds[want] / seconds[got]
        raise Wrong(
            f"{name} on the {gpu}: not {got}, which takes {1e6 * seconds[got]:.3g} us; another of "
            f"the three takes {ratio:.3g} times as long",
            causes=[f"{name}: the time of {got} is right there, but it is not the longest."],
            where=f"{name}, {gpu}",
        )


def test_nothing_else(exercise):
    """predictions: six computations and no more"""
    got = exercise.predictions()
    assert isinstance(got, dict) and set(got) == set(SIX), f"want {', '.join(SIX)}, got {got!r}"
