"""Checks of options: flags, numbers and sizes. Each returns the form that launchers need."""

import math
import numbers
from typing import NamedTuple

import numpy as np

from fa_numba.checks.refused import RefusedValueError
from fa_numba.checks.requirements import (
    require_axes,
    require_dtype,
    require_one_for_each,
    require_one_library,
)
from fa_numba.runtime import replay
from fa_numba.runtime.arrays import facts

MAX_TOP_K = 32  # candidates that a thread keeps in registers
MAX_CHUNK_SIZE = 16  # tokens of linear attention that a thread block works on
MAX_SPLITS = 2**16  # the partial results of every split are kept until they are combined
MAX_WINDOW = 2**40  # beyond any key; added to a position it still fits an int64
NO_SLOPES = np.float32(0)  # a scalar for the parameter alibi_slopes; kernels do not read it


class Mask(NamedTuple):
    """The compile-time constants of a kernel that mask and modify its scores.

    The order is that of the factories' parameters CAUSAL, WINDOW, SOFTCAP, ALIBI, so that
    ``make_kernel(head_dim, ..., *mask)`` passes them.
    """

    causal: bool = False
    window_size: tuple = (-1, -1)
    softcap: float = 0.0
    alibi: bool = False


# Options of attention


def check_causal(causal) -> bool:
    """Return the flag as a bool."""
    return check_flag("causal", causal)


