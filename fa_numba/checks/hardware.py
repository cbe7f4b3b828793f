"""Checks of arrays against a GPU: its instructions, 16-byte copies, shared memory, registers."""

import math
from dataclasses import dataclass

from fa_numba.checks import attention
from fa_numba.checks.refused import RefusedGpuError, RefusedTypeError, RefusedValueError
from fa_numba.checks.requirements import (
    ANY_HEAD_DIMS,
    MAX_HEAD_DIM,
    MAX_ROW_DIM,
    MAX_WIDE_HEAD_DIM,
    require_one_library,
)
from fa_numba.checks.values import check_flag, integer, one_of
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
FP8_HEAD_DIMS = (64, 128)  # more does not fit into registers
# Of gradients above MAX_HEAD_DIM, where these kernels refuse: the jobs, which run on the CPU.
JOBS_ABOVE = {
    "flash_attn_bwd": "flash_attn_grad",
    "flash_attn_varlen_bwd": "flash_attn_varlen_grad",
}


# Tensor cores


@dataclass(frozen=True)
class TensorCores:
    """The requirements of a function on tensor cores: its arrays and their GPU.

    `KERNELS` has one for each function: its launcher asks it, and the job that may choose it.

    Attributes
    ----------
    name : str
        Name of the function, for messages.
    supported : AMPERE or HOPPER
        Compute capabilities that have its instructions.
    float32 : bool, default=False
        It takes float32; by default float16 and bfloat16.
    max_head_dim : int, default=256
    max_over_v : int, default=max_head_dim
        The same where v has at most MAX_BWD_HEAD_DIM columns.
    above : int, default=0
        head_dim is larger than this, or than half of this where v has another one.
    up_to_that : str, default=""
        Name of a function for a head_dim up to `above`.
    v_differs : bool, default=False
        v may have a smaller head_dim than q and k.
    copies : bool, default=False
        It copies the arrays first, so any head_dim, strides and addresses will do.
    by_cp_async : bool, default=False
        On Hopper, too, it copies without tensor maps, which have no negative strides.
    cap_apart : bool, default=False
        It has a softcap beside the user's mask.
    """

    name: str
    supported: tuple
    float32: bool = False
    max_head_dim: int = MAX_HEAD_DIM
    max_over_v: int = 0
    above: int = 0
    up_to_that: str = ""
    v_differs: bool = False
    copies: bool = False
    by_cp_async: bool = False
    cap_apart: bool = False

    def check(self, q, k, v):
        """Raise unless the function can run forward on these arrays and on their GPU."""
        self._check("flash_attn_registers" if self.float32 else "flash_attn_v2", q, k, v)

    def check_packed(self, q, k, v, cu_seqlens_q, cu_seqlens_k):
        """The same for a packed batch."""
        self._check("flash_attn_varlen", q, k, v, cu_seqlens_q, cu_seqlens_k)

    def check_gradients(self, dout, q, k, v, out, lse):
        """Raise unless the function can run backward on these arrays and on their GPU."""
        inputs = dout, q, k, v, out, lse = tuple(map(facts, (dout, q, k, v, out, lse)))
        self._check("flash_attn_bwd_registers" if self.float32 else "flash_attn_bwd", q, k, v)
        attention.check_bwd(*inputs, head_dims=ANY_HEAD_DIMS)
        self._check_gradient_rows(dout, out)

    def check_packed_gradients(self, dout, q, k, v, out, lse, *starts):
        """The same for a packed batch; starts are cu_seqlens_q and cu_seqlens_k."""
        inputs = dout, q, k, v, out, lse = tuple(map(facts, (dout, q, k, v, out, lse)))
        self._check("flash_attn_varlen_bwd", q, k, v, *starts)
        attention.check_varlen_bwd(*inputs, *starts, head_dims=ANY_HEAD_DIMS)
        self._check_gradient_rows(dout, out)

    def _check(self, instead, q, k, v, *starts):
        """`instead` names a function that computes the same on any GPU."""
        named = {"q": facts(q), "k": facts(k), "v": facts(v)}
        named_starts = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), map(facts, starts), strict=False))
        q, _, v = named.values()
        require_one_library(**named, **named_starts)
        _require_gpu_arrays("q, k, v", q, self.name, instead)
        check_arrays = attention.check_varlen if starts else attention.check_qkv
        check_arrays(*named.values(), *named_starts.values(), head_dims=ANY_HEAD_DIMS)
        _require_floats(named, self.name, self.float32)
        if self.copies:
            self._check_head_dim_of_copies(q, v)
            _require_capability(self.supported, q, self.name, instead)
            return
        self._check_least(q, v)
        is_short = self.max_over_v and v.shape[-1] <= MAX_BWD_HEAD_DIM
        most = self.max_over_v if is_short else self.max_head_dim
        elements = 4 if self.float32 else 8
        _require_rows(named, self.name, self.supported, most, instead, elements, self.v_differs)
        if self.supported == HOPPER and not self.by_cp_async:
            _require_no_negative_strides(self.name, **named)
        check_aligned(**named)

    def _check_head_dim_of_copies(self, q, v):
        if q.shape[-1] > self.max_head_dim:
            raise RefusedValueError(
                f"q must have a head_dim up to {self.max_head_dim} for {self.name}, got "
                f"{q.shape[-1]}"
            )
        _require_one_head_dim(q, v, self.name)

    def _check_least(self, q, v):
        head_dim = q.shape[-1]
        differs = self.v_differs and v.shape[-1] != head_dim
        above = self.above // 2 if differs else self.above
        if head_dim <= above:
            hint = "" if differs else f": {self.up_to_that} takes it"
            raise RefusedValueError(
                f"q must have a head_dim above {above} for {self.name}, got {head_dim}{hint}"
            )

    def _check_gradient_rows(self, dout, out):
        """Raise unless rows of dout can be copied, and those of out loaded 16 bytes at a time.

        Kernels in float32 read out one number at a time.
        """
        if self.copies:
            return
        named = {"dout": dout} if self.float32 else {"dout": dout, "out": out}
        check_strides(self.name, **named)
        if self.supported == HOPPER:
            _require_no_negative_strides(self.name, dout=dout)
        check_aligned(**named)


