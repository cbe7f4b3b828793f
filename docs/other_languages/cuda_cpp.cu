// One head of FlashAttention-2 in CUDA C++: the lines that docs/other_languages.md shows.
#define NEG_INF __int_as_float(0xff800000)

template <int D, int BLOCK_M, int BLOCK_N>
__device__ void flash_attn(const float *q, const float *k, const float *v, float *out, int N,
                           float scale) {
  __shared__ float q_tile[BLOCK_M][D], k_tile[BLOCK_N][D + 1], v_tile[BLOCK_N][D];
  __shared__ float s_tile[BLOCK_M][BLOCK_N], p_tile[BLOCK_M][BLOCK_N];
  int tx = threadIdx.x, ty = threadIdx.y;
  int m = blockIdx.x * BLOCK_M + ty;  //: own
  for (int d = tx; d < D; d += BLOCK_N) q_tile[ty][d] = m < N ? q[m * D + d] : 0.0f;  //: q
  float m_i = NEG_INF, l_i = 0.0f, acc[D / BLOCK_N] = {};  //: state
  for (int n_start = 0; n_start < N; n_start += BLOCK_N) {
    for (int row = ty; row < BLOCK_N; row += BLOCK_M)
      for (int d = tx; d < D; d += BLOCK_N) {
        int n = n_start + row;
        k_tile[row][d] = n < N ? k[n * D + d] : 0.0f;  //: kv
        v_tile[row][d] = n < N ? v[n * D + d] : 0.0f;
      }
    __syncthreads();  //: ready
    float s = 0.0f;
    for (int d = 0; d < D; ++d) s += q_tile[ty][d] * k_tile[tx][d];  //: scores
    s = n_start + tx < N ? scale * s : NEG_INF;  //: edge
    s_tile[ty][tx] = s;
    __syncthreads();
    float m_new = m_i;
    for (int c = 0; c < BLOCK_N; ++c) m_new = fmaxf(m_new, s_tile[ty][c]);  //: max
    float alpha = expf(m_i - m_new);  //: alpha
    p_tile[ty][tx] = expf(s - m_new);  //: p
    __syncthreads();
    l_i *= alpha;
    for (int c = 0; c < BLOCK_N; ++c) l_i += p_tile[ty][c];  //: sum
    for (int i = 0; i < D / BLOCK_N; ++i) {
      acc[i] *= alpha;
      for (int c = 0; c < BLOCK_N; ++c) acc[i] += p_tile[ty][c] * v_tile[c][tx + i * BLOCK_N];  //: acc
    }
    m_i = m_new;
    __syncthreads();  //: free
  }
  for (int i = 0; i < D / BLOCK_N; ++i)
    if (m < N) out[m * D + tx + i * BLOCK_N] = acc[i] / l_i;  //: out
}

extern "C" __global__ void flash_attn_64_16_16(const float *q, const float *k, const float *v,
                                               float *out, int N, float scale) {
  flash_attn<64, 16, 16>(q, k, v, out, N, scale);
}
