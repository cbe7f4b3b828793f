"""`mine`: the learner's kernel in a lesson once it passes, ours until then."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import fa_numba
from fa_numba import reference, simt
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.workbook import catalog, mask_times, own, passed, progress, recorded
from fa_numba.workbook.report import Check, Graded

ROOT = Path(__file__).parents[1]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A function that makes a workbook of these exercises, solved by ours but for `changes`."""

    def make(*names, changes=None):
        for name in names:
            exercise = catalog.find_one(name, ROOT)
            for folder in ("solutions", "exercises"):
                (tmp_path / folder).mkdir(exist_ok=True)
            shutil.copy(exercise.grader, tmp_path / "exercises")
            shutil.copy(exercise.solution, tmp_path / "solutions")
            text = exercise.solution.read_text(encoding="utf-8")
            for old, new in (changes or {}).items():
                text = re.sub(old, new, text)
            (tmp_path / "exercises" / exercise.stub.name).write_text(text, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return make


def passes(name):
    exercise = catalog.find_one(name)
    assert progress.record([Graded(exercise, [Check("all", "passed")])]) == ""


def test_yours_once_it_passes_and_says_so(checkout, capsys):
    # names that are not the statement's: the meter speaks of x and y all the same
    checkout("ex03c", changes={r"(?<!\.)\bx\b": "scores", r"(?<!\.)\by\b": "shares"})
    softmax = own.mine("ex03c")
    assert not softmax.yours and softmax.function is fa_numba.online_softmax
    assert capsys.readouterr().out == "ex03c: our online_softmax, until yours passes\n"
    passes("ex03c")
    softmax = own.mine("ex03c")
    assert softmax.yours and softmax.name == "your ex03c"
    assert "your kernel, exercises/ex03c" in capsys.readouterr().out
    x = np.random.default_rng(0).standard_normal((3, 70), dtype=np.float32)
    with simt.tracing() as traces:
        y = softmax(x)
    assert np.abs(y - reference.softmax(x.astype(np.float64))).max() < 1e-6
    (trace,) = traces
    assert (trace.arrays["x"].loads, trace.arrays["y"].stores) == (2 * x.size, x.size)


def test_safe_softmax_is_called_as_ours_is(checkout):
    checkout("ex02d", changes={r"(?<!\.)\bx\b": "scores"})
    passes("ex02d")
    x = np.random.default_rng(0).standard_normal((3, 70), dtype=np.float32)
    meters = {}
    for softmax in (own.mine("ex02d"), fa_numba.safe_softmax):
        with simt.tracing() as traces:
            y = softmax(x)
        assert np.abs(y - reference.softmax(x.astype(np.float64))).max() < 1e-6
        (trace,) = traces
        meters[softmax] = trace.arrays["x"].loads, trace.arrays["y"].stores, trace.barriers
    assert set(meters.values()) == {(3 * x.size, x.size, 3 * 17)}


def test_the_file_is_read_anew(checkout):
    root = checkout("ex03c")
    passes("ex03c")
    assert own.mine("ex03c").yours
    path = root / "exercises" / "ex03c_online_softmax_kernel.py"
    seven = """

@cuda.jit
def online_softmax_kernel(x, y):
    if cuda.threadIdx.x == 0:
        y[cuda.blockIdx.x, 0] = 7
"""
    path.write_text(path.read_text() + seven)
    assert not own.mine("ex03c").yours, "edited since, and not checked"
    passes("ex03c")
    assert own.mine("ex03c")(np.ones((1, 1), np.float32)) == 7


@pytest.mark.parametrize("name, ours", [("ex06b", "flash_attn_v1"), ("ex07d", "flash_attn_v2")])
def test_attention_is_called_as_ours_is(checkout, name, ours):
    checkout(name, changes={r"\bk\b": "keys"})
    passes(name)
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 9, 2, 6), dtype=np.float32)
    k, v = rng.standard_normal((2, 2, 11, 1, 6), dtype=np.float32)  # a key head for two heads
    attn, options = own.mine(name), {"block_m": 4, "block_n": 8}
    moved = {}
    for function in (attn, getattr(fa_numba, ours)):
        with simt.tracing() as traces:
            out, *statistics = function(q, k, v, **options)
        moved[function] = {
            array: [sum(getattr(t.arrays[array], x) for t in traces) for x in ("loads", "stores")]
            for array in traces[0].arrays
            if array not in ("alibi_slopes", "block_mask")
        }
        assert np.abs(out - reference.attention(q, k, v)[0]).max() < 1e-5
        assert statistics[0].shape == (2, 2, 9)
    assert moved[attn] == moved[getattr(fa_numba, ours)], "array by array, by the same names"


