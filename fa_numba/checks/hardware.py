"""Checks of arrays against a GPU: its instructions, 16-byte copies, shared memory, registers."""

import math
from dataclasses import dataclass

from fa_numba.checks import attention
from fa_numba.checks.refused import RefusedGpuError, RefusedTypeError, RefusedValueError
from fa_numba.checks.requirements import (
    ANY_HEAD_DIMS,
    MAX_HEAD_DIM,
    MAX_ROW_DIM,
    require_one_library,
)
from fa_numba.checks.values import check_flag, integer
from fa_numba.runtime import arrays
from fa_numba.runtime.arrays import facts
from fa_numba.tiling import register_tiling
from fa_numba.tiling.block_sizes import (
    MAX_THREADS,
    STATIC_SHARED_BYTES,
    kernel_block_sizes,
    shared_bytes,
)

MAX_4X4_HEAD_DIM = 128  # of flash_attn_v2_4x4, by its registers and static shared memory
MAX_BWD_HEAD_DIM = 128  # on tensor cores, other than flash_attn_bwd_wide
MAX_BWD_HEAD_DIM_OVER_V = 192  # of q and k, where v has at most MAX_BWD_HEAD_DIM
# Compute capabilities that have a kernel's instructions: two numbers mean this one or any later
# one, and "a" means this major version alone.
AMPERE = (8, 0)  # mma.sync of 16-bit floats, cp.async
HOPPER = (9, 0, "a")  # wgmma, TMA
FP8_HEAD_DIMS = (64, 128)
# Of gradients above MAX_HEAD_DIM, where these kernels refuse: the jobs, which run on the CPU.
JOBS_ABOVE = {
    "flash_attn_bwd": "flash_attn_grad",
    "flash_attn_varlen_bwd": "flash_attn_varlen_grad",
}


# Tensor cores, forward


@dataclass(frozen=True)
class TensorCores:
    """The requirements of a forward kernel on tensor cores, for `forward_call`.

    Attributes
    ----------
    name : str
        Name of the function, for messages.
    supported : AMPERE or HOPPER
        Compute capabilities that have the kernel's instructions.
    float32 : bool, default=False
        The kernel takes float32; by default float16 and bfloat16.
    max_head_dim : int, default=256
    v_differs : bool, default=False
        v may have a smaller head_dim than q and k.
    cap_apart : bool, default=False
        The kernel has a softcap beside the user's mask.
    """

    name: str
    supported: tuple
    float32: bool = False
    max_head_dim: int = MAX_HEAD_DIM
    v_differs: bool = False
    cap_apart: bool = False

    def check(self, q, k, v):
        """Raise unless the kernel can run on these arrays and on their GPU."""
        check = check_tensor_core_float32 if self.float32 else check_tensor_core
        limits = {"supported": self.supported, "max_head_dim": self.max_head_dim}
        check(q, k, v, name=self.name, **limits, v_differs=self.v_differs)
        check_aligned(q=q, k=k, v=v)


def check_tensor_core(
    q,
    k,
    v,
    *,
    name,
    supported,
    max_head_dim,
    instead="flash_attn_v2",
    tensor_maps=None,
    v_differs=False,
):
    """Raise unless the 16-bit tensor-core kernel `name` can run on these arrays and their GPU.

    Parameters
    ----------
    q, k, v : arrays
    name : str
        Name of the function, for messages.
    supported : AMPERE or HOPPER
    max_head_dim : int
    instead : str
        Name of a function that computes the same on any GPU, for messages.
    tensor_maps : bool, default=whether `supported` is HOPPER
        The kernel copies q, k and v by tensor maps, which have no negative strides.
    v_differs : bool, default=False
        v may have a smaller head_dim than q and k.
    """
    q, k, v = facts(q), facts(k), facts(v)
    require_one_library(q=q, k=k, v=v)
    _require_gpu_arrays("q, k, v", q, name, instead)
    attention.check_qkv(q, k, v, head_dims=ANY_HEAD_DIMS)
    named = {"q": q, "k": k, "v": v}
    _require_16_bit_rows(named, name, supported, max_head_dim, instead, v_differs)
    if supported == HOPPER if tensor_maps is None else tensor_maps:
        _require_no_negative_strides(name, **named)


