"""Attention kernels on tensor cores; their instructions are in `ptx`.

the ladder     flash_attn_mma, flash_attn_wgmma, flash_attn_ws, flash_attn_persistent; for any
               head_dim flash_attn_padded, above 256 flash_attn_wide, for packed batches
               flash_attn_persistent_varlen and flash_attn_wide_varlen, for few queries
               flash_attn_split
8 bits         quantize_fp8, flash_attn_fp8
float32        flash_attn_tf32x3, flash_attn_bwd_tf32x3
backward       flash_attn_bwd_mma, flash_attn_bwd_persistent; for head_dim above 128
               flash_attn_bwd_wide, above 256 flash_attn_bwd_stored, for any head_dim
               flash_attn_bwd_padded, for packed batches flash_attn_bwd_varlen, above 256
               flash_attn_bwd_stored_varlen
decoding       flash_decode_mma, flash_decode_gather: few queries, many keys; for head_dim above
               256 flash_decode_columns; of latents mla_decode_mma

Each raises RuntimeError on a GPU without its instructions, those of Ampere or of Hopper, or with
too little shared memory for its tiles; `fa_numba.checks.KERNELS` says what it requires.

Files without flash_ in front hold parts that kernels share:

shared_plan    the layout of shared memory
fragments      softmax, masks, softcap, ALiBi and stores of scores and out in registers
lazy_rescaling an online softmax that seldom rescales
alibi          ALiBi by tensor cores
mainloop       rings of K and V, and the iterations of a consumer warpgroup over them
merge_splits   the second kernel of flash_attn_split
tile_scheduler which tiles a persistent thread block works on
tf32_tiles     tiles of float32, multiplied by 3xTF32
gradient_fragments   backward: scores and gradients in registers; their stores
key_tiles      backward: the order of the tiles of keys, and the queries that see them
gradient_mainloop    backward: the products of a consumer warpgroup for a tile of queries
gradient_consumer    backward: the consumers' loop over tiles of keys, dense and packed
packed_key_tiles, packed_backward   backward: what key_tiles and backward are, for packed batches
gradient_expressions backward: the user's mask and score in a tile; which tiles there are
dq_parts       three ways to sum the parts of dQ that tiles of keys compute
padded_rows    zero-padded copies of arrays, for TMA
divided_columns   decoding: the warps of a thread block divide the columns of out
forward, backward, decoding   what the forward, backward and decoding kernels share

Run a new kernel with FA_NUMBA_BOUNDED_WAITS=1 first, so that a mistake cannot hang the GPU.
"""
