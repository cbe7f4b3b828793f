"""Single requirements on arrays, which the checks combine. Each raises, and names the argument.

Every function takes `Facts` (fa_numba.runtime.arrays), so that an array is read once in a call.
"""

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fa_numba.checks.refused import RefusedValueError
from fa_numba.runtime import arrays
from fa_numba.runtime.arrays import facts

PACKAGE = Path(__file__).parents[1]
FLOATS = ("float32", "float16", "bfloat16")  # dtypes of q, k, v, and of arrays like them
MAX_HEAD_DIM = 256  # of q, k and v, unless a function says more: see HeadDims
MAX_WIDE_HEAD_DIM = 512
MAX_ROW_DIM = 576  # DeepSeek's, whose tile of keys fills 36 KiB of shared memory
MAX_GROUP_OF_BYTES = 256  # heads of q for a head of K in e4m3
MAX_GRID = 65535  # thread blocks along y and z of a CUDA grid: one for each head and batch entry
MANY_KV_HEADS = 128  # more than any model has

Q_AXES = ("batch", "seqlen_q", "num_heads", "head_dim")
K_AXES = ("batch", "seqlen_k", "num_kv_heads", "head_dim")

WITH_GRADIENTS = (
    "call flash_attn_func, flash_attn_varlen_func or scaled_dot_product_attention of "
    "fa_numba.torch, or "
)
AUTOCAST = "; torch.autocast casts to bfloat16 unless it is given another dtype"
TO_LIBRARY = {
    "cupy": "cupy.asarray(x)",
    "torch": 'torch.as_tensor(x, device="cuda")',
    "numba": "numba.cuda.to_device(x)",
}


# Where arrays are, and their dtypes


def require_one_library(**named):
    """Raise unless all arguments are arrays that kernels take, of one library and on one device."""
    for name, x in named.items():
        if x.library is None:
            raise TypeError(_not_an_array(name, x.array))
        if x.strides is None:
            raise TypeError(
                f"{name} must be a dense tensor, got one of layout {x.array.layout}: "
                f"{name}.to_dense()"
            )
        if x.needs_gradient:
            raise ValueError(
                f"{name} must not require a gradient, because this function records none, got a "
                f"tensor with requires_grad=True: {WITH_GRADIENTS if 'q' in named else ''}"
                f"pass {name}.detach()"
            )
        if isinstance(x.array, np.ma.MaskedArray):
            raise TypeError(
                f"{name} must be a plain NumPy array, got numpy.ma.MaskedArray: kernels ignore its "
                "mask"
            )
    if len({x.library for x in named.values()}) > 1:
        got = ", ".join(f"{name}: {arrays.LIBRARIES[x.library]}" for name, x in named.items())
        given = [x.library for x in named.values()]
        hint = next(TO_LIBRARY[library] for library in TO_LIBRARY if library in given)
        raise TypeError(
            f"{', '.join(named)} must be arrays of one library, got {got}. "
            f"Nothing is copied silently: convert the others first, with {hint}"
        )
    if len({x.device for x in named.values()}) > 1:
        got = ", ".join(f"{name}: {x.device}" for name, x in named.items())
        raise ValueError(f"{', '.join(named)} must be on one GPU, got {got}")


def _not_an_array(name, x):
    kind = f"{type(x).__module__.partition('.')[0]}.{type(x).__name__}".removeprefix("builtins.")
    if kind.startswith("torch."):
        where = getattr(getattr(x, "device", None), "type", "cpu")
        where = "in CPU memory" if where == "cpu" else f"on the device {where}"
        return (
            f"{name} must be a CUDA tensor, got a PyTorch tensor {where}: {name}.cuda() runs on "
            f"the GPU, {name}.numpy() on the CPU; fa_numba.torch takes both"
        )
    *others, last = arrays.LIBRARIES.values()
    return f"{name} must be a {', '.join(others)} or {last}, got {kind}"