def check_tensor_core_padded(q, k, v, *, name, supported, max_head_dim, instead="flash_attn_v2"):
    """Raise unless the function `name` can copy these 16-bit arrays and run on their GPU.

    It copies them to rows that a tensor map can describe, so any head_dim and strides will do.
    """
    q, k, v = facts(q), facts(k), facts(v)
    require_one_library(q=q, k=k, v=v)
    _require_gpu_arrays("q, k, v", q, name, instead)
    attention.check_qkv(q, k, v, head_dims=ANY_HEAD_DIMS)
    _require_16_bits({"q": q, "k": k, "v": v}, name)
    if q.shape[3] > max_head_dim:
        raise RefusedValueError(
            f"q must have a head_dim up to {max_head_dim} for {name}, got {q.shape[3]}"
        )
    _require_one_head_dim(q, v, name)
    _require_capability(supported, q, name, instead)


def check_tensor_core_float32(
    q,
    k,
    v,
    *,
    name,
    supported,
    max_head_dim=MAX_HEAD_DIM,
    instead="flash_attn_registers",
    v_differs=False,
):
    """Raise unless the float32 tensor-core kernel `name` can run on these arrays and their GPU.

    Its head_dim is a multiple of 4, so that a row is a multiple of 16 bytes.
    """
    q, k, v = facts(q), facts(k), facts(v)
    require_one_library(q=q, k=k, v=v)
    _require_gpu_arrays("q, k, v", q, name, instead)
    attention.check_qkv(q, k, v, head_dims=ANY_HEAD_DIMS)
    named = {"q": q, "k": k, "v": v}
    _require_float32(named, name)
    _require_rows(named, name, supported, max_head_dim, instead, 4, v_differs)


def check_fp8(q):
    """Raise unless a Hadamard matrix of FP8 has the size of q's rows.

    `check_tensor_core` has let q pass before.
    """
    if q.shape[3] not in FP8_HEAD_DIMS:
        raise RefusedValueError(
            f"q must have a head_dim of {' or '.join(map(str, FP8_HEAD_DIMS))} for flash_attn_fp8, "
            f"got {q.shape[3]}"
        )


def check_varlen_tensor_core(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    *,
    name,
    supported,
    max_head_dim,
    instead="flash_attn_varlen",
    v_differs=False,
):
    """Raise unless the kernel `name` can run on these packed sequences and their GPU.

    Parameters
    ----------
    q, k, v, cu_seqlens_q, cu_seqlens_k : arrays
    name, supported, max_head_dim, instead, v_differs
        As for `check_tensor_core`.
    """
    q, k, v, cu_seqlens_q, cu_seqlens_k = map(facts, (q, k, v, cu_seqlens_q, cu_seqlens_k))
    require_one_library(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    _require_gpu_arrays("q, k, v", q, name, instead)
    attention.check_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, head_dims=ANY_HEAD_DIMS)
    named = {"q": q, "k": k, "v": v}
    _require_16_bit_rows(named, name, supported, max_head_dim, instead, v_differs)
    _require_no_negative_strides(name, **named)
    check_aligned(**named)


def check_decode_tensor_core(q, k_cache, v_cache, *, name, supported, max_head_dim=MAX_HEAD_DIM):
    """Raise unless the decoding kernel `name` can run on these arrays and their GPU.

    `check_decode` or `check_paged_decode` has let them pass before.
    """
    q, k_cache, v_cache = facts(q), facts(k_cache), facts(v_cache)
    _require_gpu_arrays("q, k_cache, v_cache", q, name, "flash_decode")
    named = {"q": q, "k_cache": k_cache, "v_cache": v_cache}
    if k_cache.dtype == "uint8":  # e4m3, which the GPU converts to float16
        if q.dtype != "float16":
            raise RefusedTypeError(
                f"q must be float16 for {name} and caches of e4m3, got {q.dtype}"
            )
        _require_rows(named, name, supported, max_head_dim, "flash_decode", 16)
        return
    _require_16_bit_rows(named, name, supported, max_head_dim, "flash_decode")


