"""FlashAttention-2, line by line: the tile, and m, ℓ, α and acc of one query."""

import linecache
import textwrap

import numpy as np

from fa_numba import simt
from fa_numba.figures.steps.steps import Step, Steps, box, grid, label

D, BLOCK_M, BLOCK_N, QUERIES, KEYS = 4, 2, 4, 4, 12
NAMES = "m_i", "l_i", "alpha", "acc", "n_start", "s_tile", "p_tile", "out", "lse"
WHOLE = "q", "k", "v", "q_tile", "k_tile", "v_tile"  # of all queries
SIZE = 340, 412


def recorded_lines(attn):
    """What a kernel did, line by line: (lines, its source file).

    Parameters
    ----------
    attn : function
        ``attn(q, k, v, block_m=, block_n=)``: FlashAttention-2 by one launch, in a kernel with the
        names of exercise ex07d.
    """
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, n, 1, D), np.float32) for n in (QUERIES, KEYS, KEYS))
    k[0, :, 0] += 0.4 * np.outer(
        np.arange(KEYS) // BLOCK_N, q[0, 0, 0]
    )  # so that the maximum grows
    with simt.tracing() as traces:
        attn(q, k, v, block_m=BLOCK_M, block_n=BLOCK_N)
    (trace,) = traces
    again, counts = trace.launched, iter(trace.arrays.values())
    arguments = list(again.arguments)
    for i, x in enumerate(arguments):
        if isinstance(x, np.ndarray) and next(counts).stores:
            arguments[i] = np.full_like(x, np.nan)  # not the results of the launch before
    return simt.follow(again.kernel, trace.grid, trace.block, *arguments)


def states(lines):
    """(line, numbers of query 0) of each line that changes a variable of its row, and each barrier.

    A line that runs several times in a tile is one step, with the numbers after its last time.
    """
    state, steps, tile, row = dict.fromkeys(NAMES), [], {}, {}
    for at in lines:
        if not at.active[0, 0]:
            continue
        before, row = row, {**row, **{name: of_row(name, x) for name, x in at.values.items()}}
        source = linecache.getline(at.file, at.line).strip()
        changed = {name for name, x in at.values.items() if x.dtype.kind == "f"}
        changed = {name for name in changed if not same(row[name], before.get(name))}
        state = {name: row.get(name) for name in NAMES}
        if new_tile := bool(steps) and not same(state["n_start"], steps[-1][1]["n_start"]):
            tile = {}
        here = at.function, at.line
        if here in tile:
            if not source.startswith("for "):  # the end of a loop is no step
                steps[tile[here]] = at, state
        elif new_tile or "syncthreads" in source or changed:
            tile[here] = len(steps)
            steps.append((at, state))
    first = next(i for i, (_, state) in enumerate(steps) if state["m_i"] is not None)
    return steps[first:]


def of_row(name, value):
    """The part of a variable that belongs to the first query of thread block 0."""
    if name == "acc":  # column tx + i * BLOCK_N is element i of thread tx
        return value[:, :BLOCK_N, 0].reshape(-1)[:D]
    if name in ("out", "lse"):
        return value[:D] if name == "out" else value[0]
    if name in ("s", "p", "s_tile", "p_tile"):
        return value[:BLOCK_N, 0]
    return value if name in WHOLE else value[0, 0] if value.ndim == 2 else value[..., 0]


def same(one, two):
    if one is None or two is None:
        return one is two
    return np.array_equal(one, two, equal_nan=True)


def flash_attn_steps(attn):
    """The steps of a kernel, from its own run.

    Parameters
    ----------
    attn : function
        As for `recorded_lines`: the learner's, or the package's.

    Returns
    -------
    Steps
    """
    found = states(recorded_lines(attn))
    code, place = listing([at for at, _ in found])
    steps, before, fresh = [], dict.fromkeys(NAMES), set()
    for at, state in found:
        number = None if state["n_start"] is None else int(state["n_start"]) // BLOCK_N
        if not same(state["n_start"], before["n_start"]):
            fresh = set()
        fresh |= {name for name in NAMES if not same(state[name], before[name])}
        source = linecache.getline(at.file, at.line).split("#")[0].strip()
        words = f"line {at.line}, {source} → {numbers(state)}"
        where = "before the first tile" if number is None else f"keys of tile {number}"
        steps.append(Step(draw(state, before, number, fresh), f"{where}: {words}",
                          place[at.function, at.line]))  # fmt: skip
        before = state
    return Steps(
        "FlashAttention-2 line by line: m, l, alpha and acc of query 0, as the kernel ran.",
        steps, SIZE, code=code,
    )  # fmt: skip


