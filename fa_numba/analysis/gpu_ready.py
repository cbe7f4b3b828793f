"""Checks that a kernel compiles for a GPU, and computes in float32."""

from fa_numba.analysis.compile_errors import explain_compile_error
from fa_numba.analysis.lint import float64_sources
from fa_numba.analysis.machine_code import (
    TARGETS,
    assemble,
    compile_ptx_for,
    compiler_available,
    signature_of,
)


def gpu_ready(kernel, args, *, to_machine_code=False):
    """Raise if a kernel that runs on the CPU engine would not compile for a GPU.

    Without a compiler it compiles nothing: a machine that has one makes the check.

    Parameters
    ----------
    kernel : function decorated with ``@cuda.jit``
    args : sequence
        Arguments of a launch.
    to_machine_code : bool, default=False
        Also compile to machine code for each of `TARGETS`: without spills or local memory.

    Returns
    -------
    bool
        Whether there is a compiler here.

    Raises
    ------
    NotForGpuError
        Numba cannot compile the kernel; the message says why in plain words, and where.
    AssertionError
        The kernel compiles, but computes in float64 although no argument is float64, or its
        machine code spills.
    """
    if not compiler_available():
        return False
    wants_float64 = any("float64" in str(t) for t in signature_of(args))
    targets = TARGETS if to_machine_code else ((8, 0),)
    try:
        ptxes = compile_ptx_for(kernel, args, targets)
    except Exception as error:  # Numba's errors have many classes
        raise explain_compile_error(error, kernel) from error
    lines = (line for ptx in ptxes for line in ptx.splitlines())
    if not wants_float64 and any(".f64" in line and ".reg" not in line for line in lines):
        where = "".join(
            f"\n    line {f.line}:  {f.source}\n        {f.mend}"
            for f in float64_sources(kernel, args)
        )
        raise AssertionError(
            f"{kernel.py_func.__name__} computes in float64, which on a GPU is up to 64 times "
            f"slower than float32:{where}"
        )
    for ptx, cc in zip(ptxes, targets, strict=True) if to_machine_code else ():
        code = assemble(kernel, ptx, cc)
        assert not code.spill_bytes + code.local_bytes, (
            f"{kernel.py_func.__name__} for {cc} spills {code.spill_bytes} bytes of registers and "
            f"keeps {code.local_bytes} bytes of arrays in local memory, which lives in HBM"
        )
    return True
