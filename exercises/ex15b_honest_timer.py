"""ex15b · Find the bug: a timer

`broken_timer` is to return how many microseconds a kernel runs on the GPU, compiled, with its
inputs in HBM. On the simulated GPU it is off by a factor that depends on the kernel. Write `timer`:
copy broken_timer and mend it. Two or three lines are enough.

gpu      has perf_counter(), synchronize(), flush(), event() and event_elapsed_time(start, end);
         all times are microseconds. flush() enqueues a kernel that overwrites L2; it runs for 2 ms
kernel   launches the kernel: kernel(). The CPU takes less than 2 ms for it, the first time longer
result   a float. Now and then something else keeps the GPU busy during a launch, in at most one
         launch of five: one such sample must not change the result

To try it, and to see what happened in which microsecond:

    from fa_numba.analysis.stream_clock import SimulatedGpu
    gpu = SimulatedGpu(enqueue=10, compile=400_000)
    print(broken_timer(gpu, gpu.kernel("softmax", cold=50, warm=30)), gpu.bars)
"""

import statistics


def broken_timer(gpu, kernel):
    """The program with the bugs, to read and to run. Leave it as it is."""
    samples = []
    for _ in range(9):
        start, end = gpu.event(), gpu.event()
        start.record()
        kernel()
        end.record()
        end.synchronize()
        samples.append(gpu.event_elapsed_time(start, end))
    return sum(samples) / len(samples)


def timer(gpu, kernel):
    """Microseconds of the kernel on the GPU, compiled, its inputs in HBM."""
    # YOUR CODE HERE
    raise NotImplementedError("ex15b: timer")


# Stub 4217da10 of solutions/ex15b_honest_timer.py: `fa-numba reset ex15b` brings it back.
