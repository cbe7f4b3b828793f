"""Calls that are done again by what was noted, and CUDA graphs of them, on a GPU: `pytest -m gpu`.

The measure is the same call by way of Numba's dispatcher, or at least with nothing noted, bit by
bit.
"""

import gc
import subprocess
import sys
import threading
from unittest import mock

import numpy as np
import pytest
from gpu_cases import ON_A_GPU, cupy_on_a_gpu
from numba import cuda

cupy = cupy_on_a_gpu()
pytestmark = ON_A_GPU

import fa_numba  # noqa: E402
from fa_numba.kernels.flash_decode import flash_decode  # noqa: E402
from fa_numba.on_cuda_cores.flash_decode_wide import flash_decode_wide  # noqa: E402
from fa_numba.runtime import arrays, graphs, launching, replay, tensor_maps  # noqa: E402
from fa_numba.tensor_core.flash_attn_bwd_mma import flash_attn_bwd_mma  # noqa: E402
from fa_numba.tensor_core.flash_attn_bwd_persistent import flash_attn_bwd_persistent  # noqa: E402
from fa_numba.tensor_core.flash_attn_mma import flash_attn_mma  # noqa: E402
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent  # noqa: E402
from fa_numba.tensor_core.flash_attn_persistent_varlen import flash_attn_persistent_varlen  # noqa: E402
from fa_numba.tensor_core.flash_attn_split import flash_attn_split  # noqa: E402
from fa_numba.tensor_core.flash_attn_wgmma import flash_attn_wgmma  # noqa: E402
from fa_numba.tensor_core.flash_attn_ws import flash_attn_ws  # noqa: E402
from fa_numba.tensor_core.flash_decode_columns import flash_decode_columns  # noqa: E402
from fa_numba.tensor_core.flash_decode_gather import flash_decode_gather  # noqa: E402
from fa_numba.tensor_core.flash_decode_mma import flash_decode_mma  # noqa: E402

MAJOR, _ = cuda.get_current_device().compute_capability[:2]
Q_SHAPE, K_SHAPE = (2, 130, 4, 64), (2, 190, 2, 64)


def forward(function, dtype, **options):
    def make(rng):
        return [random(rng, shape, dtype) for shape in (Q_SHAPE, K_SHAPE, K_SHAPE)]

    return function, make, options


def backward(function, dtype, **options):
    def make(rng):
        q = [random(rng, Q_SHAPE, dtype) for _ in range(3)]
        k, v = (random(rng, K_SHAPE, dtype) for _ in range(2))
        lse = random(rng, (Q_SHAPE[0], Q_SHAPE[2], Q_SHAPE[1]), "float32") + np.float32(6)
        return [q[0], q[1], k, v, q[2], lse]

    return function, make, options


def decoding(function, dtype, **options):
    def make(rng):
        q = random(rng, (2, 1, 4, 64), dtype)
        k, v = (random(rng, K_SHAPE, dtype) for _ in range(2))
        return [q, k, v, rng.integers(1, 190, 2).astype(np.int32)]

    return function, make, options


def packed(function, dtype, **options):
    def make(rng):
        starts = np.array([0, 70, 200], np.int32), np.array([0, 90, 333], np.int32)
        shapes = (200, 4, 64), (333, 2, 64), (333, 2, 64)
        return [*(random(rng, shape, dtype) for shape in shapes), *starts]

    return function, make, options


def random(rng, shape, dtype):
    return rng.standard_normal(shape, dtype=np.float32).astype(dtype)


