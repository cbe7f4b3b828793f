# One head of FlashAttention-2 in Mojo: the lines that docs/other_languages.md shows.
from max.gpu import barrier, block_idx, thread_idx
from max.gpu.host import DeviceContext
from max.gpu.memory import AddressSpace
from std.math import ceildiv, exp
from std.memory import Pointer, stack_allocation
from std.utils.numerics import neg_inf

comptime D = 64
comptime BLOCK_M = 16
comptime BLOCK_N = 16
comptime Floats = Pointer[Float32, MutAnyOrigin]


def flash_attn(q: Floats, k: Floats, v: Floats, result: Floats, length: Int32, scale: Float32):
    var q_tile = stack_allocation[BLOCK_M * D, Float32, address_space=AddressSpace.SHARED]()
    var k_tile = stack_allocation[BLOCK_N * (D + 1), Float32, address_space=AddressSpace.SHARED]()
    var v_tile = stack_allocation[BLOCK_N * D, Float32, address_space=AddressSpace.SHARED]()
    var s_tile = stack_allocation[BLOCK_M * BLOCK_N, Float32, address_space=AddressSpace.SHARED]()
    var p_tile = stack_allocation[BLOCK_M * BLOCK_N, Float32, address_space=AddressSpace.SHARED]()
    var N = Int(length)
    var tx = Int(thread_idx.x)
    var ty = Int(thread_idx.y)
    var m = Int(block_idx.x) * BLOCK_M + ty  #: own
    for d in range(tx, D, BLOCK_N):
        q_tile[ty * D + d] = q[m * D + d] if m < N else 0.0  #: q
    var m_i = neg_inf[DType.float32]()  #: state
    var l_i = Float32(0)  #: state
    var acc: SIMD[DType.float32, D // BLOCK_N] = 0  #: state
    for n_start in range(0, N, BLOCK_N):
        for row in range(ty, BLOCK_N, BLOCK_M):
            var n = n_start + row
            for d in range(tx, D, BLOCK_N):
                k_tile[row * (D + 1) + d] = k[n * D + d] if n < N else 0.0  #: kv
                v_tile[row * D + d] = v[n * D + d] if n < N else 0.0
        barrier()  #: ready
        var s = Float32(0)
        for d in range(D):
            s += q_tile[ty * D + d] * k_tile[tx * (D + 1) + d]  #: scores
        s = scale * s if n_start + tx < N else neg_inf[DType.float32]()  #: edge
        s_tile[ty * BLOCK_N + tx] = s
        barrier()
        var m_new = m_i
        for c in range(BLOCK_N):
            m_new = max(m_new, s_tile[ty * BLOCK_N + c])  #: max
        var alpha = exp(m_i - m_new)  #: alpha
        p_tile[ty * BLOCK_N + tx] = exp(s - m_new)  #: p
        barrier()
        l_i *= alpha
        for c in range(BLOCK_N):
            l_i += p_tile[ty * BLOCK_N + c]  #: sum
        comptime for i in range(D // BLOCK_N):
            acc[i] *= alpha
            for c in range(BLOCK_N):
                acc[i] += p_tile[ty * BLOCK_N + c] * v_tile[c * D + tx + i * BLOCK_N]  #: acc
        m_i = m_new
        barrier()  #: free
    if m < N:
        comptime for i in range(D // BLOCK_N):
            result[m * D + tx + i * BLOCK_N] = acc[i] / l_i  #: out


def main() raises:
    comptime N = 1000
    with DeviceContext() as ctx:
        var q = ctx.enqueue_create_buffer[DType.float32](N * D)
        var k = ctx.enqueue_create_buffer[DType.float32](N * D)
        var v = ctx.enqueue_create_buffer[DType.float32](N * D)
        var o = ctx.enqueue_create_buffer[DType.float32](N * D)
        ctx.enqueue_function[flash_attn](
            q.unsafe_ptr(), k.unsafe_ptr(), v.unsafe_ptr(), o.unsafe_ptr(), Int32(N), Float32(0.125),
            grid_dim=ceildiv(N, BLOCK_M), block_dim=(BLOCK_N, BLOCK_M),
        )
        ctx.synchronize()
