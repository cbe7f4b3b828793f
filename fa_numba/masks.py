"""Masks to use, to read and to copy: each is one expression in b, h, m and n.

m is the position of the query, n the key, both from 0; b is the sequence, h the head of the query.

    out, lse = fa_numba.flash_attn(q, k, v, mask=masks.causal & masks.documents(doc))

A mask with parameters has them as arguments, not inside the function, so that other values
compile nothing anew. `tiles` says, without a call, which tiles of scores a mask hides.
"""

from __future__ import annotations

import dataclasses
import math
import numbers

import numpy as np
from numba import cuda

from fa_numba.checks.names import no_such_name
from fa_numba.expressions.mask_function import MaskFunction, written
from fa_numba.expressions.tiles import HIDDEN, MIXED, WHOLE, tile_classes
from fa_numba.expressions.trace import trace
from fa_numba.runtime import arrays

__all__ = [
    "MaskFunction", "Tiles", "block_causal", "block_diffusion", "block_lists", "causal", "dilated",
    "documents", "neighbours_2d", "neighbours_3d", "prefix_lm", "tiles", "tiles_of_pairs", "tree",
    "window", "window_and_first", "window_per_head",
]  # fmt: skip


THREADS = 128


def __getattr__(name):
    raise no_such_name(__name__, name, __all__)


@MaskFunction
def causal(b, h, m, n):
    """A query sees the keys up to its own position."""
    return n <= m


def window(width):
    """A query sees the last `width` keys, its own included."""
    _check_count(1, width=width)
    return MaskFunction(lambda b, h, m, n, width: (n <= m) & (m - n < width), width)


def window_and_first(width, first):
    """A window, and the first few keys, as StreamingLLM keeps them (arXiv:2309.17453)."""
    _check_count(1, width=width)
    _check_count(0, first=first)
    return MaskFunction(
        lambda b, h, m, n, width, first: (n <= m) & ((m - n < width) | (n < first)), width, first
    )


def window_per_head(widths):
    """Head h has a window of widths[h] keys; `widths` is an array of integers."""
    _check_integers(widths=widths)
    return MaskFunction(lambda b, h, m, n, widths: (n <= m) & (m - n < widths[h]), widths)


def dilated(step):
    """Causal, and each query sees only every step-th key, counted back from its own."""
    _check_count(1, step=step)
    return MaskFunction(lambda b, h, m, n, step: (n <= m) & ((m - n) % step == 0), step)


def prefix_lm(prefix):
    """The first `prefix` keys are seen by all queries, the others causally."""
    _check_count(0, prefix=prefix)
    return MaskFunction(lambda b, h, m, n, prefix: (n <= m) | (n < prefix), prefix)


def documents(document):
    """A query sees its own document; `document` is an array with the number of each position's.

    Where numbers ascend, all tiles without a common document are hidden.
    """
    _check_integers(document=document)
    return MaskFunction(lambda b, h, m, n, document: document[m] == document[n], document)


