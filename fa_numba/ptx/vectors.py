"""Loads and stores of 4 to 16 bytes, atomic additions, bulk copies of rows, halves of registers.

load_global_*, store_global_*     global memory: 4 or 16 bytes; relaxed, beside atomic additions
atomic_add, atomic_add_x4         red: add one or four float32 to global memory
load_shared_*, store_shared_*     shared memory: 4, 8 or 16 bytes, or 16 bytes of zeros
bulk_load                         cp.async.bulk: a row of any length to shared memory, by TMA
unpack_*, low_halves, high_halves   16-bit halves of registers as float32, or rearranged (prmt)

A warp's load of 16 bytes by each lane puts 512 bytes in flight with one instruction.
load_global_b128 and load_global_b32 read through the path of read-only data, so no thread may write
to these addresses while the kernel runs. They give no cache hint: data that is read once need not
stay in L1, but L1::no_allocate marks it as the first to be evicted from L2, too. When L2 held data
written before, an H200 then read fewer bytes per second (docs/notes/decoding.md).

PTX ISA: "Data movement and conversion instructions: ld, ld.global.nc, st, prmt, cp.async.bulk";
"Parallel synchronization and communication instructions: red".
"""

from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba.ptx.statement import read, statement, written


@intrinsic
def load_global_x4(typingctx, x, address):
    """Load 16 bytes."""
    return statement("ld.global.v4.b32 <x>, [<address>];", x=written(x, 4), address=types.uint64)


@intrinsic
def store_global_x4(typingctx, address, x):
    """Store 16 bytes."""
    return statement("st.global.v4.b32 [<address>], <x>;", address=types.uint64, x=read(x, 4))


@intrinsic
def store_global_b32(typingctx, address, x):
    """Store 4 bytes."""
    return statement("st.global.b32 [<address>], <x>;", address=types.uint64, x=types.uint32)


@intrinsic
def load_global_x4_relaxed(typingctx, x, address):
    """Load 16 bytes from L2, where atomic additions are performed, never from an SM's L1."""
    return statement(
        "ld.relaxed.gpu.global.v4.b32 <x>, [<address>];", x=written(x, 4), address=types.uint64
    )


@intrinsic
def store_global_x4_relaxed(typingctx, address, x):
    """Store four float32 before atomic additions to them."""
    return statement(
        "st.relaxed.gpu.global.v4.b32 [<address>], <x>;", address=types.uint64, x=read(x, 4)
    )


@intrinsic
def atomic_add_x4(typingctx, address, x):
    """Add four neighbouring float32 to memory, each atomically, without waiting (sm_90)."""
    return statement(
        "red.relaxed.gpu.global.add.v4.f32 [<address>], <x>;", address=types.uint64, x=read(x, 4)
    )


@intrinsic
def load_shared_x2(typingctx, x, address):
    """Load two neighbouring float32."""
    return statement("ld.shared.v2.f32 <x>, [<address>];", x=written(x, 2), address=types.uint32)


@intrinsic
def load_shared_x4(typingctx, x, address):
    """Load four neighbouring float32."""
    return statement("ld.shared.v4.f32 <x>, [<address>];", x=written(x, 4), address=types.uint32)


@intrinsic
def store_shared_x4(typingctx, address, x):
    """Store four neighbouring float32."""
    return statement("st.shared.v4.f32 [<address>], <x>;", address=types.uint32, x=read(x, 4))


@intrinsic
def load_shared_b64(typingctx, address):
    """Load 8 bytes."""
    return statement(
        "ld.shared.b64 <result>, [<address>];", result=types.uint64, address=types.uint32
    )


@intrinsic
def store_shared_b64(typingctx, address, x):
    """Store 8 bytes."""
    return statement("st.shared.b64 [<address>], <x>;", address=types.uint32, x=types.uint64)


@intrinsic
def load_shared_b32(typingctx, address):
    """Load 4 bytes."""
    return statement(
        "ld.shared.b32 <result>, [<address>];", result=types.uint32, address=types.uint32
    )


@intrinsic
def bulk_load(typingctx, destination, source, num_bytes, barrier):
    """Start a copy of neighbouring bytes to shared memory, by TMA (sm_90).

    Both addresses and `num_bytes` are multiples of 16; `barrier` is the mbarrier that counts them.
    """
    return statement(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[<destination>], [<source>], <num_bytes>, [<barrier>];",
        destination=types.uint32,
        source=types.uint64,
        num_bytes=types.uint32,
        barrier=types.uint32,
    )


@intrinsic
def unpack_f16x2(typingctx, x, two):
    """The two float16 in one register, as float32, the low half first."""
    text = (
        "{ .reg .b16 low, high; mov.b32 {low, high}, <two>; "
        "cvt.f32.f16 <x0>, low; cvt.f32.f16 <x1>, high; }"
    )
    return _unpack(text, x)


@intrinsic
def unpack_bf16x2(typingctx, x, two):
    """The two bfloat16 in one register, as float32: their bits are a float32's upper half."""
    return _unpack("{ shl.b32 <x0>, <two>, 16; and.b32 <x1>, <two>, 0xFFFF0000; }", x)


def _unpack(text, x):
    text = text.replace("<x0>", "$0").replace("<x1>", "$1")
    return statement(text, pure=True, x=written(x, 2), two=types.uint32)


@intrinsic
def atomic_add(typingctx, address, x):
    """Add a float32 to memory, atomically, without waiting."""
    return statement(
        "red.relaxed.gpu.global.add.f32 [<address>], <x>;", address=types.uint64, x=types.float32
    )


@intrinsic
def store_shared_b32(typingctx, address, x):
    """Store 4 bytes."""
    return statement("st.shared.b32 [<address>], <x>;", address=types.uint32, x=types.uint32)


@intrinsic
def max_f16x2(typingctx, x, y):
    """The larger float16 in each half of two registers; a number if the other one is NaN."""
    return _max("f16x2")


@intrinsic
def max_bf16x2(typingctx, x, y):
    """The larger bfloat16 in each half of two registers; a number if the other one is NaN."""
    return _max("bf16x2")


def _max(kind):
    text = f"max.{kind} <result>, <x>, <y>;"
    return statement(text, result=types.uint32, pure=True, x=types.uint32, y=types.uint32)


@intrinsic
def load_global_b128(typingctx, registers, address):
    """Load 16 bytes that no thread writes while the kernel runs."""
    kind = "f32" if registers.dtype == types.float32 else "b32"
    return statement(
        f"ld.global.nc.v4.{kind} <registers>, [<address>];",
        registers=written(registers, 4),
        address=types.uint64,
    )


@intrinsic
def load_global_u16(typingctx, address):
    """Load 2 bytes that no thread writes while the kernel runs, as a uint32."""
    return statement(
        "ld.global.nc.u16 <result>, [<address>];", result=types.uint32, address=types.uint64
    )


@intrinsic
def load_global_b32(typingctx, address):
    """Load 4 bytes that no thread writes while the kernel runs."""
    return statement(
        "ld.global.nc.b32 <result>, [<address>];", result=types.uint32, address=types.uint64
    )


@intrinsic
def low_halves(typingctx, x, y):
    """The low 16 bits of x in the low half, those of y in the high half."""
    return _halves("0x5410")


@intrinsic
def high_halves(typingctx, x, y):
    """The high 16 bits of x in the low half, those of y in the high half."""
    return _halves("0x7632")


def _halves(selector):
    return statement(
        f"prmt.b32 <result>, <x>, <y>, {selector};",
        result=types.uint32,
        pure=True,
        x=types.uint32,
        y=types.uint32,
    )
