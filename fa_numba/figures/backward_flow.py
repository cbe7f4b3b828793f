"""The matrices of the backward pass: from which each is computed, and in which memory it is."""

from matplotlib.patches import FancyBboxPatch

from fa_numba.figures.parts import CENTRED, legend_below
from fa_numba.figures.style import BLUE, GREEN, GREY, ORANGE, PAPER, Drawing, on_paper

HBM, CHIP, RESULT = BLUE, ORANGE, GREEN
WIDTH, NARROW, HEIGHT, SPACING = 2.0, 0.8, 0.74, 2.75
AGAIN = "again "  # a second box of an input, beside the result that it is multiplied for
ARROWS = (
    ("q", "S"), ("k", "S"), ("S", "P"), ("lse", "P"), ("v", "dP"), ("dout", "dP"),
    ("dout", "delta"), ("out", "delta"), ("P", "dS"), ("dP", "dS"), ("delta", "dS"), ("P", "dv"),
    ("dS", "dk"), ("dS", "dq"), ("again dout", "dv"), ("again q", "dk"), ("again k", "dq"),
)  # fmt: skip


@on_paper
def backward_flow(seqlen_q, seqlen_k, head_dim, block_m, block_n):
    """Boxes and arrows from q, k, v, dout to dq, dk, dv, with the shapes of one head.

    Parameters
    ----------
    seqlen_q, seqlen_k, head_dim : int
        The matrices in HBM.
    block_m, block_n : int
        The tile of S, P, dP and dS that exists at a time.
    """
    rows_q, rows_k = f"{seqlen_q} × {head_dim}", f"{seqlen_k} × {head_dim}"
    per_row, tile = f"{seqlen_q}", f"tile, {block_m} × {block_n}"
    boxes = {  # name: (column, height, text, shape, colour)
        "q": (0, 5, "q", rows_q, HBM),
        "k": (0, 4, "k", rows_k, HBM),
        "lse": (0, 3, "lse", per_row, HBM),
        "v": (0, 2, "v", rows_k, HBM),
        "dout": (0, 1, "dout", rows_q, HBM),
        "out": (0, 0, "out", rows_q, HBM),
        "S": (1, 4.5, "S = scale · Q Kᵀ", tile, CHIP),
        "dP": (1, 1.6, "dP = dO Vᵀ", tile, CHIP),
        "delta": (1, 0.3, "delta = rowsum(dO∘O)", per_row, HBM),
        "P": (2, 3.75, "P = exp(S − lse)", tile, CHIP),
        "dS": (2, 1.4, "dS = P ∘ (dP − delta)", tile, CHIP),
        "dv": (3, 4, "dV = Pᵀ dO", rows_k, RESULT),
        "dk": (3, 2.25, "dK = scale · dSᵀ Q", rows_k, RESULT),
        "dq": (3, 0.5, "dQ = scale · dS K", rows_q, RESULT),
    }
    for name, result in (("dout", "dv"), ("q", "dk"), ("k", "dq")):
        boxes[AGAIN + name] = (4, boxes[result][1], name, "again", HBM)
    figure = Drawing(9.9, 4.7, text="\n".join(_as_text(boxes)))
    ax = figure.subplots()
    for name, (_, y, label, shape, colour) in boxes.items():
        left, right = _sides(name, boxes)
        ax.add_patch(FancyBboxPatch((left, y - HEIGHT / 2), right - left, HEIGHT,
                                    boxstyle="round,pad=0,rounding_size=0.08", facecolor=PAPER,
                                    edgecolor=colour, linewidth=1.6, zorder=2))  # fmt: skip
        middle = (left + right) / 2
        ax.text(middle, y + 0.13, label, **CENTRED)
        ax.text(middle, y - 0.19, shape, **CENTRED, fontsize=7.5, color=GREY)
    for start, end in ARROWS:
        (a, y_a, *_), (b, y_b, *_) = boxes[start], boxes[end]
        (left, right), (other_left, other_right) = _sides(start, boxes), _sides(end, boxes)
        if a == b:  # straight down inside a column
            tail, head = (right - 1, y_a - HEIGHT / 2), (right - 1, y_b + HEIGHT / 2)
        elif a > b:
            tail, head = (left, y_a), (other_right, y_b)
        else:
            tail, head = (right, y_a), (other_left, y_b)
        style = {"arrowstyle": "-|>", "color": GREY, "linewidth": 1.1, "shrinkA": 1, "shrinkB": 1}
        ax.annotate("", head, tail, arrowprops=style)
    ax.set(xlim=(-0.1, 4 * SPACING + NARROW + 0.1), ylim=(-0.5, 5.5))
    ax.axis("off")
    edges = {"read from HBM": HBM, "on the chip, a tile at a time": CHIP, "written to HBM": RESULT}
    kinds = {words: {"facecolor": PAPER, "edgecolor": edge} for words, edge in edges.items()}
    legend_below(figure, kinds, fontsize=8.5)
    return figure


def _sides(name, boxes):
    """The left and the right side of a box."""
    left = boxes[name][0] * SPACING
    return left, left + (NARROW if name.startswith(AGAIN) else WIDTH)


def _as_text(boxes):
    for name, (_, _, label, shape, _) in boxes.items():
        if not name.startswith(AGAIN):
            sources = [start.removeprefix(AGAIN) for start, end in ARROWS if end == name]
            yield f"{label}   ({shape})" + f"   from {', '.join(sources)}" * bool(sources)
