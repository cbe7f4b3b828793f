"""The bytes that a launch's threads asked for and those that memory moved, array by array."""

from fa_numba.figures.style import BLUE, INK, ORANGE, Drawing, on_paper, plain

SECTOR = 32  # bytes
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))


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
    most = max((max(row[1:]) for row in rows), default=1)
    scale, unit = next((s, u) for s, u in UNITS if most >= s or s == 1)
    figure = Drawing(8, 0.5 * len(rows) + 1.5, text=text)
    ax = plain(figure.subplots(), grid="x")
    bars = (-0.2, 1, BLUE, "asked for by the threads"), (0.2, 2, ORANGE, "moved in 32-byte sectors")
    for offset, column, colour, label in bars:
        y = [i + offset for i in range(len(rows))]
        ax.barh(y, [row[column] / scale for row in rows], height=0.36, color=colour, label=label)
    for i, (_, asked, moved) in enumerate(rows):
        ax.annotate(_use(asked, moved), (max(asked, moved) / scale, i), (5, 0),
                    textcoords="offset points", va="center", fontsize=8.5, color=INK)  # fmt: skip
    ax.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=10, color=INK)
    ax.invert_yaxis()
    ax.margins(x=0.14)
    ax.set_xlabel(f"{unit} of global memory", fontsize=9, color=INK)
    ax.set_title(trace.title(), loc="left", fontsize=10.5, color=INK)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return figure


def _use(asked, moved):
    if asked > moved:
        return f"each byte for {asked / moved:.3g} threads"
    return f"{asked / moved:.0%} used"
