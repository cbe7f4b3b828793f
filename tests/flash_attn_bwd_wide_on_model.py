"""flash_attn_bwd_wide by `hopper_model`: python tests/flash_attn_bwd_wide_on_model.py CASE."""

import json
import sys

import numpy as np
from hopper_model import GlobalArray, Model, replace_instructions

from fa_numba import reference
from fa_numba.checks import Mask

MODULES = (
    *(f"ptx.{x}" for x in ("statement", "convert", "counters", "mbarrier", "barriers")),
    *(f"ptx.{x}" for x in ("ldmatrix", "tma", "vectors", "wgmma")),
    "kernels.masks",
    "on_cuda_cores.run_time_masks",
    *(f"tensor_core.{x}" for x in ("forward", "fragments", "gradient_fragments", "dq_parts")),
    *(f"tensor_core.{x}" for x in ("backward", "shared_plan", "key_tiles", "flash_attn_bwd_wide")),
)
KIND = np.float16
LOG2_E = np.float32(np.log2(np.e))


def main(batch, seqlen_q, seqlen_k, heads, head_dim, causal, blocks, deterministic=False, **mask):
    """Compare dq, dk and dv with the definition; heads are (num_heads, num_kv_heads)."""
    model = Model(seed=seqlen_q)
    modules = dict(zip(MODULES, replace_instructions(model, MODULES), strict=True))
    wide, backward, dq_parts, run_time_masks = (
        modules[name]
        for name in (
            MODULES[-1],
            "tensor_core.backward",
            "tensor_core.dq_parts",
            "on_cuda_cores.run_time_masks",
        )
    )
    num_heads, num_kv_heads = heads
    rng = np.random.default_rng(seqlen_q)
    q, dout = (rng.standard_normal((batch, seqlen_q, num_heads, head_dim)) for _ in range(2))
    k, v = (rng.standard_normal((batch, seqlen_k, num_kv_heads, head_dim)) for _ in range(2))
    dout, q, k, v = (x.astype(KIND) for x in (dout, q, k, v))
    options = {"causal": causal, **mask}
    if "alibi_slopes" in mask:
        options["alibi_slopes"] = np.array(mask["alibi_slopes"], np.float32)
    if "window_size" in mask:
        options["window_size"] = tuple(mask["window_size"])
    out, lse = reference.attention(q, k, v, **options, dtype=KIND)
    want = reference.attention_bwd(dout, q, k, v, **options)
    plain = reference.attention_bwd(dout, q, k, v, **options, dtype=KIND)

    def on_gpu(x):
        return GlobalArray(model, x)

    tiles = -(-seqlen_q // 64)
    of_queries = batch, num_heads, 64 * tiles
    sums = on_gpu(np.full((batch, num_heads, tiles, 64 * backward.padded(head_dim)), np.nan, "f4"))
    lse_2, delta = (on_gpu(np.full(of_queries, np.nan, "f4")) for _ in range(2))
    inputs = {"q": (q, 64), "k": (k, 64), "v": (v, 64), "dout": (dout, 64)}
    for name, (x, rows) in inputs.items():
        model.maps[name] = on_gpu(x), rows
    outputs = [on_gpu(np.full(x.shape, np.nan, KIND)) for x in (q, k, v)]
    dq, model.maps["dk"], model.maps["dv"] = outputs[0], (outputs[1], 16), (outputs[2], 16)

    scale = np.float32(head_dim**-0.5)
    args = model.maps["dout"][0], on_gpu(out.astype(KIND)), on_gpu(lse.astype("f4")), lse_2, delta
    grid = -(-64 * tiles // (256 // backward.lanes_of_row(head_dim))), num_heads, batch
    prepare_rows = backward.make_prepare_rows(head_dim, "float16", True)
    model.launch(prepare_rows, grid, 256, *args, sums, np.float32(1))
    given = Mask(
        causal,
        options.get("window_size", (-1, -1)),
        options.get("softcap", 0.0),
        "alibi_slopes" in options,
    )
    slopes = on_gpu(options["alibi_slopes"]) if given.alibi else np.float32(0)
    counters = on_gpu(np.zeros(1 + batch * num_heads * tiles, np.int32))
    _, *constants = run_time_masks.constants_of(given)
    in_pairs = dq_parts.paired(causal, given.window_size) and not deterministic
    in_step = in_pairs and num_heads > num_kv_heads
    kernel = wide.make_flash_attn_bwd_wide(
        head_dim, deterministic, causal, "float16", *constants, in_step
    )
    sizes = seqlen_q, seqlen_k, num_kv_heads, num_heads // num_kv_heads
    args = *model.maps, lse_2, delta, sums, *sizes, scale * LOG2_E, scale, slopes, counters
    model.launch(kernel, (blocks,), wide.THREADS, *args, *run_time_masks.arguments_of(given))
    threads = sums.shape[3] // 32
    grid = tiles, num_heads, batch
    model.launch(backward.make_convert_dq(head_dim, "float16"), grid, threads, sums, dq, scale)

    for name, x, y, z in zip(("dq", "dk", "dv"), outputs, want, plain, strict=True):
        error = np.abs(x.data - y).max()
        allowed = 3 * np.abs(z - y).max() + 1e-6
        print(name, error, "of", allowed)
        assert error <= allowed, f"{name}: {error} > {allowed}"


if __name__ == "__main__":
    np.seterr(all="ignore")  # numbers of memory that nobody has written
    main(**json.loads(sys.argv[1]))
