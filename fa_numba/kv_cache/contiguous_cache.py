"""A contiguous KV cache: each sequence has a row of the cache, as long as it may ever get.

The simplest cache, and the one that wastes most: max_len tokens are paid for by a sequence of ten.
It is a paged cache as well, whose pages are the rows: page b for sequence b, page_size = max_len.
So `reshape_and_cache` writes to it, and `flash_decode` and `paged_attn_decode` both read it.
"""

import numpy as np

from fa_numba import checks
from fa_numba.kv_cache.reshape_and_cache import reshape_and_cache
from fa_numba.runtime import arrays


class ContiguousCache:
    """Keys and values of `batch` sequences, one layer's, to which tokens are appended.

    Parameters
    ----------
    batch, max_len, num_kv_heads, head_dim : int
    like : array, default=a NumPy array of float32
        The caches are of its dtype and library and on its device.

    Attributes
    ----------
    k_cache, v_cache : arrays of shape (batch, max_len, num_kv_heads, head_dim), dtype of like
    lengths : NumPy array of shape (batch,), int32
        Tokens that each sequence has been given: known without waiting for a GPU.
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
        """Places that a sequence has in the cache."""
        return self.k_cache.shape[1]

    def append(self, k, v, num_new=None):
        """Write the keys and values of new tokens behind those that are there.

        Parameters
        ----------
        k, v : arrays of shape (batch, seqlen_new, num_kv_heads, head_dim)
            Of the dtype and library of the caches. Any strides with a contiguous last axis.
        num_new : sequence of batch int, default=seqlen_new for each
            How many of them sequence b is given, the first num_new[b]; the others are padding.

        Raises
        ------
        TypeError, ValueError
            Naming the argument, what it must be, and what it got; also where there is no room.
            Nothing has been changed then.
        """
        num_new = checks.check_append(k, v, self.k_cache, num_new)
        lengths = self._grown(num_new)
        i = np.arange(k.shape[1])
        t = self.lengths[:, None] + i  # the place in its sequence of each new token
        place = np.where(i < num_new[:, None], self._place(t, lengths[:, None]), -1)
        rows = np.arange(len(lengths))[:, None] * self.max_len
        slot_mapping = np.where(place >= 0, rows + place, -1).astype(np.int32).ravel()
        k, v = (x.reshape(-1, *x.shape[2:]) for x in (k, v))
        slot_mapping = arrays.from_numpy(self.k_cache, slot_mapping)
        reshape_and_cache(k, v, self.k_cache, self.v_cache, slot_mapping)
        self._set_lengths(lengths)

    def _grown(self, num_new):
        """The lengths with the new tokens, for which there must be room."""
        return checks.check_room(self.lengths, num_new, self.max_len)

    def _place(self, t, end):
        """Where token t of a sequence goes in its row, when `end` tokens have been appended."""
        return t

    def _set_lengths(self, lengths):
        self.lengths = lengths
        self.seq_lens = arrays.from_numpy(self.k_cache, np.minimum(lengths, np.int32(self.max_len)))
