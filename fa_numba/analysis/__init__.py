"""Predictions about a kernel, made without running it; and its machine code.

By formula

- traffic: elements that a kernel moves to and from HBM
- intensity: FLOP per byte of layers and of attention
- roofline: the least time for so many FLOPs and bytes
- occupancy: thread blocks that fit on an SM
- waves: when each thread block of a grid runs
- overlap: when products and softmax run, in a model of an SM
- ring_pipeline: a producer, its consumers and their mbarriers, step by step
- kv_cache_size: bytes of a KV cache
- fp8: attention in 8-bit floats, in NumPy
- devices: what GPUs have and can do

From the compilers

- machine_code: from kernel to PTX to machine code, without a GPU
- sass: instructions of machine code, with a kind and a source line
- lint: what costs a kernel speed, by line
- probes: which of Numba's index and division tests the compiler left in the PTX
- gpu_ready: whether a kernel compiles for a GPU, and stays in float32
- compile_errors: Numba's errors, in plain words
- cuda_tools: where NVVM, ptxas and nvdisasm are

Launchers import nothing from here: `fa_numba.tiling` chooses their tile sizes and splits.
"""

from fa_numba.analysis import intensity, traffic
from fa_numba.analysis.devices import DEVICES, Device, device
from fa_numba.analysis.kv_cache_size import kv_cache_bytes, kv_cache_tokens
from fa_numba.analysis.lint import lint
from fa_numba.analysis.machine_code import machine_code
from fa_numba.analysis.occupancy import Occupancy, occupancy
from fa_numba.analysis.roofline import Roofline
from fa_numba.analysis.traffic import Problem, Traffic
from fa_numba.tiling.block_sizes import calculate_block_sizes, kernel_block_sizes
from fa_numba.tiling.num_splits import choose_num_splits
