"""The error for a name that a module does not have, with the one that was meant."""

from __future__ import annotations

import difflib

MEANT = {  # names of PyTorch, flash-attention, JAX, vLLM, FlashInfer, xFormers
    "BlockMask": "fa_numba.torch.BlockMask",
    "attention": "fa_numba.flash_attn",
    "create_block_mask": "fa_numba.torch.create_block_mask",
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
    "paged_attention": "fa_numba.paged_attn_decode",
    "register_transformers": "fa_numba.torch.register_transformers",
    "sdpa": "fa_numba.torch.scaled_dot_product_attention",
    "single_decode_with_kv_cache": "fa_numba.flash_decode",
    "single_prefill_with_kv_cache": "fa_numba.flash_attn",
    "sliding_window": "fa_numba.masks.window",
    "scaled_dot_product_attention": "fa_numba.torch.scaled_dot_product_attention",
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