def block_causal(block):
    """A query sees its own block of `block` keys, to both sides, and those before."""
    _check_count(1, block=block)
    return MaskFunction(lambda b, h, m, n, block: n // block <= m // block, block)


def block_diffusion(block, length):
    """Training of block diffusion (arXiv:2503.09573): noisy tokens, then the clean ones.

    A sequence is `length` noisy tokens and the same number of clean ones. A noisy block sees itself
    and the clean blocks before it; a clean block sees the clean blocks up to itself.
    """
    _check_count(1, block=block, length=length)

    def sees(b, h, m, n, block, length):
        own, other = m % length // block, n % length // block
        return ((n < length) & (m < length) & (other == own)) | (
            (n >= length) & (other < own + (m >= length))
        )

    return MaskFunction(sees, block, length)


@cuda.jit
def chosen_blocks_kernel(lists, chosen):
    """Whether a list names a block. Numbers that are no block's are left out.

    grid      (rows,); threads (THREADS,)
    shared    none
    private   nothing
    HBM       lists once; chosen once, and once more for each number
    paper     Native sparse attention, section 3.3
    budget    32 registers, 0 bytes shared (THREADS=128)
    """
    row, tx, blocks = cuda.blockIdx.x, cuda.threadIdx.x, chosen.shape[1]
    for block in range(tx, blocks, THREADS):
        chosen[row, block] = False
    cuda.syncthreads()  # all are False before some become True
    for i in range(tx, lists.shape[1], THREADS):
        block = lists[row, i]
        if 0 <= block < blocks:
            chosen[row, block] = True


def block_lists(lists, seqlen_k, block_m=64, block_n=64, *, group_size=1):
    """Each block of queries sees the blocks of keys that its list names, as in NSA's selection.

    Where the tiles of a kernel lie in the blocks, none is mixed: it is hidden or whole. Of tiles
    that are larger, up to 16 blocks of queries are looked at one by one. Combine it with others:
    ``block_lists(...) & causal``. (Yuan et al. 2025, arXiv:2502.11089.)

    Parameters
    ----------
    lists : int array of shape (batch or 1, num_kv_heads or 1, blocks of queries, length)
        Numbers of blocks of keys, in any order; −1 for none. On a GPU they are not checked, because
        that would wait for the GPU; a number of no block is left out.
    seqlen_k : int
    block_m, block_n : int, default=64
        Query m is in block m // block_m, key n in block n // block_n.
    group_size : int, default=1
        Query heads that share a list: num_heads // num_kv_heads.
    """
    sizes = {"seqlen_k": seqlen_k, "block_m": block_m, "block_n": block_n}
    _check_count(1, **sizes, group_size=group_size)
    of_blocks, blocks = arrays.facts(lists), -(-seqlen_k // block_n)
    if of_blocks.library is None:
        of_blocks = arrays.facts(np.asarray(lists))
    if len(of_blocks.shape) != 4 or "int" not in of_blocks.dtype:
        raise TypeError(
            f"lists must be integers of shape (batch, num_kv_heads, blocks, length), got "
            f"{of_blocks.dtype} of shape {of_blocks.shape}"
        )
    x, rows = of_blocks.array, math.prod(of_blocks.shape[:3])
    if of_blocks.library == "numpy" and x.size and not -1 <= x.min() <= x.max() < blocks:
        raise ValueError(
            f"lists must have numbers from -1 to {blocks - 1}, the blocks of seqlen_k={seqlen_k} "
            f"keys, got {x.min()} to {x.max()}"
        )
    chosen = arrays.empty(x, (rows, blocks), np.bool_)
    of_rows = x.reshape(rows, of_blocks.shape[3])
    if of_blocks.library == "numpy":
        chosen[:] = False
        row, place = np.nonzero(of_rows >= 0)
        chosen[row, of_rows[row, place]] = True
    else:
        arrays.launch(chosen_blocks_kernel, (rows,), (THREADS,), of_rows, chosen)
    chosen = chosen.reshape(*of_blocks.shape[:3], blocks)
    each_b, each_h = (int(size > 1) for size in of_blocks.shape[:2])

    def sees(b, h, m, n, chosen):
        return chosen[b * each_b, h // group_size * each_h, m // block_m, n // block_n]

    return MaskFunction(sees, chosen)


def neighbours_2d(columns, radius):
    """Pixels of an image of `columns` columns, row by row: at most `radius` away in each axis."""
    _check_count(1, columns=columns)
    _check_count(0, radius=radius)
    return MaskFunction(
        lambda b, h, m, n, columns, radius: (
            (abs(m // columns - n // columns) <= radius)
            & (abs(m % columns - n % columns) <= radius)
        ),
        columns,
        radius,
    )


def neighbours_3d(rows, columns, radius):
    """Frames of `rows` · `columns` pixels: at most `radius` away in each of three axes."""
    _check_count(1, rows=rows, columns=columns)
    near = neighbours_2d(columns, radius).function

    def sees(b, h, m, n, frame, columns, radius):
        in_time = abs(m // frame - n // frame) <= radius
        return in_time & near(b, h, m % frame, n % frame, columns, radius)

    return MaskFunction(sees, rows * columns, columns, radius)


def tree(parents, prefix=0):
    """Nodes of a tree behind `prefix` keys: each sees the prefix, its ancestors and itself.

    Parameters
    ----------
    parents : int array of shape (num_nodes,)
        The parent of each node, an earlier one; −1 for a root.
    prefix : int, default=0
        Node t is the query, and the key, at position prefix + t.
    """
    _check_count(0, prefix=prefix)
    of_nodes = np.asarray(arrays.to_numpy(parents) if arrays.library_of(parents) else parents)
    if of_nodes.ndim != 1 or of_nodes.dtype.kind not in "iu":
        raise TypeError(
            f"parents must be integers along one axis, got {of_nodes.dtype} of shape "
            f"{of_nodes.shape}"
        )
    sees = np.eye(len(of_nodes), dtype=bool)
    for node, parent in enumerate(of_nodes.tolist()):
        if not -1 <= parent < node:
            raise ValueError(
                f"parents[{node}] must be from -1 to {node - 1}, an earlier node, got {parent}"
            )
        if parent >= 0:
            sees[node] |= sees[parent]
    if arrays.library_of(parents):
        sees = arrays.from_numpy(parents, sees)
    return MaskFunction(
        lambda b, h, m, n, ancestors, prefix: (
            (n <= m) & ((n < prefix) | ancestors[max(m - prefix, 0), max(n - prefix, 0)])
        ),
        sees,
        prefix,
    )


def _check_integers(**named):
    for name, x in named.items():
        of = arrays.facts(x)
        if of.library is None or len(of.shape) != 1 or "int" not in of.dtype:
            got = type(x).__name__ if of.library is None else f"{of.dtype} of shape {of.shape}"
            raise TypeError(f"{name} must be an array of integers along one axis, got {got}")


def _check_count(least, **named):
    for name, x in named.items():
        if not isinstance(x, numbers.Integral) or isinstance(x, bool):
            raise TypeError(f"{name} must be an int, got {type(x).__name__}")
        if not least <= x < 2**31:
            raise ValueError(f"{name} must be from {least} to 2**31 - 1, got {x}")


# --- tiles


@dataclasses.dataclass(frozen=True, eq=False)
class Tiles:
    """The tiles of a mask.

    Attributes
    ----------
    classes : int8 array of shape (batch or 1, num_heads or 1, m tiles, n tiles)
        0 hidden, 1 mixed, 2 whole. An axis has one element if the mask has no b, or no h.
    seqlen_q, seqlen_k, block_m, block_n : int
    pairs : bool array of shape (batch or 1, num_heads or 1, seqlen_q, seqlen_k), or None
        Which key each query sees, for a figure.
    """

    classes: np.ndarray
    seqlen_q: int
    seqlen_k: int
    block_m: int
    block_n: int
    pairs: np.ndarray | None = None

    hidden = property(lambda self: int((self.classes == HIDDEN).sum()))
    mixed = property(lambda self: int((self.classes == MIXED).sum()))
    whole = property(lambda self: int((self.classes == WHOLE).sum()))

    @property
    def _sizes(self):
        """Rows of each m tile and columns of each n tile; the last ones may be smaller."""
        m = np.diff(np.r_[0 : self.seqlen_q : self.block_m, self.seqlen_q])
        return m, np.diff(np.r_[0 : self.seqlen_k : self.block_n, self.seqlen_k])

    @property
    def flops_share(self) -> float:
        """The scores of all tiles that are not hidden, mixed ones whole, as a share of all."""
        rows, columns = self._sizes
        computed = ((self.classes != HIDDEN) * rows[:, None] * columns).sum()
        return float(computed / (self.classes[..., 0, 0].size * self.seqlen_q * self.seqlen_k))

    @property
    def key_rows(self) -> int:
        """Rows of K that are loaded: a tile's once for each m tile that does not hide it."""
        return int(((self.classes != HIDDEN) * self._sizes[1]).sum())

    def hbm_bytes(self, head_dim, dtype_bytes=2) -> int:
        """Bytes of q, k, v, out and lse that FlashAttention-2 moves for the heads in `classes`."""
        rows = self.classes[..., 0, 0].size * self.seqlen_q
        return dtype_bytes * head_dim * 2 * (rows + self.key_rows) + 4 * rows

    def __str__(self):
        return (
            f"{self.seqlen_q} queries, {self.seqlen_k} keys, tiles of {self.block_m}×"
            f"{self.block_n}: {self.whole} whole, {self.mixed} mixed, {self.hidden} hidden, "
            f"{self.flops_share:.0%} of the FLOPs"
        )


def tiles(
    mask,
    seqlen_q,
    seqlen_k=None,
    block_m=128,
    block_n=128,
    *,
    mask_args=(),
    batch=1,
    num_heads=1,
    pairs=False,
):
    """The classes of the tiles of a mask, by intervals: no pair of a query and a key is looked at.

    Parameters
    ----------
    mask : callable
        Of this module, or a function of (b, h, m, n, \\*mask_args).
    seqlen_q : int
    seqlen_k : int, default=seqlen_q
        The last query is at the position of the last key.
    block_m, block_n : int, default=128
        Rows and columns of a tile.
    mask_args : tuple, default=()
    batch, num_heads : int, default=1
    pairs : bool, default=False
        Whether each pair is looked at, too, for the figure of a few hundred.

    Returns
    -------
    Tiles
        `fa_numba.figures.mask_tiles.mask_tiles` draws it.
    """
    seqlen_k = seqlen_q if seqlen_k is None else seqlen_k
    sizes = {"seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "block_m": block_m, "block_n": block_n}
    _check_count(1, **sizes, batch=batch, num_heads=num_heads)
    mask, mask_args = written(mask, mask_args)
    node = trace(mask, "mask", "b h m n", mask_args)
    args = [arrays.to_numpy(x) if arrays.library_of(x) else x for x in mask_args]
    classes = tile_classes(node, (seqlen_q, seqlen_k), block_m, block_n, args, batch, num_heads)
    seen = None
    if pairs:
        b, h = map(np.arange, classes.shape[:2])
        m = np.arange(seqlen_q) + seqlen_k - seqlen_q
        at = np.ix_(b, h, m, np.arange(seqlen_k))
        seen = np.vectorize(lambda *at: mask(*at, *args), [bool])(*at)
    return Tiles(classes, *sizes.values(), seen)


def tiles_of_pairs(pairs, block_m, block_n, visited=None):
    """The `Tiles` of a mask that is written out, each pair looked at.

    Parameters
    ----------
    pairs : bool array of shape (seqlen_q, seqlen_k)
    block_m, block_n : int
    visited : bool array of shape (m tiles, n tiles), default=None
        Tiles that a kernel has computed, as recorded; the others are shown as hidden.

    Returns
    -------
    Tiles
        A last tile of keys that is not full is mixed, because a kernel tests which keys exist.
    """
    seqlen_q, seqlen_k = pairs.shape
    shape = -(-seqlen_q // block_m), -(-seqlen_k // block_n)
    classes = np.zeros(shape, np.int8)
    for i, j in np.ndindex(shape):
        tile = pairs[i * block_m : (i + 1) * block_m, j * block_n : (j + 1) * block_n]
        if tile.any() if visited is None else visited[i, j]:
            classes[i, j] = WHOLE if tile.all() and tile.shape[1] == block_n else MIXED
    return Tiles(classes[None, None], seqlen_q, seqlen_k, block_m, block_n, pairs[None, None])