def check_latent_tensor_core(q, latent_cache, *, name):
    """Raise unless the 16-bit decoding kernel `name` can run on these arrays and their GPU.

    `check_latent_decode` has let them pass before.
    """
    named = {"q": facts(q), "latent_cache": facts(latent_cache)}
    _require_gpu_arrays("q, latent_cache", named["q"], name, "mla_decode")
    _require_16_bits(named, name)
    _require_rows(named, name, AMPERE, MAX_ROW_DIM, "mla_decode", 8, axis="row_dim")
    check_aligned(**named)


# Tensor cores, backward


def bwd_limits(v):
    """The largest head_dim of q and k, and that v may have a smaller one, for 128 keys in a tile.

    Those are options of the checks below, for flash_attn_bwd_persistent and flash_attn_bwd_varlen.
    """
    is_short = all(d <= MAX_BWD_HEAD_DIM for d in facts(v).shape[-1:])
    largest = MAX_BWD_HEAD_DIM_OVER_V if is_short else MAX_BWD_HEAD_DIM
    return {"max_head_dim": largest, "v_differs": True}


def check_bwd_over_v(name, head_dim, dropout_p, mask, score):
    """Raise unless dropout and the user's functions are off where head_dim is above V's limit."""
    if head_dim > MAX_BWD_HEAD_DIM:
        check_no_dropout(name, head_dim, dropout_p)
        for option, x in (("mask", mask), ("score", score)):
            if x is not None:
                raise RefusedValueError(
                    f"{option} must be None for a head_dim above {MAX_BWD_HEAD_DIM} for {name}, "
                    f"got {x!r:.40} for head_dim {head_dim}"
                )


def check_bwd_tensor_core(
    dout, q, k, v, out, lse, *, name, supported, max_head_dim, v_differs=False
):
    """Raise unless the 16-bit kernel `name` can run backward on these arrays and their GPU.

    Parameters
    ----------
    dout, q, k, v, out, lse : arrays
    name : str
        Name of the function, for messages.
    supported : AMPERE or HOPPER
    max_head_dim : int
    v_differs : bool, default=False
        v, out and dout may have a smaller head_dim than q and k.
    """
    dout, q, k, v, out, lse = map(facts, (dout, q, k, v, out, lse))
    limits = {"supported": supported, "max_head_dim": max_head_dim, "v_differs": v_differs}
    check_tensor_core(q, k, v, name=name, **limits, instead="flash_attn_bwd")
    attention.check_bwd(dout, q, k, v, out, lse, head_dims=ANY_HEAD_DIMS)
    check_gradient_strides(name, supported, dout, out)
    check_aligned(dout=dout, q=q, k=k, v=v, out=out)


def check_tensor_core_wide(q, k, v, *, name, supported, max_head_dim, instead, v_differs=False):
    """As `check_tensor_core`, for a kernel whose rows are longer than those of all others."""
    head_dim = facts(q).shape[-1]
    differs = v_differs and facts(v).shape[-1] != head_dim
    least = MAX_BWD_HEAD_DIM // 2 if differs else MAX_BWD_HEAD_DIM
    if head_dim <= least:
        hint = "" if differs else ": flash_attn_bwd_persistent takes it"
        raise RefusedValueError(
            f"q must have a head_dim above {least} for {name}, got {head_dim}{hint}"
        )
    limits = {"supported": supported, "max_head_dim": max_head_dim, "v_differs": v_differs}
    check_tensor_core(q, k, v, name=name, **limits, instead=instead)


def check_bwd_tensor_core_wide(
    dout, q, k, v, out, lse, *, name, supported, max_head_dim, v_differs=False
):
    """As `check_bwd_tensor_core`, for a kernel whose rows are longer than those of all others."""
    limits = {"name": name, "supported": supported, "max_head_dim": max_head_dim}
    limits["v_differs"] = v_differs
    check_bwd_tensor_core(dout, q, k, v, out, lse, **limits)
    check_tensor_core_wide(q, k, v, **limits, instead="flash_attn_bwd")


def check_tensor_core_stored(q, k, v, *, name, supported, max_head_dim, instead):
    """As `check_tensor_core`, for a kernel whose rows are longer than flash_attn_bwd_wide's."""
    if (head_dim := facts(q).shape[-1]) <= MAX_HEAD_DIM:
        raise RefusedValueError(
            f"q must have a head_dim above {MAX_HEAD_DIM} for {name}, got {head_dim}: "
            "flash_attn_grad takes it"
        )
    limits = {"supported": supported, "max_head_dim": max_head_dim}
    check_tensor_core(q, k, v, name=name, **limits, instead=instead)


