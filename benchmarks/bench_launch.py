"""How long does a call take until it has enqueued, and how long the first call of a process?"""

import functools
import os
import subprocess
import sys
import tempfile
import time
import warnings

import cupy
import numpy as np

import fa_numba
from benchmarks.timing import save
from fa_numba.on_cuda_cores.flash_decode_wide import flash_decode_wide
from fa_numba.runtime import launching
from fa_numba.tensor_core.flash_attn_bwd_persistent import flash_attn_bwd_persistent
from fa_numba.tensor_core.flash_attn_mma import flash_attn_mma
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent
from fa_numba.tensor_core.flash_decode_mma import flash_decode_mma

SHAPE = (1, 16, 1, 64)  # batch, seqlen, num_heads, head_dim: the GPU is done before the next call
ROUNDS, REPEATS, IN_A_ROW = 7, 40, 50
NOTE = (
    f"{SHAPE}, one query over 16 keys to decode; microseconds until a call returns, the median of "
    f"{REPEATS}, each after the GPU has become idle, and of each of {IN_A_ROW} calls in a row, and "
    f"of that the median of {ROUNDS} rounds through all rows; a graph holds one call; first calls "
    "are in a process of their own, from arrays on the GPU to results there"
)

FIRST_CALL = """
import time
started = time.perf_counter()
import cupy
q, k, v = (cupy.ones((1, 64, 2, 64), "float32") for _ in range(3))
cupy.cuda.Device().synchronize()
ready = time.perf_counter()
import fa_numba
imported = time.perf_counter()
fa_numba.flash_attn_v2(q, k, v, causal=True)
cupy.cuda.Device().synchronize()
called = time.perf_counter()
print(ready - started, imported - ready, called - imported)
"""


def main():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Numba's dispatcher warns of small grids
        rows = [*measure(), *first_calls()]
    save("launch", rows, note=NOTE)


def measure():
    """Yield a row for each call that returns before the GPU has done its work.

    All of them are timed in each round: for seconds on end, everything that this process does may
    take half as long again.
    """
    timed = {}  # by call: functions without arguments
    for library in ("CuPy", "PyTorch"):
        for name, function, args in calls(library):
            graph = GRAPHS[library](function, *args)
            timed[f"{name}, {library}"] = functools.partial(function, *args), graph
    name, function, args = next(calls("CuPy"))
    timed[f"{name}, CuPy, by Numba's dispatcher"] = by_dispatcher(function, *args), None
    shape = SHAPE[0], SHAPE[2], SHAPE[1]
    timed["two times cupy.empty"] = lambda: (cupy.empty(SHAPE), cupy.empty(shape)), None
    rounds = [{call: times(*functions) for call, functions in timed.items()} for _ in range(ROUNDS)]
    for call, first in rounds[0].items():
        medians = {x: float(np.median([each[call][x] for each in rounds])) for x in first}
        yield {"call": call} | {x: round(us, 1) for x, us in medians.items()}


def times(function, graph):
    """Microseconds of a call, and of its CUDA graph."""
    found = {"enqueue, µs": enqueue_us(function), "in a row, µs": in_a_row_us(function)}
    if graph:
        found["its graph, enqueue, µs"] = enqueue_us(graph)
        found["its graph on the GPU, µs"] = graph_us(graph)
    return found


def by_dispatcher(function, *args):
    """The same call by way of Numba's dispatcher."""

    def call():
        launching.enabled = False
        try:
            function(*args)
        finally:
            launching.enabled = True

    return call


