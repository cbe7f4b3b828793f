"""ex15a · Four timers

Four programs time a kernel. All have compiled it before, and the GPU is idle, its L2 flushed.

    clock                  begin = perf_counter(); kernel(); perf_counter() - begin
    calls                  begin = perf_counter(); n times kernel(); synchronize();
                           (perf_counter() - begin) / n, for very large n
    events                 start.record(); kernel(); end.record(); end.synchronize();
                           event_elapsed_time(start, end)
    events behind a flush  as events, after flush(): a kernel that overwrites L2 for 2 ms

Which number does each of them print? And which of them answers which question?

printed(program, enqueue, cold, warm)    the number, from
    enqueue   time of the CPU for a launch, less than 2 ms
    cold      time of the kernel on the GPU, its inputs in HBM
    warm      the same right after itself, its inputs in L2; warm <= cold
program_for(question)                    the name of a program
    "kernel"  how long does the kernel run, its inputs in HBM?
    "loop"    how long does a call take in a loop of calls?
    "CPU"     how long is the CPU busy with a call?

Recording an event takes no time. Draw two lines, one for the CPU and one for the GPU. The grader
runs the programs on fa_numba.analysis.stream_clock.
"""


def printed(program, enqueue, cold, warm):
    """The number that the program prints."""
    # YOUR CODE HERE
    raise NotImplementedError("ex15a: printed")


def program_for(question):
    """The program that answers the question."""
    # YOUR CODE HERE
    raise NotImplementedError("ex15a: program_for")


# Stub 5e0fd7d5 of solutions/ex15a_four_timers.py: `fa-numba reset ex15a` brings it back.