ANY_GPU = {
    "v2": forward(fa_numba.flash_attn_v2, "float32", causal=True, softmax_scale=0.25),
    "v2-dropout": forward(fa_numba.flash_attn_v2, "float16", dropout_p=0.5, seed=2**64 - 1),
    "unsigned": forward(fa_numba.flash_attn_v2_unsigned, "float32"),
    "simt": forward(fa_numba.flash_attn_registers, "float32", causal=True),
    "bwd": backward(fa_numba.flash_attn_bwd, "float32", causal=True),
    "bwd-simt": backward(fa_numba.flash_attn_bwd_registers, "float32", deterministic=True),
    "decode": decoding(flash_decode, "float32"),
    "decode-wide": decoding(flash_decode_wide, "float16"),
    "decode-wide-1": decoding(flash_decode_wide, "float16", num_splits=1),
}
AMPERE = {
    "mma": forward(flash_attn_mma, "float16"),
    "bwd-mma": backward(flash_attn_bwd_mma, "float16", deterministic=True),
    "decode-mma": decoding(flash_decode_mma, "float16", num_splits=3),
    "decode-columns": decoding(flash_decode_columns, "float16", num_splits=3),
}
HOPPER = {
    "wgmma": forward(flash_attn_wgmma, "float16", causal=True),
    "ws": forward(flash_attn_ws, "float16"),
    "persistent": forward(flash_attn_persistent, "float16", causal=True),
    "split": forward(flash_attn_split, "float16", num_splits=3),
    "split-float32": forward(flash_attn_split, "float16", num_splits=1, out_dtype="float32"),
    "varlen": packed(flash_attn_persistent_varlen, "float16", causal=True),
    "bwd-persistent": backward(flash_attn_bwd_persistent, "float16", deterministic=True),
    "decode-gather": decoding(flash_decode_gather, "float16", num_splits=3),
}
WINDOW = fa_numba.masks.window_and_first(30, 4)
HOPPER |= {
    "bwd-persistent-mask": backward(
        flash_attn_bwd_persistent, "float16", deterministic=True, mask=WINDOW
    ),
    "varlen-mask": packed(flash_attn_persistent_varlen, "float16", mask=WINDOW),
}
CASES = ANY_GPU | (AMPERE if MAJOR >= 8 else {}) | (HOPPER if MAJOR == 9 else {})
# By module: the tests of a case follow each other, so that one process compiles its kernels.
each_case = pytest.mark.parametrize(
    "function, make, options", CASES.values(), ids=CASES, scope="module"
)
each_library = pytest.mark.parametrize("library", ["cupy", "torch"])


def to_gpu(library, host):
    if library == "cupy":
        return [cupy.asarray(x) for x in host]
    torch = pytest.importorskip("torch")
    return [torch.as_tensor(x, device="cuda") for x in host]


def assert_same(got, want):
    got, want = ([arrays.to_numpy(x) for x in results] for results in (got, want))
    assert all(np.isfinite(x).all() for x in want)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y)


def poison(results):
    """Free memory that the next call is likely to be given, full of NaN."""
    for x in results:
        x.fill(np.nan) if isinstance(x, cupy.ndarray) else x.fill_(np.nan)


@pytest.fixture(autouse=True)
def soon_a_graph(monkeypatch):
    """The first replay makes launches, and from the second on a CUDA graph is launched.

    Recordings of other tests that ran in this process would be counted.
    """
    monkeypatch.setattr(graphs, "REPEATS_BEFORE_GRAPH", 0)
    for function in (*(x for x, _, _ in CASES.values()), flash_attn_persistent_varlen):
        function.replays.clear()
    yield
    for function, _, _ in CASES.values():
        function.replays.clear()


@pytest.fixture
def replays(monkeypatch):
    """How often a call has been done again."""
    count = []
    replay_of = replay.Recording.replay

    def counted(recording, result):
        do = replay_of(recording, result)

        def again(given, seed=None):
            result = do(given, seed)
            count.append(1)  # not where it was refused
            return result

        return do and again

    monkeypatch.setattr(replay.Recording, "replay", counted)
    return count


@pytest.fixture
def by_numba():
    """Calls a function by way of Numba's dispatcher, with nothing noted."""

    def call(function, *args, **options):
        with mock.patch.object(launching, "enabled", False):
            return function(*args, **options)

    return call


@each_library
@each_case
def test_small_replays_are_calls(function, make, options, library, replays, by_numba):
    rng, kept = np.random.default_rng(1), []
    for turn in range(4):
        args = to_gpu(library, make(rng))
        kept.append(args)  # so that the next ones have other addresses
        want = by_numba(function, *args, **options)
        poison(function(*args, **options))
        assert_same(function(*args, **options), want)
        assert len(replays) == 2 * turn + 1


@each_case
def test_small_graphs_of_cupy(function, make, options):
    rng = np.random.default_rng(2)
    args = to_gpu("cupy", make(rng))
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        for _ in range(2):  # compile, note, and leave room for what it allocates
            function(*args, **options)
        stream.begin_capture()
        results = function(*args, **options)
        graph = stream.end_capture()
    others = [cupy.full(512, 7, np.uint8) for _ in range(2000)]  # not in the graph's memory
    for _ in range(2):
        for x, host in zip(args, make(rng), strict=True):
            x.set(host)
        poison(results)
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert_same(results, function.__wrapped__(*args, **options))
    assert (cupy.concatenate(others) == 7).all()


