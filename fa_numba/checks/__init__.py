"""The arguments of every public function are checked here and nowhere else.

Each message names the argument, says what it must be, and what it got. A check of a value returns
it in the form that the launcher needs.
"""

import functools
import math
import numbers
import operator
import warnings
from collections.abc import Mapping, Set

import numpy as np

from fa_numba.runtime import arrays
from fa_numba.tiling import register_tiling
from fa_numba.tiling.block_sizes import (
    MAX_THREADS,
    STATIC_SHARED_BYTES,
    ceil_div,
    kernel_block_sizes,
    shared_bytes,
)
from fa_numba.tiling.linear_attn import FEATURE_MAPS, MAX_GROUP_SIZE, recurrent_by_default

FLOATS = ("float32", "float16", "bfloat16")  # of q, k, v and what is like them
MAX_HEAD_DIM = 256
MAX_BWD_HEAD_DIM = 128  # on tensor cores
AMPERE, HOPPER = (8, 0), (9, 0, "a")  # what has mma.sync of 16 bits; and wgmma, it alone
FP8_HEAD_DIMS = (64, 128)
MAX_TOP_K = 32  # candidates that a thread keeps in registers
MAX_CHUNK_SIZE = 16  # tokens of linear attention that a thread block works on
MAX_SPLITS = 2**16  # partial results of every one are kept until they are combined
MAX_WINDOW = 2**40  # beyond any key; a position and this are still an int64
NO_SLOPES = np.float32(0)  # not looked at
MAX_REMEMBERED = 1024  # arguments that a check has let pass
MANY_KV_HEADS = 128  # more than any model has
MAX_GRID = 65535  # thread blocks along y and z of a CUDA grid, where heads and batch go

Q_AXES = ("batch", "seqlen_q", "num_heads", "head_dim")
K_AXES = ("batch", "seqlen_k", "num_kv_heads", "head_dim")
DECODE_AXES = ("batch", "max_len", "num_kv_heads", "head_dim")
NEW_AXES = ("batch", "seqlen_new", "num_kv_heads", "head_dim")
CACHE_AXES = ("num_pages", "page_size", "num_kv_heads", "head_dim")
PACKED_Q_AXES = ("num_tokens_q", "num_heads", "head_dim")
PACKED_K_AXES = ("num_tokens_k", "num_kv_heads", "head_dim")
TOKEN_AXES = ("num_tokens", "num_kv_heads", "head_dim")

TO_LIBRARY = {
    "cupy": "cupy.asarray(x)",
    "torch": 'torch.as_tensor(x, device="cuda")',
    "numba": "numba.cuda.to_device(x)",
}


def _remembers(check):
    """Let a check, of arrays and constants, pass at once what it has let pass before.

    It must look at nothing of an array but what `arrays.signature` holds.
    """
    passed = set()

    @functools.wraps(check)
    def checked(*args, **constants):
        key = (*map(arrays.signature, args), *constants.items())
        if key not in passed:
            check(*args, **constants)
            if len(passed) >= MAX_REMEMBERED:
                passed.clear()
            if None not in key:
                passed.add(key)

    return checked


def _remembers_values(check):
    """Let a check of numbers give again what it gave for the same ones of the same types."""
    remembered = functools.lru_cache(MAX_REMEMBERED, typed=True)(check)

    @functools.wraps(check)
    def checked(*args):
        try:
            hash(args)
        except TypeError:
            return check(*args)
        return remembered(*args)

    return checked


def check_rows(x):
    """Raise unless `x` is a matrix whose rows a softmax kernel can take."""
    _one_library(x=x)
    _one_dtype(x=x)
    _axes("x", x, ("num_rows", "num_cols"))
    _last_axis_contiguous("x", x)


def check_top_k(k, num_cols):
    """The number of values to keep of each row, as an int."""
    k = _integer("k", k, at_least=1)
    if k > num_cols:
        raise ValueError(f"k must be at most {num_cols = }, got {k}")
    if k > MAX_TOP_K:
        raise ValueError(f"k must be at most {MAX_TOP_K}, which a thread keeps, got {k}")
    return k


def check_chunk_size(name, chunk_size, length):
    """The size of a chunk as an int, not larger than there is something to cut."""
    return min(_integer(name, chunk_size, at_least=1), max(1, length))


@_remembers
def check_qkv(q, k, v, *, names=("k", "v"), axes=K_AXES):
    """Raise unless q, k, v are the inputs of one attention problem."""
    k_name, v_name = names
    _one_library(**{"q": q, k_name: k, v_name: v})
    _one_dtype(**{"q": q, k_name: k, v_name: v})
    for name, x in (("q", q), (k_name, k), (v_name, v)):
        _axes(name, x, Q_AXES if name == "q" else axes)
        _last_axis_contiguous(name, x)
    batch, _, num_heads, head_dim = q.shape
    _head_dim("q", head_dim)
    _fits_grid(batch, num_heads)
    both = f"{k_name} and {v_name}" if k.shape == v.shape else k_name
    if k.shape[0] != batch:
        raise ValueError(f"{both} must have the batch of q, {batch}, got {k.shape[0]}")
    if k.shape[3] != head_dim:
        raise ValueError(f"{both} must have the head_dim of q, {head_dim}, got {k.shape[3]}")
    _same_shape(v_name, v, k_name, k)
    _heads(num_heads, k.shape[2], both)
    _heads_before_tokens(k_name, k)


@_remembers
def check_tensor_core(q, k, v, *, name, supported, max_head_dim, instead="flash_attn_v2"):
    """Raise unless the tensor-core kernel `name` can run on these, and on their GPU.

    `supported` holds the compute capabilities that have its instructions: (8, 0) is any from there
    on, (9, 0, "a") is 9.x alone. `instead` computes the same anywhere.
    """
    _one_library(q=q, k=k, v=v)
    _on_a_gpu("q, k, v", q, name, instead)
    check_qkv(q, k, v)
    named = {"q": q, "k": k, "v": v}
    _for_tensor_cores(named, name, supported, max_head_dim, instead)
    if supported == HOPPER:  # by tensor maps
        _forward_strides(name, **named)


@_remembers
def check_tensor_core_padded(q, k, v, *, name, supported, max_head_dim):
    """The same for a function that copies them first, whatever their head_dim and strides are."""
    _one_library(q=q, k=k, v=v)
    _on_a_gpu("q, k, v", q, name, "flash_attn_v2")
    check_qkv(q, k, v)
    _sixteen_bits({"q": q, "k": k, "v": v}, name)
    if q.shape[3] > max_head_dim:
        raise ValueError(
            f"q must have a head_dim up to {max_head_dim} for {name}, got {q.shape[3]}"
        )
    _gpu_has(supported, q, name, "flash_attn_v2")


