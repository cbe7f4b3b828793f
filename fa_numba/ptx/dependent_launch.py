"""Programmatic dependent launch: a kernel begins while the one before it ends (sm_90).

Usually a kernel begins when the one before it in the stream has ended and its writes are visible:
some microseconds in which no SM works. A kernel whose `begins_early` is True
(`runtime.launching`) begins once each thread block of the one before has called
`let_next_kernel_begin` or has ended, where an SM has room for it.

    kernel 1   let_next_kernel_begin   reads, computes, writes
    kernel 2   begins                  reads what is older      wait_for_kernel_before   the rest

Kernel 2 waits in all of its thread blocks, before it reads what kernel 1 writes and before it
writes anything. Then kernel 3, that begins when kernel 2 has ended, finds the writes of both. What
is older than kernel 1 kernel 2 may read before it waits, if kernel 1 began in the usual way.

PTX ISA: "griddepcontrol". CUDA C++ programming guide: "Programmatic Dependent Launch".
"""

from numba.cuda.extending import intrinsic

from fa_numba.ptx.statement import statement


@intrinsic
def let_next_kernel_begin(typingctx):
    """Let the next kernel in the stream begin, once all thread blocks have said so or ended."""
    return statement("griddepcontrol.launch_dependents;")


@intrinsic
def wait_for_kernel_before(typingctx):
    """Wait until the kernel before has ended, and its writes are visible; else return at once."""
    return statement("griddepcontrol.wait;")
