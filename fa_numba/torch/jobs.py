"""The functions of fa_numba that the operators run, and tensors in the form that they take."""

import numpy as np
import torch

from fa_numba.dispatch import (
    flash_attn,
    flash_attn_grad,
    flash_attn_varlen,
    flash_attn_varlen_grad,
    flash_decode,
    paged_attn_decode,
)

__all__ = [
    "flash_attn",
    "flash_attn_grad",
    "flash_attn_varlen",
    "flash_attn_varlen_grad",
    "flash_decode",
    "paged_attn_decode",
    "run",
]


def run(job, *tensors, alibi_slopes=None, **options):
    """Run a function of fa_numba on tensors, while PyTorch records no gradients.

    Parameters
    ----------
    job : callable
        One of this module.
    *tensors : tensors
        Of any strides: one with gaps along its last axis is copied.
    alibi_slopes : tensor or None
    **options
        The other options of the job, numbers and tuples.

    Returns
    -------
    tuple of tensors
        Contiguous, on the device of the first tensor.
    """
    if alibi_slopes is not None:
        tensors += (alibi_slopes,)
    tensors = [x if x.stride(-1) == 1 else x.contiguous() for x in tensors]
    on_cpu = tensors[0].device.type == "cpu"
    given = [_as_numpy(x) for x in tensors] if on_cpu else tensors
    if alibi_slopes is not None:
        options["alibi_slopes"] = given.pop()
    results = job(*given, **options)
    if on_cpu:
        results = map(_as_tensor, results)
    return tuple(x.contiguous() for x in results)


def _as_numpy(x):
    """Return the NumPy array that shares a tensor's memory; a GPU's tensor as it is."""
    x = x.detach()
    if x.device.type != "cpu":
        return x
    if x.dtype == torch.bfloat16:  # NumPy has no bfloat16 of its own
        import ml_dtypes

        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


def _as_tensor(x):
    x = np.ascontiguousarray(x)
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)
