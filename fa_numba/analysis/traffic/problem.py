"""`Problem`: the sizes and options of one attention call, in place of its arrays."""

import math
import operator
from dataclasses import KW_ONLY, dataclass, fields, replace

from fa_numba.tiling.block_sizes import ceil_div, kernel_block_sizes


@dataclass(frozen=True)
class Problem:
    """The sizes and options of one attention call, by the names that the kernels use.

    Attributes
    ----------
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim : int
    causal : bool, default=False
    window_size : (left, right), default=(-1, -1)
    alibi : bool, default=False
        Whether alibi_slopes are given. Every thread of a thread block reads its head's slope.
    block_m, block_n : int, default=the sizes that the kernel chooses

    Raises
    ------
    TypeError, ValueError
        Naming the attribute, what it must be, and what it got.
    """

    batch: int
    seqlen_q: int
    seqlen_k: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    _: KW_ONLY
    causal: bool = False
    window_size: tuple = (-1, -1)
    alibi: bool = False
    block_m: int | None = None
    block_n: int | None = None

    def __post_init__(self):
        for name in ("batch", "seqlen_q", "seqlen_k"):
            self._read_size(name, 0)
        for name in ("num_heads", "num_kv_heads", "head_dim"):
            self._read_size(name, 1)
        for name in ("block_m", "block_n"):
            if getattr(self, name) is not None:
                self._read_size(name, 1)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads, got {self.num_heads} and "
                f"{self.num_kv_heads}"
            )
        try:
            left, right = (operator.index(side) for side in self.window_size)
        except (TypeError, ValueError):
            raise TypeError(
                f"window_size must be two ints (left, right), got {self.window_size!r}"
            ) from None
        object.__setattr__(self, "window_size", (left, right))

    def _read_size(self, name, least):
        size = getattr(self, name)
        try:
            size = operator.index(size)
        except TypeError:
            raise TypeError(f"{name} must be an int, got {size!r}") from None
        if size < least:
            raise ValueError(f"{name} must be at least {least}, got {size}")
        object.__setattr__(self, name, size)  # a NumPy int would overflow in products

    @property
    def heads(self):
        """Query heads of all sequences."""
        return self.batch * self.num_heads

    @property
    def rows(self):
        """Queries of all heads."""
        return self.heads * self.seqlen_q

    @property
    def kv_rows(self):
        """Keys of all K/V heads."""
        return self.batch * self.num_kv_heads * self.seqlen_k

    @property
    def group_size(self):
        """Query heads that share a K/V head."""
        return self.num_heads // self.num_kv_heads

    @property
    def num_m_tiles(self):
        """Tiles of queries of a head."""
        return ceil_div(self.seqlen_q, self.block_m)

    @property
    def num_n_tiles(self):
        """Tiles of keys of a head."""
        return ceil_div(self.seqlen_k, self.block_n)

    @property
    def sides(self):
        """Keys that a query sees before its own position and after it; −1 for all."""
        left, right = self.window_size
        return left, 0 if self.causal else right

    def tiled_for(self, kernel_name, num_rows=math.inf):
        """The same problem with the block sizes that a kernel chooses where none are given."""
        block_m, block_n = kernel_block_sizes(kernel_name, self.head_dim, num_rows=num_rows)
        return replace(self, block_m=self.block_m or block_m, block_n=self.block_n or block_n)

    def refuse(self, function, *names):
        """Raise ValueError if an option is set that a function does not have."""
        defaults = {field.name: field.default for field in fields(self)}
        for name in names:
            value = getattr(self, name)
            if value != defaults[name]:
                raise ValueError(
                    f"{name} must be {defaults[name]!r} for {function}, which does not have it, "
                    f"got {value!r}"
                )
