"""x · w for the few rows of a decoding step, as one kernel that a CUDA graph can capture.

CuPy 14 refuses to call cuBLAS while a stream is captured. A decoding step has as many rows as there
are answers under way, and time goes by reading w: any kernel that reads it once is good.

    w      a warp reads COLUMNS adjacent numbers of a row; the warps of a block read other rows
    x      all lanes of a warp read the same number: ROWS of them for each number of w
    y      each thread has ROWS sums of its rows of w; the warps' sums are added in shared memory
"""

from numba import cuda, float32

from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div

ROWS, COLUMNS, WARPS = 8, 32, 16  # WARPS is at least ROWS: warp r adds row r up


@cuda.jit
def few_rows_product_kernel(x, w, y):
    """y = x · w; a thread block computes ROWS rows and COLUMNS columns.

    grid      (⌈columns / COLUMNS⌉, ⌈rows / ROWS⌉); threads (COLUMNS, WARPS)
    shared    parts (WARPS, ROWS, COLUMNS)
    private   acc (ROWS,), column, first
    HBM       w once for each ROWS rows, x once for each COLUMNS columns, mostly from L2; y once
    budget    64 registers, 16384 bytes shared
    """
    parts = cuda.shared.array((WARPS, ROWS, COLUMNS), float32)
    acc = cuda.local.array(ROWS, float32)
    lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
    column, first = cuda.blockIdx.x * COLUMNS + lane, cuda.blockIdx.y * ROWS
    last = x.shape[0] - 1
    for r in range(ROWS):
        acc[r] = float32(0.0)
    if column < w.shape[1]:
        for k in range(warp, x.shape[1], WARPS):
            factor = float32(w[k, column])
            for r in range(ROWS):
                # Past the last row it is read again: its sums are not stored.
                acc[r] += float32(x[min(first + r, last), k]) * factor
    for r in range(ROWS):
        parts[warp, r, lane] = acc[r]
    cuda.syncthreads()  # the sums of all warps are in parts
    if warp < ROWS and first + warp <= last and column < w.shape[1]:
        total = float32(0.0)
        for i in range(WARPS):
            total += parts[i, warp, lane]
        y[first + warp, column] = total


def few_rows_product(x, w):
    """The product x · w, with sums in float32.

    Parameters
    ----------
    x : array of shape (rows, n), float32 or float16
    w : array of shape (n, columns), dtype of x

    Returns
    -------
    array of shape (rows, columns), dtype of x
    """
    y = arrays.empty(x, (x.shape[0], w.shape[1]), x.dtype)
    grid = ceil_div(w.shape[1], COLUMNS), ceil_div(x.shape[0], ROWS)
    arrays.launch(few_rows_product_kernel, grid, (COLUMNS, WARPS), x, w, y)
    return y


class Factor:
    """A weight of the model: ``x @ factor`` is `few_rows_product`.

    Parameters
    ----------
    w : array of shape (n, columns)
    """

    __array_ufunc__ = None  # CuPy and NumPy then leave `@` to this class

    def __init__(self, w):
        self.w = w
        self._transposed = None

    def __rmatmul__(self, x):
        return few_rows_product(x, self.w)

    def __getitem__(self, index):
        return self.w[index]

    @property
    def T(self):
        """The transposed weight, copied once so that its rows are contiguous."""
        if self._transposed is None:
            xp = arrays.module_of(self.w)
            self._transposed = Factor(xp.ascontiguousarray(self.w.T))
        return self._transposed