def require_one_dtype(mixed_with=None, **named):
    """Raise unless all arguments have one dtype, one that kernels load and store.

    Of an argument, `Facts` or not, only `dtype` and `library` are read. `mixed_with` is a dtype
    that all may have: one of them with it is told as a mixture.
    """
    for name, x in named.items():
        if x.dtype == mixed_with:
            continue
        if x.dtype not in FLOATS:
            raise TypeError(
                f"{name} must be float32, float16 or bfloat16, got {x.dtype}"
                f"{_conversion(name, x, 'float32')}"
            )
        if x.dtype == "bfloat16" and not arrays.knows_bfloat16():
            raise ImportError(
                f"{name} is bfloat16, for which Numba needs the package ml_dtypes: "
                f"pip install ml_dtypes{AUTOCAST if x.library == 'torch' else ''}"
            )
    if len({x.dtype for x in named.values()}) > 1:
        got = ", ".join(f"{name}: {x.dtype}" for name, x in named.items())
        raise TypeError(f"{', '.join(named)} must be of one dtype, got {got}")


def require_cache_dtypes(q, k_cache, v_cache, k_scale, v_scale):
    """Raise unless caches are of the dtype of q, or bytes with a scale for each head or token.

    `Facts`; the scales are None without bytes, or arrays.
    """
    named = {"q": q, "k_cache": k_cache, "v_cache": v_cache}
    if k_scale is v_scale is None and "uint8" not in (k_cache.dtype, v_cache.dtype):
        require_one_dtype(**named)
        return
    require_one_dtype(q=q)
    require_bytes(k_cache, v_cache, k_scale, v_scale)
    require_one_library(**named, k_scale=facts(k_scale), v_scale=facts(v_scale))


def require_group_of_bytes(q, k_cache):
    """Raise if more heads of q share bytes of one head than the CPU's job has rows for."""
    if k_cache.dtype == "uint8" and q.shape[2] > MAX_GROUP_OF_BYTES * k_cache.shape[2]:
        raise ValueError(
            f"k_cache must have a head for at most {MAX_GROUP_OF_BYTES} heads of q if it is uint8, "
            f"got {k_cache.shape[2]} for {q.shape[2]}"
        )


def require_bytes(k_cache, v_cache, k_scale, v_scale):
    """Raise unless caches are bytes of e4m3, and scales are of their heads or tokens."""
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.dtype != "uint8":
            view = "torch.uint8" if cache.library == "torch" else '"uint8"'
            hint = "only bytes have scales, and both caches are of one dtype"
            hint = f"{name}.view({view})" if cache.dtype == "float8_e4m3fn" else hint
            raise TypeError(
                f"{name} must be uint8, the bytes of e4m3, because k_scale and v_scale are given, "
                f"got {cache.dtype}: {hint}"
            )
    per_head, per_token = k_cache.shape[2:3], k_cache.shape[:3]
    for name, x in (("k_scale", k_scale), ("v_scale", v_scale)):
        if x is None:
            raise TypeError(
                f"{name} must be an array, because k_cache and v_cache are uint8, the bytes of "
                "e4m3, got None"
            )
        x = facts(x)
        require_one_library(**{"k_cache": k_cache, name: x})
        require_dtype(name, x, "float32")
        if x.shape not in (per_head, per_token):
            raise ValueError(
                f"{name} must have a scale for each head, shape {per_head}, or for each token and "
                f"head, shape {per_token}, got {x.shape}"
            )
    require_same_shape("v_scale", facts(v_scale), "k_scale", facts(k_scale))


def require_dtype(name, x, dtype):
    """Raise unless an array is "float32", or "int32"."""
    if x.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}, got {x.dtype}{_conversion(name, x, dtype)}")


def _conversion(name, x, dtype):
    """Say how to convert an array to a dtype, unless it holds numbers of another kind."""
    same_kind = "int" if dtype == "int32" else "float"
    if not x.dtype.removeprefix("u").startswith(same_kind):
        return ""
    is_torch = x.library == "torch"
    return f": {name}.to(torch.{dtype})" if is_torch else f': {name}.astype("{dtype}")'


