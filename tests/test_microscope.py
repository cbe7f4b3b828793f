"""`fa-numba trace` and `%%trace`: one report on any kernel, and errors that name what is wrong."""

import sys

import numpy as np
import pytest
from numba import cuda, float32
from numba.core.errors import TypingError

import fa_numba
from fa_numba import simt
from fa_numba.analysis import cuda_tools
from fa_numba.microscope import command
from fa_numba.microscope.report import LaunchReport, LaunchReports
from fa_numba.workbook import cli
from numba_cuda_simulator.devices import chip

HAS_COMPILER = cuda_tools.disassembler_available()
PTX_VERSION = cuda_tools.ptx_version

SOURCE = '''
"""Kernels of a learner."""

import numpy as np
from helper import TILE
from numba import cuda, float32


@cuda.jit
def transpose(x, y, n):
    tile = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile[ty, tx] = x[ty, tx] if ty < n else float32(0)
    cuda.syncthreads()
    y[ty, tx] = tile[tx, ty]  # in order


@cuda.jit
def forgets(x, y):
    tile = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile[ty, tx] = x[ty, tx]
    y[ty, tx] = tile[tx, ty]


@cuda.jit
def column(x, y):
    tx = cuda.threadIdx.x
    y[tx] = x[tx, 0]


@cuda.jit
def outside(x):
    x[cuda.grid(1) + 7] = 0


@cuda.jit
def dynamic(x):
    tile = cuda.shared.array(0, float32)
    tile[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    x[cuda.threadIdx.x] = tile[cuda.threadIdx.x]


def make_scale(FACTOR):
    @cuda.jit
    def scale(x, shift):
        i = cuda.grid(1)
        if i < x.shape[0]:
            x[i] = x[i] * float32(FACTOR) + shift

    return scale


def ready():
    x = np.ones((32, 32), np.float32)
    return transpose, (1, 1), (32, 32), (x, x.copy(), 32)


def launches(n):
    x = np.zeros(64, np.float32)
    scale = make_scale(3)
    for _ in range(n):
        scale[2, 32](x, np.float32(1))


def refuses(n):
    raise ValueError("n must be even")


class holder:
    kernel = transpose
'''

