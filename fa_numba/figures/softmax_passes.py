"""How often a softmax kernel walks over a row, from the meter."""

from fa_numba.figures.style import BLUE, GREY, ORANGE, Drawing, on_paper


@on_paper
def softmax_passes(traces):
    """One line of squares per pass over a row: reads of x, then writes of y.

    Parameters
    ----------
    traces : dict of str to Trace
        Label -> trace of the launch of a softmax kernel from x to y.
    """
    passes = {}
    for name, trace in traces.items():
        passes[name] = (trace.arrays["x"].loads / trace.arrays["y"].stores, 1.0)
    text = "\n".join(
        f"{name}: {reads:g} reads and {writes:g} write of each element"
        for name, (reads, writes) in passes.items()
    )
    lines = sum(round(reads) + 1 for reads, _ in passes.values()) + len(passes)
    figure = Drawing(7.5, 0.33 * lines + 0.2, text=text)
    ax = figure.subplots()
    squares, top = 16, 0.0
    for name, (reads, writes) in passes.items():
        kinds = ["read"] * round(reads) + ["write"] * round(writes)
        for i, kind in enumerate(kinds):
            colour = BLUE if kind == "read" else ORANGE
            ax.barh([top] * squares, 0.86, left=range(squares), height=0.78, color=colour)
            ax.text(squares + 0.4, top, f"{kind} {i + 1}" if kind == "read" else kind, va="center")
            top += 1
        middle = top - (len(kinds) + 1) / 2
        ax.text(-0.5, middle, name, va="center", ha="right", fontsize=11)
        ax.text(squares + 3.2, middle, f"{reads + writes:g} accesses\nper element",
                va="center", color=GREY)  # fmt: skip
        top += 1
    left = -1 - 0.42 * max(map(len, passes))
    ax.set(xlim=(left, squares + 6.5), ylim=(top - 1.4, -0.6))
    ax.axis("off")
    return figure
