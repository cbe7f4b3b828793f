"""Memory of the second gear: loads and stores that check indices and watch for races.

The rules are those of `race_rules`. Blocks run in turn, and in a block the threads between two
barriers do. So one number says when an access was made and by whom:

    interval * STRIDE + thread      the present thread's: `now`; thread 0's: `base`

where intervals are counted through the launch, and `first` is that of the block's first interval.
An earlier access from `first` on and before `base` lies before a barrier: it is ordered. Another
one from `base` on is another thread's of this interval, one before `first` another block's: they
are not. A shadow has for each element such a number for the last store, the last load and the
last atomic; where several are unordered, SEVERAL or OTHER_BLOCKS stands for them. In shared memory,
which begins anew with each block, a load that finds a store before `first` reads what nobody wrote.

A flag says that the engine must look: it may be too much, never too little. All of it is computed
without branches, which a load would pay for ten times over.
"""

from collections import namedtuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

from .dtypes import INT64
from .native import I64, better, checked_convert, convert, dtype_of, flags_of, raise_flag, refuse

STRIDE = 4096
VARIED = 1024  # added to a store: not the first value that was stored there
SEVERAL = 2048  # added to `base`: several threads of this interval
OTHER_BLOCKS = 0
NEVER = 1 << 58  # in global memory; in shared memory it is what an earlier block left
OPERATIONS = {"add": 0, "sub": 0, "max": 1, "min": 2, "and_": 3, "or_": 4, "xor": 5}
OPERATION_BITS = 3  # of an atomic's number: two of different operations do not commute

UNWRITTEN = 0xAA  # each byte of a local array at first: an element of it was hardly ever stored

# Arrays as the compiled code sees them; a shadow is (elements, 2 or, with atomics, 3).
Plain = namedtuple("Plain", "data")  # nobody stores there
Local = namedtuple("Local", "data")
Global = namedtuple("Global", "data shadow")
GlobalAtomic = namedtuple("GlobalAtomic", "data shadow")
Shared = namedtuple("Shared", "data shadow")
SharedAtomic = namedtuple("SharedAtomic", "data shadow")
KINDS = Plain, Local, Global, GlobalAtomic, Shared, SharedAtomic
# What a thread is, the first parameter of what is compiled.
CONTEXT = "flags first base now tx ty tz bx by bz bdx bdy bdz gdx gdy gdz".split()


