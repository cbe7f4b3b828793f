"""Every drawing of the gallery: complete, legible on any page, nothing cut off or overprinted."""

import importlib.util
import inspect
import io
import pkgutil
import warnings
from collections import Counter
from html import escape

import numpy as np
import pytest
from colours import contrast, in_the_dark
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from numba import cuda

from fa_numba import figures, simt
from fa_numba.analysis import cuda_tools
from fa_numba.analysis.cuda_tools import disassembler_available
from fa_numba.figures import __main__ as figures_command
from fa_numba.figures import gallery, sheet
from fa_numba.figures.addresses import addresses
from fa_numba.figures.banks import banks
from fa_numba.figures.race import race_diagram
from fa_numba.figures.sectors import sectors
from fa_numba.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PAPER, PURPLE, RED, Drawing

DPI = 150
NO_DRAWINGS = {"__main__", "gallery", "sheet", "steps", "style", "themes"}


def drawn(name):
    """An example, made in a style that is as unlike ours as can be."""
    with style.context("dark_background"):
        try:
            return getattr(gallery, name)()
        except gallery.NotDrawnError as error:
            assert not disassembler_available()
            pytest.skip(str(error))


@pytest.fixture
def no_compiler(monkeypatch):
    def missing(*args, **options):
        raise cuda_tools.CompilerMissingError("machine code needs ptxas\nand more")

    monkeypatch.setattr(gallery.analysis, "machine_code", missing)


def rendered(drawing):
    """The drawing's pixels, and each text on it with its box in pixels and its ground.

    The ground has the colours, (n, 3), that were where the text's letters are now.
    """
    texts, original = [], Text.draw

    def draw(self, renderer):
        if not (self.get_visible() and self.get_text().strip()):
            return original(self, renderer)
        box = self.get_window_extent(renderer)
        image = np.asarray(renderer.buffer_rgba())
        rows = slice(max(0, int(len(image) - box.y1)), int(len(image) - box.y0) + 1)
        part = image[rows, max(0, int(box.x0)) : int(box.x1) + 1, :3]
        before = part.copy()
        original(self, renderer)
        ground = before[(part != before).any(-1)] / 255
        if patch := self.get_bbox_patch():
            ground = np.array([to_rgb(patch.get_facecolor())])
        texts.append((self, box, ground))

    drawing.set_dpi(DPI)
    canvas = FigureCanvasAgg(drawing)
    with style.context("dark_background"), pytest.MonkeyPatch.context() as patched:
        patched.setattr(Text, "draw", draw)
        canvas.draw()  # it computes the layout first
    return np.asarray(canvas.buffer_rgba()), texts


@pytest.mark.parametrize("theme", [np.asarray, in_the_dark])
def test_colours_stand_out_on_their_ground(theme):
    """On white by 4.5 : 1; a mark may be paper on a colour, too, which is the same."""
    for colour in (INK, GREY, BLUE, ORANGE, GREEN, RED, PURPLE):
        assert contrast(theme(to_rgb(colour)), theme(to_rgb(PAPER))) >= 4.5, colour


def names():
    return [example.__name__ for example in gallery.EXAMPLES]


def test_every_file_of_drawings_has_an_example():
    files = {m.name for m in pkgutil.iter_modules(figures.__path__)} - NO_DRAWINGS
    made = [importlib.import_module(f"fa_numba.figures.{name}") for name in files]
    functions = {
        name
        for module in made
        for name, x in vars(module).items()
        if inspect.isfunction(x) and x.__module__ == module.__name__ and inspect.unwrap(x) is not x
    }
    assert len(functions) == len(files), "one file per drawing"
    used = {name for name in functions if hasattr(gallery, name)}
    assert used == functions
    assert len(gallery.EXAMPLES) == len(functions)


@pytest.mark.parametrize("name", names())
def test_is_legible_and_has_a_text_form(name, monkeypatch):
    drawing = drawn(name)
    assert isinstance(drawing, Drawing)
    monkeypatch.setattr(drawing, "png", bytes)  # `rendered` makes the pixels
    text = drawing.describe()
    assert len(text) > 30 and repr(drawing) == text
    alternative = drawing.alternative()
    assert drawing._repr_html_().startswith(f'<img alt="{escape(alternative)}" ')
    assert drawing.subject[-1] in ".:" and alternative.startswith(drawing.subject + "\n")
    assert set(alternative.splitlines()[1:]) <= set(text.splitlines())
    assert all(line == line.rstrip() for line in text.splitlines())
    pixels, texts = rendered(drawing)
    height, width = pixels.shape[:2]
    assert (pixels[..., 3] == 255).all(), "the ground is opaque"
    corners = pixels[[0, 0, -1, -1], [0, -1, 0, -1], :3]
    assert np.abs(corners / 255 - to_rgb(PAPER)).max() < 0.2, "and light"
    assert texts
    for text, box, ground in texts:
        said = text.get_text()
        inside = -1 <= box.x0 and box.x1 <= width + 1 and -1 <= box.y0 and box.y1 <= height + 1
        assert inside, f"{said!r} is cut off: {box}"
        for theme in (np.asarray, in_the_dark):
            found = contrast(theme(to_rgb(text.get_color())), theme(ground))
            found = np.quantile(found, 0.1)  # a line may cross a letter
            assert found >= 4.5, f"{said!r} is too pale: {found:.3g}"
    # Boxes have room above and below the letters, which may overlap. All pairs at once.
    upright = [
        (text.get_text(), box.extents) for text, box, _ in texts if text.get_rotation() % 90 == 0
    ]
    x0, y0, x1, y1 = np.array([extents for _, extents in upright]).reshape(-1, 4).T
    wide = np.minimum.outer(x1, x1) - np.maximum.outer(x0, x0)
    high = np.minimum.outer(y1, y1) - np.maximum.outer(y0, y0)
    overlap = (wide > 1) & (high > 0.25 * np.minimum.outer(y1 - y0, y1 - y0))
    for one, two in np.argwhere(np.triu(overlap, 1)):
        pytest.fail(f"{upright[one][0]!r} lies on {upright[two][0]!r}")


