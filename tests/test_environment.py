"""environment.yml (conda) says what pyproject.toml (pip) says."""

import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement

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
    wanted |= parsed([f"python{project['requires-python']}"])

    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    plain = [line for line in listed if isinstance(line, str) and line != "pip"]
    assert parsed(plain) == wanted
    assert {"pip": ["--no-deps --editable ."]} in listed


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
