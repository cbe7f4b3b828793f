"""Tensor cores from Python: PTX instructions as functions, and attention kernels on them.

instructions   mma, ldmatrix, cp_async; wgmma, products, tma, mbarrier, barriers, counters; convert,
               vectors.
               One file for each family, one function for each instruction; `ptx` makes a function
               of a statement.
models         layouts: which lane holds which element, swizzles, descriptors, in NumPy
parts          fragments, lazy_softmax: softmax on registers; alibi: slopes by tensor cores;
               tensor_maps; forward, backward: what the kernels and launchers of each share; turns:
               from tile to tile of keys; shares: which queries a thread block has that stays
the ladder     flash_attn_mma, flash_attn_wgmma, flash_attn_ws, flash_attn_persistent; for any
               head_dim flash_attn_padded, for packed batches flash_attn_persistent_varlen
decoding       flash_decode_mma, flash_decode_gather: few queries, many keys;
               what they share: decoding, wide_loads
8 bits         quantize_fp8, flash_attn_fp8
backward       flash_attn_bwd_mma, flash_attn_bwd_persistent
float32        tf32, tf32_tiles; flash_attn_tf32x3, flash_attn_bwd_tf32x3

A new kernel is run first with FA_NUMBA_BOUNDED_WAITS=1, so that a mistake cannot hang the GPU.
"""
