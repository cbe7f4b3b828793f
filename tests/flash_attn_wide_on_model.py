"""flash_attn_wide by `hopper_model`: python tests/flash_attn_wide_on_model.py CASE."""

import json
import sys

import numpy as np
from hopper_model import GlobalArray, Model, replace_instructions

from fa_numba import reference
from fa_numba.checks import Mask

MODULES = (
    *(f"ptx.{x}" for x in ("statement", "convert", "mbarrier", "barriers", "ldmatrix", "tma")),
    *(f"ptx.{x}" for x in ("vectors", "wgmma")),
    "kernels.masks",
    "on_cuda_cores.run_time_masks",
    *(f"tensor_core.{x}" for x in ("forward", "fragments", "alibi", "lazy_rescaling")),
    *(f"tensor_core.{x}" for x in ("shared_plan", "mainloop", "flash_attn_wide")),
)
KIND = np.float16
LOG2_E = np.float32(np.log2(np.e))


def main(
    seqlen_q, seqlen_k, heads, head_dim, causal, window_size=(-1, -1), softcap=0.0,
):  # fmt: skip
    """Compare out and lse with the definition; heads are (num_heads, num_kv_heads).

    seqlen_q and seqlen_k are numbers, or lists of those of a packed batch.
    """
    packed = isinstance(seqlen_q, list)
    starts = [np.cumsum([0, *x], dtype=np.int32) for x in (seqlen_q, seqlen_k)] if packed else []
    if packed:
        seqlen_q, seqlen_k = (int(x[-1]) for x in starts)
    model = Model(seed=seqlen_q)
    modules = dict(zip(MODULES, replace_instructions(model, MODULES), strict=True))
    wide, run_time_masks = modules[MODULES[-1]], modules["on_cuda_cores.run_time_masks"]
    num_heads, num_kv_heads = heads
    rng = np.random.default_rng(seqlen_q)
    q = rng.standard_normal((1, seqlen_q, num_heads, head_dim)).astype(KIND)
    k, v = (
        rng.standard_normal((1, seqlen_k, num_kv_heads, head_dim)).astype(KIND) for _ in range(2)
    )
    options = {"causal": causal, "window_size": tuple(window_size), "softcap": softcap}
    if packed:
        given = *(x[0] for x in (q, k, v)), *starts
        want, want_lse = (x[None] for x in reference.varlen_attention(*given, **options))
        plain = reference.varlen_attention(*given, **options, dtype=KIND)[0][None]
    else:
        want, want_lse = reference.attention(q, k, v, **options)
        plain, _ = reference.attention(q, k, v, **options, dtype=KIND)
    out = GlobalArray(model, np.full(q.shape, np.nan, KIND))
    lse = GlobalArray(model, np.full((1, num_heads, seqlen_q), np.nan, np.float32))
    arrays = [(GlobalArray(model, x), rows) for x, rows in ((q, 64), (k, 64), (v, 64))]
    for name, entry in zip("qkvo", (*arrays, (out, 16)), strict=True):
        model.maps[name] = entry
    mask = Mask(causal, tuple(window_size), softcap, False)
    window = run_time_masks.constants_of(mask).window_size
    constants = head_dim, causal, "float16", window, softcap, packed
    kernel = wide.make_flash_attn_wide(*constants)
    grid = seqlen_q // 64 + len(starts[0]) - 1 if packed else -(-seqlen_q // 64), num_heads
    sizes = seqlen_k, num_heads // num_kv_heads, LOG2_E / np.float32(head_dim**0.5)
    args = *"qkvo", lse, *sizes, *run_time_masks.arguments_of(mask)
    args += ((*starts, out.of_same_memory(out.data[0])) if packed else (),)
    model.launch(kernel, grid, wide.THREADS, *args)
    for col in range(0, head_dim, wide.PIECE_COLS):
        pieces = (x[..., col : col + wide.PIECE_COLS] for x in (out.data, plain, want))
        got, rounded, exact = pieces
        error, allowed = (np.linalg.norm(x - exact) for x in (got, rounded))
        print("columns from", col, "error", error, "and of rounding", allowed)
        assert error <= 1.25 * allowed
    np.testing.assert_allclose(lse.data, want_lse, rtol=1e-5, atol=1e-4)


if __name__ == "__main__":
    np.seterr(all="ignore")  # numbers of memory that nobody has written
    main(**json.loads(sys.argv[1]))
