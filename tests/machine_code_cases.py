"""What the tests of kernels' machine code share."""

import re

import pytest

from fa_numba.analysis.machine_code import disassembler_available

needs_compiler = pytest.mark.skipif(
    not disassembler_available(), reason="needs NVVM, NVRTC, ptxas and nvdisasm"
)


def stated_registers(kernel):
    """Registers in the budget of a kernel's docstring."""
    return int(re.search(r"budget +(\d+)", kernel.py_func.__doc__)[1])