@each_case
def test_small_graphs_of_pytorch(function, make, options):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    args = to_gpu("torch", make(rng))
    function(*args, **options)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function(*args, **options)
    for _ in range(2):
        for x, host in zip(args, make(rng), strict=True):
            x.copy_(torch.as_tensor(host))
        poison(results)
        graph.replay()
        torch.cuda.synchronize()
        assert_same(results, function.__wrapped__(*args, **options))


@each_library
def test_replays_run_on_the_current_stream(library, replays):
    function, make, options = CASES["v2"]
    args = to_gpu(library, make(np.random.default_rng(4)))
    want = function(*args, **options)
    before = len(replays)
    late = [x + 0 for x in args]
    if library == "cupy":
        stream, synchronize = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Device().synchronize
        long = cupy.zeros(1 << 28, np.uint8)
    else:
        import torch

        stream, synchronize = torch.cuda.Stream(), torch.cuda.synchronize
        long = torch.zeros(1 << 28, dtype=torch.uint8, device="cuda")
    for x in late:
        x *= 0
    synchronize()
    with stream if library == "cupy" else torch.cuda.stream(stream):
        for _ in range(100):  # milliseconds: on another stream the kernel would read zeros
            long += 1
        for x, source in zip(late, args, strict=True):
            x += source
        got = function(*late, **options)
    synchronize()
    assert len(replays) == before + 1
    assert_same(got, want)


@each_library
@each_case
def test_small_streams_take_turns(function, make, options, library, replays, by_numba):
    rng = np.random.default_rng(7)
    sets = [to_gpu(library, make(rng)) for _ in range(3)]
    wants = [by_numba(function, *args, **options) for args in sets]
    if library == "cupy":
        contexts = streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    else:
        import torch

        streams = [torch.cuda.Stream() for _ in range(2)]
        contexts = [torch.cuda.stream(stream) for stream in streams]
    cupy.cuda.Device().synchronize()
    for args, want in zip(sets * 3, wants * 3, strict=True):
        results = []
        for context in contexts:
            with context:
                poison(function(*args, **options))
                results.append(function(*args, **options))
        for stream, got in zip(streams, results, strict=True):
            stream.synchronize()
            assert_same(got, want)
    assert len(replays) == 35


@each_library
@pytest.mark.skipif(MAJOR != 9, reason="needs a Hopper GPU")
def test_many_addresses_have_tensor_maps_of_their_own(library, by_numba, monkeypatch):
    """Those of 60 calls fill several blocks of memory; blocks are freed as maps are dropped."""
    monkeypatch.setattr(tensor_maps, "MAX_MAPS", 20)
    function, make, options = CASES["persistent"]
    rng = np.random.default_rng(10)
    sets = [to_gpu(library, make(rng)) for _ in range(60)]
    wants = [by_numba(function, *args, **options) for args in sets]
    for args, want in zip(sets * 2, wants * 2, strict=True):
        poison(function(*args, **options))
        assert_same(function(*args, **options), want)


@each_library
@pytest.mark.parametrize("first", [0, 1], ids=["one-array-first", "three-arrays-first"])
def test_one_array_as_three_is_replayed(library, first, by_numba):
    """By one recording, in whichever order the calls come."""
    function, _, options = CASES["v2"]
    x = to_gpu(library, [random(np.random.default_rng(8), Q_SHAPE, "float32") for _ in range(3)])
    calls = [(x[0],) * 3, x, (x[1],) * 3, x[::-1], (x[0], x[1], x[1]), x]
    for arguments in calls[first:]:
        for _ in range(3):
            got = function(*arguments, **options)
            assert_same(got, by_numba(function, *arguments, **options))
    assert len(function.replays) == 1


@each_library
@pytest.mark.skipif(MAJOR != 9, reason="needs a Hopper GPU")
def test_one_list_of_lengths_for_queries_and_keys_is_replayed(library, by_numba):
    rng = np.random.default_rng(9)
    host = [random(rng, (200, 4, 64), "float16") for _ in range(3)]
    *qkv, starts = to_gpu(library, [*host, np.array([0, 70, 200], np.int32)])
    for arguments in [(*qkv, starts, starts), (qkv[0],) * 3 + (starts, starts)]:
        for _ in range(3):
            got = flash_attn_persistent_varlen(*arguments, causal=True)
            assert_same(got, by_numba(flash_attn_persistent_varlen, *arguments, causal=True))
    assert len(flash_attn_persistent_varlen.replays) == 1