def require_writable(name, x):
    """Raise for a read-only NumPy array."""
    if x.library == "numpy" and not x.array.flags.writeable:
        raise ValueError(
            f"{name} must be writable, because it is changed in place, got a read-only array"
        )


# Shapes


def require_axes(name, x, axes):
    """Raise unless an array has as many axes as there are names."""
    if len(x.shape) != len(axes):
        raise ValueError(f"{name} must have axes ({', '.join(axes)}), got shape {x.shape}")


def require_rows(axes, **named):
    """Raise unless arrays have these axes, and no gaps between neighbours along the last one."""
    for name, x in named.items():
        require_axes(name, x, axes)
        require_last_axis_contiguous(name, x)


def require_int32(axes, **named):
    """Raise unless arrays are int32 and have these axes."""
    for name, x in named.items():
        require_dtype(name, x, "int32")
        require_axes(name, x, axes)


def require_one_for_each(name, x, what, count, of):
    """Raise unless an array is as long as there are sequences, heads or tokens."""
    if x.shape[0] != count:
        raise ValueError(f"{name} must have {what} for each of the {count} {of}, got {x.shape[0]}")


def require_same_shape(name, x, like_name, like):
    """Raise unless x has the shape of `like`."""
    if x.shape != like.shape:
        raise ValueError(f"{name} must have the shape of {like_name}, {like.shape}, got {x.shape}")


def require_last_axis_contiguous(name, x):
    """Raise for gaps between neighbours along the last axis."""
    if not x.last_axis_contiguous:
        raise ValueError(
            f"{name} must be contiguous along its last axis, got a view with gaps there: "
            "make it contiguous first (np.ascontiguousarray, cupy.ascontiguousarray, .contiguous())"
        )


@dataclass(frozen=True)
class HeadDims:
    """The sizes of the last axis of q, k and v that a function takes.

    Attributes
    ----------
    most : int, default=256
    v_differs : bool, default=False
        v may have another head_dim than q and k. That of out is v's.
    """

    most: int = MAX_HEAD_DIM
    v_differs: bool = False

    def check(self, **named):
        """Raise unless q, k and v, by their names and in this order, have such head_dims."""
        (q_name, q), (k_name, k), (v_name, v) = named.items()
        require_head_dim(q_name, q.shape[-1], self.most)
        if k.shape[-1] != q.shape[-1]:
            both = f"{k_name} and {v_name}" if k.shape == v.shape else k_name
            raise ValueError(
                f"{both} must have the head_dim of {q_name}, {q.shape[-1]}, got {k.shape[-1]}"
            )
        self.check_values(**{k_name: k, v_name: v})

    def check_values(self, **named):
        """Raise unless k and v, by their names, are keys and values of the same tokens."""
        (k_name, k), (v_name, v) = named.items()
        require_head_dim(k_name, k.shape[-1], self.most)
        if self.v_differs:
            if v.shape[:-1] != k.shape[:-1]:
                raise ValueError(
                    f"{v_name} must have the shape of {k_name}, {k.shape}, but for the last axis, "
                    f"got {v.shape}"
                )
            require_head_dim(v_name, v.shape[-1], self.most)
        elif v.shape != k.shape:
            raise RefusedValueError(
                f"{v_name} must have the shape of {k_name}, {k.shape}, got {v.shape}"
            )


ONE_HEAD_DIM = HeadDims()
WIDE_HEAD_DIM = HeadDims(MAX_WIDE_HEAD_DIM)
ANY_HEAD_DIMS = HeadDims(MAX_WIDE_HEAD_DIM, v_differs=True)


def require_head_dim(name, head_dim, most=MAX_HEAD_DIM):
    """Raise unless a kernel can hold a row of so many columns."""
    if not 1 <= head_dim <= most:
        raise RefusedValueError(f"{name} must have head_dim from 1 to {most}, got {head_dim}")


