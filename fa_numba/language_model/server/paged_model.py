"""The work of a step on arrays: the model over pages.

All rows of a step go through the model together, so that each weight is read once for all of them.
Only attention tells the sequences apart: one call for the branches with a single row, one for all
trees of guesses, and one for chunks of prompts that are nearly as long. All read the keys and
values of earlier tokens from the pages, where the step's own were written first. Pages that several
branches share are read once for all of them, where that pays (`kv_cache.cascade_plan`).

The numbers that a step needs (tokens, positions, slots, block tables, lengths) are copied to a GPU
as one array.
"""

import contextlib

import numpy as np

from fa_numba import checks
from fa_numba.checks.cache import SWIZZLED_ROWS
from fa_numba.dispatch import decoding
from fa_numba.dispatch.cascade import cascade_decode
from fa_numba.dispatch.mla_decode import mla_decode
from fa_numba.dispatch.topk_decode import topk_decode
from fa_numba.kv_cache.cascade_plan import cascade_plan, merge_pays
from fa_numba.language_model import model, products
from fa_numba.language_model.jobs import paged_attn_decode
from fa_numba.language_model.server import choose, draft_tree, page_moves
from fa_numba.language_model.server.decode_graphs import DecodeGraphs
from fa_numba.language_model.server.draft_tree import NO_GUESS
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div

