"""Is a drawing complete, legible on any page, nothing cut off or overprinted?

`watch()` checks those that a lesson shows from now on, and `verdict()` says what was found: the
first and the last cell of a lesson that `test_notebooks` runs.
"""

import numpy as np
from colours import contrast, in_the_dark
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from fa_numba.figures.style import PAPER, Drawing

DPI = 150
FOUND = []


def watch():
    style.use("dark_background")  # as unlike ours as can be
    Drawing.png = in_place_of_png


def in_place_of_png(drawing):
    try:
        check(drawing)
    except AssertionError as error:
        FOUND.append(f"{drawing.subject}: {error}")
    return b""


def verdict():
    assert not FOUND, "\n".join(FOUND)


def rendered(drawing):
    """The drawing's pixels, and each text on it with its box in pixels and its ground.

    The ground has the colours, (n, 3), that were where the text's letters are now.
    """
    texts, original = [], Text.draw

    def draw(self, renderer):
        if not (self.get_visible() and self.get_text().strip()):
            return original(self, renderer)
        box = self.get_window_extent(renderer)
        image = np.asarray(renderer.buffer_rgba())
        rows = slice(max(0, int(len(image) - box.y1)), int(len(image) - box.y0) + 1)
        part = image[rows, max(0, int(box.x0)) : int(box.x1) + 1, :3]
        before = part.copy()
        original(self, renderer)
        ground = before[(part != before).any(-1)] / 255
        if patch := self.get_bbox_patch():
            ground = np.array([to_rgb(patch.get_facecolor())])
        texts.append((self, box, ground))

    drawing.set_dpi(DPI)
    canvas = FigureCanvasAgg(drawing)
    Text.draw = draw
    try:
        canvas.draw()  # it computes the layout first
    finally:
        Text.draw = original
    return np.asarray(canvas.buffer_rgba()), texts


def check(drawing):
    text = drawing.describe()
    assert len(text) > 30 and repr(drawing) == text
    alternative = drawing.alternative()
    assert drawing.subject[-1] in ".:" and alternative.startswith(drawing.subject + "\n")
    assert set(alternative.splitlines()[1:]) <= set(text.splitlines())
    assert all(line == line.rstrip() for line in text.splitlines())
    pixels, texts = rendered(drawing)
    height, width = pixels.shape[:2]
    assert (pixels[..., 3] == 255).all(), "the ground is opaque"
    corners = pixels[[0, 0, -1, -1], [0, -1, 0, -1], :3]
    assert np.abs(corners / 255 - to_rgb(PAPER)).max() < 0.2, "and light"
    assert texts
    for text, box, ground in texts:
        said = text.get_text()
        inside = -1 <= box.x0 and box.x1 <= width + 1 and -1 <= box.y0 and box.y1 <= height + 1
        assert inside, f"{said!r} is cut off: {box}"
        for theme in (np.asarray, in_the_dark):
            found = contrast(theme(to_rgb(text.get_color())), theme(ground))
            found = np.quantile(found, 0.1)  # a line may cross a letter
            assert found >= 4.5, f"{said!r} is too pale: {found:.3g}"
    # Boxes have room above and below the letters, which may overlap. All pairs at once.
    upright = [
        (text.get_text(), [*box.p0, *box.p1])
        for text, box, _ in texts
        if text.get_rotation() % 90 == 0
    ]
    for said, extents in upright:  # an empty line above a word hides nothing
        lines = said.split("\n")
        extents[3] -= (extents[3] - extents[1]) * (not lines[0]) / len(lines)
    x0, y0, x1, y1 = np.array([extents for _, extents in upright]).reshape(-1, 4).T
    wide = np.minimum.outer(x1, x1) - np.maximum.outer(x0, x0)
    high = np.minimum.outer(y1, y1) - np.maximum.outer(y0, y0)
    overlap = (wide > 1) & (high > 0.25 * np.minimum.outer(y1 - y0, y1 - y0))
    for one, two in np.argwhere(np.triu(overlap, 1)):
        raise AssertionError(f"{upright[one][0]!r} lies on {upright[two][0]!r}")