@_remembers
def check_tensor_core_float32(
    q, k, v, *, name, supported, max_head_dim=MAX_HEAD_DIM, instead="flash_attn_registers"
):
    """The same for a kernel that takes float32, with a head_dim that is a multiple of 4."""
    _one_library(q=q, k=k, v=v)
    _on_a_gpu("q, k, v", q, name, instead)
    check_qkv(q, k, v)
    named = {"q": q, "k": k, "v": v}
    for x_name, x in named.items():
        _float32(x_name, x)
    _rows_and_gpu(named, name, supported, max_head_dim, instead, 4)


def check_fp8(q):
    """Raise unless a Hadamard matrix can turn the rows of q, which `check_tensor_core` let pass."""
    if q.shape[3] not in FP8_HEAD_DIMS:
        raise ValueError(
            f"q must have a head_dim of {' or '.join(map(str, FP8_HEAD_DIMS))} for flash_attn_fp8, "
            f"got {q.shape[3]}"
        )


@_remembers
def check_decode_tensor_core(q, k_cache, v_cache, *, name, supported, tensor_maps=False):
    """The same for decoding, of arrays that `check_decode` or `check_paged_decode` let pass."""
    _on_a_gpu("q, k_cache, v_cache", q, name, "flash_decode")
    named = {"q": q, "k_cache": k_cache, "v_cache": v_cache}
    _for_tensor_cores(named, name, supported, MAX_HEAD_DIM, "flash_decode")
    if tensor_maps:
        _forward_strides(name, k_cache=k_cache, v_cache=v_cache)


def _on_a_gpu(names, x, name, instead):
    library = arrays.library_of(x)
    if library == "numpy" or not arrays.gpu_available():
        raise TypeError(
            f"{names} must be GPU arrays, got {arrays.LIBRARIES[library]}s: {name} is made of PTX "
            f"instructions, which the CPU engine does not run; {instead} computes the same there"
        )


def _for_tensor_cores(named, name, supported, max_head_dim, instead):
    """Raise unless dtype, rows and GPU of these arrays, the first of them q, are the kernel's."""
    _sixteen_bits(named, name)
    _rows_and_gpu(named, name, supported, max_head_dim, instead, 8)


def _sixteen_bits(named, name):
    if arrays.dtype_name(named["q"]) == "float32":
        names = ", ".join(named)
        raise TypeError(f"{names} must be float16 or bfloat16 for {name}, got float32")


def _rows_and_gpu(named, name, supported, max_head_dim, instead, elements):
    """Raise unless rows, of whole chunks of so many elements, and the GPU are the kernel's."""
    q = named["q"]
    head_dim = q.shape[-1]
    if head_dim % elements or head_dim > max_head_dim:
        raise ValueError(
            f"q must have a head_dim that is a multiple of {elements} up to {max_head_dim} for "
            f"{name}, got {head_dim}"
        )
    check_strides(name, **named)
    _gpu_has(supported, q, name, instead)


def _gpu_has(supported, q, name, instead):
    """Raise unless the GPU of an array has the instructions of the kernel `name`."""
    have = arrays.compute_capability(q)
    if have < supported[:2] or (len(supported) > 2 and have[0] != supported[0]):
        needed = f"{supported[0]}.x" if len(supported) > 2 else f"{supported[0]}.0 or later"
        raise RuntimeError(
            f"{name} needs a GPU of compute capability {needed}, got {have[0]}.{have[1]}; "
            f"{instead} runs on it"
        )


def check_aligned(**named):
    """Raise unless arrays begin where copies of 16 bytes can begin."""
    for name, x in named.items():
        address, _ = arrays.address_and_strides(x)
        if address % 16:
            raise ValueError(
                f"{name} must begin at a multiple of 16 bytes, got address {address:#x}"
            )


def check_strides(name, **named):
    """Raise unless rows of arrays begin where the kernel `name` can copy 16 bytes."""
    for x_name, x in named.items():
        _, strides = arrays.address_and_strides(x)
        if any(n % 16 for n, size in zip(strides[:-1], x.shape, strict=False) if size > 1):
            raise ValueError(
                f"{x_name} must have strides that are multiples of 16 bytes for {name}, got "
                f"{strides}: make it contiguous first"
            )


def check_gradient_strides(name, supported, dout, out):
    """Raise unless the 16-bit backward kernel `name` can copy rows of dout, and read those of out.

    Of dout the kernels for Hopper make a tensor map; out is read by 16-byte loads.
    """
    check_strides(name, dout=dout, out=out)
    if supported == HOPPER:
        _forward_strides(name, dout=dout)


def _forward_strides(name, **named):
    """Raise unless a tensor map can describe the strides of arrays: it has no negative ones."""
    for x_name, x in named.items():
        _, strides = arrays.address_and_strides(x)
        if any(n < 0 for n, size in zip(strides, x.shape, strict=True) if size > 1):
            raise ValueError(
                f"{x_name} must have no negative stride for {name}, got {strides}: make it "
                "contiguous first"
            )


def check_shared_bytes(name, q, size):
    """Raise unless a thread block of q's GPU can have so many bytes of shared memory."""
    most = arrays.shared_bytes_per_block(q)
    if size > most:
        raise RuntimeError(
            f"{name} needs {size} bytes of shared memory for head_dim {q.shape[3]}, and this GPU "
            f"has {most}; flash_attn_bwd_registers runs on it"
        )


@_remembers
def check_bwd(dout, q, k, v, out, lse):
    """Raise unless these are a forward pass's inputs and results, and the gradient of `out`."""
    check_qkv(q, k, v)
    _one_library(dout=dout, q=q, k=k, v=v, out=out, lse=lse)
    _one_dtype(dout=dout, q=q, out=out)
    for name, x in (("dout", dout), ("out", out)):
        _same_shape(name, x, "q", q)
        _last_axis_contiguous(name, x)
    _float32("lse", lse)
    batch, seqlen_q, num_heads, _ = q.shape
    _lse_shape("lse", lse, (batch, num_heads, seqlen_q))


def check_bwd_tensor_core(dout, q, k, v, out, lse, *, name, supported, max_head_dim):
    """Raise unless the tensor-core kernel `name` can run `check_bwd`'s arrays on their GPU."""
    limits = {"supported": supported, "max_head_dim": max_head_dim}
    check_tensor_core(q, k, v, name=name, **limits, instead="flash_attn_bwd")
    check_bwd(dout, q, k, v, out, lse)
    check_gradient_strides(name, supported, dout, out)
    check_aligned(dout=dout, q=q, k=k, v=v, out=out)


def check_bwd_tensor_core_float32(dout, q, k, v, out, lse, *, name, supported, max_head_dim):
    """The same for a kernel that takes float32; out is read a number at a time."""
    limits = {"supported": supported, "max_head_dim": max_head_dim}
    check_tensor_core_float32(q, k, v, name=name, **limits, instead="flash_attn_bwd_registers")
    check_bwd(dout, q, k, v, out, lse)
    check_strides(name, dout=dout)
    check_aligned(dout=dout, q=q, k=k, v=v)


