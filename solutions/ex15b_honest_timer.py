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

### KIND: find the bug
### HINT 1: Print the nine samples. The first one differs from the others, and those are not `cold`.
### HINT 2: The first sample compiles; the others find their inputs in L2, and the GPU idles between
### HINT 2: the first event and the kernel; and the mean of nine samples moves with each of them.
### HINT 3: gpu.flush() as the first line in the loop, statistics.median(samples) at the end. And
### HINT 3: kernel() once before the loop, so that no sample compiles.
### DEBRIEF: The flush has two uses. It empties L2, and it gives the CPU time to enqueue the kernel
### DEBRIEF: and both events before the GPU gets there. Where a launch takes longer than the flush,
### DEBRIEF: it needs more of them: benchmarks/timing.py writes eight times a GiB. The median
### DEBRIEF: ignores a few disturbed samples. The minimum would do so, too, but it rewards a lucky
### DEBRIEF: one.


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
    ### BEGIN SOLUTION
    kernel()  # compiles
    samples = []
    for _ in range(9):
        gpu.flush()  # empties L2, and hides the launch
        start, end = gpu.event(), gpu.event()
        start.record()
        kernel()
        end.record()
        end.synchronize()
        samples.append(gpu.event_elapsed_time(start, end))
    return statistics.median(samples)
    ### END SOLUTION
