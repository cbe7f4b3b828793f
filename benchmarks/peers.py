"""The attention of other libraries on PyTorch tensors, each compared with float64 before use."""

import functools


def peers(q, k, v, causal, want, tolerance):
    """Yield (name, call without arguments, relative error) of each that runs here.

    Parameters
    ----------
    q, k, v : PyTorch tensors of shape (batch, seqlen, heads, head_dim), float16 or bfloat16
    causal : bool
    want : tensor of the shape of q
        The result in float64.
    tolerance : float
        ‖out − want‖ / ‖want‖ is at most that, or the peer is not one.

    One that cannot run or compile here is left out, and why is printed.
    """
    for name, prepare in PEERS.items():
        try:
            call = prepare(q, k, v, causal)
            error = float((call().transpose(1, 2).double() - want).norm() / want.norm())
        except Exception as failure:  # whatever a compiler may raise
            print(f"{name} does not run: {type(failure).__name__}: {str(failure).strip()[:300]}")
            continue
        assert error <= tolerance, f"{name}, {tuple(q.shape)}, {causal=}: {error}"
        yield name, call, error


def _sdpa(q, k, v, causal, *, backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))

    def call():
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
            )

    return call


def _flex(q, k, v, causal):
    from torch.nn.attention.flex_attention import create_block_mask

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    mask = create_block_mask(_sees, None, None, q.shape[2], k.shape[2]) if causal else None
    compiled = _compiled_flex()
    return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


@functools.cache
def _compiled_flex():
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def _sees(batch, head, m, n):
    return m >= n


def _triton(q, k, v, causal):
    from benchmarks.triton_attention import triton_attention

    return lambda: triton_attention(q, k, v, causal=causal).transpose(1, 2)


PEERS = {
    "SDPA memory-efficient": functools.partial(_sdpa, backend="EFFICIENT_ATTENTION"),
    "SDPA FlashAttention-2": functools.partial(_sdpa, backend="FLASH_ATTENTION"),
    "SDPA cuDNN": functools.partial(_sdpa, backend="CUDNN_ATTENTION"),
    "FlexAttention": _flex,
    "Triton": _triton,
}