def test_causal(checkout):
    checkout("ex07d")
    passes("ex07d")
    q, k, v = np.random.default_rng(1).standard_normal((3, 1, 9, 1, 4), dtype=np.float32)
    out, lse = own.mine("ex07d")(q, k, v, causal=True, block_m=4, block_n=4)
    truth, truth_lse = reference.attention(q, k, v, causal=True)
    assert np.abs(out - truth).max() < 1e-5 and np.abs(lse - truth_lse).max() < 1e-5


def test_a_window_and_sinks(checkout):
    checkout("ex09c")
    passes("ex09c")
    q = np.random.default_rng(2).standard_normal((2, 13, 4, 6), dtype=np.float32)
    k, v = np.random.default_rng(3).standard_normal((2, 2, 17, 2, 6), dtype=np.float32)
    options = {"window_size": (4, 0), "sinks": np.array([0.5, -1, 2, 0], np.float32)}
    out, lse = own.mine("ex09c")(q, k, v, **options, block_m=4, block_n=8)
    truth, truth_lse = reference.attention(q, k, v, **options)
    assert np.abs(out - truth).max() < 1e-5 and np.abs(lse - truth_lse).max() < 1e-5


def test_the_time_of_a_mask_needs_a_gpu(monkeypatch):
    monkeypatch.setattr(mask_times, "has_cupy_and_gpu", lambda: False)
    said = mask_times.mask_times(lambda b, h, m, n: n <= m)
    assert "There is no GPU here" in said.markdown and said.markdown.count("\n") == 0


@pytest.mark.gpu
def test_the_time_of_a_mask():
    pytest.importorskip("cupy", reason="needs CuPy")
    if not cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    said = mask_times.mask_times(lambda b, h, m, n: (n <= m) & (m - n < 512)).markdown
    assert "causal" in said and "yours" in said


@pytest.mark.parametrize("name, num_splits", [("ex16c", 1), ("ex17c", 3)])
def test_decoding_is_called_as_ours_is(checkout, name, num_splits):
    checkout(name, changes={r"\bk_cache\b": "keys"})
    passes(name)
    rng = np.random.default_rng(0)
    q = rng.standard_normal((3, 1, 4, 6), dtype=np.float32)
    k, v = rng.standard_normal((2, 3, 20, 2, 6), dtype=np.float32)
    seq_lens = np.array([20, 0, 9], np.int32)
    decode, options = own.mine(name), {"num_splits": num_splits, "block_n": 4}
    moved, results = {}, {}
    for function in (decode, flash_decode):
        with simt.tracing() as traces:
            results[function] = function(q, k, v, seq_lens, **options)
        moved[function] = {x: traces[0].arrays[x].loads for x in ("q", "k_cache", "v_cache")}
    for x, y in zip(results[decode], results[flash_decode], strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, atol=1e-5)
    assert moved[decode] == moved[flash_decode]
    full, _ = decode(q, k, v)
    assert np.abs(full - reference.attention(q, k, v)[0]).max() < 1e-5


def test_a_prefix_is_read_as_ours_reads_it(checkout):
    checkout("ex17f", changes={r"\bk_prefix\b": "keys"})
    passes("ex17f")
    q, options = np.random.default_rng(0).standard_normal((3, 1, 4, 6), np.float32), {"block_n": 4}
    k, v = np.random.default_rng(1).standard_normal((2, 9, 2, 6), np.float32)
    state, ours = own.mine("ex17f"), own.JOBS["ex17f"].ours
    loads, results = [], []
    for function, name, block_m in ((state, "k_prefix", 4), (ours, "k_cache", 4)):
        with simt.tracing() as traces:
            results.append(function(q, k, v, block_m=block_m, **options))
        loads.append(traces[0].arrays[name].loads)
    assert loads == [2 * k.size] * 2, "six rows of a K/V head are two tiles"
    want = reference.attention(q, *(np.repeat(x[None], 3, axis=0) for x in (k, v)))
    for state_of in results:
        assert np.abs(state_of[0] - want[0]).max() < 1e-5
        assert np.abs(state_of[1] - want[1]).max() < 1e-5


