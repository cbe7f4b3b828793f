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

### KIND: predict
### HINT 1: A launch returns after `enqueue`, whatever the kernel does. When the GPU is idle, an
### HINT 1: event is reached at the moment in which it is recorded.
### HINT 2: In a loop, the CPU enqueues while the GPU works. The slower of the two decides. After
### HINT 2: the first call the inputs are in L2. And behind a flush the GPU finds kernel and events
### HINT 2: in its queue.
### HINT 3: enqueue; max(enqueue, warm); enqueue + cold; cold.
### DEBRIEF: Each program measures something, and three of the four measure something else than the
### DEBRIEF: kernel. The worst is the third, because events have a good name: on an idle GPU the
### DEBRIEF: first event is reached at once, and the launch is counted in. With Numba's dispatcher
### DEBRIEF: that is hundreds of microseconds. benchmarks/timing.py puts 8 GiB of writes in front.


def printed(program, enqueue, cold, warm):
    """The number that the program prints."""
    ### BEGIN SOLUTION
    return {
        "clock": enqueue,
        "calls": max(enqueue, warm),
        "events": enqueue + cold,
        "events behind a flush": cold,
    }[program]
    ### END SOLUTION


def program_for(question):
    """The program that answers the question."""
    ### BEGIN SOLUTION
    return {"kernel": "events behind a flush", "loop": "calls", "CPU": "clock"}[question]
    ### END SOLUTION
