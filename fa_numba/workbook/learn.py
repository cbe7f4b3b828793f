"""``fa-numba learn [06]``: the lessons in JupyterLab, as copies to work in."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from fa_numba.workbook import folder, lessons
from fa_numba.workbook.catalog import course, find, find_root

FIRST = "00_first_kernels.ipynb"


def command(root, *, as_root: bool, first: str = FIRST) -> list[str]:
    """The command that starts JupyterLab on the lesson in the file `first`.

    Links of the lessons lead to files in the learner's folder `root`. Jupyter refuses the user root
    without a word.
    """
    started = [
        sys.executable,
        "-m",
        "jupyterlab",
        f"--ServerApp.root_dir={root}",
        # Instead of a file's name: the printed address opens the lesson as well.
        f"--LabApp.default_url=/lab/tree/{lessons.FOLDER}/{first}",
        "--log-level=WARN",  # the address is printed at a higher level
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    return started + ["--allow-root"] * as_root


def set_defaults(prefix):
    """Change two defaults of JupyterLab, for everybody in the environment `prefix`.

    It does not ask about news, and it saves drawings with sliders: else a lesson that is opened
    again has "Error displaying widget" in their place. Present settings are kept.
    """
    path = Path(prefix, "share", "jupyter", "lab", "settings", "overrides.json")
    with contextlib.suppress(OSError, ValueError):  # somebody else's environment: it stays as it is
        there = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        defaults = {
            "@jupyterlab/apputils-extension:notification": {"fetchNews": "false"},
            "@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": True},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(defaults | there, indent=1) + "\n", encoding="utf-8")


def main(options) -> int:
    """Bring the copies up to date and become JupyterLab.

    `options.more` are further options of JupyterLab, such as ``--no-browser``; `options.name` is a
    lesson to open, such as ``"06"``, or an exercise of it; lesson 00 where it is None.
    """
    root = find_root()
    first = FIRST
    if options.name is not None:
        lesson = find(options.name, root)[0].lesson
        first = next((course(root) / "notebooks").glob(f"{lesson}_*.ipynb")).name
    said = folder.update(root)
    new = [line for line in said if line.endswith(lessons.NEW)]
    if new:
        print(f"{lessons.FOLDER}/: {len(new)} lessons {lessons.NEW}")
    for line in said:
        if line not in new:
            print(line)
    set_defaults(sys.prefix)
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if as_root:
        print("You are root: JupyterLab runs with --allow-root, and a notebook may do all you may.")
    print(
        f"Lesson {first[:2]} opens in a browser. Elsewhere (ssh, WSL): open the address printed "
        "below."
    )
    sys.stdout.flush()
    started = [*command(root, as_root=as_root, first=first), *options.more]
    os.execv(started[0], started)
