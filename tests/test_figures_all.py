"""What drawings share, and what some of them say.

`test_notebooks` asks whether those of the lessons are legible.
"""

import importlib.util
import inspect
import io
import pkgutil
import re
from collections import Counter
from html import escape
from pathlib import Path

import numpy as np
import pytest
from colours import contrast, in_the_dark
from legible import check, rendered
from matplotlib import style
from matplotlib.colors import to_rgb
from numba import cuda, float32

import fa_numba
from fa_numba import figures, simt
from fa_numba.figures.addresses import addresses
from fa_numba.figures.banks import banks
from fa_numba.figures.hbm_bytes import hbm_bytes
from fa_numba.figures.race import race_diagram
from fa_numba.figures.sectors import sectors
from fa_numba.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PAPER, PURPLE, RED
from fa_numba.figures.tile_frames import recorded_walk

LESSONS = Path(__file__).parents[1] / "notebooks"
ELSEWHERE = {"parts", "sectors", "steps", "style", "themes"}


@cuda.jit
def copy_three_ways(x, y):
    """Rows, columns, and one element for all: the same loads, other addresses."""
    tx = cuda.threadIdx.x
    y[0, tx] = x[3, tx]
    y[1, tx] = x[tx, 3]
    y[2, tx] = x[3, 2 * tx + 3]
    y[3, tx] = x[3, 3]