def check_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k):
    """Raise unless q, k, v are packed sequences, and these say where each begins and ends.

    Where is read where they are NumPy arrays; on a GPU that would mean waiting for it.
    """
    _one_library(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    _one_dtype(q=q, k=k, v=v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        _axes(name, x, PACKED_Q_AXES if name == "q" else PACKED_K_AXES)
        _last_axis_contiguous(name, x)
    _, num_heads, head_dim = q.shape
    _head_dim("q", head_dim)
    _fits_grid(0, num_heads)
    _same_shape("v", v, "k", k)
    if k.shape[2] != head_dim:
        raise ValueError(f"k and v must have the head_dim of q, {head_dim}, got {k.shape[2]}")
    _heads(num_heads, k.shape[1], "k and v")
    for name, x in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        _int32(name, x)
        _axes(name, x, ("batch + 1",))
    _same_shape("cu_seqlens_k", cu_seqlens_k, "cu_seqlens_q", cu_seqlens_q)
    _starts("cu_seqlens_q", cu_seqlens_q, "q", q.shape[0])
    _starts("cu_seqlens_k", cu_seqlens_k, "k", k.shape[0])


def check_varlen_tensor_core(q, k, v, cu_seqlens_q, cu_seqlens_k, *, name, supported, max_head_dim):
    """Raise unless the tensor-core kernel `name` can run `check_varlen`'s arrays on their GPU."""
    _one_library(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    _on_a_gpu("q, k, v", q, name, "flash_attn_varlen")
    check_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k)
    named = {"q": q, "k": k, "v": v}
    _for_tensor_cores(named, name, supported, max_head_dim, "flash_attn_varlen")
    _forward_strides(name, **named)
    check_aligned(**named)


def check_varlen_bwd(dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k):
    """Raise unless these are those of `check_bwd`, for packed sequences."""
    check_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k)
    _one_library(dout=dout, q=q, k=k, v=v, out=out, lse=lse)
    _one_dtype(dout=dout, q=q, out=out)
    for name, x in (("dout", dout), ("out", out)):
        _same_shape(name, x, "q", q)
        _last_axis_contiguous(name, x)
    _float32("lse", lse)
    num_tokens_q, num_heads, _ = q.shape
    if tuple(lse.shape) != (num_heads, num_tokens_q):
        raise ValueError(
            f"lse must have shape (num_heads, num_tokens_q) = {(num_heads, num_tokens_q)}, "
            f"got {tuple(lse.shape)}"
        )


def check_decode(q, k_cache, v_cache, seq_lens):
    """Raise unless the queries and the caches are of the same sequences, and these fit.

    The lengths are read where they are a NumPy array; on a GPU that would mean waiting for it.
    """
    check_qkv(q, k_cache, v_cache, names=("k_cache", "v_cache"), axes=DECODE_AXES)
    _one_library(q=q, seq_lens=seq_lens)
    _int32("seq_lens", seq_lens)
    _axes("seq_lens", seq_lens, ("batch",))
    batch, max_len = k_cache.shape[:2]
    if seq_lens.shape[0] != batch:
        raise ValueError(
            f"seq_lens must have one length for each of the {batch} sequences of q, "
            f"got {seq_lens.shape[0]}"
        )
    if arrays.library_of(seq_lens) == "numpy":
        _lengths(seq_lens, "max_len", max_len)


def check_head_shard(num_heads, num_kv_heads, num_shards, shard):
    """Raise unless heads can be given to so many devices, as many to each."""
    sizes = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "num_shards": num_shards}
    for name, size in sizes.items():
        _integer(name, size, at_least=1)
    if num_heads % num_kv_heads:
        raise ValueError(
            f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}"
        )
    if num_heads % num_shards:
        raise ValueError(
            f"num_shards must divide num_heads, got {num_shards} for {num_heads} heads"
        )
    if num_kv_heads % num_shards and num_shards % num_kv_heads:
        raise ValueError(
            "num_shards must divide num_kv_heads or be a multiple of it, "
            f"got {num_shards} for {num_kv_heads} heads"
        )
    if _integer("shard", shard, at_least=0) >= num_shards:
        raise ValueError(f"shard must be from 0 to {num_shards - 1}, got {shard}")


def check_cache_shape(batch, max_len, num_kv_heads, head_dim, like):
    """The shape of a contiguous cache, as ints; raise unless `like` is an array."""
    _one_library(like=like)
    _one_dtype(like=like)
    batch = _integer("batch", batch, at_least=0)
    max_len = _integer("max_len", max_len, at_least=1)
    num_kv_heads = _integer("num_kv_heads", num_kv_heads, at_least=1)
    head_dim = _integer("head_dim", head_dim, at_least=1)
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"head_dim must be at most {MAX_HEAD_DIM}, got {head_dim}")
    _slots_fit("batch * max_len", batch * max_len)
    return batch, max_len, num_kv_heads, head_dim


def check_window(window, num_sinks):
    """The places of a rolling cache, as ints."""
    window = _integer("window", window, at_least=1)
    num_sinks = _integer("num_sinks", num_sinks, at_least=0)
    _slots_fit("window + num_sinks", window + num_sinks)
    return window, num_sinks


def check_append(k, v, k_cache, num_new):
    """How many tokens each sequence is given, as int32; raise unless k and v hold them."""
    _one_library(k=k, v=v, k_cache=k_cache)
    _one_dtype(k=k, v=v, k_cache=k_cache)
    for name, x in (("k", k), ("v", v)):
        _axes(name, x, NEW_AXES)
        _last_axis_contiguous(name, x)
    _same_shape("v", v, "k", k)
    batch, _, *token = k_cache.shape
    seqlen_new = k.shape[1]
    if tuple(k.shape) != (batch, seqlen_new, *token):
        want = ", ".join(map(str, (batch, "seqlen_new", *token)))
        raise ValueError(f"k must have shape ({want}) for this cache, got {tuple(k.shape)}")
    got = np.full(batch, seqlen_new) if num_new is None else num_new
    try:
        num_new = np.asarray(got)
    except ValueError:  # rows of different lengths
        num_new = np.empty(0)
    if num_new.shape != (batch,) or num_new.dtype.kind not in "iu":
        raise ValueError(
            f"num_new must be {batch} integers, one for each sequence, got {got!s:.60}"
        )
    for b in np.flatnonzero((num_new < 0) | (num_new > seqlen_new))[:1]:
        raise ValueError(
            f"num_new[{b}] must be from 0 to seqlen_new = {seqlen_new}, got {num_new[b]}"
        )
    return num_new.astype(np.int32)


def check_room(lengths, num_new, max_len):
    """The lengths with the new tokens; raise unless each sequence has room for them."""
    for b in np.flatnonzero(lengths + num_new > max_len)[:1]:
        raise ValueError(
            f"num_new[{b}] must be at most max_len - lengths[{b}] = {max_len} - {lengths[b]} "
            f"= {max_len - lengths[b]}, got {num_new[b]}: the row is full"
        )
    return lengths + num_new


