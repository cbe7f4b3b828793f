"""Softmax of rows: `softmax`, and its largest values, `softmax_topk`."""

from typing import NamedTuple

from fa_numba import checks
from fa_numba.dispatch.candidates import Candidate, lesson, on_cpu
from fa_numba.dispatch.job import job
from fa_numba.runtime import arrays


class Inputs(NamedTuple):
    """The facts of the array of a call."""

    x: object


SOFTMAX = (
    on_cpu("softmax", None),
    Candidate("softmax_registers", "on_cuda_cores", why="reads each row once", head_dims=None),
    lesson("online_softmax", head_dims=None),
)
TOPK = (
    on_cpu("softmax_topk", None),
    Candidate(
        "softmax_topk_warps", "on_cuda_cores", why="reads at the speed of memory", head_dims=None
    ),
    lesson("softmax_topk", head_dims=None),
)


@job(*SOFTMAX)
def softmax(x):
    """Softmax of each row by the fastest kernel.

    Parameters
    ----------
    x : array of shape (num_rows, num_cols), float32, float16 or bfloat16
        Fastest if every row begins at a multiple of 16 bytes and its length is one.

    Returns
    -------
    array of the shape, dtype and library of x
        NaN in a row that contains a NaN or ∞, and in a row of −∞ only.
    """
    inputs = Inputs(arrays.facts(x))
    checks.check_rows(*inputs)
    return inputs, {}


@job(*TOPK)
def softmax_topk(x, k) -> tuple:
    """The k largest values of each row's softmax, and their columns, by the fastest kernel.

    Parameters
    ----------
    x : array of shape (num_rows, num_cols), float32, float16 or bfloat16
    k : int
        From 1 to num_cols, at most 32.

    Returns
    -------
    values : array of shape (num_rows, k), dtype and library of x
        The largest first. NaN for a row that contains a NaN or ∞, and for a row of −∞ only.
    columns : array of shape (num_rows, k), int32
        For equal x the smaller column comes first. A NaN ranks as −∞, so that these are always k
        different columns of x.
    """
    inputs = Inputs(arrays.facts(x))
    checks.check_rows(*inputs)
    return inputs, {"k": checks.check_top_k(k, inputs.x.shape[1])}