@cuda.jit
def transpose(x, y):
    tile = cuda.shared.array((32, 33), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile[ty, tx] = x[ty, tx]
    cuda.syncthreads()
    y[ty, tx] = tile[tx, ty]


@pytest.mark.parametrize("theme", [np.asarray, in_the_dark])
def test_colours_stand_out_on_their_ground(theme):
    """On white by 4.5 : 1; a mark may be paper on a colour, too, which is the same."""
    for colour in (INK, GREY, BLUE, ORANGE, GREEN, RED, PURPLE):
        assert contrast(theme(to_rgb(colour)), theme(to_rgb(PAPER))) >= 4.5, colour


def test_a_lesson_shows_every_drawing():
    """A file has one, which `test_notebooks` sees there."""
    lessons = "".join(path.read_text(encoding="utf-8") for path in LESSONS.glob("*.ipynb"))
    for name in {m.name for m in pkgutil.iter_modules(figures.__path__)} - ELSEWHERE:
        module = importlib.import_module(f"fa_numba.figures.{name}")
        (drawing,) = (
            x.__name__
            for x in vars(module).values()
            if inspect.isfunction(x)
            and x.__module__ == module.__name__
            and inspect.unwrap(x) is not x
        )
        assert re.search(rf"\b{drawing}[(,]", lessons), name


def test_the_user_s_style_changes_nothing():
    def drawing():
        return hbm_bytes({"q": 40, "k": 80}, {"q": 40, "k": 81}, title="bytes")

    plain, file = drawing().png(), io.BytesIO()
    drawing().savefig(file, format="png", dpi=110)
    assert file.getvalue() == plain, "drawn once, as Matplotlib draws it twice"
    with style.context(["dark_background", "ggplot"]):
        assert drawing().png() == plain
    alternative = escape(drawing().alternative())
    assert drawing()._repr_html_().startswith(f'<img alt="{alternative}" ')


def walks(seqlen_q, seqlen_k, **options):
    """The walks of FlashAttention-1 and FlashAttention-2, as recorded from our kernels."""
    q, k = np.ones((1, seqlen_q, 1, 4), np.float32), np.ones((1, seqlen_k, 1, 4), np.float32)
    tiles = {"block_m": 4, "block_n": 4}
    for function in fa_numba.flash_attn_v1, fa_numba.flash_attn_v2:
        with simt.tracing() as traces:
            function(q, k, k, **tiles, **options)
        (trace,) = traces
        again = trace.launched  # the same launch, this time with a record of every access
        accesses = simt.record(again.kernel, trace.grid, trace.block, *again.arguments)
        yield recorded_walk(accesses, -(-seqlen_q // 4), -(-seqlen_k // 4), **tiles, head_dim=4)


def test_the_walks_are_those_of_the_papers():
    (turn, owner), (turn_2, owner_2) = walks(16, 20)
    m, n = np.indices((4, 5))
    assert np.array_equal(turn, 4 * n + m) and (owner == 0).all()
    assert np.array_equal(turn_2, n) and np.array_equal(owner_2, m)
    _, (turn, _) = walks(14, 22, causal=True)
    last_key = 4 * m[:, :1] + 3 + 22 - 14
    assert np.array_equal(turn >= 0, 4 * np.arange(6) <= last_key)


def test_record_keeps_what_the_trace_counts():
    x = np.zeros((32, 32), np.float32)
    trace = simt.trace(transpose, 1, (32, 32), x, x.copy())
    accesses = simt.record(transpose, 1, (32, 32), x, x.copy())
    counted = sorted((line.line, line.array, line.action, line.elements) for line in trace.lines)
    kept = sorted((a.line, a.array, a.action, int(a.active.sum())) for a in accesses)
    assert kept == counted
    assert [a.action for a in accesses] == ["load", "store", "load", "store"]


def test_addresses_in_words():
    x = np.zeros((32, 32), np.float64)
    trace = simt.trace(copy_three_ways, 1, 32, np.zeros((80, 80)), x)
    row, column, shifted, same = (line for line in trace.lines if line.action == "load")
    text = addresses({"a": row, "b": column, "c": shifted, "d": same}).describe()
    assert text.splitlines() == [
        "a: 32 lanes, 8 sectors: 256 of 256 bytes used",
        "b: 32 lanes, 32 sectors: 256 of 1024 bytes used",
        "c: 32 lanes, 17 sectors: 256 of 544 bytes used",
        "d: 32 lanes, 1 sector: 8 of 32 bytes used",
    ]


def test_sectors_in_words():
    trace = simt.trace(copy_three_ways, 1, 32, *np.zeros((2, 80, 80), np.float32))
    drawing = sectors(trace)  # in the microscope's report, not in a lesson
    check(drawing)
    assert drawing.describe().splitlines() == [
        "x, loads: 512 bytes asked for, 1,472 moved, 35% used",
        "y, stores: 512 bytes asked for, 512 moved, 100% used",
    ]

    @cuda.jit
    def broadcast(x, y):
        y[cuda.threadIdx.x] = x[0]

    trace = simt.trace(broadcast, 1, 32, *np.zeros((2, 32), np.float32))
    assert (
        "x, loads: 128 bytes asked for, 32 moved, each byte for 4 threads"
        in sectors(trace).describe()
    )


@pytest.mark.parametrize("words", [[5] * 32, [7 * 1000 * n for n in range(32)], [3] + [-1] * 31])
def test_banks_draws_any_request(words):
    picture = banks({"one": (words, None), "two": (list(range(32)), 40)})
    assert picture.get_figheight() < 9
    bank_of = {word: word % 32 for word in words if word >= 0}
    wavefronts = max(Counter(bank_of.values()).values())
    assert f"{wavefronts} wavefront" in picture.describe()
    picture.png()


def test_a_race_over_many_lines_leaves_out_the_middle(tmp_path):
    middle = "\n".join(f"    a{n} = a0 + {n}" for n in range(1, 60))
    source = f"""
from numba import cuda, float32

@cuda.jit
def far_apart(x):
    tile = cuda.shared.array(64, float32)
    tx = cuda.threadIdx.x
    tile[tx] = x[tx]
    a0 = 0
{middle}
    x[tx] = tile[63 - tx] + a59
"""
    path = tmp_path / "far_apart.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("far_apart", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    trace = simt.trace(module.far_apart, 1, 64, np.zeros(64, np.float32))
    picture = race_diagram(trace.races[0], module.far_apart)
    assert picture.get_figheight() < 5
    _, texts = rendered(picture)
    written = " ".join(text.get_text() for text, *_ in texts)
    assert "tile[tx] = x[tx]" in written and "tile[63 - tx]" in written and "⋮" in written