def check_num_splits(num_splits):
    """The number of splits as an int; 0 is yet to be chosen."""
    num_splits = _integer("num_splits", num_splits, at_least=0)
    if num_splits > MAX_SPLITS:
        raise ValueError(f"num_splits must be at most {MAX_SPLITS}, got {num_splits}")
    return num_splits


def check_states(out_a, lse_a, out_b, lse_b):
    """Raise unless these are two partial results for the same queries."""
    _one_library(out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b)
    _one_dtype(out_a=out_a, out_b=out_b)
    for name, x in (("out_a", out_a), ("out_b", out_b)):
        _axes(name, x, Q_AXES)
        _last_axis_contiguous(name, x)
    _same_shape("out_b", out_b, "out_a", out_a)
    batch, seqlen_q, num_heads, head_dim = out_a.shape
    _head_dim("out_a", head_dim)
    _fits_grid(batch, num_heads)
    for name, x in (("lse_a", lse_a), ("lse_b", lse_b)):
        _float32(name, x)
        _lse_shape(name, x, (batch, num_heads, seqlen_q))


def check_paged(k_cache, v_cache, block_table, seq_lens, max_len):
    """Raise unless the block table maps sequences to pages of the caches; return max_len.

    What the tables hold is read where they are NumPy arrays. On a GPU that would mean waiting for
    it, so there only the longest length is read, and only where `max_len` is None.
    """
    _page_tables(k_cache, v_cache, block_table, seq_lens)
    batch, max_pages = block_table.shape
    page_size = k_cache.shape[1]
    if batch > MAX_GRID:
        raise ValueError(f"batch must be at most {MAX_GRID}, got {batch}")
    if max_len is not None:
        max_len = _integer("max_len", max_len, at_least=0)
        if max_len > max_pages * page_size:
            raise ValueError(
                f"max_len must be at most max_pages * page_size = {max_pages * page_size}, "
                f"got {max_len}"
            )
    if max_len is not None and arrays.library_of(seq_lens) != "numpy":
        return max_len
    lengths = arrays.to_numpy(seq_lens)
    longest = int(lengths.max(initial=0))
    if max_len is None:
        _lengths(lengths, "max_pages * page_size", max_pages * page_size)
    else:
        _lengths(lengths, "max_len", max_len)
    if arrays.library_of(block_table) == "numpy":
        _pages(block_table, lengths, k_cache)
    return longest if max_len is None else max_len


def check_paged_decode(q, k_cache, v_cache, block_table, seq_lens):
    """Raise unless the queries are of the sequences that the block table maps to pages.

    What the tables hold is read where they are NumPy arrays; on a GPU that would mean waiting.
    """
    _one_library(q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table, seq_lens=seq_lens)
    _one_dtype(q=q, k_cache=k_cache, v_cache=v_cache)
    _axes("q", q, Q_AXES)
    _last_axis_contiguous("q", q)
    _page_tables(k_cache, v_cache, block_table, seq_lens)
    batch, _, num_heads, head_dim = q.shape
    _fits_grid(batch, num_heads)
    _heads(num_heads, k_cache.shape[2], "k_cache and v_cache")
    if k_cache.shape[3] != head_dim:
        raise ValueError(
            f"k_cache and v_cache must have the head_dim of q, {head_dim}, got {k_cache.shape[3]}"
        )
    if block_table.shape[0] != batch:
        raise ValueError(
            f"block_table must have a row for each of the {batch} sequences of q, "
            f"got {block_table.shape[0]}"
        )
    if arrays.library_of(q) == "numpy":
        most = block_table.shape[1] * k_cache.shape[1]
        _lengths(seq_lens, "max_pages * page_size", most)
        _pages(block_table, seq_lens, k_cache)


def check_write(k, v, k_cache, v_cache, slot_mapping):
    """Raise unless these are tokens, caches to write them to, and a slot for each or −1.

    The slots are read where they are a NumPy array; on a GPU that would mean waiting for it.
    """
    _one_library(k=k, v=v, k_cache=k_cache, v_cache=v_cache, slot_mapping=slot_mapping)
    _caches(k_cache, v_cache)
    _one_dtype(k=k, v=v, k_cache=k_cache, v_cache=v_cache)
    for name, x in (("k", k), ("v", v)):
        _axes(name, x, TOKEN_AXES)
        _last_axis_contiguous(name, x)
    _same_shape("v", v, "k", k)
    if tuple(k.shape[1:]) != tuple(k_cache.shape[2:]):
        raise ValueError(
            "k and v must have the num_kv_heads and head_dim of the caches, "
            f"{tuple(k_cache.shape[2:])}, got {tuple(k.shape[1:])}"
        )
    _int32("slot_mapping", slot_mapping)
    _axes("slot_mapping", slot_mapping, ("num_tokens",))
    if slot_mapping.shape[0] != k.shape[0]:
        raise ValueError(
            f"slot_mapping must have a slot for each of the {k.shape[0]} tokens of k, "
            f"got {slot_mapping.shape[0]}"
        )
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        _writable(name, cache)
    if k_cache is v_cache:
        raise ValueError("v_cache must be another array than k_cache, got one array for both")
    if arrays.library_of(slot_mapping) == "numpy":
        num_slots = k_cache.shape[0] * k_cache.shape[1]
        for i in np.flatnonzero((slot_mapping < -1) | (slot_mapping >= num_slots))[:1]:
            raise ValueError(
                f"slot_mapping[{i}] must be a slot from 0 to {num_slots - 1}, or -1 for a token "
                f"that is not to be written, got {slot_mapping[i]}"
            )
        _no_repeats("slot_mapping", slot_mapping)


def check_copy(k_cache, v_cache, src, dst):
    """Raise unless pages src[i] of the caches can be copied to pages dst[i] in any order.

    The page numbers are read where they are NumPy arrays.
    """
    _one_library(k_cache=k_cache, v_cache=v_cache, src=src, dst=dst)
    _caches(k_cache, v_cache)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        _writable(name, cache)
    _page_numbers(src, dst)
    if arrays.library_of(src) == "numpy":
        _in_cache("src", src, "k_cache", k_cache)
        _in_cache("dst", dst, "k_cache", k_cache)
        _apart(src, dst)


