"""Signatures, which only Numba can read."""

from numba_cuda_simulator.without_numba.missing import needs_numba


def normalize_signature(signature):
    """Refuse."""
    raise needs_numba("a signature")
