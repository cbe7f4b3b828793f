"""What the tests of kernels' machine code share."""

import re

import pytest

from fa_numba.analysis.machine_code import compile_kernel, disassembler_available

needs_compiler = pytest.mark.skipif(
    not disassembler_available(), reason="needs NVVM, NVRTC, ptxas and nvdisasm"
)


def stated_registers(kernel):
    """Registers in the budget of a kernel's docstring."""
    return int(re.search(r"budget +(\d+)", kernel.py_func.__doc__)[1])


def in_registers(kernel, args, *, cc=(9, 0, "a"), registers=None, spilled=0):
    """Machine code without float64: its docstring's registers or these, `spilled` bytes at most."""
    code = compile_kernel(kernel, args, cc=cc)
    assert code.registers <= (registers or stated_registers(kernel))
    assert code.spill_bytes <= spilled and code.local_bytes <= spilled
    assert code.float64_instructions == 0
    assert "C75" not in code.report  # ptxas serialises products, or ignores setmaxnreg
    return code
