"""The CPU engine under the name that the lessons use: the package `numba_cuda_simulator`.

Both names are the same modules, so that an error caught by one name is an error of the other.
"""

import sys

import numba_cuda_simulator

ENGINE = numba_cuda_simulator.__name__

for _name, _module in list(sys.modules.items()):
    if _name == ENGINE or _name.startswith(f"{ENGINE}."):
        sys.modules[__name__ + _name.removeprefix(ENGINE)] = _module
