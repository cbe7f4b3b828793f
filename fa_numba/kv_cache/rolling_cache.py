"""A rolling KV cache: the last tokens of a sequence, and its first.

With a sliding window no query looks further back than `window` tokens, so older tokens need not be
kept. The cache is a ring: a new token overwrites the oldest one, at the write pointer, and the
pointer moves to the next slot, from the last slot back to the first. So the memory of a sequence
does not grow with its length.

    window = 4    after tokens 0 .. 5:    4 5 2 3    the pointer is at 2, the oldest

Attention does not depend on the order of the keys: it reads the ring as it is, and needs no mask,
because the ring holds exactly the keys of the window.

A window by itself ruins a model once the first tokens leave it: much of the attention goes to them,
whatever they are. These attention sinks keep their slots here, in front of the ring. For the model
the kept tokens are a sequence without a gap: positions are counted inside the cache.

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
        A query sees `window` tokens, its own included: window_size=(window − 1, 0).
    num_sinks : int, default=0
        Number of first tokens that are kept too. StreamingLLM finds that 4 are enough.
    like : array, default=a NumPy array of float32

    Attributes
    ----------
    k_cache, v_cache : arrays of shape (batch, num_sinks + window, num_kv_heads, head_dim)
    lengths, seq_lens
        As in `ContiguousCache`; seq_lens[b] stops growing at num_sinks + window.

    Notes
    -----
    After an append, `flash_decode` with the query of the last token sees the sinks and the window.
    If several tokens are appended at once, the windows of the earlier ones begin with tokens that
    may be overwritten: append one by one, or compute their attention first.
    """

    def __init__(self, batch, window, num_kv_heads, head_dim, *, num_sinks=0, like=None):
        self.window, self.num_sinks = checks.check_window(window, num_sinks)
        super().__init__(batch, self.num_sinks + self.window, num_kv_heads, head_dim, like=like)

    @property
    def write_pointer(self):
        """Index in its row for the next token of each sequence: a NumPy array of shape (batch,)."""
        return self._index_of(self.lengths)

    @property
    def positions(self):
        """Position inside the cache of the token in each slot; the last is seq_lens[b] − 1.

        Returns
        -------
        NumPy array of shape (batch, num_sinks + window), int32
            −1 in an empty slot.
        """
        index = np.arange(self.max_len)
        age = (index - self.write_pointer[:, None]) % self.window  # in the ring, the oldest first
        full = np.where(index < self.num_sinks, index, self.num_sinks + age)
        lengths = self.lengths[:, None]
        filling = np.where(index < lengths, index, -1)
        return np.where(lengths < self.max_len, filling, full).astype(np.int32)

    def _grown(self, num_new):
        return self.lengths + num_new

    def _index_in_row(self, t, end):
        # If one append has several tokens for one slot, only the last is written.
        kept = (t < self.num_sinks) | (t >= end - self.window)
        return np.where(kept, self._index_of(t), -1)

    def _index_of(self, t):
        """Index of token t in its row: a sink's own slot, or a slot of the ring after the sinks."""
        ring = self.num_sinks + (t - self.num_sinks) % self.window
        return np.where(t < self.num_sinks, t, ring)
