"""Float32 on tensor cores, on a real GPU: `pytest -m gpu`."""

import functools

import numpy as np
import pytest
from few_cases import pairs
from gpu_cases import ON_A_GPU, cupy_on_a_gpu

cupy = cupy_on_a_gpu()
pytestmark = ON_A_GPU

from fa_numba import reference  # noqa: E402
from fa_numba.runtime import arrays  # noqa: E402
from fa_numba.tensor_core.flash_attn_bwd_tf32x3 import flash_attn_bwd_tf32x3  # noqa: E402
from fa_numba.tensor_core.flash_attn_tf32x3 import flash_attn_tf32x3  # noqa: E402

# batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, options
CASES = [
    (1, 1, 1, 1, 1, 64, {}),
    (1, 64, 128, 1, 1, 128, {}),
    (2, 200, 333, 4, 2, 64, {}),
    (2, 200, 333, 4, 1, 128, {"causal": True}),
    (1, 333, 200, 2, 2, 64, {"causal": True}),  # rows that see no key
    (1, 500, 10, 2, 1, 128, {"causal": True}),  # tiles of rows that see no key
    (1, 1, 1000, 2, 1, 128, {"causal": True}),
    (2, 1000, 1000, 3, 3, 64, {"causal": True}),
    (1, 2048, 2048, 2, 1, 128, {}),
    (1, 257, 130, 2, 1, 44, {"causal": True}),
    (1, 300, 300, 2, 2, 64, {"window_size": (50, 20)}),
    (1, 200, 300, 4, 2, 128, {"alibi_slopes": True, "softcap": 3.0, "window_size": (99, 50)}),
    (1, 200, 300, 4, 2, 96, {"causal": True}),
]
WIDE = [
    *((1, 100, 150, 2, 1, d, {"causal": d % 64 == 0}) for d in (160, 192, 224, 256)),
    (1, 500, 10, 2, 1, 256, {"causal": True}),
    (1, 1000, 1000, 1, 1, 256, {"causal": True}),
    (1, 300, 300, 2, 2, 196, {"window_size": (50, 20)}),
    (1, 200, 300, 4, 2, 136, {"alibi_slopes": True, "softcap": 3.0, "window_size": (99, 50)}),
]
IN_ORDER = [CASES[i] for i in (4, 5, 8, 9, 10)]  # those of whose dq the bits are tested


def named(case):
    *sizes, options = case
    return "-".join(map(str, sizes)) + "".join(f"-{name}" for name in options)


def as_key(case):
    return (*case[:-1], tuple(case[-1].items()))


def make_case(case):
    return _make_case(as_key(case))


@functools.cache
def _make_case(case):
    """dout, q, k, v, options; the definition's results, and those of plain float32 code."""
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, options = case
    options = dict(options)
    rng = np.random.default_rng(0)
    if "alibi_slopes" in options:
        options["alibi_slopes"] = rng.random(num_heads, np.float32)
    shapes = 2 * [(seqlen_q, num_heads)] + 2 * [(seqlen_k, num_kv_heads)]
    inputs = [rng.standard_normal((batch, *shape, head_dim), np.float32) for shape in shapes]
    results = []
    for dtype in (np.float64, np.float32):
        forward = reference.attention(*inputs[1:], dtype=dtype, **options)
        backward = reference.attention_bwd(*inputs, dtype=dtype, **options)
        results.append((*forward, *backward))
    return inputs, options, *results


def on_gpu(x):
    return cupy.asarray(x)


