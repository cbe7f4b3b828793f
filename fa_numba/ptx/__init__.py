"""PTX instructions as Python functions, one function for each; no file here knows attention.

statement            makes a Numba intrinsic of one PTX statement; the other files use it
mma, ldmatrix        tensor cores of a warp (sm_80); loads and stores of their operands
wgmma                tensor cores of a warpgroup: four warps, operands in shared memory (sm_90a)
tf32                 float32 as two TF32 numbers, and their products by mma (sm_80)
cp_async             asynchronous copies from global to shared memory, 4 or 16 bytes each (sm_80)
tma                  copies of whole tiles by the tensor memory accelerator (sm_90)
cluster              thread blocks that share what TMA loads (sm_90)
dependent_launch     a kernel begins while the one before it ends (sm_90)
mbarrier             barriers in shared memory that count arrivals and bytes (sm_90)
barriers             named barriers (bar), the fence before TMA and wgmma, setmaxnreg
counters             tickets and flags in global memory (atom, red.release, ld.acquire)
vectors              loads and stores of 4, 8 and 16 bytes, atomic additions (red), bulk copies of
                     rows, zeros; halves of registers as float32 or apart (prmt)
convert              float32 to 16 and 8 bits (cvt); 2^x (ex2), the maximum of three
layouts              in NumPy: which lane holds which element, swizzles, descriptors

The types of the arguments stand in each function's `statement`, in the order of its parameters.
An address is a uint32 in shared memory and a uint64 in global memory, a multiple of the bytes that
are read or written there. Arrays are local; a fragment that is `written` receives the result.

Run a kernel with new instructions with FA_NUMBA_BOUNDED_WAITS=1 first, so that a mistake cannot
hang the GPU.
"""
