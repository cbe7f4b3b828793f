"""Kernels on tensor cores, run live where a GPU can: `live`, for the lessons."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
from numba import cuda

from fa_numba import tensor_core
from fa_numba.analysis import fp8
from fa_numba.workbook import own
from fa_numba.workbook.note import Note
from fa_numba.workbook.recorded import table
from numba_cuda_simulator.errors import CompilerMissingError


def live(*names: str, shape: tuple = (2, 4096, 16, 128)) -> Note:
    """Run forward kernels on the GPU that is here: error against float64, and speed.

    Parameters
    ----------
    *names : str
        Kernels of `fa_numba.tensor_core`, such as ``"flash_attn_mma"``.
    shape : tuple, default=(2, 4096, 16, 128)
        Of q, k and v: (batch, seqlen, num_heads, head_dim).

    Returns
    -------
    Note
        A table of the kernels that this GPU can run, and a sentence on the others. Without a GPU it
        says what each needs; without Numba or CuPy, that.
    """
    for name in names:
        if not Path(tensor_core.__path__[0], f"{name}.py").is_file():
            raise ValueError(f"names must be kernels of fa_numba.tensor_core, got {name!r}")
    try:
        modules = {name: importlib.import_module(f"fa_numba.tensor_core.{name}") for name in names}
    except CompilerMissingError as error:  # no Numba, or no numba-cuda
        return Note(f"*Nothing runs on a GPU here: {error}.*")
    here = _capability()
    if here is not None and not own.has_cupy_and_gpu():
        return Note("*There is a GPU here, and no CuPy, with which kernels are timed.*")
    rows, needs = [], []
    for name, module in modules.items():
        supported = module.REQUIREMENTS.supported
        if here is not None and _can(here, supported):
            function = getattr(module, name)
            dtype = np.float32 if module.REQUIREMENTS.float32 else np.float16
            rows.append({"kernel": name} | _measure(function, shape, dtype))
        else:
            number = f"{supported[0]}.{supported[1]}"
            later = "" if len(supported) > 2 else " or later"
            needs.append(f"{name} needs compute capability {number}{later}")
    gpu = "No NVIDIA GPU here" if here is None else f"This GPU has {here[0]}.{here[1]}"
    words = f"*{gpu}.* {'; '.join(needs)}." if needs else ""
    title = f"This GPU; (batch, seqlen, num_heads, head_dim) = {shape}, all that a call launches"
    shown = table(rows, title=title).markdown if rows else ""
    return Note("\n\n".join(filter(None, (shown, words))))


def _capability():
    """The compute capability of the GPU that is here, or None."""
    if not cuda.is_available():
        return None
    return tuple(cuda.get_current_device().compute_capability)[:2]


def _can(here, supported):
    """Whether a GPU has a kernel's instructions: "a" means this version alone."""
    return here == supported[:2] if len(supported) > 2 else here >= supported


def _measure(attention, shape, dtype):
    """Largest error of one head, and the median speed."""
    import cupy

    batch, seqlen, num_heads, head_dim = shape
    rng = np.random.default_rng(0)
    host = [rng.standard_normal(shape, dtype=np.float32).astype(dtype) for _ in range(3)]
    q, k, v = map(cupy.asarray, host)
    out = cupy.asnumpy(attention(q, k, v)[0][0, :, 0])
    truth = fp8.attention(*(x[0, :, 0] for x in host))  # one head of them
    flops = 4 * batch * num_heads * seqlen**2 * head_dim
    error = float(np.abs(out - truth).max())
    ms = own.gpu_ms(lambda: attention(q, k, v))
    return {"largest error": f"{error:.1e}", "TFLOP/s": flops / ms / 1e9}
