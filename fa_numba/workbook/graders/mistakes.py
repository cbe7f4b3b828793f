"""The results of usual mistakes.

A wrong answer says little; a wrong answer that equals the result of a missing alpha says where to
look. Each function yields pairs (sentence, {name of the output: its value by the mistake}), in
float64, for the graders of attention to compare with.
"""

import math

import numpy as np

from fa_numba.workbook.graders.tiles import turned


def forward_mistakes(head, BLOCK_M, BLOCK_N):
    """Mistakes of a forward pass over a `Head`, by tiles of BLOCK_M queries and BLOCK_N keys."""
    s, v = head.scores, head.v.astype(np.float64)
    right = _walk(s, v, BLOCK_N)
    yield "out is not divided by l.", {"out": right["acc"]}
    yield "l and m are exchanged.", {"l": right["m"], "m": right["l"]}
    yield "The log is missing: lse = m + log(l).", {"lse": right["m"] + right["l"]}
    yield "The maximum is missing: lse = m + log(l).", {"lse": right["log_l"]}
    base_2 = right["m"] + right["log_l"] / math.log(2)
    yield "This is log2: lse takes the natural logarithm.", {"lse": base_2}

    yield from rescaling_mistakes(s, v, BLOCK_N)
    own = "Each thread has the maximum of its own score alone: m_new is the largest of its row."
    yield own, _own_maximum(s, v, BLOCK_N)
    if BLOCK_M == BLOCK_N:
        answers = _walk(s, v, BLOCK_N, "rows_of_p")
        yield "P is read transposed: its row ty, p_tile[ty, c], is multiplied by V.", answers
    for sentence, scores in [*_other_scales(head), *_other_masks(head, BLOCK_M, BLOCK_N)]:
        yield sentence, _walk(scores, v, BLOCK_N)
    if not head.causal:
        missing = -s.shape[1] % BLOCK_N
        beyond = "Keys beyond seqlen_k, in the last tile, take part with score 0: it must be -inf."
        yield beyond, _walk(*_padded(s, v, missing), BLOCK_N)
        for sentence, scores in _other_scales(head):
            yield f"{beyond} {sentence}", _walk(*_padded(scores, v, missing), BLOCK_N)
        if missing:
            one = "Key seqlen_k, which does not exist, takes part: n < seqlen_k, not n <= seqlen_k."
            yield one, _walk(*_padded(s, v, 1), BLOCK_N)


def rescaling_mistakes(s, v, tile):
    """Mistakes of an online softmax over the columns of scores `s`, `tile` of them at a time."""
    alpha = "alpha = exp(m_old - m_new)"
    for sentence, rules in (
        (f"The output summed so far is not multiplied by {alpha}.", ("rescale_acc",)),
        (f"The sum l so far is not multiplied by {alpha}.", ("rescale_l",)),
        (f"Neither the output nor l, summed so far, is multiplied by {alpha}.",
         ("rescale_acc", "rescale_l")),
        ("The maximum is that of the last tile alone: m_new = max(m_old, rowmax(s)).",
         ("carry_m",)),
        ("The new maximum is not kept: m_i stays -inf.", ("keep_m",)),
        ("out was divided in the tile before: multiply it by l again before adding to it.",
         ("divide_once",)),
    ):  # fmt: skip
        yield sentence, _walk(s, v, tile, *rules)


def beyond_mistakes(s, v, tile):
    """Keys of the last tile that are none take part: as zeros, or as those of the tile before."""
    length, missing = s.shape[1], -s.shape[1] % tile
    beyond = "Keys behind the last one, in its tile, take part."
    yield beyond, _walk(*_padded(s, v, missing), 1)
    if missing and length > tile:
        n = np.r_[:length, length - tile : length + missing - tile]
        yield beyond, _walk(s[:, n], v[n], 1)


