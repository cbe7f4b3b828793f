"""The learner's own kernel in the lessons: `mine`.

    attn = mine("ex07d")          # yours once it passes, the package's until then
    out, lse = attn(q, k, v)      # called as the package's function is

A `Job` says how to call an exercise's kernel as a lesson calls the package's function.
"""

from __future__ import annotations

import importlib.util
import math
import types
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np

import fa_numba
from fa_numba import analysis, simt
from fa_numba.checks.expressions import NO_SINKS
from fa_numba.kernels.flash_attn_varlen import flash_attn_varlen
from fa_numba.kernels.flash_decode import choose_splits, flash_decode, make_combine
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import MLA_BLOCK_M, MLA_BLOCK_N
from fa_numba.workbook import progress
from fa_numba.workbook.catalog import Exercise, find_one
from fa_numba.workbook.lesson_kernels import (
    below_largest,
    block_list_attn,
    prefix_state,
    rescale,
    rotate,
)
from fa_numba.workbook.passed import load
from fa_numba.workbook.recorded import say

STREAMS = 32  # heads that a GPU works on at a time
FLUSHED_BYTES = 1 << 28  # over any L2
LARGEST_DIFFERENCE = 1e-4  # of two right kernels in float32, over the largest number
LONG_MS = 200  # a call that takes longer is timed once


@dataclass(frozen=True)
class Job:
    """How lessons use an exercise's kernel."""

    call: Callable  # with the learner's module, and then as `ours` is called
    # Of the package. Without it the lesson brings its own kernel, which `call` gets in a module.
    ours: Callable | None = None
    # Of a row of a recorded table: the shapes of the arrays to time, and the options; None for a
    # row that this kernel cannot do
    inputs: Callable | None = None
    # For the board: the shapes of the arrays and the options of the one size that it times
    timed_on: tuple | None = None


@dataclass(eq=False, repr=False)
class Mine:
    """The learner's kernel if it has passed, else ours; called as a function."""

    exercise: Exercise
    job: Job
    function: Callable
    yours: bool
    name: str  # for a title: "your ex07d" or "flash_attn_v2"

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    def __repr__(self):
        return f"<{self.name}>"

    def with_times(self, rows: list[dict]) -> list[dict]:
        """Rows of a recorded table, with the time of the learner's kernel on the GPU that is here.

        Without a GPU, or before the kernel passes, the rows as they are.
        """
        if not (self.yours and self.job.inputs and has_cupy_and_gpu()):
            return rows
        return [row | {f"{self.name}, ms, this GPU": self._time(row)} for row in rows]

    def _time(self, row):
        inputs = self.job.inputs(row)
        if inputs is None:
            return None
        shapes, options = inputs
        return gpu_ms(partial(self.function, *_normal(shapes), **options))


def mine(name: str, ours: Callable | None = None) -> Mine:
    """The learner's kernel of an exercise once it passes, ours until then; says which.

    Parameters
    ----------
    name : str
        One exercise, such as ``"ex07d"``.
    ours : function, optional
        The lesson's own kernel or factory, of the name that it has in the exercise; for an exercise
        whose kernel is not in the package.

    Returns
    -------
    Mine
        Called as ours is. The learner's file is read anew in each call of `mine`.
    """
    exercise = find_one(name)
    if exercise.short not in JOBS:
        raise ValueError(f"name must be one of {', '.join(sorted(JOBS))}, got {name!r}")
    job = JOBS[exercise.short]
    if (job.ours is None) != (ours is not None):
        wanted = "needed" if job.ours is None else "not taken: the package has the kernel"
        raise ValueError(f"ours is {wanted} for {exercise.short}, got {ours!r}")
    file = f"exercises/{exercise.stub.name}"
    if progress.is_passed(exercise):
        say(f"{exercise.short}: your kernel, {file}")
        function = partial(job.call, load(exercise))
        return Mine(exercise, job, function, yours=True, name=f"your {exercise.short}")
    if job.ours is not None:
        function, our_name = job.ours, job.ours.__name__
    else:
        function = partial(job.call, types.SimpleNamespace(**{ours.__name__: ours}))
        our_name = ours.__name__.removeprefix("make_")
    say(f"{exercise.short}: our {our_name}, until yours passes")
    return Mine(exercise, job, function, yours=False, name=our_name)


