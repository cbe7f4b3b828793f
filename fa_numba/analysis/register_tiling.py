"""How the kernels with register tiles cut their work: threads, registers, shared memory.

A thread holds a few rows of several columns of each product, and a thread block as many threads as
its tiles have need of. What fits is a matter of 255 registers per thread, and of the shared memory
that a GPU gives to a thread block that asks for more than 48 KiB: 64 KiB on a T4, 163 on an A100,
99 on the GPUs of that time for graphics, 227 on an H100.
"""

from typing import NamedTuple

from fa_numba.analysis.block_sizes import ceil_div

SIZES = (16, 32, 64, 128)  # of block_m and block_n
BACKWARD_SIZES = (16, 32, 64)  # of both


class ForwardTiling(NamedTuple):
    """How a thread block of `flash_attn_simt` divides its tiles.

    Attributes
    ----------
    width : int
        Columns of the tiles of Q, K, V: head_dim rounded up.
    rows : int
        Of S and of out, that a thread holds.
    threads_x, threads_y : int
        Threads beside each other, and below each other.
    k_start, p_start, v_start : int
        Where the tiles of K, P and V begin in shared memory, in floats. That of Q begins at 0; that
        of P takes K's place.
    shared_bytes : int
    """

    width: int
    rows: int
    threads_x: int
    threads_y: int
    k_start: int
    p_start: int
    v_start: int
    shared_bytes: int

    @property
    def threads(self):
        """Of a thread block."""
        return self.threads_x * self.threads_y


def columns(head_dim):
    """Threads beside each other, and head_dim rounded up: each of them owns fours of columns."""
    threads_x = 8 if head_dim <= 96 else 16
    return threads_x, ceil_div(head_dim, 4 * threads_x) * 4 * threads_x


def forward_tiling(head_dim, block_m, block_n):
    """The `ForwardTiling` of tiles of block_m queries and block_n keys."""
    threads_x, width = columns(head_dim)
    # out, and what one tile adds to it, are 2 · rows · columns registers: 128 are affordable.
    rows = 8 if width // threads_x <= 8 else 4
    k_start = block_m * (width + 4)
    k_size, p_size = block_n * (width + 4), block_m * (block_n + threads_x)
    p_start = k_start
    v_start = k_start + max(k_size, p_size)
    shared_bytes = 4 * (v_start + block_n * width)
    threads_y = block_m // rows
    return ForwardTiling(width, rows, threads_x, threads_y, k_start, p_start, v_start, shared_bytes)


def forward_fits(head_dim, block_m, block_n, shared_limit):
    """True where a thread block with these tiles has registers and shared memory enough."""
    tiling = forward_tiling(head_dim, block_m, block_n)
    # Whole warps, and two of 128 threads or one of 256 with 255 registers fit into an SM; a thread
    # has at most 8 columns of S.
    return (
        32 <= tiling.threads <= 256
        and tiling.threads_x <= block_n <= 8 * tiling.threads_x
        and tiling.shared_bytes <= shared_limit
    )


