"""The functions of fa_numba that the operators run, and tensors in the form that they take."""

import contextlib

import numba
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
from fa_numba.runtime import arrays

__all__ = [
    "flash_attn",
    "flash_attn_grad",
    "flash_attn_varlen",
    "flash_attn_varlen_grad",
    "flash_decode",
    "paged_attn_decode",
    "replay_of",
    "run",
]


def run(job, *tensors, **options):
    """Run a function of fa_numba on tensors, while PyTorch records no gradients.

    Parameters
    ----------
    job : callable
        One of this module.
    *tensors : tensors
        Of any strides: one with gaps along its last axis is copied.
    **options
        The other arguments of the job: numbers, tensors, tuples of them, and alibi_slopes, a tensor
        or None.

    Returns
    -------
    tuple of tensors
        Contiguous, on the device of the first tensor; None where there is no gradient.
    """
    on_cpu = arrays.library_of(tensors[0]) is None

    def given(x):
        if type(x) is tuple:
            return tuple(map(given, x))
        if not isinstance(x, torch.Tensor):
            return x
        x = x if x.stride(-1) == 1 else x.contiguous()
        return as_numpy(x) if on_cpu else x

    slopes = options.pop("alibi_slopes", None)
    if slopes is not None:  # the last option, as in `replay_of`
        options["alibi_slopes"] = slopes
    options = {name: given(x) for name, x in options.items()}
    with _threads_of_pytorch() if on_cpu else contextlib.nullcontext():
        results = job(*map(given, tensors), **options)
    if options.get("score_args_grad"):
        results = *results[:-1], *results[-1]
    if on_cpu:
        results = [None if x is None else as_tensor(x) for x in results]
    return tuple(None if x is None else x.contiguous() for x in results)


@contextlib.contextmanager
def _threads_of_pytorch():
    """Use no more threads than `torch.set_num_threads` allows, nor than `numba.set_num_threads`."""
    ours = numba.get_num_threads()
    numba.set_num_threads(min(ours, torch.get_num_threads()))
    try:
        yield
    finally:
        numba.set_num_threads(ours)


def replay_of(job, *tensors, **options):
    """Return the replay of a call of `run` with GPU tensors that was made before, or None.

    Its arrays are these tensors: there is none where `run` copies one.
    """
    slopes = options.pop("alibi_slopes")
    if slopes is not None:
        options["alibi_slopes"] = slopes
    arguments = tensors if slopes is None else (*tensors, slopes)
    if any(x.stride(-1) != 1 for x in arguments):
        return None
    with torch.no_grad():
        return job.replay_of(*tensors, **options)


def as_numpy(x):
    """Return the NumPy array that shares a tensor's memory."""
    x = x.detach()
    if x.dtype == torch.bfloat16:  # NumPy has no bfloat16 of its own
        import ml_dtypes

        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


def as_tensor(x):
    x = np.ascontiguousarray(x)
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)
