"""Of the kernels that can run, the fastest in the table is chosen; which says so."""

import json

import numpy as np
import pytest
from cases import (
    MASKS,
    SHAPES,
    check_backward,
    check_forward,
    make_qkv,
    mask_options,
    random,
    strided,
)
from fake_libraries import CupyArray
from test_checks import K, X

import fa_numba
from fa_numba import dispatch
from fa_numba.analysis.devices import DEVICES
from fa_numba.runtime import arrays
from fa_numba.simt.devices import KIB, SHARED_BYTES_PER_BLOCK

TABLE = json.loads(dispatch.TABLE.read_text())
KERNELS = {"rows": dispatch.CANDIDATES, "gradients": dispatch.GRADIENTS}
ROWS = [
    pytest.param(part, kind, row, id=f"{part}-{kind}-{i}")
    for part in TABLE
    for kind in KERNELS
    for i, row in enumerate(TABLE[part][kind])
]


def problem(row):
    """Arrays of a measured problem's shape that take no memory."""
    batch, heads, head_dim = row["batch"], row["num_heads"], row["head_dim"]
    one = np.zeros((1, 1, 1, head_dim), row["dtype"])
    q, k = (
        np.broadcast_to(one, (batch, row[n], heads, head_dim)) for n in ("seqlen_q", "seqlen_k")
    )
    return q, k, k


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.danger)
@pytest.mark.parametrize("causal", [False, True])
def test_any_shape(shape, causal):
    check_forward(
        fa_numba.flash_attn, *make_qkv(np.random.default_rng(0), *shape.sizes), causal=causal
    )


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("seqlen_q", [1, 40])
def test_any_mask(mask, seqlen_q):
    qkv = make_qkv(np.random.default_rng(0), 2, seqlen_q, 40, 4, 2, 16)
    check_forward(fa_numba.flash_attn, *qkv, **mask_options(mask, 4))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.danger)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_any_shape(shape, causal):
    rng = np.random.default_rng(0)
    q, k, v = make_qkv(rng, *shape.sizes)
    functions = fa_numba.flash_attn, fa_numba.flash_attn_grad
    check_backward(*functions, random(rng, *q.shape), q, k, v, causal=causal)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_gradients_under_any_mask(mask):
    rng = np.random.default_rng(0)
    q, k, v = make_qkv(rng, 2, 30, 40, 4, 2, 16)
    functions = fa_numba.flash_attn, fa_numba.flash_attn_grad
    check_backward(*functions, random(rng, *q.shape), q, k, v, **mask_options(mask, 4))


def test_gradients_of_strided_views_in_the_same_bits():
    rng = np.random.default_rng(0)
    q, k, v = make_qkv(rng, 1, 30, 40, 2, 1, 16)
    dout = random(rng, *q.shape)
    out, lse = fa_numba.flash_attn(q, k, v)
    want = fa_numba.flash_attn_grad(dout, q, k, v, out, lse, deterministic=True)
    views = [*(strided(x) for x in (dout, q, k, v, out)), lse]
    got = fa_numba.flash_attn_grad(*views, deterministic=True)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("part, kind, row", ROWS)
def test_a_measured_problem_gets_what_was_quickest_there(part, kind, row):
    kernels = [name for name in row["ms"] if name in KERNELS[kind]]
    way = row["causal"], row.get("deterministic", False)
    found = dispatch.most_like(TABLE[part][kind], kernels, *problem(row)[:2], *way)
    assert found == row


@pytest.mark.parametrize("part, kind, row", ROWS)
def test_every_time_is_of_a_kernel_that_there_is(part, kind, row):
    assert row["ms"] and set(row["ms"]) <= set(KERNELS[kind])
    assert all(ms > 0 for ms in row["ms"].values())