def check_flag(name, flag) -> bool:
    """Return a flag as a bool; refuse values that are merely truthy, such as 1."""
    if not isinstance(flag, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {flag!r}")
    return bool(flag)


def check_window_size(window_size) -> tuple:
    """Return the two sides of a window as ints."""
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise TypeError(f"window_size must be a tuple (left, right), got {window_size!r}")
    left = integer("window_size[0]", window_size[0], at_least=-1)
    right = integer("window_size[1]", window_size[1], at_least=-1)
    return min(left, MAX_WINDOW), min(right, MAX_WINDOW)


def check_softcap(softcap) -> float:
    """Return the cap as a float that float32 can hold; 0.0 is no cap."""
    require_number("softcap", softcap)
    if softcap == 0:
        return 0.0
    cap = _in_float32(softcap)
    if not np.isfinite(cap) or cap <= 0:
        raise ValueError(
            f"softcap must be 0, or positive and finite in float32, got {softcap!s:.40}"
        )
    return float(cap)


def check_mask(q, causal, window_size, softcap, alibi_slopes) -> tuple:
    """Convert the options that mask and modify scores to the form that kernels take.

    Returns
    -------
    mask : Mask
        Equal for options of equal meaning: a causal mask makes the right side of a window void.
    alibi_slopes : array, or a scalar that kernels do not read
    """
    causal, (left, right) = check_causal(causal), check_window_size(window_size)
    alibi = alibi_slopes is not None
    mask = Mask(causal, (left, -1 if causal else right), check_softcap(softcap), alibi)
    if not alibi:
        return mask, NO_SLOPES
    q, slopes = facts(q), facts(alibi_slopes)
    require_one_library(q=q, alibi_slopes=slopes)
    require_dtype("alibi_slopes", slopes, "float32")
    require_axes("alibi_slopes", slopes, ("num_heads",))
    require_one_for_each("alibi_slopes", slopes, "one slope", q.shape[-2], "heads of q")
    return mask, slopes.array


def check_dropout(dropout_p, seed, largest=None) -> tuple:
    """Return the probability as a float, and the seed as the uint64 that kernels take.

    `largest` is the largest dropout_p of a kernel that does not take all below 1.
    """
    require_number("dropout_p", dropout_p)
    if not (0 <= dropout_p < 1 and float(dropout_p) < 1):
        raise ValueError(f"dropout_p must be at least 0 and less than 1, got {dropout_p!s:.40}")
    if largest is not None and dropout_p > largest:
        raise RefusedValueError(
            f"dropout_p must be at most {largest} in this function, got {dropout_p!s:.40}"
        )
    seed = integer("seed", seed, at_least=0)
    if seed >= 2**64:
        raise ValueError(f"seed must be less than 2**64, got {seed!s:.40}")
    number = np.uint64(seed)
    if recording := replay.current():
        recording.note_seed(number, lambda seed, _: seed)
    return float(dropout_p), number


def check_softmax_scale(softmax_scale, head_dim) -> np.float32:
    """Return the scale as float32; for None, 1/√head_dim, if there is a head_dim."""
    if softmax_scale is None and head_dim is not None:
        return np.float32(1 / math.sqrt(head_dim))
    require_number("softmax_scale", softmax_scale, "a number" + " or None" * (head_dim is not None))
    scale = _in_float32(softmax_scale)
    if not np.isfinite(scale):
        raise ValueError(f"softmax_scale must be finite in float32, got {softmax_scale!s:.40}")
    return scale


def check_positive_scale(softmax_scale, head_dim) -> np.float32:
    """Return the scale as float32; raise unless it is positive.

    For kernels that take the maximum of a row before they scale: a negative scale would make it
    the minimum.
    """
    scale = check_softmax_scale(softmax_scale, head_dim)
    if scale <= 0:
        raise RefusedValueError(
            f"softmax_scale must be positive for this kernel, got {softmax_scale}"
        )
    return scale


# Sizes that a caller may choose


def check_top_k(k, num_cols) -> int:
    """Return the number of values to keep of each row, as an int."""
    k = integer("k", k, at_least=1)
    if k > num_cols:
        raise ValueError(f"k must be at most {num_cols = }, got {k}")
    return integer("k", k, at_most=MAX_TOP_K, why=", which a thread keeps")


def check_job(name, jobs, function=None):
    """Return the job of a name, which must be that function if one is given."""
    found = jobs.get(name)
    if found is None:
        *others, last = jobs
        raise ValueError(f"job must be {', '.join(others)} or {last}, got {name}")
    if function is not None and function is not found.function:
        raise ValueError(
            f"job must be fa_numba.{name}, got {function.__module__}.{name}, which always runs the "
            "same kernel"
        )
    return found


def require_candidate(job, refused, on_cpu):
    """Raise the error of a job whose candidates are all refused, with the reason for each.

    `on_cpu`: for NumPy arrays the job has all these options.
    """
    hint = f"\n{job} takes NumPy arrays with these options, and computes on the CPU"
    raise TypeError(
        f"{job} has no kernel for these arrays and options:\n  "
        + "\n  ".join(f"not {name}: {reason}" for name, reason in refused.items())
        + hint * on_cpu
    )


def check_chunk_size(name, chunk_size, length) -> int:
    """Return the size of a chunk of queries or keys as an int, at most their number."""
    return min(integer(name, chunk_size, at_least=1), max(1, length))


def check_linear_chunk_size(chunk_size) -> int:
    """Return the number of tokens in a chunk of linear attention, as an int."""
    why = ", the rows of a tile"
    return integer("chunk_size", chunk_size, at_least=1, at_most=MAX_CHUNK_SIZE, why=why)


def check_out_dtype(out_dtype) -> str | None:
    """Return the dtype of a result: None for that of the inputs, or "float32"."""
    if out_dtype not in (None, "float32"):
        raise ValueError(f'out_dtype must be None or "float32", got {out_dtype!r}')
    return out_dtype


def check_grad_dtype(grad_dtype, deterministic: bool) -> str | None:
    """Return the dtype of gradients: None for that of the inputs, or "float32"."""
    if grad_dtype not in (None, "float32"):
        raise ValueError(f'grad_dtype must be None or "float32", got {grad_dtype!r}')
    if grad_dtype is not None and deterministic:
        raise ValueError(
            'deterministic must be False where grad_dtype is "float32": the sums of dq are in any '
            "order, got True"
        )
    return grad_dtype


def check_cluster(cluster) -> int:
    """Return the number of thread blocks in a cluster as an int: 1 or 2."""
    return one_of("cluster", cluster, (1, 2))


def check_num_splits(num_splits) -> int:
    """Return the number of splits as an int; 0 lets the launcher choose."""
    return integer("num_splits", num_splits, at_least=0, at_most=MAX_SPLITS)


def check_number(number) -> int:
    """Return the number of samples to make, as an int."""
    return integer("number", number, at_least=1)


# Numbers


def integer(name, value, *, at_least=-math.inf, at_most=math.inf, why="") -> int:
    """Return a number as an int; refuse floats, bools and anything out of range."""
    if type(value) is int and at_least <= value <= at_most:
        return value
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}")
    if value > at_most:
        raise ValueError(f"{name} must be at most {at_most}{why}, got {value}")
    return int(value)


def one_of(name, value, allowed) -> int:
    """Return one of some positive numbers as an int; refuse all others."""
    value = integer(name, value, at_least=1)
    if value not in allowed:
        *others, last = map(str, allowed)
        raise ValueError(f"{name} must be {', '.join(others)} or {last}, got {value}")
    return value


def check_number_between(name, value, *, above=-math.inf, at_least=-math.inf, at_most=math.inf):
    """Raise unless a value is a finite number in this range."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r:.60}")
    if not (above < value < math.inf and at_least <= value <= at_most):  # NaN is not, either
        if at_most < math.inf:
            bounds = f"from {at_least} to {at_most}"
        elif above > -math.inf:
            bounds = f"above {above}"
        else:
            bounds = f"at least {at_least}" if at_least > -math.inf else "finite"
        raise ValueError(f"{name} must be {bounds}, got {value}")


def require_number(name, value, wanted="a number"):
    """Raise unless a value is a real number."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be {wanted}, got {type(value).__name__}")


def _in_float32(value):
    """Convert a real number to float32; infinite if it exceeds float32, or even float."""
    with np.errstate(over="ignore", under="ignore"):
        try:
            return np.float32(value)
        except OverflowError:
            return np.float32(np.inf)
