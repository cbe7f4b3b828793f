"""One product of three matrices in its two orders, drawn to scale."""

from fa_numba.figures.parts import CENTRED, box
from fa_numba.figures.style import BLUE, GREEN, GREY, ORANGE, RED, Drawing, on_paper


@on_paper
def two_orders(seqlen, feature_dim, head_dim):
    """(φ(Q) φ(K)ᵀ) V above, φ(Q) (φ(K)ᵀ V) below: a matrix is as wide as its columns."""
    N, F, d = seqlen, feature_dim, head_dim
    q, kt, v = ("φ(Q)", N, F, BLUE), ("φ(K)ᵀ", F, N, ORANGE), ("V", N, d, GREEN)
    out = ("out", N, d, GREY)
    a, u = ("a", N, N, RED), ("U", F, d, RED)
    orders = {
        "(φ(Q) φ(K)ᵀ) V": ([q, "×", kt, "=", a, "then", a, "×", v, "=", out], 2 * N * N * (F + d)),
        "φ(Q) (φ(K)ᵀ V)": ([kt, "×", v, "=", u, "then", q, "×", u, "=", out], 4 * N * F * d),
    }
    gap = 0.16 * N
    figure = Drawing(9, 5.2)
    for ax, (order, (terms, flops)) in zip(figure.subplots(2, 1), orders.items(), strict=True):
        name, rows, cols, _ = terms[4]  # the product in between
        said = f"{order}: {name} has {rows} × {cols} = {rows * cols:,} elements; {flops:,} FLOPs"
        figure.say(said)
        x = 0.0
        for term in terms:
            if isinstance(term, str):
                wide = gap * (1 + (len(term) > 1))
                ax.text(x + wide / 2, 0, term, **CENTRED, fontsize=12)
                x += wide
                continue
            name, rows, cols, colour = term
            box(ax, x, -rows / 2, cols, rows, colour, alpha=0.75)
            ax.text(x + cols / 2, -rows / 2 - 0.04 * N, f"{name}\n{rows} × {cols}", ha="center",
                    va="top", fontsize=8.5)  # fmt: skip
            x += cols + gap / 3
        ax.set_xlim(-0.1 * N, 3 * N + 2 * F + 2 * d + 8 * gap)
        ax.set_ylim(-0.85 * N, 0.55 * N)
        ax.set_aspect("equal")
        ax.set_axis_off()
        ax.set_title(said, loc="left")
    return figure
