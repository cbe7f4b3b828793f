"""Attention for PyTorch: functions with the signatures of PyTorch and of flash-attention.

    from fa_numba.torch import scaled_dot_product_attention, flash_attn_func

sdpa        scaled_dot_product_attention, PyTorch's arguments and layout (batch, heads, seqlen, dim)
flash       flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache, flash-attention's
            arguments and layout (batch, seqlen, heads, dim)
flex        flex_attention, create_block_mask, and_masks, or_masks: a mask and a score as functions
padding     batches with padding, as packed ones
transformers    register_transformers: attention for models of the package transformers
layouts     whether tensors have the layouts of an earlier call
eager       calls that come again, without PyTorch's dispatcher
operators   the registered operators that both call otherwise, with their gradients
jobs        the functions of fa_numba that the operators run
autocast    the dtype of torch.autocast
seed        the seed of dropout
distributed rings over several GPUs, by a process group of PyTorch; import it by itself

The first two call operators that PyTorch knows by name, shapes and gradients, so `torch.compile`
keeps them in its graph. A call outside of it that was made before is a replay. CUDA tensors run on
their GPU and current stream; tensors in CPU memory run as the NumPy arrays that share their memory.
Nothing in fa_numba imports this package.
"""

try:
    import torch
except ImportError as error:
    raise ImportError(
        'fa_numba.torch needs PyTorch: pip install torch, or pip install "fa-numba[torch]"'
    ) from error

import importlib

from fa_numba.checks.names import no_such_name
from fa_numba.torch.flash import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from fa_numba.torch.sdpa import scaled_dot_product_attention
from fa_numba.torch.transformers import register_transformers

OF_FLEX = "BlockMask", "and_masks", "create_block_mask", "flex_attention", "or_masks"
__all__ = [
    *OF_FLEX,
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "register_transformers",
    "scaled_dot_product_attention",
]


def __getattr__(name):
    if name in OF_FLEX:  # not at import: it imports torch._dynamo, which takes seconds
        return getattr(importlib.import_module("fa_numba.torch.flex"), name)
    raise no_such_name(__name__, name, __all__)
