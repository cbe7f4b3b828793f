"""flash_attn_persistent_varlen by `hopper_model`: the program of a test."""

import numpy as np
from expression_cases import options_of, packed_runs
from flash_attn_persistent_on_model import KIND, LOG2_E, MODULES, NAMES, ranges_of
from gradients_on_model import run
from hopper_model import GlobalArray, Model, replace_instructions

from fa_numba import reference
from fa_numba.checks import Mask, check_expressions
from fa_numba.checks.expressions import apart_from_cap
from fa_numba.expressions.interval_source import NoIntervalError

NAME = "tensor_core.flash_attn_persistent_varlen"


def main(seqlens_q, seqlens_k, heads, head_dim, blocks, expressions, causal=False):
    """Compare out and lse with the definition; `expressions` is one of `expression_cases`."""
    model = Model(seed=sum(seqlens_q))
    varlen = replace_instructions(model, (*MODULES, NAME))[-1]
    num_heads, num_kv_heads = heads
    starts = [np.cumsum([0, *x], dtype=np.int32) for x in (seqlens_q, seqlens_k)]
    num_tokens_q, num_tokens_k = (int(x[-1]) for x in starts)
    rng = np.random.default_rng(num_tokens_q)
    q = rng.standard_normal((num_tokens_q, num_heads, head_dim)).astype(KIND)
    shape = num_tokens_k, num_kv_heads, head_dim
    k, v = (rng.standard_normal(shape).astype(KIND) for _ in range(2))
    written, definition = options_of(expressions, num_heads, max(seqlens_k))
    arrays = q, k, v, *starts
    want, want_lse = reference.varlen_attention(*arrays, causal=causal, **definition)
    plain, _ = reference.varlen_attention(*arrays, causal=causal, **definition, dtype=KIND)
    sinks = written.pop("sinks", None)
    options = Mask(causal, (-1, -1), 0.0, False)
    given = check_expressions(
        q, *(written.get(x, () if "_" in x else None) for x in NAMES), options, None
    )
    of_score = written.get("score"), written.get("score_args", ())
    given, softcap = apart_from_cap(given, options, *of_score)
    tiling = varlen.tiling_of(head_dim, num_tokens_k, len(seqlens_k), False, softcap)
    blocks_of = varlen.ROWS, tiling.block_n
    (table,) = packed_runs(
        given.expressions.mask, given.arguments, starts, num_heads, blocks_of, tiling.consumers
    )
    out = GlobalArray(model, np.full(want.shape, np.nan, KIND))
    lse = GlobalArray(model, np.full((1, num_heads, num_tokens_q), np.nan, np.float32))
    for name, x, rows in ("q", q, 64), ("k", k, tiling.block_n), ("v", v, tiling.block_n):
        model.maps[name] = GlobalArray(model, x[None]), rows
    model.maps["o"] = out.of_same_memory(out.data[None]), 16
    kernel = varlen.make_flash_attn_persistent_varlen(
        head_dim,
        tiling,
        False,
        "float16",
        SOFTCAP=softcap,
        EXPRESSIONS=given.expressions,
        SINKS=sinks is not None,
    )
    batch = *starts, np.zeros(1, np.int32)
    args = *"qkvo", out, lse, *batch, num_heads // num_kv_heads
    args += LOG2_E / np.float32(head_dim**0.5), np.float32(0)
    masks = varlen.run_time_masks.arguments_of(Mask())
    try:
        ranges = ranges_of(q, given.expressions.mask, given.arguments)
    except NoIntervalError:
        ranges = ()
    more = () if sinks is None else (sinks,), (table, *ranges), given.arguments
    model.launch(kernel, (blocks,), tiling.num_threads, *args, *masks, *more)
    error, allowed = np.abs(out.data - want).max(), 2 * np.abs(plain - want).max() + 1e-6
    print("out", error, "of", allowed)
    assert error <= allowed
    np.testing.assert_allclose(lse.data[0], want_lse, rtol=1e-5, atol=1e-4)


if __name__ == "__main__":
    run(main)
