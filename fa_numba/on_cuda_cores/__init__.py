"""Fast kernels on CUDA cores: the step between `kernels` and `tensor_core`.

flash_attn_v2_unsigned     flash_attn_v2 with unsigned indices
flash_attn_v2_4x4          4 x 4 scores per thread
flash_attn_registers       tiles of scores and output in registers; flash_attn_bwd_registers
flash_decode_wide          decoding with 16-byte loads from HBM to registers
softmax_registers          a row of softmax in registers; softmax_topk_warps

Parts: register_tiles (loads and products), packets (16 bytes of any dtype), decode_problem (the
arguments and launches of all fast decoders), run_time_masks (windows and softcap as arguments).
"""
