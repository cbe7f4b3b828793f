"""The time of a learner's mask on the GPU that is here, beside causal and FlexAttention's."""

from __future__ import annotations

import warnings

import numpy as np

import fa_numba
from fa_numba.workbook.note import Note
from fa_numba.workbook.own import gpu_ms, has_cupy_and_gpu
from fa_numba.workbook.recorded import table

SHAPE = 1, 8192, 16, 64


def mask_times(mask) -> Note:
    """A table of times; without a GPU, one line.

    Parameters
    ----------
    mask : callable
        Of (b, h, m, n). FlexAttention takes it if it has & and | in place of and and or.
    """
    if not has_cupy_and_gpu():
        return Note(
            "*There is no GPU here. On one, this cell times your mask beside a causal one, and "
            "beside FlexAttention if PyTorch is installed.*"
        )
    import cupy

    rng = cupy.random.default_rng(0)
    qkv = [rng.standard_normal(SHAPE, dtype=np.float32).astype(np.float16) for _ in "qkv"]
    rows = [
        {"kernel": "fa_numba.flash_attn", "mask": name,
         "ms": gpu_ms(lambda options=options: fa_numba.flash_attn(*qkv, **options))}
        for name, options in (("causal", {"causal": True}), ("yours", {"mask": mask}))
    ]  # fmt: skip
    rows += _of_flex_attention(mask, qkv)
    return table(rows, title=f"(batch, seqlen, num_heads, head_dim) = {SHAPE}, float16, this GPU")


def _of_flex_attention(mask, qkv):
    """A row of FlexAttention's time, its block mask made before; none without PyTorch on a GPU."""
    try:
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    except ImportError:
        return []
    if not torch.cuda.is_available():  # PyTorch made for CPUs
        return []
    row = {"kernel": "FlexAttention", "mask": "yours"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's compiler warns of its own ways
        try:
            block_mask = create_block_mask(mask, None, None, SHAPE[1], SHAPE[1], device="cuda")
            compiled = torch.compile(flex_attention)
            qkv = [torch.from_dlpack(x).transpose(1, 2) for x in qkv]
            return [row | {"ms": gpu_ms(lambda: compiled(*qkv, block_mask=block_mask))}]
        except RuntimeError as error:  # such as a truth value of a tensor, or no Triton
            return [row | {"refused": str(error).partition("\n")[0][:80]}]
