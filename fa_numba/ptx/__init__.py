"""PTX instructions as Python functions, one function for each; nothing here knows of attention.

statement            makes a Numba intrinsic of one PTX statement; the other files use it
mma, ldmatrix        tensor cores of a warp, and loads of their operands (sm_80)
wgmma                tensor cores of a warpgroup: four warps, operands in shared memory (sm_90a)
tf32                 float32 as two TF32 numbers, and their products by mma
cp_async             copies from global to shared memory, 16 bytes each (sm_80)
tma                  copies of whole tiles by the tensor memory accelerator (sm_90)
mbarrier             barriers in shared memory that count arrivals and bytes (sm_90)
barriers             named barriers, fences, registers handed from warp to warp
counters             tickets and flags in global memory
vectors              loads, stores and atomic additions of several numbers; halves of registers
convert              2^x, the maximum of three, float32 to 16 and 8 bits
layouts              in NumPy: which lane holds which element, swizzles, descriptors

A kernel with new instructions is run first with FA_NUMBA_BOUNDED_WAITS=1, so that a mistake cannot
hang the GPU.
"""
