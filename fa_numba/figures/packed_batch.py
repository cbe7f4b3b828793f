"""A batch of sequences of several lengths: padded, packed, and the pairs of attention."""

from fa_numba.figures.parts import CENTRED, NOTHING, box, legend_below
from fa_numba.figures.style import LIGHT, PAPER, Drawing, colour_of, on_paper


@on_paper
def packed_batch(lengths, block, *, causal=False):
    """The padded rectangle, the packed row with the numbers of its tiles, and the pairs of both.

    Parameters
    ----------
    lengths : sequence of int
        Of the sequences, at least 1 each.
    block : int
        Tokens of a tile.
    causal : bool, default=False
        Whether a query sees no later key.
    """
    lengths = [int(n) for n in lengths]
    batch, longest, tokens = len(lengths), max(lengths), sum(lengths)
    starts = [sum(lengths[:b]) for b in range(batch + 1)]
    colour = [colour_of(b) for b in range(batch)]
    figure = Drawing(9, 4.6)
    grid = figure.add_gridspec(2, 2, width_ratios=(2.0, 1), height_ratios=(3, 1.5))
    padded, packed = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0])
    pairs = figure.add_subplot(grid[:, 1])

    for b, n in enumerate(lengths):
        box(padded, 0, b, longest, 0.8, LIGHT)
        box(padded, 0, b, n, 0.8, colour[b])
    share = 1 - tokens / (batch * longest)
    padded.set(xlim=(0, longest), ylim=(batch - 0.1, -0.2))
    padded.set_yticks([b + 0.4 for b in range(batch)], [f"{n}" for n in lengths])
    padded.set_title(f"padded: {batch * longest} tokens, {share:.0%} padding", loc="left")

    numbers = tile_numbers(starts, block)
    for b, n in enumerate(lengths):
        box(packed, starts[b], 0, n, 1, colour[b])
    for number, (b, row) in numbers.items():
        at = starts[b] + row
        width = min(block, starts[b + 1] - at)
        packed.plot([at, at], [0, 1], color=PAPER, linewidth=1.4)
        size = 7.5 if width > 0.03 * tokens else 5.5  # narrow tiles: two digits must fit
        packed.text(at + width / 2, 0.5, number, **CENTRED, fontsize=size, color=PAPER)
    in_grid = starts[-1] // block + batch
    packed.set(xlim=(0, tokens), ylim=(1.05, -0.05), yticks=[])
    packed.set_xticks(starts, _in_two_lines(starts))
    packed.set_title(f"packed: {tokens} tokens; {len(numbers)} tiles of {block} with their numbers,"
                     f" of {in_grid} in the grid", loc="left")  # fmt: skip
    packed.set_xlabel("cu_seqlens")

    real = 0
    for b, n in enumerate(lengths):
        corners = [(starts[b], starts[b]), (starts[b], starts[b] + n), (starts[b] + n,) * 2]
        if not causal:
            corners.append((starts[b] + n, starts[b]))
        pairs.fill(*zip(*corners, strict=True), color=colour[b], linewidth=0)
        real += n * (n + 1) // 2 if causal else n * n
    pairs.set(xlim=(0, tokens), ylim=(tokens, 0), aspect="equal", facecolor=LIGHT)
    pairs.set_title(f"pairs: {real:,} of {tokens**2:,}", loc="left")
    pairs.set(xlabel="keys", ylabel="queries")
    for ax in (padded, packed, pairs):
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0, labelsize=8)
    kinds = {f"sequence {b}": colour[b] for b in range(min(batch, 5))}
    legend_below(figure, kinds | {"padding": NOTHING})
    figure.text = (
        f"lengths {lengths}: {share:.0%} of the padded tokens are padding; cu_seqlens {starts}; "
        f"tiles of {block}: "
        + ", ".join(
            f"{number} is row {row} of sequence {b}" for number, (b, row) in numbers.items()
        )
    )
    return figure


def tile_numbers(starts, block):
    """{number: (sequence, first row in it)} of the tiles that have a row, as `sequence_of` says."""
    return {
        start // block + b + t: (b, t * block)
        for b, (start, end) in enumerate(zip(starts, starts[1:], strict=False))
        for t in range(-(-(end - start) // block))
    }


def _in_two_lines(starts):
    """Labels of the starts; one that would touch its left neighbour stands a line lower."""
    words, near, low = [], 0.05 * starts[-1], False
    for start, before in zip(starts, [-near, *starts], strict=False):
        low = not low and start - before < near
        words.append(f"\n{start}" if low else f"{start}")
    return words
