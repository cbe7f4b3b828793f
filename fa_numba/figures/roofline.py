"""The roofline: what a GPU can do at each arithmetic intensity, and where some work stands."""

import numpy as np

from fa_numba.analysis.devices import DEVICES
from fa_numba.figures.style import COLOURS, INK, figure


def draw(points, name="A100-40GB"):
    """Both roofs of a GPU, and each piece of work on the roof above its intensity.

    Parameters
    ----------
    points : dict of str to float
        Arithmetic intensity (FLOP per byte of HBM traffic) by name.
    name : str
        A GPU of the device table.

    Returns
    -------
    matplotlib Figure
        The points are upper limits, not measurements.
    """
    device = DEVICES[name]
    fig, ax = figure(8.5, 4.2)
    lowest = min([*points.values(), 0.1]) / 2
    highest = max([*points.values(), device.tensor_ridge]) * 4
    x = np.geomspace(lowest, highest, 400)
    for tensor, label, colour in (
        (True, "float16, tensor cores", COLOURS[4]),
        (False, "float32", COLOURS[0]),
    ):
        ax.plot(
            x, [device.attainable(i, tensor=tensor) for i in x], color=colour, lw=2, label=label
        )
        ridge = device.tensor_ridge if tensor else device.ridge
        ax.axvline(ridge, color=colour, lw=0.8, ls=":")
        ax.text(ridge, x[0] * device.memory_bandwidth, f" {ridge:.3g}", color=INK, size=9)
    for number, (label, intensity) in enumerate(points.items()):
        y = device.attainable(intensity)
        ax.plot(intensity, y, "o", color=COLOURS[(number + 1) % len(COLOURS)], ms=8)
        ax.annotate(label, (intensity, y), (0, -14), textcoords="offset points", size=9,
                    ha="left", rotation=-30, rotation_mode="anchor", va="top", color=INK)  # fmt: skip
    ax.set(xscale="log", yscale="log", xlabel="arithmetic intensity, FLOP per byte of HBM traffic")
    ax.set(ylabel="attainable FLOP/s", title=f"Roofline of the {name} (data sheet)")
    ax.legend(loc="upper left", frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    return fig


def describe(points, name="A100-40GB"):
    """The same as a text table."""
    device = DEVICES[name]
    width = max(map(len, points)) + 2
    lines = [
        f"{name}: float32 ridge {device.ridge:.3g}, tensor-core ridge {device.tensor_ridge:.3g}"
    ]
    for label, intensity in points.items():
        bound = "memory" if intensity < device.ridge else "arithmetic"
        tera = device.attainable(intensity) / 1e12
        lines.append(
            f"{label:<{width}}{intensity:>8.3g} FLOP/byte  at most {tera:.3g} TFLOP/s,"
            f" bound by {bound}"
        )
    return "\n".join(lines)
