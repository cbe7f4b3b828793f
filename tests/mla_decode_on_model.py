"""mla_decode_mma by `hopper_model`: python tests/mla_decode_on_model.py CASE."""

import json
import sys

import numpy as np
from ampere_model import AmpereModel
from cases import make_latent_case
from hopper_model import GlobalArray, replace_instructions

from fa_numba import reference

MODULES = (
    *(f"ptx.{x}" for x in ("statement", "convert", "cp_async", "ldmatrix", "mma", "vectors")),
    *("kernels.masks", "on_cuda_cores.run_time_masks", "on_cuda_cores.decode_problem"),
    *(f"tensor_core.{x}" for x in ("forward", "fragments", "shared_plan", "decoding")),
    "tensor_core.divided_columns",
    "tensor_core.mla_decode_mma",
)
SCALE = 0.3


def main(lengths, seqlen_q, num_heads, columns, page_size, causal, num_splits, tiling):
    """Compare partial results, merged in float64, with the definition.

    columns are latent_dim and rope_dim, tiling is (BLOCK_N, STAGES).
    """
    model = AmpereModel(seed=sum(lengths))
    modules = dict(zip(MODULES, replace_instructions(model, MODULES), strict=True))
    decode, masks, problem = (
        modules[name]
        for name in (MODULES[-1], "on_cuda_cores.run_time_masks", "on_cuda_cores.decode_problem")
    )
    rng = np.random.default_rng(len(lengths))
    case = make_latent_case(rng, lengths, seqlen_q, num_heads, *columns, page_size)
    q, cache, seq_lens, table = case
    q, cache = q.astype(np.float16), cache.astype(np.float16)
    k = cache[:, :, None]
    if page_size:
        k, _ = reference.paged_kv_lookup(k, k, table, seq_lens)
    v = k[..., : columns[0]]
    options = {"causal": causal, "softmax_scale": SCALE}
    want, plain = (
        reference.cached_attention(q, k, v, seq_lens, **options, dtype=dtype)
        for dtype in (np.float64, np.float16)
    )
    constant_size = masks.AT_RUN_TIME if (page_size or 0) > 1 else page_size or 0
    kernel = decode.make_mla_decode_mma(
        columns[0], sum(columns), "float16", causal, constant_size, *tiling
    )
    outs = np.full((num_splits, *want[0].shape), np.nan, np.float32)
    lses = np.full((num_splits, *want[1].shape), np.nan, np.float32)
    given = [GlobalArray(model, x) for x in (q, cache, seq_lens, outs, lses)]
    given.insert(2, problem.NO_TABLE if table is None else GlobalArray(model, table))
    scalars = np.float32(SCALE), *problem.pages_of(page_size or 0)
    model.launch(kernel, (3,), decode.THREADS, *given, *scalars)
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
