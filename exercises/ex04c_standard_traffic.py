"""ex04c · HBM traffic of standard attention

How many bytes does attention move when S and P live in HBM? Three kernels, one head:

    1  S = Q K^T        a thread block owns a tile of S, B_r rows and B_c columns; it loads the
                        rows of Q and of K that this tile needs, and writes the tile
    2  P = softmax(S)   a row of S is loaded once, kept on chip, and written once as P
    3  O = P V          a thread block owns B_r whole rows of O; it walks along its rows of P once
                        and loads all of V on the way

standard_traffic(N, d, B_r=None, B_c=None, dtype_bytes=2) -> dict of int, in bytes

Q, K, V, O  (N, d);  S, P  (N, N);  dtype_bytes bytes an element, everywhere
B_r, B_c    rows and columns a tile; None means one tile as large as the matrix: everything that a
            kernel uses is then loaded once. N need not be a multiple: the last tile is smaller,
            and what does not exist is neither loaded nor stored
keys        q_reads, k_reads, s_writes, s_reads, p_writes, p_reads, v_reads, out_writes, and total,
            the sum of the other eight; each an int, exact for any N, without a loop over tiles

With N=4096, d=128, fp16, no tiles, this is part a) of source 004's exercise 3. Your numbers are
compared with the engine's meter, which counts every load and store of three such kernels.

About 15 lines.
"""


def standard_traffic(N, d, B_r=None, B_c=None, dtype_bytes=2):
    """Bytes that standard attention loads and stores in HBM, for each matrix."""
    # YOUR CODE HERE
    raise NotImplementedError("ex04c: standard_traffic")


# Stub 851ab8d7 of solutions/ex04c_standard_traffic.py: `fa-numba reset ex04c` brings it back.
