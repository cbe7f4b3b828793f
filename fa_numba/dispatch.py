"""`flash_attn` and `flash_attn_grad` run the fastest kernel; `which` names it and says why.

Each candidate is a function that can take a problem, or says why it cannot: its dtype, its GPU, an
option that the function lacks. Among those that can, the fastest is looked up in fastest.json, in
the row of the measured problem most like this one; nothing is timed in a call. ``python -m
benchmarks fastest`` measures some hundred problems, and writes that file.

On a GPU that nobody has measured, the times of the measured one decide, with one exception: see
`TF32_PAYS_OFF`. `runtime.arrays` decides whether a call runs on a GPU or on the CPU engine.
"""

import functools
import importlib
import inspect
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fa_numba import checks
from fa_numba.checks import AMPERE, HOPPER
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.runtime import arrays

TABLE = Path(__file__).with_name("fastest.json")
FEW_QUERIES = 16  # with more queries no kernel gains by splitting the keys
OTHER_MASK = 1.0  # distance of a causal problem from a full one; twice the keys are as far
# The 3xTF32 kernels make three TF32 products of one float32 product. Only on GPUs of these compute
# capabilities is TF32 more than three times as fast as float32 without tensor cores: 7 to 15 times
# on A100, H100, H200, B200 and B300. On all others it is once or twice as fast (for instance RTX
# 3090, 4090 and 5090: once; A10, A40, L4 and L40S: twice). The peaks are in analysis/devices.py.
TF32_PAYS_OFF = ((8, 0), (9, 0), (10, 0), (10, 3))


@dataclass(frozen=True)
class Choice:
    """The function that `flash_attn` or `flash_attn_grad` calls.

    Attributes
    ----------
    kernel : str
        Its name.
    reason : str
    refused : dict of str to str
        The functions that are not called for these arrays and options, and why.
    """

    kernel: str
    reason: str
    refused: dict

    def __str__(self):
        return "\n  ".join(
            [f"{self.kernel}: {self.reason}"]
            + [f"not {name}: {why}" for name, why in self.refused.items()]
        )


class Inputs(NamedTuple):
    """The arrays of a forward call, or their facts."""

    q: object
    k: object
    v: object


class GradientInputs(NamedTuple):
    """The arrays of a backward call, or their facts."""

    dout: object
    q: object
    k: object
    v: object
    out: object
    lse: object


@dataclass(frozen=True)
class Candidate:
    """A function that may be called; this one takes any arrays.

    A candidate that is refused is not imported: some versions of Numba lack PTX.

    Attributes
    ----------
    name : str
        Name of the function, and of its module.
    package : str
        Room of fa_numba with the module.
    decodes : bool, default=False
        The function splits the keys, for few queries, and takes the sequences' lengths after v.
    always : tuple of str, default=()
        Options the function lacks because it always behaves so.
    """

    name: str
    package: str
    decodes: bool = False
    always: tuple = ()

    three_tf32_products = False  # in place of one float32 product

    @functools.cached_property
    def module(self):
        return importlib.import_module(f"fa_numba.{self.package}.{self.name}")

    @functools.cached_property
    def function(self):
        return getattr(self.module, self.name)

    @functools.cached_property
    def options(self):
        return {*inspect.signature(self.function).parameters, *self.always}

    def check(self, inputs, softmax_scale):
        """Raise unless the function can take these inputs."""
        if self.decodes and inputs.q.shape[1] > FEW_QUERIES:
            raise ValueError(
                f"splits the keys, for at most {FEW_QUERIES} queries, got {inputs.q.shape[1]}"
            )

    def refusal(self, inputs: Inputs | GradientInputs, options: dict) -> str | None:
        """Return why the function cannot take these arrays and options, or None."""
        try:
            self.check(inputs, options.get("softmax_scale"))
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


class GradientInRegisters(Candidate):
    """`flash_attn_bwd_registers`, whose tiles of many columns exceed some shared memories."""

    def check(self, inputs, softmax_scale):
        checks.check_backward_tiles(inputs.q, inputs.q.shape[3], None)


@dataclass(frozen=True, kw_only=True)
class OnTensorCores(Candidate):
    """A forward function on tensor cores.

    Attributes
    ----------
    supported : AMPERE or HOPPER
    check_arrays : callable
        One of fa_numba.checks.
    copies : bool, default=False
        The function copies its arrays first, so they may begin at any address.
    """

    package: str = "tensor_core"
    supported: tuple
    check_arrays: Callable
    copies: bool = False

    @property
    def three_tf32_products(self):
        return self.check_arrays is checks.check_tensor_core_float32

    def check(self, inputs, softmax_scale):
        super().check(inputs, softmax_scale)
        if not self.decodes:
            checks.check_positive_scale(softmax_scale, inputs.q.shape[3])
        limits = {"supported": self.supported, "max_head_dim": checks.MAX_HEAD_DIM}
        self.check_arrays(*inputs, name=self.name, **limits)
        if not self.copies:
            checks.check_aligned(**inputs._asdict())