class Access:
    """Builds one access."""

    def __init__(self, context, builder, types_, args):
        self.context, self.builder = context, builder
        array, index = types_[1:3]
        self.first, self.base, self.now = (builder.extract_value(args[0], n) for n in (1, 2, 3))
        self.flags = flags_of(builder, args[0])
        self.kind = array.instance_class
        self.is_global = self.kind in (Global, GlobalAtomic)
        self.type = array.types[0]
        self.array = context.make_array(self.type)(
            context, builder, builder.extract_value(args[1], 0)
        )
        self.bad = ir.Constant(ir.IntType(1), 0)
        parts = index if isinstance(index, types.BaseTuple) else None
        values = [args[2]] if parts is None else cgutils.unpack_tuple(builder, args[2], len(parts))
        dtypes = map(dtype_of, [index] if parts is None else parts)
        self.locate([convert(builder, v, d, INT64) for v, d in zip(values, dtypes, strict=True)])
        if self.kind not in (Plain, Local):
            self.shadow_cells(array.types[1], builder.extract_value(args[1], 1))

    def locate(self, indices):
        b = self.builder
        shape = cgutils.unpack_tuple(b, self.array.shape, self.type.ndim)
        strides = cgutils.unpack_tuple(b, self.array.strides, self.type.ndim)
        good = [b.icmp_unsigned("<", i, n) for i, n in zip(indices, shape, strict=True)]
        for one in good:
            self.bad = b.or_(self.bad, b.not_(one))
        inside = b.not_(self.bad)
        indices = [b.select(inside, i, I64(0)) for i in indices]
        self.pointer = cgutils.get_item_pointer2(
            self.context, b, self.array.data, shape, strides, self.type.layout, indices
        )
        self.number = I64(0)
        for i, n in zip(indices, shape, strict=True):
            self.number = b.add(b.mul(self.number, n), i)

    def shadow_cells(self, type_, value):
        b = self.builder
        data = self.context.make_array(type_)(self.context, b, value).data
        words = 3 if self.kind in (GlobalAtomic, SharedAtomic) else 2
        start = b.mul(self.number, I64(words))
        cells = [b.gep(data, [b.add(start, I64(i))]) for i in range(words)]
        (self.w_cell, self.r_cell), self.a_cell = cells[:2], (cells[2] if words == 3 else None)
        self.w, self.r = b.load(self.w_cell), b.load(self.r_cell)
        self.a = None if words == 2 else b.ashr(b.load(self.a_cell), I64(OPERATION_BITS))

    def load_item(self):
        from numba.np import arrayobj  # late: it takes long, and kept machine code needs none of it

        return arrayobj.load_item(self.context, self.builder, self.type, self.pointer)

    def store_item(self, value):
        from numba.np import arrayobj

        arrayobj.store_item(self.context, self.builder, self.type, value, self.pointer)

    # ------------------------------------------------------------------ the rules

    def any(self, *tests):
        for test in tests:
            if test is not None:
                self.bad = self.builder.or_(self.bad, test)

    def in_interval(self, earlier):
        distance = self.builder.sub(earlier, self.base)
        return self.builder.icmp_unsigned("<", distance, I64(STRIDE))

    def by_another(self, earlier):
        """Tell whether another thread made an access in this interval."""
        b = self.builder
        who = b.and_(earlier, I64(~VARIED))
        return b.and_(self.in_interval(earlier), b.icmp_signed("!=", who, self.now))

    def before_block(self, earlier):
        return self.builder.icmp_signed("<", earlier, self.first)

    def unordered(self, earlier):
        """Tell whether an earlier access is not ordered before the present one."""
        if earlier is None:
            return None
        if not self.is_global:
            return self.by_another(earlier)
        return self.builder.or_(self.by_another(earlier), self.before_block(earlier))

    def joined(self, earlier, now):
        """Return what the shadow keeps of an earlier access and the present one."""
        b = self.builder
        several = b.add(self.base, I64(SEVERAL))
        kept = b.select(self.by_another(earlier), several, now)
        if self.is_global:
            kept = b.select(self.before_block(earlier), I64(OTHER_BLOCKS), kept)
        return kept

    def done(self):
        raise_flag(self.builder, self.flags, self.bad)

    def load(self):
        if self.kind is Local:
            bits = as_bits(self.builder, self.builder.load(self.pointer))
            unwritten = int.from_bytes([UNWRITTEN] * (bits.type.width // 8))
            self.any(self.builder.icmp_unsigned("==", bits, ir.Constant(bits.type, unwritten)))
        elif self.kind is not Plain:
            self.any(self.unordered(self.w), self.unordered(self.a))
            if not self.is_global:
                self.any(self.before_block(self.w))  # nobody wrote it
            self.builder.store(self.joined(self.r, self.now), self.r_cell)
        self.done()
        return self.load_item()

    def store(self, value):
        b = self.builder
        if self.kind not in (Plain, Local):
            old, new = as_bits(b, self.load_item()), as_bits(b, value)
            differs = b.icmp_signed("!=", old, new)
            here = self.in_interval(self.w)
            if self.is_global:
                here = b.icmp_signed("!=", self.w, I64(NEVER))
            varied = b.icmp_signed("!=", b.and_(self.w, I64(VARIED)), I64(0))
            varied = b.and_(here, b.or_(varied, differs))
            self.any(b.and_(self.unordered(self.w), varied))
            self.any(self.unordered(self.r), self.unordered(self.a))
            now = b.or_(self.now, b.select(varied, I64(VARIED), I64(0)))
            b.store(self.joined(self.w, now), self.w_cell)
        self.done()
        self.store_item(value)

    def atomic(self, name, value, dtype):
        b, operation = self.builder, I64(OPERATIONS[name])
        self.any(self.unordered(self.w), self.unordered(self.r))
        if not self.is_global:
            self.any(self.before_block(self.w))
        other = b.and_(b.load(self.a_cell), I64((1 << OPERATION_BITS) - 1))
        differs = b.icmp_signed("!=", other, operation)
        self.any(b.and_(self.unordered(self.a), differs))
        kept = b.shl(self.joined(self.a, self.now), I64(OPERATION_BITS))
        b.store(b.or_(kept, operation), self.a_cell)
        self.done()
        old = self.load_item()
        if name in ("max", "min"):
            new = better(b, dtype, value, old, ">" if name == "max" else "<")
        else:
            new = getattr(b, name)(old, value)
        self.store_item(new)


def as_bits(builder, value):
    if isinstance(value.type, ir.IntType):
        return value
    bits = ir.IntType(32 if isinstance(value.type, ir.FloatType) else 64)
    return builder.bitcast(value, bits)


def check_access(array, index):
    """Refuse what is no array of ours, or not one element of it."""
    ours = isinstance(array, types.BaseNamedTuple) and array.instance_class in KINDS
    refuse(not ours, f"{array} is no array")
    refuse(not isinstance(array.types[0], types.Array), f"{array} is no array")
    dtype_of(array.types[0].dtype)
    count = len(index) if isinstance(index, types.BaseTuple) else 1
    refuse(count != array.types[0].ndim, "a part of an array")
    for part in index if isinstance(index, types.BaseTuple) else [index]:
        refuse(dtype_of(part).kind not in "iub", "an index that is no integer")


@intrinsic
def load(typing, c, array, index):
    """x[i, j]"""
    check_access(array, index)

    def generate(context, builder, signature, args):
        return Access(context, builder, signature.args, args).load()

    return array.types[0].dtype(c, array, index), generate


@intrinsic
def store(typing, c, array, index, value):
    """x[i, j] = value"""
    check_access(array, index)
    old, new = dtype_of(value), dtype_of(array.types[0].dtype)

    def generate(context, builder, signature, args):
        access = Access(context, builder, signature.args, args)
        access.store(checked_convert(builder, args[3], old, new, access.flags))
        return context.get_dummy_value()

    return types.none(c, array, index, value), generate


def atomic(name):
    @intrinsic
    def operation(typing, c, array, index, value):
        """cuda.atomic.name(x, i, value), in a statement of its own"""
        check_access(array, index)
        refuse(array.instance_class not in (GlobalAtomic, SharedAtomic), "no array of all threads")
        old, new = dtype_of(value), dtype_of(array.types[0].dtype)
        refuse(new.itemsize < 4, "atomics on less than 32 bits")
        refuse(new.kind == "f" and name not in ("max", "min"), "a sum that depends on its order")

        def generate(context, builder, signature, args):
            access = Access(context, builder, signature.args, args)
            value = checked_convert(builder, args[3], old, new, access.flags)
            access.atomic(name, value, new)
            return context.get_dummy_value()

        return types.none(c, array, index, value), generate

    return operation


@intrinsic
def data(typing, array):
    """The NumPy array inside, for its shape."""
    ours = isinstance(array, types.BaseNamedTuple) and array.instance_class in KINDS
    refuse(not ours, f"{array} is no array")

    def generate(context, builder, signature, args):
        inside = builder.extract_value(args[0], 0)
        return impl_ret_borrowed(context, builder, array.types[0], inside)

    return array.types[0](array), generate


@intrinsic
def stopped(typing, flags):
    """Tell whether something was flagged, or the launch is to be given up; flags: an address."""

    def generate(context, builder, signature, args):
        flags = builder.inttoptr(args[0], I64.as_pointer())
        value = builder.load_atomic(flags, "monotonic", 8)  # the host may write it
        return builder.icmp_signed("!=", value, I64(0))

    return types.boolean(flags), generate


@intrinsic
def flag_if(typing, c, bad):
    def generate(context, builder, signature, args):
        raise_flag(builder, flags_of(builder, args[0]), args[1])
        return context.get_dummy_value()

    return types.none(c, bad), generate


ATOMICS = {name: atomic(name) for name in OPERATIONS}


def new_shadow(size, atomics, shared):
    """Return the shadow of an array in which nothing has happened."""
    shadow = np.full((size, 3 if atomics else 2), 0 if shared else NEVER, np.int64)
    if atomics and not shared:
        shadow[:, 2] <<= OPERATION_BITS
    return shadow
