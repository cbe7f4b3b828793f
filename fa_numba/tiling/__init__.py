"""How a launcher cuts its work: sizes of tiles, threads, splits of the keys.

block_sizes          tile sizes of the lesson kernels: the largest that fit on chip
register_tiling      tile sizes, threads and shared memory of the kernels with register tiles
row_tiling           threads and warps per row, for softmax
decode_tiling        rows, lanes and keys of flash_decode_wide
num_splits           number of splits of the keys, for every decoder
persistent_tiling    tiles and work slices of the persistent kernels
split_tiling         tiles and splits of flash_attn_split
linear_attn          state size and default form of linear attention
"""