def listing(lines):
    """The functions that ran, as one listing; the place of each line in it."""
    spans = {}
    for at in lines:
        spans.setdefault(at.function, []).append(at)
    code, place = [], {}
    for function, ran in sorted(spans.items(), key=lambda item: item[1][0].line):
        first, last = min(x.line for x in ran), max(x.line for x in ran)
        source = [linecache.getline(ran[0].file, n).rstrip("\n") for n in range(first, last + 1)]
        code += ["⋮"] * bool(code)
        place |= {(function, first + i): len(code) + i for i in range(len(source))}
        numbered = textwrap.dedent("\n".join(source)).split("\n")
        code += [f"{first + i:>3} {x}" for i, x in enumerate(numbered)]
    return code, place


def numbers(state):
    """m, l, alpha and acc in words, those that have a value."""
    named = (("m", "m_i"), ("l", "l_i"), ("alpha", "alpha"), ("acc", "acc"), ("out", "out"),
             ("lse", "lse"))  # fmt: skip
    parts = [f"{word} {short(state[n])}" for word, n in named
             if state[n] is not None and not np.isnan(state[n]).any()]  # fmt: skip
    return ", ".join(parts) or "nothing yet"


def short(value):
    """A number, or several, with two decimals; a dot for one that is not there."""
    if value is None:
        return "·"
    if np.ndim(value):
        return " ".join(map(short, value))
    if not np.isfinite(value):
        return "−∞" if value == -np.inf else "∞" if value == np.inf else "NaN"
    return f"{value:.2f}".replace("-", "−")


def draw(state, before, number, fresh):
    """The tiles of scores, and query 0's numbers: filled if this line changed them.

    Those in `fresh` belong to this tile; a shared tile that is not among them holds the last one.
    """
    parts, side = [label(0, 14, "scores: queries down, keys across")], 26
    wide, high = side * BLOCK_N, side * BLOCK_M
    for m, n in np.ndindex(QUERIES // BLOCK_M, KEYS // BLOCK_N):
        kinds = []
        if m == 0 and number is not None and n <= number:
            kinds = ["c0"] if n == number else ["c0", "faint"]
        x, y = 6 + (wide + 5) * n, 22 + (high + 5) * m
        parts.append(box(x, y, wide, high, "", *kinds))
        parts.append(grid(x, y, BLOCK_N, BLOCK_M, side))
        if m == 0:
            parts.append(box(x, y, wide, side, "", "hot", "clear"))
    y = 22 + side * QUERIES + 5 + 20
    parts.append(label(0, y, "thick: query 0. Blue: this tile; pale: done", "grey"))
    parts.append(label(0, y + 252, "filled: changed now; empty: an earlier tile's", "grey"))
    rows = (("s of the tile", "s_tile", "c1"), ("P of the tile", "p_tile", "c1"),
            ("m", "m_i", "c2"), ("ℓ", "l_i", "c2"), ("α", "alpha", "c3"),
            ("acc", "acc", "c2"), ("out", "out", "c0"), ("lse", "lse", "c0"))  # fmt: skip
    for i, (name, key, colour) in enumerate(rows):
        top, value = y + 12 + 28 * i, state[key]
        values = np.atleast_1d(np.nan if value is None else value)
        parts.append(label(0, top + 17, name))
        changed = value is not None and not same(value, before[key])
        old = key.endswith("tile") and key not in fresh
        for j, x in enumerate(values):
            words = "·" if np.isnan(x) else short(x)
            kinds = [colour, *([] if changed else ["faint"])] if words != "·" and not old else []
            parts.append(box(92 + 61 * j, top, 58, 24, words, *kinds))
    return "".join(parts)
