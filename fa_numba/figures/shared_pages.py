"""A block table whose rows share pages: one box around each page, as tall as it has owners."""

from itertools import groupby

from fa_numba.figures.parts import CENTRED, box, legend_below
from fa_numba.figures.style import BLUE, ORANGE, PAPER, Drawing, on_paper

OWN, SHARED, EMPTY = "#dbeafe", "#feebc8", "#bcd4f0"


@on_paper
def shared_pages(tables, references, *, page_size):
    """One panel for each moment, a line for each sequence, a box for each page.

    Parameters
    ----------
    tables : dict of str to dict of str to (list of int, int)
        By moment, by sequence: its pages and its length. Sequences that share should be neighbours.
    references : dict of str to function of a page
        By moment: how many sequences have the page.
    page_size : int
    """
    tallest = max(len(table) for table in tables.values())
    longest = {
        moment: max((len(pages) for pages, _ in table.values()), default=1)
        for moment, table in tables.items()
    }
    figure = Drawing(sum(0.62 * n + 1.5 for n in longest.values()), 0.5 * tallest + 1.0)
    panels = figure.subplots(1, len(tables), squeeze=False, width_ratios=[*longest.values()])[0]
    for ax, (moment, table) in zip(panels, tables.items(), strict=True):
        taken = {page for pages, _ in table.values() for page in pages}
        apart = sum(len(pages) for pages, _ in table.values())
        figure.say(f"{moment}: {len(taken)} pages, {apart} without sharing")
        for y, (name, (pages, length)) in enumerate(table.items()):
            figure.say(f"  {name}, {length} tokens: {pages}")
            ax.text(-0.15, y, name, ha="right", va="center")
        lengths = [length for _, length in table.values()]
        for column in range(longest[moment]):
            rows = [
                (pages[column] if column < len(pages) else None, y)
                for y, (pages, _) in enumerate(table.values())
            ]
            for page, run in groupby(rows, key=lambda row: row[0]):
                first, *_, last = [y for _, y in run] * 2
                if page is None:
                    continue
                many = references[moment](page) > 1
                edge = ORANGE if many else BLUE
                corner, height = (column + 0.06, first - 0.4), last - first + 0.8
                box(ax, *corner, 0.88, height, SHARED if many else OWN)
                filled = max(lengths[first : last + 1]) - column * page_size
                if filled < page_size:
                    empty = 0.88 * (1 - filled / page_size)
                    box(ax, column + 0.94 - empty, first - 0.4, empty, height, PAPER,
                        edgecolor=EMPTY, hatch="///", linewidth=0)  # fmt: skip
                box(ax, *corner, 0.88, height, edgecolor=edge, linewidth=1.4)
                ax.text(column + 0.5, (first + last) / 2, str(page), **CENTRED,
                        fontsize=10, zorder=5)  # fmt: skip
        ax.set(xlim=(-1.2, longest[moment] + 0.1), ylim=(tallest - 0.4, -0.6))
        ax.set_title(f"{moment}\n{len(taken)} pages, not {apart}")
        ax.axis("off")
    kinds = {
        "in one row": {"facecolor": OWN, "edgecolor": BLUE},
        "shared": {"facecolor": SHARED, "edgecolor": ORANGE},
        "empty slots": {"facecolor": PAPER, "edgecolor": EMPTY, "hatch": "///"},
    }
    legend_below(figure, kinds)
    return figure
