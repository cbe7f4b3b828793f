"""Explicit signatures, @cuda.jit("void(float32[:], int32)"): what arguments and results become.

A kernel with one signature takes what it is given as the types that the signature names, without
a look at them; one with several takes the signature that fits best, as Numba's dispatcher does.
Here numbers are converted too, but an array of another type, whose bytes a GPU would misread, is
refused.
"""

import operator

import numpy as np
from numba import from_dtype, types

from .arrays import GlobalArray, LaneArray
from .dtypes import cast, numpy_dtype
from .errors import SignatureError
from .lanes import like, type_name

try:
    from numba.cuda.core.sigutils import normalize_signature
except ImportError:  # Numba's own cuda
    from numba.core.sigutils import normalize_signature

NUMBERS = types.Number, types.Boolean


class Signature:
    """One signature: the types of the arguments, and of the result where it is given."""

    def __init__(self, args, result=None):
        self.args, self.result = tuple(args), result

    def __str__(self):
        return f"({', '.join(map(type_words, self.args))})"


def parsed_signatures(given, device):
    """Return the Signatures that cuda.jit is given: a string, types, or a list of these."""
    found = []
    for signature in given if isinstance(given, list) else [given]:
        args, result = normalize_signature(numbas(signature))
        if result not in (None, types.void) and not device:
            raise TypeError("CUDA kernel must have void return type.")
        found.append(Signature(args, result))
    return tuple(found)


def numbas(given):
    """Return a type or signature of numba-cuda-mlir, or several, as Numba's; others as they are."""
    if isinstance(given, tuple):
        return tuple(map(numbas, given))
    if not type(given).__module__.startswith("numba_cuda_mlir"):
        return given
    if hasattr(given, "return_type"):
        return numbas(given.return_type)(*map(numbas, given.args))
    if hasattr(given, "ndim"):
        return types.Array(numbas(given.dtype), given.ndim, given.layout)
    return getattr(types, str(given), given)


def signatures_of(kernel):
    """Return the Signatures that a kernel or device function was decorated with."""
    noted = getattr(kernel, "_simt_signatures", None)
    if noted is None and getattr(kernel, "_can_compile", True) is False:
        # Compiled by Numba on decoration, where there is a GPU.
        compiled = ((a, getattr(c, "signature", None)) for a, c in kernel.overloads.items())
        noted = tuple(Signature(args, getattr(s, "return_type", None)) for args, s in compiled)
    return noted or ()


def convert_arguments(signatures, name, parameters, values):
    """Return a launch's arguments, lane values and arrays, in the types of the best signature."""
    if not signatures:
        return values
    chosen = best(signatures, name, values)
    for parameter, type_, value in zip(parameters, chosen.args, values, strict=True):
        check(parameter, type_, value, same_bytes)
        whole = types.Integer, types.Boolean
        if isinstance(type_, types.Integer) and not isinstance(numba_type(value), whole):
            raise mismatch(parameter, type_, value)
        if isinstance(value, GlobalArray) and isinstance(type_, types.Array):
            value.take_for(numpy_dtype(type_.dtype))
    return list(map(converted, chosen.args, values))


def convert_call(signatures, name, parameters, values):
    """Return the same of a device function's arguments, and the type of its result or None."""
    chosen = best(signatures, name, values)
    for parameter, type_, value in zip(parameters, chosen.args, values, strict=True):
        check(parameter, type_, value, operator.eq)
    return list(map(converted, chosen.args, values)), chosen.result


def best(signatures, name, values):
    """Return the signature that Numba would choose."""
    if len(signatures) == 1 and len(signatures[0].args) == len(values):
        return signatures[0]
    actual = tuple(map(numba_type, values))
    rated = [(rate(actual, s.args), s) for s in signatures]
    rated = sorted((pair for pair in rated if pair[0]), key=lambda pair: pair[0])
    ours = f"{name}({', '.join(map(type_words, actual))})"
    theirs = " and ".join(map(str, signatures))
    if not rated:
        raise SignatureError(f"{ours} fits none of the signatures {theirs}")
    if len(rated) > 1 and rated[0][0] == rated[1][0]:
        hint = "Convert the arguments, or leave out the signatures."
        raise SignatureError(f"{ours} fits more than one of the signatures {theirs}", hint=hint)
    return rated[0][1]