RACING = "    tile[ty, tx] = x[ty, tx]", "    y[ty, tx] = tile[tx, ty]"
SQUARE = "x=f4[32,32] y=f4[32,32]:zeros".split()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "helper.py").write_text("TILE = 32\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch):
    """Compiling costs more than all else here, and is asked for by the tests that look at it."""

    def missing():
        raise cuda_tools.CompilerMissingError(
            'compiling needs NVVM and NVRTC: pip install -e ".[compiler]"'
        )

    monkeypatch.setattr(cuda_tools, "ptx_version", missing)


@pytest.fixture
def with_compiler(monkeypatch):
    monkeypatch.setattr(cuda_tools, "ptx_version", PTX_VERSION)


def run(*argv):
    """Exit status of the command."""
    return cli.main(["trace", *argv])


def report(text, *argv, **options):
    (only,) = command.trace(text, argv, **options)
    return only


def test_a_kernel_of_a_file(folder, capsys, with_compiler):
    dims = "--grid", "1", "--block", "32,32"
    assert run("mine.py:transpose", *dims, *SQUARE, "n=32") == 0
    out = capsys.readouterr().out
    assert out.startswith("transpose: 1 blocks of 32 x 32 threads, 1 barriers\n====")
    for words in ("global memory", "shared memory", "992", "none found",
                  "occupancy", "roofline of the H100", "machine code"):  # fmt: skip
        assert words in out
    assert "32 wavefronts a request, 992 bank conflicts" in out


def test_arguments_may_stand_before_and_after_options(folder, capsys):
    argv = "x=f4[32,32]", "--grid", "1", "y=f4[32,32]", "--block", "32,32", "n=3"
    assert run("mine.py:transpose", *argv) == 0


def test_a_race_is_reported_with_both_lines_and_exit_status(folder, capsys):
    assert run("mine.py:forgets", "--grid", "1", "--block", "32,32", *SQUARE) == 1
    out = capsys.readouterr().out
    assert "RAW race on tile" in out
    stores, loads = (SOURCE.splitlines().index(line) + 1 for line in RACING)
    assert f"mine.py, line {stores}" in out and f"loads at line {loads}" in out


def test_wasteful_lines_are_named_worst_first(folder):
    one = report("mine.py:column", "x=f4[32,64]", "y=f4[32]", grid="1", block="32")
    (line,) = one.wasteful()
    assert (line.array, line.action, line.requests, line.cost) == ("x", "load", 1, 32)
    assert "32 sectors a request, 12% of their bytes used" in one.text()


@pytest.mark.parametrize("target", ["mine.py:ready", "mine:ready"])
def test_a_function_that_returns_a_launch(folder, target):
    one = report(target)
    assert one.trace.kernel == "transpose" and one.trace.block == (32, 32, 1)


def test_a_factory_takes_what_it_knows_and_the_kernel_the_rest(folder):
    argv = "FACTOR=3", "x=f4[64]", "shift=1:f4"
    one = report("mine.py:make_scale", *argv, grid="2", block="32")
    assert one.trace.kernel == "scale"
    assert one.trace.launched.arguments[1].dtype == np.float32
    assert one.flops == 64 * 2


def test_equal_launches_share_a_report(folder):
    one = report("mine.py:launches", "n=3")
    assert one.times == 3 and one.title.endswith(", 3 times")


def test_a_kernel_inside_a_class(folder):
    assert report("mine.py:holder.kernel", *SQUARE, "n=1", grid="1", block="32,32")


def test_dynamic_shared_memory(folder):
    one = report("mine.py:dynamic", "x=f4[32]", grid="1", block="32", shared_bytes=128)
    assert one.trace.shared_bytes == 128 and one.occupancy.shared_bytes == 128


def test_a_launcher_of_ours_traces_every_launch():
    arrays = [f"{name}=f4[1,40,1,8]" for name in "qkv"]
    reports = command.trace("fa_numba:naive_attn", [*arrays, "causal=True"])
    assert len(reports) == 3
    with simt.tracing() as traces:
        fa_numba.naive_attn(*np.zeros((3, 1, 40, 1, 8), np.float32), causal=True)
    for one, trace in zip(reports, traces, strict=True):
        assert one.trace.kernel == trace.kernel
        for name, array in trace.arrays.items():
            assert one.trace.arrays[name] == array


ERRORS = {
    "mine": "must be file.py:name or package.module:name, got 'mine'",
    "mine.py:": "must be file.py:name",
    "yours.py:kernel": "there is no file yours.py",
    "no_such_module:kernel": "No module named 'no_such_module'",
    "broken.py:kernel": "broken.py does not import: ZeroDivisionError: division by zero",
    "mine.py:nothing": "mine.py has no 'nothing'; its kernels are transpose, forgets, column",
    "helper.py:nothing": "helper.py has no 'nothing'; it has no kernels either",
    "mine.py:TILE": "mine.py:TILE must be a kernel or a function, got int",
    "mine.py:column x=f4[32,1]": "column(x, y) is a kernel: it needs --grid",
    "mine.py:column --grid 1": "column(x, y) is a kernel: it needs --block",
    "mine.py:column --grid 1 --block 32 x=f4[32,1]": "column(x, y) needs y",
    "mine.py:column --grid 1 --block 32 z=1": "column(x, y) has no argument 'z'",
    "mine.py:column --grid 1,b --block 32": "--grid must be one to three ints",
    "mine.py:column --grid 1 --block 1,1,1,1": "--block must be one to three ints",
    "mine.py:column --grid 1 --block 2048 x=f4[32,1] y=f4[32]": "its x must be from 1 to 1024",
    "mine.py:column --grid 0 --block 32 x=f4[32,1] y=f4[32]": "the grid is (0,)",
    "mine.py:column --grid 1 --block 32 x=f4[32,1] y=f4[31]": "out of bounds for axis 0 of 'y'",
    "mine.py:column --shared -1": "--shared must not be negative, got -1",
    "mine.py:column --device X9": "--device: no GPU 'X9' in the table; it has T4, V100",
    "mine.py:column x=q7[3]": "must be one of f4, f8, f2, i4, i8, u1, bool, c8; got 'q7'",
    "mine.py:column x=f4[3]:full": "fill must be one of :random, :zeros, :ones, :arange; got :full",
    "mine.py:column x=many": "x=many: must be an array such as f4[1024,64]",
    "mine.py:column x=1 x=2": "x is given twice",
    "mine.py:column x=1:q7": "must be one of f4, f8, f2, i4, i8, u1, bool, c8; got 'q7'",
    "mine.py:column x=@none.npy": "x=@none.npy: cannot be read",
    "mine.py:column x=@two.npz": "the file must hold one array (.npy), got several",
    "mine.py:column nonsense": "an argument is NAME=VALUE, got 'nonsense'",
    "mine.py:ready z=3": "mine.py:ready() has no argument 'z'",
    "mine.py:launches": "missing a required argument: 'n'",
    "mine.py:launches n=0": "mine.py:launches launched no kernel on NumPy arrays",
    "mine.py:refuses n=3": "mine.py:refuses: n must be even",
    "fa_numba:flash_attn_v2 q=f4[1,8,1,4] k=f4[1,8,1,4] v=f4[1,9,1,4]": "v must have the shape",
}


@pytest.mark.parametrize("command", ERRORS)
def test_errors_name_what_is_wrong(folder, capsys, command):
    (folder / "broken.py").write_text("1 / 0\n")
    np.savez(folder / "two.npz", a=np.zeros(1), b=np.zeros(1))
    assert run(*command.split()) == 2
    captured = capsys.readouterr()
    assert ERRORS[command] in captured.err
    assert captured.err.startswith("fa-numba: ") and not captured.out


def test_unknown_options_are_refused(folder):
    with pytest.raises(SystemExit):
        run("mine.py:ready", "--speed", "x=3")


@pytest.mark.parametrize(
    "text, dtype, shape",
    [
        ("f4[2,3]", "f4", (2, 3)),
        ("float64[5]", "f8", (5,)),
        ("i4[4]:arange", "i4", (4,)),
        ("u1[]", "u1", ()),
        ("bool[7]", "?", (7,)),
        ("c8[2]", "c8", (2,)),
        ("f2[3]:ones", "f2", (3,)),
    ],
)
def test_arrays(text, dtype, shape):
    array = command.parse_value("x", text, np.random.default_rng(0))
    assert array.dtype == np.dtype(dtype) and array.shape == shape


def test_values(folder):
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", np.arange(3))
    texts = "n=-3 a=0.5 b=1e-3:f4 c=7:i4 d=True e=None x=@x.npy i=i8[99] z=f4[4]:zeros"
    values = command.parse_arguments(texts.split(), rng)
    assert values["n"] == -3 and isinstance(values["n"], int) and values["a"] == 0.5
    assert type(values["b"]) is np.float32 and type(values["c"]) is np.int32
    assert values["d"] is True and values["e"] is None
    assert np.array_equal(values["x"], [0, 1, 2]) and not values["z"].any()
    assert 0 <= values["i"].min() and values["i"].max() == 9


def test_the_seed_decides_what_is_random(folder):
    arrays = [
        report("mine.py:column", "x=f4[32,1]", "y=f4[32]", grid="1", block="32", seed=seed)
        .trace.launched.arguments[0]
        for seed in (0, 0, 1)
    ]  # fmt: skip
    assert np.array_equal(arrays[0], arrays[1]) and not np.array_equal(arrays[0], arrays[2])


@pytest.mark.parametrize("name", fa_numba.analysis.DEVICES)
def test_every_device_has_its_shared_memory_on_the_engine(name):
    gpu = fa_numba.analysis.device(name)
    engine = command.engine_device(gpu)
    with simt.options(device=engine):
        assert simt.options().previous.device == engine
        assert chip(engine).shared_bytes_per_block == gpu.shared_bytes_per_block


def test_without_a_compiler_the_report_says_so(folder):
    text = report("mine.py:ready").text()
    assert "how many registers it takes is not known" in text
    assert 'not known: compiling needs NVVM and NVRTC: pip install -e ".[compiler]"' in text


@pytest.mark.skipif(not HAS_COMPILER, reason="needs NVVM, NVRTC, ptxas and nvdisasm")
def test_registers_occupancy_and_lint_come_from_the_compiler(folder, with_compiler):
    one = report("mine.py:ready", device="T4")
    assert one.code.cc == (7, 5) and one.code.shared_bytes == 4096
    assert one.occupancy.registers == one.code.registers
    text = one.text()
    assert f"{one.code.registers} registers a thread, 4,096 bytes shared" in text
    assert "negative index" in text and "mine.py:13" in text
    assert "transpose for sm_75" in text


def test_a_kernel_that_does_not_compile_is_reported_all_the_same(folder, monkeypatch):
    def refuse(*args, **options):
        raise TypingError("\x1b[1mcannot unify\nthis and that\x1b[0m")  # as colorama has it

    monkeypatch.setattr(fa_numba.analysis, "lint", refuse)
    one = report("mine.py:ready")
    assert one.code is None and "none found" in one.text()
    assert "not known: it does not compile for a GPU: cannot unify\n  this and that" in one.text()


def test_a_plain_function_is_reported_all_the_same():
    def store(x):
        x[cuda.threadIdx.x] = 1

    one = LaunchReport(simt.trace(store, 1, 32, np.zeros(32, np.float32)))
    assert "not known: the kernel has no @cuda.jit" in one.text()


def test_html_says_what_the_text_says(folder):
    one = report("mine.py:forgets", *SQUARE, grid="1", block="32,32")
    html = one._repr_html_()
    for title, parts in one.sections():
        assert title in html
        for part in parts:
            cells = (
                [str(cell) for row in part.rows for cell in row] if hasattr(part, "rows") else []
            )
            assert all(cell in html.replace(",", "") for cell in cells if cell.isdigit())
    assert "RAW race" in html and html.count("<table>") == html.count("</table>") >= 2


def test_figures_are_written(folder, capsys):
    argv = "--grid", "1", "--block", "32,32", *SQUARE, "--figures", "pictures"
    assert run("mine.py:forgets", *argv) == 1
    written = {path.name for path in (folder / "pictures").iterdir()}
    expected = {"forgets_sectors.png", "forgets_addresses.png", "forgets_banks.png"}
    assert expected <= written and "forgets_race_1.png" in written
    out = capsys.readouterr().out
    assert all(name in out for name in written)


def test_a_launch_without_arrays_in_global_memory_has_a_report(folder, tmp_path):
    @cuda.jit
    def idle(n):
        tile = cuda.shared.array(32, float32)
        tile[cuda.threadIdx.x] = n

    reports = LaunchReports.of([simt.trace(idle, 1, 32, 3)])
    assert "0 bytes before any cache" in repr(reports)
    assert len(reports.write_figures(tmp_path / "few")) >= 1


# --- The cell magic -----------------------------------------------------------------------------


@pytest.fixture
def shell():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "fa_numba.workbook")
    yield shell
    InteractiveShell.clear_instance()


