"""The CPU engine in this package: its two names, what it checks of our own launches, its speed."""

import sys
import time

import numpy as np
import pytest
from numba import cuda, float32

import fa_numba
import numba_cuda_simulator
from fa_numba import simt
from fa_numba.kernels.flash_attn_bwd import flash_attn_bwd
from fa_numba.kernels.flash_attn_v2 import flash_attn_v2
from fa_numba.runtime.arrays import launch
from fa_numba.simt.errors import RaceError

CHECKS_COST = 4  # times a plain run; at most 3 when measured quietly
TRACE = 6  # seconds; 3


def test_two_names_are_one_engine():
    import fa_numba.simt.errors

    assert simt is fa_numba.simt is numba_cuda_simulator
    assert fa_numba.simt.errors is numba_cuda_simulator.errors
    aliases = [name for name in sys.modules if name.startswith("fa_numba.simt.")]
    assert len(aliases) > 30
    for alias in aliases:
        name = alias.replace("fa_numba.simt", "numba_cuda_simulator")
        assert sys.modules[alias] is sys.modules[name]


@cuda.jit
def racy_reverse(x, out):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    out[t] = tile[63 - t]


X = np.arange(64, dtype=np.float32)


def test_package_launches_are_not_checked():
    launch(racy_reverse, (1,), (64,), X, np.zeros_like(X))
    with simt.options(package=True), pytest.raises(RaceError):
        launch(racy_reverse, (1,), (64,), X, np.zeros_like(X))


def test_tracing_hears_the_packages_launches():
    with simt.tracing() as traces:
        fa_numba.safe_softmax(X.reshape(8, 8))
    assert len(traces) == 1


def seconds(call):
    """Processor time of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def attention(function, size=64, head_dim=32, **options):
    rng = np.random.default_rng(0)
    q, k, v, dout = rng.standard_normal((4, 1, size, 1, head_dim)).astype(np.float32)
    if function is flash_attn_bwd:
        out, lse = flash_attn_v2(q, k, v, **options)
        return lambda: flash_attn_bwd(dout, q, k, v, out, lse, **options)
    return lambda: function(q, k, v, **options)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("function", [flash_attn_v2, flash_attn_bwd])
def test_checks_cost_little(function, causal):
    call, times = attention(function, causal=causal), {}
    for checked in (False, True) * 6:  # in turn: the machine may be busy for a while
        with simt.options(races=checked, uninitialised=checked, package=True):
            times.setdefault(checked, []).append(seconds(call))
    plain, checked = min(times[False]), min(times[True])
    assert checked <= CHECKS_COST * plain, f"{1000 * plain:.1f} ms, checked {1000 * checked:.1f} ms"


def test_trace_is_fast():
    """FlashAttention-2, N=1024, d=64, one head, everything on."""
    call = attention(flash_attn_v2, 1024, 64)
    with simt.options(package=True), simt.tracing() as traces:
        assert any(seconds(call) <= TRACE for _ in range(3))  # once, on a quiet machine
    assert traces[0].races == []