def backward_mistakes(head, BLOCK_M, BLOCK_N):
    """Mistakes of a backward pass by such tiles, given the right lse and delta."""
    s, scale = head.scores, float(head.scale)
    for sentence, options in (
        ("The factor softmax_scale of {name} is missing: S = softmax_scale q k^T.", {"factor": 1}),
        ("{name} has the factor softmax_scale twice.", {"factor": scale**2}),
        ("delta is missing: dS = P * (dP - delta).", {"delta": 0}),
        ("delta is added: dS = P * (dP - delta).", {"delta": -1}),
        ("{name} has the wrong sign: dS = P * (dP - delta).", {"factor": -scale}),
        ("dP - delta is not multiplied by P: dS = P * (dP - delta).", {"weighted": False}),
        ("dP is that of q and v: dP = dout v^T.", {"dp_of": "qv"}),
        ("dP is that of dout and k: dP = dout v^T.", {"dp_of": ("dout", "k")}),
    ):
        gradients = _gradients(head, s, **options)
        for name in ("dq", "dk"):  # dv knows nothing of dS
            yield sentence.format(name=name), {name: gradients[name]}
    yield (
        "delta is subtracted after the product: dS = P * (dP - delta).",
        _gradients(head, s, bracket=False),
    )
    for sentence, scores in [*_other_scales(head), *_other_masks(head, BLOCK_M, BLOCK_N)]:
        yield sentence, _gradients(head, scores)
    yield "lse is not subtracted: P = exp(S - lse).", _gradients(head, s, with_lse=False)
    yield "P and dS are exchanged: first P, then dS.", _gradients(head, s, exchanged=True)
    m, n = np.arange(len(s))[:, None], np.arange(s.shape[1])
    if BLOCK_M < BLOCK_N:
        part = _gradients(head, np.where(n % BLOCK_N < BLOCK_M, s, -np.inf))
        yield "dQ is a sum over the BLOCK_N keys of a tile, not over BLOCK_M.", {"dq": part["dq"]}
    if BLOCK_N < BLOCK_M:
        part = _gradients(head, np.where(m % BLOCK_M < BLOCK_N, s, -np.inf))
        part = {name: part[name] for name in ("dk", "dv")}
        yield "dK and dV are sums over the BLOCK_M queries of a tile, not over BLOCK_N.", part
    yield (
        "A thread stores columns tx + i BLOCK_N of dq, not ty + i BLOCK_M.",
        {"dq": _other_columns(head.backward["dq"], BLOCK_M, BLOCK_N)},
    )
    yield (
        "A thread stores columns ty + i BLOCK_M of dk and dv, not tx + i BLOCK_N.",
        {x: _other_columns(head.backward[x], BLOCK_N, BLOCK_M) for x in ("dk", "dv")},
    )
    factors = _gradients(head, s, swapped=True)
    yield "dS is multiplied by v: dQ = softmax_scale * dS k.", {"dq": factors["dq"]}
    yield "dS^T is multiplied by dout: dK = softmax_scale * dS^T q.", {"dk": factors["dk"]}
    yield "P^T is multiplied by q: dV = P^T dout.", {"dv": factors["dv"]}
    if BLOCK_M == BLOCK_N:
        answers = _gradients(head, s, p_turned=BLOCK_M)
        yield "P is not transposed: dV = P^T dout, a sum down a column.", {"dv": answers["dv"]}
        yield "dS is not transposed: dK = dS^T q, a sum down a column.", {"dk": answers["dk"]}
        yield (
            "dS is transposed: dQ = softmax_scale * dS k, a sum along a row.",
            {"dq": answers["dq"]},
        )
        answers = _gradients(head, s, dp_turned=BLOCK_M)
        yield "dP is transposed: row ty of dout meets row tx of v.", answers


def delta_mistakes(dout, out):
    """Mistakes of delta = rowsum(dout * out) by a warp per row."""
    product = dout.astype(np.float64) * out
    column = np.arange(out.shape[1])
    lane = column % 32
    for sentence, part in (
        ("This is the sum of lane 0 alone: the 32 lanes must add up, by shuffles.", lane == 0),
        ("Lanes 16 to 31 are missing: the first distance is 16.", lane < 16),
        ("Lane 1, 3, 5, ... are missing: the last distance is 1.", lane % 2 == 0),
        ("Columns 32 and up are missing: a lane takes lane, lane + 32, ...", column < 32),
    ):
        yield sentence, {"delta": product[:, part].sum(axis=1)}
    for name, x in (("dout", dout), ("out", out)):
        squares = np.sum(x.astype(np.float64) ** 2, axis=1)
        yield f"This is rowsum({name} * {name}): multiply dout by out.", {"delta": squares}


