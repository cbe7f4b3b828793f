"""flash_attn_bwd_varlen by `hopper_model`: python tests/flash_attn_bwd_varlen_on_model.py CASE."""

import types

import expression_cases
import numpy as np
from expression_cases import packed_runs
from flash_attn_persistent_on_model import NAMES
from gradients_on_model import compare, options_of, run
from hopper_model import GlobalArray, Model, replace_instructions

from fa_numba import reference
from fa_numba.checks import Mask, check_expressions
from fa_numba.checks.expressions import apart_from_cap
from fa_numba.expressions.nodes import TRUE

MODULES = (
    *(f"ptx.{x}" for x in ("statement", "convert", "counters", "mbarrier", "barriers", "halves")),
    *(f"ptx.{x}" for x in ("ldmatrix", "tma", "vectors", "wgmma")),
    *("kernels.masks", "kernels.sequence_of", "on_cuda_cores.run_time_masks"),
    *(f"tensor_core.{x}" for x in ("forward", "fragments", "gradient_fragments", "dq_parts")),
    "expressions.functions",
    "tensor_core.tile_scheduler",
    *(f"tensor_core.{x}" for x in ("backward", "shared_plan", "key_tiles", "dropout_fragments")),
    *(f"tensor_core.{x}" for x in ("expression_tiles", "gradient_expressions")),
    *(f"tensor_core.{x}" for x in ("gradient_mainloop", "packed_key_tiles", "packed_backward")),
    *(f"tensor_core.{x}" for x in ("gradient_consumer", "flash_attn_bwd_varlen")),
)
KIND = np.float16
LOG2_E = np.float32(np.log2(np.e))


def main(
    seqlens_q,
    seqlens_k,
    heads,
    head_dim,
    causal,
    blocks,
    order="added",
    expressions=None,
    head_dim_v=None,
    **mask,
):
    """Compare dq, dk and dv with the definition; heads are (num_heads, num_kv_heads).

    `expressions` is the name of one of `expression_cases`; `head_dim_v` is head_dim by default.
    """
    model = Model(seed=sum(seqlens_q))
    loaded = replace_instructions(model, MODULES)
    modules = {name.split(".")[-1]: x for name, x in zip(MODULES, loaded, strict=True)}
    names = "flash_attn_bwd_varlen", "packed_backward", "backward", "run_time_masks"
    varlen, packed_backward, backward, run_time_masks = (modules[name] for name in names)
    num_heads, num_kv_heads = heads
    cu_q, cu_k = (np.cumsum([0, *x], dtype=np.int32) for x in (seqlens_q, seqlens_k))
    rng = np.random.default_rng(sum(seqlens_q))
    dims = head_dim, head_dim_v or head_dim
    q, dout = (rng.standard_normal((cu_q[-1], num_heads, d)) for d in dims)
    k, v = (rng.standard_normal((cu_k[-1], num_kv_heads, d)) for d in dims)
    dout, q, k, v = (x.astype(KIND) for x in (dout, q, k, v))
    options, given = options_of(causal, mask)
    starts = cu_q, cu_k
    written, definition = {}, {}
    if expressions is not None:
        written, definition = expression_cases.options_of(expressions, num_heads, max(seqlens_k))
    of_mask = options  # those beside the user's functions
    options = options | definition
    out, lse = reference.varlen_attention(q, k, v, *starts, **options, dtype=KIND)
    want = reference.varlen_attention_bwd(dout, q, k, v, *starts, **options)
    plain = reference.varlen_attention_bwd(dout, q, k, v, *starts, **options, dtype=KIND)

    def on_gpu(x):
        return GlobalArray(model, x)

    def nothing(*shape, dtype="f4"):
        return on_gpu(np.full(shape, np.nan, dtype))

    batch, counted, block_m = len(seqlens_q), order != "added", backward.tile_rows(head_dim)
    m_tiles = int(cu_q[-1]) // block_m + batch
    lse_2, delta = (nothing(num_heads, m_tiles, block_m) for _ in range(2))
    sums = nothing(num_heads, m_tiles, block_m * backward.padded(head_dim))
    queue = on_gpu(np.full(batch, 77, np.int32))
    counters = on_gpu(np.full(1 + (num_heads * m_tiles if counted else 0), 77, np.int32))
    block_n = varlen.BLOCK_N
    inputs = {"q": (q, block_m), "k": (k, block_n), "v": (v, block_n), "dout": (dout, block_m)}
    for name, (x, rows) in inputs.items():
        model.maps[name] = on_gpu(x), rows, True
    outputs = [nothing(*x.shape, dtype=KIND) for x in (q, k, v)]
    model.maps["dk"], model.maps["dv"] = ((x, varlen.STORE_ROWS, True) for x in outputs[1:])
    dq, unread = outputs[0], np.float32(0)

    starts = [on_gpu(x) for x in starts]
    args = model.maps["dout"][0], on_gpu(out.astype(KIND)), on_gpu(lse.astype("f4")), *starts
    grid = m_tiles * block_m * backward.lanes_of_row(head_dim) // 256, num_heads
    sinks, of_sinks = written.pop("sinks", None), ()
    if sinks is not None:
        of_sinks = sinks, np.full((1, *grid[::-1]), np.nan, np.float32)
    prepare_packed = packed_backward.make_prepare_packed(
        head_dim, "float16", counted, sinks is not None, head_dim_v
    )
    sums_or_dq = (unread, dq) if counted else (sums, unread)
    rows = lse_2, delta
    model.launch(prepare_packed, grid, 256, *args, *rows, *sums_or_dq, queue, counters, of_sinks)
    if sinks is not None:
        outputs.append(types.SimpleNamespace(data=of_sinks[1].sum(axis=(0, 2))))

    runs, arguments, user = (), (), None
    if written:
        checked = check_expressions(
            q, *(written.get(x, () if "_" in x else None) for x in NAMES), given, None
        )
        of_score = written.get("score"), written.get("score_args", ())
        checked, softcap = apart_from_cap(checked, given, *of_score)
        user, arguments = checked.expressions, checked.arguments
        mask = TRUE if user.mask is None else user.mask
        tables = packed_runs(mask, arguments, (cu_q, cu_k), num_heads, (block_m, block_n))
        runs = tuple(tables[::-1] if counted else tables[1:])
        given = Mask(softcap=softcap)
    scale = np.float32(head_dim**-0.5)
    slopes = on_gpu(of_mask["alibi_slopes"]) if given.alibi else unread
    _, *constants = run_time_masks.constants_of(given)
    in_step = varlen.is_in_step(head_dim, order, given, num_heads // num_kv_heads)
    kernel = varlen.make_flash_attn_bwd_varlen(
        head_dim, order, given.causal, "float16", *constants, in_step, user, head_dim_v
    )
    one_sequence = dq.of_same_memory(dq.data[None])
    args = *model.maps, lse_2, delta, sums, one_sequence if counted else unread
    args += *starts, queue, counters, num_kv_heads, num_heads // num_kv_heads
    args += scale * LOG2_E, scale, slopes
    args += *run_time_masks.arguments_of(given), runs, arguments
    model.launch(kernel, (blocks,), varlen.THREADS, *args)
    if not counted:
        convert_packed = packed_backward.make_convert_packed(head_dim, "float16")
        threads = sums.shape[2] // 32
        model.launch(convert_packed, (m_tiles, num_heads), threads, sums, dq, starts[0], scale)

    compare(outputs, want, plain)


if __name__ == "__main__":
    run(main)
