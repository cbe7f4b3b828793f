"""An environment like the learners', for kernels and processes that a test starts.

What `make learn` installs is known from `pyproject.toml` and from what the installed packages say
they need. Everything else that happens to be here, such as the tools of the tests, is hidden.
"""

import functools
import importlib.metadata
import os
import re
import shutil
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYTHON = os.environ.get("FA_NUMBA_LEARN_PYTHON")  # of a virtual environment by `make learn`
COMPILERS = ("nvvm", "nvrtc", "nvJitLink")  # libraries, as cuda.pathfinder calls them
TOOLS = ("ptxas", "nvdisasm", "nvcc")

# Read by Python at its start. Only what the usual finder would find is hidden.
SITECUSTOMIZE = """\
from importlib.machinery import PathFinder

HIDDEN, LIBRARIES = {hidden!r}, {libraries!r}
find = PathFinder.find_spec.__func__


def find_spec(cls, name, path=None, target=None):
    if any(name == hidden or name.startswith(hidden + ".") for hidden in HIDDEN):
        return None
    return find(cls, name, path, target)


PathFinder.find_spec = classmethod(find_spec)

if LIBRARIES:
    from cuda import pathfinder

    load = pathfinder.load_nvidia_dynamic_lib

    def load_others(name):
        if name in LIBRARIES:
            raise pathfinder.DynamicLibNotFoundError(f"{{name}} is hidden")
        return load(name)

    pathfinder.load_nvidia_dynamic_lib = load_others
"""


def learner_distributions():
    """Names of all distributions that `pip install -e ".[lessons,compiler]"` brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    waiting = [*project["dependencies"], *extras["lessons"], *extras["compiler"]]
    found = set()
    while waiting:
        requirement = Requirement(waiting.pop())
        environments = [{"extra": extra} for extra in ("", *requirement.extras)]
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        key = canonicalize_name(requirement.name), *sorted(requirement.extras)
        if key in found:
            continue
        found.add(key)
        try:
            needs = importlib.metadata.requires(requirement.name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for line in needs:
            marker = Requirement(line).marker
            if marker is None or any(marker.evaluate(one) for one in environments):
                waiting.append(re.sub(r";.*", "", line))
    return {name for name, *_ in found}


@functools.cache
def not_for_learners():
    """Names of modules that are installed here, and that `make learn` would not install."""
    theirs = learner_distributions()
    return sorted(
        module
        for module, distributions in importlib.metadata.packages_distributions().items()
        if module.isidentifier()
        and module != "fa_numba"
        and not theirs & set(map(canonicalize_name, distributions))
    )


def environment(folder, hidden, libraries=()):
    """Variables of a process that does not see the hidden modules and libraries.

    Parameters
    ----------
    folder : path
        Where the file goes that hides them; for this test alone.
    hidden : sequence of str
        Modules, with all that is in them.
    libraries : sequence of str
        Of CUDA, such as ``"nvvm"``.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(
        SITECUSTOMIZE.format(hidden=tuple(hidden), libraries=tuple(libraries)), encoding="utf-8"
    )
    return {"PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT, ROOT / "engine")))}


def path_without_tools():
    """PATH without the folders that hold a tool of CUDA."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join(
        f for f in folders if not any(shutil.which(tool, path=f) for tool in TOOLS)
    )