def check_swap(k_src, v_src, k_dst, v_dst, src, dst):
    """Raise unless pages src[i] of one pair of caches can be copied to pages dst[i] of another."""
    _one_library(k_src=k_src, v_src=v_src)
    _one_library(k_dst=k_dst, v_dst=v_dst)
    _caches(k_src, v_src, names=("k_src", "v_src"))
    _caches(k_dst, v_dst, names=("k_dst", "v_dst"))
    _one_dtype(k_src=k_src, k_dst=k_dst)
    if tuple(k_src.shape[1:]) != tuple(k_dst.shape[1:]):
        raise ValueError(
            f"k_dst and v_dst must have the pages of k_src, {tuple(k_src.shape[1:])}, "
            f"got {tuple(k_dst.shape[1:])}"
        )
    if "numpy" not in (arrays.library_of(k_src), arrays.library_of(k_dst)):
        _one_library(k_src=k_src, k_dst=k_dst)
    for name, cache in (("k_dst", k_dst), ("v_dst", v_dst)):
        _writable(name, cache)
    for name, x in (("src", src), ("dst", dst)):
        if arrays.library_of(x) != "numpy":
            raise TypeError(
                f"{name} must be a NumPy array: the page numbers are needed on the host, "
                f"got {type(x).__name__}"
            )
    _page_numbers(src, dst)
    _in_cache("src", src, "k_src", k_src)
    _in_cache("dst", dst, "k_dst", k_dst)
    if k_src is k_dst or v_src is v_dst:
        _apart(src, dst)


def check_pool(num_pages, page_size):
    """The sizes of a page pool as ints."""
    num_pages = _integer("num_pages", num_pages, at_least=1)
    page_size = _integer("page_size", page_size, at_least=1)
    _slots_fit("num_pages * page_size", num_pages * page_size)
    return num_pages, page_size


def check_pools(pool, host_pool):
    """Raise unless these are pools, one or two, with pages of one size."""
    for name, x in (("pool", pool), ("host_pool", pool if host_pool is None else host_pool)):
        if not hasattr(x, "page_size"):
            raise TypeError(f"{name} must be a PagePool, got {type(x).__name__}")
    if host_pool is pool:
        raise ValueError("host_pool must be another pool than pool, got the same")
    if host_pool is not None and host_pool.page_size != pool.page_size:
        raise ValueError(
            f"host_pool must have the page_size of pool, {pool.page_size}, "
            f"got {host_pool.page_size}"
        )


def check_request(request, running, waiting):
    """Raise unless a scheduler has this request."""
    if request not in running and request not in waiting:
        raise ValueError(f"request must be one that runs or waits here, got {request!r:.60}")


def check_seq(seq, sequences):
    """Raise unless `seq` is one of the sequences of a page pool."""
    seq = _integer("seq", seq)
    if seq not in sequences:
        raise ValueError(f"seq must be a sequence of this pool, not freed, got {seq}")


def check_seqs(seqs):
    """The sequences as a list, whatever they are."""
    try:
        return list(seqs)
    except TypeError:
        raise TypeError(f"seqs must be a sequence of integers, got {seqs!r:.60}") from None


def check_page(page, num_pages):
    """The number of a page of a pool, as an int."""
    page = _integer("page", page)
    if not 0 <= page < num_pages:
        raise ValueError(f"page must be a page of this pool, from 0 to {num_pages - 1}, got {page}")
    return page


def check_number(number):
    """How many samples to make, as an int."""
    return _integer("number", number, at_least=1)


def check_beams(seqs, parents, sequences):
    """The beams, and for each new one the index of the one that it continues, as lists of ints."""
    seqs = check_seqs(seqs)
    for seq in seqs:
        check_seq(seq, sequences)
        if seqs.count(seq) > 1:
            raise ValueError(f"seqs must name no sequence twice, got {seqs}")
    try:
        indices = [operator.index(parent) for parent in parents]
    except TypeError:
        raise TypeError(f"parents must be a sequence of integers, got {parents!r:.60}") from None
    for i, parent in enumerate(indices):
        if not 0 <= parent < len(seqs):
            raise ValueError(
                f"parents[{i}] must be the index of one of the {len(seqs)} beams, got {parent}"
            )
    return seqs, indices


def check_tokens(tokens):
    """The tokens of a sequence as a list of ints."""
    if isinstance(tokens, (Mapping, Set)):
        raise TypeError(
            f"tokens must be a sequence of integers, got {tokens!r:.60}, which has no order"
        )
    try:
        checked = [_token(token) for token in tokens]
    except TypeError:
        raise TypeError(f"tokens must be a sequence of integers, got {tokens!r:.60}") from None
    try:
        np.array(checked, np.int64)  # as they are hashed
    except OverflowError:
        raise ValueError(
            f"tokens must be integers that an int64 can hold, got {tokens!r:.60}"
        ) from None
    return checked


def _token(token):
    if isinstance(token, bool):
        raise TypeError
    return operator.index(token)


def check_new_tokens(tokens):
    """The new tokens of each sequence as a dict of lists of ints."""
    if not isinstance(tokens, Mapping):
        raise TypeError(
            "tokens must be a dict of the new tokens of each sequence, {seq: [token]}, "
            f"got {tokens!r:.60}"
        )
    return {seq: check_tokens(new) for seq, new in tokens.items()}


def check_feature_map(feature_map, weights, q, k):
    """The weights of the feature map, (w_q, w_k); (None, None) for a map that has none."""
    if not isinstance(feature_map, str) or feature_map not in FEATURE_MAPS:
        *others, last = (f'"{name}"' for name in FEATURE_MAPS)
        raise ValueError(f"feature_map must be {', '.join(others)} or {last}, got {feature_map!r}")
    if feature_map != "hedgehog":
        if weights is not None:
            raise ValueError(
                f"weights must be None for {feature_map=}, got {type(weights).__name__}: "
                'they are for feature_map="hedgehog"'
            )
        return None, None
    if not isinstance(weights, (tuple, list)) or len(weights) != 2:
        raise TypeError(f"weights must be a pair (w_q, w_k), got {type(weights).__name__}")
    w_q, w_k = weights
    _one_library(q=q, w_q=w_q, w_k=w_k)
    _one_dtype(q=q, w_q=w_q, w_k=w_k)
    for name, w, heads, x in (("w_q", w_q, "num_heads", q), ("w_k", w_k, "num_kv_heads", k)):
        _axes(name, w, (heads, "head_dim", "num_features"))
        _last_axis_contiguous(name, w)
        if tuple(w.shape[:2]) != tuple(x.shape[2:]):
            raise ValueError(
                f"{name} must have ({heads}, head_dim) = {tuple(x.shape[2:])} before its features, "
                f"got shape {tuple(w.shape)}"
            )
    if w_q.shape[2] != w_k.shape[2] or w_q.shape[2] == 0:
        raise ValueError(
            "w_q and w_k must have equally many features, at least 1, "
            f"got {w_q.shape[2]} and {w_k.shape[2]}"
        )
    return w_q, w_k


