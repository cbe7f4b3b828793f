"""What IPython runs when a kernel starts in a browser; docs/site/lite.py names this file to it."""

import numba_cuda_simulator  # noqa: F401, I001  # gives the names of Numba, which lessons import

import matplotlib.pyplot  # noqa: F401  # takes seconds: better while a learner reads
import fa_numba.workbook.grader  # noqa: F401
