"""The options of attention over ranks: checked, and the same on all ranks."""

from fa_numba.checks import distributed as checks
from fa_numba.distributed.communicator import agree_on_attention
from fa_numba.distributed.layouts import make_layout
from fa_numba.distributed.placed import check_written


class Plan:
    """A checked call over ranks.

    Attributes
    ----------
    comm : Communicator
    layout : Layout
    left, right : int
        The sides of the window, causal in them.
    scores : dict
        Options of a kernel that mask nothing.
    functions : placed.Written
        The mask and the score, with SLOPES_IN_SCORE the slopes too.
    """

    SLOPES_IN_SCORE = False

    def __init__(
        self, function, comm, q, k, layout, seqlen, cu_seqlens, causal=False, window_size=(-1, -1),
        softcap=0.0, alibi_slopes=None, softmax_scale=None, mask=None, mask_args=(), score=None,
        score_args=(),
    ):  # fmt: skip
        checks.check_slopes(q, alibi_slopes)
        written = mask, mask_args, score, score_args
        self.functions = check_written(q, *written, alibi_slopes if self.SLOPES_IN_SCORE else None)
        options = checks.check_scores(q, causal, window_size, softcap, softmax_scale)
        self.left, self.right, self.scores = options
        seqlen = checks.check_seqlen(seqlen, q.shape[1], comm.world_size, cu_seqlens)
        self.comm = comm
        self.layout = make_layout(layout, seqlen, comm.world_size, cu_seqlens)
        checks.check_rank_tokens(q, self.layout, comm.rank)
        facts = {"causal": bool(causal), "window_size": tuple(map(int, window_size))}
        facts |= self.functions.facts | self.scores
        equal = self.functions.arrays
        agree_on_attention(comm, function, q, k, self.layout, alibi_slopes, equal, **facts)
