"""The kernels that a model computes with: the fastest, the lessons', or a learner's own."""

import importlib.util
import math
from pathlib import Path

import numpy as np

from fa_numba import checks
from fa_numba.constants import WARP_SIZE
from fa_numba.kernels.flash_attn_bwd import flash_attn_bwd
from fa_numba.kernels.flash_attn_v2 import flash_attn_v2
from fa_numba.kernels.safe_softmax import safe_softmax
from fa_numba.language_model.gradients import Kernels
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div

ROWS = 4  # of delta in a thread block
BLOCK = 16  # queries, and keys, of a tile of a learner's kernels
FILES = {
    "attn": "ex07d_flash_attn_v2.py",
    "delta": "ex08a_delta.py",
    "dkdv": "ex08b_dkdv_kernel.py",
    "dq": "ex08c_dq_kernel.py",
}


def by_name(name) -> Kernels:
    """Choose kernels.

    Parameters
    ----------
    name : str
        "fastest": the jobs `flash_attn`, `flash_attn_grad` and `softmax`. "lesson":
        `flash_attn_v2`, `flash_attn_bwd` and `safe_softmax`, on the CPU engine for NumPy arrays.
        Else a folder: `from_exercises`.

    Returns
    -------
    Kernels
    """
    if name == "fastest":
        return Kernels()
    if name == "lesson":
        return Kernels(flash_attn_v2, flash_attn_bwd, safe_softmax)
    return from_exercises(name)


def from_exercises(folder) -> Kernels:
    """A learner's own attention: the kernels of exercises 07d, 08a, 08b and 08c.

    They compute one head of one sequence, so that there is a launch for each.

    Parameters
    ----------
    folder : str or Path
        With the files of these exercises: "exercises", or "solutions".

    Returns
    -------
    Kernels
        With the softmax of the lessons.
    """
    checks.check_exercise_files(folder, FILES.values())
    modules = {name: _load(Path(folder) / file) for name, file in FILES.items()}

    def attn(q, k, v, causal=True):
        batch, seqlen, num_heads, head_dim = q.shape
        out, lse = arrays.empty(q, q.shape), arrays.empty(q, (batch, num_heads, seqlen))
        kernel = modules["attn"].make_kernel(head_dim, BLOCK, BLOCK, causal)
        for b, h, h_kv in _heads(q, k):
            one = q[b, :, h], k[b, :, h_kv], v[b, :, h_kv], out[b, :, h], lse[b, h]
            _launch(kernel, ceil_div(seqlen, BLOCK), *one, _scale(head_dim))
        return out, lse

    def attn_grad(dout, q, k, v, out, lse, causal=True):
        seqlen_q, seqlen_k, head_dim = q.shape[1], k.shape[1], q.shape[3]
        dq, dk, dv = arrays.empty(q, q.shape), *(arrays.full(q, k.shape, 0) for _ in "kv")
        dk_of_head, dv_of_head = (arrays.empty(q, (seqlen_k, head_dim)) for _ in "kv")
        delta, delta_kernel = arrays.empty(q, (seqlen_q,)), modules["delta"].delta_kernel
        dkdv = modules["dkdv"].make_kernel(head_dim, BLOCK, BLOCK, causal)
        dq_kernel = modules["dq"].make_kernel(head_dim, BLOCK, BLOCK, causal)
        for b, h, h_kv in _heads(q, k):
            inputs = dout[b, :, h], q[b, :, h], k[b, :, h_kv], v[b, :, h_kv], lse[b, h], delta
            grid, block = (ceil_div(seqlen_q, ROWS),), (WARP_SIZE, ROWS)
            arrays.launch(delta_kernel, grid, block, dout[b, :, h], out[b, :, h], delta)
            grads = dk_of_head, dv_of_head
            _launch(dkdv, ceil_div(seqlen_k, BLOCK), *inputs, *grads, _scale(head_dim))
            dk[b, :, h_kv] += dk_of_head  # heads of q that share it: their gradients add up
            dv[b, :, h_kv] += dv_of_head
            _launch(dq_kernel, ceil_div(seqlen_q, BLOCK), *inputs, dq[b, :, h], _scale(head_dim))
        return dq, dk, dv

    return Kernels(attn, attn_grad, safe_softmax)


def _load(path):
    spec = importlib.util.spec_from_file_location(f"learner_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _heads(q, k):
    """(sequence, head of q, its head of k) of each head."""
    group = q.shape[2] // k.shape[2]
    return [(b, h, h // group) for b in range(q.shape[0]) for h in range(q.shape[2])]


def _scale(head_dim):
    return np.float32(1 / math.sqrt(head_dim))


def _launch(kernel, tiles, *args):
    arrays.launch(kernel, (tiles,), (BLOCK, BLOCK), *args)
