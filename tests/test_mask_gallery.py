"""`fa_numba.masks`: each mask against a definition in other words, its tiles by enumeration."""

import functools
import re
from pathlib import Path

import numpy as np
import pytest
from cases import assert_close
from numba import cuda

import fa_numba
from fa_numba import masks, reference, simt
from fa_numba.expressions.given import given
from fa_numba.expressions.tiles import HIDDEN, MIXED, WHOLE

N, HEADS = 64, 2
DOCUMENT = np.repeat([1, 2, 3], [20, 15, 29])
WIDTHS = np.array([3, 20])
PARENTS = [-1, 0, 0, 1, 1, 2, -1, 6, *range(3, 19)]
PREFIX = N - len(PARENTS)
LISTS = np.array([[[[0, -1], [3, 1], [2, 2], [-1, -1]], [[1, 0], [0, 2], [3, 0], [1, 3]]]])


def ancestors(node):
    return {node} | (ancestors(PARENTS[node]) if PARENTS[node] >= 0 else set())


def of_tree(h, m):
    return {*range(min(m + 1, PREFIX))} | {
        PREFIX + node for node in (ancestors(m - PREFIX) if m >= PREFIX else ())
    }


def of_diffusion(h, m):
    noisy, clean = np.split(np.arange(N).reshape(-1, 8), 2)
    block = m % 32 // 8
    seen = clean[: block + 1] if m >= 32 else [noisy[block], *clean[:block]]
    return np.ravel(seen).tolist()


def near(shape):
    """Keys whose coordinates differ by at most 1 along each axis."""
    at = np.stack(np.unravel_index(np.arange(N), shape))
    return lambda h, m: {*np.flatnonzero((abs(at - at[:, [m]]) <= 1).all(axis=0)).tolist()}