def check_linear_form(form, causal, q, k):
    """How to compute linear attention, "recurrent" or "chunked"; None is chosen."""
    if form is not None and not (isinstance(form, str) and form in ("recurrent", "chunked")):
        raise ValueError(f'form must be "recurrent", "chunked" or None, got {form!r}')
    seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    if causal and seqlen_q != seqlen_k:
        raise ValueError(
            "q and k must have one length where causal=True: keys before them are seen through "
            f"state, got {seqlen_q=} and {seqlen_k=}"
        )
    group_size = q.shape[2] // k.shape[2]
    if form == "recurrent":
        if not causal:
            raise ValueError('form="recurrent" must have causal=True, got causal=False')
        if group_size > MAX_GROUP_SIZE:
            raise ValueError(
                f'form="recurrent" must have num_heads / num_kv_heads of at most {MAX_GROUP_SIZE}, '
                f"which a thread keeps, got {group_size}"
            )
    if form is None:
        return "recurrent" if recurrent_by_default(causal, seqlen_q, group_size) else "chunked"
    return form


def check_tokens_of_a_chunk(chunk_size):
    """The size of linear attention's chunks as an int."""
    chunk_size = _integer("chunk_size", chunk_size, at_least=1)
    if chunk_size > MAX_CHUNK_SIZE:
        raise ValueError(
            f"chunk_size must be at most {MAX_CHUNK_SIZE}, the rows of a tile, got {chunk_size}"
        )
    return chunk_size


def check_state(state, q, shape):
    """Raise unless `state` is one that linear attention of these sizes has returned."""
    _one_library(q=q, state=state)
    _float32("state", state)
    if tuple(state.shape) != shape:
        raise ValueError(
            f"state must have shape (batch, num_kv_heads, feature_dim, head_dim + 1) = {shape}, "
            f"got {tuple(state.shape)}"
        )
    _last_axis_contiguous("state", state)


def check_causal(causal):
    """The flag as a bool."""
    return check_flag("causal", causal)


