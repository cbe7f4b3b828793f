"""python -m fa_numba.figures [FOLDER]: every drawing as PNG and as text, and all on one sheet."""

import argparse
from pathlib import Path

from matplotlib.image import imsave

from fa_numba.figures.gallery import draw
from fa_numba.figures.sheet import sheet


def main(folder="figures"):
    """Write the files; return their folder. Print the drawings that this machine cannot make."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    left_out = {}
    drawings = dict(draw(left_out))
    for name, drawing in drawings.items():
        drawing.savefig(folder / f"{name}.png", dpi=110)
        (folder / f"{name}.txt").write_text(drawing.describe() + "\n", encoding="utf-8")
    imsave(folder / "sheet.png", sheet(drawings))
    for name, reason in left_out.items():
        print(f"left out: {name}, because {reason.splitlines()[0]}")
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m fa_numba.figures", description=__doc__)
    parser.add_argument("folder", nargs="?", default="figures", help="where the files go")
    print(main(parser.parse_args().folder))
