"""Backward kernels by `hopper_model`: python tests/flash_attn_bwd_on_model.py CASE.

head_dim up to 128: flash_attn_bwd_persistent; above, or with another one of V: flash_attn_bwd_wide.
"""

import expression_cases
import numpy as np
from flash_attn_persistent_on_model import no_table
from gradients_on_model import compare, options_of, run
from hopper_model import GlobalArray, Model, replace_instructions

from fa_numba import reference
from fa_numba.checks import Mask, check_expressions
from fa_numba.checks.expressions import apart_from_cap
from fa_numba.tensor_core import gradient_expressions

MODULES = (
    *(f"ptx.{x}" for x in ("statement", "convert", "counters", "mbarrier", "barriers", "halves")),
    *(f"ptx.{x}" for x in ("ldmatrix", "tma", "vectors", "wgmma")),
    "expressions.functions",
    "kernels.masks",
    "on_cuda_cores.run_time_masks",
    *(f"tensor_core.{x}" for x in ("forward", "fragments", "gradient_fragments", "dq_parts")),
    *(f"tensor_core.{x}" for x in ("backward", "shared_plan", "key_tiles", "dropout_fragments")),
    *(f"tensor_core.{x}" for x in ("expression_tiles", "tile_scheduler", "gradient_expressions")),
    *(f"tensor_core.{x}" for x in ("gradient_mainloop", "packed_key_tiles", "gradient_consumer")),
    *(f"tensor_core.{x}" for x in ("flash_attn_bwd_persistent", "flash_attn_bwd_wide")),
)
KIND = np.float16
LOG2_E = np.float32(np.log2(np.e))
ADDED, ORDERED = "added", "ordered"  # of `dq_parts`; the third is "by arrival"


NAMES = "mask", "mask_args", "score", "score_args"


