"""Which rank holds which tokens of a sequence: contiguous, striped, zigzag.

Eight tokens on two ranks:

layout      rank 0      rank 1
contiguous  0 1 2 3     4 5 6 7     a part of the sequence each
striped     0 2 4 6     1 3 5 7     every world_size-th token
zigzag      0 1 6 7     2 3 4 5     2 · world_size chunks; rank r holds chunk r from either end

With a causal mask query m sees m + 1 keys. So the last rank of the contiguous layout has almost 2 ·
world_size − 1 times as many pairs as the first rank, and the other ranks wait for it. Neighbours in
the striped layout differ by one key per query. All ranks of the zigzag layout have equally many
pairs.

In a packed batch each sequence has a layout of its own: a rank holds its part of the first
sequence, then its part of the second, and so on. Any length is allowed. The parts of a sequence
differ by one token at most, and a part may be empty.

Papers: Liu et al. 2023, Ring Attention, arXiv:2310.01889 (contiguous); Brandon et al. 2023, Striped
Attention, arXiv:2311.09431 (striped). Zigzag was published as code, Zhu Zilin's
ring-flash-attention (2024); Llama 3, arXiv:2407.21783, section 3.3.2, uses it. DistFlashAttn,
arXiv:2310.03294, balances the contiguous layout in another way: idle ranks compute for busy ranks.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fa_numba.checks import distributed as checks
from fa_numba.distributed.communicator import even_cut
from fa_numba.on_cuda_cores.running_state import copy_into
from fa_numba.runtime import arrays

LAYOUTS = checks.LAYOUTS


class Span(NamedTuple):
    """Consecutive rows of a rank: evenly spaced tokens of one sequence."""

    sequence: int  # its number in the batch
    # The tokens have positions start, start + step, start + 2 · step, ... in their sequence.
    start: int
    step: int
    count: int  # number of tokens; at least 1
    offset: int  # row of the first token in the rank's own arrays


@dataclass(frozen=True)
class Layout:
    """A layout of a packed batch over ranks."""

    name: str  # "contiguous", "striped" or "zigzag"
    # Sequence b is tokens cu_seqlens[b] to cu_seqlens[b + 1] − 1; (0, seqlen) for one sequence
    cu_seqlens: tuple
    world_size: int

    @functools.lru_cache(1024)  # noqa: B019  each packed batch has a layout of its own
    def spans(self, rank):
        """The spans of a rank, in the order of its rows: a tuple of Span."""
        spans, offset = [], 0
        for sequence, (begin, end) in enumerate(
            zip(self.cu_seqlens, self.cu_seqlens[1:], strict=False)
        ):
            for start, step, count in self._of_one_sequence(end - begin, rank):
                if count:
                    spans.append(Span(sequence, start, step, count, offset))
                    offset += count
        return tuple(spans)

    def _of_one_sequence(self, seqlen, rank):
        """(start, step, count) of each span of a rank in a sequence of seqlen tokens."""
        if self.name == "striped":
            return [(rank, self.world_size, len(range(rank, seqlen, self.world_size)))]
        if self.name == "contiguous":
            chunks = [even_cut(seqlen, self.world_size, rank)]
        else:
            parts = 2 * self.world_size
            chunks = [even_cut(seqlen, parts, i) for i in (rank, parts - 1 - rank)]
        return [(start, 1, end - start) for start, end in chunks]

    def count(self, rank):
        """Number of tokens of a rank."""
        return sum(span.count for span in self.spans(rank))

    def slices(self, rank):
        """(tokens, rows) of each span of a rank: where its tokens are in the packed batch, and in
        the rank's own arrays. A list of pairs of slices."""
        found = []
        for span in self.spans(rank):
            start = self.cu_seqlens[span.sequence] + span.start
            tokens = slice(start, start + span.step * (span.count - 1) + 1, span.step)
            found.append((tokens, slice(span.offset, span.offset + span.count)))
        return found

    def tokens(self, rank):
        """The tokens of a rank, as indices into the packed batch: an int64 array."""
        parts = [
            self.cu_seqlens[span.sequence] + span.start + span.step * np.arange(span.count)
            for span in self.spans(rank)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def make_layout(name, seqlen, world_size, cu_seqlens=None):
    """The Layout of one sequence, or of a packed batch where cu_seqlens is given."""
    checks.check_layout(name)
    world_size = checks.check_world_size(world_size)
    starts = (0, seqlen) if cu_seqlens is None else checks.check_cu_seqlens(cu_seqlens)
    return Layout(name, starts, world_size)


def shard(x, layout, world_size, *, axis=1, cu_seqlens=None):
    """Cut an array into the parts of the ranks.

    Parameters
    ----------
    x : array
    layout : "contiguous", "striped" or "zigzag"
    world_size : int
    axis : int, default=1
        Axis of the tokens: 1 of (batch, seqlen, heads, head_dim), 0 of packed tokens, 2 of lse.
    cu_seqlens : sequence of int, default=None
        For a packed batch: sequence b is tokens cu_seqlens[b] to cu_seqlens[b + 1] − 1.

    Returns
    -------
    list of world_size arrays
    """
    whole = make_layout(layout, checks.check_axis(x, axis), world_size, cu_seqlens)
    checks.check_tokens("x", x.shape[axis], whole.cu_seqlens[-1], "cu_seqlens[-1]")
    axis %= len(x.shape)
    return [_rows_of(x, whole, rank, axis) for rank in range(world_size)]


def unshard(shards, layout, *, axis=1, cu_seqlens=None):
    """Join the parts of the ranks: the inverse of `shard`.

    Parameters
    ----------
    shards : sequence of arrays, one per rank
    layout, axis, cu_seqlens
        As for `shard`.
    """
    shards = list(shards)
    lengths = [checks.check_axis(x, axis, "shards") for x in shards]
    whole = make_layout(layout, sum(lengths), len(shards), cu_seqlens)
    for rank, length in enumerate(lengths):
        checks.check_tokens(f"shards[{rank}]", length, whole.count(rank), f"rank {rank}, {layout}")
    axis %= len(shards[0].shape)
    made = _empty(shards[0], axis, whole.cu_seqlens[-1])
    before = (slice(None),) * axis
    for rank, x in enumerate(shards):
        for tokens, rows in whole.slices(rank):
            copy_into(made[(*before, tokens)], x[(*before, rows)])
    return made


def _rows_of(x, layout, rank, axis):
    """The rows of a rank, in its own order."""
    made, before = _empty(x, axis, layout.count(rank)), (slice(None),) * axis
    for tokens, rows in layout.slices(rank):
        copy_into(made[(*before, rows)], x[(*before, tokens)])
    return made


def _empty(x, axis, length):
    """An array like x with another length along an axis."""
    return arrays.empty(x, (*x.shape[:axis], length, *x.shape[axis + 1 :]), x.dtype)
