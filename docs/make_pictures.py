"""Write the pictures of README.md: docs/plots/flash_attention.gif and docs/plots/race.svg.

python -m docs.make_pictures

The GIF is two launches of our kernels, as the engine recorded them. The bytes are those of the
loads and stores that it counted. The other picture is what a failing check prints.
"""

import io
import re
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from rich.text import Text

import fa_numba
from benchmarks.readme import failing_check
from fa_numba import simt
from fa_numba.figures.style import GREY, INK, PAPER, on_paper
from fa_numba.figures.tile_frames import draw_frame, recorded_walk

ROOT = Path(__file__).parents[1]
PLOTS = ROOT / "docs" / "plots"
N, D, TILE = 96, 32, 16
FRAME, LAST = 220, 3500  # ms
KERNELS = {"FlashAttention-1": fa_numba.flash_attn_v1, "FlashAttention-2": fa_numba.flash_attn_v2}


def launch(function):
    """The walk of a kernel, and the bytes it has moved to and from HBM after each iteration."""
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, N, 1, D), dtype=np.float32)
    with simt.tracing() as traces:
        function(q, k, v, block_m=TILE, block_n=TILE)
    (trace,) = traces
    again = trace.launched
    accesses = simt.record(again.kernel, trace.grid, trace.block, *again.arguments)
    tiles = N // TILE
    walk = recorded_walk(accesses, tiles, tiles, block_m=TILE, block_n=TILE, head_dim=D)
    iterations = 1 + walk[0].max()
    moved, visits = np.zeros(iterations, int), {}
    for access in accesses:
        for block, lanes in zip(access.blocks, access.active.sum(axis=0), strict=True):
            now = visits.get(int(block), 0)
            if access.kind == "global":
                moved[min(now, iterations - 1)] += 4 * lanes  # float32
            elif access.array == "s_tile" and access.action == "store" and lanes:
                visits[int(block)] = now + 1
    counted = 4 * sum(a.loads + a.stores for a in trace.arrays.values())
    assert moved.sum() == counted, f"{moved.sum()} bytes recorded, {counted} counted"
    return walk, moved.cumsum()


@on_paper
def frame(launches, now):
    """A frame of the GIF, as an image."""
    most = max(bytes_[-1] for _, bytes_ in launches.values())
    figure = Figure(figsize=(7.6, 4.8), dpi=100, facecolor=PAPER)
    panels = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.06, right=0.98, top=0.92, bottom=0.18, wspace=0.14)
    for ax, (title, (walk, moved)) in zip(panels, launches.items(), strict=True):
        draw_frame(ax, *walk, now)
        done = min(now, len(moved) - 1)
        ax.set_title(title, fontsize=15, color=INK, fontweight="bold")
        ax.set_xlabel(f"K, V tiles →\n{moved[done]:,} bytes to and from HBM", fontsize=13,
                      color=INK)  # fmt: skip
        ax.set_ylabel("← Q tiles", fontsize=11, color=GREY)
        bar = ax.inset_axes((0, -0.22, 1, 0.04))
        bar.barh(0, moved[done], color=INK)
        bar.set(xlim=(0, most), xticks=[], yticks=[])
        bar.spines[:].set_color(GREY)
    image = io.BytesIO()
    figure.savefig(image, format="png", facecolor=PAPER)
    return Image.open(image).convert("P", palette=Image.Palette.ADAPTIVE, colors=64)


def race():
    """A failing check, as a picture of a terminal."""
    said = failing_check()
    console = Console(record=True, width=118, file=io.StringIO(), force_terminal=True)
    styles = {r"^\$.*": "bold", r"✗.*": "red", r"✓.*": "green", r"\^+": "bold red",
              r"RaceError:": "bold red", r"line \d+": "cyan"}  # fmt: skip
    shown = Text(said)
    for pattern, style in styles.items():
        for found in re.finditer(pattern, said, re.MULTILINE):
            shown.stylize(style, *found.span())
    console.print(shown)
    drawn = console.export_svg(title="fa-numba check ex02d")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # of another server


def main():
    launches = {title: launch(function) for title, function in KERNELS.items()}
    count = max(len(moved) for _, moved in launches.values())
    frames = [frame(launches, now) for now in range(count + 1)]
    frames[0].save(
        PLOTS / "flash_attention.gif", save_all=True, append_images=frames[1:], loop=0,
        duration=[FRAME] * count + [LAST], optimize=True,
    )  # fmt: skip
    (PLOTS / "race.svg").write_text(race(), encoding="utf-8")


if __name__ == "__main__":
    main()
