"""flash_attn and flash_attn_grad on a real GPU, whichever kernel they take: `pytest -m gpu`."""

import cases
import dtype_cases
import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import fa_numba
from fa_numba import dispatch, reference
from fa_numba.runtime import arrays

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore"),  # Numba warns of small grids; libraries of each other
]

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


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_flash_attn(shape, dtype, mask):
    for _ in range(2):  # the second is a replay
        rng = np.random.default_rng(0)
        dtype_cases.check_attention("flash_attn", rng, DTYPES[dtype], on_gpu, shape, mask)


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


def test_which():
    x = cupy.ones((1, 2048, 16, 128), np.float16)
    choice = fa_numba.which(x, x, x)
    major = cuda.get_current_device().compute_capability[0]
    assert choice.kernel in dispatch.CANDIDATES
    assert ("flash_attn_persistent" in choice.refused) == (major != 9)
    assert "flash_attn_registers" not in choice.refused
    backward = fa_numba.which(x, x, x, backward=True)
    assert ("flash_attn_bwd_persistent" in backward.refused) == (major != 9)
    assert "flash_attn_bwd_registers" not in backward.refused
    one = fa_numba.which(x[:, :1], x, x)
    assert "flash_decode_mma" not in one.refused or major < 8