def test_a_kernel_that_cannot_is_not_taken(monkeypatch):
    x = np.ones((1, 20, 2, 8), np.float32)
    monkeypatch.setattr(
        dispatch,
        "_table",
        lambda: {
            "cpu": {
                "machine": "a clock",
                "rows": [
                    {
                        "dtype": "float32",
                        "batch": 1,
                        "seqlen_q": 20,
                        "seqlen_k": 20,
                        "num_heads": 2,
                        "head_dim": 8,
                        "causal": False,
                        "ms": {
                            "flash_attn_mma": 1.0,
                            "flash_attn_registers": 2.0,
                            "flash_attn_v2": 3.0,
                        },
                    },
                ],
            }
        },
    )
    choice = fa_numba.which(x, x, x)
    assert choice.kernel == "flash_attn_registers"
    assert "quickest of 2, 2.0 ms" in choice.reason and "a clock" in choice.reason
    assert "must be GPU arrays" in choice.refused["flash_attn_mma"]
    assert "at most 16 queries, got 20" in choice.refused["flash_decode_wide"]
    assert "flash_attn_v2" not in choice.refused
    assert str(choice).splitlines()[0].startswith("flash_attn_registers: quickest")


def test_an_option_that_a_kernel_has_not_got():
    kernel, inputs = dispatch.Candidate("naive_attn", "kernels"), dispatch.Inputs(X, K, K)
    assert kernel.refusal(inputs, {"causal": True}) is None
    assert kernel.refusal(inputs, {"causal": True, "dropout_p": 0.5, "seed": 1}) == (
        "naive_attn has no dropout_p, seed"
    )


def test_an_option_that_a_kernel_need_not_be_told():
    kernel = dispatch.Candidate("flash_attn_bwd", "kernels")
    inputs = dispatch.GradientInputs(X, X, K, K, X, None)
    options = {"deterministic": True}
    assert kernel.refusal(inputs, options) == "flash_attn_bwd has no deterministic"
    assert dispatch.GRADIENTS["flash_attn_bwd"].refusal(inputs, options) is None


def test_which_backward():
    choice = fa_numba.which(X, K, K, backward=True, deterministic=True)
    assert choice.kernel in dispatch.GRADIENTS
    assert "must be GPU arrays" in choice.refused["flash_attn_bwd_mma"]
    assert "; flash_attn_bwd computes the same" in choice.refused["flash_attn_bwd_mma"]
    assert "; flash_attn_bwd_registers computes the same" in choice.refused["flash_attn_bwd_tf32x3"]
    assert fa_numba.which(X, K, K, deterministic=True).kernel in dispatch.CANDIDATES


def test_the_nearest_problem():
    def row(**sizes):
        of = {"dtype": "float32", "batch": 1, "seqlen_q": 64, "seqlen_k": 64, "num_heads": 4}
        return of | {"head_dim": 64, "causal": False, "ms": {"a": 1.0}} | sizes

    rows = [
        row(),
        row(seqlen_q=1, seqlen_k=4096),
        row(causal=True),
        row(dtype="float16"),
        row(head_dim=256, ms={"b": 1.0}),
        row(batch=64),
        row(seqlen_q=1024, seqlen_k=1024, deterministic=True),
    ]

    def nearest(*shape, dtype=np.float32, kernels=("a", "b"), seqlen_k=64, **ways):
        q, k = np.zeros(shape, dtype), np.zeros((1, seqlen_k, 1, 1), dtype)
        return rows.index(dispatch.most_like(rows, kernels, q, k, **{"bounded": False, **ways}))

    assert nearest(1, 50, 4, 64) == 0
    assert nearest(1, 50, 4, 64, dtype=np.float16) == 3
    assert nearest(1, 50, 4, 64, bounded=True) == 2
    assert nearest(1, 2, 4, 64, seqlen_k=9999) == 1
    assert nearest(32, 80, 4, 64) == 5
    assert nearest(1, 50, 4, 200) == 4
    assert nearest(1, 50, 4, 200, kernels=["a"]) == 0
    assert nearest(1, 50, 4, 64, deterministic=True) == 6


@pytest.fixture
def gpu(monkeypatch):
    """Makes a GPU of a compute capability the one that kernels run on; arrays are fake CuPy's."""

    def make(capability):
        unlisted = (227 if capability[0] == 10 else 99) * KIB
        block = SHARED_BYTES_PER_BLOCK.get(capability, unlisted)
        monkeypatch.setattr(arrays, "gpu_available", lambda: True)
        monkeypatch.setattr(arrays, "compute_capability", lambda x: capability)
        monkeypatch.setattr(arrays, "shared_bytes_per_block", lambda x: block)

    return make