CELL = """
import numpy as np
from numba import cuda

@cuda.jit
def add_one(x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] += 1

x = np.zeros(64, np.float32)
add_one[2, 32](x)
add_one[2, 32](x)
"""


def test_the_magic_reports_the_launches_of_a_cell(shell, capsys):
    shell.run_cell("%%trace --device T4\n" + CELL)
    out = capsys.readouterr().out
    assert "add_one: 2 blocks of 32 threads, 0 barriers, 2 times" in out
    assert "roofline of the T4" in out
    assert shell.user_ns["x"].tolist() == [2] * 64


def test_the_magic_displays_html(shell, monkeypatch):
    from fa_numba.microscope import magic

    shown = []
    monkeypatch.setattr(magic, "display", shown.append)
    shell.run_cell("%%trace --draw\n" + CELL)
    assert shown[0]._repr_html_().startswith("<h4>add_one")
    assert all(drawing.png().startswith(b"\x89PNG") for drawing in shown[1:])
    assert len(shown) >= 3


def test_lines_are_those_of_the_cell(shell, capsys):
    cell = "%%trace\n@cuda.jit\ndef k(x):\n    x[99] = 1\n\nk[1, 1](np.zeros(3))"
    shell.run_cell("import numpy as np\nfrom numba import cuda")
    shell.run_cell(cell)
    assert "line 4\n    x[99] = 1" in capsys.readouterr().out


def test_the_magic_writes_figures(shell, folder):
    shell.run_cell("%%trace --figures pictures\n" + CELL)
    assert (folder / "pictures" / "add_one_addresses.png").exists()


@pytest.mark.parametrize(
    "cell, said",
    [
        ("%%trace\n1 + 1", "launched no kernel to its end on NumPy arrays"),
        ("%%trace\n1 / 0", "ZeroDivisionError"),
        ("%%trace --device X9\n1", "no GPU 'X9' in the table"),
        ("%%trace --speed\n1", "unrecognized arguments: --speed"),
    ],
)
def test_the_magic_says_what_is_wrong(shell, capsys, cell, said):
    shell.run_cell(cell)
    captured = capsys.readouterr()
    assert said in captured.out + captured.err
    assert not simt.tracing.lists


def test_help_shows_the_forms_of_arguments(capsys):
    with pytest.raises(SystemExit):
        run("--help")
    out = capsys.readouterr().out
    assert "x=f4[1024,64]:zeros" in out and "--figures FOLDER" in out
