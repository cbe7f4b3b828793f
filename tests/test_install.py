"""install.py and the Makefile: which Python, which versions, and nothing twice."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
MAKE = shutil.which("make")
needs_make = pytest.mark.skipif(MAKE is None, reason="needs make")


def load(folder):
    spec = importlib.util.spec_from_file_location("install", folder / "install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def install(tmp_path, monkeypatch):
    """The script, in a copy of the checkout; what it would have pip do is kept in `asked`."""
    for name in ("install.py", "pyproject.toml", "Makefile"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "constraints", tmp_path / "constraints")
    (tmp_path / "engine").mkdir()
    shutil.copy(ROOT / "engine/pyproject.toml", tmp_path / "engine")
    module = load(tmp_path)
    module.asked = []
    monkeypatch.setattr(module, "pip", lambda venv, what, arguments: module.asked.append(arguments))
    monkeypatch.setattr(module, "accelerator", lambda: "compiler")
    # A virtual environment takes ten seconds to make: a folder stands for it.
    mine = "{}.{}".format(*sys.version_info[:2])
    monkeypatch.setattr(module, "create", os.mkdir)
    monkeypatch.setattr(module, "version_of", lambda venv: mine if os.path.isdir(venv) else None)

    def call(*arguments):
        module.asked.clear()
        monkeypatch.setattr(sys, "argv", ["install.py", *arguments])
        module.main()
        return module.asked

    module.call = call
    return module


@pytest.mark.parametrize("version, age", [((3, 10, 13), "old"), ((2, 7, 18), "old"),
                                          ((3, 99, 0), "new")])  # fmt: skip
def test_a_python_that_does_not_fit_is_refused_before_anything(
    install, monkeypatch, capsys, version, age
):
    monkeypatch.setattr(sys, "version_info", version)
    monkeypatch.setattr(install, "runs", lambda command: command[0] in ("python3.12", "python3.15"))
    with pytest.raises(SystemExit) as stop:
        install.call()
    said = capsys.readouterr().err
    assert stop.value.code == 1 and not install.asked
    assert f"is too {age}: fa-numba needs 3.11 to 3.15" in said
    assert "This machine has python3.12:  make PYTHON=python3.12" in said
    assert not Path(install.ROOT, ".venv").exists()


def test_the_second_call_installs_nothing(install):
    first, second = install.call("lessons"), None
    assert len(install.asked) == 2 and ".[lessons,serve,compiler]" in first[-1]
    assert "./engine" in first[-1]
    second = install.call("lessons")
    assert second == []
    assert ".[lessons,serve,dev,mpi,compiler]" in install.call("dev")[-1]
    assert install.call("lessons") == [] == install.call("dev")


@pytest.mark.parametrize(
    "file", ["pyproject.toml", "engine/pyproject.toml", "constraints/cuda13.txt"]
)
def test_what_has_changed_is_installed_again(install, file):
    install.call()
    with Path(install.ROOT, file).open("a") as stream:
        stream.write("# changed\n")
    assert install.call()


@pytest.mark.parametrize("extra, file", [("compiler", "cuda13"), ("cuda13", "cuda13"),
                                         ("cuda12", "cuda12")])  # fmt: skip
def test_versions_are_those_of_the_constraints(install, monkeypatch, extra, file):
    monkeypatch.setattr(install, "accelerator", lambda: extra)
    for arguments in install.call():
        assert arguments[:2] == ["--constraint", f"constraints/{file}.txt"]


@pytest.mark.parametrize("version, said", [((3, 14, 2), ""), ((3, 15, 0), "PYTHON=python3.14")])
def test_a_python_without_numba_cuda_is_told(install, monkeypatch, capsys, version, said):
    monkeypatch.setattr(sys, "version_info", version)
    assert install.call()
    told = capsys.readouterr().out
    assert said in told and ("no numba-cuda" in told) == bool(said)


def test_newest_has_no_constraints(install):
    for arguments in install.call("dev", "--newest", "--venv", ".venv-newest"):
        assert "--upgrade" in arguments and "--constraint" not in arguments
    assert Path(install.ROOT, ".venv-newest").is_dir()


def test_another_python_makes_the_environment_anew(install, capsys):
    install.call()
    marker = Path(install.ROOT, ".venv", "marker")
    marker.touch()
    install.call()
    assert marker.exists()
    real = install.version_of
    install.version_of = lambda venv: real(venv) and "3.99"
    assert install.call()
    assert not marker.exists()
    assert ".venv is of Python 3.99: it is made anew" in capsys.readouterr().out


def test_an_environment_is_made_and_its_version_read(tmp_path):
    module = load(ROOT)
    module.create(str(tmp_path / "a venv"))
    assert module.version_of(str(tmp_path / "a venv")) == "{}.{}".format(*sys.version_info[:2])
    assert module.version_of(str(tmp_path / "none")) is None


def test_a_moved_environment_is_made_anew(install, capsys):
    install.call()
    stamp = Path(install.ROOT, ".venv", "installed.json")
    stamp.write_text(json.dumps(json.loads(stamp.read_text()) | {"folder": "/elsewhere"}))
    assert install.call()
    assert "has been moved" in capsys.readouterr().out


@pytest.mark.parametrize("said, extra", [
    ("| Driver Version: 535.1  CUDA Version: 12.2  |", "cuda12"),
    ("| Driver Version: 580.1  CUDA Version: 13.0  |", "cuda13"),
    ("| Driver Version: 470.1  CUDA Version: 11.4  |", "compiler"),
    ("NVIDIA-SMI has failed", "compiler"),
    (None, "compiler"),
])  # fmt: skip
def test_the_driver_decides(said, extra):
    module = load(ROOT)
    module.runs = lambda command: said
    assert module.accelerator() == extra


def test_what_pip_says_is_shown_where_it_fails(capfd, monkeypatch):
    module = load(ROOT)
    monkeypatch.setattr(module, "executable", lambda venv: sys.executable)
    with pytest.raises(SystemExit, match="pip install failed"):
        module.pip("", "nothing", ["--no-index", "no-such-package-at-all"])
    said = capfd.readouterr()
    assert said.out == "Installing nothing ...\n"
    assert "No matching distribution found for no-such-package-at-all" in said.err


@needs_make
def test_make_refuses_an_old_python_and_keeps_the_environment_that_is_there(install):
    old = Path(install.ROOT, "old python")
    old.write_text("#!/bin/sh\necho 'too old' >&2; exit 1\n")
    old.chmod(0o755)
    # make reads PYTHON as the shell would: quoted, as a path with a space must be.
    run = make(install.ROOT, "lessons", f"PYTHON='{old}'")
    assert run.returncode == 2 and "too old" in run.stderr
    # Not given, the environment's own Python decides, whatever python3 is.
    own = Path(install.ROOT, ".venv/bin/python")
    own.parent.mkdir(parents=True)
    own.write_text("#!/bin/sh\necho its own: $@\n")
    own.chmod(0o755)
    run = make(install.ROOT, "lessons")
    assert run.stdout == "its own: install.py --venv .venv lessons\n"


def make(folder, *arguments):
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "MAKEFLAGS", "MAKELEVEL")}
    return subprocess.run([MAKE, *arguments], cwd=folder, env=env, capture_output=True, text=True)


def constraints(name):
    """{package: [requirement, ...]} of a file of constraints/."""
    found = {}
    for line in (ROOT / "constraints" / name).read_text().splitlines():
        requirement = Requirement(line)
        found.setdefault(requirement.name.lower(), []).append(requirement)
    return found


@pytest.mark.parametrize("name, extras", [("cuda12.txt", ["cuda12"]),
                                          ("cuda13.txt", ["cuda13", "compiler"])])  # fmt: skip
def test_constraints_pin_all_that_pyproject_asks_for(name, extras):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    engine = tomllib.loads((ROOT / "engine/pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *engine["dependencies"]]
    for extra in [*extras, "lessons", "serve", "dev", "site"]:
        wanted += project["optional-dependencies"][extra]
    pinned = constraints(name)
    for requirement in map(Requirement, wanted):
        if requirement.name == engine["name"]:  # from the checkout
            assert requirement.specifier.contains(engine["version"])
            continue
        there = pinned[re.sub(r"[-_.]+", "-", requirement.name).lower()]
        for pin in there:
            (version,) = pin.specifier
            assert version.operator == "=="
            assert requirement.specifier.contains(version.version), f"{pin}: make constraints"
    assert "hatchling" in pinned


def test_every_python_that_is_allowed_gets_one_version_of_each():
    install = load(ROOT)
    for name in ("cuda12.txt", "cuda13.txt"):
        for minor in range(install.allowed()[0][1], install.allowed()[2][1]):
            system = {"python_full_version": f"3.{minor}.9", "python_version": f"3.{minor}"}
            for package, pins in constraints(name).items():
                fitting = [p for p in pins if p.marker is None or p.marker.evaluate(system)]
                assert len(fitting) <= 1, (name, package)
                if package in ("numpy", "numba", "matplotlib", "jupyterlab"):
                    assert fitting, (name, package, minor)