OVER_V = {"max_head_dim": MAX_BWD_HEAD_DIM, "max_over_v": MAX_BWD_HEAD_DIM_OVER_V}
KERNELS = {
    x.name: x
    for x in (
        TensorCores("flash_attn_mma", AMPERE),
        TensorCores("flash_attn_tf32x3", AMPERE, float32=True),
        TensorCores("flash_attn_wgmma", HOPPER),
        TensorCores("flash_attn_ws", HOPPER),
        TensorCores("flash_attn_persistent", HOPPER, v_differs=True, cap_apart=True),
        TensorCores("flash_attn_split", HOPPER),
        TensorCores("flash_attn_padded", HOPPER, copies=True),
        TensorCores("flash_attn_wide", HOPPER, max_head_dim=MAX_WIDE_HEAD_DIM),
        TensorCores("flash_attn_fp8", HOPPER, max_head_dim=max(FP8_HEAD_DIMS)),
        TensorCores("flash_attn_persistent_varlen", HOPPER, v_differs=True),
        TensorCores("flash_attn_wide_varlen", HOPPER, max_head_dim=MAX_WIDE_HEAD_DIM),
        # As flash_attn takes them: with few queries, and keys in no cache.
        TensorCores("flash_decode_mma", AMPERE),
        TensorCores("flash_decode_gather", HOPPER, by_cp_async=True),
        TensorCores("flash_attn_bwd_mma", AMPERE, max_head_dim=MAX_BWD_HEAD_DIM),
        TensorCores(
            "flash_attn_bwd_tf32x3", AMPERE, float32=True, max_head_dim=MAX_BWD_HEAD_DIM
        ),
        TensorCores("flash_attn_bwd_persistent", HOPPER, v_differs=True, **OVER_V),
        TensorCores(
            "flash_attn_bwd_wide", HOPPER, v_differs=True, above=MAX_BWD_HEAD_DIM,
            up_to_that="flash_attn_bwd_persistent",
        ),
        TensorCores(
            "flash_attn_bwd_stored", HOPPER, max_head_dim=MAX_WIDE_HEAD_DIM, above=MAX_HEAD_DIM,
            up_to_that="flash_attn_grad",
        ),
        TensorCores("flash_attn_bwd_padded", HOPPER, copies=True),
        TensorCores("flash_attn_bwd_varlen", HOPPER, v_differs=True, **OVER_V),
        TensorCores("flash_attn_bwd_stored_varlen", HOPPER, max_head_dim=MAX_WIDE_HEAD_DIM),
    )
}  # fmt: skip


