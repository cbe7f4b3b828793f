"""Bytes, pairs and times of attention over ranks, by formula.

Bytes and pairs are exact: they equal the counts of the communicator, to the byte. Times are a
prediction. They follow from the rate of a kernel and the rate of a link. The model assumes that a
kernel is equally fast on small and large parts, that no other traffic uses the link, and that
`latency` is the only overhead.

The ranks of a ring are in lock step, because each needs the keys of its neighbour. So the time of a
step is that of the rank with the most pairs, or that of the link if the link is slower:

    step = max(largest pairs · 4 · head_dim · num_heads / FLOP/s, bytes / (bytes/s) + latency)

Efficiency is the time of one device divided by the time of W ranks and by W. With a causal mask the
contiguous layout reaches W / (2W − 1) at most: in every step after the first some rank has a full
block, and the other ranks wait for it.
"""

from dataclasses import dataclass

import numpy as np

from fa_numba.checks import distributed as checks
from fa_numba.distributed.communicator import num_bytes
from fa_numba.distributed.layouts import make_layout
from fa_numba.distributed.parts import num_steps, parts_of

FLOPS_PER_PAIR = {"forward": 4, "backward": 10}  # per head and head_dim: 2 and 5 products


@dataclass(frozen=True)
class Problem:
    """Self-attention of one sequence over ranks.

    Attributes
    ----------
    seqlen, world_size, num_heads, num_kv_heads, head_dim : int
    layout : "contiguous", "striped" or "zigzag"
    causal : bool
    itemsize : int
        Bytes of a number of q, k and v.
    batch : int
    """

    seqlen: int
    world_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layout: str = "zigzag"
    causal: bool = True
    itemsize: int = 2
    batch: int = 1

    def tokens(self):
        """Number of tokens of each rank: an int64 array of shape (world_size,)."""
        layout = make_layout(self.layout, self.seqlen, self.world_size)
        return np.array([layout.count(rank) for rank in range(self.world_size)])


def pairs_per_rank(problem):
    """Pairs (query, key) of each rank: the sum over its positions."""
    if not problem.causal:
        return problem.tokens() * problem.seqlen
    layout = make_layout(problem.layout, problem.seqlen, problem.world_size)
    return np.array([(layout.tokens(r) + 1).sum() for r in range(problem.world_size)])


def ring_bytes(problem, backward=False):
    """Bytes that each rank sends in each step of `ring_attn`, or of `ring_attn_grad`.

    There is no window. Forward: K and V, in every step before the last. Backward: K and V in these
    steps, and dK and dV in float32 in every step; in the last step they are sent to their owner.
    """
    tokens, world_size = problem.tokens(), problem.world_size
    rank, t = np.indices((world_size, world_size))
    pair = 2 * problem.batch * problem.num_kv_heads * problem.head_dim
    here = pair * tokens[(rank - t) % world_size]  # numbers of K and V together
    sent = np.where(t < world_size - 1, here * problem.itemsize, 0)
    if backward and world_size > 1:
        sent += here * 4
    return sent


