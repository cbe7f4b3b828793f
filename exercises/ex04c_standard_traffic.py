"""ex04c · HBM traffic of standard attention

How many bytes does attention move when S and P live in HBM? Three kernels, one head:

    1  S = Q K^T        a thread block owns a tile of S, B_r rows and B_c columns; it loads the
                        rows of Q and of K that this tile needs, and writes the tile
    2  P = softmax(S)   a row of S is loaded once, kept on chip, and written once as P
    3  O = P V          a thread block owns B_r whole rows of O; it walks along its rows of P once
                        and loads all of V on the way

elements_moved(N, d, num_row_tiles, num_col_tiles)    what you write: eight numbers, in elements
standard_traffic(N, d, B_r=None, B_c=None, dtype_bytes=2)    given: the same in bytes, and the total

Q, K, V, O  (N, d);  S, P  (N, N);  dtype_bytes bytes per element
B_r, B_c    rows and columns per tile; None means one tile as large as the matrix: everything that
            a kernel uses is then loaded once. N need not be a multiple: the last tile is smaller,
            and what does not exist is neither loaded nor stored
num_..._tiles    tiles of S one above the other, N / B_r, and side by side, N / B_c, rounded up
order       q_reads, k_reads, s_writes, s_reads, p_writes, p_reads, v_reads, out_writes: ints, exact
            for any N, without a loop over tiles

With N=4096, d=128, fp16, no tiles, this is part a) of exercise 3 of "Flash Attention Explained", a
tutorial. Your numbers are compared with the engine's meter, which counts every load and store of
three such kernels.

About 4 lines.
"""

KEYS = (
    *("q_reads", "k_reads", "s_writes"),  # the first kernel
    *("s_reads", "p_writes"),
    *("p_reads", "v_reads", "out_writes"),
)


def elements_moved(N, d, num_row_tiles, num_col_tiles):
    """Elements that are loaded or stored: eight numbers, in the order of KEYS."""
    # YOUR CODE HERE
    raise NotImplementedError("ex04c: elements_moved")


def standard_traffic(N, d, B_r=None, B_c=None, dtype_bytes=2):
    """Bytes that standard attention loads and stores in HBM, for each matrix."""
    num_row_tiles = 1 if B_r is None else -(-N // B_r)
    num_col_tiles = 1 if B_c is None else -(-N // B_c)
    elements = elements_moved(N, d, num_row_tiles, num_col_tiles)
    traffic = {key: count * dtype_bytes for key, count in zip(KEYS, elements, strict=True)}
    return {**traffic, "total": sum(traffic.values())}


# Stub 1af7d214 of solutions/ex04c_standard_traffic.py: `fa-numba reset ex04c` brings it back.