def check_fp8(q):
    """Raise unless a Hadamard matrix of FP8 has the size of q's rows.

    `KERNELS["flash_attn_fp8"].check` has let q pass before.
    """
    if q.shape[3] not in FP8_HEAD_DIMS:
        raise RefusedValueError(
            f"q must have a head_dim of {' or '.join(map(str, FP8_HEAD_DIMS))} for flash_attn_fp8, "
            f"got {q.shape[3]}"
        )


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
    _require_floats(named, name)
    _require_rows(named, name, supported, max_head_dim, "flash_decode", 8)


def check_latent_tensor_core(q, latent_cache, *, name):
    """Raise unless the 16-bit decoding kernel `name` can run on these arrays and their GPU.

    `check_latent_decode` has let them pass before.
    """
    named = {"q": facts(q), "latent_cache": facts(latent_cache)}
    _require_gpu_arrays("q, latent_cache", named["q"], name, "mla_decode")
    _require_floats(named, name)
    _require_rows(named, name, AMPERE, MAX_ROW_DIM, "mla_decode", 8, axis="row_dim")
    check_aligned(**named)


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
    columns = one_of("columns", columns, (1, 2, 4))
    return register_tiling.block_of_4x4(head_dim), columns, check_flag("batched", batched)


def check_forward_tiles(q, head_dim, block_m, block_n, rows) -> tuple:
    """Return block_m, block_n and rows of `flash_attn_registers`; choose for None."""
    limit = arrays.shared_bytes_per_block(q)
    most = register_tiling.forward_rows(head_dim)
    rows = most if rows is None else one_of("rows", rows, (4, 8))
    if rows > most:
        raise ValueError(f"rows must be 4 at {head_dim=}, got {rows}")
    best_m, best_n = register_tiling.forward_block_sizes(head_dim, limit, rows)
    sizes = register_tiling.SIZES
    block_m = best_m if block_m is None else one_of("block_m", block_m, sizes)
    block_n = best_n if block_n is None else one_of("block_n", block_n, sizes)
    if not register_tiling.forward_fits(head_dim, block_m, block_n, limit, rows):
        raise ValueError(
            f"block_m and block_n must fit the registers and the {limit} bytes of shared memory "
            f"of a thread block at {head_dim=}, got {block_m} and {block_n}"
        )
    return block_m, block_n, rows


def check_backward_tiles(q, head_dim, tile_size) -> int:
    """Return the tile size of `flash_attn_bwd_registers`; choose for None."""
    limit = arrays.shared_bytes_per_block(q)
    best = register_tiling.backward_tile_size(head_dim, limit)
    sizes = register_tiling.BACKWARD_SIZES
    chosen = best or sizes[0]
    tile_size = chosen if tile_size is None else one_of("tile_size", tile_size, sizes)
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


def _require_floats(named, name, float32=False):
    """Raise unless arrays, whose dtype is that of q, have 16-bit floats; or float32."""
    dtype = named["q"].dtype
    if (dtype == "float32") != float32:
        wanted = "float32" if float32 else "float16 or bfloat16"
        raise RefusedTypeError(f"{', '.join(named)} must be {wanted} for {name}, got {dtype}")


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