def test_small_pytorch_alone():
    """Where CuPy is not loaded its call of the driver cannot be used."""
    pytest.importorskip("torch")
    code = """
import sys, torch, fa_numba
q, k, v = torch.randn(3, 2, 40, 2, 64, device="cuda").unbind()
want = fa_numba.flash_attn_v2(q, k, v, causal=True)
for _ in range(3):
    got = fa_numba.flash_attn_v2(q, k, v, causal=True)
    assert all(torch.equal(*both) for both in zip(got, want))
assert "cupy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_small_a_call_that_compiles_keeps_no_array(monkeypatch):
    monkeypatch.setattr(launching.kernel_cache, "load", lambda *_: None)

    def call():
        x = cupy.zeros((1, 32, 1, 32), "float32")
        fa_numba.flash_attn_v2(x, x, x, softcap=0.7137)  # a kernel of its own

    pool = cupy.get_default_memory_pool()
    gc.collect()
    gc.disable()
    try:
        before = pool.used_bytes()
        call()
        assert pool.used_bytes() == before
    finally:
        gc.enable()


@each_library
def test_other_strides_are_other_calls(library, replays, by_numba):
    function, make, options = CASES["v2"]
    wide = [np.concatenate([x, x], axis=-1) for x in make(np.random.default_rng(5))]
    for _ in range(2):
        for part in (slice(0, 64), slice(64, 128), slice(32, 96)):
            args = [x[..., part] for x in to_gpu(library, wide)]
            assert_same(function(*args, **options), by_numba(function, *args, **options))
    contiguous = to_gpu(library, [x[..., :64].copy() for x in wide])
    assert_same(function(*contiguous, **options), by_numba(function, *contiguous, **options))
    assert len(replays) == 5


def test_alignment_is_checked_in_every_call(by_numba):
    function, make, options = CASES["decode-wide"]
    host = make(np.random.default_rng(6))
    want = function(*to_gpu("cupy", host), **options)
    room = cupy.empty(host[1].size + 8, np.float16)
    for shift in (0, 1, 8, 3):
        q, k, v, lengths = to_gpu("cupy", host)
        shifted = room[shift : shift + k.size].reshape(k.shape)
        shifted[...] = k
        out, lse = function(q, shifted, v, lengths, **options)
        assert_same((out, lse), by_numba(function, q, shifted, v, lengths, **options))
        np.testing.assert_allclose(out.get(), want[0].get(), rtol=2e-2, atol=1e-3)
    if MAJOR == 9:
        function, make, options = CASES["persistent"]
        q, k, v = to_gpu("cupy", make(np.random.default_rng(6)))
        function(q, k, v, **options)
        shifted = cupy.empty(k.size + 8, np.float16)[1 : k.size + 1].reshape(k.shape)
        with pytest.raises(ValueError, match="k must begin at a multiple of 16 bytes"):
            function(q, shifted, v, **options)


@each_library
def test_threads_do_not_disturb_each_other(library, by_numba):
    function, make, options = CASES["persistent" if MAJOR == 9 else "v2"]
    sets = [to_gpu(library, make(np.random.default_rng(seed))) for seed in range(4)]
    wants = [by_numba(function, *args, **options) for args in sets]
    cupy.cuda.Device().synchronize()
    failures = []

    def work(args, want):
        try:
            for _ in range(50):
                assert_same(function(*args, **options), want)
        except BaseException as error:
            failures.append(error)

    both = zip(sets, wants, strict=True)
    threads = [threading.Thread(target=work, args=each) for each in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["flash_attn", "flash_attn_v2"])
def test_small_another_seed_is_replayed(name, dtype):
    """A replay with another seed drops what a call that was never recorded drops."""
    rng, function = np.random.default_rng(0), getattr(fa_numba, name)
    q, k, v = (cupy.asarray(random(rng, shape, dtype)) for shape in (Q_SHAPE, K_SHAPE, K_SHAPE))
    dout = cupy.asarray(random(rng, Q_SHAPE, dtype))

    def call(seed):
        out, *_ = function(q, k, v, dropout_p=0.5, seed=seed)
        results = [out]
        if name == "flash_attn":
            options = {"dropout_p": 0.5, "seed": seed}
            out, lse = function(q, k, v, **options)
            _, *others = fa_numba.flash_attn_grad(dout, q, k, v, out, lse, **options)
            results += others  # dq is a sum in any order
        return results

    seeds = 1, 2, 2**63 + 5
    replayed = [call(seed) for seed in seeds]
    for seed, got in zip(seeds, replayed, strict=True):
        function.replays.clear()
        fa_numba.flash_attn_grad.replays.clear()
        for x, y in zip(got, call(seed), strict=True):
            assert bool((x == y).all())
    assert not bool((replayed[0][0] == replayed[1][0]).all())
