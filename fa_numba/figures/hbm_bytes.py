"""Bytes through HBM, matrix by matrix: the formula beside the meter."""

from fa_numba.figures.parts import paired_bars
from fa_numba.figures.style import Drawing, on_paper, plain


@on_paper
def hbm_bytes(formula, meter, *, title=""):
    """Two bars for each matrix; they must be equally long.

    Parameters
    ----------
    formula, meter : dict of str to int
        Bytes by matrix; the same keys.
    title : str, optional
    """
    rows = [(name, formula[name], meter[name]) for name in formula]
    text = "\n".join(f"{name}: formula {one:,}, meter {two:,}" for name, one, two in rows)
    figure = Drawing(8, 0.46 * len(rows) + 1.1, text=text)
    ax = plain(figure.subplots(), grid="x")
    notes = [f"{one:,}" if one == two else f"{one:,} ≠ {two:,}" for _, one, two in rows]
    unit = paired_bars(ax, rows, ("formula", "meter"), notes)
    ax.set_xlabel(unit if unit == "bytes" else f"{unit} (numbers: bytes)")
    ax.set_title(title, loc="left", fontsize=11)
    ax.legend(loc="lower right", frameon=True, framealpha=0.9)
    return figure
