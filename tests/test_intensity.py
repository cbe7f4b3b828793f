"""Arithmetic intensity: counted again product by product, its limits, and the essays' claims."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_numba.analysis.intensity import (
    Work,
    attention,
    compute_bound_batch,
    decode,
    linear,
    prefill,
)
from fa_numba.analysis.roofline import Roofline

SIZE = st.integers(1, 300)
FOREVER = 10**12
A100 = Roofline("A100-40GB", "float16")
GPT3 = {"num_heads": 96, "head_dim": 128}  # d = 12288


class Counter:
    """Counts what each step reads, computes and writes, from the shapes alone."""

    def __init__(self):
        self.flops = self.elements = 0

    def move(self, *shape):
        size = 1
        for extent in shape:
            size *= extent
        self.elements += size

    def product(self, times, m, k, n, *, keep_a=False, keep_out=False):
        """`times` products of (m, k) and (k, n); what is kept stays on the chip."""
        self.flops += times * m * n * 2 * k
        if not keep_a:
            self.move(times, m, k)
        self.move(times, k, n)
        if not keep_out:
            self.move(times, m, n)


def count(n, N, num_heads, head_dim, num_kv_heads, batch, fused):
    """Attention of n queries to N keys, one product after another."""
    counter = Counter()
    d = num_heads * head_dim
    counter.product(1, batch * n, d, (num_heads + 2 * num_kv_heads) * head_dim)  # x W = q, k, v
    group = num_heads // num_kv_heads
    # The heads of a group are so many more rows for the same K.
    counter.product(batch * num_kv_heads, group * n, head_dim, N, keep_out=fused)  # S = q Kᵀ
    if not fused:
        counter.move(2, batch, num_heads, n, N)  # softmax: S in, P out
    counter.product(batch * num_kv_heads, group * n, N, head_dim, keep_a=fused)  # O = P V
    return counter


@given(SIZE, SIZE, st.integers(1, 8), SIZE, st.integers(1, 8), st.integers(1, 5), st.booleans())
def test_counted_again(n, N, num_kv_heads, head_dim, group, batch, fused):
    heads = num_kv_heads * group
    counter = count(n, N, heads, head_dim, num_kv_heads, batch, fused)
    got = attention(
        n, N, heads, head_dim, num_kv_heads=num_kv_heads, batch=batch, dtype_bytes=4, fused=fused
    )
    assert got == Work(counter.flops, 4 * counter.elements)


@given(SIZE, SIZE, SIZE)
def test_linear_counted_again(batch, d_in, d_out):
    counter = Counter()
    counter.product(1, batch, d_in, d_out)
    assert linear(batch, d_in, d_out) == Work(counter.flops, 2 * counter.elements)


def test_prefill_and_decode_are_attention():
    assert prefill(100, 4, 16, num_kv_heads=2) == attention(100, 100, 4, 16, num_kv_heads=2)
    assert decode(100, 4, 16, fused=True) == attention(1, 100, 4, 16, fused=True)


HEADS = pytest.mark.parametrize(
    "num_heads, num_kv_heads, head_dim",
    [(96, 96, 128), (96, 1, 128), (96, 8, 128), (32, 32, 64), (64, 8, 128)],
)


@HEADS
@pytest.mark.parametrize("dtype_bytes", [1, 2, 4])
def test_limits_for_long_contexts(num_heads, num_kv_heads, head_dim, dtype_bytes):
    d, d_kv = num_heads * head_dim, num_kv_heads * head_dim
    options = {"num_kv_heads": num_kv_heads, "dtype_bytes": dtype_bytes}

    def check(phase, want, **more):
        got = phase(FOREVER, num_heads, head_dim, projections=False, **options, **more).intensity
        assert got == pytest.approx(want, rel=1e-6)

    check(prefill, head_dim / dtype_bytes)
    check(prefill, 2 * FOREVER * d / (dtype_bytes * (d + d_kv)), fused=True)
    check(decode, 2 * d / (dtype_bytes * (d_kv + 2 * num_heads)))
    check(decode, 2 * num_heads / (dtype_bytes * num_kv_heads), fused=True)


def test_prefill_of_gpt3_is_not_compute_bound_for_ever():
    """The claim "at least head_dim, hence above the ridge" forgets the bytes of an element."""
    intensity = {n: prefill(n, **GPT3).intensity for n in (128, 1024, 4096, 8192, 2**20)}
    assert {n: A100.bound(i) for n, i in intensity.items()} == {
        128: "memory",  # the weights dominate
        1024: "arithmetic",
        4096: "arithmetic",
        8192: "memory",  # S and P dominate
        2**20: "memory",
    }
    assert intensity[2**20] == pytest.approx(64, rel=0.02)
    for n in (256, 1024, 8192, 2**20):
        assert A100.bound(prefill(n, **GPT3, fused=True).intensity) == "arithmetic"


@given(st.integers(1, 10**6))
def test_decode_with_own_heads_is_bound_by_memory(seqlen):
    for fused in (False, True):
        assert decode(seqlen, **GPT3, fused=fused).intensity < 1


def test_sharing_heads_of_k_and_v():
    """MQA: the group size if fused; with S and P in HBM 38, not the 96 of "about h"."""
    mqa = {"num_kv_heads": 1, **GPT3}
    assert decode(FOREVER, **mqa, fused=True).intensity == pytest.approx(96)
    assert decode(FOREVER, **mqa).intensity == pytest.approx(2 * 12288 / (2 * (128 + 192)))  # 38.4
    by_group = [decode(65536, **GPT3, num_kv_heads=g).intensity for g in (96, 48, 8, 1)]
    assert by_group == sorted(by_group)


def test_batching_decode_shares_the_weights_only():
    one, many = (decode(2048, **GPT3, batch=batch).intensity for batch in (1, 256))
    assert one < 1 and many < 10  # K and V are each sequence's own
    short = [decode(1, **GPT3, batch=batch).intensity for batch in (1, 256)]
    assert short[1] > 100 * short[0]


def test_short_prompts_in_large_batches():
    """While the weights dominate the intensity is batch · seqlen in float16."""
    got = prefill(2, num_heads=1024, head_dim=1024, batch=8).intensity
    assert got == pytest.approx(16, rel=1e-3)


def test_batch_of_about_200_on_an_a100():
    assert A100.ridge == pytest.approx(200.6, abs=0.1)
    assert compute_bound_batch(A100.ridge, 10**9) == 201  # the rule of thumb: batch = ridge
    assert compute_bound_batch(A100.ridge, 12288) == 208  # x and the result move too
    assert compute_bound_batch(A100.ridge, 1024) == 330
    assert compute_bound_batch(A100.ridge, 256) is None
    assert compute_bound_batch(Roofline("A100-80GB", "float16").ridge, 12288) == 157


@given(st.floats(0.5, 600), SIZE, SIZE, st.sampled_from([1, 2, 4]))
def test_compute_bound_batch_is_the_first(ridge, d_in, d_out, dtype_bytes):
    batch = compute_bound_batch(ridge, d_in, d_out, dtype_bytes=dtype_bytes)

    def intensity(b):
        return linear(b, d_in, d_out, dtype_bytes=dtype_bytes).intensity

    little = ridge * 1e-9  # for rounding
    if batch is None:
        assert intensity(FOREVER) < ridge + little
    else:
        assert intensity(batch) > ridge - little
        assert batch == 1 or intensity(batch - 1) < ridge + little


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: linear(0, 8), "batch must be positive, got 0"),
        (lambda: decode(8, 4, 0), "head_dim must be positive, got 0"),
        (lambda: prefill(8, 6, 16, num_kv_heads=4), "num_heads=6 must be a multiple of num_kv"),
        (lambda: compute_bound_batch(float("nan"), 8), "ridge must be positive, got nan"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
