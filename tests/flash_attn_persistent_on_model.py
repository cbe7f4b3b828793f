"""flash_attn_persistent by `hopper_model`: python tests/flash_attn_persistent_on_model.py CASE."""

import json
import sys
import types

import expression_cases
import numpy as np
from hopper_model import GlobalArray, Model, replace_instructions

from fa_numba import reference
from fa_numba.checks import Mask, check_expressions
from fa_numba.checks.expressions import apart_from_cap
from fa_numba.expressions.interval_source import NoIntervalError, interval_source

MODULES = (
    *(f"ptx.{x}" for x in ("statement", "convert", "mbarrier", "barriers", "ldmatrix", "tma")),
    *(f"ptx.{x}" for x in ("vectors", "wgmma")),
    "expressions.functions",
    "kernels.masks",
    "on_cuda_cores.run_time_masks",
    *(f"tensor_core.{x}" for x in ("forward", "fragments", "alibi", "lazy_rescaling")),
    *(f"tensor_core.{x}" for x in ("dropout_fragments", "run_tables", "expression_tiles")),
    *(f"tensor_core.{x}" for x in ("shared_plan", "mainloop")),
    *(f"tensor_core.{x}" for x in ("tile_scheduler", "flash_attn_persistent")),
)
NAMES = "mask", "mask_args", "score", "score_args"
KIND = np.float16
LOG2_E = np.float32(np.log2(np.e))


def main(
    seqlen_q, seqlen_k, heads, head_dim, causal, slices, expressions=None, head_dim_v=None, **mask
):
    """Compare out and lse with the definition; heads are (num_heads, num_kv_heads).

    `expressions` is the name of one of `expression_cases`; `head_dim_v` is head_dim by default.
    """
    model = Model(seed=seqlen_q)
    modules = dict(zip(MODULES, replace_instructions(model, MODULES), strict=True))
    persistent, run_time_masks = (
        modules[name] for name in (MODULES[-1], "on_cuda_cores.run_time_masks")
    )
    num_heads, num_kv_heads = heads
    rng = np.random.default_rng(seqlen_q)
    q = rng.standard_normal((1, seqlen_q, num_heads, head_dim)).astype(KIND)
    head_dim_v = head_dim_v or head_dim
    k, v = (
        rng.standard_normal((1, seqlen_k, num_kv_heads, d)).astype(KIND)
        for d in (head_dim, head_dim_v)
    )
    window, softcap = tuple(mask.get("window_size", (-1, -1))), mask.get("softcap", 0.0)
    options = {"causal": causal, "window_size": window, "softcap": softcap}
    written, definition = {}, {}
    if expressions is not None:
        written, definition = expression_cases.options_of(expressions, num_heads, seqlen_k)
    want, want_lse = reference.attention(q, k, v, **options, **definition)
    plain, _ = reference.attention(q, k, v, **options, **definition, dtype=KIND)
    given, sinks = Mask(causal, window, softcap, False), written.pop("sinks", None)
    constants, more = (None, sinks is not None), ((), (), ())
    tiling = persistent.persistent_tiling(head_dim, seqlen_k, causal, head_dim_v=head_dim_v)
    if written:
        user = check_expressions(
            q, *(written.get(x, () if "_" in x else None) for x in NAMES), given, None
        )
        of_score = written.get("score"), written.get("score_args", ())
        user, softcap = apart_from_cap(user, given, *of_score)
        scores = types.SimpleNamespace(expressions=user.expressions, expression_args=user.arguments)
        tiles = modules["tensor_core.expression_tiles"]
        tiles.make_table, tiles.ranges_of = no_table, ranges_of  # else by kernels of the engine
        runs, _ = persistent.runs_of(scores, q, k, tiling.block_n, tiling.consumers)
        if tiling.slots > 1 and tiles.has_unknown_work(user.expressions):
            order = np.arange(runs[0].shape[2])[::-1] + np.zeros(runs[0].shape[:3], int)
            runs = runs[0], order, np.zeros(1, np.int32), *runs[1:]
        constants, more = (user.expressions, sinks is not None), ((), runs, user.arguments)
        given = Mask(softcap=softcap)
    if sinks is not None:
        more = (sinks,), *more[1:]
    window_size = run_time_masks.constants_of(given).window_size
    out = GlobalArray(model, np.full(want.shape, np.nan, KIND))
    lse = GlobalArray(model, np.full((1, num_heads, seqlen_q), np.nan, np.float32))
    rows_of = (q, 64), (k, tiling.block_n), (v, tiling.block_n)
    arrays = (*((GlobalArray(model, x), rows) for x, rows in rows_of),)
    for name, entry in zip("qkvo", (*arrays, (out, 16)), strict=True):
        model.maps[name] = entry
    make = persistent.make_flash_attn_persistent
    mask = given.causal, "float16", window_size, given.softcap
    kernel = make(head_dim, tiling, *mask, False, False, False, *constants, head_dim_v)
    sizes = seqlen_k, num_heads // num_kv_heads, slices
    args = *"qkvo", lse, *sizes, LOG2_E / np.float32(head_dim**0.5), np.float32(0)
    masks = run_time_masks.arguments_of(given)
    model.launch(kernel, (2,), tiling.num_threads, *args, *masks, *more)
    error, allowed = np.abs(out.data - want).max(), 2 * np.abs(plain - want).max() + 1e-6
    print("out", error, "of", allowed)
    assert error <= allowed
    np.testing.assert_allclose(lse.data, want_lse, rtol=1e-5, atol=1e-4)


def no_table(*args):
    raise NoIntervalError


def ranges_of(like, mask, arguments):
    """As of `run_tables`, by NumPy."""
    _, needs = interval_source(mask, "interval")
    return tuple(ranges(np.atleast_2d(arguments[i])) for i in needs.ranged)


def ranges(x):
    levels = max(x.shape[-1], 1).bit_length()
    windows = [[x[:, i : i + (1 << level)] for i in range(x.shape[-1])] for level in range(levels)]
    extremes = [[(y.min(axis=-1), y.max(axis=-1)) for y in row] for row in windows]
    return np.moveaxis(np.int32(extremes), -1, 1)


if __name__ == "__main__":
    np.seterr(all="ignore")  # numbers of memory that nobody has written
    main(**json.loads(sys.argv[1]))