def check_flag(name, flag):
    """A flag as a bool; what is only true or false in an `if` is none."""
    if not isinstance(flag, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {flag!r}")
    return bool(flag)


def check_window_size(window_size):
    """The two sides as a tuple of ints."""
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise TypeError(f"window_size must be a tuple (left, right), got {window_size!r}")
    left = _integer("window_size[0]", window_size[0], at_least=-1)
    right = _integer("window_size[1]", window_size[1], at_least=-1)
    return min(left, MAX_WINDOW), min(right, MAX_WINDOW)


@_remembers_values
def check_softcap(softcap):
    """The cap as a float that float32 can hold; 0.0 is none."""
    if isinstance(softcap, (bool, np.bool_)) or not isinstance(softcap, numbers.Real):
        raise TypeError(f"softcap must be a number, got {type(softcap).__name__}")
    cap = _in_float32(softcap)
    if not np.isfinite(cap) or cap < 0 or (cap == 0 and softcap != 0):
        raise ValueError(
            f"softcap must be 0, or positive and finite in float32, got {softcap!s:.40}"
        )
    return float(cap)


def check_mask(q, causal, window_size, softcap, alibi_slopes):
    """What the kernels take of the options that mask and bend scores.

    Returns
    -------
    (CAUSAL, WINDOW, SOFTCAP, ALIBI) : their compile-time constants
        The same for options that mean the same: a causal mask leaves nothing of the right side.
    alibi_slopes : array, or a scalar that is not looked at
    """
    causal, (left, right) = check_causal(causal), check_window_size(window_size)
    alibi = alibi_slopes is not None
    constants = causal, (left, -1 if causal else right), check_softcap(softcap), alibi
    if not alibi:
        return constants, NO_SLOPES
    _one_library(q=q, alibi_slopes=alibi_slopes)
    _float32("alibi_slopes", alibi_slopes)
    _axes("alibi_slopes", alibi_slopes, ("num_heads",))
    if alibi_slopes.shape[0] != q.shape[-2]:
        raise ValueError(
            f"alibi_slopes must have one slope for each of the {q.shape[-2]} heads of q, "
            f"got {alibi_slopes.shape[0]}"
        )
    return constants, alibi_slopes


@_remembers_values
def check_dropout(dropout_p, seed):
    """The probability as a float, and the seed as the uint64 that the kernels take."""
    if isinstance(dropout_p, (bool, np.bool_)) or not isinstance(dropout_p, numbers.Real):
        raise TypeError(f"dropout_p must be a number, got {type(dropout_p).__name__}")
    if not (0 <= dropout_p < 1 and float(dropout_p) < 1):
        raise ValueError(f"dropout_p must be at least 0 and less than 1, got {dropout_p!s:.40}")
    seed = _integer("seed", seed, at_least=0)
    if seed >= 2**64:
        raise ValueError(f"seed must be less than 2**64, got {seed!s:.40}")
    return float(dropout_p), np.uint64(seed)


@_remembers_values
def check_softmax_scale(softmax_scale, head_dim):
    """The scale as float32, 1/√head_dim for None."""
    if softmax_scale is None:
        return np.float32(1 / math.sqrt(head_dim))
    if isinstance(softmax_scale, (bool, np.bool_)) or not isinstance(softmax_scale, numbers.Real):
        raise TypeError(
            f"softmax_scale must be a number or None, got {type(softmax_scale).__name__}"
        )
    scale = _in_float32(softmax_scale)
    if not np.isfinite(scale):
        raise ValueError(f"softmax_scale must be finite in float32, got {softmax_scale!s:.40}")
    return scale


def check_positive_scale(softmax_scale, head_dim):
    """The scale as `check_softmax_scale` gives it, for kernels that take it out of the maximum."""
    scale = check_softmax_scale(softmax_scale, head_dim)
    if scale <= 0:
        raise ValueError(f"softmax_scale must be positive for this kernel, got {softmax_scale}")
    return scale


def check_block_sizes(kernel_name, head_dim, block_m, block_n, *, num_rows=math.inf):
    """The tile sizes to run with, (block_m, block_n); None is chosen."""
    best_m, best_n = kernel_block_sizes(kernel_name, head_dim, num_rows=num_rows)
    block_m = best_m if block_m is None else _integer("block_m", block_m, at_least=1)
    block_n = best_n if block_n is None else _integer("block_n", block_n, at_least=1)
    if block_m * block_n > MAX_THREADS:
        raise ValueError(
            f"block_m * block_n is the number of threads and must be at most {MAX_THREADS}, "
            f"got {block_m} * {block_n} = {block_m * block_n}"
        )
    needed = shared_bytes(kernel_name, head_dim, block_m, block_n)
    if needed > STATIC_SHARED_BYTES:
        raise ValueError(
            f"block_m and block_n must leave the tiles within {STATIC_SHARED_BYTES} bytes of "
            f"shared memory, got {block_m} and {block_n}, which need {needed} at {head_dim=}"
        )
    return block_m, block_n


def check_forward_tiles(q, head_dim, block_m, block_n):
    """The tile sizes of `flash_attn_registers`, (block_m, block_n); None is chosen."""
    limit = arrays.shared_bytes_per_block(q)
    best_m, best_n = register_tiling.forward_block_sizes(head_dim, limit)
    block_m = _tile_size("block_m", block_m, best_m)
    block_n = _tile_size("block_n", block_n, best_n)
    if not register_tiling.forward_fits(head_dim, block_m, block_n, limit):
        raise ValueError(
            f"block_m and block_n must fit the registers and the {limit} bytes of shared memory "
            f"of a thread block at {head_dim=}, got {block_m} and {block_n}"
        )
    return block_m, block_n


def check_backward_tiles(q, head_dim, tile_size):
    """The size of the tiles of `flash_attn_bwd_registers`; None is chosen."""
    limit = arrays.shared_bytes_per_block(q)
    best = register_tiling.backward_tile_size(head_dim, limit)
    sizes = register_tiling.BACKWARD_SIZES
    if tile_size is not None and _integer("tile_size", tile_size, at_least=1) not in sizes:
        *others, last = map(str, sizes)
        raise ValueError(f"tile_size must be {', '.join(others)} or {last}, got {tile_size}")
    tile_size = tile_size or best or sizes[0]
    needed = register_tiling.backward_tiling(head_dim, tile_size).shared_bytes
    if needed > limit:
        raise ValueError(
            f"tile_size must leave the tiles within the {limit} bytes of shared memory that a "
            f"thread block has here, got {tile_size}, which needs {needed} at {head_dim=}"
            + ("" if best else "; flash_attn_bwd runs here")
        )
    return tile_size


def _tile_size(name, value, chosen):
    """A size that tiles in registers may have; None is chosen."""
    if value is None:
        return chosen
    value = _integer(name, value, at_least=1)
    if value not in register_tiling.SIZES:
        *sizes, last = register_tiling.SIZES
        raise ValueError(f"{name} must be {', '.join(map(str, sizes))} or {last}, got {value}")
    return value


def check_block_mask(block_mask, q, k, block_m, block_n):
    """Raise unless `block_mask` has a bool for every tile of scores, beside q and k."""
    _one_library(q=q, block_mask=block_mask)
    if arrays.dtype_name(block_mask) != "bool":
        raise TypeError(f"block_mask must be bool, got {arrays.dtype_name(block_mask)}")
    _axes("block_mask", block_mask, ("num_m_tiles", "num_n_tiles"))
    num_tiles = ceil_div(q.shape[1], block_m), ceil_div(k.shape[1], block_n)
    if tuple(block_mask.shape) != num_tiles:
        raise ValueError(
            f"block_mask must have shape (num_m_tiles, num_n_tiles) = {num_tiles} for {block_m=} "
            f"and {block_n=}, got {tuple(block_mask.shape)}"
        )


def _one_library(**named):
    """Raise unless every argument is an array that kernels take, of one library and device."""
    libraries = {name: arrays.library_of(x) for name, x in named.items()}
    for name, library in libraries.items():
        if library is None:
            raise TypeError(_no_array(name, named[name]))
        if isinstance(named[name], np.ma.MaskedArray):
            raise TypeError(
                f"{name} must be a plain NumPy array, got numpy.ma.MaskedArray: kernels do not "
                "look at its mask"
            )
    if len(set(libraries.values())) > 1:
        got = ", ".join(
            f"{name}: {arrays.LIBRARIES[library]}" for name, library in libraries.items()
        )
        hints = (TO_LIBRARY[library] for library in TO_LIBRARY if library in libraries.values())
        raise TypeError(
            f"{', '.join(named)} must be arrays of one library, got {got}. "
            f"Nothing is copied silently: convert the others first, with {next(hints)}"
        )
    devices = {name: arrays.device_of(x) for name, x in named.items()}
    if len(set(devices.values())) > 1:
        got = ", ".join(f"{name}: {device}" for name, device in devices.items())
        raise ValueError(f"{', '.join(named)} must be on one GPU, got {got}")


def _no_array(name, x):
    kind = f"{type(x).__module__.partition('.')[0]}.{type(x).__name__}".removeprefix("builtins.")
    if kind.startswith("torch."):
        return (
            f"{name} must be a CUDA tensor, got a PyTorch tensor in CPU memory: {name}.cuda() runs "
            f"on the GPU, {name}.numpy() on the CPU engine"
        )
    *others, last = arrays.LIBRARIES.values()
    return f"{name} must be a {', '.join(others)} or {last}, got {kind}"


def _one_dtype(**named):
    """Raise unless the arguments are of one dtype that kernels load and store."""
    dtypes = {name: arrays.dtype_name(x) for name, x in named.items()}
    for name, got in dtypes.items():
        if got not in FLOATS:
            raise TypeError(
                f"{name} must be float32, float16 or bfloat16, got {got}"
                f"{_conversion(name, named[name], 'float32')}"
            )
        if got == "bfloat16" and not arrays.knows_bfloat16():
            raise ImportError(
                f"{name} is bfloat16, for which Numba needs the package ml_dtypes: "
                "pip install ml_dtypes"
            )
    if len(set(dtypes.values())) > 1:
        got = ", ".join(f"{name}: {dtype}" for name, dtype in dtypes.items())
        raise TypeError(f"{', '.join(named)} must be of one dtype, got {got}")


def _float32(name, x):
    if arrays.dtype_name(x) != "float32":
        conversion = _conversion(name, x, "float32")
        raise TypeError(f"{name} must be float32, got {arrays.dtype_name(x)}{conversion}")


def _int32(name, x):
    if arrays.dtype_name(x) != "int32":
        conversion = _conversion(name, x, "int32")
        raise TypeError(f"{name} must be int32, got {arrays.dtype_name(x)}{conversion}")


def _conversion(name, x, dtype):
    """How an array becomes one of a dtype, where that is what somebody wants who has this one."""
    same_kind = "int" if dtype == "int32" else "float"
    if not arrays.dtype_name(x).removeprefix("u").startswith(same_kind):
        return ""
    is_torch = arrays.library_of(x) == "torch"
    return f": {name}.to(torch.{dtype})" if is_torch else f': {name}.astype("{dtype}")'


def _lengths(seq_lens, most, limit):
    for b in np.flatnonzero((seq_lens < 0) | (seq_lens > limit))[:1]:
        raise ValueError(f"seq_lens[{b}] must be from 0 to {most} = {limit}, got {seq_lens[b]}")


def _starts(name, starts, x_name, num_tokens):
    """Raise unless these cut num_tokens tokens, those of `x_name`, into sequences."""
    needed = 2 if num_tokens else 1
    if starts.shape[0] < needed:
        raise ValueError(
            f"{name} must have batch + 1 numbers, at least {needed} for the {num_tokens} tokens "
            f"of {x_name}, got {starts.shape[0]}"
        )
    if arrays.library_of(starts) != "numpy":
        return
    if starts[0] != 0:
        raise ValueError(f"{name}[0] must be 0, where the first sequence begins, got {starts[0]}")
    for b in np.flatnonzero(starts[1:] < starts[:-1])[:1]:
        raise ValueError(
            f"{name} must nowhere fall, got {name}[{b}] = {starts[b]} and "
            f"{name}[{b + 1}] = {starts[b + 1]}"
        )
    if starts[-1] != num_tokens:
        raise ValueError(
            f"{name} must end with the number of tokens of {x_name}, {num_tokens}, got {starts[-1]}"
        )


def _page_tables(k_cache, v_cache, block_table, seq_lens):
    """Raise unless these are a paged cache and its tables, whatever the tables hold."""
    _one_library(k_cache=k_cache, v_cache=v_cache, block_table=block_table, seq_lens=seq_lens)
    _caches(k_cache, v_cache)
    for name, x, axes in (
        ("block_table", block_table, ("batch", "max_pages")),
        ("seq_lens", seq_lens, ("batch",)),
    ):
        _int32(name, x)
        _axes(name, x, axes)
    batch = block_table.shape[0]
    if seq_lens.shape[0] != batch:
        raise ValueError(
            f"seq_lens must have one length for each of the {batch} rows of block_table, "
            f"got {seq_lens.shape[0]}"
        )


def _caches(k_cache, v_cache, names=("k_cache", "v_cache")):
    """Raise unless these are the keys and values of one paged cache."""
    caches = dict(zip(names, (k_cache, v_cache), strict=True))
    _one_dtype(**caches)
    for name, cache in caches.items():
        _axes(name, cache, CACHE_AXES)
        _last_axis_contiguous(name, cache)
    k_name, v_name = names
    _same_shape(v_name, v_cache, k_name, k_cache)
    _, page_size, num_kv_heads, head_dim = k_cache.shape
    _head_dim(k_name, head_dim)
    if page_size == 0 or num_kv_heads == 0:
        raise ValueError(
            f"{k_name} must have page_size and num_kv_heads of at least 1, got {page_size=}, "
            f"{num_kv_heads=}"
        )


def _page_numbers(src, dst):
    """Raise unless src and dst are as many page numbers, whatever these are."""
    for name, x in (("src", src), ("dst", dst)):
        _int32(name, x)
        _axes(name, x, ("num_copies",))
    _same_shape("dst", dst, "src", src)
    if arrays.library_of(dst) == "numpy":
        _no_repeats("dst", dst)


def _in_cache(name, pages, cache_name, cache):
    num_pages = cache.shape[0]
    for i in np.flatnonzero((pages < 0) | (pages >= num_pages))[:1]:
        raise ValueError(
            f"{name}[{i}] must be a page of {cache_name}, from 0 to {num_pages - 1}, got {pages[i]}"
        )


def _apart(src, dst):
    """Raise where a page is both copied and overwritten."""
    for i in np.flatnonzero(np.isin(dst, src))[:1]:
        raise ValueError(
            "src and dst must have no page in common, because the copies are made in any "
            f"order, got dst[{i}] = {dst[i]}, which is also src[{np.argmax(src == dst[i])}]"
        )


def _no_repeats(name, x):
    """Raise where a place is named twice; -1, which is none, may be there often."""
    places, counts = np.unique(x[x >= 0], return_counts=True)
    for place in places[counts > 1][:1]:
        i, j = np.flatnonzero(x == place)[:2]
        raise ValueError(
            f"{name} must name no place twice, got {name}[{i}] = {name}[{j}] = {place}"
        )


def _writable(name, x):
    if arrays.library_of(x) == "numpy" and not x.flags.writeable:
        raise ValueError(
            f"{name} must be writable, because it is changed in place, got a read-only array"
        )


def _pages(block_table, lengths, k_cache):
    """Raise unless each page that a length reaches is one of the cache."""
    num_pages, page_size = k_cache.shape[:2]
    used = np.arange(block_table.shape[1]) * page_size < lengths[:, None]
    for b, i in np.argwhere(used & ((block_table < 0) | (block_table >= num_pages)))[:1]:
        raise ValueError(
            f"block_table[{b}, {i}] must be a page from 0 to {num_pages - 1}, because "
            f"seq_lens[{b}] = {lengths[b]} reaches it, got {block_table[b, i]}"
        )


def _heads(num_heads, num_kv_heads, both):
    """Raise unless each head of K and V, called `both`, serves as many query heads."""
    if num_heads == 0:
        raise ValueError("q must have at least one head, got num_heads=0")
    if num_kv_heads == 0 or num_heads % num_kv_heads:
        raise ValueError(
            f"the heads of {both} must divide the heads of q (MHA, GQA, MQA), "
            f"got {num_kv_heads=} for {num_heads=}"
        )


def _heads_before_tokens(name, k):
    """Warn where an array looks as if its heads came before its tokens, PyTorch's layout."""
    _, seqlen_k, num_kv_heads, _ = k.shape
    if num_kv_heads > MANY_KV_HEADS and num_kv_heads > seqlen_k > 0:
        warnings.warn(
            f"{name} has {num_kv_heads} heads and {seqlen_k} keys: is it (batch, num_kv_heads, "
            "seqlen_k, head_dim)? The axes here are (batch, seqlen_k, num_kv_heads, head_dim); "
            f"{name}.transpose(0, 2, 1, 3), in PyTorch {name}.transpose(1, 2), has them",
            stacklevel=3,
        )


def _lse_shape(name, lse, shape):
    if tuple(lse.shape) != shape:
        raise ValueError(
            f"{name} must have shape (batch, num_heads, seqlen_q) = {shape}, got {tuple(lse.shape)}"
        )


def _axes(name, x, axes):
    if len(x.shape) != len(axes):
        raise ValueError(f"{name} must have axes ({', '.join(axes)}), got shape {tuple(x.shape)}")


def _same_shape(name, x, like_name, like):
    if tuple(x.shape) != tuple(like.shape):
        raise ValueError(
            f"{name} must have the shape of {like_name}, {tuple(like.shape)}, got {tuple(x.shape)}"
        )


def _last_axis_contiguous(name, x):
    if not arrays.last_axis_contiguous(x):
        raise ValueError(
            f"{name} must be contiguous along its last axis, got a view with gaps there: "
            "make it contiguous first (np.ascontiguousarray, cupy.ascontiguousarray, .contiguous())"
        )


def _head_dim(name, head_dim):
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"{name} must have head_dim from 1 to {MAX_HEAD_DIM}, got {head_dim}")


def _fits_grid(batch, num_heads):
    for name, size in (("batch", batch), ("num_heads", num_heads)):
        if size > MAX_GRID:
            raise ValueError(f"{name} must be at most {MAX_GRID}, got {size}")


def _slots_fit(what, num_slots):
    if num_slots > 2**31:
        raise ValueError(
            f"{what} must be at most 2**31, so that a slot fits an int32, got {num_slots}"
        )


def _in_float32(value):
    """A real number in float32: infinite where it is too large for that, or even for a float."""
    with np.errstate(over="ignore", under="ignore"):
        try:
            return np.float32(value)
        except OverflowError:
            return np.float32(np.inf)


def _integer(name, value, *, at_least=-math.inf):
    if type(value) is int and value >= at_least:
        return value
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}")
    return int(value)
