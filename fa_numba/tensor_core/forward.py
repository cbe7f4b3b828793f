"""What the forward kernels share: their instructions, the checks and buffers of a call."""

import numpy as np

from fa_numba import checks
from fa_numba.checks import AMPERE, HOPPER  # noqa: F401   for the kernels, with the rest
from fa_numba.constants import LOG2_E
from fa_numba.ptx import convert, mma, wgmma
from fa_numba.runtime import arrays


def pack_of(DTYPE):
    """The conversion of two float32 into one register."""
    return convert.pack_bf16x2 if DTYPE == "bfloat16" else convert.pack_f16x2


def mma_of(DTYPE):
    """The product of a warp."""
    return mma.mma_m16n8k16_bf16 if DTYPE == "bfloat16" else mma.mma_m16n8k16_f16


def wgmma_of(DTYPE):
    """The products of a warpgroup: of two matrices in shared memory, and with A in registers."""
    if DTYPE == "bfloat16":
        return wgmma.wgmma_bf16, wgmma.wgmma_bf16_registers
    return wgmma.wgmma_f16, wgmma.wgmma_f16_registers


def prepare(name, q, k, v, causal, softmax_scale, supported, max_head_dim=256):
    """Check a call of the kernel `name`, and allocate its results.

    Returns
    -------
    out, lse : arrays
    causal : bool
    scale : float32
        softmax_scale · log2 e.
    """
    checks.check_tensor_core(q, k, v, name=name, supported=supported, max_head_dim=max_head_dim)
    checks.check_aligned(q=q, k=k, v=v)
    batch, seqlen_q, num_heads, head_dim = q.shape
    causal = checks.check_causal(causal)
    scale = checks.check_positive_scale(softmax_scale, head_dim)
    out = arrays.empty(q, q.shape, q.dtype)
    lse = arrays.empty(q, (batch, num_heads, seqlen_q))
    if k.shape[1] == 0:
        out, lse = arrays.full(q, q.shape, 0, q.dtype), arrays.full(q, lse.shape, -np.inf)
    return out, lse, causal, np.float32(scale * LOG2_E)
