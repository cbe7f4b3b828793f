"""What only a compiler can use: whoever imports it is told so."""

from numba_cuda_simulator.without_numba.missing import needs_numba

raise needs_numba("inline PTX")
