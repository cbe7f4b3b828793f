"""A linear layer under the roofline, and its least time against the batch: three limits."""

import numpy as np

from fa_numba.analysis import intensity
from fa_numba.analysis.roofline import Roofline
from fa_numba.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, Drawing, on_paper, plain

BATCHES = np.unique(np.geomspace(1, 4096, 60).round().astype(int))
DTYPES = {"float32": (4, BLUE), "float16": (2, PURPLE)}
LIMITS = {"arithmetic": PURPLE, "memory": ORANGE, "overhead": GREEN}


def layer_times(name, batch, width, launch):
    """The three lower bounds of a layer of width x width in float16, in seconds, by name.

    Parameters
    ----------
    name : str
        A GPU of the device table.
    batch, width : int
        Tokens, and weights along each axis.
    launch : float
        Seconds that the CPU takes to launch one kernel.
    """
    work = intensity.linear(batch, width, dtype_bytes=2)
    roof = Roofline(name, "float16")
    return {
        "arithmetic": work.flops / roof.peak,
        "memory": work.num_bytes / roof.bandwidth,
        "overhead": launch,
    }


@on_paper
def layer_limits(device="A100-40GB", batch=1, width=4096, *, launch):
    """A layer's point under the roofline, and its least time for every batch.

    Parameters
    ----------
    device : str
        A GPU of the device table.
    batch, width : int
        Tokens, and weights along each axis.
    launch : float
        Seconds that the CPU takes to launch one kernel.

    Returns
    -------
    Drawing
        Lower bounds, not measurements.
    """
    times = layer_times(device, batch, width, launch)
    limit = max(times, key=times.get)
    verdict = f"batch {batch}: at least {1e6 * times[limit]:.3g} µs, the limit is {limit}"
    bounds = ", ".join(f"{name} {1e6 * seconds:.3g} µs" for name, seconds in times.items())
    figure = Drawing(10, 3.6, text=f"{device}, a layer of {width} x {width} in float16: {bounds}")
    figure.say(verdict)
    left, right = figure.subplots(1, 2)
    _roofs(plain(left), device, batch, width)
    _times(plain(right), device, batch, width, launch, times[limit])
    right.set_title(verdict, loc="left", fontsize=9.5)
    left.set_title(f"{device}, a layer of {width} × {width}", loc="left", fontsize=9.5)
    return figure


def _roofs(ax, device, batch, width):
    x = np.geomspace(0.2, 4000, 300)
    for dtype, (size, colour) in DTYPES.items():
        roof = Roofline(device, dtype)
        ax.plot(x, [roof.attainable(i) for i in x], color=colour, lw=2)
        point = intensity.linear(batch, width, dtype_bytes=size).intensity
        words = "float16, tensor cores" if dtype == "float16" else dtype
        ax.plot(point, roof.attainable(point), "o", color=colour, ms=8, label=words)
        ax.axvline(roof.ridge, color=colour, lw=0.8, ls=":")
        ax.text(roof.ridge, 1.2e11, f" {roof.ridge:.3g}", color=colour, size=8.5)
    ax.set(xscale="log", yscale="log", xlim=(0.2, 4000), ylim=(1e11, 3e15))
    ax.set(xlabel="arithmetic intensity, FLOP per byte", ylabel="FLOP/s")
    ax.legend(loc="upper left", labelcolor=GREY, fontsize=8.5)


def _times(ax, device, batch, width, launch, least):
    made = [layer_times(device, int(b), width, launch) for b in BATCHES]
    for name, colour in LIMITS.items():
        curve = [1e6 * t[name] for t in made]
        ax.plot(BATCHES, curve, color=colour, lw=1.3, ls="--", label=name)
    ax.plot(BATCHES, [1e6 * max(t.values()) for t in made], color=INK, lw=2.2, label="the longest")
    ax.plot(batch, 1e6 * least, "o", color=INK, ms=8)
    ax.set(xscale="log", yscale="log", ylim=(0.03, 3000))
    ax.set(xlabel="batch: tokens through the layer together", ylabel="float16, µs at least")
    ax.legend(loc="upper left", labelcolor=GREY, fontsize=8.5)
