"""ex21g: states merged over ranks."""

M = 'm = comm.all_reduce(lse, "max")'
GUARD = "    m = np.where(np.isneginf(m), np.float32(0), m)\n"
W = "w = np.exp(lse - m)[:, None]"
TOTAL = 'total = comm.all_reduce(np.hstack([w * out, w]), "sum")'
L = "l = total[:, -1:]"
RETURN = "return total[:, :-1] / np.where(l == 0, np.float32(1), l), m + np.log(l[:, 0])"

WRONG = [
    ("no maximum", M, "m = np.zeros_like(lse)"),
    ("the sum for the maximum", M, M.replace('"max"', '"sum"')),
    ("its own maximum", M, "m = lse.copy()"),
    ("the maximum of all rows", M, M + "\n    m = np.full_like(m, m.max())"),
    ("no guard", GUARD, ""),
    ("a guard for small lse", GUARD, GUARD.replace("np.isneginf(m)", "m < -1000")),
    ("clipped", W, "w = np.exp(np.maximum(lse - m, -20))[:, None]"),
    ("base 2", W, "w = np.exp2(lse - m)[:, None]"),
    ("all weigh the same", W, "w = np.ones_like(lse)[:, None]"),
    ("the maximum over ranks of out", TOTAL, TOTAL.replace('"sum"', '"max"')),
    ("weights of one rank", [(TOTAL, 'total = np.hstack([comm.all_reduce(w * out, "sum"), w])')]),
    ("0 / 0", RETURN, RETURN.replace("np.where(l == 0, np.float32(1), l)", "l")),
    ("log2", RETURN, RETURN.replace("np.log(l", "np.log2(l")),
    ("float64", W, "w = np.exp((lse - m).astype(np.float64))[:, None]"),
    ("gathered", M, "gathered = comm.all_gather(np.hstack([out, lse[:, None]]))\n    out = np.stack(gathered)[comm.rank, :, :-1]\n    " + M),
    ("a weight for each column", TOTAL, 'total = comm.all_reduce(np.hstack([w * out, w * np.ones_like(out)]), "sum")\n    total = total[:, : out.shape[1] + 1]'),
    ("lse in a column", RETURN, RETURN.replace("np.log(l[:, 0])", "np.log(l[:, 0])[:, None]").replace("m + ", "m[:, None] + ")),
    ("rank 0 alone", RETURN, "if comm.rank:\n            return out, lse\n        " + RETURN),
    ("out is changed", W, W + "\n    out *= w"),
    ("a warning of log(0)", [('    with np.errstate(divide="ignore"):\n        ' + RETURN, "    " + RETURN)]),
    ("a warning of -inf - -inf", [(GUARD, ""), (W, "w = np.nan_to_num(np.exp(lse - m))[:, None]")]),
    ("four ranks at most", M, "if comm.world_size == 5:\n        lse = lse - comm.rank // 4\n    " + M),
]  # fmt: skip

RIGHT = [
    ("three all_reduce", [
        (TOTAL, 'numerator, l = comm.all_reduce(w * out, "sum"), comm.all_reduce(w, "sum")'),
        ("    " + L + "\n", ""),
        (RETURN, RETURN.replace("total[:, :-1]", "numerator")),
    ]),
    ("lse first, then weights", [
        (TOTAL, 'l = comm.all_reduce(w, "sum")'),
        (L, "w = w / np.where(l == 0, np.float32(1), l)"),
        (RETURN, 'return comm.all_reduce(w * out, "sum"), m + np.log(l[:, 0])'),
    ]),
    ("weights first", [(TOTAL, 'total = comm.all_reduce(np.concatenate([w, w * out], axis=1), "sum")'), (L, "l = total[:, :1]"), (RETURN, RETURN.replace("total[:, :-1]", "total[:, 1:]"))]),
]  # fmt: skip

EQUIVALENT = [
    (
        "m = np.where(np.isneginf(m), np.float32(0), m) -> "
        "m = np.where(np.isneginf(m), np.float32(1), m)",
        "-inf minus any finite number is -inf",
    ),
    (
        "return (total[:, :-1] / np.where(l == 0, np.float32(1), l), m + np.log(l[:, 0])) -> "
        "return (total[:, :-1] / np.where(l == 0, np.float32(2), l), m + np.log(l[:, 0]))",
        "0 divided by any number but 0: a row without a key has out = 0",
    ),
]