GALLERY = {  # the keys that query m of head h sees
    "causal": (masks.causal, lambda h, m: range(m + 1)),
    "window": (masks.window(9), lambda h, m: range(m - 8, m + 1)),
    "window and first": (
        masks.window_and_first(9, 4), lambda h, m: {*range(min(m + 1, 4)), *range(m - 8, m + 1)},
    ),
    "window per head": (
        masks.window_per_head(WIDTHS), lambda h, m: range(m + 1 - int(WIDTHS[h]), m + 1)
    ),
    "dilated": (masks.dilated(3), lambda h, m: range(m % 3, m + 1, 3)),
    "prefix LM": (masks.prefix_lm(20), lambda h, m: range(max(m + 1, 20))),
    "documents": (
        masks.documents(DOCUMENT), lambda h, m: np.flatnonzero(DOCUMENT == DOCUMENT[m]).tolist()
    ),
    "block causal": (masks.block_causal(16), lambda h, m: range(m // 16 * 16 + 16)),
    "block diffusion": (masks.block_diffusion(8, 32), of_diffusion),
    "block lists": (
        masks.block_lists(LISTS, N, 16, 16),
        lambda h, m: {16 * x + i for x in LISTS[0, h, m // 16] for i in range(16)},
    ),
    "2-D": (masks.neighbours_2d(8, 1), near((8, 8))),
    "3-D": (masks.neighbours_3d(4, 4, 1), near((4, 4, 4))),
    "tree": (masks.tree(PARENTS, PREFIX), of_tree),
    "and": (
        masks.window(30) & masks.documents(DOCUMENT),
        lambda h, m: {*range(m - 29, m + 1)} & {*np.flatnonzero(DOCUMENT == DOCUMENT[m]).tolist()},
    ),
    "or": (
        masks.window_per_head(WIDTHS) | masks.prefix_lm(20) & masks.dilated(3),
        lambda h, m: {*range(m + 1 - int(WIDTHS[h]), m + 1), *range(m % 3, m + 1, 3)},
    ),
    "not": (masks.causal & ~masks.window(9), lambda h, m: range(m - 8)),
    "a function on the left": (
        (lambda b, h, m, n: m != n) & masks.window(9), lambda h, m: range(m - 8, m)
    ),
    "a function on the right": (
        ~masks.causal | (lambda b, h, m, n: n == 0 or m - 2 <= n <= m),
        lambda h, m: {0, m - 2, m - 1, *range(m, N)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GALLERY)
def test_a_mask_sees_what_it_says(name):
    mask, keys_of = GALLERY[name]
    tiles = masks.tiles(mask, N, block_m=8, block_n=16, num_heads=HEADS, pairs=True)
    for h, m in np.ndindex(tiles.pairs.shape[1], N):
        want = {n for n in keys_of(h, m) if 0 <= n < N}
        assert {*np.flatnonzero(tiles.pairs[0, h, m]).tolist()} == want, (h, m)
    for b, h, i, j in np.ndindex(tiles.classes.shape):
        tile = tiles.pairs[b, h, 8 * i : 8 * i + 8, 16 * j : 16 * j + 16]
        want = WHOLE if tile.all() else MIXED if tile.any() else HIDDEN
        # x & ~x is taken for a maybe: intervals do not know that both sides are one
        assert tiles.classes[b, h, i, j] in (want, MIXED if name == "not" else want), (h, i, j)


def test_every_mask_is_tested():
    made = {name for name in masks.__all__ if name[0].islower()} - {"tiles", "tiles_of_pairs"}
    assert len(made) == 13 <= len(GALLERY)
    assert all(repr(getattr(masks, name)).find(name) > 0 for name in made)


PAGE = (Path(__file__).parents[1] / "docs" / "masks.md").read_text(encoding="utf-8")
MADE = {  # the parameters of the page's rows
    "causal": (), "window(w)": (9,), "window_and_first(w, k)": (9, 4), "dilated(k)": (3,),
    "window_per_head(w)": (WIDTHS,), "prefix_lm(k)": (20,), "documents(d)": (DOCUMENT,),
    "block_causal(k)": (16,), "neighbours_2d(columns, r)": (8, 1),
}  # fmt: skip


def test_the_page_shows_the_code():
    rows = re.findall(r"^\| `masks\.(.*?)` \| `(.*)` \|$", PAGE, re.MULTILINE)
    assert {made for made, _ in rows} == {*MADE}
    for made, expression in rows:
        name, _, names = made.removesuffix(")").partition("(")
        values = dict(zip(names.split(", ") if names else (), MADE[made], strict=True))
        ours = getattr(masks, name)
        ours = ours(*values.values()) if values else ours
        shown = eval(f"lambda b, h, m, n: {expression.replace(chr(92), '')}", values)
        for h, m, n in np.ndindex(HEADS, N, N):
            assert bool(ours(0, h, m, n)) == bool(shown(0, h, m, n)), (made, h, m, n)
    named = set(re.findall(r"^\| `masks\.(\w+)", PAGE, re.MULTILINE))
    assert named == set(masks.__all__) - {"MaskFunction", "Tiles", "tiles", "tiles_of_pairs"}


@pytest.mark.parametrize("name", ["window", "prefix_lm", "dilated", "block_causal"])
def test_another_number_compiles_nothing_anew(name):
    few, many = (getattr(masks, name)(number) for number in (2, 300))
    few, many = (
        given(x.function, x.args, None, (), (False, (-1, -1), 0.0, None)) for x in (few, many)
    )
    assert few.expressions == many.expressions and few.arguments == (2,) != many.arguments


ATTENTION = {  # and the gradient
    "to read, tiles in blocks": (
        functools.partial(fa_numba.flash_attn_v2, block_m=8, block_n=8),
        functools.partial(fa_numba.flash_attn_bwd, block_m=8, block_n=8),
    ),
    "to read, tiles of several blocks": (
        functools.partial(fa_numba.flash_attn_v2, block_m=16, block_n=32),
        functools.partial(fa_numba.flash_attn_bwd, block_m=16, block_n=16),
    ),
    "jobs": (fa_numba.flash_attn, fa_numba.flash_attn_grad),
}


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("each", [True, False], ids=["lists of each head", "one for all"])
def test_block_lists_forward_and_backward(name, each, rng):
    """2 sequences of 50 keys in blocks of 8, and the last 42 queries; a list may be empty."""
    lists = rng.integers(-1, 7, (2, 2, 7, 3) if each else (1, 1, 7, 3))
    lists[0, 0, 3] = -1
    mask = masks.block_lists(lists, 50, 8, 8, group_size=2) & masks.causal
    q, dout = rng.standard_normal((2, 2, 42, 4, 8), np.float32)
    k, v = rng.standard_normal((2, 2, 50, 2, 8), np.float32)
    attend, gradient = ATTENTION[name]
    out, lse = attend(q, k, v, mask=mask)
    got = out, lse, *gradient(dout, q, k, v, out, lse, mask=mask)

    def definition(dtype):
        options = {"mask": mask, "dtype": dtype}
        return *reference.attention(q, k, v, **options), *reference.attention_bwd(
            dout, q, k, v, **options
        )

    both = definition(np.float64), definition(np.float32)
    for what, *x in zip(("out", "lse", "dq", "dk", "dv"), got, *both, strict=True):
        assert_close(*x, name=what)


def test_lists_on_a_gpu_are_read_by_a_kernel(rng):
    """There a number that is no block's is left out; nothing waits for the CPU."""
    lists = rng.integers(-1, 200, (2, 3, 5, 150)).astype(np.int32)
    (want,) = masks.block_lists(lists, 200, 40, 1).args
    lists[0, 0, 0, :2] = -7, 200
    want[0, 0, 0] = np.isin(np.arange(200), lists[0, 0, 0])
    (got,) = masks.block_lists(cuda.to_device(lists), 200, 40, 1).args
    np.testing.assert_array_equal(got.copy_to_host(), want)


def test_blocks_that_no_list_names_are_never_loaded(rng):
    """K and V are NaN there, and the meter counts the others."""
    lists = np.array([[[[0], [1], [1], [3]]]])
    mask = masks.block_lists(lists, N, 16, 16)
    q, k, v = rng.standard_normal((3, 1, N, 1, 8), np.float32)
    k[:, 32:48] = v[:, 32:48] = np.nan
    for block_m, block_n, rows in ((16, 16, 64), (8, 4, 128), (32, 16, 4 * 16)):
        with simt.tracing() as traces:
            out, _ = fa_numba.flash_attn_v2(q, k, v, mask=mask, block_m=block_m, block_n=block_n)
        assert np.isfinite(out).all() and traces[0].arrays["k"].loads == 8 * rows
    tiles = masks.tiles(mask, N, block_m=16, block_n=16)
    assert (tiles.whole, tiles.mixed, tiles.hidden) == (4, 0, 12)


@pytest.mark.parametrize(
    "lists, options, message",
    [
        (np.zeros((2, 4)), {}, "lists must be integers of shape .*got float64 of shape"),
        (np.zeros((1, 1, 4), int), {}, r"lists must be integers.*\(1, 1, 4\)"),
        (np.full((1, 1, 4, 1), 4), {}, "from -1 to 3, the blocks of seqlen_k=64 keys, got 4 to 4"),
        (np.full((1, 1, 4, 1), -2), {}, "from -1 to 3.*got -2 to -2"),
        (LISTS, {"block_m": 0}, "block_m must be from 1 to"),
        (LISTS, {"group_size": 1.5}, "group_size must be an int, got float"),
    ],
)
def test_lists_that_are_refused(lists, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        masks.block_lists(lists, N, **{"block_m": 16, "block_n": 16, **options})


@pytest.mark.parametrize("sizes", [(37, 37, 8, 16), (13, 45, 4, 8)], ids=str)
def test_bytes_are_those_of_the_meter(sizes):
    seqlen_q, seqlen_k, block_m, block_n = sizes
    mask = masks.window_and_first(5, 3)
    tiles = masks.tiles(mask, seqlen_q, seqlen_k, block_m, block_n)
    assert tiles.hidden and tiles.hidden + tiles.mixed + tiles.whole == tiles.classes.size
    rng = np.random.default_rng()
    q, k, v = (rng.standard_normal((1, n, 1, 6), np.float32) for n in (seqlen_q, *[seqlen_k] * 2))
    with simt.tracing() as traces:
        fa_numba.flash_attn_v2(q, k, v, mask=mask, block_m=block_m, block_n=block_n)
    moved = {x: traces[0].arrays[x] for x in ("q", "k", "v", "out", "lse")}
    assert tiles.key_rows * 6 == moved["k"].loads == moved["v"].loads
    assert tiles.hbm_bytes(6, 4) == sum(x.load_bytes + x.store_bytes for x in moved.values())
    rows, columns = (np.minimum(b, s - np.arange(0, s, b))
                     for s, b in ((seqlen_q, block_m), (seqlen_k, block_n)))  # fmt: skip
    computed = (np.outer(rows, columns) * (tiles.classes[0, 0] != HIDDEN)).sum()
    assert tiles.flops_share == pytest.approx(computed / (seqlen_q * seqlen_k))


def test_a_function_and_its_arguments():
    ours = masks.tiles(masks.window(9), 40, 50, 8, 8)
    users = masks.tiles(lambda b, h, m, n, w: 0 <= m - n < w, 40, 50, 8, 8, mask_args=(9,))
    assert (ours.classes == users.classes).all() and ours.pairs is None


@pytest.mark.parametrize("name", ["flash_attn", "flash_attn_v2", "naive_attn"])
def test_functions_take_a_mask_with_its_arguments(name):
    """Twice, because a call may be kept for the next one."""
    rng = np.random.default_rng()
    q, k, v = rng.standard_normal((3, 1, N, 1, 8), np.float32)
    for width in (5, 30):
        mask = masks.window(width) & masks.documents(DOCUMENT.astype(np.int32) // width)
        out, *_ = getattr(fa_numba, name)(q, k, v, mask=mask)
        want, _ = reference.attention(q, k, v, mask=mask)
        np.testing.assert_allclose(out, want, atol=1e-5)


X = np.ones((1, 4, 1, 4), np.float32)
ERRORS = {
    "window": (lambda: masks.window(2.0), "width must be an int, got float"),
    "zero": (lambda: masks.dilated(0), "step must be from 1 .* got 0"),
    "bool": (lambda: masks.prefix_lm(True), "prefix must be an int, got bool"),
    "tiles": (lambda: masks.tiles(masks.causal, 8, block_m=0), "block_m must be from 1 .* got 0"),
    "tree": (lambda: masks.tree([-1, 1]), r"parents\[1\] must be from -1 to 0.* got 1"),
    "axes": (lambda: masks.tree([[-1]]), r"parents must be integers along one axis.*\(1, 1\)"),
    "floats": (lambda: masks.tree([0.5]), "parents must be integers along one axis, got float64"),
    "and": (lambda: masks.causal & 3, "both sides of & must be masks or functions.* got int"),
    "or": (lambda: 3 | masks.causal, r"both sides of \| must be masks or functions.* got int"),
    "made": (lambda: masks.MaskFunction(3), "function must be a function of b, h, m, n, got int"),
    "both": (
        lambda: fa_numba.flash_attn_v2(X, X, X, mask=masks.window(2), mask_args=(2,)),
        "mask_args must be empty .* got 1 beside MaskFunction.window, 2.",
    ),
    "called": (lambda: fa_numba.flash_attn_v2(X, X, X, mask=masks.window), "mask must take b, h"),
    "short": (
        lambda: fa_numba.flash_attn_v2(X, X, X, mask=masks.documents(np.zeros(3, np.int32))),
        r"mask_args\[0\] must have more than 3 elements",
    ),
    "list": (lambda: masks.documents([0, 0]), "document must be an array of integers.* got list"),
    "rows": (lambda: masks.window_per_head(X[0, :, 0]), r"widths must be.* float32 of shape \(4,"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_refused(name):
    call, message = ERRORS[name]
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert re.search(message, str(caught.value)), caught.value
