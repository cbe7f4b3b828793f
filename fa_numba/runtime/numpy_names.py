"""Restores a name that NumPy 2.5 dropped and numba-cuda 0.30 needs.

numba-cuda 0.30 overloads `numpy.row_stack`, another name of `numpy.vstack`, when it compiles its
first kernel. Without the name, every compilation fails. numba-cuda is in maintenance mode and will
not follow, so this module restores the name if it is missing.

`fa_numba/__init__.py` imports this module before anything else, and Python runs that file first
for every way into the package. `from numba import cuda` may come earlier; a kernel may not be
compiled earlier.
"""

import numpy as np

if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack
