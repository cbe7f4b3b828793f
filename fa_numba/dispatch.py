"""`flash_attn` and `flash_attn_grad` run the fastest kernel there is; `which` says which, and why.

A kernel can take a problem, or says why not: another dtype, another GPU, an option that it has not
got. Of those that can, the quickest is looked up in fastest.json, which `python -m benchmarks
fastest` writes: times of each kernel at some hundred problems. The quickest at the problem most
like this one is taken; nothing is timed in a call. On a GPU that nobody has measured, it is the
quickest elsewhere of what this GPU can run.
"""

import functools
import importlib
import inspect
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fa_numba import checks
from fa_numba.checks import AMPERE, HOPPER
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.runtime import arrays

TABLE = Path(__file__).with_name("fastest.json")
FEW_QUERIES = 16  # for more of them nobody splits the keys
OTHER_MASK = 1.0  # how unlike a causal problem is to a full one, where twice the keys are 1


@dataclass(frozen=True)
class Choice:
    """Which function `flash_attn` calls, or `flash_attn_grad`.

    Attributes
    ----------
    kernel : str
        Its name.
    reason : str
    refused : dict of str to str
        The functions that cannot take these arrays or options, and why.
    """

    kernel: str
    reason: str
    refused: dict

    def __str__(self):
        return "\n  ".join(
            [f"{self.kernel}: {self.reason}"]
            + [f"not {name}: {why}" for name, why in self.refused.items()]
        )


@dataclass(frozen=True)
class Candidate:
    """A function that may be called. What is refused is not imported: not all of Numba has PTX.

    Attributes
    ----------
    name : str
        Of the function, and of its module.
    package : str
        Where in fa_numba the module is.
    check : callable
        Takes the function's arrays and softmax_scale, and raises where it cannot take them.
    decodes : bool, default=False
        It asks for the length of each sequence after v.
    always : tuple of str, default=()
        Options that it has not got, because it does what they ask for anyway.
    """

    name: str
    package: str
    check: Callable
    decodes: bool = False
    always: tuple = ()

    @functools.cached_property
    def module(self):
        return importlib.import_module(f"fa_numba.{self.package}.{self.name}")

    @functools.cached_property
    def function(self):
        return getattr(self.module, self.name)

    @functools.cached_property
    def options(self):
        return {*inspect.signature(self.function).parameters, *self.always}

    def refusal(self, inputs, options):
        """Why the function cannot take these arrays and options, or None."""
        try:
            self.check(*inputs, options.get("softmax_scale"))
        except (TypeError, ValueError, RuntimeError) as error:
            return str(error)
        missing = [x for x in options if x not in self.options]
        return f"{self.name} has no {', '.join(missing)}" if missing else None

    def __call__(self, *inputs, **options):
        options = {name: x for name, x in options.items() if name not in self.always}
        if self.decodes:
            q, k, _ = inputs
            inputs += (arrays.full(q, (q.shape[0],), k.shape[1], np.int32),)
        return self.function(*inputs, **options)


def _anything(*inputs_and_scale):
    pass


def _few_queries(q, k, v, softmax_scale):
    if q.shape[1] > FEW_QUERIES:
        raise ValueError(f"splits the keys, for at most {FEW_QUERIES} queries, got {q.shape[1]}")


def _on_tensor_cores(name, check, supported, *, copies=False, few_queries=False):
    """A candidate. `check` is that of its arrays; one that `copies` takes them from any address."""

    def check_all(q, k, v, softmax_scale):
        if few_queries:
            _few_queries(q, k, v, softmax_scale)
        else:
            checks.check_positive_scale(softmax_scale, q.shape[3])
        check(q, k, v, name=name, supported=supported, max_head_dim=checks.MAX_HEAD_DIM)
        if not copies:
            checks.check_aligned(q=q, k=k, v=v)

    return Candidate(name, "tensor_core", check_all, decodes=few_queries)


def _gradient_on_tensor_cores(name, check, supported, instead):
    """A candidate for gradients. `check` is that of q, k, v; lse is not looked at."""

    def check_all(dout, q, k, v, out, lse, softmax_scale):
        head_dim = q.shape[3]
        checks.check_positive_scale(softmax_scale, head_dim)
        limits = {"supported": supported, "max_head_dim": checks.MAX_BWD_HEAD_DIM}
        check(q, k, v, name=name, **limits, instead=instead)
        checks.check_gradient_strides(name, supported, dout, out)
        checks.check_aligned(dout=dout, q=q, k=k, v=v, out=out)
        checks.check_shared_bytes(name, q, candidate.module.shared_bytes(head_dim))

    candidate = Candidate(name, "tensor_core", check_all)
    return candidate