def options_on_gpu(options):
    return {n: on_gpu(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}


def assert_right(names, got, want, plain, times):
    for name, x, y, z in zip(names, got, want, plain, strict=True):
        if name == "lse":
            np.testing.assert_allclose(x.get(), y, rtol=1e-5, atol=1e-5)
            continue
        error = np.abs(x.get().astype(np.float64) - y).max(initial=0)
        assert error <= times * np.abs(z.astype(np.float64) - y).max(initial=0) + 1e-6, name


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("case", CASES + WIDE, ids=named)
def test_forward(case):
    inputs, options, want, plain = make_case(case)
    args, options = list(map(on_gpu, inputs[1:])), options_on_gpu(options)
    got = flash_attn_tf32x3(*args, **options)
    assert_right(("out", "lse"), got, want[:2], plain[:2], 2)
    for _ in range(20 if case[1] < 300 else 3):
        for x, y in zip(got, flash_attn_tf32x3(*args, **options), strict=True):
            assert (x.view(np.uint32) == y.view(np.uint32)).all()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.few(lambda case, kib: [case, kib, *pairs(kib, case[-2] > 192)])
@pytest.mark.parametrize("kib", [99, 163])  # of an RTX 3090, of an A100
@pytest.mark.parametrize("case", WIDE, ids=named)
def test_forward_with_less_shared_memory(monkeypatch, case, kib):
    monkeypatch.setattr(arrays, "shared_bytes_per_block", lambda x: kib * 1024)
    inputs, options, want, plain = make_case(case)
    args, options = list(map(on_gpu, inputs[1:])), options_on_gpu(options)
    got = flash_attn_tf32x3.__wrapped__(*args, **options)  # no replay of other tiles
    assert_right(("out", "lse"), got, want[:2], plain[:2], 2)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("case", CASES, ids=named)
def test_backward(case):
    check_backward(case, False)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("case", IN_ORDER, ids=named)
def test_deterministic_backward(case):
    check_backward(case, True)


def check_backward(case, deterministic):
    inputs, options, want, plain = make_case(case)
    dout, q, k, v = map(on_gpu, inputs)
    options = options_on_gpu(options) | {"deterministic": deterministic}
    out, lse = (on_gpu(x.astype(np.float32)) for x in plain[:2])
    got = flash_attn_bwd_tf32x3(dout, q, k, v, out, lse, **options)
    assert_right(("dq", "dk", "dv"), got, want[2:], plain[2:], 3)
    for _ in range(20 if case[1] < 300 else 3):
        again = flash_attn_bwd_tf32x3(dout, q, k, v, out, lse, **options)
        for x, y in list(zip(got, again, strict=True))[0 if deterministic else 1 :]:
            assert (x.view(np.uint32) == y.view(np.uint32)).all()


@pytest.mark.parametrize("head_dim", [64, 128])
def test_scores_of_ten_thousand(head_dim):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 500, 2, head_dim), np.float32) for _ in range(3))
    q *= np.float32(2500)
    (want, lse_want), (plain, lse_plain) = (
        reference.attention(q, k, v, dtype=dtype) for dtype in (np.float64, np.float32)
    )
    assert np.abs(lse_want).max() > 9000
    out, lse = (x.get() for x in flash_attn_tf32x3(*map(on_gpu, (q, k, v))))
    assert np.abs(out - want).max() <= 2 * np.abs(plain - want).max()
    assert np.abs(lse - lse_want).max() <= 2 * np.abs(lse_plain - lse_want).max()


def test_strided_arrays_and_softmax_scale():
    rng = np.random.default_rng(0)
    qkv = on_gpu(rng.standard_normal((2, 3, 4, 200, 64), np.float32))
    q, k, v = (qkv[:, i].transpose(0, 2, 1, 3) for i in range(3))  # heads before seqlen
    packed = [cupy.ascontiguousarray(x) for x in (q, k, v)]
    got = flash_attn_tf32x3(q, k, v, softmax_scale=0.3)
    for x, y in zip(got, flash_attn_tf32x3(*packed, softmax_scale=0.3), strict=True):
        assert (x == y).all()
    options = {"softmax_scale": 0.3, "deterministic": True}
    strided = flash_attn_bwd_tf32x3(v, q, k, v, *got, **options)
    whole = flash_attn_bwd_tf32x3(packed[2], *packed, *got, **options)
    for x, y in zip(strided, whole, strict=True):
        assert (x == y).all()


def test_no_keys():
    q, k = cupy.ones((1, 3, 1, 64), np.float32), cupy.ones((1, 0, 1, 64), np.float32)
    out, lse = flash_attn_tf32x3(q, k, k)
    assert (out == 0).all() and (lse == -np.inf).all()
    for x in flash_attn_bwd_tf32x3(q, q, k, k, out, lse):
        assert (x == 0).all()


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    q, k, v, dout = (torch.randn(2, 100, 4, 64, device="cuda") for _ in range(4))
    out, lse = flash_attn_tf32x3(q, k, v)
    gradients = flash_attn_bwd_tf32x3(dout, q, k, v, out, lse)
    inputs = [x.cpu().numpy() for x in (dout, q, k, v)]
    want = reference.attention(*inputs[1:])[0], *reference.attention_bwd(*inputs)
    for x, y in zip((out, *gradients), want, strict=True):
        assert isinstance(x, torch.Tensor)
        np.testing.assert_allclose(x.cpu().numpy(), y, atol=1e-5)
