"""The attention of other libraries and compilers, as functions of PyTorch tensors."""

import functools
from contextlib import nullcontext

PRODUCT = "product 8192³"  # of square matrices: the most that the tensor cores give


def peers(q, k, v, causal):
    """For each name a function that makes the call; the call has no arguments and returns out.

    Where a peer is not installed or cannot run, its error passes through. A call compiles when it
    is first made.
    """
    return {name: functools.partial(make, q, k, v, causal) for name, make in PEERS.items()}


def sdpa(library, q, k, v, causal=False, **options):
    """PyTorch's attention by one of its libraries: the forward pass, and the gradients.

    Parameters
    ----------
    library : str
        A name of `SDPBackend`, such as "CUDNN_ATTENTION"; "" is PyTorch's own choice.
    q, k, v : tensors of shape (batch, seqlen, heads, head_dim)
    causal : bool, default=False
    **options
        Of scaled_dot_product_attention.

    Returns
    -------
    forward : callable
        Without arguments: returns out, with the axes of q.
    gradients : callable
        Takes dout, and returns a function without arguments, which returns dq, dk, dv.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    heads_first = [x.transpose(1, 2) for x in inputs]
    options |= {"is_causal": causal, "enable_gqa": q.shape[2] != k.shape[2]}

    def attend():
        chosen = sdpa_kernel(getattr(SDPBackend, library)) if library else nullcontext()
        with chosen:
            return scaled_dot_product_attention(*heads_first, **options).transpose(1, 2)

    def gradients(dout):
        out = attend()
        return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)

    return torch.no_grad()(attend), gradients


def _sdpa(q, k, v, causal, *, library):
    return sdpa(library, q, k, v, causal)[0]


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
    "SDPA memory-efficient": functools.partial(_sdpa, library="EFFICIENT_ATTENTION"),
    "SDPA FlashAttention-2": functools.partial(_sdpa, library="FLASH_ATTENTION"),
    "SDPA cuDNN": functools.partial(_sdpa, library="CUDNN_ATTENTION"),
    "FlexAttention": _flex,
    "Triton": _triton,
}
