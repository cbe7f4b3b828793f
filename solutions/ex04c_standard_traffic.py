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

### KIND: predict
### HINT 1: Write the number of elements for each key first, and multiply by dtype_bytes at the end.
### Start with tiles as large as the matrix. Which of the eight are N * N, which N * d?
### HINT 2: A row of Q is loaded by every thread block whose tile of S lies in that row. How many
### tiles lie side by side? And for a row of K, how many lie one above the other? Count a short last
### tile as a tile: -(-N // B_r) is N / B_r rounded up.
### HINT 3: q_reads = N * d * ceil(N / B_c); k_reads = v_reads = N * d * ceil(N / B_r); the four
### of S and P are N * N each, out_writes is N * d.
### DEBRIEF: 138 MB for source 004's problem, of which Q, K, V and O are 3 %. The source's list has
### no line for reading S back; the total is right only with it. Tiles make it worse, not better, as
### long as S goes through HBM: with 128 x 128 tiles the same attention asks for 236 MB. (The L2
### cache serves some of that: the meter counts what the kernels ask for.)


def standard_traffic(N, d, B_r=None, B_c=None, dtype_bytes=2):
    """Bytes that standard attention loads and stores in HBM, for each matrix."""
    ### BEGIN SOLUTION
    num_row_tiles = 1 if B_r is None else -(-N // B_r)
    num_col_tiles = 1 if B_c is None else -(-N // B_c)
    elements = {
        "q_reads": N * d * num_col_tiles,  # every tile of S in these rows loads them
        "k_reads": N * d * num_row_tiles,
        "s_writes": N * N,
        "s_reads": N * N,
        "p_writes": N * N,
        "p_reads": N * N,
        "v_reads": N * d * num_row_tiles,
        "out_writes": N * d,
    }
    traffic = {key: count * dtype_bytes for key, count in elements.items()}
    return {**traffic, "total": sum(traffic.values())}
    ### END SOLUTION
