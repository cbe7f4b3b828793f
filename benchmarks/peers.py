"""The attention of other libraries and compilers, as functions of PyTorch tensors."""

import functools

PRODUCT = "product 8192³"  # of square matrices: the most that the tensor cores give


def peers(q, k, v, causal):
    """For each name a function that makes the call; the call has no arguments and returns out.

    Where a peer is not installed or cannot run, its error passes through. A call compiles when it
    is first made.
    """
    return {name: functools.partial(make, q, k, v, causal) for name, make in PEERS.items()}


def _sdpa(q, k, v, causal, *, backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    grouped = q.shape[1] != k.shape[1]

    def call():
        with sdpa_kernel(getattr(SDPBackend, backend)):
            out = scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
        return out.transpose(1, 2)

    return call


def _flex(q, k, v, causal):
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()  # it would not compile for more than a few sizes
    compiled = torch.compile(flex_attention, dynamic=False)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    mask = create_block_mask(_sees, None, None, q.shape[2], k.shape[2]) if causal else None
    grouped = q.shape[1] != k.shape[1]
    return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=grouped).transpose(1, 2)


def _sees(batch, head, m, n):
    return m >= n


def _triton(q, k, v, causal):
    from benchmarks.triton_attention import triton_attention

    return lambda: triton_attention(q, k, v, causal=causal)


PEERS = {
    "SDPA memory-efficient": functools.partial(_sdpa, backend="EFFICIENT_ATTENTION"),
    "SDPA FlashAttention-2": functools.partial(_sdpa, backend="FLASH_ATTENTION"),
    "SDPA cuDNN": functools.partial(_sdpa, backend="CUDNN_ATTENTION"),
    "FlexAttention": _flex,
    "Triton": _triton,
}