def test_what_needs_a_compiler_is_left_out_and_named(no_compiler, tmp_path, monkeypatch, capsys):
    few = [gallery.occupancy_against_block_size, gallery.a_race]
    monkeypatch.setattr(gallery, "EXAMPLES", few)
    folder = figures_command.main(tmp_path / "figures")
    assert {p.name for p in folder.iterdir()} == {"a_race.png", "a_race.txt", "sheet.png"}
    said = capsys.readouterr().out
    assert "left out: occupancy_against_block_size, because machine code needs ptxas\n" in said
    with pytest.raises(gallery.NotDrawnError, match="needs ptxas"):
        dict(gallery.draw())


def test_a_real_error_is_no_reason_to_leave_out(monkeypatch):
    def broken():
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(gallery, "EXAMPLES", [broken])
    with pytest.raises(RuntimeError, match="of ours"):
        dict(gallery.draw({}))


def test_the_user_s_style_changes_nothing():
    def image():
        return gallery.bytes_by_formula_and_meter().png()

    plain, file = image(), io.BytesIO()
    gallery.bytes_by_formula_and_meter().savefig(file, format="png", dpi=110)
    assert file.getvalue() == plain, "drawn once, as Matplotlib draws it twice"
    with style.context(["dark_background", "ggplot"]):
        assert image() == plain


def test_the_walks_are_those_of_the_papers():
    walks = gallery.walks(16, 20, 4, 4)
    m, n = np.indices((4, 5))
    turn, owner = walks["FlashAttention-1"]
    assert np.array_equal(turn, 4 * n + m) and (owner == 0).all()
    turn, owner = walks["FlashAttention-2"]
    assert np.array_equal(turn, n) and np.array_equal(owner, m)
    turn, _ = gallery.walks(14, 22, 4, 4, causal=True)["FlashAttention-2"]
    last_key = 4 * m[:, :1] + 3 + 22 - 14
    assert np.array_equal(turn >= 0, 4 * np.arange(6) <= last_key)


def test_m_l_acc_are_those_of_softmax():
    scores, m, l, acc = gallery.row_after_each_tile()
    for t in range(len(m)):
        seen = scores[: t + 1].ravel()
        np.testing.assert_allclose(m[t], seen.max(), rtol=1e-6)
        np.testing.assert_allclose(l[t], np.exp(seen - seen.max()).sum(), rtol=1e-5)
    assert acc.shape == (6, 8)


def test_record_keeps_what_the_trace_counts():
    kernel = gallery.make_transpose(33, True)
    x = np.zeros((32, 32), np.float32)
    trace = simt.trace(kernel, 1, (32, 32), x, x.copy())
    accesses = simt.record(kernel, 1, (32, 32), x, x.copy())
    counted = sorted((line.line, line.array, line.action, line.elements) for line in trace.lines)
    kept = sorted((a.line, a.array, a.action, int(a.active.sum())) for a in accesses)
    assert kept == counted
    assert [a.action for a in accesses] == ["load", "store", "load", "store"]


def test_addresses_in_words():
    x = np.zeros((32, 32), np.float64)
    trace = simt.trace(gallery.copy_three_ways, 1, 32, np.zeros((80, 80)), x)
    row, column, shifted, same = (line for line in trace.lines if line.action == "load")
    text = addresses({"a": row, "b": column, "c": shifted, "d": same}).describe()
    assert text.splitlines() == [
        "a: 32 lanes, 8 sectors: 256 of 256 bytes used",
        "b: 32 lanes, 32 sectors: 256 of 1024 bytes used",
        "c: 32 lanes, 17 sectors: 256 of 544 bytes used",
        "d: 32 lanes, 1 sector: 8 of 32 bytes used",
    ]


def test_sectors_in_words():
    trace = simt.trace(gallery.copy_three_ways, 1, 32, *np.zeros((2, 80, 80), np.float32))
    assert sectors(trace).describe().splitlines() == [
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


def test_the_sheet_holds_every_drawing():
    few = {"one": gallery.a_race(), "another_one": gallery.a_page_table()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = sheet.sheet(few, columns=2, width=400)
    assert page.shape[1] == 2 * 400 + 3 * sheet.MARGIN and page.dtype == np.uint8
    left, right = page[:, : page.shape[1] // 2], page[:, page.shape[1] // 2 :]
    assert left.min() < 100 and right.min() < 100
