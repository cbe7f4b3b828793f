"""What IPython runs when a kernel starts in a browser; docs/site/lite.py names this file to it."""

import numba_cuda_simulator  # noqa: F401  # gives the names of Numba, which lessons import first

import fa_numba.figures  # noqa: F401  # takes seconds: better now than in the first cell
import fa_numba.workbook  # noqa: F401
