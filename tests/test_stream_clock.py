"""The clocks of a CPU and a GPU, by hand."""

import pytest

from fa_numba.analysis.stream_clock import SimulatedGpu


def clocked(gpu, function):
    begin = gpu.perf_counter()
    function()
    return gpu.perf_counter() - begin


def between_events(gpu, function):
    start, end = gpu.event(), gpu.event()
    start.record()
    function()
    end.record()
    end.synchronize()
    return gpu.event_elapsed_time(start, end)


def test_a_launch_returns_before_the_kernel_has_run():
    gpu = SimulatedGpu(enqueue=10)
    kernel = gpu.kernel("k", cold=50)
    assert clocked(gpu, kernel) == 10
    assert clocked(gpu, gpu.synchronize) == 50
    assert clocked(gpu, gpu.synchronize) == 0
    assert gpu.bars == [
        ("CPU", "k", "enqueues", 0, 10),
        ("GPU", "k", "runs", 10, 60),
        ("CPU", "waits", "waits", 10, 60),
    ]


def test_the_first_launch_compiles():
    gpu = SimulatedGpu(enqueue=10, compile=1000)
    kernel = gpu.kernel("k", cold=50)
    assert [clocked(gpu, kernel) for _ in range(3)] == [1010, 10, 10]
    assert SimulatedGpu(enqueue=10).kernel("k", cold=1)() is None


@pytest.mark.parametrize("warm, wanted", [(30, 10 + 50 + 9 * 30), (4, 10 * 10 + 4)])
def test_many_calls_wait_for_the_slower_of_the_two(warm, wanted):
    gpu = SimulatedGpu(enqueue=10)
    kernel = gpu.kernel("k", cold=50 if warm == 30 else warm, warm=warm)

    def calls():
        for _ in range(10):
            kernel()
        gpu.synchronize()

    assert clocked(gpu, calls) == wanted


def test_events_are_on_the_clock_of_the_gpu():
    gpu = SimulatedGpu(enqueue=10, flush=2000)
    kernel = gpu.kernel("k", cold=50, warm=30)
    assert between_events(gpu, kernel) == 10 + 50, "the GPU is idle, and waits for the launch"
    assert between_events(gpu, kernel) == 10 + 30, "its inputs are in L2"
    gpu.flush()
    assert between_events(gpu, kernel) == 50, "the launch is hidden, and L2 is empty"


def test_another_kernel_takes_l2():
    gpu = SimulatedGpu(enqueue=0)
    one, two = gpu.kernel("one", cold=50, warm=30), gpu.kernel("two", cold=7)
    assert [between_events(gpu, f) for f in (one, one, two, one)] == [50, 30, 7, 50]


def test_a_graph_is_one_launch():
    gpu = SimulatedGpu(enqueue=10, graph_enqueue=2)
    kernels = [gpu.kernel(name, cold=3) for name in "abc"]

    def step():
        for kernel in kernels:
            kernel()

    launch = gpu.graph(step)
    assert gpu.perf_counter() == 0 and not gpu.bars, "captured, not run"
    assert clocked(gpu, lambda: (launch(), gpu.synchronize())) == 2 + 9
    assert clocked(gpu, lambda: (step(), gpu.synchronize())) == 30 + 3


def test_disturbances_come_on_top():
    gpu = SimulatedGpu(enqueue=0)
    kernel = gpu.kernel("k", cold=5, disturbed=(0, 100))
    assert [between_events(gpu, kernel) for _ in range(3)] == [5, 105, 5]


def test_events_in_the_wrong_order():
    gpu = SimulatedGpu()
    kernel, start, end = gpu.kernel("k", cold=50), gpu.event(), gpu.event()
    with pytest.raises(RuntimeError, match="the event was not recorded"):
        end.synchronize()
    start.record()
    kernel()
    with pytest.raises(RuntimeError, match="end was not recorded"):
        gpu.event_elapsed_time(start, end)
    end.record()
    with pytest.raises(RuntimeError, match="has not reached end yet"):
        gpu.event_elapsed_time(start, end)
    end.synchronize()
    assert gpu.event_elapsed_time(start, end) == 60


def test_arguments_are_checked_by_name():
    with pytest.raises(TypeError, match="enqueue must be a number of microseconds, got '1'"):
        SimulatedGpu(enqueue="1")
    with pytest.raises(ValueError, match="flush must be finite and not negative, got -1"):
        SimulatedGpu(flush=-1)
    with pytest.raises(ValueError, match="cold must be finite and not negative, got nan"):
        SimulatedGpu().kernel("k", cold=float("nan"))
    with pytest.raises(TypeError, match="warm must be a number of microseconds, got True"):
        SimulatedGpu().kernel("k", cold=1, warm=True)
