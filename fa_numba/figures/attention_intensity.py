"""FLOPs per byte of attention against sequence length, beside the ridge of a GPU."""

from fa_numba.figures.style import COLOURS, INK, LIGHT, Drawing, label_ends, on_paper, plain


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
                (0, 5), textcoords="offset points", ha="right", fontsize=9, color=INK)  # fmt: skip
    ends = []
    for (name, values), colour in zip(curves.items(), COLOURS, strict=False):
        ax.plot(lengths, values, "o-", color=colour, markersize=4, linewidth=1.8, clip_on=False)
        ends.append((name, values[-1], colour))
    ax.set_xscale("log", base=2)
    ax.set_xlim(right=lengths[-1])
    ax.set_yscale("log")
    ax.set_ylim(bottom=floor)
    ax.set_xticks(lengths, [f"{n // 1024}K" if n >= 1024 else str(n) for n in lengths])
    ax.set_xlabel("sequence length N", fontsize=9)
    ax.set_ylabel("FLOP per byte of HBM traffic", fontsize=9)
    label_ends(ax, lengths[-1], ends)
    return figure