_16_BITS, _PADDED = checks.check_tensor_core, checks.check_tensor_core_padded
_FLOAT32 = checks.check_tensor_core_float32
CANDIDATES = {
    candidate.name: candidate
    for candidate in (
        Candidate("flash_attn_v2", "kernels", _anything),
        Candidate("flash_attn_registers", "on_cuda_cores", _anything),
        _on_tensor_cores("flash_attn_tf32x3", _FLOAT32, AMPERE),
        _on_tensor_cores("flash_attn_mma", _16_BITS, AMPERE),
        _on_tensor_cores("flash_attn_wgmma", _16_BITS, HOPPER),
        _on_tensor_cores("flash_attn_ws", _16_BITS, HOPPER),
        _on_tensor_cores("flash_attn_persistent", _16_BITS, HOPPER),
        _on_tensor_cores("flash_attn_padded", _PADDED, HOPPER, copies=True),
        Candidate("flash_decode_wide", "on_cuda_cores", _few_queries, decodes=True),
        _on_tensor_cores("flash_decode_mma", _16_BITS, AMPERE, few_queries=True),
        _on_tensor_cores("flash_decode_tma", _16_BITS, HOPPER, few_queries=True),
    )
}
GRADIENTS = {
    candidate.name: candidate
    for candidate in (
        Candidate("flash_attn_bwd", "kernels", _anything, always=("deterministic",)),
        Candidate("flash_attn_bwd_registers", "on_cuda_cores", _anything),
        _gradient_on_tensor_cores(
            "flash_attn_bwd_tf32x3", _FLOAT32, AMPERE, "flash_attn_bwd_registers"
        ),
        _gradient_on_tensor_cores("flash_attn_bwd_mma", _16_BITS, AMPERE, "flash_attn_bwd"),
        _gradient_on_tensor_cores("flash_attn_bwd_wgmma", _16_BITS, HOPPER, "flash_attn_bwd"),
        _gradient_on_tensor_cores("flash_attn_bwd_persistent", _16_BITS, HOPPER, "flash_attn_bwd"),
    )
}


@arrays.replayed
@refuses_other_names
def flash_attn(
    q,
    k,
    v,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
):
    """Attention by the fastest kernel there is for these arrays and options: see `which`.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
    k, v : arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
    causal, window_size, softcap, alibi_slopes, softmax_scale
        As for `flash_attn_v2`.

    Returns
    -------
    out : array of the shape, dtype and library of q
        0 in a row that sees no key.
    lse : array of shape (batch, num_heads, seqlen_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it must be, and what it got.
    """
    mask = causal, window_size, softcap, alibi_slopes
    options, inputs = _checked(q, k, v, *mask, softmax_scale), (q, k, v)
    return CANDIDATES[_choose(inputs, options).kernel](*inputs, **options)


@arrays.replayed
@refuses_other_names
def flash_attn_grad(
    dout,
    q,
    k,
    v,
    out,
    lse,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    deterministic=False,
):
    """Gradients of attention by the fastest kernel there is for these arrays and options.

    Parameters
    ----------
    dout : array of the shape, dtype and library of q
        Gradient of the loss by `out`.
    q, k, v, causal, window_size, softcap, alibi_slopes, softmax_scale
        As they were given to `flash_attn`.
    out, lse : arrays
        What it returned, or any other forward kernel here for the same arguments.
    deterministic : bool, default=False
        The same bits in every run; which costs time, where the kernel adds to dq in any order.

    Returns
    -------
    dq, dk, dv : arrays of the shapes, dtype and library of q, k, v
        0 for a row that sees no key and for a key that no row sees.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it must be, and what it got.
    """
    checks.check_bwd(dout, q, k, v, out, lse)
    mask = causal, window_size, softcap, alibi_slopes
    options = _checked(q, k, v, *mask, softmax_scale, deterministic)
    inputs = dout, q, k, v, out, lse
    return GRADIENTS[_choose(inputs, options, backward=True).kernel](*inputs, **options)