def calls(library):
    """Yield (name, function, arguments) for arrays of a library."""
    rng = np.random.default_rng(0)
    x = [rng.standard_normal(SHAPE, dtype=np.float32) for _ in range(5)]
    lse, lengths = np.full((SHAPE[0], SHAPE[2], SHAPE[1]), 6, np.float32), np.array([16], np.int32)
    singles = [to_gpu(library, a) for a in x]
    halves = [to_gpu(library, a.astype(np.float16)) for a in x]
    lse, lengths = to_gpu(library, lse), to_gpu(library, lengths)
    cached = halves[0][:, :1], *halves[1:3], lengths
    yield "flash_attn_v2", fa_numba.flash_attn_v2, singles[:3]
    yield "flash_attn, float32", fa_numba.flash_attn, singles[:3]
    yield "flash_attn, float16", fa_numba.flash_attn, halves[:3]
    yield "flash_attn, one query", fa_numba.flash_attn, cached[:3]
    yield "flash_attn, one array thrice", fa_numba.flash_attn, 3 * halves[:1]
    yield "flash_attn_grad", fa_numba.flash_attn_grad, [*halves, lse]
    yield "flash_attn_grad, out as dout", fa_numba.flash_attn_grad, [halves[4], *halves[1:], lse]
    starts = to_gpu(library, np.array([0, SHAPE[1]], np.int32))
    packed = [a[0] for a in halves[:3]]
    yield "flash_attn_varlen", fa_numba.flash_attn_varlen, [*packed, starts, starts]
    yield "flash_decode", fa_numba.flash_decode, cached
    table = to_gpu(library, np.zeros((1, 1), np.int32))  # a page with all keys
    yield "paged_attn_decode", fa_numba.paged_attn_decode, [*cached[:3], table, lengths]
    rows = singles[0].reshape(-1, SHAPE[3])
    yield "softmax", fa_numba.softmax, [rows]
    yield "softmax_topk", fa_numba.softmax_topk, [rows, 5]
    yield "flash_attn_registers", fa_numba.flash_attn_registers, singles[:3]
    yield "flash_attn_bwd_registers", fa_numba.flash_attn_bwd_registers, [*singles, lse]
    yield "flash_attn_mma", flash_attn_mma, halves[:3]
    yield "flash_attn_persistent", flash_attn_persistent, halves[:3]
    yield "flash_attn_bwd_persistent", flash_attn_bwd_persistent, [*halves, lse]
    yield "flash_decode_wide", flash_decode_wide, cached
    yield "flash_decode_mma", flash_decode_mma, cached
    if library == "PyTorch":
        from torch.nn.functional import scaled_dot_product_attention

        for name, of in (("float32", singles), ("float16", halves)):
            heads_first = [a.transpose(1, 2).contiguous() for a in of[:3]]
            yield f"SDPA {name}", scaled_dot_product_attention, heads_first


def to_gpu(library, x):
    if library == "CuPy":
        return cupy.asarray(x)
    import torch

    return torch.as_tensor(x, device="cuda")


def enqueue_us(function):
    """Median microseconds until ``function()`` returns."""
    samples = []
    for _ in range(REPEATS + 5):
        start = time.perf_counter()
        function()
        samples.append(time.perf_counter() - start)
        cupy.cuda.Device().synchronize()
    return 1e6 * float(np.median(samples[5:]))


def in_a_row_us(function):
    """Median microseconds of each of some calls; the GPU's queue has room for all of them."""
    samples = []
    for _ in range(REPEATS // 10):
        start = time.perf_counter()
        for _ in range(IN_A_ROW):
            function()
        samples.append((time.perf_counter() - start) / IN_A_ROW)
        cupy.cuda.Device().synchronize()
    return 1e6 * float(np.median(samples))


def cupy_graph(function, *args):
    """A function that launches a CUDA graph of one call, captured by CuPy."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(2):  # compile, and leave room for the results
            function(*args)
        stream.begin_capture()
        results = function(*args)
        graph = stream.end_capture()
    graph.upload(stream)

    def launch(results=results):  # which are kept as long as the graph
        graph.launch(stream)

    return launch


def torch_graph(function, *args):
    """The same, captured by PyTorch."""
    import torch

    function(*args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function(*args)
    return lambda results=results: graph.replay()


GRAPHS = {"CuPy": cupy_graph, "PyTorch": torch_graph}


def graph_us(launch, repeats=200):
    """Microseconds of the GPU for each of many graphs, one behind the other."""
    launch()
    cupy.cuda.Device().synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        launch()
    cupy.cuda.Device().synchronize()
    return 1e6 * (time.perf_counter() - start) / repeats


def first_calls():
    """Yield a row for the first call in a new process, with nothing on disk and with the kernel."""
    with tempfile.TemporaryDirectory() as folder:
        for what, repeats in (("nothing", 1), ("the kernel", 3)):
            seconds = np.median([first_call(folder) for _ in range(repeats)], axis=0)
            names = "import CuPy and use it, s", "import fa_numba, s", "first call, s"
            row = {"call": f"flash_attn_v2, CuPy, {what} on disk"}
            yield row | dict(zip(names, map(float, seconds.round(3)), strict=True))


def first_call(folder):
    """Seconds of each part of a process of its own."""
    told = subprocess.run(
        [sys.executable, "-c", FIRST_CALL],
        env=os.environ | {"FA_NUMBA_CACHE": folder},
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(word) for word in told.stdout.split()]
