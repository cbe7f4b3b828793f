"""The error for a name that a module does not have, with the one that was meant."""

from __future__ import annotations

import difflib

MEANT = {  # names of PyTorch, flash-attention, JAX, vLLM, FlashInfer, xFormers, DeepSpeed
    "BatchDecodeWithPagedKVCacheWrapper": "fa_numba.paged_attn_decode",
    "BatchPrefillWithRaggedKVCacheWrapper": "fa_numba.flash_attn_varlen",
    "BlockMask": "fa_numba.torch.BlockMask",
    "BlockPool": "fa_numba.PagePool",
    "BlockSpaceManager": "fa_numba.PagePool",
    "DistributedAttention": "fa_numba.distributed.ulysses_attn",
    "and_masks": "fa_numba.masks.causal & fa_numba.masks.documents(doc)",
    "append_paged_kv_cache": "fa_numba.reshape_and_cache",
    "attention": "fa_numba.flash_attn",
    "causal_mask": "fa_numba.masks.causal",
    "create_block_mask": "fa_numba.torch.create_block_mask",
    "document_mask": "fa_numba.masks.documents",
    "dot_product_attention": "fa_numba.flash_attn",
    "flex_attention": "fa_numba.torch.flex_attention",
    "flash_attn_func": "fa_numba.torch.flash_attn_func",
    "flash_attn_kvpacked_func": "fa_numba.torch.flash_attn_func(q, *kv.unbind(2))",
    "flash_attn_qkvpacked_func": "fa_numba.torch.flash_attn_func(*qkv.unbind(2))",
    "flash_attn_varlen_func": "fa_numba.torch.flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func": (
        "fa_numba.torch.flash_attn_varlen_func(q, *kv.unbind(1), ...)"
    ),
    "flash_attn_varlen_qkvpacked_func": (
        "fa_numba.torch.flash_attn_varlen_func(*qkv.unbind(1), ...)"
    ),
    "flash_attn_with_kvcache": "fa_numba.torch.flash_attn_with_kvcache",
    "memory_efficient_attention": "fa_numba.flash_attn",
    "or_masks": "fa_numba.masks.window(64) | fa_numba.masks.prefix_lm(prefix)",
    "paged_attention": "fa_numba.paged_attn_decode",
    "ring_flash_attn_func": "fa_numba.distributed.ring_attn",
    "register_transformers": "fa_numba.torch.register_transformers",
    "sdpa": "fa_numba.torch.scaled_dot_product_attention",
    "single_decode_with_kv_cache": "fa_numba.flash_decode",
    "single_prefill_with_kv_cache": "fa_numba.flash_attn",
    "sliding_window": "fa_numba.masks.window",
    "scaled_dot_product_attention": "fa_numba.torch.scaled_dot_product_attention",
    "zigzag_ring_flash_attn_func": "fa_numba.distributed.ring_attn",
}


def no_such_name(module: str, name: str, known: list[str]) -> AttributeError:
    """The error of a module's ``__getattr__``.

    Parameters
    ----------
    module, name : str
    known : list of str
        The module's public names.
    """
    close = difflib.get_close_matches(name, known, 1)
    meant = MEANT.get(name) or (f"{module}.{close[0]}" if close else "")
    hint = f"; did you mean {meant}?" if meant else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")
