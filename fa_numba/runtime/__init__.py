"""From a checked call to the GPU or to the CPU engine.

arrays         the array decides where a kernel runs; the only file that knows CuPy from PyTorch
launching      launches a compiled kernel by the driver, without Numba's dispatcher; CUDA graphs
replay         repeats a call's allocations and launches without running the Python function again
kernel_cache   compiled kernels on disk
tensor_maps    descriptors of arrays for TMA, made once for each address
bfloat16       conversions of bfloat16 that replace numba-cuda's
numpy_names    a NumPy name that numba-cuda still asks for
"""