def forward_block_sizes(head_dim, shared_limit):
    """(block_m, block_n) of `flash_attn_simt` where a thread block may have so many bytes.

    The most scores that an SM computes at once, in one thread block or in two; of as many those of
    the most threads, one of which computes while another waits, then those of two thread blocks,
    then the tiles with more queries, for which K and V are loaded less often.
    """

    def merit(sizes):
        tiling = forward_tiling(head_dim, *sizes)
        # CUDA keeps 1 KiB of each thread block; beside 255 registers there is room for 256 threads.
        fitting = (shared_limit + 1024) // (tiling.shared_bytes + 1024)
        blocks = min(fitting, 256 // tiling.threads, 2)
        return blocks * sizes[0] * sizes[1], blocks * tiling.threads, blocks, sizes[0]

    fitting = [
        (block_m, block_n)
        for block_m in SIZES
        for block_n in SIZES
        if forward_fits(head_dim, block_m, block_n, shared_limit)
    ]
    return max(fitting, key=merit)


class Chunks(NamedTuple):
    """How a thread block of a kernel that copies tiles in chunks divides its work.

    Attributes
    ----------
    width : int
        head_dim rounded up.
    block_m, block_n : int
        Queries and keys of a tile.
    threads_x, threads_y : int
        Threads beside each other, and below each other.
    chunk, row_chunk : int
        Columns or rows of a tile that are copied together.
    stages : int
        Chunks for which there is room: one is computed with, the others are on their way.
    """

    width: int
    block_m: int
    block_n: int
    threads_x: int
    threads_y: int
    chunk: int
    row_chunk: int
    stages: int

    threads = ForwardTiling.threads


class ForwardChunks(Chunks):
    """The `Chunks` of `flash_attn_simt_chunks`: columns of K, or rows of V."""

    @property
    def q_row(self):
        """Length of a row of Qᵀ in shared memory: longer than it need be, no bank conflicts."""
        return self.block_m + 4

    @property
    def p_row(self):
        """The same of Pᵀ."""
        return self.block_m + 8

    @property
    def p_start(self):
        """Where Pᵀ begins in shared memory, in floats; Qᵀ begins at 0."""
        return self.width * self.q_row

    @property
    def ring_start(self):
        """Where the chunks begin."""
        return self.p_start + self.block_n * self.p_row

    @property
    def k_row(self):
        """Length of a row of a chunk of K: no bank conflicts."""
        return self.chunk + 4

    @property
    def stage(self):
        """Floats of a chunk."""
        return max(self.block_n * self.k_row, self.row_chunk * self.width)

    @property
    def shared_bytes(self):
        """With a row more than there is: the last step loads what no step needs."""
        return 4 * (self.ring_start + self.stages * self.stage + self.width)


FORWARD_CHUNKS = {  # width: what was measured
    64: ForwardChunks(64, 128, 64, 8, 16, 64, 64, 2),
    128: ForwardChunks(128, 128, 128, 16, 16, 64, 64, 2),
}


def forward_chunks(head_dim, shared_limit=None):
    """The `ForwardChunks` of a head_dim; None where it was not tried, or a GPU has no room."""
    return _fitting(FORWARD_CHUNKS.get(columns(head_dim)[1]), shared_limit)


def turns_keys(head_dim):
    """True where `flash_attn_simt_chunks` takes K turned, which a kernel of its own does before.

    Measured, for 512 to 8192 keys: at 128 columns that is quicker, for its product is by more than
    what turning takes; at 64 columns it is not.
    """
    return columns(head_dim)[1] == 128


def _fitting(tiling, shared_limit):
    fits = tiling and (shared_limit is None or tiling.shared_bytes <= shared_limit)
    return tiling if fits else None


class BackwardTiling(NamedTuple):
    """How a thread block of `flash_attn_bwd_simt` divides its tiles, which are square.

    Attributes
    ----------
    width : int
        Columns of the tiles of Q, K, V, dout: head_dim rounded up.
    threads_x, threads_y : int
        Threads beside each other, and below each other; a thread holds four rows.
    row, score_row : int
        Length of a row of those tiles, and of the tiles of P and dS, in shared memory.
    shared_bytes : int
    """

    width: int
    threads_x: int
    threads_y: int
    row: int
    score_row: int
    shared_bytes: int

    @property
    def threads(self):
        """Of a thread block."""
        return self.threads_x * self.threads_y


def backward_tiling(head_dim, tile_size):
    """The `BackwardTiling` of tiles of so many queries and as many keys."""
    threads_x, width = columns(head_dim)
    row, score_row = width + 4, tile_size + threads_x  # longer than need be: no bank conflicts
    shared_bytes = 4 * tile_size * (4 * row + 2 * score_row + 2)  # and lse, delta
    return BackwardTiling(width, threads_x, tile_size // 4, row, score_row, shared_bytes)


def backward_tile_size(head_dim, shared_limit):
    """Size of the tiles of `flash_attn_bwd_simt`, the largest that fits; None where none does."""
    fitting = [
        size
        for size in BACKWARD_SIZES
        if backward_tiling(head_dim, size).shared_bytes <= shared_limit
    ]
    return max(fitting, default=None)


class BackwardChunks(Chunks):
    """The `Chunks` of `flash_attn_bwd_simt_chunks`.

    Columns of K and Q or of V and dout, or rows of one of these.
    """

    @property
    def ds_row(self):
        """Length of a row of dSᵀ in shared memory: longer than it need be, no bank conflicts."""
        return self.block_m + 4

    @property
    def p_row(self):
        """The same of P, and of dS in its place."""
        return self.block_n + 8

    @property
    def ds_start(self):
        """Where dSᵀ begins in shared memory, in floats; P begins at 0."""
        return self.block_m * self.p_row

    @property
    def lse_start(self):
        """Where lse begins, and after it delta."""
        return self.ds_start + self.block_n * self.ds_row

    @property
    def ring_start(self):
        """Where the chunks begin."""
        return self.lse_start + 2 * self.block_m

    @property
    def stage(self):
        """Floats of a chunk."""
        columns = self.chunk * self.block_n + self.block_m * self.q_row
        return max(columns, self.row_chunk * self.width)

    @property
    def q_row(self):
        """Length of a row of a chunk of Q or dout: no bank conflicts."""
        return self.chunk + 4

    @property
    def shared_bytes(self):
        """With a row more than there is: the last step loads what no step needs."""
        return 4 * (self.ring_start + self.stages * self.stage + self.width)


BACKWARD_CHUNKS = {  # width: what was measured
    64: BackwardChunks(64, 64, 128, 8, 16, 16, 32, 2),
    128: BackwardChunks(128, 128, 128, 16, 16, 32, 64, 2),
}


def backward_chunks(head_dim, shared_limit=None):
    """The `BackwardChunks` of a head_dim; None where it was not tried, or a GPU has no room."""
    return _fitting(BACKWARD_CHUNKS.get(columns(head_dim)[1]), shared_limit)
