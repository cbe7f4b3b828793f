"""Recall and error of attention to few pages, against their number."""

from matplotlib.ticker import FuncFormatter, PercentFormatter

from fa_numba.figures.style import COLOURS, Drawing, on_paper, plain


@on_paper
def recall_by_pages(rows):
    """Two panels over the share of pages that is read: the weight on them, and out's error.

    Parameters
    ----------
    rows : list of dict
        As `recorded_rows("topk_pages")`: keys (their kind), share of pages, recall, error.
    """
    figure = Drawing(8.4, 3.0)
    panels = figure.subplots(1, 2)
    kinds = list(dict.fromkeys(row["keys"] for row in rows))
    of_kinds = [[row for row in rows if row["keys"] == kind] for kind in kinds]
    for ax, name in zip(panels, ("recall", "error"), strict=True):
        for kind, some, colour in zip(kinds, of_kinds, COLOURS, strict=False):
            shares = [row["share of pages"] for row in some]
            values = [row[name] for row in some]
            ax.plot(shares, values, "o-", color=colour, markersize=4, linewidth=1.6, label=kind)
        plain(ax, grid="y")
        ax.set_xscale("log", base=2)
        ax.set_xticks(shares[::2])
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.2g}"))
        ax.set_xlabel("share of pages that is read")
    panels[0].set_title("recall: share of the weight")
    panels[0].yaxis.set_major_formatter(PercentFormatter(1))
    panels[1].set(title="error of out, relative", yscale="log")
    panels[0].legend()
    for kind, some in zip(kinds, of_kinds, strict=True):
        for row in some:
            figure.say(
                f"{kind}: {row['share of pages']:.2%} of the pages have {row['recall']:.1%} of the "
                f"weight, error {row['error']:.2g}"
            )
    return figure
