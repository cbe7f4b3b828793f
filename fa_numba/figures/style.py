"""Shared by all drawings: colours that differ in print, and a figure that shows itself."""

import base64
import functools
import inspect
import io
from html import escape

from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from fa_numba.figures.themes import PICTURE_CLASS, PICTURE_STYLE

# On the ground each has a contrast of 4.5 : 1 at least, also where a dark page inverts the picture;
# LIGHT is a ground, too, and for lines of a grid.
INK, GREY, LIGHT, PAPER = "#1a202c", "#5a6678", "#e2e8f0", "#ffffff"
BLUE, ORANGE, GREEN, RED, PURPLE = "#2b5f9e", "#c05621", "#276749", "#c02a2a", "#5b3aad"
DPI = 110  # of images in a notebook
COLOURS = BLUE, ORANGE, GREEN, PURPLE, RED  # of thread blocks, sequences, kernels, in this order
OURS = {  # in place of Matplotlib's defaults
    "font.size": 9,  # of labels, ticks, legends, texts
    "axes.titlesize": 10,
    **dict.fromkeys(("axes.titlecolor", "axes.labelcolor", "text.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    "legend.frameon": False,
}


def on_paper(function):
    """Let a function draw in these colours, whatever style its user has chosen for plots.

    "dark_background", for example, would write in white on this light background. The first
    sentence of the function's docstring becomes the subject of its drawing.
    """
    subject, *_ = (inspect.getdoc(function) or "").split("\n\n")

    @functools.wraps(function)
    def draw(*args, **kwargs):
        with style.context(["default", OURS]):
            drawing = function(*args, **kwargs)
        if isinstance(drawing, Drawing):
            drawing.subject = " ".join(subject.split())
        return drawing

    return draw


class Drawing(Figure):
    """A matplotlib figure with an opaque light ground, and words for where there are no pictures.

    It is shown as an image in a notebook, without pyplot, and as its `text` in a terminal. For who
    cannot see the image, its `subject` and the text are its alternative. A dark page inverts it
    where it reads our style sheet; its opaque ground keeps it legible elsewhere.
    """

    subject = ""

    def __init__(self, width, height, *, text=""):
        super().__init__(figsize=(width, height), facecolor=PAPER, layout="constrained")
        self.text = text

    def say(self, line):
        """Add a line to the text."""
        self.text = f"{self.text}\n{line}" if self.text else line

    def describe(self):
        """The content of the drawing, in words."""
        return self.text

    draw = on_paper(Figure.draw)  # some ticks are made only now

    def savefig(self, file, **options):
        super().savefig(file, **{"facecolor": PAPER, **options})

    def png(self):
        """The image. `savefig` would draw it twice: first for the layout, which a drawing has."""
        shown_at, image = self.dpi, io.BytesIO()
        self.set_dpi(DPI)
        FigureCanvasAgg(self).print_png(image)
        self.set_dpi(shown_at)
        return image.getvalue()

    def alternative(self):
        """The subject and the lines of the text that can be read out, without rows of symbols."""
        lines = self.describe().splitlines()
        read = [line for line in lines if any(letter.isalnum() for letter in line)]
        return "\n".join([self.subject] * bool(self.subject) + read)

    def _repr_html_(self):
        """An image that screen readers read out: Jupyter shows ``image/png`` without a text."""
        data = base64.b64encode(self.png()).decode()
        return (
            f'<img alt="{escape(self.alternative())}" class="{PICTURE_CLASS}" '
            f'style="max-width:100%" src="data:image/png;base64,{data}">{PICTURE_STYLE}'
        )

    def __repr__(self):
        return self.text or super().__repr__()


def colour_of(number):
    """The colour of a thread block, sequence, ... by its number; after the last the first again."""
    return COLOURS[number % len(COLOURS)]


def tint(colour, share):
    """So much of a colour on paper."""
    return tuple(1 - share * (1 - channel) for channel in to_rgb(colour))


def plain(ax, *, grid=None):
    """Take the box off an axes; `grid` is "x", "y" or None."""
    ax.spines[["top", "right"]].set_visible(False)
    if grid:
        ax.grid(axis=grid, color=LIGHT, linewidth=0.8)
        ax.set_axisbelow(True)
    return ax
