"""fa_numba.distributed on GPUs: ranks in one process on one GPU, and NCCL on two."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

cupy = pytest.importorskip("cupy")

from cases import make_qkv, random  # noqa: E402
from test_running_state import states  # noqa: E402

from fa_numba import flash_attn, flash_attn_grad, reference  # noqa: E402
from fa_numba.checks import HOPPER  # noqa: E402
from fa_numba.distributed import (  # noqa: E402
    LAYOUTS,
    local_attn,
    ring_attn,
    ring_attn_grad,
    run,
    run_ranks,
    shard,
    tree_decode,
    ulysses_attn,
    ulysses_attn_grad,
    unshard,
)
from fa_numba.distributed.merge import merge_into  # noqa: E402
from fa_numba.on_cuda_cores import running_state  # noqa: E402
from fa_numba.runtime import arrays  # noqa: E402

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[1]
RANKS = ROOT / "tests" / "nccl_ranks.py"


def num_gpus():
    try:
        return cupy.cuda.runtime.getDeviceCount()
    except Exception:
        return 0


needs_two = pytest.mark.skipif(num_gpus() < 2, reason="needs two GPUs")
needs_four = pytest.mark.skipif(num_gpus() < 4, reason="needs four GPUs")


def on_gpu(x):
    return arrays.from_numpy(cupy.empty(0), np.ascontiguousarray(x))


def to_float64(x):
    return arrays.to_numpy(x).astype(np.float64)


def needs_hopper():
    if arrays.compute_capability(cupy.empty(1)) != HOPPER[:2]:
        pytest.skip("needs a Hopper GPU")


def whole_and_grads(q, k, v, dout, **mask):
    """out, dq, dk, dv in float64."""
    q, k, v, dout = (x.astype(np.float64) for x in (q, k, v, dout))
    return reference.attention(q, k, v, **mask)[0], *reference.attention_bwd(dout, q, k, v, **mask)


def ranks_and_grads(world_size, method, q, k, v, dout, **mask):
    """out, dq, dk, dv of ranks in one process, on one GPU."""
    layout = "zigzag" if method == "ulysses" else method
    forward, backward = ring_attn, ring_attn_grad
    if method == "ulysses":
        forward, backward = ulysses_attn, ulysses_attn_grad
    options = {"layout": layout, "seqlen": q.shape[1], **mask}
    shards = [shard(on_gpu(x), layout, world_size) for x in (q, k, v, dout)]
    done = run_ranks(forward, world_size, *shards[:3], **options)
    outs, lses = zip(*done.results, strict=True)
    gradients = run_ranks(
        backward, world_size, shards[3], *shards[:3], list(outs), list(lses), **options
    )
    found = outs, *zip(*gradients.results, strict=True)
    return [unshard(x, layout) for x in found]


@pytest.mark.parametrize("method", [*LAYOUTS, "ulysses"])
def test_float32(rng, method):
    q, k, v = make_qkv(rng, 2, 131, 131, 4, 2, 32)
    dout = random(rng, *q.shape)
    got = ranks_and_grads(4, method, q, k, v, dout, causal=True)
    for x, y in zip(got, whole_and_grads(q, k, v, dout, causal=True), strict=True):
        assert x.dtype == np.float32
        np.testing.assert_allclose(to_float64(x), y, atol=2e-5 * abs(y).max())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("method", ["zigzag", "striped", "ulysses"])
def test_functions_of_the_user(rng, method, dtype):
    """On Hopper GPUs kernels for 16 bits give float32, with a mask too."""
    inputs = [random(rng, 2, 391, heads, 64).astype(dtype) for heads in (4, 2, 2, 4)]
    window, bias = np.int32([30, 200, 1, 77]), np.linspace(-1, 1, 391, dtype=np.float32)
    functions = {
        "mask": lambda b, h, m, n, w: n <= m and m - n < w[h],
        "mask_args": (on_gpu(window),),
        "score": lambda s, b, h, m, n, bias: 1.5 * s + bias[n],
        "score_args": (on_gpu(bias),),
    }
    got = ranks_and_grads(2, method, *inputs, **functions)
    want = whole_and_grads(
        *inputs,
        mask=lambda b, h, m, n: n <= m and m - n < window[h],
        score=lambda s, b, h, m, n: 1.5 * s + bias[n],
    )
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(
            to_float64(x), y, atol=(2e-5 if dtype == "float32" else 4e-3) * abs(y).max()
        )


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("method", ["zigzag", "striped", "ulysses"])
def test_the_error_of_16_bits_is_that_of_one_device(rng, method, world_size):
    q, k, v = (x.astype("bfloat16") for x in make_qkv(rng, 1, 701, 701, 16, 4, 128))
    dout = random(rng, *q.shape).astype("bfloat16")
    want = whole_and_grads(q, k, v, dout, causal=True)
    arrays_on_gpu = [on_gpu(x) for x in (q, k, v)]
    out, lse = flash_attn(*arrays_on_gpu, causal=True)
    alone = out, *flash_attn_grad(on_gpu(dout), *arrays_on_gpu, out, lse, causal=True)
    got = ranks_and_grads(world_size, method, q, k, v, dout, causal=True)
    for x, one, y in zip(got, alone, want, strict=True):
        assert arrays.dtype_name(x) == "bfloat16"
        error, of_one = (np.sqrt(np.mean((to_float64(a) - y) ** 2)) for a in (x, one))
        assert error <= 1.1 * of_one


@pytest.mark.parametrize("causal", [False, True])
def test_partial_results_of_hopper_kernels_are_float32(rng, causal):
    needs_hopper()
    q, k, v = (x.astype("bfloat16") for x in make_qkv(rng, 1, 1100, 1300, 16, 4, 128))
    dout = random(rng, *q.shape).astype("bfloat16")
    args = [on_gpu(x) for x in (q, k, v)]
    out, lse = local_attn.local_attn()(*args, causal=causal)
    rounded, same = flash_attn(*args, causal=causal)
    assert out.dtype == np.float32 and arrays.dtype_name(rounded) == "bfloat16"
    np.testing.assert_allclose(lse.get(), same.get(), rtol=1e-6)
    want = whole_and_grads(q, k, v, dout, causal=causal)
    error, of_rounded = (abs(to_float64(x) - want[0]).mean() for x in (out, rounded))
    assert error < of_rounded
    inputs = on_gpu(dout), *args, rounded, lse
    wide = local_attn.local_attn_grad()(*inputs, causal=causal)
    narrow = flash_attn_grad(*inputs, causal=causal)
    for x, y, z in zip(wide, narrow, want[1:], strict=True):
        assert x.dtype == np.float32
        error, of_rounded = (abs(to_float64(a) - z).mean() for a in (x, y))
        assert error <= 1.01 * of_rounded


def test_merge_on_the_gpu(rng):
    out, lse, out_b, lse_b = states(rng, (2, 37, 3, 40), slice(3, 30))
    out_b[np.isinf(lse_b).transpose(0, 2, 1)] = 0
    on = [cupy.asarray(x) for x in (out, lse, out_b, lse_b)]
    running_state.merge_into(*on)
    merge_into(out, lse, out_b, lse_b)
    np.testing.assert_allclose(on[0].get(), out, atol=1e-6)
    np.testing.assert_allclose(on[1].get(), lse, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tree_decode(rng, dtype):
    q, k, v = (x.astype(dtype) for x in make_qkv(rng, 2, 1, 1001, 8, 2, 128))
    shards = [shard(on_gpu(x), "contiguous", 4) for x in (k, v)]
    done = run_ranks(tree_decode, 4, [on_gpu(q)] * 4, *shards, seqlen=1001)
    want, _ = reference.attention(*(x.astype(np.float64) for x in (q, k, v)))
    for out, _ in done.results:
        assert out.dtype == q.dtype
        np.testing.assert_allclose(to_float64(out), want, atol=2e-3)


def launch(*arguments, world_size=2):
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/engine",
        "NCCL_NVLS_ENABLE": "0",
    }
    command = [sys.executable, str(RANKS), *arguments]
    return run.start(command, world_size, limit=150, environment=environment)


@pytest.mark.parametrize(
    "world_size", [pytest.param(2, marks=needs_two), pytest.param(4, marks=needs_four)]
)
def test_nccl_gives_the_bits_of_ranks_in_one_process(capfd, world_size):
    assert launch("right", world_size=world_size) == 0, capfd.readouterr().err
    assert capfd.readouterr().out.split() == ["right"] * world_size


@needs_two
@pytest.mark.parametrize(
    "fault, why",
    [
        ("raise", "rank 1 is lost: ValueError: out of luck"),
        ("kill", "rank 1 is lost: its process has ended"),
        ("stall", "rank 1 is lost: no answer within"),
    ],
)
def test_a_lost_rank_is_an_error_on_the_other(capfd, fault, why):
    assert launch(fault) != 0
    assert f"RankLostError: {why}" in capfd.readouterr().err
