"""Block sizes, HBM traffic, machine code: what can be known of a kernel without running it."""

from fa_numba.analysis import intensity
from fa_numba.analysis.devices import DEVICES, Device, device
from fa_numba.analysis.hbm_traffic import (
    Traffic,
    copy_pages,
    flash_attention_traffic,
    flash_attn_bwd,
    flash_attn_bwd_registers,
    flash_attn_registers,
    flash_attn_v1,
    flash_attn_v2,
    flash_attn_varlen,
    flash_attn_varlen_bwd,
    flash_decode,
    lazy_softmax_attn,
    linear_attn,
    merge_states,
    naive_attn,
    naive_softmax,
    online_softmax,
    paged_attn_decode,
    paged_kv_lookup,
    reshape_and_cache,
    safe_softmax,
    softmax_registers,
    softmax_topk,
    softmax_topk_warps,
    standard_attention_traffic,
    swap_pages,
)
from fa_numba.analysis.kv_cache_size import kv_cache_bytes, kv_cache_tokens
from fa_numba.analysis.lint import lint
from fa_numba.analysis.machine_code import machine_code
from fa_numba.analysis.occupancy import Occupancy, occupancy
from fa_numba.analysis.roofline import Roofline
from fa_numba.tiling.block_sizes import calculate_block_sizes, kernel_block_sizes
from fa_numba.tiling.num_splits import choose_num_splits

__all__ = [
    "DEVICES",
    "Device",
    "Occupancy",
    "Roofline",
    "Traffic",
    "calculate_block_sizes",
    "choose_num_splits",
    "copy_pages",
    "device",
    "flash_attention_traffic",
    "flash_attn_bwd",
    "flash_attn_bwd_registers",
    "flash_attn_registers",
    "flash_attn_v1",
    "flash_attn_v2",
    "flash_attn_varlen",
    "flash_attn_varlen_bwd",
    "flash_decode",
    "intensity",
    "kernel_block_sizes",
    "kv_cache_bytes",
    "kv_cache_tokens",
    "lazy_softmax_attn",
    "linear_attn",
    "lint",
    "machine_code",
    "merge_states",
    "naive_attn",
    "naive_softmax",
    "occupancy",
    "online_softmax",
    "paged_attn_decode",
    "paged_kv_lookup",
    "reshape_and_cache",
    "safe_softmax",
    "softmax_registers",
    "softmax_topk",
    "softmax_topk_warps",
    "standard_attention_traffic",
    "swap_pages",
]