@refuses_other_names
def which(
    q,
    k,
    v,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    backward=False,
    deterministic=False,
):
    """Say which kernel `flash_attn` runs for these arguments, and why.

    Parameters
    ----------
    q, k, v, causal, window_size, softcap, alibi_slopes, softmax_scale
        As for `flash_attn`.
    backward : bool, default=False
        Which one `flash_attn_grad` runs, with a dout and an out that lie in memory as q does.
    deterministic : bool, default=False
        As for `flash_attn_grad`; what runs forward always is.

    Returns
    -------
    Choice
        `print` it: the kernel, the reason, and why others cannot be taken.

    Raises
    ------
    TypeError, ValueError
        As `flash_attn` does.
    """
    backward = checks.check_flag("backward", backward)
    mask = causal, window_size, softcap, alibi_slopes
    options = _checked(q, k, v, *mask, softmax_scale, deterministic, backward)
    return _choose((q, q, k, v, q, None) if backward else (q, k, v), options, backward)


def _checked(
    q,
    k,
    v,
    causal,
    window_size,
    softcap,
    alibi_slopes,
    softmax_scale,
    deterministic=False,
    backward=True,
):
    """The options that change anything, once all arguments are known to be good."""
    checks.check_qkv(q, k, v)
    (causal, window_size, softcap, _), _ = checks.check_mask(
        q, causal, window_size, softcap, alibi_slopes
    )
    checks.check_softmax_scale(softmax_scale, q.shape[3])
    deterministic = checks.check_flag("deterministic", deterministic)
    options = {
        "causal": causal or None,
        "window_size": None if window_size == (-1, -1) else window_size,
        "softcap": softcap or None,
        "alibi_slopes": alibi_slopes,
        "softmax_scale": softmax_scale,
        "deterministic": (deterministic and backward) or None,
    }
    return {name: value for name, value in options.items() if value is not None}


def _choose(inputs, options, backward=False):
    """Of the candidates for gradients with `backward`; `inputs` are what they take."""
    candidates, part = (GRADIENTS, "gradients") if backward else (CANDIDATES, "rows")
    q, k = inputs[1:3] if backward else inputs[:2]
    refused = {name: x.refusal(inputs, options) for name, x in candidates.items()}
    able = [name for name, why in refused.items() if why is None]
    on_gpu = arrays.library_of(q) != "numpy" and arrays.gpu_available()
    record = _table()["gpu" if on_gpu else "cpu"]
    bounded = any(name in options for name in ("causal", "window_size"))
    row = most_like(record[part], able, q, k, bounded, "deterministic" in options)
    times = {name: ms for name, ms in row["ms"].items() if name in able}
    kernel = min(times, key=times.get)
    reason = (
        f"quickest of {len(times)}, {times[kernel]} ms, at the measured problem most like this "
        f"one: {_described(row)}; {record['machine']}"
    )
    return Choice(kernel, reason, {name: why for name, why in refused.items() if why})


@functools.cache
def _table():
    return json.loads(TABLE.read_text())


def most_like(rows, able, q, k, bounded, deterministic=False):
    """The measured problem nearest to one, among those where a kernel that is able was timed."""
    batch, seqlen_q, num_heads, head_dim = q.shape
    dtype = "float32" if arrays.dtype_name(q) == "float32" else "float16"  # and bfloat16 like it

    def distance(row):
        sizes = (
            (head_dim, row["head_dim"]),
            (seqlen_q, row["seqlen_q"]),
            (k.shape[1], row["seqlen_k"]),
            (batch * num_heads, row["batch"] * row["num_heads"]),
        )
        far = sum(abs(math.log2(max(a, 1) / b)) for a, b in sizes)
        return far + OTHER_MASK * (bounded != row["causal"])

    rows = [row for row in rows if set(row["ms"]) & set(able)]
    rows = [row for row in rows if row["dtype"] == dtype] or rows
    rows = [row for row in rows if row.get("deterministic", False) == deterministic] or rows
    return min(rows, key=distance)


def _described(row):
    return (
        f"{row['dtype']}, batch {row['batch']}, {row['seqlen_q']} queries, {row['seqlen_k']} keys, "
        f"{row['num_heads']} heads of {row['head_dim']}{', causal' if row['causal'] else ''}"
        f"{', deterministic' if row.get('deterministic') else ''}"
    )
