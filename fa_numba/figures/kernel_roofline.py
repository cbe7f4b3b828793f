"""The roofline with kernels on it: the most that each can reach, from its FLOPs and its bytes."""

import numpy as np

from fa_numba.analysis.roofline import Roofline
from fa_numba.figures.parts import CENTRED
from fa_numba.figures.style import BLUE, GREY, LIGHT, ORANGE, PAPER, Drawing, on_paper, plain


@on_paper
def kernel_roofline(work, device="H100"):
    """Each kernel is drawn where its arithmetic intensity meets the roof of float32.

    Parameters
    ----------
    work : dict of str to (flops, bytes)
        By name: the counts.
    device : str or Device, default="H100"

    Returns
    -------
    Drawing
        The points are upper limits, not measurements.
    """
    roof = Roofline(device, "float32")
    points = {name: flops / num_bytes for name, (flops, num_bytes) in work.items()}
    names = sorted(points, key=points.get)
    width = max(map(len, names)) + 2
    ridge = f"{roof.device.name}: float32 ridge {roof.ridge:.3g} FLOP per byte"
    figure = Drawing(9, 4.1, text=ridge)
    ax = plain(figure.subplots())
    low, high = min(*points.values(), 0.2) / 2, max(*points.values(), roof.ridge) * 6
    x = np.geomspace(low, high, 400)
    ax.plot(x, [roof.attainable(i) for i in x], color=BLUE, lw=2.2, zorder=2)
    ax.axvspan(low, roof.ridge, color=LIGHT, alpha=0.45, linewidth=0, zorder=0)
    bottom = roof.attainable(low) / 12
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, roof.peak * 3))
    ax.text(roof.ridge / 1.15, roof.peak * 1.5, "bound by memory", ha="right", color=GREY)
    ax.text(roof.ridge * 1.15, roof.peak * 1.5, "bound by arithmetic", color=GREY)
    ax.set_xlabel("arithmetic intensity, FLOP per byte of HBM traffic")
    ax.set_ylabel(f"FLOP/s that the {roof.device.name} allows")
    floor = bottom * 2.2  # the numbers are in a row below the roof
    for name, place, n in zip(names, _apart([points[n] for n in names], low, high),
                              range(1, len(names) + 1), strict=True):  # fmt: skip
        y = roof.attainable(points[name])
        most = f"at most {y / 1e12:.3g} TFLOP/s, bound by {roof.bound(points[name])}"
        figure.say(f"{n}. {name:<{width}}{points[name]:>7.3g} FLOP per byte: {most}")
        ax.plot([points[name], place], [y, floor], color=GREY, lw=0.8, zorder=1)
        label = f"{n}  {name}: {points[name]:.3g}"
        ax.plot(points[name], y, "o", color=ORANGE, ms=7, zorder=3, label=label)
        ax.text(place, floor, str(n), **CENTRED, zorder=4,
                bbox={"boxstyle": "circle,pad=0.25", "facecolor": PAPER,
                      "edgecolor": ORANGE})  # fmt: skip
    figure.legend(loc="outside right center", handlelength=0,
                  title="FLOP per byte", alignment="left")  # fmt: skip
    return figure


def _apart(values, low, high, *, share=0.05):
    """Push ascending values apart, on a logarithmic axis, by a share of its length."""
    gap = share * np.log(high / low)
    places, least = [], np.log(low) + gap / 2
    for value in np.log(values):
        places.append(max(value, least))
        least = places[-1] + gap
    over = places[-1] - (np.log(high) - gap / 2)
    if over > 0:  # they ran over the end: the last ones back to the left
        last = np.log(high) - gap / 2
        for i in reversed(range(len(places))):
            places[i] = min(places[i], last)
            last = places[i] - gap
    return np.exp(places)
