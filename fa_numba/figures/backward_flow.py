"""The matrices of the backward pass: from which each is computed, and in which memory it is."""

from matplotlib.patches import FancyBboxPatch, Patch

from fa_numba.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PAPER, Drawing, on_paper

HBM, CHIP, RESULT = BLUE, ORANGE, GREEN
WIDTH, HEIGHT = 2.0, 0.74


@on_paper
def backward_flow(seqlen_q, seqlen_k, head_dim, block_m, block_n):
    """Boxes and arrows from q, k, v, dout to dq, dk, dv, with the shapes of one head.

    Parameters
    ----------
    seqlen_q, seqlen_k, head_dim : int
        The matrices in HBM.
    block_m, block_n : int
        The tile of S, P, dP and dS that exists at a time.

    Returns
    -------
    Drawing
    """
    rows_q, rows_k = f"{seqlen_q} × {head_dim}", f"{seqlen_k} × {head_dim}"
    per_row, tile = f"{seqlen_q}", f"tile, {block_m} × {block_n}"
    boxes = {  # name: (column, height, text, shape, colour)
        "q": (0, 5, "q", rows_q, HBM),
        "k": (0, 4, "k", rows_k, HBM),
        "lse": (0, 3, "lse", per_row, HBM),
        "v": (0, 2, "v", rows_k, HBM),
        "dout": (0, 1, "dout", rows_q, HBM),
        "delta": (0, 0, "delta = rowsum(dO ∘ O)", per_row, HBM),
        "S": (1, 4.5, "S = scale · Q Kᵀ", tile, CHIP),
        "dP": (1, 1.5, "dP = dO Vᵀ", tile, CHIP),
        "P": (2, 3.75, "P = exp(S − lse)", tile, CHIP),
        "dS": (2, 1.25, "dS = P ∘ (dP − delta)", tile, CHIP),
        "dv": (3, 4, "dV = Pᵀ dO", rows_k, RESULT),
        "dk": (3, 2.25, "dK = scale · dSᵀ Q", rows_k, RESULT),
        "dq": (3, 0.5, "dQ = scale · dS K", rows_q, RESULT),
    }
    arrows = [
        ("q", "S"), ("k", "S"), ("S", "P"), ("lse", "P"), ("v", "dP"), ("dout", "dP"),
        ("P", "dS"), ("dP", "dS"), ("delta", "dS"), ("P", "dv"), ("dS", "dk"), ("dS", "dq"),
    ]  # fmt: skip
    text = "\n".join(f"{label}   ({shape})" for _, _, label, shape, _ in boxes.values())
    figure = Drawing(9.4, 4.6, text=text)
    ax = figure.subplots()
    spacing = 2.75
    for column, y, label, shape, colour in boxes.values():
        ax.add_patch(FancyBboxPatch((column * spacing, y - HEIGHT / 2), WIDTH, HEIGHT,
                                    boxstyle="round,pad=0,rounding_size=0.08", facecolor=PAPER,
                                    edgecolor=colour, linewidth=1.6, zorder=2))  # fmt: skip
        middle = column * spacing + WIDTH / 2
        ax.text(middle, y + 0.13, label, ha="center", va="center", fontsize=9.5, color=INK)
        ax.text(middle, y - 0.19, shape, ha="center", va="center", fontsize=7.5, color=GREY)
    for start, end in arrows:
        (a, y_a, *_), (b, y_b, *_) = boxes[start], boxes[end]
        if a == b:  # straight down inside a column
            tail = a * spacing + WIDTH / 2, y_a - HEIGHT / 2
            head = b * spacing + WIDTH / 2, y_b + HEIGHT / 2
        else:
            tail, head = (a * spacing + WIDTH, y_a), (b * spacing, y_b)
        style = {"arrowstyle": "-|>", "color": GREY, "linewidth": 1.1, "shrinkA": 1, "shrinkB": 1}
        ax.annotate("", head, tail, arrowprops=style)
    ax.set(xlim=(-0.1, 3 * spacing + WIDTH + 0.1), ylim=(-0.5, 5.5))
    ax.axis("off")
    figure.legend(
        handles=[
            Patch(facecolor=PAPER, edgecolor=HBM, label="read from HBM"),
            Patch(facecolor=PAPER, edgecolor=CHIP, label="on the chip, a tile at a time"),
            Patch(facecolor=PAPER, edgecolor=RESULT, label="written to HBM"),
        ],
        loc="outside lower center", ncols=3, fontsize=8.5, frameon=False,
    )  # fmt: skip
    return figure
