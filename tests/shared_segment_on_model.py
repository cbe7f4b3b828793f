"""shared_segment by `hopper_model`, both kernels: python tests/shared_segment_on_model.py CASE."""

import json
import sys

import numpy as np
import on_model
from decoding_on_model import DecodeModel
from hopper_model import GlobalArray

from fa_numba import reference
from fa_numba.kv_cache import cascade_plan
from fa_numba.runtime import arrays

KERNELS = "decoding", "flash_decode_gather", "flash_attn_split", "shared_segment"
MODULES = *on_model.MODULES, "on_cuda_cores.decode_problem", *(f"tensor_core.{x}" for x in KERNELS)


def main(shared, lengths, seqlen_q, heads, head_dim, page_size):
    """Compare with float64: sequences of these lengths, of whose pages the first are `shared`.

    The decoder has two splits; the first kernel ten, most of them without keys.
    """
    model = DecodeModel(seed=sum(lengths))
    modules = model.replace_instructions(MODULES)
    on_model.pretend(model, vars(modules).values(), False, "added", 2, 1)

    def launch(kernel, grid, block, *args, shared_bytes=0):
        model.launch(kernel, grid, block[0], *map(addressed, args))
        if kernel.__name__ != "flash_attn_split_kernel":
            return
        parts = [x for x in args if isinstance(x, np.ndarray) and x.dtype == np.float32]
        model.late = [(x, x.copy()) for x in parts]
        for x in parts:
            x[...] = np.nan

    def addressed(x):
        """An array whose addresses the decoder takes; tensor maps have those of the others."""
        of_addresses = isinstance(x, np.ndarray) and (x.dtype == np.float16 or x.ndim == 2)
        return GlobalArray(model, x) if of_addresses else x

    arrays.launch = launch
    modules.flash_decode_gather.splits_and_grid = lambda *args: (2, (3,))
    tiling_of = modules.flash_attn_split.tiling_of
    modules.flash_attn_split.tiling_of = lambda call: (tiling_of(call)[0], 10)
    rng, (num_heads, num_kv_heads) = np.random.default_rng(0), heads
    most = -(-max(lengths) // page_size)
    order = rng.permutation(len(lengths) * most).astype(np.int32)
    table = order.reshape(len(lengths), most)
    table[:, :shared] = table[0, :shared]
    q = rng.standard_normal((len(lengths), seqlen_q, num_heads, head_dim)).astype(np.float16)
    shape = order.size, page_size, num_kv_heads, head_dim
    k, v = (rng.standard_normal(shape).astype(np.float16) for _ in "kv")
    plan = cascade_plan(table, np.array(lengths, np.int32), page_size, seqlen_q=seqlen_q)
    (segment,) = plan.segments
    assert segment.pages.size == shared
    tables = plan.block_table, plan.seq_lens, segment.block_table
    options = {"causal": True, "softcap": 0.0, "softmax_scale": None}
    out, lse = modules.shared_segment.attend_together(q, k, v, *tables, **options)
    exact = (x.astype(float) for x in (q, k, v))
    want, want_lse = reference.paged_attention(
        *exact, table, np.array(lengths, np.int32), causal=True
    )
    print("out", np.abs(out - want).max())
    assert np.abs(out - want).max() <= 2e-3
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-4)


if __name__ == "__main__":
    np.seterr(all="ignore")  # numbers of memory that nobody has written
    main(**json.loads(sys.argv[1]))
