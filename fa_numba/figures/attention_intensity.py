"""FLOPs per byte of attention against sequence length, beside the ridge of a GPU."""

from fa_numba.figures.parts import growth
from fa_numba.figures.style import INK, LIGHT, Drawing, on_paper, plain


@on_paper
def attention_intensity(lengths, curves, balance, *, device):
    """One line per way to compute attention; below the device's line, HBM is the bottleneck.

    Parameters
    ----------
    lengths : list of int
    curves : dict of str to list of float
        FLOPs per byte at each length.
    balance : float
        The device's FLOP/s over its bytes/s.
    device : str
        Its name.
    """
    words = [
        f"{name}: N={lengths[0]}: {values[0]:.3g}, N={lengths[-1]}: {values[-1]:.3g} FLOP a byte"
        for name, values in curves.items()
    ]
    text = "\n".join([*words, f"{device} needs {balance:.0f} FLOP a byte"])
    figure = Drawing(8, 4.2, text=text)
    ax = plain(figure.subplots(), grid="y")
    floor = min(min(values) for values in curves.values()) / 2
    ax.axhspan(floor, balance, color=LIGHT, alpha=0.6, zorder=0)
    ax.axhline(balance, color=INK, linewidth=1.2, linestyle="--")
    ax.annotate(f"{device}: {balance:.0f}; below, HBM decides", (lengths[-1], balance),
                (0, 5), textcoords="offset points", ha="right")  # fmt: skip
    ylabel = "FLOP per byte of HBM traffic"
    growth(ax, lengths, curves, "sequence length N", ylabel, bottom=floor)
    return figure
