"""Write docs/plots/masks.svg, the picture of docs/masks.md: the gallery of `fa_numba.masks`.

python docs/make_masks.py
"""

from pathlib import Path

import matplotlib

from fa_numba.figures.gallery import masks_and_their_tiles

if __name__ == "__main__":
    matplotlib.rcParams["svg.hashsalt"] = "fa-numba"  # the same ids from run to run
    path = Path(__file__).parent / "plots" / "masks.svg"
    masks_and_their_tiles().savefig(path, metadata={"Date": None})
