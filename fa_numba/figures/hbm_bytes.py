"""Bytes through HBM, matrix by matrix: the formula beside the meter."""

from fa_numba.figures.style import BLUE, INK, ORANGE, Drawing, on_paper, plain


@on_paper
def hbm_bytes(formula, meter, *, title=""):
    """Two bars for each matrix; they must be equally long.

    Parameters
    ----------
    formula, meter : dict of str to int
        Bytes by matrix; the same keys.
    title : str, optional
    """
    names = list(formula)
    unit, word = next(
        (scale, word)
        for scale, word in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))
        if max(formula.values()) >= scale or scale == 1
    )
    text = "\n".join(f"{name}: formula {formula[name]:,}, meter {meter[name]:,}" for name in names)
    figure = Drawing(8, 0.46 * len(names) + 1.1, text=text)
    ax = plain(figure.subplots(), grid="x")
    for offset, values, colour, label in ((-0.2, formula, BLUE, "formula"),
                                          (0.2, meter, ORANGE, "meter")):  # fmt: skip
        y = [i + offset for i in range(len(names))]
        ax.barh(y, [values[name] / unit for name in names], height=0.36, color=colour, label=label)
    for i, name in enumerate(names):
        same = formula[name] == meter[name]
        note = f"{formula[name]:,}" if same else f"{formula[name]:,} ≠ {meter[name]:,}"
        longest = max(formula[name], meter[name]) / unit
        ax.annotate(note, (longest, i), (5, 0), textcoords="offset points", va="center",
                    fontsize=8.5, color=INK)  # fmt: skip
    ax.set_yticks(range(len(names)), names, fontsize=10)
    ax.invert_yaxis()
    ax.margins(x=0.14)
    ax.set_xlabel(word if word == "bytes" else f"{word} (numbers: bytes)", fontsize=9)
    ax.set_title(title, loc="left", fontsize=11, color=INK)
    ax.legend(loc="lower right", fontsize=9, framealpha=0.9)
    return figure