def test_a_list_is_walked_as_ours_walks_it(checkout):
    checkout("ex25c")
    passes("ex25c")
    rng, options = np.random.default_rng(0), {"block_m": 4, "block_n": 4, "causal": True}
    q, k, v = (rng.standard_normal((2, 9, heads, 6), np.float32) for heads in (4, 2, 2))
    lists = np.array([[[[0, -1], [1, 0], [-1, 2]], [[-1, -1], [0, 1], [2, 0]]]])
    loads, results = [], []
    for function in (own.mine("ex25c"), own.JOBS["ex25c"].ours):
        with simt.tracing() as traces:
            results.append(function(q, k, v, lists, **options))
        loads.append(sum(trace.arrays["k"].loads for trace in traces))
    assert loads[0] == loads[1] > 0
    for x, y in zip(*results, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


def test_a_kernel_that_does_not_split(checkout):
    checkout("ex16c")
    passes("ex16c")
    q = np.zeros((1, 1, 1, 4), np.float32)
    with pytest.raises(ValueError, match="num_splits must be 1"):
        own.mine("ex16c")(q, q, q, num_splits=2)


def test_inputs_of_the_decode_benchmark():
    from fa_numba.workbook.recorded import recorded_rows

    for row in recorded_rows("decode", folder=ROOT / "benchmarks" / "results"):
        (q, k, v), options = own.JOBS["ex17c"].inputs(row)
        assert k == v and q[0] == k[0] == row["batch"] and k[1] == row["seqlen"] and not options
        assert f"{q[2]}/{k[2]}" == row["heads"]


@pytest.mark.parametrize("name", ["ex00d", "ex00f", "ex00h"])
def test_first_puzzles_are_called_as_ours(checkout, name, capsys):
    """With names that are not the statement's; meter and results are those of ours."""
    inputs = {"ex00d": [(5, 7), 5, 7], "ex00f": [128], "ex00h": [128] * 4}[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in inputs]
    checkout(name, changes={r"(?<!\.)\bx\b": "given"})
    found = []
    for yours in (False, True):
        function = own.mine(name)
        assert function.yours == yours
        with simt.tracing() as traces:
            result = function(*arrays)
        results = result if isinstance(result, tuple) else (result,)
        moved = {k: (a.loads, a.stores) for k, a in traces[0].arrays.items()}
        found.append((moved, [r.tolist() for r in results]))
        passes(name)
    assert found[0] == found[1] and "x" in found[0][0]
    x = arrays[0]
    if name == "ex00d":
        assert np.allclose(results[0], (x - arrays[1][:, None]) * arrays[2])
    elif name == "ex00f":
        assert np.array_equal(
            results[0], (x.reshape(2, 64) - x.reshape(2, 64).max(1)[:, None]).ravel()
        )
    else:
        x, y, c, s = arrays
        assert np.allclose(results, [c * x - s * y, s * x + c * y], atol=1e-6)


def test_a_kernel_that_the_lesson_brings(checkout, capsys):
    checkout("ex05b")

    def make_tiled_matmul(TILE):
        return module.make_tiled_matmul(TILE)

    module = own.load(catalog.find_one("ex05b"))
    a, b = np.random.default_rng(0).standard_normal((2, 5, 5), dtype=np.float32)
    for name in ("tiled_matmul", "your ex05b"):
        matmul = own.mine("ex05b", ours=make_tiled_matmul)
        assert matmul.name == name and np.allclose(matmul(a, b, 4), a @ b, atol=1e-5)
        passes("ex05b")


def test_packed(checkout):
    checkout("ex10d", changes={r"\bk\b": "keys"})
    starts = np.array([0, 5, 5, 12], np.int32)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((12, heads, 6), dtype=np.float32) for heads in (4, 2, 2))
    for name in ("flash_attn_varlen", "your ex10d"):
        attn = own.mine("ex10d")
        assert attn.name == name
        for causal in (False, True):
            want, _ = reference.varlen_attention(q, k, v, starts, starts, causal=causal)
            out, _ = attn(q, k, v, starts, starts, causal=causal)
            assert np.abs(out - want).max() < 1e-5
        passes("ex10d")


def test_a_transposition(checkout):
    """The lesson's kernel, then the learner's, under the names of the statement."""
    checkout("ex15e", changes={r"(?<!\.)\by\b": "turned"})
    ours = own.load(catalog.find_one("ex15e")).transpose
    x = np.random.default_rng(0).standard_normal((32, 64), dtype=np.float32)
    for name in ("transpose", "your ex15e"):
        transpose = own.mine("ex15e", ours=ours)
        with simt.tracing() as traces:
            assert transpose.name == name and (transpose(x) == x.T).all()
        assert traces[0].arrays["y"].stores == x.size
        passes("ex15e")
    shapes = {
        row["kernel"]: own.JOBS["ex15e"].inputs(row)
        for row in recorded.recorded_rows("tiles", folder=ROOT / "benchmarks" / "results")
    }
    timed = [name for name, inputs in shapes.items() if inputs]
    assert timed == ["transposition, tile of 32 × 33"]
    assert shapes[timed[0]] == ([(8192, 8192)], {})