@dataclass(frozen=True, kw_only=True)
class GradientOnTensorCores(Candidate):
    """A backward function on tensor cores. Whether it can take a call does not depend on lse.

    Attributes
    ----------
    supported : AMPERE or HOPPER
    check_arrays : callable
        One of fa_numba.checks, for q, k and v.
    instead : str
        Name of a function that computes the same on any GPU, for messages.
    """

    package: str = "tensor_core"
    supported: tuple
    check_arrays: Callable
    instead: str

    @property
    def three_tf32_products(self):
        return self.check_arrays is checks.check_tensor_core_float32

    def check(self, inputs, softmax_scale):
        dout, q, k, v, out, _ = inputs
        head_dim = q.shape[3]
        checks.check_positive_scale(softmax_scale, head_dim)
        limits = {"supported": self.supported, "max_head_dim": checks.MAX_BWD_HEAD_DIM}
        self.check_arrays(q, k, v, name=self.name, **limits, instead=self.instead)
        checks.check_gradient_strides(self.name, self.supported, dout, out)
        checks.check_aligned(dout=dout, q=q, k=k, v=v, out=out)
        checks.check_shared_bytes(self.name, q, self.module.shared_bytes(head_dim))


def _by_name(*candidates):
    return {candidate.name: candidate for candidate in candidates}


