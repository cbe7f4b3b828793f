"""A sliding window and its tiles: which a kernel visited, and which of them need the test."""

import numpy as np

from fa_numba.figures.causal_tiles import draw_tiles
from fa_numba.figures.style import on_paper


@on_paper
def window_tiles(sees, visited, block_m, block_n):
    """Each pair of query and key, and the tiles that a kernel has visited.

    Parameters
    ----------
    sees : bool array of shape (seqlen_q, seqlen_k)
        The mask: which key each query sees.
    visited : bool array of shape (num_m_tiles, num_n_tiles)
        As recorded from a kernel.
    block_m, block_n : int

    Returns
    -------
    Drawing
    """
    state = np.full(visited.shape, "skipped", dtype=object)
    for i, j in np.argwhere(visited):
        tile = sees[i * block_m : (i + 1) * block_m, j * block_n : (j + 1) * block_n]
        state[i, j] = "whole" if tile.all() and tile.shape[1] == block_n else "masked"
    return draw_tiles(sees, state, block_m, block_n)
