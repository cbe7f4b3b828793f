"""Prints the README's table: how fast the classic kernels run in the two gears.

In engine/: python tests/second_gear_table.py [names]. Times are of the processor, in seconds.
"""

import os
import subprocess
import sys
import time

from classic_kernels import CLASSICS

import numba_cuda_simulator as simt
from numba_cuda_simulator import second_gear

SIMULATOR = "NUMBA_ENABLE_CUDASIM"


def seconds(call):
    """Return the processor time of a call, which other programs on the machine do not change."""
    start = time.process_time()
    call()
    return time.process_time() - start


def on_the_engine(classic, size, how):
    grid, block, *args = classic.launch(size)
    with simt.options(compiled=how):
        return seconds(lambda: simt.run(classic.kernel, grid, block, *args))


def simulated(name):
    """Return what a test's launch takes in Numba's simulator."""
    environment = {**os.environ, SIMULATOR: "1"}
    out = subprocess.run([sys.executable, __file__, name], env=environment, stdout=subprocess.PIPE)
    return float(out.stdout)


def main(names):
    if os.environ.get(SIMULATOR):
        (classic,) = (c for c in CLASSICS if c.name == names[0])
        grid, block, *args = classic.launch(classic.small)
        simt.disable()
        print(seconds(lambda: classic.kernel[grid, block](*args)))
        return
    print("| kernel | lockstep | as it is | again | small: simulator | small: as it is |")
    print("|---|---|---|---|---|---|")
    for classic in CLASSICS:
        if names and classic.name not in names:
            continue
        simulator = simulated(classic.name)
        times = [on_the_engine(classic, classic.small, "auto"), simulator]
        second_gear.forget()
        times.append(on_the_engine(classic, classic.large, "auto"))
        times.append(on_the_engine(classic, classic.large, "auto"))
        times.append(on_the_engine(classic, classic.large, "never"))
        small, simulator, first, again, lockstep = (f"{t:.3g}" for t in times)
        row = classic.name, lockstep, first, again, simulator, small
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