def has_size(exercise: Exercise) -> bool:
    """Whether a lesson's size is known for the kernel of this exercise."""
    return exercise.short in JOBS and JOBS[exercise.short].timed_on is not None


def times_beside_par(exercise: Exercise) -> tuple[float, float] | None:
    """Milliseconds of the learner's kernel and of our solution, on the GPU that is here.

    None without a GPU, for an exercise that has no size to time, and without our solution.

    Raises
    ------
    ValueError
        The results differ: checks are small, and this size is not.
    """
    if not (has_size(exercise) and exercise.solution.is_file() and has_cupy_and_gpu()):
        return None
    job = JOBS[exercise.short]
    shapes, options = job.timed_on
    data = _normal(shapes)
    calls = [
        partial(job.call, load(exercise, ours=ours), *data, **options) for ours in (False, True)
    ]
    yours, wanted = (x[0] if isinstance(x, tuple) else x for x in (call() for call in calls))
    if not abs(yours - wanted).max() <= LARGEST_DIFFERENCE * abs(wanted).max():
        raise ValueError(f"its result for arrays of shapes {shapes} is not that of our solution")
    return tuple(gpu_ms(call) for call in calls)


def _normal(shapes):
    """Arrays on the GPU, the same in each call."""
    import cupy

    rng = cupy.random.default_rng(0)
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def has_cupy_and_gpu() -> bool:
    """Whether a learner's kernel can be timed here."""
    return arrays.gpu_available() and importlib.util.find_spec("cupy") is not None


def launch(names: tuple, kernel, grid: tuple, block: tuple, *args) -> None:
    """Run a learner's kernel; its arrays get the statement's names in every trace.

    Parameters
    ----------
    names : tuple of str
        The kernel's parameters in the statement.
    """
    with simt.tracing() as made:
        arrays.launch(kernel, grid, block, *args)
    for trace in made:
        code = kernel.py_func.__code__
        theirs = dict(zip(code.co_varnames[: code.co_argcount], names, strict=True))
        trace.arrays = {theirs.get(name, name): array for name, array in trace.arrays.items()}


def gpu_ms(function: Callable) -> float:
    """Median milliseconds of a call on CuPy's stream, its inputs out of L2, compiled before."""
    import cupy

    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    flushed = cupy.empty(FLUSHED_BYTES, np.uint8)

    def once():
        for _ in range(32):  # also time for Python to enqueue the launch
            flushed.fill(0)
        start.record()
        function()
        end.record()
        end.synchronize()
        return cupy.cuda.get_elapsed_time(start, end)

    function()  # compiles
    samples = [once()]
    if samples[0] < LONG_MS:
        samples = [once() for _ in range(9)]
    return float(np.median(samples))


# --- how each exercise's kernel is called


def _first(function, kernel_name, names, module, *args):
    """A puzzle of lesson 00: our function with another kernel."""
    return function(*args, kernel=getattr(module, kernel_name), launch=partial(launch, names))


def _rows(kernel_name, module, x):
    """Softmax of each row, a thread block for each."""
    y = arrays.empty(x, x.shape)
    kernel = getattr(module, kernel_name)
    launch(("x", "y"), kernel, (x.shape[0],), (module.NUM_THREADS,), x, y)
    return y


def _rows_inputs(row):
    return [(row["rows"], row["columns"])], {}


def _tiled_matmul(module, a, b, tile):
    c = arrays.full(a, (a.shape[0], b.shape[1]), np.nan)
    grid = math.ceil(b.shape[1] / tile), math.ceil(a.shape[0] / tile)
    kernel = module.make_tiled_matmul(tile)
    launch(("a", "b", "c"), kernel, grid, (tile, tile), a, b, c)
    return c


def _transpose(module, x):
    y = arrays.empty(x, x.shape[::-1])
    grid = x.shape[1] // 32, x.shape[0] // 32
    launch(("x", "y"), module.transpose, grid, (32, 8), x, y)
    return y


def _transpose_inputs(row):
    return ([(8192, 8192)], {}) if row["kernel"] == "transposition, tile of 32 × 33" else None


