"""How much memory does a call need beyond its inputs and results?

The most bytes that CuPy's memory pool has handed out during a call, less the results, for each row
of scores (batch · num_heads · seqlen). A constant means memory of O(N). Standard attention keeps S
and P, so there it grows with N.
"""

import cupy
import numpy as np

from benchmarks.timing import save
from fa_numba import flash_attn_bwd_registers, flash_attn_registers, flash_attn_v2, naive_attn
from fa_numba.tensor_core.flash_attn_bwd_mma import flash_attn_bwd_mma
from fa_numba.tensor_core.flash_attn_bwd_persistent import flash_attn_bwd_persistent
from fa_numba.tensor_core.flash_attn_mma import flash_attn_mma
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent
from fa_numba.tensor_core.flash_decode_mma import flash_decode_mma

HEADS, HEAD_DIM = 8, 128
SEQLENS = (1024, 4096, 16384)
MOST_SCORES = 2 * 10**9  # beyond, standard attention is not asked
FORWARD = (naive_attn, flash_attn_v2, flash_attn_registers, flash_attn_mma, flash_attn_persistent)
BACKWARD = (flash_attn_bwd_mma, flash_attn_bwd_persistent)


class Peak(cupy.cuda.MemoryHook):
    """The most bytes that were handed out at once since this was entered."""

    name = "Peak"

    def __init__(self):
        self.sizes, self.now, self.peak = {}, 0, 0

    def malloc_postprocess(self, *, size, mem_ptr, **_):
        self.sizes[mem_ptr] = size
        self.now += size
        self.peak = max(self.peak, self.now)

    def free_postprocess(self, *, mem_ptr, **_):
        self.now -= self.sizes.pop(mem_ptr, 0)


def main():
    rows = []
    for seqlen in SEQLENS:
        shape = (1, seqlen, HEADS, HEAD_DIM)
        q, k, v, dout = (cupy.random.standard_normal(shape).astype(np.float16) for _ in range(4))
        for function in FORWARD:
            if function is not naive_attn or HEADS * seqlen**2 <= MOST_SCORES:
                rows.append(measure(function, seqlen, q, k, v))
        out, lse = flash_attn_persistent(q, k, v)
        for function in BACKWARD:
            rows.append(measure(function, seqlen, dout, q, k, v, out, lse))
        q_32, k_32, v_32, dout_32, out_32 = (x.astype(np.float32) for x in (q, k, v, dout, out))
        rows.append(measure(flash_attn_registers, seqlen, q_32, k_32, v_32))
        backward = dout_32, q_32, k_32, v_32, out_32, lse
        rows.append(measure(flash_attn_bwd_registers, seqlen, *backward))
        seq_lens = cupy.full(1, seqlen, np.int32)
        rows.append(measure(flash_decode_mma, seqlen, q[:, :1], k, v, seq_lens))
    save(
        "memory",
        rows,
        note=f"float16 where it does not say otherwise, batch 1, {HEADS} heads of {HEAD_DIM}; "
        "flash_decode_mma: one query; extra: the most bytes allocated at once, less the results",
    )


def measure(function, seqlen, *args):
    function(*args)  # the first call allocates buffers that later calls reuse
    with Peak() as peak:
        results = function(*args)
    extra = peak.peak - sum(x.nbytes for x in results)
    return {
        "function": function.__name__ + (", float32" if args[0].dtype == np.float32 else ""),
        "seqlen": seqlen,
        "extra bytes": extra,
        "extra bytes per head and token": round(extra / (HEADS * seqlen), 2),
    }
