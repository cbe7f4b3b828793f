"""How a kernel enters the collection: with a launch, and with NumPy's answer where that is easy."""

from dataclasses import dataclass

import numpy as np
from simt_kernels import Launch


@dataclass(frozen=True)
class Case(Launch):
    """A launch and what NumPy says that it must leave in its last arguments.

    `answer(*arguments)` returns one array, or a tuple of arrays, or None where nothing is said.
    Floats may differ from it by `tolerance`, relative and absolute: NumPy sums in another order.
    `oracle` is False where it cannot follow: NumPy's scalars do not shift a uint64 by an int64.
    `rtol` is for the oracle: 0 but for library functions and for atomics on floats.
    """

    answer: object = lambda *arguments: None
    tolerance: float = 1e-5
    oracle: bool = True

    def check_answer(self, arguments):
        want = self.answer(*self.arguments())
        want = () if want is None else want if isinstance(want, tuple) else (want,)
        for got, expected in zip(arguments[len(arguments) - len(want) :], want, strict=True):
            if got.dtype.kind in "fc":
                np.testing.assert_allclose(got, expected, self.tolerance, self.tolerance)
            else:
                np.testing.assert_array_equal(got, expected)


class Family(list):
    """The kernels of one file."""

    def launched(self, grid, block, inputs, **options):
        """Put the kernel below into the family; may be repeated for a second launch."""

        def add(kernel):
            self.append(Case(kernel, grid, block, inputs, **options))
            return kernel

        return add
