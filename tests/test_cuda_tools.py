"""Which ptxas and nvdisasm are used, and what is said of those that do not fit."""

from pathlib import Path

import numpy as np
import pytest
from numba import cuda

from fa_numba.analysis import cuda_tools
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.analysis.machine_code import compile_kernel, compile_ptx, machine_code
from fa_numba.runtime import installing
from fa_numba.workbook import cli, doctor

X = np.zeros(32, np.float32)
HAS = {"compiler": cuda_tools.compiler_available(), "nvdisasm": cuda_tools.disassembler_available()}
needs_compiler = pytest.mark.skipif(not HAS["compiler"], reason="needs NVVM and NVRTC")
needs_nvdisasm = pytest.mark.skipif(not HAS["nvdisasm"], reason="needs ptxas and nvdisasm")

# What ptxas of CUDA 13.0 says of PTX from NVVM 13.5.
OLD_PTXAS = """#!/bin/sh
if [ "$1" = --version ]; then echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0; fi
echo "ptxas trial.ptx, line 1; fatal   : Unsupported .version 9.5; current version is '9.0'" >&2
exit 255
"""


@cuda.jit
def twice(x):
    x[cuda.threadIdx.x] *= np.float32(2)


@pytest.fixture(autouse=True)
def asked_anew():
    questions = (cuda_tools.ptx_version, cuda_tools.ptxas, cuda_tools.nvdisasm)
    [question.cache_clear() for question in questions]
    yield
    [question.cache_clear() for question in questions]


@pytest.fixture
def places(monkeypatch):
    """Says where the tools are: {name: [path, ...]}; the others stay where they are."""
    real, said = cuda_tools._paths, {}
    monkeypatch.setattr(cuda_tools, "_paths", lambda name: said.get(name) or real(name))

    def say(**paths):
        said.update(paths)

    return say


@pytest.fixture
def nothing(monkeypatch):
    """Hides every program."""
    monkeypatch.setattr(cuda_tools, "_paths", lambda name: [])


@pytest.fixture
def old_ptxas(tmp_path):
    return program(tmp_path / "ptxas", OLD_PTXAS)


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("version, system, said", [
    ((3, 14, 2), "linux", ""),
    ((3, 15, 0), "linux", "with Python 3.14 or older, "),
    ((3, 14, 2), "darwin", "on Linux, "),
])  # fmt: skip
@pytest.mark.parametrize("in_checkout", [True, False])
def test_the_advice_is_one_that_works_here(monkeypatch, version, system, said, in_checkout):
    monkeypatch.setattr(installing.sys, "version_info", version)
    monkeypatch.setattr(installing.sys, "platform", system)
    monkeypatch.setattr(installing, "IN_CHECKOUT", in_checkout)
    pip = 'pip install -e ".[compiler]"' if in_checkout else 'pip install "fa-numba[compiler]"'
    assert installing.command_for_gpu_code("compiler") == said + pip


@needs_compiler
def test_ptx_without_ptxas(nothing):
    assert cuda_tools.compiler_available()
    assert not cuda_tools.assembler_available()
    assert not cuda_tools.disassembler_available()
    assert ".entry" in compile_ptx(twice, (X,))
    gpu_ready(twice, (X,))
    with pytest.raises(cuda_tools.CompilerMissingError, match="needs ptxas: pip install"):
        compile_kernel(twice, (X,))


@needs_compiler
def test_ptxas_older_than_the_compiler_is_said_in_one_sentence(places, old_ptxas):
    places(ptxas=[old_ptxas])
    assert cuda_tools.compiler_available() and not cuda_tools.assembler_available()
    with pytest.raises(cuda_tools.CompilerMissingError) as error:
        compile_kernel(twice, (X,))
    version = cuda_tools.ptx_version()
    assert str(error.value).startswith(
        f"ptxas 13.0 ({old_ptxas}) is older than the compiler's PTX {version}: it reads PTX 9.0. "
        'Newer: pip install -e ".['
    )
    assert "\n" not in str(error.value)


@needs_nvdisasm
def test_a_tool_that_fits_is_used_although_an_older_one_is_found_first(places, old_ptxas):
    good = cuda_tools.ptxas().path
    cuda_tools.ptxas.cache_clear()
    places(ptxas=[old_ptxas, good])
    assert cuda_tools.ptxas().path == good
    assert compile_kernel(twice, (X,)).registers > 0


@needs_nvdisasm
def test_installed_tools_come_before_those_on_the_path(tmp_path, monkeypatch, old_ptxas):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = cuda_tools._paths("ptxas")
    assert found[-1] == old_ptxas and len(found) > 1
    assert cuda_tools.ptxas().path != old_ptxas


@needs_nvdisasm
def test_no_nvdisasm_leaves_machine_code_without_a_listing(places, tmp_path):
    places(nvdisasm=[program(tmp_path / "nvdisasm", "#!/bin/sh\necho broken >&2; exit 1\n")])
    assert cuda_tools.assembler_available() and not cuda_tools.disassembler_available()
    code = machine_code(twice, (X,), device="T4")
    assert code.registers > 0
    with pytest.raises(cuda_tools.CompilerMissingError, match="nvdisasm.*fails: broken"):
        code.instructions  # noqa: B018


@needs_nvdisasm
def test_a_program_that_does_not_run_is_no_tool(places, tmp_path):
    places(ptxas=[program(tmp_path / "ptxas", "no program\0")])
    assert not cuda_tools.assembler_available()


@needs_compiler
def test_doctor_names_the_tools_and_what_is_wrong(places, old_ptxas):
    if HAS["nvdisasm"]:
        rows = dict(doctor.rows())
        release, path = rows["ptxas"].split(", ")
        assert release == cuda_tools.ptxas().release
        assert Path.cwd() / path == Path(cuda_tools.ptxas().path)
        assert cuda_tools.nvdisasm().path.endswith(rows["nvdisasm"].split(", ")[1])
    cuda_tools.ptxas.cache_clear(), cuda_tools.nvdisasm.cache_clear()
    places(ptxas=[old_ptxas])
    rows = dict(doctor.rows())
    assert f"PTX {cuda_tools.ptx_version()}" in rows["compiler"]
    assert "is older than the compiler's PTX" in rows["ptxas"]


@needs_compiler
def test_trace_blames_an_old_ptxas_and_not_the_kernel(places, old_ptxas, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from numba import cuda\n\n\n@cuda.jit\ndef copy(x, y):\n"
        "    y[cuda.threadIdx.x] = x[cuda.threadIdx.x]\n"
    )
    places(ptxas=[old_ptxas])
    target = f"{tmp_path / 'mine.py'}:copy"
    assert cli.main(["trace", target, "--grid=1", "--block=32", "x=f4[32]", "y=f4[32]"]) == 0
    out = capsys.readouterr().out
    assert "does not compile" not in out
    assert "not known: ptxas 13.0" in out and "is older than the compiler's PTX" in out