# Read by plain decoding while a segment is launched and merged: 40 µs on an H200, where keys that
# are shared come from L2 at 6.8 TB/s. Where it is one launch more 15 µs: 32 requests on 512 keys
# take 5 µs longer than without, on 1024 keys 8 µs less (`python -m benchmarks.bench_cascade
# parts`). And while Python launches a step instead of its graph: 3 ms, an estimate.
LAUNCHES_BYTES, ONE_LAUNCH_BYTES, GRAPH_BYTES = 2**28, 3 * 2**25, 2**33
# A call for the rows of answers without guesses costs more than so many rows of padding: then these
# rows join the trees, which they are as long as.
JOINED_ROWS = 64
# A chunk of a prompt may be so many rows longer than one that shares its call (an estimate).
PADDED_ROWS = 32
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
        ``attend(q, k_cache, v_cache, block_table, seq_lens, causal=True)`` returns (out, lse); with
        pages of 8 bits it is also given k_scale and v_scale, and with guesses that branch, mask and
        mask_args in the place of causal.
    max_branches : int, default=64
        Answers of a step: CUDA graphs have room for them.
    kv_dtype : "auto" or "fp8", default="auto"
        Dtype of the pages: that of the weights, or e4m3 with a scale for each token and head.
    topk_pages : int, default=0
        Pages that a row of an answer attends to in each layer and K/V head, by `topk_decode`; 0:
        all. Not with pages of 8 bits or with guesses. Prompts attend to all pages.
    graphs : bool, default=True
        On a GPU, compute a step of few rows as one CUDA graph.

    Attributes
    ----------
    caches : list of arrays
        Those below, each once.
    k_caches, v_caches : arrays of shape (layers, num_pages, page_size, kv_heads, head_dim)
        Of a model with latents one array, of its rows.
    scales : pair of float32 arrays of shape (layers, num_pages, page_size, kv_heads)
        Of e4m3; else empty.
    bounds : pair of arrays of shape (layers, num_pages, kv_heads, head_dim)
        k_min and k_max of the pages, with topk_pages; else empty.
    graphs : DecodeGraphs or None
    """

    def __init__(
        self,
        weights,
        config,
        pool,
        host_pool=None,
        *,
        attend=paged_attn_decode,
        max_branches=64,
        kv_dtype="auto",
        topk_pages=0,
        graphs=True,
    ):
        self.weights, self.config = products.factors(weights), config
        self.pool, self.attend = pool, attend
        self.like = weights["embedding"]
        self.xp = arrays.module_of(self.like)
        on_gpu = self.xp is not np
        self._stream = contextlib.nullcontext()
        if on_gpu:  # the legacy default stream cannot be captured
            self._stream = self.xp.cuda.Stream(non_blocking=True)
            self.xp.cuda.Device().synchronize()  # the weights are there
        self.in_8_bits = checks.check_kv_dtype(kv_dtype) == "fp8"
        self.topk_pages = topk_pages
        if self.in_8_bits or topk_pages:
            where = "with fp8" if self.in_8_bits else "with topk_pages"
            checks.check_no_latents(config, f"in a server {where}")
        self.caches = self._caches(self.like, pool)
        number, *_ = config.cached
        self.k_caches, self.v_caches = self.caches[0], self.caches[number - 1]
        beside = self.caches[number:]
        self.scales, self.bounds = (beside, []) if self.in_8_bits else ([], beside)
        if host_pool is not None:
            self._host = self._caches(np.empty(0, self.like.dtype), host_pool)
        can = self.weights is not weights  # cuBLAS was found
        self.graphs = DecodeGraphs(self, max_branches) if graphs and can else None

    def _caches(self, like, pool):
        """Keys and values of all layers, and scales or bounds, for the pages of a pool.

        Of latents one array: the value is in it.
        """
        number, heads, columns = self.config.cached
        shape = self.config.layers, pool.num_pages, pool.page_size, heads
        dtype = np.dtype(np.uint8) if self.in_8_bits else like.dtype
        caches = [arrays.empty(like, (*shape, columns), dtype) for _ in range(number)]
        scales = [arrays.empty(like, shape) for _ in range(2)] if self.in_8_bits else []
        of_pages = *shape[:2], heads, columns
        bounds = [arrays.empty(like, of_pages, dtype) for _ in range(2 * bool(self.topk_pages))]
        return caches + scales + bounds

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in all layers: keys, values, scales, bounds."""
        return sum(x.nbytes for x in self.caches) // self.pool.num_pages

    def move(self, plan):
        """Apply a plan's changes of the caches that need no model."""
        if plan.swap_out.size:
            page_moves.swap(self.caches, self._host, *plan.swap_out)
        if plan.swap_in.size:
            page_moves.swap(self._host, self.caches, *plan.swap_in)
        page_moves.copy(self.caches, *plan.copies)

    def keep(self, src, dst):
        """Copy the keys and values of guesses that are kept to the slots where they belong."""
        with self._stream:
            src, dst = (arrays.from_numpy(self.like, np.array(x)) for x in (src, dst))
            page_moves.move_slots(self.caches, src, dst)

    def run(self, plan, temperatures, number):
        """Compute the rows of a plan.

        Parameters
        ----------
        plan : Plan
        temperatures : NumPy array of shape (choosing rows,), float32
            Of the rows of `plan.choosing()`.
        number : int
            Candidates for the next token.

        Returns
        -------
        probabilities, tokens : NumPy arrays of shape (choosing rows, number)
            The most likely next tokens, as from `most_likely`.
        """
        with self._stream:
            self.move(plan)
            cascade = self.cascade_of(plan)
            if self.graphs and not cascade and self.graphs.suits(plan):
                return self.graphs.run(plan, temperatures, number)
            return self._run(plan, temperatures, number, cascade)

    def cascade_of(self, plan):
        """A `CascadePlan` of the sequences with one row, or None if no shared pages pay."""
        on_gpu = self.xp is not np
        if self.attend is not decoding.paged_attn_decode or (on_gpu and self.in_8_bits):
            return None  # no kernel reads e4m3 for many rows at once
        if self.topk_pages or (on_gpu and self.config.latent_dim):
            return None  # each row has pages of its own; mla_decode takes no cascade
        single = np.count_nonzero(plan.sizes() == 1)
        if single < 2:
            return None
        config, itemsize, overheads = self.config, self.k_caches.dtype.itemsize, (0, 0)
        page_size = self.pool.page_size
        if on_gpu:
            # A segment of all sequences, where TMA reads its pages.
            by_tma = arrays.compute_capability(self.k_caches)[0] == checks.HOPPER[0]
            by_tma = by_tma and itemsize == 2 and page_size % SWIZZLED_ROWS == 0
            overheads = LAUNCHES_BYTES, ONE_LAUNCH_BYTES if by_tma else LAUNCHES_BYTES
            if self.graphs and self.graphs.suits(plan):
                overheads = [GRAPH_BYTES // config.layers] * 2
        sizes = config.heads, *config.cached[1:], itemsize
        of_some, of_all = (merge_pays(*sizes, overhead=overhead) for overhead in overheads)
        if not of_all(single, self.lengths_of(plan)[:single].max()):
            return None
        lengths, table = (x[:single] for x in self.sequences_of(plan))
        if len(np.unique(table[:, 0])) == single:
            return None

        def pays(sequences, keys):
            return (of_all if sequences == single else of_some)(sequences, keys)

        found = cascade_plan(table, lengths, page_size, pays=pays)
        return found.on_device_of(self.like) if found.segments else None

    def _run(self, plan, temperatures, number, cascade=None):
        sizes = plan.sizes()
        if not sizes.size:
            return None, None
        ends = np.cumsum(sizes)
        numbers = [*plan.rows(), *self.sequences_of(plan), plan.choosing()]
        numbers.append(temperatures.view(np.int32))
        tokens, positions, slots, lengths, table, last, temperatures = self.upload(numbers)
        single = np.count_nonzero(sizes == 1)  # they come first
        trees = [p.draft for p in plan.parts if p.draft and p.stop - p.start > 1]  # then these
        first, end = single, single + len(trees)
        few = self.few_rows(plan)
        if trees and not cascade and end * max(map(len, trees)) <= JOINED_ROWS:
            first = 0
        groups = [(0, few), (few, first), (first, end), *joined(sizes, end)]
        groups = [slice(*group) for group in groups if group[0] < group[1]]
        padding = {group.start: self._padding(sizes[group]) for group in groups}
        starts = numbers[3][first:end] - sizes[first:end]
        mask = self._mask_of([NO_GUESS] * (single - first) + trees, starts)

        def attend(layer, q):
            outs = []
            for rows in groups:
                batch = q[ends[rows.start] - sizes[rows.start] : ends[rows.stop - 1]]
                tables = table[rows], lengths[rows]
                if rows.stop <= few:
                    outs.append(self.attend_to_few(layer, batch[:, None], *tables))
                elif rows.stop <= first:
                    of_single = (cascade,) if cascade else tables
                    outs.append(self.attend_to_pages(layer, batch[:, None], *of_single))
                else:
                    options = mask if rows.stop <= end else {}
                    of_rows = batch, padding[rows.start], tables
                    outs.append(self._attend_to_parts(layer, *of_rows, options))
            return outs[0] if len(outs) == 1 else self.xp.concatenate(outs)

        x = self.layers(tokens, positions, slots, attend)
        if not last.size:
            return None, None
        logits = model.logits(self.weights, x[last])
        both = choose.most_likely(logits, temperatures.view(np.float32), number)
        return choose.on_host(both)

    def few_rows(self, plan) -> int:
        """Rows that attend to `topk_pages`: those of answers, which come first."""
        if not self.topk_pages:
            return 0
        single, decoding = np.count_nonzero(plan.sizes() == 1), len(plan.decoding)
        return decoding + sum(x.request.started for x in plan.parts[: single - decoding])

    def lengths_of(self, plan):
        """Lengths of a plan's sequences."""
        lengths = np.append(plan.decoding.rows["length"], [part.stop for part in plan.parts])
        return lengths.astype(np.int32)

    def sequences_of(self, plan):
        """Lengths of a plan's sequences, and their pages; −1 past the last one."""
        rows = plan.decoding.rows
        others = self.pool.block_table([part.branch.seq for part in plan.parts])
        lengths = self.lengths_of(plan)
        pages = ceil_div(int(lengths.max()), self.pool.page_size)
        columns = ceil_div(pages, TABLE_COLUMNS) * TABLE_COLUMNS
        table = np.full((len(lengths), columns), -1, np.int32)
        table[: len(rows), :pages] = rows["pages"][:, :pages]
        table[len(rows) :, : others.shape[1]] = others
        return lengths, table

    def layers(self, tokens, positions, slots, attend):
        """The model up to the logits; ``attend(layer, q)`` returns rows of attention's result."""
        weights, config = self.weights, self.config
        x = model.embed(weights, tokens)
        for layer in range(config.layers):
            q, k, v = model.qkv_of_cache(weights, config, layer, x, positions)
            caches = self.k_caches[layer], self.v_caches[layer]
            page_moves.write(k, v, *caches, slots, [scale[layer] for scale in self.scales])
            if self.topk_pages:
                page_moves.bound(k, *(x[layer] for x in self.bounds), slots, self.pool.page_size)
            out = model.heads_of_cache(weights, config, layer, attend(layer, q))
            x = model.after_attention(weights, config, layer, x, out)
        return x

    def _padding(self, sizes):
        """Rows that make parts as long as the longest: all of them, and where the parts' own are.

        They are before those of a part, at positions that exist or do not: whatever they see, they
        are not read. None where the parts have one length.
        """
        longest = sizes.max()
        if (sizes == longest).all():
            return None
        first = np.arange(1, len(sizes) + 1) * longest - sizes
        where = np.concatenate([np.arange(n) + at for at, n in zip(first, sizes, strict=True)])
        return len(sizes) * longest, arrays.from_numpy(self.like, where)

    def _mask_of(self, trees, starts):
        """The options for the mask of trees. A chain needs none: each node sees all before it."""
        if all(tree.is_chain for tree in trees):
            return {}
        args = draft_tree.mask_args_of(trees, starts)
        args = tuple(arrays.from_numpy(self.like, x) for x in args)
        return {"causal": False, "mask": draft_tree.sees, "mask_args": args}

    def _attend_to_parts(self, layer, q, padding, tables, options):
        """Attention of parts with several rows each, as rows."""
        if padding is None:
            parts = q.reshape(len(tables[1]), -1, *q.shape[1:])
            return self.attend_to_pages(layer, parts, *tables, **options)
        rows, where = padding
        padded = self.xp.zeros((rows, *q.shape[1:]), q.dtype)
        padded[where] = q
        return self._attend_to_parts(layer, padded, None, tables, options)[where]

    def attend_to_pages(self, layer, q, *tables, **options):
        """Attention of queries (batch, seqlen_q, heads, head_dim) to the pages, as rows.

        `tables` are a block table and lengths, or a `CascadePlan`.
        """
        caches = self.k_caches[layer], self.v_caches[layer]
        options = {"causal": True, **model.scale_of_cache(self.config), **options}
        if self.in_8_bits:
            options |= {"k_scale": self.scales[0][layer], "v_scale": self.scales[1][layer]}
        attend = self.attend if len(tables) == 2 else cascade_decode
        if self.config.latent_dim and self.xp is not np and "mask" not in options:
            attend = self._attend_to_latents
        out, _ = attend(q, *caches, *tables, **options)
        return out.reshape(-1, *out.shape[2:])

    def _attend_to_latents(self, q, rows, _, table, lengths, **options):
        """By a kernel that reads a row once, as key and as value."""
        options |= {"block_table": table, "latent_dim": self.config.latent_dim}
        return mla_decode(q, rows[:, :, 0], lengths, **options)

    def attend_to_few(self, layer, q, *tables):
        """Attention of one query of each sequence to its `topk_pages`, as rows."""
        arguments = [x[layer] for x in (self.k_caches, self.v_caches, *self.bounds)]
        out, _ = topk_decode(q, *arguments, *tables, self.topk_pages, attend=self.attend)
        return out[:, 0]

    def upload(self, numbers):
        """int32 arrays on the device of the weights, by one copy."""
        together = arrays.from_numpy(self.like, flat(numbers))
        views, start = [], 0
        for x in numbers:
            views.append(together[start : start + x.size].reshape(x.shape))
            start += x.size
        return views


def joined(sizes, begin):
    """The chunks of prompts from `begin` on, short ones first, as (start, stop) of each call."""
    while begin < len(sizes):
        longest = sizes[begin] + PADDED_ROWS
        stop = begin + int(np.searchsorted(sizes[begin:], longest, side="right"))
        yield begin, stop
        begin = stop


def flat(numbers):
    """One int32 array of the numbers of several."""
    return np.concatenate([x.ravel() for x in numbers]).astype(np.int32)
