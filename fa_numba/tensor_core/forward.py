"""Instructions that depend on the dtype, for the kernels on tensor cores."""

from typing import Any, NamedTuple

from fa_numba.checks import AMPERE, HOPPER  # noqa: F401   for the kernels, with the rest
from fa_numba.ptx import convert, mma, wgmma


class WgmmaProducts(NamedTuple):
    """Products of a warpgroup: with A and B in shared memory, and with A in registers."""

    shared: Any
    registers: Any


class WgmmaSums(NamedTuple):
    """Products that are added, A and B in shared memory: d += A Bᵀ, d += A B, and d += Aᵀ B."""

    more: Any
    tiles: Any
    columns: Any


def pack_of(DTYPE):
    """The conversion of two float32 into one register."""
    return convert.pack_bf16x2 if DTYPE == "bfloat16" else convert.pack_f16x2


def mma_of(DTYPE):
    """The product of a warp."""
    return mma.mma_m16n8k16_bf16 if DTYPE == "bfloat16" else mma.mma_m16n8k16_f16


def wgmma_of(DTYPE):
    """The `WgmmaProducts` of a dtype."""
    if DTYPE == "bfloat16":
        return WgmmaProducts(wgmma.wgmma_bf16, wgmma.wgmma_bf16_registers)
    return WgmmaProducts(wgmma.wgmma_f16, wgmma.wgmma_f16_registers)


def wgmma_sums_of(DTYPE):
    """The `WgmmaSums` of a dtype."""
    if DTYPE == "bfloat16":
        return WgmmaSums(
            wgmma.wgmma_more_bf16, wgmma.wgmma_tiles_bf16, wgmma.wgmma_more_columns_bf16
        )
    return WgmmaSums(wgmma.wgmma_more_f16, wgmma.wgmma_tiles_f16, wgmma.wgmma_more_columns_f16)
