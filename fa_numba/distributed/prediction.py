"""Bytes, pairs and times of attention over ranks, by formula.

Bytes and pairs are exact: what the communicator counts is held to them, to the byte. Times are a
prediction, from the rate of a kernel and the rate of a link, and nothing else: a kernel that is as
fast on small parts as on large ones, a link that nobody else uses, no overhead beyond `latency`.

A ring is in lock step, since a rank needs the keys of its neighbour. So a step takes as long as
the rank with the most pairs in it, or as the link, if that takes longer:

    step = max(largest pairs · 4 · head_dim · num_heads / FLOP/s, bytes / (bytes/s) + latency)

and efficiency is the time of one device, divided by the number of ranks and by the time they take.
With a causal mask the contiguous layout cannot exceed W / (2W − 1): in every step but the first
some rank has a full block, and the others wait for it.
"""

from dataclasses import dataclass

import numpy as np

from fa_numba.checks import distributed as checks
from fa_numba.distributed.communicator import even_cuts, num_bytes
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
        """How many tokens each rank holds: an int64 array of shape (world_size,)."""
        layout = make_layout(self.layout, self.seqlen, self.world_size)
        return np.array([layout.count(rank) for rank in range(self.world_size)])


def pairs_per_rank(problem):
    """Pairs of a query and a key that it sees, by rank: summed over the positions it holds.

    Parameters
    ----------
    problem : Problem

    Returns
    -------
    int64 array of shape (world_size,)
    """
    if not problem.causal:
        return problem.tokens() * problem.seqlen
    layout = make_layout(problem.layout, problem.seqlen, problem.world_size)
    return np.array([(layout.tokens(r) + 1).sum() for r in range(problem.world_size)])


def ring_bytes(problem, backward=False):
    """Bytes that each rank sends in each step of `ring_attn`, or of `ring_attn_grad`.

    Without a window. Forward: K and V of the keys that are here, in all steps but the last.
    Backward: these again, and dK and dV of them in float32, in the last step too: home.

    Parameters
    ----------
    problem : Problem
    backward : bool, default=False

    Returns
    -------
    int64 array of shape (world_size, world_size)
        By rank and step.
    """
    tokens, world_size = problem.tokens(), problem.world_size
    rank, t = np.indices((world_size, world_size))
    pair = 2 * problem.batch * problem.num_kv_heads * problem.head_dim
    here = pair * tokens[(rank - t) % world_size]  # numbers of K and V together
    sent = np.where(t < world_size - 1, here * problem.itemsize, 0)
    if backward and world_size > 1:
        sent += here * 4
    return sent


def ulysses_bytes(problem):
    """Bytes that each rank sends in the two exchanges of `ulysses_attn`.

    First q, k and v of its own tokens, the heads of others; then out and lse of its own heads, the
    tokens of others.

    Parameters
    ----------
    problem : Problem

    Returns
    -------
    int64 array of shape (world_size, 2)
    """
    world_size, tokens = problem.world_size, problem.tokens()
    heads = problem.num_heads // world_size
    kv_heads = max(1, problem.num_kv_heads // world_size)
    row = problem.batch * problem.head_dim * problem.itemsize
    first = (world_size - 1) * tokens * (heads + 2 * kv_heads) * row
    second = (problem.seqlen - tokens) * heads * (row + 4 * problem.batch)
    return np.stack([first, second], axis=1)


def tree_bytes(problem):
    """Bytes that each rank sends in `tree_decode`: whatever seqlen is.

    Two all_reduce in float32, of a maximum per head, and of head_dim + 1 sums per head. In each a
    rank sends the parts of others, and its own part to all others.

    Parameters
    ----------
    problem : Problem

    Returns
    -------
    int64 array of shape (world_size,)
    """
    rows, world_size = problem.batch * problem.num_heads, problem.world_size
    total = np.zeros(world_size, np.int64)
    for size in (rows, rows * (problem.head_dim + 1)):
        part = np.array([end - start for start, end in even_cuts(size, world_size)])
        total += num_bytes((), np.float32) * (size - part + (world_size - 1) * part)
    return total


@dataclass(frozen=True)
class Prediction:
    """What a ring should take: a prediction, not a measurement.

    Attributes
    ----------
    compute, link : arrays of shape (world_size,)
        Seconds of each step: of the rank with the most pairs, and of the link.
    single : float
        Seconds of one device for all of it.
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
        """Share of the rate of one device that each rank reaches."""
        return self.single / (len(self.compute) * self.seconds)

    @property
    def hidden(self):
        """Share of the communication that computing hides; 1 where there is none."""
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

    Returns
    -------
    Prediction
    """
    flops = checks.check_rate("flops", flops)
    bytes_per_second = checks.check_rate("bytes_per_second", bytes_per_second)
    per_pair = FLOPS_PER_PAIR["backward" if backward else "forward"]
    seconds_per_pair = per_pair * problem.batch * problem.num_heads * problem.head_dim / flops
    sent = ring_bytes(problem, backward).max(axis=0)
    link = sent / bytes_per_second + latency * (sent > 0)
    seqlen = problem.seqlen
    pairs = seqlen * (seqlen + 1) / 2 if problem.causal else seqlen**2
    return Prediction(largest_pairs(problem) * seconds_per_pair, link, pairs * seconds_per_pair)


def largest_pairs(problem):
    """Pairs of the rank that has the most of them in each step of a ring.

    With c tokens per rank, a multiple of 2; else rounded up:

        causal        first step             every other step
        contiguous    c (c + 1) / 2          c²
        striped       c (c + 1) / 2          c (c + 1) / 2
        zigzag        c (c + 1) / 2          c² / 2

    Parameters
    ----------
    problem : Problem

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
    """Pairs of each rank in each step of a ring: an int64 array of shape (world_size, world_size).

    Parameters
    ----------
    problem : Problem
    """
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