_AMPERE_16_BITS = {"supported": AMPERE, "check_arrays": checks.check_tensor_core}
_HOPPER_16_BITS = {"supported": HOPPER, "check_arrays": checks.check_tensor_core}
_FLOAT32 = {"supported": AMPERE, "check_arrays": checks.check_tensor_core_float32}
_PADDED = {"supported": HOPPER, "check_arrays": checks.check_tensor_core_padded}
_HOPPER_CP_ASYNC = {
    "supported": HOPPER,
    "check_arrays": functools.partial(checks.check_tensor_core, tensor_maps=False),
}
CANDIDATES = _by_name(
    Candidate("flash_attn_v2", "kernels"),
    Candidate("flash_attn_registers", "on_cuda_cores"),
    OnTensorCores(name="flash_attn_tf32x3", **_FLOAT32),
    OnTensorCores(name="flash_attn_mma", **_AMPERE_16_BITS),
    OnTensorCores(name="flash_attn_persistent", **_HOPPER_16_BITS),
    OnTensorCores(name="flash_attn_padded", **_PADDED, copies=True),
    Candidate("flash_decode_wide", "on_cuda_cores", decodes=True),
    OnTensorCores(name="flash_decode_mma", **_AMPERE_16_BITS, decodes=True),
    OnTensorCores(name="flash_decode_gather", **_HOPPER_CP_ASYNC, decodes=True),
)
GRADIENTS = _by_name(
    Candidate("flash_attn_bwd", "kernels", always=("deterministic",)),
    GradientInRegisters("flash_attn_bwd_registers", "on_cuda_cores"),
    GradientOnTensorCores(
        name="flash_attn_bwd_tf32x3", **_FLOAT32, instead="flash_attn_bwd_registers"
    ),
    GradientOnTensorCores(name="flash_attn_bwd_mma", **_AMPERE_16_BITS, instead="flash_attn_bwd"),
    GradientOnTensorCores(
        name="flash_attn_bwd_persistent", **_HOPPER_16_BITS, instead="flash_attn_bwd"
    ),
)


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
) -> tuple:
    """Attention by the fastest kernel for these arrays and options: see `which`.

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
    inputs = Inputs(*map(arrays.facts, (q, k, v)))
    options = _checked(*inputs, causal, window_size, softcap, alibi_slopes, softmax_scale)
    return CANDIDATES[_choose(inputs, options).kernel](q, k, v, **options)


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
) -> tuple:
    """Gradients of attention by the fastest kernel for these arrays and options.

    Parameters
    ----------
    dout : array of the shape, dtype and library of q
        Gradient of the loss with respect to `out`.
    q, k, v, causal, window_size, softcap, alibi_slopes, softmax_scale
        The arguments of `flash_attn`.
    out, lse : arrays
        The results of `flash_attn`, or of any other forward kernel here, for these arguments.
    deterministic : bool, default=False
        The same bits in every run. That takes longer: the fastest kernels add to dq in any order.

    Returns
    -------
    dq, dk, dv : arrays of the shapes, dtype and library of q, k, v
        0 for a row that sees no key and for a key that no row sees.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it must be, and what it got.
    """
    inputs = GradientInputs(*map(arrays.facts, (dout, q, k, v, out, lse)))
    checks.check_bwd(*inputs)
    mask = causal, window_size, softcap, alibi_slopes
    options = _checked(inputs.q, inputs.k, inputs.v, *mask, softmax_scale, deterministic)
    return GRADIENTS[_choose(inputs, options).kernel](dout, q, k, v, out, lse, **options)


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
) -> Choice:
    """Say which kernel `flash_attn` runs for these arguments, and why.

    Parameters
    ----------
    q, k, v, causal, window_size, softcap, alibi_slopes, softmax_scale
        As for `flash_attn`.
    backward : bool, default=False
        Name the kernel that `flash_attn_grad` runs, for a dout and an out with the memory layout
        of q.
    deterministic : bool, default=False
        As for `flash_attn_grad`; every forward kernel is deterministic.

    Returns
    -------
    Choice
        `print` it: the kernel, the reason, and why other kernels cannot run.

    Raises
    ------
    TypeError, ValueError
        As `flash_attn` does.
    """
    backward = checks.check_flag("backward", backward)
    q, k, v = map(arrays.facts, (q, k, v))
    mask = causal, window_size, softcap, alibi_slopes
    options = _checked(q, k, v, *mask, softmax_scale, deterministic, backward)
    if backward:  # q stands in for dout and out; no candidate examines lse
        return _choose(GradientInputs(dout=q, q=q, k=k, v=v, out=q, lse=None), options)
    return _choose(Inputs(q, k, v), options)


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
    """Check all arguments; return the options that differ from their defaults."""
    checks.check_qkv(q, k, v)
    mask, _ = checks.check_mask(q, causal, window_size, softcap, alibi_slopes)
    checks.check_softmax_scale(softmax_scale, q.shape[3])
    deterministic = checks.check_flag("deterministic", deterministic)
    options = {
        "causal": mask.causal or None,
        "window_size": None if mask.window_size == (-1, -1) else mask.window_size,
        "softcap": mask.softcap or None,
        "alibi_slopes": alibi_slopes,
        "softmax_scale": softmax_scale,
        "deterministic": (deterministic and backward) or None,
    }
    return {name: value for name, value in options.items() if value is not None}


def _choose(inputs: Inputs | GradientInputs, options: dict) -> Choice:
    """Choose among the candidates for these inputs, which are facts of arrays."""
    backward = isinstance(inputs, GradientInputs)
    candidates, part = (GRADIENTS, "gradients") if backward else (CANDIDATES, "rows")
    on_gpu = inputs.q.library != "numpy" and arrays.gpu_available()
    record = _table()["gpu" if on_gpu else "cpu"]
    refused = {name: x.refusal(inputs, options) for name, x in candidates.items()}
    if on_gpu:
        refused = _without_slow_tf32(refused, candidates, record, inputs.q)
    able = [name for name, why in refused.items() if why is None]
    bounded = any(name in options for name in ("causal", "window_size"))
    row = most_like(record[part], able, inputs.q, inputs.k, bounded, "deterministic" in options)
    times = {name: ms for name, ms in row["ms"].items() if name in able}
    kernel = min(times, key=times.get)
    reason = (
        f"quickest of {len(times)}, {times[kernel]} ms, at the measured problem most like this "
        f"one: {_described(row)}; {record['machine']}"
    )
    return Choice(kernel, reason, {name: why for name, why in refused.items() if why})


def _without_slow_tf32(refused, candidates, record, q):
    """Refuse the 3xTF32 kernels too on a GPU that was not measured, unless TF32 pays off there."""
    here = arrays.compute_capability(q)
    if here in TF32_PAYS_OFF or here == tuple(record["compute_capability"]):
        return refused
    why = (
        "makes three TF32 products of one in float32, and on a GPU of compute capability "
        f"{here[0]}.{here[1]} TF32 is not known to be three times as fast as float32"
    )
    slow = [name for name, x in candidates.items() if x.three_tf32_products]
    return {name: old or (why if name in slow else None) for name, old in refused.items()}


@functools.cache
def _table():
    return json.loads(TABLE.read_text())


def most_like(rows, able, q, k, bounded, deterministic=False):
    """Return the measured problem nearest to that of q and k, where an able kernel was timed."""
    batch, seqlen_q, num_heads, head_dim = q.shape
    dtype = "float32" if arrays.facts(q).dtype == "float32" else "float16"  # bfloat16 is as fast

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
