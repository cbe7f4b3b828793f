"""The jobs on a real GPU, whichever kernel they take: `pytest -m gpu`."""

from functools import partial

import cases
import dtype_cases
import expression_cases
import ml_dtypes
import numpy as np
import pytest
from few_cases import pairs
from gpu_cases import ON_A_GPU
from numba import cuda

import fa_numba
from fa_numba import dispatch, reference
from fa_numba.dispatch.job import Job
from fa_numba.runtime import arrays

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = ON_A_GPU

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SHAPES = [  # batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim
    (1, 1, 1, 1, 1, 1),
    (2, 200, 333, 4, 2, 64),
    (1, 333, 200, 2, 1, 128),  # causal: rows that see no key
    (1, 130, 130, 2, 2, 59),
    (1, 100, 300, 2, 2, 96),
    (2, 129, 64, 2, 2, 256),
    (2, 1, 1000, 8, 2, 128),
    (3, 4, 500, 4, 4, 64),
    (1, 5, 0, 2, 1, 8),
    (0, 5, 5, 2, 1, 8),
]
GRADIENT_SHAPES = [SHAPES[i] for i in (0, 1, 2, 3, 8)]
MASKS = {"full": {}, "causal": {"causal": True}, **cases.MASKS}


def on_gpu(x):
    return arrays.from_numpy(cupy.empty(0), x)


def few_queries(shape):
    """A kernel for decoding takes them."""
    return shape[1] < 8


@pytest.mark.few(
    lambda shape, dtype, mask: [
        *pairs(shape, dtype),
        *pairs(few_queries(shape), mask),
        *pairs(dtype == "float32", mask),
    ]
)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_flash_attn(shape, dtype, mask):
    for _ in range(2):  # the second is a replay
        rng = np.random.default_rng(0)
        dtype_cases.check_attention("flash_attn", rng, DTYPES[dtype], on_gpu, shape, mask)


