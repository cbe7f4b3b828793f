"""All drawings on one sheet: columns of equal width, each drawing where there is room first."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

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
    images = [pixels(drawing, width=width) for drawing in drawings.values()]
    tops, places = [MARGIN] * columns, []
    for image in images:
        column = int(np.argmin(tops))
        places.append((tops[column], MARGIN + column * (width + MARGIN)))
        tops[column] += image.shape[0] + MARGIN
    page = np.full((max(tops), MARGIN + columns * (width + MARGIN), 3), 255, np.uint8)
    for image, (y, x) in zip(images, places, strict=True):
        x += (width - image.shape[1]) // 2
        page[y : y + image.shape[0], x : x + image.shape[1]] = image
    return page