def check_bwd_tensor_core_stored(dout, q, k, v, out, lse, *, name, supported, max_head_dim):
    """As `check_bwd_tensor_core`, for a kernel whose rows are longer than flash_attn_bwd_wide's."""
    limits = {"name": name, "supported": supported, "max_head_dim": max_head_dim}
    check_bwd_tensor_core(dout, q, k, v, out, lse, **limits)
    check_tensor_core_stored(q, k, v, **limits, instead="flash_attn_bwd")


def check_varlen_bwd_tensor_core(
    dout,
    q,
    k,
    v,
    out,
    lse,
    cu_seqlens_q,
    cu_seqlens_k,
    *,
    name,
    supported,
    max_head_dim,
    v_differs=False,
):
    """As `check_bwd_tensor_core`, for a packed batch."""
    dout, q, k, v, out, lse = map(facts, (dout, q, k, v, out, lse))
    starts = cu_seqlens_q, cu_seqlens_k
    limits = {"supported": supported, "max_head_dim": max_head_dim, "v_differs": v_differs}
    check_varlen_tensor_core(q, k, v, *starts, name=name, **limits, instead="flash_attn_varlen_bwd")
    attention.check_varlen_bwd(dout, q, k, v, out, lse, *starts, head_dims=ANY_HEAD_DIMS)
    check_gradient_strides(name, supported, dout, out)
    check_aligned(dout=dout, out=out)


def check_bwd_tensor_core_padded(dout, q, k, v, out, lse, *, name, supported, max_head_dim):
    """As `check_bwd_tensor_core`, for a function that copies arrays of any head_dim and strides."""
    dout, q, k, v, out, lse = map(facts, (dout, q, k, v, out, lse))
    limits = {"supported": supported, "max_head_dim": max_head_dim}
    check_tensor_core_padded(q, k, v, name=name, **limits, instead="flash_attn_bwd")
    attention.check_bwd(dout, q, k, v, out, lse)


def check_bwd_tensor_core_float32(dout, q, k, v, out, lse, *, name, supported, max_head_dim):
    """As `check_bwd_tensor_core`, for a kernel in float32.

    Nothing is required of the rows of `out`, which are read one number at a time.
    """
    dout, q, k, v, out, lse = map(facts, (dout, q, k, v, out, lse))
    limits = {"supported": supported, "max_head_dim": max_head_dim}
    check_tensor_core_float32(q, k, v, name=name, **limits, instead="flash_attn_bwd_registers")
    attention.check_bwd(dout, q, k, v, out, lse)
    check_strides(name, dout=dout)
    check_aligned(dout=dout, q=q, k=k, v=v)


def check_gradient_strides(name, supported, dout, out):
    """Raise unless the 16-bit backward kernel `name` can copy rows of dout and load those of out.

    Kernels for Hopper copy dout by a tensor map; all load `out` 16 bytes at a time.
    """
    dout, out = facts(dout), facts(out)
    check_strides(name, dout=dout, out=out)
    if supported == HOPPER:
        _require_no_negative_strides(name, dout=dout)


# Memory


def check_no_dropout(name, head_dim, dropout_p):
    """Raise unless dropout is off: the function `name` has none for this head_dim."""
    if dropout_p != 0:
        raise RefusedValueError(
            f"dropout_p must be 0 for a head_dim above {MAX_BWD_HEAD_DIM} for {name}, got "
            f"{dropout_p} for head_dim {head_dim}"
        )


def rows_suit_tensor_maps(*arrays) -> bool:
    """Return whether TMA copies the rows of 16-bit arrays as they are.

    Rows begin at multiples of 16 bytes, one after the other, and are as long.
    """
    for x in map(facts, arrays):
        strides = [n for n, size in zip(x.strides[:-1], x.shape, strict=False) if size > 1]
        if x.shape[-1] % 8 or x.address % 16 or any(n % 16 or n < 0 for n in strides):
            return False
    return True


def check_aligned(**named):
    """Raise unless arrays begin at a multiple of 16 bytes, as 16-byte copies do."""
    for name, x in named.items():
        address = facts(x).address
        if address % 16:
            raise RefusedValueError(
                f"{name} must begin at a multiple of 16 bytes, got address {address:#x}"
            )


