"""Counts in one step of bench_torch_step: graphs found, parameters set, tensor maps made; profiles.

For a diagnosis; it records nothing.
"""

import collections
import cProfile
import pstats

import torch

from benchmarks.bench_torch_step import contenders
from fa_numba.runtime import graphs, tensor_maps
from fa_numba.torch import jobs, layouts

STEPS = 40


def counted(owner, name, counts):
    function = getattr(owner, name)

    def call(*args, **options):
        result = function(*args, **options)
        counts[f"{name}: {bool(result)}" if name == "relaunch" else name] += 1
        return result

    setattr(owner, name, call)


def main():
    runs, counts = contenders(), collections.Counter()
    for run in runs.values():
        for _ in range(STEPS):
            run.step()
    for owner, name in (
        (graphs.Launches, "relaunch"),
        (graphs.Launches, "enqueue"),
        (graphs, "_make_graph"),
        (tensor_maps.Maps, "_make"),
        (jobs, "run"),
        (layouts, "of"),
        (layouts, "check_of"),
    ):
        counted(owner, name, counts)
    for key, run in runs.items():
        for what in ("step", "another step"):
            counts.clear()
            run.step()
            torch.cuda.synchronize()
            print(key, what, dict(counts))
        profile = cProfile.Profile()
        profile.enable()
        run.step()
        profile.disable()
        torch.cuda.synchronize()
        pstats.Stats(profile).sort_stats("tottime").print_stats(16)


if __name__ == "__main__":
    main()
