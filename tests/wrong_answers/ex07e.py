"""ex07e: a published update of acc with two bugs."""

from tests.wrong_answers import body_changes

# fmt: off
BODY, changed = body_changes("ex07e_published_update")

ALPHA = "                    acc[d] *= alpha\n"
INVERSE = "                    if t > 0:\n                        acc[d] /= alpha\n"
STORE = "                    acc_after[row, t, d] = acc[d]\n"
DIVIDED = "                    acc[d] /= l_i\n" + STORE
OUT = "out[row, d] = acc[d] / l_i"

WRONG = [
    ("as published", *changed((ALPHA, INVERSE), (STORE, DIVIDED))),
    ("the inverse stays", *changed((ALPHA, INVERSE))),
    ("the division stays", *changed((STORE, DIVIDED))),
    ("alpha is dropped", *changed((ALPHA, "                    acc[d] *= float32(1.0)\n"))),
    ("the division at the end in place of that in the loop", *changed((STORE, DIVIDED), (OUT, "out[row, d] = acc[d]"))),
    ("acc starts anew in each tile", *changed((ALPHA, "                    acc[d] = float32(0.0)\n"))),
    ("the history is divided", *changed((STORE, "                    acc_after[row, t, d] = acc[d] / l_i\n"))),
    ("the history of l is taken too early", *changed(("                l_after[row, t] = l_i\n", ""), ("                l_i *= alpha\n", "                l_i *= alpha\n                l_after[row, t] = l_i\n"))),
    ("alpha in tiles after the first two", *changed((ALPHA, "                    if t != 1:\n                        acc[d] *= alpha\n"))),
    ("l is divided by alpha as well", *changed((ALPHA, INVERSE), ("l_i *= alpha", "l_i /= alpha if t > 0 else float32(1.0)"))),
    ("float64", *changed((OUT, "out[row, d] = acc[d] / l_i * 1.0"))),
    ("64 columns at most", *changed((OUT, "out[row, d % 64] = acc[d] / l_i"))),
    ("64 tiles at most", *changed(("range(s.shape[1] // TILE)", "range(min(s.shape[1] // TILE, 64))"))),
    ("256 rows at most", *changed(("row < s.shape[0]", "row < min(s.shape[0], 256)"))),
    ("a first maximum of -1e4", *changed(("m_i = float32(-math.inf)", "m_i = float32(-1e4)"))),
    ("a first maximum of 0", *changed(("m_i = float32(-math.inf)", "m_i = float32(0)"))),
]

RIGHT = [
    ("FlashAttention-1's way: multiplied by l again", *changed(
        (STORE, "                    acc_after[row, t, d] = acc[d]\n                    acc[d] /= l_i\n"),
        ("                l_i *= alpha\n", "                l_old = l_i\n                l_i *= alpha\n"),
        (ALPHA, "                    acc[d] = acc[d] * l_old * alpha\n"), (OUT, "out[row, d] = acc[d]"))),
    ("only tiles after the first are rescaled", *changed((ALPHA, "                    if t > 0:\n                        acc[d] *= alpha\n"))),
]

EQUIVALENT = []
