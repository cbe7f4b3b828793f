"""How a launcher cuts its work: sizes of tiles, threads, splits of the keys.

block_sizes          tiles of the lesson kernels: what fits in shared memory and registers
register_tiling      tiles of the kernels with register tiles
row_tiling           threads and warps of a row, for softmax
decode_tiling        lanes, keys and rows of flash_decode_wide
num_splits           into how many parts decoding splits the keys
persistent_tiling    tiles and work slices of the persistent kernels
linear_attn          feature dimensions, and which form of linear attention runs
"""