def check_strides(name, **named):
    """Raise unless the kernel `name` can copy the rows of arrays 16 bytes at a time."""
    for x_name, x in named.items():
        x = facts(x)
        if any(n % 16 for n, size in zip(x.strides[:-1], x.shape, strict=False) if size > 1):
            raise RefusedValueError(
                f"{x_name} must have strides that are multiples of 16 bytes for {name}, got "
                f"{x.strides}: make it contiguous first"
            )


def check_shared_bytes(name, q, size):
    """Raise unless a thread block of q's GPU can have so many bytes of shared memory."""
    limit = arrays.shared_bytes_per_block(q)
    if size > limit:
        raise RefusedGpuError(
            f"{name} needs {size} bytes of shared memory for head_dim {q.shape[3]}, and this GPU "
            f"has {limit}; flash_attn_bwd_registers runs on it"
        )


# Tile sizes


def check_block_sizes(
    kernel_name, head_dim, block_m, block_n, *, head_dim_v=None, num_rows=math.inf
) -> tuple:
    """Return the tile sizes to run with, (block_m, block_n); choose for None."""
    rows = {"head_dim_v": head_dim_v, "num_rows": num_rows}
    best_m, best_n = kernel_block_sizes(kernel_name, head_dim, **rows)
    block_m = best_m if block_m is None else integer("block_m", block_m, at_least=1)
    block_n = best_n if block_n is None else integer("block_n", block_n, at_least=1)
    if block_m * block_n > MAX_THREADS:
        raise ValueError(
            f"block_m * block_n is the number of threads and must be at most {MAX_THREADS}, "
            f"got {block_m} * {block_n} = {block_m * block_n}"
        )
    needed = shared_bytes(kernel_name, head_dim, block_m, block_n, head_dim_v)
    if needed > STATIC_SHARED_BYTES:
        raise ValueError(
            f"block_m and block_n must leave the tiles within {STATIC_SHARED_BYTES} bytes of "
            f"shared memory, got {block_m} and {block_n}, which need {needed} at {head_dim=}"
        )
    return block_m, block_n


def check_4x4_tiles(head_dim, columns, batched) -> tuple:
    """Return the rows of a tile of `flash_attn_v2_4x4`, the columns of a thread, and batched."""
    if head_dim > MAX_4X4_HEAD_DIM:
        raise ValueError(
            f"head_dim must be at most {MAX_4X4_HEAD_DIM} for flash_attn_v2_4x4, got {head_dim}: "
            "flash_attn_registers takes larger ones"
        )
    columns = _one_of("columns", columns, (1, 2, 4))
    return register_tiling.block_of_4x4(head_dim), columns, check_flag("batched", batched)


def check_forward_tiles(q, head_dim, block_m, block_n, rows) -> tuple:
    """Return block_m, block_n and rows of `flash_attn_registers`; choose for None."""
    limit = arrays.shared_bytes_per_block(q)
    most = register_tiling.forward_rows(head_dim)
    rows = most if rows is None else _one_of("rows", rows, (4, 8))
    if rows > most:
        raise ValueError(f"rows must be 4 at {head_dim=}, got {rows}")
    best_m, best_n = register_tiling.forward_block_sizes(head_dim, limit, rows)
    sizes = register_tiling.SIZES
    block_m = best_m if block_m is None else _one_of("block_m", block_m, sizes)
    block_n = best_n if block_n is None else _one_of("block_n", block_n, sizes)
    if not register_tiling.forward_fits(head_dim, block_m, block_n, limit, rows):
        raise ValueError(
            f"block_m and block_n must fit the registers and the {limit} bytes of shared memory "
            f"of a thread block at {head_dim=}, got {block_m} and {block_n}"
        )
    return block_m, block_n, rows


def _one_of(name, value, allowed):
    value = integer(name, value, at_least=1)
    if value not in allowed:
        *others, last = map(str, allowed)
        raise ValueError(f"{name} must be {', '.join(others)} or {last}, got {value}")
    return value


