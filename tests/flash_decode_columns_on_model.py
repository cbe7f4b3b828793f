"""flash_decode_columns by `hopper_model`: python tests/flash_decode_columns_on_model.py CASE."""

import json
import sys

import numpy as np
from ampere_model import AmpereModel
from cases import make_qkv
from hopper_model import GlobalArray, replace_instructions

from fa_numba import reference
from fa_numba.checks import Mask

MODULES = (
    *(f"ptx.{x}" for x in ("statement", "convert", "cp_async", "ldmatrix", "mma", "vectors")),
    *("kernels.masks", "on_cuda_cores.run_time_masks", "on_cuda_cores.decode_problem"),
    *(f"tensor_core.{x}" for x in ("forward", "fragments", "shared_plan", "decoding")),
    *("tensor_core.divided_columns", "tensor_core.flash_decode_columns"),
)


def main(lengths, seqlen_q, heads, head_dim, page_size, mask, num_splits, tiling):
    """Compare partial results, merged in float64, with the definition; no key past an end is read.

    heads are num_heads and num_kv_heads, mask is options of the definition, tiling is (BLOCK_N,
    STAGES).
    """
    model = AmpereModel(seed=sum(lengths))
    modules = dict(zip(MODULES, replace_instructions(model, MODULES), strict=True))
    decode, masks, problem = (modules[name] for name in (MODULES[-1], *MODULES[7:9]))
    rng, batch, longest = np.random.default_rng(len(lengths)), len(lengths), max(lengths)
    q, k, v = make_qkv(rng, batch, seqlen_q, longest, *heads, head_dim)
    q, k, v = (x.astype(np.float16) for x in (q, k, v))
    seq_lens, table = np.array(lengths, np.int32), problem.NO_TABLE
    if "alibi_slopes" in mask:
        mask["alibi_slopes"] = np.float32(mask["alibi_slopes"])
    want, plain = (
        reference.cached_attention(q, k, v, seq_lens, **mask, dtype=dtype)
        for dtype in (np.float64, np.float16)
    )
    for b, length in enumerate(lengths):
        k[b, length:] = v[b, length:] = np.nan
    if page_size:
        pages = -(-longest // page_size)
        table = rng.permutation(batch * pages).astype(np.int32).reshape(batch, pages)
        rows = np.full((batch, pages * page_size, *k.shape[2:]), np.nan, np.float16)
        moved = []
        for x in (k, v):
            rows[:, :longest] = x
            moved.append(np.empty((batch * pages, page_size, *k.shape[2:]), np.float16))
            moved[-1][table] = rows.reshape(batch, pages, page_size, *k.shape[2:])
        k, v = moved
        table = GlobalArray(model, table)
    causal, window = mask.get("causal", False), tuple(mask.get("window_size", (-1, -1)))
    slopes = mask.get("alibi_slopes")
    made = Mask(causal, window, mask.get("softcap", 0.0), slopes is not None)
    constant_size = masks.AT_RUN_TIME if page_size > 1 else page_size
    kernel = decode.make_flash_decode_columns(
        head_dim, "float16", constant_size, *tiling, *masks.constants_of(made)
    )
    outs = np.full((num_splits, *want[0].shape), np.nan, np.float32)
    lses = np.full((num_splits, *want[1].shape), np.nan, np.float32)
    given = [GlobalArray(model, x) for x in (q, k, v, seq_lens, outs, lses)]
    given.insert(3, table)
    slopes = np.float32(0) if slopes is None else GlobalArray(model, slopes)
    scalars = np.float32(head_dim**-0.5), slopes, *problem.pages_of(page_size)
    model.launch(kernel, (3,), decode.THREADS, *given, *scalars, *masks.arguments_of(made), ())
    outs, lses = given[-2].data.astype(np.float64), given[-1].data.astype(np.float64)
    lse = np.logaddexp.reduce(lses, axis=0)
    weights = np.exp(lses - np.where(np.isneginf(lse), 0, lse))
    out = np.einsum("sbhm,sbmhd->bmhd", weights, outs)
    error, allowed = np.abs(out - want[0]).max(), 2 * np.abs(plain[0] - want[0]).max() + 1e-6
    print("out", error, "of", allowed)
    assert error <= allowed
    np.testing.assert_allclose(lse, want[1], rtol=1e-5, atol=1e-4)


if __name__ == "__main__":
    np.seterr(all="ignore")  # numbers of memory that nobody has written
    main(**json.loads(sys.argv[1]))
