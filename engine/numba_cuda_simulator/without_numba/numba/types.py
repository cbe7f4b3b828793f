"""Numba's types of numbers: names, and conversions outside of kernels."""

import numpy as np

from numba_cuda_simulator.without_numba.missing import needs_numba


class Type:
    """A type of Numba's; kernels and graders know it by its name."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name

    def __call__(self, *values):
        """Convert a number, as Numba's types do in plain Python."""
        if len(values) != 1 or isinstance(values[0], Type):
            raise needs_numba("a signature")
        return np.dtype(self.name).type(values[0])

    def __getitem__(self, axes):
        raise needs_numba("a signature")


class Number(Type):
    pass


class Integer(Number):
    pass


class Float(Number):
    pass


class Complex(Number):
    pass


class Boolean(Type):
    pass


class Array(Type):
    """An array, to be named to the compiler that is not here."""

    def __init__(self, dtype, ndim, layout, readonly=False, aligned=True):
        super().__init__(f"array({dtype}, {ndim}d, {layout})")
        self.dtype, self.ndim, self.layout, self.mutable = dtype, ndim, layout, not readonly


class BaseTuple(Type):
    pass


boolean = bool_ = b1 = Boolean("bool")
int8, int16, int32, int64 = i1, i2, i4, i8 = [Integer(f"int{8 << n}") for n in range(4)]
uint8, uint16, uint32, uint64 = u1, u2, u4, u8 = [Integer(f"uint{8 << n}") for n in range(4)]
float16, float32, float64 = f2, f4, f8 = [Float(f"float{16 << n}") for n in range(3)]
complex64, complex128 = c8, c16 = Complex("complex64"), Complex("complex128")
intp, uintp = int64, uint64  # of a GPU, whatever this machine has
void = none = Type("none")

__all__ = [name for name, value in list(vars().items()) if isinstance(value, Type)]


def from_dtype(dtype):
    """Return the type of a NumPy dtype."""
    return globals()[np.dtype(dtype).name]