def check_backward_tiles(q, head_dim, tile_size) -> int:
    """Return the tile size of `flash_attn_bwd_registers`; choose for None."""
    limit = arrays.shared_bytes_per_block(q)
    best = register_tiling.backward_tile_size(head_dim, limit)
    sizes = register_tiling.BACKWARD_SIZES
    chosen = best or sizes[0]
    tile_size = chosen if tile_size is None else _one_of("tile_size", tile_size, sizes)
    needed = register_tiling.backward_tiling(head_dim, tile_size).shared_bytes
    if needed > limit:
        raise RefusedValueError(
            f"tile_size must leave the tiles within the {limit} bytes of shared memory that a "
            f"thread block has here, got {tile_size}, which needs {needed} at {head_dim=}"
            + ("" if best else "; flash_attn_bwd runs here")
        )
    return tile_size


# Requirements of the kernels on tensor cores


def _require_gpu_arrays(names, x, name, instead):
    if x.shape[-1] > MAX_HEAD_DIM:
        instead = JOBS_ABOVE.get(instead, instead)
    if x.library == "numpy" or not arrays.gpu_available():
        raise RefusedTypeError(
            f"{names} must be GPU arrays, got {arrays.LIBRARIES[x.library]}s: {name} is made of "
            f"PTX instructions, which the CPU engine does not run; {instead} computes the same "
            "there"
        )


def _require_float32(named, kernel):
    q = named["q"]
    if q.dtype != "float32":  # that of the others, as `check_qkv` has made sure
        raise RefusedTypeError(f"{', '.join(named)} must be float32 for {kernel}, got {q.dtype}")


def _require_16_bits(named, name):
    if named["q"].dtype == "float32":
        names = ", ".join(named)
        raise RefusedTypeError(f"{names} must be float16 or bfloat16 for {name}, got float32")


def _require_16_bit_rows(named, name, supported, max_head_dim, instead, v_differs=False):
    """Raise unless dtype, rows and GPU of q, k, v fit the kernel."""
    _require_16_bits(named, name)
    _require_rows(named, name, supported, max_head_dim, instead, 8, v_differs)


def _require_rows(
    named, name, supported, max_head_dim, instead, elements, v_differs=False, axis="head_dim"
):
    """Raise unless rows and GPU fit the kernel; `elements` of a row make 16 bytes."""
    q, *_, v = named.values()
    *_, v_name = named
    for x_name, x in (("q", q), (v_name, v)):
        head_dim = x.shape[-1]
        if head_dim % elements or head_dim > max_head_dim:
            raise RefusedValueError(
                f"{x_name} must have a {axis} that is a multiple of {elements} up to "
                f"{max_head_dim} for {name}, got {head_dim}"
            )
    if not v_differs:
        _require_one_head_dim(q, v, name, v_name)
    elif v.shape[-1] > q.shape[-1]:
        raise RefusedValueError(
            f"{v_name} must have a head_dim up to that of q for {name}, {q.shape[-1]}, got "
            f"{v.shape[-1]}"
        )
    check_strides(name, **named)
    _require_capability(supported, q, name, instead)


def _require_one_head_dim(q, v, name, v_name="v"):
    """Raise if v has another head_dim than q and k."""
    if v.shape[-1] != q.shape[-1]:
        raise RefusedValueError(
            f"{v_name} must have the head_dim of q for {name}, {q.shape[-1]}, got {v.shape[-1]}"
        )


def _require_capability(supported, q, name, instead):
    """Raise unless q's GPU has the instructions of the kernel `name`."""
    have = arrays.compute_capability(q)
    if have < supported[:2] or (len(supported) > 2 and have[0] != supported[0]):
        needed = f"{supported[0]}.x" if len(supported) > 2 else f"{supported[0]}.0 or later"
        hint = f"{instead} runs on it"
        if q.shape[-1] > MAX_HEAD_DIM and instead in JOBS_ABOVE:
            hint = f"{JOBS_ABOVE[instead]} takes NumPy arrays of this head_dim, on the CPU"
        raise RefusedGpuError(
            f"{name} needs a GPU of compute capability {needed}, got {have[0]}.{have[1]}; {hint}"
        )


def _require_no_negative_strides(name, **named):
    """Raise unless a tensor map can describe the strides of arrays."""
    for x_name, x in named.items():
        if any(n < 0 for n, size in zip(x.strides, x.shape, strict=True) if size > 1):
            raise RefusedValueError(
                f"{x_name} must have no negative stride for {name}, got {x.strides}: make it "
                "contiguous first"
            )
