"""Write docs/plots/masks.png, the picture of docs/masks.md: the gallery of `fa_numba.masks`.

python docs/make_masks.py
"""

from pathlib import Path

import numpy as np

from fa_numba import masks
from fa_numba.figures.mask_tiles import mask_tiles


def masks_and_their_tiles():
    document = np.repeat([0, 1, 2], [20, 15, 29])
    parents = [-1, 0, 0, 1, 1, 2, *(i // 2 for i in range(6, 24))]
    drawn = {
        "causal": masks.causal,
        "window(12)": masks.window(12),
        "window_and_first(9, 4)": masks.window_and_first(9, 4),
        "dilated(3)": masks.dilated(3),
        "prefix_lm(20)": masks.prefix_lm(20),
        "causal & documents": masks.causal & masks.documents(document),
        "block_causal(16)": masks.block_causal(16),
        "block_diffusion(8, 32)": masks.block_diffusion(8, 32),
        "neighbours_2d(8, 1)": masks.neighbours_2d(8, 1),
        "neighbours_3d(4, 4, 1)": masks.neighbours_3d(4, 4, 1),
        "tree(parents, 40)": masks.tree(parents, 40),
        "causal & ~window(12)": masks.causal & ~masks.window(12),
    }
    return mask_tiles(
        {name: masks.tiles(x, 64, block_m=8, block_n=8, pairs=True) for name, x in drawn.items()}
    )


if __name__ == "__main__":
    masks_and_their_tiles().savefig(Path(__file__).parent / "plots" / "masks.png", dpi=100)
