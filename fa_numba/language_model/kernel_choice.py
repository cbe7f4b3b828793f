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
TOLERANCE = 1e-4  # of a learner's result, as a share of the largest number
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
        Else a folder: a learner's own attention, `OfExercises.kernels`.
    """
    if name == "fastest":
        return Kernels()
    if name == "lesson":
        return Kernels(flash_attn_v2, flash_attn_bwd, safe_softmax)
    return OfExercises(name).kernels


class OfExercises:
    """A learner's own attention: the kernels of exercises 07d, 08a, 08b and 08c.

    They compute one head of one sequence, so that there is a launch for each.

    Parameters
    ----------
    folder : str or Path
        With the files of these exercises: "exercises", or "solutions".
    """

    def __init__(self, folder):
        checks.check_exercise_files(folder, FILES.values())
        self.modules = {name: _load(Path(folder) / file) for name, file in FILES.items()}
        self.kernels = Kernels(self.attn, self.attn_grad, safe_softmax)  # its softmax: the lessons'

    def attn(self, q, k, v, causal=True):
        """As `flash_attn`."""
        batch, seqlen, num_heads, head_dim = q.shape
        out, lse = arrays.empty(q, q.shape), arrays.empty(q, (batch, num_heads, seqlen))
        kernel = self.modules["attn"].make_kernel(head_dim, BLOCK, BLOCK, causal)
        for b, h, h_kv in _heads(q, k):
            one = q[b, :, h], k[b, :, h_kv], v[b, :, h_kv], out[b, :, h], lse[b, h]
            _launch(kernel, ceil_div(seqlen, BLOCK), *one, _scale(head_dim))
        return out, lse

    def delta(self, dout, out):
        """The sum of dout ∘ out of one head's queries."""
        delta = arrays.empty(out, out.shape[:1])
        grid, block = (ceil_div(len(out), ROWS),), (WARP_SIZE, ROWS)
        arrays.launch(self.modules["delta"].delta_kernel, grid, block, dout, out, delta)
        return delta

    def attn_grad(self, dout, q, k, v, out, lse, causal=True):
        """As `flash_attn_grad`."""
        seqlen_q, seqlen_k, head_dim = q.shape[1], k.shape[1], q.shape[3]
        dq, dk, dv = arrays.empty(q, q.shape), *(arrays.full(q, k.shape, 0) for _ in "kv")
        dk_of_head, dv_of_head = (arrays.empty(q, (seqlen_k, head_dim)) for _ in "kv")
        dkdv = self.modules["dkdv"].make_kernel(head_dim, BLOCK, BLOCK, causal)
        dq_kernel = self.modules["dq"].make_kernel(head_dim, BLOCK, BLOCK, causal)
        for b, h, h_kv in _heads(q, k):
            delta = self.delta(dout[b, :, h], out[b, :, h])
            inputs = dout[b, :, h], q[b, :, h], k[b, :, h_kv], v[b, :, h_kv], lse[b, h], delta
            grads = dk_of_head, dv_of_head
            _launch(dkdv, ceil_div(seqlen_k, BLOCK), *inputs, *grads, _scale(head_dim))
            dk[b, :, h_kv] += dk_of_head  # heads of q that share it: their gradients add up
            dv[b, :, h_kv] += dv_of_head
            _launch(dq_kernel, ceil_div(seqlen_q, BLOCK), *inputs, dq[b, :, h], _scale(head_dim))
        return dq, dk, dv

    def differences(self, config, xp=np):
        """The largest difference of each result from that of the fastest kernels.

        Of one sequence of the model's length: these kernels compute each one by itself. The
        numbers are random, and each kernel gets right inputs: no kernel is blamed for another.

        Yields
        ------
        exercise, result : str
        difference, allowed : float
        """
        rng, fastest = np.random.default_rng(0), Kernels()
        heads = config.heads, config.kv_heads, config.kv_heads, config.heads
        q, k, v, dout = (
            xp.asarray(rng.standard_normal((1, config.context, n, config.head_dim), np.float32))
            for n in heads
        )
        out, lse = fastest.attn(q, k, v, causal=True)
        dq, dk, dv = fastest.attn_grad(dout, q, k, v, out, lse, causal=True)
        delta = (dout[0, :, 0] * out[0, :, 0]).sum(1)
        own_out, own_lse = self.attn(q, k, v)
        yield from _compared("attn", {"out": (own_out, out), "lse": (own_lse, lse)})
        yield from _compared("delta", {"delta": (self.delta(dout[0, :, 0], out[0, :, 0]), delta)})
        own_dq, own_dk, own_dv = self.attn_grad(dout, q, k, v, out, lse)
        yield from _compared("dkdv", {"dk": (own_dk, dk), "dv": (own_dv, dv)})
        yield from _compared("dq", {"dq": (own_dq, dq)})


def _compared(kernel, results):
    exercise = FILES[kernel].partition("_")[0]
    for name, (own, right) in results.items():
        difference, allowed = float(abs(own - right).max()), TOLERANCE * float(abs(right).max())
        yield exercise, name, difference, allowed


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