def _walk(s, v, tile, *broken):
    """The running state after the last tile, with some of its rules broken."""
    m, l = np.full(len(s), -np.inf), np.zeros(len(s))
    acc = np.zeros((len(s), v.shape[1]))
    with np.errstate(all="ignore"):  # a mistake may well overflow
        for n in range(0, s.shape[1], tile):
            m_new = s[:, n : n + tile].max(axis=1)
            m_new = m_new if "carry_m" in broken else np.maximum(m, m_new)
            base = np.where(np.isneginf(m_new), 0, m_new)
            p = np.exp(s[:, n : n + tile] - base[:, None])
            alpha, m = np.exp(m - base), m if "keep_m" in broken else m_new
            l = (l if "rescale_l" in broken else alpha * l) + p.sum(axis=1)
            if "rows_of_p" in broken:
                p = turned(np.pad(p, [(0, 0), (0, tile - p.shape[1])]), tile)
            pv = p[:, : len(v) - n] @ v[n : n + tile]
            acc = (acc if "rescale_acc" in broken else alpha[:, None] * acc) + pv
            if "divide_once" in broken:
                acc /= np.where(l > 0, l, 1)[:, None]
        out = acc if "divide_once" in broken else acc / np.where(l > 0, l, 1)[:, None]
        log_l = np.log(l)
        return {"out": out, "acc": acc, "l": l, "m": m, "log_l": log_l, "lse": m + log_l}


def _own_maximum(s, v, tile):
    """out and lse where each thread keeps the maximum of its own column of the tiles."""
    s, v = _padded(s, v, -s.shape[1] % tile, score=-np.inf)
    m, l = np.full((len(s), tile), -np.inf), np.zeros((len(s), tile))
    acc, owner = np.zeros((len(s), v.shape[1])), np.arange(v.shape[1]) % tile
    with np.errstate(all="ignore"):
        for n in range(0, s.shape[1], tile):
            m_new = np.maximum(m, s[:, n : n + tile])
            base = np.where(np.isneginf(m_new), 0, m_new)
            p, alpha, m = np.exp(s[:, n : n + tile] - base), np.exp(m - base), m_new
            l = alpha * l + p.sum(axis=1, keepdims=True)
            acc = alpha[:, owner] * acc + p @ v[n : n + tile]
        out = acc / np.where(l > 0, l, 1)[:, owner]
        return {"out": out, "lse": m[:, 0] + np.log(l[:, 0])}


def _other_columns(x, rows, columns):
    """Thread (row, c) of a tile of `rows` stores in its columns, c + i columns, those of row."""
    r, d = np.arange(len(x))[:, None], np.arange(x.shape[1])
    found = r % rows + d // columns * rows
    return np.where(found < len(d), x[r, np.minimum(found, d[-1])], 0)


