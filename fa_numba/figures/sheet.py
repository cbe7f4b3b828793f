"""All drawings on one sheet: columns of equal width, each drawing where there is room first."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fa_numba.figures.style import GREY, INK, PAPER, on_paper

MARGIN = 24  # pixels


def pixels(drawing, *, width):
    """A drawing as an RGB image of at most this width."""
    dpi = min(110, width / drawing.get_figwidth())
    before = drawing.dpi
    drawing.set_dpi(dpi)
    canvas = FigureCanvasAgg(drawing)
    canvas.draw()
    drawing.set_dpi(before)
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


@on_paper
def caption(name, *, width):
    """The name of a drawing below a line, as an image."""
    strip = Figure(figsize=(width / 100, 0.34), facecolor=PAPER)
    strip.text(0.004, 0.45, name.replace("_", " "), va="center", fontsize=12, color=INK,
               weight="bold")  # fmt: skip
    strip.add_artist(Line2D([0, 1], [0.97, 0.97], color=GREY, linewidth=1))
    return _widened(pixels(strip, width=width), width)


def _widened(image, width):
    """An image of exactly this width, with white on both sides where it was narrower."""
    missing = width - image.shape[1]
    if missing <= 0:
        return image[:, :width]
    sides = (0, 0), (missing // 2, missing - missing // 2), (0, 0)
    return np.pad(image, sides, constant_values=255)


def sheet(drawings, *, columns=3, width=860):
    """One image of all drawings.

    Parameters
    ----------
    drawings : dict of str to Drawing
    columns : int, default=3
    width : int, default=860
        Of a column, in pixels.

    Returns
    -------
    array of shape (height, width, 3), uint8
    """
    images = [
        np.concatenate([caption(name, width=width), _widened(pixels(drawing, width=width), width)])
        for name, drawing in drawings.items()
    ]
    tops, places = [MARGIN] * columns, []
    for image in images:
        column = int(np.argmin(tops))
        places.append((tops[column], MARGIN + column * (width + MARGIN)))
        tops[column] += image.shape[0] + MARGIN
    page = np.full((max(tops), MARGIN + columns * (width + MARGIN), 3), 255, np.uint8)
    for image, (y, x) in zip(images, places, strict=True):
        page[y : y + image.shape[0], x : x + width] = image
    return page
