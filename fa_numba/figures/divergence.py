"""A branch in the threads of a few warps: who is active, who is idle, and for how long."""

import linecache

import numpy as np
from matplotlib.patches import Patch

from fa_numba import simt
from fa_numba.figures.parts import box
from fa_numba.figures.style import LIGHT, Drawing, colour_of, on_paper

WARP = 32


def issued_lines(kernel, threads, *args):
    """The lines that each warp of one thread block runs, in order, with the active threads.

    Parameters
    ----------
    kernel : kernel
        Launched with one thread block; a line is noted where it loads or stores.
    threads : int
    *args : arrays

    Returns
    -------
    list of list of (int, boolean array of 32)
        For each warp the pairs of a line's number and who takes part. A part-filled warp is filled
        with threads that never do.
    """
    accesses = simt.record(kernel, 1, threads, *args)
    warps = [[] for _ in range(-(-threads // WARP))]
    for access in accesses:
        active = np.zeros(len(warps) * WARP, bool)
        active[:threads] = access.active[:, 0]
        for warp, lanes in zip(warps, active.reshape(-1, WARP), strict=True):
            if not lanes.any():
                continue
            if warp and warp[-1][0] == access.line:
                warp[-1] = access.line, warp[-1][1] | lanes
            else:
                warp.append((access.line, lanes))
    return warps


@on_paper
def divergence(launches):
    """One panel for each kernel: warps side by side, their lines downwards in time.

    Parameters
    ----------
    launches : dict of str to (kernel, tuple of arrays)
        By title. Each is run once, as one thread block of two warps.

    Returns
    -------
    Drawing
        A cell is a thread in a line of the source: coloured if it takes part, grey if it is idle
        while others of its warp do.
    """
    panels = {
        title: (kernel, issued_lines(kernel, 2 * WARP, *args))
        for title, (kernel, args) in launches.items()
    }
    steps = max(len(warp) for _, warps in panels.values() for warp in warps)
    figure = Drawing(10, 0.34 * steps * len(panels) + 1.05 * len(panels) + 0.3)
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for ax, (title, (kernel, warps)) in zip(axes, panels.items(), strict=True):
        figure.say("\n".join([title, *_words(warps)]))
        _draw(ax, title, kernel, warps, steps)
    return figure


def _words(warps):
    for number, warp in enumerate(warps):
        lines = ", ".join(f"line {line} by {int(lanes.sum())} threads" for line, lanes in warp)
        yield f"  warp {number}: {lines}"


def _draw(ax, title, kernel, warps, steps):
    lines = sorted({line for warp in warps for line, _ in warp})
    colours = {line: colour_of(i) for i, line in enumerate(lines)}
    for number, warp in enumerate(warps):
        left = number * (WARP + 2)
        for step, (line, lanes) in enumerate(warp):
            for lane, active in enumerate(lanes):
                face = colours[line] if active else LIGHT
                box(ax, left + lane, step, 0.9, 0.85, face)
        ax.text(left, -0.25, f"warp {number}")
    file = getattr(kernel, "py_func", kernel).__code__.co_filename
    ax.legend(
        handles=[
            *(
                Patch(facecolor=colours[line], label=linecache.getline(file, line).strip())
                for line in lines
            ),
            Patch(facecolor=LIGHT, label="idle"),
        ],
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        prop={"family": "monospace", "size": 8.5},
    )
    ax.set(xlim=(-0.2, len(warps) * (WARP + 2)), ylim=(steps, -0.9), xticks=[], yticks=[])
    ax.set_ylabel("time →", rotation=-90, labelpad=10)
    ax.set_title(title, loc="left")
    ax.spines[:].set_visible(False)
