"""The functions of a training step by the learner's kernels of lesson 22, as far as they pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

import numpy as np

from fa_numba.runtime import arrays
from fa_numba.workbook import progress
from fa_numba.workbook.catalog import find_one
from fa_numba.workbook.passed import load

THREADS = 64  # of a thread block, by the statements


def cross_entropy(module: ModuleType, logits, targets):
    """Mean loss of the targets, and its gradient by the logits."""
    loss, dlogits = np.empty(len(logits), np.float32), np.empty_like(logits)
    arrays.launch(module.kernel, (len(logits),), (THREADS,), logits, targets, loss, dlogits)
    return loss.mean(), dlogits


def step(module: ModuleType, weights, averages, squares, grads, t, rate):
    """One step of AdamW, in place."""
    numbers = map(np.float32, (*module.corrections(t), rate))
    grid = (-(-len(weights) // THREADS),)
    arrays.launch(module.kernel, grid, (THREADS,), weights, averages, squares, grads, *numbers)


def embedding_grad(module: ModuleType, tokens, dx0, dlogits, last):
    """The gradient of an embedding by both of its uses."""
    grad = np.empty((dlogits.shape[1], last.shape[1]), np.float32)
    arrays.launch(module.kernel, (len(grad),), (THREADS,), tokens, dx0, dlogits, last, grad)
    return grad


def rotate(module: ModuleType, x, positions, cos, sin):
    """Rotary embedding, in place."""
    arrays.launch(module.kernel, x.shape[:2], (THREADS,), x, positions, cos, sin)


def rotate_grad(module: ModuleType, dx, positions, cos, sin):
    """The gradient of `rotate`, in place."""
    arrays.launch(module.grad_kernel, dx.shape[:2], (THREADS,), dx, positions, cos, sin)


def layer_grad(module: ModuleType, *args):
    """The gradients of the attention half of a layer."""
    return module.layer_grad(*args)


OF = {
    "ex22a": (cross_entropy,),
    "ex22b": (step,),
    "ex22c": (embedding_grad,),
    "ex22d": (rotate, rotate_grad),
    "ex22e": (layer_grad,),
}


def own_training() -> tuple[dict[str, Callable], list[str]]:
    """The learner's functions by name, and the exercises that have not passed yet."""
    functions, missing = {}, []
    for short, made in OF.items():
        exercise = find_one(short)
        if progress.is_passed(exercise):
            module = load(exercise)
            functions |= {f.__name__: partial(f, module) for f in made}
        else:
            missing.append(short)
    return functions, missing