def rate(actual, formal):
    """Return how many arguments each kind of conversion takes, the worst first; None: no fit."""
    from numba.core.registry import cpu_target  # knows the conversions; takes long to import
    from numba.core.typeconv import Conversion

    if len(actual) != len(formal):
        return None
    kinds = []
    for a, f in zip(actual, formal, strict=True):
        kind = Conversion.exact if a is None else cpu_target.typing_context.can_convert(a, f)
        if kind is None:
            return None
        kinds.append(kind)
    return tuple(map(kinds.count, (Conversion.unsafe, Conversion.safe, Conversion.promote)))


def numba_type(value):
    """Return Numba's type of a lane value or array; None for what has no simple one."""
    if isinstance(value, LaneArray):
        return types.Array(from_dtype(value.dtype), int(value.ndim), value.layout())
    if isinstance(value, tuple):
        parts = tuple(map(numba_type, value))
        return None if None in parts else types.BaseTuple.from_types(parts)
    if value is None:
        return types.none
    if isinstance(value, (bool, int, float)):
        value = np.asarray(value)
    dtype = getattr(value, "dtype", None)
    known = isinstance(dtype, np.dtype) and dtype.kind in "biufc"
    return from_dtype(dtype) if known else None


def check(parameter, type_, value, agree):
    """Refuse an argument that is an array where a number must be, or of another type or shape.

    agree : tells whether elements of one type will do for another.
    """
    actual = numba_type(value)
    if isinstance(type_, types.BaseTuple) and isinstance(value, tuple):
        if len(type_) != len(value):
            raise mismatch(parameter, type_, value)
        for i, part in enumerate(value):
            check(f"{parameter}[{i}]", type_[i], part, agree)
    elif isinstance(type_, types.Array):
        if actual is None:
            return  # records
        same = isinstance(actual, types.Array) and agree(actual.dtype, type_.dtype)
        if not same or actual.ndim != type_.ndim:
            raise mismatch(parameter, type_, value)
        if type_.layout not in ("A", actual.layout) and not value.is_contiguous(type_.layout):
            raise mismatch(parameter, type_, value)
    elif isinstance(type_, NUMBERS) and not isinstance(actual, NUMBERS):
        raise mismatch(parameter, type_, value)


def same_bytes(actual, formal):
    """Tell whether elements of one type can be taken for the other: int32 for uint32."""
    both = isinstance(actual, types.Integer) and isinstance(formal, types.Integer)
    return actual == formal or (both and actual.bitwidth == formal.bitwidth)


def mismatch(parameter, type_, value):
    actual = numba_type(value)
    arrays = isinstance(actual, types.Array) and isinstance(type_, types.Array)
    got = type_name(value) if actual is None else type_words(actual)
    return SignatureError(
        f"argument '{parameter}' must be {type_words(type_)} by the signature, got {got}",
        array=parameter,
        hint="A GPU would take its bytes as they are." if arrays else None,
    )


def converted(type_, value):
    """Return a number in another type, and a tuple of such; anything else as it is."""
    if isinstance(type_, NUMBERS):
        return cast(value, numpy_dtype(type_))
    if isinstance(type_, types.BaseTuple) and isinstance(value, tuple):
        return like(value, [converted(t, v) for t, v in zip(type_, value, strict=True)])
    return value


def type_words(type_):
    """Return a type as it is written in a signature: float32[:, ::1]."""
    if isinstance(type_, types.Array):
        axes = [":"] * type_.ndim
        if type_.layout != "A" and axes:
            axes[0 if type_.layout == "F" else -1] = "::1"
        return f"{type_.dtype}[{', '.join(axes)}]"
    return "an unknown type" if type_ is None else str(type_)
