"""One look for all drawings: an opaque light background, so that a dark notebook stays legible."""

import matplotlib
from matplotlib.figure import Figure

# Colour-blind safe (Okabe and Ito).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
INK, PAPER = "#222222", "#fbfbf8"


def figure(width, height, **subplots):
    """A Figure and its axes, without pyplot: nothing is shown twice, nothing stays open."""
    with matplotlib.rc_context({"font.size": 10, "text.color": INK, "axes.labelcolor": INK}):
        fig = Figure(figsize=(width, height), facecolor=PAPER, layout="constrained")
        axes = fig.subplots(**subplots)
    return fig, axes