def main(
    batch, seqlen_q, seqlen_k, heads, head_dim, causal, blocks, order=ADDED, expressions=None,
    head_dim_v=None, **mask,
):  # fmt: skip
    """Compare dq, dk and dv with the definition; heads are (num_heads, num_kv_heads).

    `expressions` is the name of one of `expression_cases`; `head_dim_v` is head_dim by default.
    """
    model = Model(seed=seqlen_q)
    loaded = replace_instructions(model, MODULES)
    modules = {name.split(".")[-1]: x for name, x in zip(MODULES, loaded, strict=True)}
    backward, run_time_masks = modules["backward"], modules["run_time_masks"]
    persistent, wide = modules["flash_attn_bwd_persistent"], modules["flash_attn_bwd_wide"]
    head_dim_v = head_dim_v or head_dim
    is_wide = head_dim > (128 if head_dim_v == head_dim else 192) or head_dim_v > 128
    block_m, block_n = (
        (wide.BLOCK_M, wide.BLOCK_N)
        if is_wide
        else (backward.tile_rows(head_dim), persistent.BLOCK_N)
    )
    num_heads, num_kv_heads = heads
    rng = np.random.default_rng(seqlen_q)
    dims = head_dim, head_dim_v
    q, dout = (rng.standard_normal((batch, seqlen_q, num_heads, d)) for d in dims)
    k, v = (rng.standard_normal((batch, seqlen_k, num_kv_heads, d)) for d in dims)
    dout, q, k, v = (x.astype(KIND) for x in (dout, q, k, v))
    options, given = options_of(causal, mask)
    user, constants, more, sinks = None, {}, ((), ()), None
    if expressions is not None:
        written, definition = expression_cases.options_of(expressions, num_heads, seqlen_k)
        options, sinks = options | definition, written.pop("sinks", None)
        user = check_expressions(
            q, *(written.get(x, () if "_" in x else None) for x in NAMES), given, None
        )
    if user is not None:
        of_score = written.get("score"), written.get("score_args", ())
        softcap = 0.0
        if not is_wide:
            user, softcap = apart_from_cap(user, given, *of_score)
        given, constants = Mask(softcap=softcap), {"EXPRESSIONS": user.expressions}
        gradient_expressions.make_tables_both_ways = no_table
        runs = gradient_expressions.runs_of_keys(q, k, user, block_m, block_n, both=True)
        tables = runs.of_keys, runs.turns if order == ADDED else runs.of_queries
        if is_wide:
            tables = (runs.of_keys, runs.of_queries)[: 1 + (order == ORDERED)]
        more = tables, user.arguments
    out, lse = reference.attention(q, k, v, **options, dtype=KIND)
    (*want,) = reference.attention_bwd(dout, q, k, v, **options)
    (*plain,) = reference.attention_bwd(dout, q, k, v, **options, dtype=KIND)

    def on_gpu(x):
        return GlobalArray(model, x)

    def nothing(*shape, dtype="f4"):
        return on_gpu(np.full(shape, np.nan, dtype))

    tiles = -(-seqlen_q // block_m)
    lse_2, delta = (nothing(batch, num_heads, block_m * tiles) for _ in range(2))
    sums = nothing(batch, num_heads, tiles, block_m * backward.padded(head_dim))
    inputs = {"q": (q, block_m), "k": (k, block_n), "v": (v, block_n), "dout": (dout, block_m)}
    for name, (x, rows) in inputs.items():
        model.maps[name] = on_gpu(x), rows
    outputs = [nothing(*x.shape, dtype=KIND) for x in (q, k, v)]
    dq, model.maps["dk"], model.maps["dv"] = outputs[0], (outputs[1], 16), (outputs[2], 16)

    scale = np.float32(head_dim**-0.5)
    # In flash_attn_bwd_wide parts in a fixed order are added, too.
    added = order == ADDED or is_wide
    args = model.maps["dout"][0], on_gpu(out.astype(KIND)), on_gpu(lse.astype("f4")), lse_2, delta
    rows_per_block = 256 // backward.lanes_of_row(head_dim)
    grid = -(-block_m * tiles // rows_per_block), num_heads, batch
    constants_of_rows = added, sinks is not None, head_dim_v
    prepare_rows = backward.make_prepare_rows(head_dim, "float16", *constants_of_rows)
    of_sinks = () if sinks is None else (sinks, nothing(batch, num_heads, grid[0]))
    model.launch(prepare_rows, grid, 256, *args, sums, np.float32(1), of_sinks)
    slopes = on_gpu(options["alibi_slopes"]) if given.alibi else np.float32(0)
    counters = on_gpu(np.zeros(1 + batch * num_heads * tiles, np.int32))
    _, *of_mask = run_time_masks.constants_of(given)
    in_pairs = modules["dq_parts"].paired(given.causal, given.window_size) and order == ADDED
    in_step = in_pairs and num_heads > num_kv_heads
    if is_wide:
        ordered, threads = order == ORDERED, wide.THREADS
        kernel = wide.make_flash_attn_bwd_wide(
            head_dim, ordered, given.causal, "float16", *of_mask, in_step, head_dim_v, **constants
        )
        sizes = sums, seqlen_q, seqlen_k
    else:
        threads = persistent.THREADS
        kernel = persistent.make_flash_attn_bwd_persistent(
            head_dim,
            order,
            given.causal,
            "float16",
            *of_mask,
            IN_STEP=in_step,
            HEAD_DIM_V=head_dim_v,
            **constants,
        )
        sizes = sums, dq, seqlen_k
    sizes = *sizes, num_kv_heads, num_heads // num_kv_heads
    args = *model.maps, lse_2, delta, *sizes, scale * LOG2_E, scale, slopes, counters
    masks = run_time_masks.arguments_of(given)
    model.launch(kernel, (blocks,), threads, *args, *masks, *more)
    if added:
        convert_dq, threads = backward.make_convert_dq(head_dim, "float16"), sums.shape[3] // 32
        model.launch(convert_dq, (tiles, num_heads, batch), threads, sums, dq, scale)

    if sinks is not None:
        outputs.append(nothing(num_heads))
        model.launch(backward.add_sink_parts, (num_heads,), 32, of_sinks[1], outputs[3])
    compare(outputs, want, plain)


if __name__ == "__main__":
    run(main)
