"""The work of a step on arrays: the model over pages.

All rows of a step go through the model together, so that each weight is read once for all of them.
Only attention tells the sequences apart: one call for the branches with a single row, and one for
each chunk of a prompt. Both read the keys and values of earlier tokens from the pages, where the
step's own were written first.

The numbers that a step needs (tokens, positions, slots, block tables, lengths) are copied to a GPU
as one array.
"""

import numpy as np

from fa_numba.dispatch.decoding import paged_attn_decode
from fa_numba.language_model import model
from fa_numba.language_model.server import page_moves
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div

TABLE_COLUMNS = 8  # block tables have a multiple of it: fewer different shapes, and so replays


class PagedModel:
    """A model and the caches of all its layers.

    Parameters
    ----------
    weights : dict of str to array
        As from `init_weights`. NumPy or CuPy arrays; the caches are like them.
    config : Config
    pool : PagePool
    host_pool : PagePool, default=None
    attend : callable, default=fa_numba.paged_attn_decode
        ``attend(q, k_cache, v_cache, block_table, seq_lens, causal=True)`` returns (out, lse).

    Attributes
    ----------
    k_caches, v_caches : arrays of shape (layers, num_pages, page_size, kv_heads, head_dim)
    """

    def __init__(self, weights, config, pool, host_pool=None, *, attend=paged_attn_decode):
        self.weights, self.config, self.pool, self.attend = weights, config, pool, attend
        self.like = weights["embedding"]
        shape = pool.page_size, config.kv_heads, config.head_dim
        shape = config.layers, pool.num_pages, *shape
        self.k_caches, self.v_caches = (
            arrays.empty(self.like, shape, self.like.dtype) for _ in range(2)
        )
        if host_pool is not None:
            shape = config.layers, host_pool.num_pages, *shape[2:]
            self.k_host, self.v_host = (np.empty(shape, self.like.dtype) for _ in range(2))

    @property
    def vocabulary(self) -> int:
        """Number of different tokens."""
        return self.config.vocabulary

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in all layers, keys and values."""
        return 2 * self.k_caches.nbytes // self.pool.num_pages

    def move(self, plan):
        """Apply a plan's changes of the caches that need no model."""
        device = self.k_caches, self.v_caches
        if plan.swap_out.size:
            page_moves.swap(*device, self.k_host, self.v_host, *plan.swap_out)
        if plan.swap_in.size:
            page_moves.swap(self.k_host, self.v_host, *device, *plan.swap_in)
        page_moves.copy(*device, *plan.copies)

    def run(self, plan):
        """Compute the rows of a plan.

        Returns
        -------
        array of shape (parts, vocabulary)
            Logits of the last row of each part that is `chosen`.
        """
        self.move(plan)
        parts = plan.parts
        if not parts:
            return None
        sizes = [part.stop - part.start for part in parts]
        ends = np.cumsum(sizes)
        table = self.pool.block_table([part.branch.seq for part in parts])
        columns = ceil_div(table.shape[1], TABLE_COLUMNS) * TABLE_COLUMNS
        table = np.pad(table, ((0, 0), (0, columns - table.shape[1])), constant_values=-1)
        tokens, positions, slots, last, table, lengths = self._upload(
            np.concatenate([part.branch.tokens[part.start : part.stop] for part in parts]),
            np.concatenate([np.arange(part.start, part.stop) for part in parts]),
            np.concatenate([part.slots for part in parts]),
            np.array([end - 1 for end, part in zip(ends, parts, strict=True) if part.chosen], int),
            table,
            np.array([part.stop for part in parts]),
        )
        single = sizes.count(1)  # they come first
        calls = [(0, single, slice(0, single))] if single else []
        calls += [(end - n, end, slice(i, i + 1)) for i, (n, end) in enumerate(zip(sizes, ends, strict=True)) if n > 1]  # fmt: skip  # noqa: E501

        def attend(layer, q):
            outs = []
            for start, stop, rows in calls:
                batch = q[start:stop].reshape(rows.stop - rows.start, -1, *q.shape[1:])
                outs.append(self.attend_to_pages(layer, batch, table[rows], lengths[rows]))
            return outs[0] if len(outs) == 1 else self._concatenate(outs)

        x = self.layers(tokens, positions, slots, attend)
        return model.logits(self.weights, x[last]) if last.size else None

    def layers(self, tokens, positions, slots, attend):
        """The model up to the logits; ``attend(layer, q)`` returns rows of attention's result."""
        weights, config = self.weights, self.config
        x = model.embed(weights, tokens)
        for layer in range(config.layers):
            q, k, v = model.qkv(weights, config, layer, x, positions)
            page_moves.write(k, v, self.k_caches[layer], self.v_caches[layer], slots)
            x = model.after_attention(weights, config, layer, x, attend(layer, q))
        return x

    def attend_to_pages(self, layer, q, table, lengths):
        """Attention of the last tokens of sequences, (batch, seqlen_q, heads, head_dim), as rows."""
        caches = self.k_caches[layer], self.v_caches[layer]
        out, _ = self.attend(q, *caches, table, lengths, causal=True)
        return out.reshape(-1, *q.shape[2:])

    def _concatenate(self, outs):
        return arrays.module_of(outs[0]).concatenate(outs)

    def _upload(self, *numbers):
        """int32 arrays on the device of the weights, by one copy."""
        together = np.concatenate([x.ravel() for x in numbers]).astype(np.int32)
        together = arrays.from_numpy(self.like, together)
        views, start = [], 0
        for x in numbers:
            views.append(together[start : start + x.size].reshape(x.shape))
            start += x.size
        return views