def require_divisible_heads(num_heads, num_kv_heads, kv_names, hint="", q_name="q"):
    """Raise unless every head of K and V serves the same number of query heads."""
    if num_heads == 0:
        raise ValueError(f"{q_name} must have at least one head, got num_heads=0")
    if num_kv_heads == 0 or num_heads % num_kv_heads:
        raise ValueError(
            f"the heads of {kv_names} must divide the heads of {q_name} (MHA, GQA, MQA), "
            f"got {num_kv_heads=} for {num_heads=}{hint}"
        )


def require_grid(batch, num_heads):
    """Raise unless a CUDA grid can have one thread block for each head and batch entry."""
    for name, size in (("batch", batch), ("num_heads", num_heads)):
        if size > MAX_GRID:
            raise ValueError(f"{name} must be at most {MAX_GRID}, got {size}")


def require_lse_shape(name, lse, shape):
    """Raise unless lse has this shape, (batch, num_heads, seqlen_q)."""
    if lse.shape != shape:
        raise ValueError(
            f"{name} must have shape (batch, num_heads, seqlen_q) = {shape}, got {lse.shape}"
        )


def hint_of_heads_before_tokens(q, k, k_name="k"):
    """For an error: say so if only (batch, num_heads, seqlen, head_dim) fits the shapes."""
    if 0 in q.shape or 0 in k.shape:
        return ""
    heads, kv_heads = q.shape[1], k.shape[1]
    if heads % kv_heads == 0:
        return (
            f". They would divide if q and {k_name} were (batch, num_heads, seqlen, head_dim), "
            f"PyTorch's layout, with {heads} and {kv_heads} heads: here the axes are (batch, "
            "seqlen, num_heads, head_dim), q.transpose(0, 2, 1, 3), in PyTorch q.transpose(1, 2)"
        )
    if q.shape[2] % kv_heads == 0:
        return hint_of_heads_before_slots(q, k, k_name)
    return ""


def hint_of_heads_before_slots(q, k_cache, name="k_cache"):
    """For an error: say so if the heads of a cache, or of its pages, come before its tokens."""
    kv_heads = k_cache.shape[1]
    if kv_heads == 0 or q.shape[2] % kv_heads:
        return ""
    return (
        f". {kv_heads}, the axis before, would divide: the axes of {name} must be tokens, then "
        f"heads, then head_dim; {name}.transpose(0, 2, 1, 3), in PyTorch {name}.transpose(1, 2)"
    )


def warn_of_heads_before_tokens(name, k):
    """Warn if an array looks as if its heads came before its tokens, PyTorch's layout."""
    _, seqlen_k, num_kv_heads, _ = k.shape
    if num_kv_heads > MANY_KV_HEADS and num_kv_heads > seqlen_k > 0:
        warnings.warn(
            f"{name} has {num_kv_heads} heads and {seqlen_k} keys: is it (batch, num_kv_heads, "
            "seqlen_k, head_dim)? The axes here are (batch, seqlen_k, num_kv_heads, head_dim); "
            f"{name}.transpose(0, 2, 1, 3), in PyTorch {name}.transpose(1, 2), has them",
            stacklevel=_level_of_caller(),
        )


def _level_of_caller():
    """The stacklevel of a warning from here that names the line which called this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


# Contents: read only from NumPy arrays, because reading a GPU array waits for the GPU


def require_lengths(seq_lens, limit_name, limit):
    """Raise unless every number of a NumPy array is from 0 to `limit`."""
    for b in np.flatnonzero((seq_lens < 0) | (seq_lens > limit))[:1]:
        raise ValueError(
            f"seq_lens[{b}] must be from 0 to {limit_name} = {limit}, got {seq_lens[b]}"
        )


def require_no_repeats(name, x, kind):
    """Raise if a NumPy array of indices, of slots or pages, names one twice; −1 names none."""
    indices, counts = np.unique(x[x >= 0], return_counts=True)
    for index in indices[counts > 1][:1]:
        i, j = np.flatnonzero(x == index)[:2]
        raise ValueError(
            f"{name} must not name a {kind} twice, got {name}[{i}] = {name}[{j}] = {index}"
        )