def _gradients(
    head, s, *, factor=None, delta=1, p_turned=0, dp_turned=0, swapped=False, bracket=True,
    with_lse=True, weighted=True, exchanged=False, dp_of=("dout", "v"),
):  # fmt: skip
    """dq, dk, dv from scores `s` and the right lse, with one mistake.

    Parameters
    ----------
    head : Head
    s : array of shape (seqlen_q, seqlen_k)
    factor : float, default=softmax_scale
        Of dS.
    delta : float, default=1
        Of the right delta.
    p_turned, dp_turned : int, default=0
        Size of the square tiles of P and dS, or of dP, that are transposed; 0 for none.
    swapped : bool, default=False
        q, k and dout are dout, v and q.
    bracket, weighted, with_lse : bool, default=True
        False: dS is P dP − delta; is dP − delta; P is exp(s).
    exchanged : bool, default=False
        P is dS, and dS is P.
    dp_of : two names, default=("dout", "v")
        The arrays of which dP is the product.
    """
    q, k, v, dout = (x.astype(np.float64) for x in (head.q, head.k, head.v, head.dout))
    lse = head.forward["lse"][:, None]
    with np.errstate(all="ignore"):
        p = np.where(np.isneginf(lse), 0, np.exp(s - lse if with_lse else s))
        left, right = (getattr(head, x).astype(np.float64) for x in dp_of)
        dp, delta = left @ right.T, delta * head.backward["delta"][:, None]
        dp = turned(dp, dp_turned) if dp_turned else dp
        ds = p * (dp - delta) if bracket else np.where(np.isneginf(s), 0, p * dp - delta)
        ds = ds if weighted else np.where(np.isneginf(s), 0, dp - delta)
        ds *= float(head.scale) if factor is None else factor
        p, ds = (ds, p * float(head.scale)) if exchanged else (p, ds)
        if p_turned:
            p, ds = turned(p, p_turned), turned(ds, p_turned)
        if swapped:
            q, k, dout = dout, v, q
        return {"dq": ds @ k, "dk": ds.T @ q, "dv": p.T @ dout}


def _other_scales(head):
    """(sentence, scores) under another scale."""
    default = 1 / math.sqrt(head.q.shape[1])
    for sentence, scale in (
        ("The scores are not multiplied by softmax_scale.", 1.0),
        ("The scores are multiplied by 1/sqrt(head_dim), not by softmax_scale.", default),
        ("The scores are multiplied by 1/head_dim: softmax_scale is 1/sqrt(head_dim).", default**2),
        ("The scores are multiplied by sqrt(head_dim): divide by it.", 1 / default),
    ):
        if not math.isclose(scale, head.scale, rel_tol=1e-6):
            s = scale * head.q.astype(np.float64) @ head.k.T
            s[np.isneginf(head.scores)] = -np.inf
            yield sentence, s


def _other_masks(head, BLOCK_M, BLOCK_N):
    """(sentence, scores) under another mask."""
    m, n = np.arange(len(head.q))[:, None], np.arange(len(head.k))
    last = m + len(head.k) - len(head.q)
    s = float(head.scale) * head.q.astype(np.float64) @ head.k.T
    if not head.causal:
        yield "Query 0 takes no part.", np.where(m > 0, s, -np.inf)
        yield "The last key, seqlen_k - 1, takes no part.", np.where(n < n[-1], s, -np.inf)
        hidden = "Keys are hidden as by a causal mask, which this kernel does not have."
        yield hidden, np.where(n <= last, s, -np.inf)
        return
    rule = "query m sees the keys n <= m + seqlen_k - seqlen_q"
    end_m = np.minimum((m // BLOCK_M + 1) * BLOCK_M, len(head.q))  # behind the m-tile's last query
    end_n = end_m + len(head.k) - len(head.q)  # behind the last key that it sees
    visited, visited_early = (n < -(-end // BLOCK_N) * BLOCK_N for end in (end_n, end_n - 1))
    for sentence, sees in (
        (f"Hidden pairs of a live tile take part: {rule}.", visited),
        ("A tile that only its last query sees, and of it one key, is left out.",
         (n <= last) & visited_early),
        (f"Hidden keys take part: {rule}.", n >= 0),
        (f"The mask is aligned top-left: {rule}.", n <= m),
        (f"The mask hides one key too many: {rule}, the last one included.", n < last),
        (f"The mask shows one key too many: {rule}.", n <= last + 1),
    ):  # fmt: skip
        yield sentence, np.where(sees, s, -np.inf)
    zero = "Hidden keys of a live tile take part with score 0: it must be -inf."
    yield zero, np.where(n <= last, s, np.where(visited, 0, -np.inf))


def _padded(s, v, missing, score=0.0):
    """Scores and values with `missing` more keys, of this score and value 0."""
    scores = np.pad(s, [(0, 0), (0, missing)], constant_values=score)
    return scores, np.pad(v, [(0, missing), (0, 0)])
