"""The roofline: the peak of a GPU at each arithmetic intensity, with some workloads on it."""

import numpy as np

from fa_numba.analysis.roofline import Roofline
from fa_numba.figures.style import BLUE, GREY, INK, ORANGE, PURPLE, Drawing, on_paper, plain


@on_paper
def roofline(points, name="A100-40GB"):
    """Both roofs of a GPU, and each piece of work on the float32 roof above its intensity.

    Parameters
    ----------
    points : dict of str to float
        Arithmetic intensity, FLOP per byte of HBM traffic, by name.
    name : str
        A GPU of the device table.

    Returns
    -------
    Drawing
        The points are upper limits, not measurements.
    """
    single, half = Roofline(name, "float32"), Roofline(name, "float16")
    ridges = f"float32 ridge {single.ridge:.3g}, tensor-core ridge {half.ridge:.3g}"
    figure = Drawing(8.5, 4.2, text=f"{single.device.name}: {ridges} FLOP per byte")
    ax = plain(figure.subplots())
    lowest = min([*points.values(), 0.1]) / 2
    highest = max([*points.values(), half.ridge]) * 4
    x = np.geomspace(lowest, highest, 400)
    floor = single.attainable(lowest)
    for roof, label, colour in ((half, "float16, tensor cores", PURPLE), (single, "float32", BLUE)):
        ax.plot(x, [roof.attainable(i) for i in x], color=colour, lw=2, label=label)
        ax.axvline(roof.ridge, color=colour, lw=0.8, ls=":")
        ax.text(roof.ridge, floor, f" {roof.ridge:.3g}", color=colour)
    width = max(map(len, points)) + 2
    for label, intensity in points.items():
        y = single.attainable(intensity)
        most = f"at most {y / 1e12:.3g} TFLOP/s, bound by {single.bound(intensity)}"
        figure.say(f"{label:<{width}}{intensity:>8.3g} FLOP per byte: {most}")
        ax.plot(intensity, y, "o", color=ORANGE, ms=8)
        style = {"rotation": -35, "rotation_mode": "anchor", "va": "top", "size": 9, "color": INK}
        ax.annotate(label, (intensity, y), (2, -8), textcoords="offset points", **style)
    ax.set(xscale="log", yscale="log", xlabel="arithmetic intensity, FLOP per byte of HBM traffic")
    ax.set(ylabel=f"FLOP/s the {name} allows", ylim=(floor / 4, None))
    ax.legend(loc="upper left", labelcolor=GREY)
    return figure
