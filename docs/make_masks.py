"""Write docs/plots/masks.png, the picture of docs/masks.md: the gallery of `fa_numba.masks`.

python docs/make_masks.py
"""

from pathlib import Path

from fa_numba.figures.gallery import masks_and_their_tiles

if __name__ == "__main__":
    masks_and_their_tiles().savefig(Path(__file__).parent / "plots" / "masks.png", dpi=100)