@pytest.mark.few(
    lambda shape, dtype, mask, deterministic: [
        *pairs(shape, dtype),
        *pairs(dtype, (mask, deterministic)),
    ]
)
@pytest.mark.parametrize("mask, deterministic", [("causal", False), ("all", False), ("all", True)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", GRADIENT_SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_flash_attn_grad(shape, dtype, mask, deterministic):
    kind = DTYPES[dtype]
    inputs = dtype_cases.make_inputs(np.random.default_rng(0), shape, kind)
    mask = cases.mask_options(MASKS[mask], shape[3])
    dout, *qkv = map(on_gpu, inputs)
    options = dtype_cases.converted(mask, on_gpu)
    out, lse = fa_numba.flash_attn(*qkv, **options)
    want = reference.attention_bwd(*inputs, **mask)
    plain = reference.attention_bwd(*inputs, **mask, dtype=kind)
    results = []
    for _ in range(2):  # the second is a replay
        inputs = dout, *qkv, out, lse
        got = fa_numba.flash_attn_grad(*inputs, **options, deterministic=deterministic)
        for name, *x in zip(("dq", "dk", "dv"), got, want, plain, strict=True):
            cases.assert_close(*x, factor=3, name=name)
        results.append(got)
    if deterministic:
        for x, y in zip(*results, strict=True):
            assert (x.view(np.uint8) == y.view(np.uint8)).all()


@pytest.mark.parametrize(
    "dtype, head_dims, packed, options",
    [
        ("float32", (40, 40), False, {"dropout_p": 0.2, "seed": 5}),
        ("float16", (64, 64), False, {}),
        ("bfloat16", (128, 128), True, {}),
        ("float16", (192, 128), False, {"sinks": np.zeros(4, np.float32)}),
    ],
    ids=str,
)
def test_gradients_of_score_args(dtype, head_dims, packed, options):
    """As the job for NumPy arrays computes them; tests of the CPU compare that with differences."""
    rng, (d, d_v) = np.random.default_rng(0), head_dims
    shapes = (2, 200, 4, d_v), (2, 200, 4, d), (2, 333, 2, d), (2, 333, 2, d_v)
    host = [cases.random(rng, *shape).astype(DTYPES[dtype]) for shape in shapes]
    args = *(cases.random(rng, *shape) for shape in ((4,), (4, 10), (2, 333), (333,))), 1
    forward, backward, starts = fa_numba.flash_attn, fa_numba.flash_attn_grad, []
    if packed:
        host = [x.reshape(-1, *x.shape[2:]) for x in host]
        starts = [np.arange(3, dtype=np.int32) * n for n in (200, 333)]
        forward, backward = fa_numba.flash_attn_varlen, fa_numba.flash_attn_varlen_grad
    options = {"causal": True, "score": expression_cases.biased} | options
    results = []
    for convert in (lambda x: x, on_gpu):
        given = options | {"score_args": (*map(convert, args[:-1]), 1)}
        given |= {name: convert(x) for name, x in options.items() if name == "sinks"}
        dout, *qkv = map(convert, host)
        of_batch = [convert(x) for x in starts]
        state = forward(*qkv, *of_batch, **given)
        *_, found = backward(dout, *qkv, *state, *of_batch, score_args_grad=True, **given)
        assert found[-1] is None
        results.append([arrays.to_numpy(x) for x in found[:-1]])
    rounding = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    for want, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=rounding * np.abs(want).max())


ATTENTION_JOBS = {
    "flash_attn_varlen": partial(
        dtype_cases.check_varlen,
        functions=(fa_numba.flash_attn_varlen, fa_numba.flash_attn_varlen_grad),
    ),
    "flash_decode": partial(dtype_cases.check_decode, function=fa_numba.flash_decode),
    "paged_attn_decode": partial(
        dtype_cases.check_paged_decode, function=fa_numba.paged_attn_decode
    ),
}
ROW_JOBS = {
    "softmax": partial(dtype_cases.check_softmax, "softmax"),
    "softmax_topk": partial(dtype_cases.check_topk, "softmax_topk", function=fa_numba.softmax_topk),
}


@pytest.mark.few(lambda name, shape, dtype, mask: pairs(name, shape, dtype, mask))
@pytest.mark.parametrize("mask", ["full", "causal", "all"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [SHAPES[i] for i in (1, 7)], ids=["many_queries", "few_queries"])
@pytest.mark.parametrize("name", ATTENTION_JOBS)
def test_jobs_of_attention(name, shape, dtype, mask):
    for _ in range(2):  # the second is a replay
        rng = np.random.default_rng(0)
        ATTENTION_JOBS[name](rng, DTYPES[dtype], on_gpu, shape, MASKS[mask])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ROW_JOBS)
def test_jobs_of_rows(name, dtype):
    for _ in range(2):
        ROW_JOBS[name](np.random.default_rng(0), DTYPES[dtype], on_gpu, SHAPES[1])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_same_array_twice(dtype, monkeypatch):
    """Replayed like any other call, and right."""
    x = on_gpu(cases.random(np.random.default_rng(0), 2, 130, 4, 64).astype(DTYPES[dtype]))
    want = fa_numba.flash_attn(x, x.copy(), x.copy(), causal=True)
    for _ in range(3):
        got = fa_numba.flash_attn(x, x, x, causal=True)
        for a, b in zip(got, want, strict=True):
            assert (a == b).all()
        monkeypatch.setattr(Job, "pick", None)  # the next calls do not choose again


def test_which_of_every_job():
    q, k = (cupy.ones((2, n, 4, 64), np.float16) for n in (1, 256))
    starts, lengths = cupy.array([0, 1], np.int32), cupy.full(2, 256, np.int32)
    table = cupy.zeros((2, 256), np.int32)
    major = cuda.get_current_device().compute_capability[0]
    packed = q[0], k[0], k[0], starts, starts * 256
    lse = cupy.zeros((4, 1), np.float32)
    kernels = {
        name: fa_numba.which(name, *given).kernel
        for name, given in {
            "flash_attn_varlen": packed,
            "flash_attn_varlen_grad": (q[0], *packed[:3], q[0], lse, *packed[3:]),
            "flash_decode": (q, k, k, lengths),
            "paged_attn_decode": (q, k, k, table, lengths),
            "softmax": (k[0, 0],),
            "softmax_topk": (k[0, 0], 3),
        }.items()
    }
    assert all(kernel in dispatch.JOBS[name].candidates for name, kernel in kernels.items())
    assert kernels["softmax"] == "softmax_registers"
    if major == 9:
        assert kernels["flash_attn_varlen"] == "flash_attn_persistent_varlen"
        assert kernels["flash_decode"] == kernels["paged_attn_decode"] == "flash_decode_gather"


def test_which():
    x = cupy.ones((1, 2048, 16, 128), np.float16)
    choice = fa_numba.which(x, x, x)
    major = cuda.get_current_device().compute_capability[0]
    assert choice.kernel in dispatch.JOBS["flash_attn"].candidates
    assert ("flash_attn_persistent" in choice.refused) == (major != 9)
    assert "flash_attn_registers" not in choice.refused
    lse = cupy.zeros((1, 16, 2048), np.float32)
    backward = fa_numba.which(fa_numba.flash_attn_grad, x, x, x, x, x, lse)
    assert ("flash_attn_bwd_persistent" in backward.refused) == (major != 9)
    assert "flash_attn_bwd_registers" not in backward.refused
    one = fa_numba.which(x[:, :1], x, x)
    assert "flash_decode_mma" not in one.refused or major < 8
