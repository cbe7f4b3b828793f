"""Compiling with probes: which of Numba's tests are left in the PTX, and on which line.

Numba tests every signed index for being negative, and corrects every signed division, because
Python wants it so. The compiler drops a test where it can prove the number not negative. To see
which tests remain, a probe is attached to the value that only the corrected case uses: a move in
inline PTX without side effects, with a number in a comment. If the case cannot happen, the move is
dead code and disappears; if the PTX still has the move, it still has the test.
"""

import re
from pathlib import Path
from unittest import mock

from numba import types

from fa_numba.analysis.machine_code import compile_with_lines


def surviving_tests(kernel, args, cc):
    """Lines whose tests for a negative number the compilers could not drop.

    Returns
    -------
    negative_indices : set of (file name, line)
        Where an index is tested for being negative.
    signed_divisions : set of (file name, line)
        Where a quotient or remainder is corrected for a negative operand.
    """
    from numba.cuda.cpython import numbers
    from numba.cuda.np import arrayobj

    probes, fix_index = _Probes(), arrayobj.fix_integer_index

    def fix_index_probed(context, builder, idxty, idx, size):
        if idxty.signed:
            size = probes.hang(builder, size, "index")
        return fix_index(context, builder, idxty, idx, size)

    def divmod_probed(context, builder, ty, x, y):
        # As Numba's own, without a test for overflow that a constant divisor never needs.
        quotient, remainder = builder.sdiv(x, y), builder.srem(x, y)
        zero, one = y.type(0), y.type(1)
        wrong = builder.and_(
            builder.icmp_signed("!=", remainder, zero),
            builder.icmp_signed("<", builder.xor(y, remainder), zero),
        )
        less = builder.sub(quotient, probes.hang(builder, one, "division"))
        more = builder.add(remainder, probes.hang(builder, y, "division"))
        return builder.select(wrong, less, quotient), builder.select(wrong, more, remainder)

    with (
        mock.patch.object(arrayobj, "fix_integer_index", fix_index_probed),
        mock.patch.object(numbers, "int_divmod_signed", divmod_probed),
    ):
        ptx, _ = compile_with_lines(kernel, args, cc=cc)
    return probes.found(ptx, "index"), probes.found(ptx, "division")


def surviving_divisions(kernel, args, cc):
    """Lines whose integer quotients or remainders are computed and used, as (file name, line).

    The PTX alone is not enough: the compiler drops the line of a 64-bit division when it adds a
    32-bit one beside it.
    """
    from numba.cuda.cpython import numbers

    probes, divmod_ = _Probes(), numbers.int_divmod

    def divmod_probed(context, builder, ty, x, y):
        return [probes.hang(builder, v, "used") for v in divmod_(context, builder, ty, x, y)]

    with mock.patch.object(numbers, "int_divmod", divmod_probed):
        ptx, _ = compile_with_lines(kernel, args, cc=cc)
    return probes.found(ptx, "used")


class _Probes:
    """Hangs probes on values while Numba lowers a kernel, and finds them again in its PTX."""

    def __init__(self):
        self.lines = []

    def hang(self, builder, value, kind):
        from llvmlite import ir as llvm

        register = {16: "h", 32: "r", 64: "l"}.get(value.type.width)
        location = builder.debug_metadata
        if register is None or location is None:  # not in a function that has line numbers
            return value
        self.lines.append(_line_of(location))
        return builder.asm(
            llvm.FunctionType(value.type, [value.type]),
            f"mov.b{value.type.width} $0, $1; // probe {kind} {len(self.lines) - 1}",
            f"={register},{register}",
            [value],
            False,  # no side effect: it disappears with its last use
        )

    def found(self, ptx, kind):
        return {self.lines[int(n)] for n in re.findall(rf"// probe {kind} (\d+)", ptx)}


def compile_without_index_tests(kernel, args, cc):
    """PTX of the kernel without tests for negative indices, to see their cost."""
    from numba.cuda.np import arrayobj

    def untested(context, builder, idxty, idx, size):
        return context.cast(builder, idx, idxty, types.intp)

    with mock.patch.object(arrayobj, "fix_integer_index", untested):
        return compile_with_lines(kernel, args, cc=cc)[0]


def _line_of(location):
    """(File name, line) of a DILocation."""
    fields = dict(location.operands)
    scope = fields["scope"]
    while "file" not in dict(scope.operands):
        scope = dict(scope.operands)["scope"]
    file = dict(dict(scope.operands)["file"].operands)["filename"]
    return Path(str(file)).name, fields["line"]