def _heads(q, k):
    """(batch entry, head, head of k) of every head, each on a stream of its own on a GPU."""
    batch, _, num_heads, _ = q.shape
    group = num_heads // k.shape[2]
    streams = [nullcontext()]
    if arrays.library_of(q) == "cupy":
        import cupy

        streams = [cupy.cuda.Stream() for _ in range(min(STREAMS, batch * num_heads))]
    for number, (b, h) in enumerate(np.ndindex(batch, num_heads)):
        with streams[number % len(streams)]:
            yield b, h, h // group


def _tiles(name, head_dim, block_m, block_n):
    chosen = analysis.kernel_block_sizes(name, head_dim)
    return block_m or chosen[0], block_n or chosen[1]


def _scale(q):
    return np.float32(1 / math.sqrt(q.shape[-1]))


def _by_heads(launched, q, k, v, outputs, *, lists=None, sinks=None):
    """Launch a kernel of one head for all heads.

    `launched` are kernel, grid and thread block; `outputs` are by the statement's names.
    block_list_attn's `lists` come before the outputs, a sink for each head at the end.
    """
    names = ["q", "k", "v", *["lists"] * (lists is not None), *outputs, "softmax_scale"]
    for b, h, g in _heads(q, k):
        head = [q[b, :, h], k[b, :, g], v[b, :, g]]
        if lists is not None:
            head.append(lists[b % lists.shape[0], g % lists.shape[1]].astype(np.int32))
        head += [x[b, :, h] if x.shape == q.shape else x[b, h] for x in outputs.values()]
        sink = [] if sinks is None else [np.float32(float(sinks[h]))]
        launch((*names, *["sink"] * len(sink)), *launched, *head, _scale(q), *sink)
    return tuple(outputs.values())


def _one_pass(kernel, block_m, block_n, q, k, v, **options):
    """out and lse by a thread block for each tile of queries; options are those of `_by_heads`."""
    batch, seqlen_q, num_heads, _ = q.shape
    lse = arrays.empty(q, (batch, num_heads, seqlen_q))
    launched = kernel, (math.ceil(seqlen_q / block_m),), (block_n, block_m)
    return _by_heads(launched, q, k, v, {"out": arrays.empty(q, q.shape), "lse": lse}, **options)


def _flash_attn_v1(module, q, k, v, *, block_m=None, block_n=None):
    batch, seqlen_q, num_heads, head_dim = q.shape
    block_m, block_n = _tiles("flash_attn_v1", head_dim, block_m, block_n)
    l = arrays.full(q, (batch, num_heads, seqlen_q), 0)
    m = arrays.full(q, (batch, num_heads, seqlen_q), -np.inf)
    outputs = {"out": arrays.full(q, q.shape, 0), "l": l, "m": m}
    kernel = module.make_kernel(head_dim, block_m, block_n)
    return _by_heads((kernel, (1,), (block_n, block_m)), q, k, v, outputs)


def _flash_attn_v2(module, q, k, v, *, causal=False, block_m=None, block_n=None):
    tiles = _tiles("flash_attn_v2", q.shape[3], block_m, block_n)
    return _one_pass(module.make_kernel(q.shape[3], *tiles, causal), *tiles, q, k, v)


def _block_lists(module, q, k, v, lists, *, block_m, block_n, causal=False):
    kernel = module.make_kernel(q.shape[3], block_m, block_n, causal)
    return _one_pass(kernel, block_m, block_n, q, k, v, lists=lists)


def _window_and_sink(module, q, k, v, *, window_size, sinks, block_m=None, block_n=None):
    """window_size is (left, 0), sinks has a number for each head."""
    tiles = _tiles("flash_attn_v2", q.shape[3], block_m, block_n)
    kernel = module.make_kernel(q.shape[3], *tiles, window_size[0] + 1)
    return _one_pass(kernel, *tiles, q, k, v, sinks=sinks)


