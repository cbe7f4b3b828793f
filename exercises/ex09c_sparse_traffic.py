"""ex09c · What a block-sparse mask moves

`sees` says which pairs of query and key a model wants. Block-sparse FlashAttention-1 lays it on
tiles of BLOCK_M queries by BLOCK_N keys: a tile is live if one of its pairs is wanted, and a dead
tile is neither loaded nor computed. How many elements does the kernel move for one head?

sees      bool array (seqlen_q, seqlen_k), True where query m wants key n; the lengths are
          multiples of BLOCK_M and BLOCK_N
kernel    a tile of K and V is loaded once if its column has a live tile. For each live tile Q, out,
          l and m of its rows are loaded, and out, l and m are stored
returns   dict with the keys "q", "k", "v", "out", "l" and "m": elements loaded and stored, added up

The grader asks the meter of `flash_attn_v1(block_mask=...)`. About 7 lines.
"""


def elements_moved(sees, BLOCK_M, BLOCK_N, HEAD_DIM):
    """Elements that block-sparse FlashAttention-1 moves for one head, array by array."""
    # YOUR CODE HERE
    raise NotImplementedError("ex09c: elements_moved")


# Stub 479bf9fd of solutions/ex09c_sparse_traffic.py: `fa-numba reset ex09c` brings it back.
