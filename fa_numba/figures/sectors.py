"""The bytes that a launch's threads asked for and those that memory moved, array by array."""

from fa_numba.figures.parts import paired_bars
from fa_numba.figures.style import Drawing, on_paper, plain

SECTOR = 32  # bytes


@on_paper
def sectors(trace):
    """Two bars for each array, loads and stores apart: bytes asked for, bytes in sectors."""
    rows = [
        (f"{name}, {action}s", getattr(a, f"{action}_bytes"), SECTOR * moved)
        for name, a in trace.arrays.items()
        for action in ("load", "store", "atomic")
        if (moved := getattr(a, f"{action}_sectors"))
    ]
    text = "\n".join(
        f"{name}: {asked:,} bytes asked for, {moved:,} moved, {_use(asked, moved)}"
        for name, asked, moved in rows
    )
    figure = Drawing(8, 0.5 * len(rows) + 1.5, text=text)
    ax = plain(figure.subplots(), grid="x")
    kinds = "asked for by the threads", "moved in 32-byte sectors"
    unit = paired_bars(ax, rows, kinds, [_use(asked, moved) for _, asked, moved in rows])
    ax.set_xlabel(f"{unit} of global memory")
    ax.set_title(trace.title(), loc="left", fontsize=10.5)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _use(asked, moved):
    if asked > moved:
        return f"each byte for {asked / moved:.3g} threads"
    return f"{asked / moved:.0%} used"
