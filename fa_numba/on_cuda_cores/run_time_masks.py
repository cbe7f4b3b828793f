"""Masks whose numbers are arguments of a kernel: another window or softcap compiles nothing anew.

A factory of `masks` takes a window and a softcap as compile-time constants. These here take
AT_RUN_TIME in place of a number, and then the device functions read it from `mask_args`, the
kernel's `MaskArgs`. Whether a window or a softcap is on remains a compile-time constant. A factory
that gets a number compiles it, and its functions do not read mask_args.

A kernel's arguments are in constant memory: reading one takes no register and no instruction of its
own.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from fa_numba.constants import LN2, LOG2_E, ZERO
from fa_numba.kernels import masks

AT_RUN_TIME = 1 << 29  # as a side of a window, or as a softcap of at least `least_cap`
SMALL_AT_RUN_TIME = 1e-9  # as a softcap below `least_cap`
LARGEST = float(np.finfo(np.float32).max)
LONGEST = 1 << 29  # a side of a window that sees everything: int32 positions do not overflow


class MaskArgs(NamedTuple):
    """Arguments of a kernel: the sides of a window; softcap · log2 e, and its reciprocal.

    Those of a side or of a softcap that is off, or a compile-time constant, are not read.
    """

    left: Any
    right: Any
    unit: Any
    inverse_unit: Any


UNREAD = MaskArgs(np.int32(0), np.int32(0), ZERO, ZERO)


def constants_of(mask, least_cap=0.0):
    """The `Mask` with AT_RUN_TIME in place of its numbers: the compile-time constants of a kernel.

    A window whose right side is 0 ends at the diagonal: 0 remains a constant, as causal is one.
    """
    left, right = mask.window_size
    window_size = AT_RUN_TIME if left >= 0 else -1, AT_RUN_TIME if right > 0 else right
    softcap = mask.softcap
    if softcap > 0:
        softcap = float(AT_RUN_TIME) if softcap >= least_cap else SMALL_AT_RUN_TIME
    return mask._replace(window_size=window_size, softcap=softcap)


def arguments_of(mask):
    """The `MaskArgs` of a mask, scalars that a kernel takes."""
    left, right = (np.int32(min(side, LONGEST)) for side in mask.window_size)
    unit = min(mask.softcap * math.log2(math.e), LARGEST)
    inverse_unit = min(1 / unit, LARGEST) if unit > 0 else 0
    return MaskArgs(left, right, np.float32(unit), np.float32(inverse_unit))


@functools.cache
def make_bounds(CAUSAL, WINDOW):
    """The `masks.KeyBounds` of a mask; each function takes mask_args last."""
    left, right = WINDOW
    return masks.KeyBounds(*_make_bounds(left, 0 if CAUSAL else right, False))


@functools.cache
def make_bounds_of_keys(CAUSAL, WINDOW):
    """The `masks.QueryBounds` of a mask; each function takes mask_args last."""
    left, right = WINDOW
    return masks.QueryBounds(*_make_bounds(0 if CAUSAL else right, left, True))


def _make_bounds(BEFORE, AFTER, EXCHANGED):
    """first, end, sees of `masks`; EXCHANGED: the right side of the window comes before."""

    @cuda.jit(device=True, forceinline=True)
    def before(mask_args):
        if BEFORE != AT_RUN_TIME:
            return BEFORE
        return mask_args.right if EXCHANGED else mask_args.left

    @cuda.jit(device=True, forceinline=True)
    def after(mask_args):
        if AFTER != AT_RUN_TIME:
            return AFTER
        return mask_args.left if EXCHANGED else mask_args.right

    @cuda.jit(device=True, forceinline=True)
    def first(position, mask_args):
        return max(0, position - before(mask_args)) if BEFORE >= 0 else 0

    @cuda.jit(device=True, forceinline=True)
    def end(position, seqlen, mask_args):
        return min(seqlen, position + after(mask_args) + 1) if AFTER >= 0 else seqlen

    @cuda.jit(device=True, forceinline=True)
    def sees(position, n, seqlen, mask_args):
        begun = BEFORE < 0 or n >= position - before(mask_args)
        ended = AFTER >= 0 and n > position + after(mask_args)
        return n < seqlen and begun and not ended

    return first, end, sees


def at_run_time(SOFTCAP):
    """True if the softcap is an argument of the kernel."""
    return SOFTCAP in (AT_RUN_TIME, SMALL_AT_RUN_TIME)


@functools.cache
def make_score(SOFTCAP, ALIBI):
    """score(s, distance, slope, mask_args): as of `masks.make_score`."""
    if not at_run_time(SOFTCAP):
        constant_score = masks.make_score(SOFTCAP, ALIBI)

        @cuda.jit(device=True, forceinline=True)
        def score(s, distance, slope, mask_args):
            return constant_score(s, distance, slope)

        return score

    alibi = masks.make_score(0.0, ALIBI)

    @cuda.jit(device=True, forceinline=True)
    def capped_score(s, distance, slope, mask_args):
        s = mask_args.unit * LN2 * math.tanh(s * mask_args.inverse_unit * LOG2_E)
        return alibi(s, distance, slope)

    return capped_score


class Units(NamedTuple):
    """Device functions of `make_units`."""

    unit_of: Any
    angle_of: Any
    over_unit: Any


@functools.cache
def make_units(SOFTCAP):
    """`Units` for a softcap, or for none.

    Returns
    -------
    Units
        unit_of(scale, mask_args)
            Returns softcap · log2 e; without softcap scale.
        angle_of(scale, mask_args)
            Returns scale / (softcap · log2 e).
        over_unit(x, scale, mask_args)
            Returns x / unit_of(scale, mask_args).
    """
    CAPPED, UNIT = SOFTCAP > 0, np.float32(SOFTCAP * LOG2_E)
    AS_ARGUMENT = at_run_time(SOFTCAP)

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def unit_of(scale, mask_args):
        if AS_ARGUMENT:
            return mask_args.unit
        return UNIT if CAPPED else scale

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def angle_of(scale, mask_args):
        return scale * mask_args.inverse_unit if AS_ARGUMENT else scale / UNIT

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def over_unit(x, scale, mask_args):
        if AS_ARGUMENT:
            return x * mask_args.inverse_unit
        return x / (UNIT if CAPPED else scale)

    return Units(unit_of, angle_of, over_unit)
