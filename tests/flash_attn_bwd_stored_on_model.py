"""flash_attn_bwd_stored by `hopper_model`: python tests/flash_attn_bwd_stored_on_model.py CASE."""

import numpy as np
from gradients_on_model import compare, options_of, run
from hopper_model import GlobalArray, Model, replace_instructions

from fa_numba import reference

MODULES = (
    *(f"ptx.{x}" for x in ("statement", "convert", "mbarrier", "barriers", "halves", "ldmatrix")),
    *(f"ptx.{x}" for x in ("tma", "vectors", "wgmma")),
    "kernels.masks",
    "on_cuda_cores.run_time_masks",
    *(f"tensor_core.{x}" for x in ("forward", "fragments", "gradient_fragments", "backward")),
    *(f"tensor_core.{x}" for x in ("shared_plan", "key_tiles", "alibi", "mainloop")),
    "tensor_core.flash_attn_bwd_stored",
)
KIND = np.float16
LOG2_E = np.float32(np.log2(np.e))


def main(batch, seqlen_q, seqlen_k, heads, head_dim, causal, tiles=100, **mask):
    """Compare dq, dk and dv with the definition; heads are (num_heads, num_kv_heads).

    The workspace has room for `tiles` tiles of queries.
    """
    model = Model(seed=seqlen_q)
    loaded = replace_instructions(model, MODULES)
    modules = {name.split(".")[-1]: x for name, x in zip(MODULES, loaded, strict=True)}
    stored, backward = modules["flash_attn_bwd_stored"], modules["backward"]
    run_time_masks = modules["run_time_masks"]
    num_heads, num_kv_heads = heads
    group_size = num_heads // num_kv_heads
    rng = np.random.default_rng(seqlen_q)
    q, dout = (rng.standard_normal((batch, seqlen_q, num_heads, head_dim)) for _ in range(2))
    k, v = (rng.standard_normal((batch, seqlen_k, num_kv_heads, head_dim)) for _ in range(2))
    dout, q, k, v = (x.astype(KIND) for x in (dout, q, k, v))
    options, given = options_of(causal, mask)
    out, lse = reference.attention(q, k, v, **options, dtype=KIND)
    (*want,) = reference.attention_bwd(dout, q, k, v, **options)
    (*plain,) = reference.attention_bwd(dout, q, k, v, **options, dtype=KIND)

    def on_gpu(x):
        return GlobalArray(model, x)

    def nothing(*shape, dtype="f4"):
        return on_gpu(np.full(shape, np.nan, dtype))

    num_m, num_n = -(-seqlen_q // stored.ROWS), -(-seqlen_k // stored.ROWS)
    num_bytes = tiles * num_n * stored.ROWS**2 * 4
    parts = stored.parts_of(batch * num_heads, group_size, num_m, num_n, num_bytes)
    slots, rows = parts[0].num_heads, max(x.num_m for x in parts) * num_n * 256
    p, ds = (nothing(slots, rows, 1, 64, dtype=KIND) for _ in range(2))
    outputs = [nothing(*x.shape, dtype=KIND) for x in (q, k, v)]
    col_tiles, *cols = stored.columns_of(head_dim)
    sums = nothing(2 * num_n * col_tiles, stored.ROWS * sum(cols))
    inputs = {name: on_gpu(x) for name, x in zip("qkvo", (q, k, v, dout), strict=True)}
    for name, x in inputs.items():
        model.maps[name], model.maps[name + "64"] = (x, 128), (x, 64)
    for name, x in (("p", p), ("s", ds)):
        model.maps[name], model.maps[name + "64"] = (x, 16), (x, 64)

    scale = np.float32(head_dim**-0.5)
    of_tiles = 64 * -(-seqlen_q // 64)
    lse_2, delta = (nothing(batch, num_heads, of_tiles) for _ in range(2))
    prepare_rows = backward.make_prepare_rows(head_dim, "float16")
    args = inputs["o"], on_gpu(out.astype(KIND)), on_gpu(lse.astype("f4")), lse_2, delta
    grid = -(-of_tiles // 8), num_heads, batch
    model.launch(prepare_rows, grid, 256, *args, np.float32(0), np.float32(1), ())

    _, window, softcap, _ = run_time_masks.constants_of(given)
    of_mask = run_time_masks.arguments_of(given)
    scores = stored.make_scores(head_dim, causal, "float16", window, softcap)
    gradients = stored.make_gradients(head_dim, causal, "float16", window)
    sizes = seqlen_q, seqlen_k, group_size
    for part in parts:
        args = *"qkvops", lse_2, delta, *sizes, part.first_head, part.first_m, 2
        grid = -(-num_n // 2), part.num_m, part.num_heads
        model.launch(scores, grid, stored.THREADS, *args, scale * LOG2_E, *of_mask)
        args = "p64", "s64", "q64", "k64", "o64", *outputs, sums, *sizes, part.first_head
        args += part.num_heads, part.first_m, part.num_m, part.begins, part.ends, scale
        grid = (stored.num_gradient_tiles(part, group_size, num_n, col_tiles),)
        model.launch(gradients, grid, stored.THREADS, *args, *of_mask)
    compare(outputs, want, plain)


if __name__ == "__main__":
    run(main)