def ulysses_bytes(problem, backward=False):
    """Bytes that each rank sends in the two exchanges of `ulysses_attn`, or its gradients.

    First exchange: q, k and v of its own tokens, with the heads of other ranks; backward dout, out
    and lse too. Second exchange: out and lse of its own heads, with the tokens of other ranks;
    backward dq, dk and dv, where dk and dv are float32 if ranks share K/V heads.
    """
    world_size, tokens = problem.world_size, problem.tokens()
    heads = problem.num_heads // world_size
    kv_heads = max(1, problem.num_kv_heads // world_size)
    row = problem.batch * problem.head_dim * problem.itemsize
    lse = 4 * problem.batch
    if backward:
        first = (world_size - 1) * tokens * ((3 * heads + 2 * kv_heads) * row + heads * lse)
        shared = problem.num_kv_heads < world_size
        of_kv = row // problem.itemsize * 4 if shared else row
        second = (problem.seqlen - tokens) * (heads * row + 2 * kv_heads * of_kv)
    else:
        first = (world_size - 1) * tokens * (heads + 2 * kv_heads) * row
        second = (problem.seqlen - tokens) * heads * (row + lse)
    return np.stack([first, second], axis=1)


def tree_bytes(problem):
    """Bytes that each rank sends in `tree_decode`. They do not depend on seqlen.

    A rank sends its state, head_dim + 1 numbers per head in float32, to every other rank.
    """
    state = num_bytes((problem.batch, problem.num_heads, problem.head_dim + 1), np.float32)
    return np.full(problem.world_size, (problem.world_size - 1) * state, np.int64)


@dataclass(frozen=True)
class Prediction:
    """The predicted time of a ring. It is not a measurement.

    Attributes
    ----------
    compute, link : arrays of shape (world_size,)
        Seconds of each step for the rank with the most pairs, and for the link.
    single : float
        Seconds of one device for the whole problem.
    """

    compute: np.ndarray
    link: np.ndarray
    single: float

    @property
    def seconds(self):
        """Seconds of all steps."""
        return float(np.maximum(self.compute, self.link).sum())

    @property
    def efficiency(self):
        """Rate per rank divided by the rate of one device."""
        return self.single / (len(self.compute) * self.seconds)

    @property
    def hidden(self):
        """Fraction of the communication time that computation hides; 1 without communication."""
        total = float(self.link.sum())
        return float(np.minimum(self.compute, self.link).sum()) / total if total else 1.0

    def __str__(self):
        return (
            f"prediction: {1e3 * self.seconds:.3g} ms on {len(self.compute)} ranks, "
            f"{1e3 * self.single:.3g} ms on one; efficiency {self.efficiency:.3f}, "
            f"{100 * self.hidden:.0f} % of the communication hidden"
        )


def predict_ring(problem, *, flops, bytes_per_second, latency=0.0, backward=False):
    """Predict the time of `ring_attn`, or of `ring_attn_grad`.

    Parameters
    ----------
    problem : Problem
    flops : float
        Floating-point operations per second of the kernel on one device, as measured.
    bytes_per_second : float
        Of a link, in one direction.
    latency : float, default=0.0
        Seconds that an exchange takes beyond its bytes.
    backward : bool, default=False
    """
    flops = checks.check_positive("flops", flops)
    bytes_per_second = checks.check_positive("bytes_per_second", bytes_per_second)
    per_pair = FLOPS_PER_PAIR["backward" if backward else "forward"]
    seconds_per_pair = per_pair * problem.batch * problem.num_heads * problem.head_dim / flops
    sent = ring_bytes(problem, backward).max(axis=0)
    link = sent / bytes_per_second + latency * (sent > 0)
    seqlen = problem.seqlen
    pairs = seqlen * (seqlen + 1) / 2 if problem.causal else seqlen**2
    return Prediction(largest_pairs(problem) * seconds_per_pair, link, pairs * seconds_per_pair)


def predict_decode(problem, *, single, bytes_per_second, latency=0.0):
    """Predict the seconds of one query over the keys of all ranks.

    In a ring the keys travel: in each step a rank reads its keys, or waits for the next ones if the
    link is slower. In `tree_decode` each rank reads its own keys, and one exchange of few bytes
    follows.

    Parameters
    ----------
    problem : Problem
    single : float
        Seconds of one device that has all keys. Decoding is bound by memory, so a rank takes its
        share of them.
    bytes_per_second : float
        Of a link, in one direction.
    latency : float, default=0.0
        Seconds of an exchange of few bytes.

    Returns
    -------
    dict of str to float
        Seconds of "tree" and "ring".
    """
    single = checks.check_positive("single", single)
    bytes_per_second = checks.check_positive("bytes_per_second", bytes_per_second)
    world_size = problem.world_size
    if world_size == 1:
        return {"tree": single, "ring": single}
    own = single / world_size
    sent = ring_bytes(problem).max(axis=0)[:-1] / bytes_per_second + latency
    ring = own + float(np.maximum(own, sent).sum())
    return {"tree": own + latency, "ring": ring}


def largest_pairs(problem):
    """Pairs of the rank that has the most pairs, in each step of a ring.

    The formulas hold for c tokens per rank and even c; other c are rounded up or approximate:

        causal        first step             every other step
        contiguous    c (c + 1) / 2          c²
        striped       c (c + 1) / 2          c (c + 1) / 2
        zigzag        c (c + 1) / 2          c² / 2

    Returns
    -------
    float64 array of shape (world_size,)
    """
    c = -(-problem.seqlen // problem.world_size)
    diagonal = c * (c + 1) / 2
    other = {"contiguous": c**2, "striped": diagonal, "zigzag": c**2 / 2}[problem.layout]
    if not problem.causal:
        diagonal = other = c**2
    return np.array([diagonal] + [other] * (problem.world_size - 1), np.float64)


def pairs_per_step(problem):
    """Pairs of each rank in each step of a ring: int64, (world_size, world_size)."""
    ranks = range(problem.world_size)
    layout = make_layout(problem.layout, problem.seqlen, problem.world_size)
    right = 0 if problem.causal else -1
    steps = num_steps(layout, -1, right)
    return np.array(
        [
            [
                sum(p.pairs for p in parts_of(layout, r, (r - t) % problem.world_size, -1, right))
                if t < steps
                else 0
                for t in ranks
            ]
            for r in ranks
        ]
    )