def aligned(*shape, dtype=np.float32):
    """An array of fake CuPy that begins at a multiple of 16 bytes."""
    size = int(np.prod(shape))
    memory = np.zeros(size + 16, dtype)
    first = -memory.ctypes.data % 16 // memory.itemsize
    return CupyArray(memory[first : first + size].reshape(shape))


CAPABILITIES = {card.compute_capability: card for card in DEVICES.values()}


@pytest.mark.parametrize("card", DEVICES.values(), ids=lambda card: card.name)
def test_tf32_pays_off_where_it_is_more_than_three_times_as_fast(card):
    ratio = (card.tf32_tensor or 0) / card.float32
    assert (card.compute_capability in dispatch.TF32_PAYS_OFF) == (ratio > 3)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "capability", [*CAPABILITIES, (8, 7), (10, 3), (11, 0), (12, 1), (13, 0)], ids=str
)
def test_float32_by_3xtf32_only_where_that_pays_off(gpu, capability, backward):
    gpu(capability)
    x = aligned(1, 64, 2, 64)
    choice = fa_numba.which(x, x, x, backward=backward)
    name = "flash_attn_bwd_" if backward else "flash_attn_"
    if capability in dispatch.TF32_PAYS_OFF:
        assert choice.kernel == f"{name}tf32x3"
    else:
        assert choice.kernel == f"{name}registers"
        why = choice.refused[f"{name}tf32x3"]
        if not backward:  # backward, shared memory may be too small besides
            assert ("needs a GPU" if capability < (8, 0) else "three TF32 products") in why


def test_on_a_measured_gpu_its_times_decide(gpu, monkeypatch):
    gpu((8, 6))
    x, table = aligned(1, 64, 2, 64), json.loads(dispatch.TABLE.read_text())
    assert fa_numba.which(x, x, x).kernel == "flash_attn_registers"
    table["gpu"]["compute_capability"] = [8, 6]
    monkeypatch.setattr(dispatch, "_table", lambda: table)
    assert fa_numba.which(x, x, x).kernel == "flash_attn_tf32x3"


@pytest.mark.parametrize("capability", [*CAPABILITIES, (8, 7), (12, 1)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("seqlen_q", [1, 64])
@pytest.mark.parametrize("head_dim", [64, 128, 256, 40, 7])
def test_every_gpu_has_a_kernel(gpu, capability, dtype, seqlen_q, head_dim):
    gpu(capability)
    q, k = aligned(1, seqlen_q, 2, head_dim, dtype=dtype), aligned(1, 64, 2, head_dim, dtype=dtype)
    assert fa_numba.which(q, k, k).kernel in dispatch.CANDIDATES
    assert fa_numba.which(q, k, k, backward=True).kernel in dispatch.GRADIENTS


def test_gradients_of_many_columns_on_a_gpu_of_little_shared_memory(gpu):
    gpu((7, 5))
    for head_dim, kernel in ((192, "flash_attn_bwd_registers"), (193, "flash_attn_bwd")):
        x = aligned(1, 64, 2, head_dim)
        choice = fa_numba.which(x, x, x, backward=True)
        assert choice.kernel == kernel
    assert "flash_attn_bwd runs here" in choice.refused["flash_attn_bwd_registers"]


def test_few_queries_on_hopper_are_decoded_by_gather(gpu):
    gpu((9, 0))
    q, k = aligned(16, 1, 32, 64, dtype=np.float16), aligned(16, 4096, 32, 64, dtype=np.float16)
    row = {"flash_decode_gather", "flash_decode_mma", "flash_decode_wide", "flash_attn_persistent"}
    choice = fa_numba.which(q, k, k)
    assert choice.kernel in row and "flash_decode_gather" not in choice.refused
    backwards = CupyArray(k.host[:, ::-1])  # cp.async takes any stride, a tensor map does not
    choice = fa_numba.which(q, backwards, backwards)
    assert "flash_decode_gather" not in choice.refused
    assert "no negative stride" in choice.refused["flash_attn_persistent"]


def test_which_makes_nothing(monkeypatch):
    monkeypatch.setattr(arrays, "launch", None)
    assert fa_numba.which(X, K, K, softcap=1.0, softmax_scale=-1).kernel in dispatch.CANDIDATES
