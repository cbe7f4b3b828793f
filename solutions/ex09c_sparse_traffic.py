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

### KIND: predict
### HINT 1: First the mask of tiles. A reshape to four axes, tile by tile, makes it one `any`.
### HINT 2: Two numbers say everything: the live tiles, and the columns of tiles with a live one.
### HINT 3: live = sees.reshape(rows, BLOCK_M, cols, BLOCK_N).any(axis=(1, 3)). k and v move
### HINT 3: live.any(axis=0).sum() * BLOCK_N * HEAD_DIM each, q live.sum() * BLOCK_M * HEAD_DIM, out
### HINT 3: twice as much, l and m 2 * live.sum() * BLOCK_M each.
### DEBRIEF: All but K and V falls with the share of live tiles, and so do FLOPs. The share of
### DEBRIEF: wanted pairs does not matter: a tile with one wanted pair costs as much as a full one.
### DEBRIEF: So a sparse mask should be designed on tiles from the start.


def elements_moved(sees, BLOCK_M, BLOCK_N, HEAD_DIM):
    """Elements that block-sparse FlashAttention-1 moves for one head, array by array."""
    ### BEGIN SOLUTION
    rows, cols = sees.shape[0] // BLOCK_M, sees.shape[1] // BLOCK_N
    live = sees.reshape(rows, BLOCK_M, cols, BLOCK_N).any(axis=(1, 3))
    keys = live.any(axis=0).sum() * BLOCK_N * HEAD_DIM
    queries = live.sum() * BLOCK_M
    moved = {"q": queries * HEAD_DIM, "k": keys, "v": keys, "out": 2 * queries * HEAD_DIM}
    return moved | {"l": 2 * queries, "m": 2 * queries}
    ### END SOLUTION
