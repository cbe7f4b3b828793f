"""A block table and its pool of pages: the pages of each sequence."""

from fa_numba.figures.parts import CENTRED, box
from fa_numba.figures.style import GREY, INK, PAPER, Drawing, colour_of, on_paper, tint


@on_paper
def page_table(block_table, seq_lens, page_size, num_pages):
    """The block table on the left, the pool on the right, a colour for each sequence.

    The numbers in the pool's slots are the tokens.

    Parameters
    ----------
    block_table : integer array of shape (batch, max_pages)
        −1 where no page has been given out.
    seq_lens : integer array of shape (batch,)
    page_size, num_pages : int
    """
    batch, max_pages = block_table.shape
    columns = 1 + (num_pages > 8)  # of the pool
    rows = -(-num_pages // columns)
    slot = 0.24
    table_width = 0.62 * max_pages
    pool_x = table_width + 0.9
    page_width = slot * page_size
    figure = Drawing(
        pool_x + columns * (page_width + 0.75) + 0.9, 0.44 * max(rows, batch + 1) + 0.8
    )
    ax = figure.subplots()
    place = {}

    for page in range(num_pages):
        x = pool_x + page // rows * (page_width + 0.75)
        y = 0.44 * (page % rows)
        place[page] = (x, y)
        owner = next((b for b in range(batch) if page in block_table[b]), None)
        ax.text(x - 0.12, y, str(page), ha="right", va="center", fontsize=10,
                color=GREY if owner is None else colour_of(owner),
                weight="normal" if owner is None else "bold")  # fmt: skip
        for offset in range(page_size):
            box(ax, x + slot * offset, y - 0.13, slot, 0.26, PAPER, edgecolor=GREY, linewidth=0.6)

    first = 0.44 * (rows - batch) / 2
    for b in range(batch):
        colour, y = colour_of(b), first + 0.44 * b
        pages = [int(page) for page in block_table[b]]
        figure.say(f"sequence {b}, {seq_lens[b]} tokens: pages {pages}")
        ax.text(-0.15, y, f"sequence {b}\n{seq_lens[b]} tokens", ha="right", va="center",
                color=colour)  # fmt: skip
        for column, page in enumerate(pages):
            x = 0.62 * column
            box(ax, x, y - 0.19, 0.62, 0.38, tint(colour, 0.3 * (page >= 0)), edgecolor=GREY)
            ax.text(x + 0.31, y, str(page).replace("-", "−"), **CENTRED,
                    fontsize=10, color=INK if page >= 0 else GREY)  # fmt: skip
            if page < 0:
                continue
            page_x, page_y = place[page]
            filled = min(page_size, int(seq_lens[b]) - column * page_size)
            for offset in range(filled):
                box(ax, page_x + slot * offset, page_y - 0.13, slot, 0.26, tint(colour, 0.3),
                    edgecolor=colour)  # fmt: skip
                ax.text(page_x + slot * (offset + 0.5), page_y, str(column * page_size + offset),
                        **CENTRED, fontsize=7)  # fmt: skip

    right = pool_x + columns * (page_width + 0.75)
    ax.text(table_width / 2, first - 0.38, "block_table", ha="center", fontsize=10)
    ax.text((pool_x + right - 0.75) / 2, -0.38,
            f"pool: {num_pages} pages of {page_size} slots", ha="center", fontsize=10)  # fmt: skip
    ax.set(xlim=(-1.1, right - 0.5), ylim=(0.44 * rows - 0.1, min(-0.6, first - 0.6)))
    ax.set_aspect("equal")
    ax.axis("off")
    return figure
