"""Rings with a mask and a score that the user writes: positions in the whole sequence."""

import re

import numpy as np
import pytest
from cases import make_qkv, random

from fa_numba import flash_attn_bwd, flash_attn_v2, masks, reference
from fa_numba.distributed import (
    LAYOUTS,
    numpy_attn,
    numpy_attn_grad,
    ring_attn,
    ring_attn_grad,
    run_ranks,
    shard,
    ulysses_attn,
    ulysses_attn_grad,
    unshard,
)

SIZES = 2, 29, 29, 4, 2, 8  # batch, seqlen, seqlen, num_heads, num_kv_heads, head_dim
SLOPES = np.float32([0.5, 0.25, 0.125, 0.0625])
BIAS = np.linspace(-1, 1, 4 * 57, dtype=np.float32).reshape(4, 57)
FUNCTIONS = {  # of a call, and its own arguments
    "window per head and sequence": {
        "mask": lambda b, h, m, n, w: (n <= m) & (m - n < w[h] + 2 * b),
        "mask_args": (np.int32([3, 9, 1, 20]),),
    },
    "gallery": {"mask": masks.window_and_first(4, 2)},
    "bias by distance, under a window": {
        "score": lambda s, b, h, m, n, bias: 1.5 * s + bias[h, m - n + 28] - 0.5 * b,
        "score_args": (BIAS,),
        "window_size": (11, 4),
    },
    "mask, score and ALiBi": {
        "mask": lambda b, h, m, n: (m % 3 != 1) | (n < m),
        "score": lambda s, b, h, m, n: s + 0.01 * n,
        "alibi_slopes": SLOPES,
        "causal": True,
    },
    "ALiBi": {"alibi_slopes": SLOPES, "softcap": 2.0},
}
ATTENTIONS = {"ring": (ring_attn, ring_attn_grad), "ulysses": (ulysses_attn, ulysses_attn_grad)}
each_function = pytest.mark.parametrize("functions", FUNCTIONS.values(), ids=FUNCTIONS)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


def for_reference(options):
    """Options of `reference.attention`: functions have their arguments with them."""
    options = dict(options)
    for name in ("mask", "score"):
        args = options.pop(f"{name}_args", ())
        if args:
            options[name] = lambda *x, f=options[name], args=args: f(*x, *args)
    return options


def check_attention(rng, attention, world_size, layout, options, attns=(None, None), sizes=SIZES):
    """Results and gradients of ranks are those of one device."""
    (attn, attn_grad), where = attention, {"layout": layout, "seqlen": sizes[1]}
    q, k, v = make_qkv(rng, *sizes)
    dout, wanted = random(rng, *q.shape), for_reference(options)
    shards = [shard(x, layout, world_size) for x in (q, k, v)]
    run = run_ranks(attn, world_size, *shards, **where, **options, attn=attns[0])
    outs, lses = zip(*run.results, strict=True)
    got = [unshard(outs, layout), unshard(lses, layout, axis=2)]
    inputs = shard(dout, layout, world_size), *shards, outs, lses
    run = run_ranks(attn_grad, world_size, *inputs, **where, **options, attn_grad=attns[1])
    got += [unshard(x, layout) for x in zip(*run.results, strict=True)]
    want = (
        *reference.attention(q, k, v, **wanted),
        *reference.attention_bwd(dout, q, k, v, **wanted),
    )
    for name, x, y in zip(("out", "lse", "dq", "dk", "dv"), got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=4e-6, atol=4e-6, err_msg=name)


@each_function
@each_layout
@pytest.mark.few(lambda layout, functions: [layout, functions])
def test_it_is_attention_of_one_device(rng, layout, functions):
    attns = numpy_attn, numpy_attn_grad
    for attention in ATTENTIONS.values():
        check_attention(rng, attention, 2, layout, functions, attns)
    check_attention(rng, ATTENTIONS["ring"], 5, layout, functions, attns)


@pytest.mark.thorough  # a minute of compilation
@each_function
def test_compiled_for_the_cpu(rng, functions):
    check_attention(rng, ATTENTIONS["ring"], 3, "zigzag", functions)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("layout", ["striped", "zigzag"])
def test_of_the_kernels_to_read(rng, layout):
    functions = FUNCTIONS["mask, score and ALiBi"] | {"alibi_slopes": SLOPES[:2]}
    sizes, attns = (1, 13, 13, 2, 1, 4), (flash_attn_v2, flash_attn_bwd)
    check_attention(rng, ATTENTIONS["ring"], 2, layout, functions, attns, sizes)


@pytest.mark.parametrize("attention", ATTENTIONS)
@each_layout
def test_packed_sequences_have_positions_of_their_own(rng, layout, attention):
    cu_seqlens, world_size = [0, 11, 11, 24, 29], 2
    q, k, v = (x[0] for x in make_qkv(rng, 1, 29, 29, 4, 2, 8))
    options = FUNCTIONS["window per head and sequence"]
    where = {"axis": 0, "cu_seqlens": cu_seqlens}
    shards = [shard(x, layout, world_size, **where) for x in (q, k, v)]
    run = run_ranks(
        ATTENTIONS[attention][0], world_size, *shards, layout=layout, cu_seqlens=cu_seqlens,
        **options, attn=numpy_attn,
    )  # fmt: skip
    out = unshard([out for out, _ in run.results], layout, **where)
    for b, (begin, end) in enumerate(zip(cu_seqlens, cu_seqlens[1:], strict=False)):
        these = (x[None, begin:end] for x in (q, k, v))
        mask = lambda _, h, m, n, b=b: options["mask"](b, h, m, n, *options["mask_args"])  # noqa: E731
        want = reference.attention(*these, mask=mask)[0][0]
        np.testing.assert_allclose(out[begin:end], want, atol=2e-6)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_ranks_agree_on_functions_and_arguments(rng, attention):
    attn, _ = ATTENTIONS[attention]
    shards = [shard(x, "zigzag", 2) for x in make_qkv(rng, 1, 8, 8, 2, 1, 4)]

    def call(comm, q, k, v, **of_rank):
        options = {name: x[comm.rank] for name, x in of_rank.items()}
        return attn(comm, q, k, v, **options, attn=numpy_attn)

    less, more = (lambda b, h, m, n, w: n < m + w), (lambda b, h, m, n, w: n <= m + w)
    for difference, options in {
        r"mask is .*< .*<=": {"mask": (less, more), "mask_args": ((2,), (2,))},
        r"numbers.* is 2 on rank 0, 3 on rank 1": {"mask": (less,) * 2, "mask_args": ((2,), (3,))},
    }.items():
        with pytest.raises(Exception, match=r"all ranks must call") as caught:
            run_ranks(call, 2, *shards, **options)
        assert re.search(difference, str(caught.value), re.DOTALL)