def _flash_attn_varlen(module, q, k, v, cu_seqlens_q, cu_seqlens_k, *, causal=False, block=16):
    """As the package's, for queries and keys of the same sequences; without lse."""
    names = "q", "k", "v", "cu_seqlens", "out", "softmax_scale"
    tokens, num_heads, head_dim = q.shape
    group = num_heads // k.shape[1]
    out = arrays.full(q, q.shape, np.nan)
    kernel = module.make_kernel(head_dim, block, causal)
    grid = (tokens // block + cu_seqlens_q.shape[0] - 1,)
    for h in range(num_heads):
        head = q[:, h], k[:, h // group], v[:, h // group], cu_seqlens_q, out[:, h]
        launch(names, kernel, grid, (block,), *head, _scale(q))
    return out, None


def _lengths(q, k_cache, seq_lens):
    """Without seq_lens, caches that are full."""
    if seq_lens is None:
        return arrays.full(q, (q.shape[0],), k_cache.shape[1], np.int32)
    return seq_lens


def _decode_tile(q, k_cache, block_n):
    """head_dim, the query heads of a K/V head, and the keys of a tile."""
    head_dim, group_size = q.shape[3], q.shape[2] // k_cache.shape[2]
    chosen = analysis.kernel_block_sizes("flash_decode", head_dim, num_rows=group_size)
    return head_dim, group_size, block_n or chosen[1]


def _decode(module, q, k_cache, v_cache, seq_lens=None, *, num_splits=1, block_n=None):
    names = "q", "k_cache", "v_cache", "seq_lens", "out", "lse", "softmax_scale"
    if num_splits != 1:
        raise ValueError(f"num_splits must be 1: ex16c does not split, got {num_splits!r}")
    batch, num_kv_heads = q.shape[0], k_cache.shape[2]
    head_dim, group_size, block_n = _decode_tile(q, k_cache, block_n)
    out, lse = arrays.empty(q, q.shape), arrays.empty(q, (batch, q.shape[2], 1))
    kernel = module.make_kernel(head_dim, group_size, block_n)
    caches = k_cache, v_cache, _lengths(q, k_cache, seq_lens)
    grid, block = (num_kv_heads, batch), (block_n, group_size)
    launch(names, kernel, grid, block, q[:, 0], *caches, out[:, 0], lse[..., 0], _scale(q))
    return out, lse


def _split_decode(module, q, k_cache, v_cache, seq_lens=None, *, num_splits=0, block_n=None):
    """The learner's splits, and the package's combine."""
    names = "q", "k_cache", "v_cache", "seq_lens", "out_partial", "lse_partial", "softmax_scale"
    (batch, _, num_heads, head_dim), num_kv_heads = q.shape, k_cache.shape[2]
    head_dim, group_size, block_n = _decode_tile(q, k_cache, block_n)
    if num_splits == 0:
        sizes = k_cache.shape[1], (-1, -1), group_size, block_n
        num_splits = choose_splits(q, num_kv_heads, *sizes)
    out, lse = arrays.empty(q, q.shape), arrays.empty(q, (batch, num_heads, 1))
    out_partial, lse_partial = (arrays.empty(q, (num_splits, *x.shape)) for x in (out, lse))
    kernel = module.make_kernel(head_dim, group_size, block_n)
    caches = k_cache, v_cache, _lengths(q, k_cache, seq_lens)
    partial = out_partial[:, :, 0], lse_partial[..., 0]
    grid, block = (num_splits, num_kv_heads, batch), (block_n, group_size)
    launch(names, kernel, grid, block, q[:, 0], *caches, *partial, _scale(q))
    grid = 1, num_heads, batch
    results = out_partial, lse_partial, out, lse, NO_SINKS
    arrays.launch(make_combine(head_dim), grid, (32,), *results)
    return out, lse


def _prefix_state(module, q, k_prefix, v_prefix, *, block_m, block_n):
    names = "q", "k_prefix", "v_prefix", "out_partial", "lse_partial", "softmax_scale"
    (batch, _, num_heads, head_dim), num_kv_heads = q.shape, k_prefix.shape[1]
    out, lse = arrays.empty(q, q.shape), arrays.empty(q, (batch, num_heads, 1))
    group_size = num_heads // num_kv_heads
    kernel = module.make_kernel(head_dim, group_size, block_m, block_n)
    grid = 1, num_kv_heads, math.ceil(batch * group_size / block_m)
    inputs, partial = (q[:, 0], k_prefix, v_prefix), (out[None, :, 0], lse[None, ..., 0])
    launch(names, kernel, grid, (block_n, block_m), *inputs, *partial, _scale(q))
    return out, lse


def _latent_decode(module, q, latent_cache, seq_lens, *, softmax_scale, latent_dim=512):
    names = "q", "latent_cache", "seq_lens", "out", "lse", "softmax_scale"
    batch, _, num_heads, row_dim = q.shape
    out = arrays.empty(q, (batch, 1, num_heads, latent_dim))
    lse = arrays.empty(q, (batch, num_heads, 1))
    kernel = module.make_kernel(latent_dim, row_dim, MLA_BLOCK_M, MLA_BLOCK_N)
    grid, block = (math.ceil(num_heads / MLA_BLOCK_M), batch), (32, MLA_BLOCK_M)
    inputs, scale = (q[:, 0], latent_cache, seq_lens), np.float32(softmax_scale)
    launch(names, kernel, grid, block, *inputs, out[:, 0], lse[..., 0], scale)
    return out, lse


HEADS = (4, 2048, 16, 64)  # a batch of heads: batch, seqlen, num_heads, head_dim
CACHE = (8, 8192, 8, 128)


def _decode_inputs(row):
    """As benchmarks/bench_decode.py: one query of each sequence, head_dim 128."""
    num_heads, num_kv_heads = map(int, row["heads"].split("/"))
    cache = row["batch"], row["seqlen"], num_kv_heads, 128
    return [(row["batch"], 1, num_heads, 128), cache, cache], {}


def _attention_inputs(row):
    """As benchmarks/bench_attention.py: 8192 tokens, 1024 columns of q in all."""
    head_dim = row.get("head_dim", 64)
    shape = (8192 // row["seqlen"], row["seqlen"], 1024 // head_dim, head_dim)
    return [shape] * 3, {"causal": True} if row["causal"] else {}


def _unmasked_inputs(row):
    return None if row["causal"] else _attention_inputs(row)


JOBS = {
    "ex00d": Job(partial(_first, rescale, "rescale", ("x", "shift", "scale", "out")), rescale),
    "ex00f": Job(partial(_first, below_largest, "below_largest", ("x", "out")), below_largest),
    "ex00h": Job(partial(_first, rotate, "kernel", ("x", "y", "c", "s", "out_x", "out_y")), rotate),
    "ex02d": Job(
        partial(_rows, "safe_softmax_kernel"),
        fa_numba.safe_softmax,
        _rows_inputs,
        ([(8192, 8192)], {}),
    ),
    "ex03c": Job(
        partial(_rows, "online_softmax_kernel"),
        fa_numba.online_softmax,
        _rows_inputs,
        ([(8192, 8192)], {}),
    ),
    "ex05b": Job(_tiled_matmul, timed_on=([(2048, 2048)] * 2, {"tile": 16})),
    "ex06b": Job(_flash_attn_v1, fa_numba.flash_attn_v1, _unmasked_inputs, ([HEADS] * 3, {})),
    "ex07d": Job(
        _flash_attn_v2, fa_numba.flash_attn_v2, _attention_inputs, ([HEADS] * 3, {"causal": True})
    ),
    "ex09c": Job(
        _window_and_sink,
        fa_numba.flash_attn_v2,
        None,
        ([HEADS] * 3, {"window_size": (255, 0), "sinks": [0.0] * HEADS[2]}),
    ),
    "ex10d": Job(_flash_attn_varlen, flash_attn_varlen),
    "ex15e": Job(_transpose, None, _transpose_inputs, ([(8192, 8192)], {})),
    "ex16c": Job(_decode, flash_decode, None, ([(8, 1, 32, 128), CACHE, CACHE], {})),
    "ex17c": Job(
        _split_decode,
        flash_decode,
        _decode_inputs,
        ([(8, 1, 32, 128), CACHE, CACHE], {"num_splits": 8}),
    ),
    "ex17f": Job(
        _prefix_state,
        prefix_state,
        None,
        ([(32, 1, 32, 128), CACHE[1:], CACHE[1:]], {"block_m": 16, "block_n": 16}),
    ),
    "ex24c": Job(_latent_decode, fa_numba.mla_decode),
    "ex25c": Job(_block_lists, block_list_attn),
}
