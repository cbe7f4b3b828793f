"""Checks of mask=, score= and sinks=, which a user writes."""

import numbers

import numpy as np

from fa_numba.checks.requirements import (
    FLOATS,
    require_axes,
    require_one_for_each,
    require_one_library,
)
from fa_numba.checks.values import Mask, check_flag
from fa_numba.expressions import given
from fa_numba.expressions.as_options import softcap_of, window_of
from fa_numba.expressions.given import Given
from fa_numba.expressions.mask_function import written
from fa_numba.runtime import arrays
from fa_numba.runtime.arrays import facts

INT32 = np.iinfo(np.int32)
NO_SINKS = np.float32(0)  # a scalar for the parameter sinks; kernels do not read it


def check_expressions(q, mask, mask_args, score, score_args, options, alibi_slopes) -> Given | None:
    """Read the functions that mask and modify scores.

    Parameters
    ----------
    q : array, or its facts
    mask, mask_args, score, score_args
        As the launcher got them.
    options : Mask
        Of `check_mask`.
    alibi_slopes : array or None

    Returns
    -------
    Given or None
        None without a function. Else it has the options too, and a kernel takes no others.
    """
    if isinstance(mask_args, (tuple, list)):
        mask, mask_args = written(mask, mask_args)
    for name, function, arguments in (("mask", mask, mask_args), ("score", score, score_args)):
        if not isinstance(arguments, (tuple, list)):
            raise TypeError(f"{name}_args must be a tuple, got {type(arguments).__name__}")
        if function is None and arguments:
            raise ValueError(
                f"{name}_args must be empty without {name}, got {len(arguments)} arguments"
            )
        for i, x in enumerate(arguments):
            _check_argument(f"{name}_args[{i}]", x, facts(q))
    if mask is None and score is None:
        return None
    return as_functions(options, alibi_slopes, mask, mask_args, score, score_args)


def as_functions(
    options, alibi_slopes, mask=None, mask_args=(), score=None, score_args=()
) -> Given:
    """The functions of a call, if any, with its options among them; as for `check_expressions`."""
    slopes = alibi_slopes if options.alibi else None
    options = options.causal, options.window_size, options.softcap, slopes
    return given.given(mask, tuple(mask_args), score, tuple(score_args), options)


def as_options(given, options, score, score_args) -> Mask | None:
    """The options that say the same as the user's functions and `options`; None if there are none.

    Parameters
    ----------
    given : Given or None
        Of `check_expressions`, for these options.
    options : Mask
    score, score_args
        As the launcher got them.
    """
    if given is None:
        return None
    window = window_of(given.expressions.mask, given.arguments)
    softcap = _whole_softcap(given, options, score, score_args)
    if window is None or softcap is None:
        return None
    causal = window == (-1, 0)
    return Mask(causal, (-1, -1) if causal else window, softcap, options.alibi)


def apart_from_cap(given, options, score, score_args) -> tuple:
    """The user's functions without a softcap that is all of the score, and this softcap or 0.

    Parameters are those of `as_options`.
    """
    softcap = None if options.alibi else _whole_softcap(given, options, score, score_args)
    if not softcap or given.expressions.mask is None:
        return given, 0.0
    return given._replace(expressions=given.expressions._replace(score=None)), softcap


def _whole_softcap(given, options, score, score_args):
    """The softcap that is all of a call's score but ALiBi, 0 for none; None for another score."""
    if score is None:
        return options.softcap
    if options.softcap or options.alibi or len(score_args):
        return None
    return softcap_of(given.expressions.score)


def _check_argument(name, x, q):
    if isinstance(x, (bool, np.bool_, numbers.Real)):
        is_int = isinstance(x, numbers.Integral)
        if is_int and not INT32.min <= x <= INT32.max:
            raise ValueError(f"{name} must fit 32 bits, got {x}")
        return
    found = facts(x)
    require_one_library(**{"q": q, name: found})
    if found.library == "numpy" and x.dtype.kind in "iu" and x.dtype != "int32" and x.size:
        least, most = x.min(), x.max()  # numbers on a GPU are not looked at: that would wait
        if least < INT32.min or most > INT32.max:
            raise ValueError(f"{name} must have numbers that fit 32 bits, got {least} to {most}")


def check_axes_of_arguments(given, most):
    """Raise unless each array of the user's has at most so many axes."""
    for i, x in enumerate(given.arguments):
        if np.ndim(x) > most:
            first = given.num_mask_args
            name = f"mask_args[{i}]" if i < first else f"score_args[{i - first}]"
            raise ValueError(f"{name} must have at most {most} axes, got {x.ndim}")


def check_sums_of_arguments(tasks, size, most):
    """Raise unless there is room for the gradients of `size` numbers in score_args."""
    if tasks * size > most:
        raise ValueError(
            f"score_args_grad must be False for arrays of so many numbers: each of {tasks} tasks "
            f"has {size} sums, and at most {most} fit"
        )


def check_score_args_grad(q, score_args_grad, deterministic) -> bool:
    """Return the flag, for GPU arrays: there the gradients have other bits in each run."""
    score_args_grad = check_flag("score_args_grad", score_args_grad)
    if score_args_grad and deterministic and facts(q).library != "numpy":
        raise ValueError(
            "deterministic must be False with score_args_grad on a GPU, where thread blocks add to "
            "the gradients of score_args in any order, got True"
        )
    return score_args_grad


def check_sinks(q, sinks) -> tuple:
    """Return the sinks as float32, or a scalar that kernels do not read; and whether there are."""
    if sinks is None:
        return NO_SINKS, False
    q, found = facts(q), facts(sinks)
    require_one_library(q=q, sinks=found)
    if found.dtype not in FLOATS:
        raise TypeError(f"sinks must be float32, float16 or bfloat16, got {found.dtype}")
    require_axes("sinks", found, ("num_heads",))
    require_one_for_each("sinks", found, "one number", q.shape[-2], "heads of q")
    return arrays.astype(sinks, np.dtype(np.float32)), True
