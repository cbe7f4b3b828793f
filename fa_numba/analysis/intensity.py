"""Arithmetic intensity: of a linear layer, of attention in prefill and in decode.

Counted: the FLOPs of the matrix products, 2 for a multiplication and an addition; and the bytes
between HBM and the chip if every product reads its inputs once and writes its output once.
For B sequences of n queries and N keys, d = num_heads · head_dim, d_kv = num_kv_heads · head_dim:

              FLOPs                  elements moved
linear        2 B d_in d_out         B (d_in + d_out) + d_in d_out
projections   2 B n d (d + 2 d_kv)   B n (2 d + 2 d_kv) + d (d + 2 d_kv)
attention     4 B n N d              B (2 n d + 2 N d_kv), and unfused B · 4 num_heads n N for S
                                     and P, each written once and read once

In prefill every token asks, n = N; in decode only the newest does, n = 1. A causal kernel may skip
half of prefill's scores and, unfused, half of their bytes. For long contexts attention alone, with
e bytes an element, tends to this many FLOP per byte:

              unfused                            fused
prefill       head_dim / e                       2 N d / (e (d + d_kv)), no end
decode        2 d / (e (d_kv + 2 num_heads))     2 num_heads / (e num_kv_heads)

Fused prefill is an ideal: it reads K and V once, and no chip holds them all. The d/h that is often
quoted for prefill counts elements, not bytes: in float16 it is half of that, 64 for head_dim 128,
and an A100 wants 200. In decode, again in float16, it is 1 at most where every head has its own K
and V; a group of heads that share them gets as many as it has heads, if it is fused. Unfused,
head_dim / e is the end, since every query head still writes and reads its own S and P.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """The cost of a computation.

    Attributes
    ----------
    flops : int
    num_bytes : int
        Moved between HBM and the chip.
    """

    flops: int
    num_bytes: int

    @property
    def intensity(self):
        """FLOP per byte."""
        return self.flops / self.num_bytes


def linear(batch, d_in, d_out=None, *, dtype_bytes=2):
    """A linear layer: x (batch, d_in) @ weight (d_in, d_out).

    Parameters
    ----------
    batch : int
        Rows of x: tokens that go through the layer together.
    d_in : int
    d_out : int, default=d_in
    dtype_bytes : int, default=2
    """
    d_out = d_in if d_out is None else d_out
    positive(batch=batch, d_in=d_in, d_out=d_out, dtype_bytes=dtype_bytes)
    moved = batch * (d_in + d_out) + d_in * d_out
    return Work(2 * batch * d_in * d_out, dtype_bytes * moved)


def compute_bound_batch(ridge, d_in, d_out=None, *, dtype_bytes=2):
    """The smallest batch whose linear layer is not bound by memory.

    The rule of thumb, batch = ridge · dtype_bytes / 2, forgets that x and the result move too: the
    narrower the layer, the larger the batch, until none is large enough.

    Parameters
    ----------
    ridge : float
        FLOP per byte, from `Roofline.ridge`.
    d_in, d_out, dtype_bytes
        As for `linear`.

    Returns
    -------
    int or None
        None: no batch does, because even an endless one has an intensity below the ridge.
    """
    d_out = d_in if d_out is None else d_out
    positive(ridge=ridge, d_in=d_in, d_out=d_out, dtype_bytes=dtype_bytes)
    # 2 B d_in d_out >= ridge * bytes, solved for B
    spare = 2 * d_in * d_out - ridge * dtype_bytes * (d_in + d_out)
    return math.ceil(ridge * dtype_bytes * d_in * d_out / spare) if spare > 0 else None


def attention(
    seqlen_q,
    seqlen_k,
    num_heads,
    head_dim,
    *,
    num_kv_heads=None,
    batch=1,
    dtype_bytes=2,
    fused=False,
    projections=True,
):
    """Attention of seqlen_q new tokens to seqlen_k tokens, themselves included.

    Parameters
    ----------
    seqlen_q, seqlen_k : int
        Equal in prefill, 1 query in decode, in between for a chunk of a prompt.
    num_heads, head_dim : int
    num_kv_heads : int, default=num_heads
        Fewer for grouped-query attention, 1 for multi-query attention.
    batch : int, default=1
        The weights of the projections are read once for all of them, K and V are not.
    dtype_bytes : int, default=2
    fused : bool, default=False
        S and P stay on the chip.
    projections : bool, default=True
        Count the product that makes q, k, v of the new tokens too.

    Raises
    ------
    ValueError
        A size that is not positive; num_heads that is not a multiple of num_kv_heads.
    """
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    positive(
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        num_heads=num_heads,
        head_dim=head_dim,
        num_kv_heads=num_kv_heads,
        batch=batch,
        dtype_bytes=dtype_bytes,
    )
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads=} must be a multiple of {num_kv_heads=}")
    d, d_kv = num_heads * head_dim, num_kv_heads * head_dim

    flops = 4 * batch * seqlen_q * seqlen_k * d  # S = Q Kᵀ and O = P V
    moved = batch * (2 * seqlen_q * d + 2 * seqlen_k * d_kv)  # Q, O; K, V
    if not fused:
        moved += batch * 4 * num_heads * seqlen_q * seqlen_k  # S, P: out and in again
    if projections:
        qkv = linear(batch * seqlen_q, d, d + 2 * d_kv, dtype_bytes=1)
        flops, moved = flops + qkv.flops, moved + qkv.num_bytes
    return Work(flops, dtype_bytes * moved)


def prefill(seqlen, num_heads, head_dim, **options):
    """`attention` of a prompt of seqlen tokens to itself; options as there."""
    return attention(seqlen, seqlen, num_heads, head_dim, **options)


def decode(seqlen, num_heads, head_dim, **options):
    """`attention` of the newest of seqlen tokens to them all; options as there."""
    return attention(1, seqlen, num_heads, head_dim, **options)


def positive(**sizes):
    """Raise ValueError for the first size that is not positive."""
    for name, size in sizes.items():
        if not size > 0:
            raise ValueError(f"{name} must be positive, got {size}")
