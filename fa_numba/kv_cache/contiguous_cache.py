"""A contiguous KV cache: each sequence has one row of the cache, of the maximum length.

The simplest cache, and the most wasteful one: a sequence of ten tokens occupies max_len slots. It
is also a paged cache whose pages are its rows: page b for sequence b, page_size = max_len. So
`reshape_and_cache` writes to it, and both `flash_decode` and `paged_attn_decode` read it.
"""

import numpy as np

from fa_numba import checks
from fa_numba.kv_cache.reshape_and_cache import reshape_and_cache
from fa_numba.runtime import arrays


class ContiguousCache:
    """Keys and values of `batch` sequences in one layer, to which tokens are appended.

    Parameters
    ----------
    batch, max_len, num_kv_heads, head_dim : int
    like : array, default=a NumPy array of float32
        The caches have its dtype, library and device.

    Attributes
    ----------
    k_cache, v_cache : arrays of shape (batch, max_len, num_kv_heads, head_dim), dtype of like
    lengths : NumPy array of shape (batch,), int32
        Tokens appended to each sequence; known without waiting for a GPU.
    seq_lens : array of shape (batch,), int32
        Tokens of each sequence that are in the cache; for `flash_decode`.
    """

    def __init__(self, batch, max_len, num_kv_heads, head_dim, *, like=None):
        like = np.empty(0, np.float32) if like is None else like
        shape = checks.check_cache_shape(batch, max_len, num_kv_heads, head_dim, like)
        self.k_cache, self.v_cache = (arrays.empty(like, shape, like.dtype) for _ in range(2))
        self._set_lengths(np.zeros(shape[0], np.int32))

    @property
    def max_len(self):
        """Slots of a sequence in the cache."""
        return self.k_cache.shape[1]

    def append(self, k, v, num_new=None):
        """Write the keys and values of new tokens after those in the cache.

        Parameters
        ----------
        k, v : arrays of shape (batch, seqlen_new, num_kv_heads, head_dim)
            Dtype and library as in the caches. Any strides with a contiguous last axis.
        num_new : sequence of batch int, default=seqlen_new for each
            Number of new tokens of each sequence: sequence b gets the first num_new[b]; the others
            are padding.

        Raises
        ------
        TypeError, ValueError
            Also if the cache has no room for all of the tokens. The cache is then unchanged.
        """
        num_new = checks.check_append(k, v, self.k_cache, num_new)
        lengths = self._grown(num_new)
        i = np.arange(k.shape[1])
        t = self.lengths[:, None] + i  # index of each new token in its sequence
        index = np.where(i < num_new[:, None], self._index_in_row(t, lengths[:, None]), -1)
        rows = np.arange(len(lengths))[:, None] * self.max_len
        slot_mapping = np.where(index >= 0, rows + index, -1).astype(np.int32).ravel()
        k, v = (x.reshape(-1, *x.shape[2:]) for x in (k, v))
        slot_mapping = arrays.from_numpy(self.k_cache, slot_mapping)
        reshape_and_cache(k, v, self.k_cache, self.v_cache, slot_mapping)
        self._set_lengths(lengths)

    def _grown(self, num_new):
        """The lengths with the new tokens; raises an error if there is no room for them."""
        return checks.check_room(self.lengths, num_new, self.max_len)

    def _index_in_row(self, t, end):
        """Index in the row for token t of a sequence that will have `end` tokens."""
        return t

    def _set_lengths(self, lengths):
        self.lengths = lengths
        self.seq_lens = arrays.from_numpy(self.k_cache, np.minimum(lengths, np.int32(self.max_len)))