def test_what_cannot_be_asked_for(checkout):
    checkout("ex03c", "ex05b", "ex06a")
    with pytest.raises(ValueError, match="name must be one of ex00d, .*, got 'ex06a'"):
        own.mine("ex06a")
    with pytest.raises(ValueError, match="ours is needed for ex05b, got None"):
        own.mine("ex05b")
    with pytest.raises(ValueError, match="ours is not taken: the package has the kernel"):
        own.mine("ex03c", ours=abs)


def test_the_learners_time_stands_beside_the_recorded_ones(checkout, monkeypatch, capsys):
    folder = ROOT / "benchmarks" / "results"
    checkout("ex06b", "ex07d")
    timed = []
    monkeypatch.setattr(own.Mine, "_time", lambda self, row: timed.append(row) or 1.5)

    def shown(name):
        return recorded.recorded(
            "attention", across="kernel", cells="ms", by=("seqlen", "causal"),
            keep=lambda row: row["head_dim"] == 64, beside=own.mine(name), folder=folder,
        ).markdown  # fmt: skip

    monkeypatch.setattr(own, "has_cupy_and_gpu", lambda: True)
    assert "this GPU" not in shown("ex07d"), "ours has been timed already"
    passes("ex07d")
    assert "your ex07d, ms, this GPU" in shown("ex07d") and len(timed) == 6
    monkeypatch.setattr(own, "has_cupy_and_gpu", lambda: False)
    assert "this GPU" not in shown("ex07d")


def test_inputs_are_those_of_the_benchmark():
    from fa_numba.workbook.recorded import recorded_rows

    for row in recorded_rows("attention", folder=ROOT / "benchmarks" / "results"):
        shapes, options = own.JOBS["ex07d"].inputs(row)
        batch, seqlen, num_heads, head_dim = shapes[0]
        assert (batch * seqlen, num_heads * head_dim) == (8192, 1024) and len(shapes) == 3
        assert options.get("causal", False) == row["causal"]
        assert (own.JOBS["ex06b"].inputs(row) is None) == row["causal"], "ex06b has no mask"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ex03c", "ex06b", "ex07d"])
def test_on_a_gpu(checkout, name):
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    if not cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    checkout(name)
    passes(name)
    function = own.mine(name)
    if name == "ex03c":
        x = cupy.random.default_rng(0).standard_normal((300, 1000), dtype=np.float32)
        want = reference.softmax(cupy.asnumpy(x).astype(np.float64))
        assert np.abs(cupy.asnumpy(function(x)) - want).max() < 1e-6
        row = {"rows": 4096, "columns": 1024}
    else:
        q = cupy.random.default_rng(0).standard_normal((2, 100, 3, 64), dtype=np.float32)
        want, _ = reference.attention(*[cupy.asnumpy(q)] * 3)
        assert np.abs(cupy.asnumpy(function(q, q, q)[0]) - want).max() < 1e-5
        row = {"seqlen": 512, "head_dim": 64, "causal": False}
    (timed,) = function.with_times([row])
    assert 0 < timed[f"your {name}, ms, this GPU"] < 1e4


TIMED = sorted(name for name, job in own.JOBS.items() if job.timed_on)


@pytest.mark.parametrize("name", TIMED)
def test_what_the_board_times_runs(name, monkeypatch):
    """As `fa-numba board` calls it on a GPU, with smaller arrays; our solution as the answer."""
    monkeypatch.setattr(own, "has_cupy_and_gpu", lambda: True)
    monkeypatch.setattr(own, "gpu_ms", lambda call: 1.0)
    exercise = catalog.find_one(name, ROOT)
    rng = np.random.default_rng(0)
    small = {8192: 32, 2048: 16, 8: 1, 4: 1, 128: 16, 64: 8}

    def data(shapes):
        sizes = (tuple(small.get(n, n) for n in shape) for shape in shapes)
        return [rng.standard_normal(size, dtype=np.float32) for size in sizes]

    monkeypatch.setattr(own, "_normal", data)
    monkeypatch.setattr(own, "load", lambda exercise, ours=False: passed.load(exercise, ours=True))
    assert own.times_beside_par(exercise) == (1.0, 1.0)
