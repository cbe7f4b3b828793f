"""A rolling KV cache: the last tokens of a sequence, and its first.

With a sliding window no query looks further back than `window` tokens, and what no query will look
at need not be kept. The cache is a ring: a new token takes the place of the oldest one, where the
write pointer stands, and the pointer goes one place on, from the last place back to the first. So
the memory of a sequence does not grow, however long it gets.

    window = 4    tokens 0 .. 5 seen:    4 5 2 3    the pointer is at 2, the oldest

Attention asks which keys there are, and not in what order: it takes the ring as it lies, and that
the keys are those of the window is the whole mask.

A window alone ruins a model once the first tokens leave it: much of the attention goes to them,
whatever they say. These attention sinks keep their places here, in front of the ring. To the model
the tokens that are left are a sequence without a gap: positions are counted inside the cache.

Papers: Jiang et al. 2023, Mistral 7B, arXiv:2310.06825 (the rolling buffer); Xiao et al. 2023,
Efficient streaming language models with attention sinks, arXiv:2309.17453.
"""

import numpy as np

from fa_numba import checks
from fa_numba.kv_cache.contiguous_cache import ContiguousCache


class RollingCache(ContiguousCache):
    """The first `num_sinks` and the last `window` tokens of each sequence.

    Parameters
    ----------
    batch, window, num_kv_heads, head_dim : int
        Tokens in the window, the one that asks included: window_size=(window − 1, 0).
    num_sinks : int, default=0
        First tokens that are kept beside them. StreamingLLM finds that 4 are enough.
    like : array, default=a NumPy array of float32

    Attributes
    ----------
    k_cache, v_cache : arrays of shape (batch, num_sinks + window, num_kv_heads, head_dim)
    lengths, seq_lens
        As in `ContiguousCache`; seq_lens[b] stops growing at num_sinks + window.

    Notes
    -----
    After an append, `flash_decode` of one query, that of the last token, sees the sinks and the
    window. When several tokens were appended, the earlier of them had other windows, and what these
    began with may be gone: append them one by one, or have their attention first.
    """

    def __init__(self, batch, window, num_kv_heads, head_dim, *, num_sinks=0, like=None):
        self.window, self.num_sinks = checks.check_window(window, num_sinks)
        super().__init__(batch, self.num_sinks + self.window, num_kv_heads, head_dim, like=like)

    @property
    def write_pointer(self):
        """Where the next token of each sequence goes, a NumPy array of shape (batch,)."""
        return self._turn(self.lengths)

    @property
    def positions(self):
        """Position inside the cache of the token in each place; the last is seq_lens[b] − 1.

        Returns
        -------
        NumPy array of shape (batch, num_sinks + window), int32
            −1 in a place that is still empty.
        """
        place = np.arange(self.max_len)
        age = (place - self.write_pointer[:, None]) % self.window  # in the ring, the oldest first
        full = np.where(place < self.num_sinks, place, self.num_sinks + age)
        lengths = self.lengths[:, None]
        filling = np.where(place < lengths, place, -1)
        return np.where(lengths < self.max_len, filling, full).astype(np.int32)

    def _grown(self, num_new):
        return self.lengths + num_new

    def _place(self, t, end):
        # Of the tokens that one append would write to one place, the last is written.
        kept = (t < self.num_sinks) | (t >= end - self.window)
        return np.where(kept, self._turn(t), -1)

    def _turn(self, t):
        """The place of token t: a sink's own, or one in the ring behind the sinks."""
        ring = self.num_sinks + (t - self.num_sinks) % self.window
        return np.where(t < self.num_sinks, t, ring)
