"""Write docs/hostile_files.md: ``python -m tests.hostile_table`` at the root.

The files are those of test_hostile_answers.py, graded in one run; before and after each of them is
a right answer, its neighbour.
"""

import json
import os
import platform
import re
import subprocess
import tempfile
from pathlib import Path

from fa_numba.workbook.grading import wall
from tests import test_hostile_answers as hostile

PAGE = Path(__file__).parents[1] / "docs" / "hostile_files.md"
HEAD = """# Hostile files

`python -m tests.hostile_table` writes this page. Each file of
[the tests](../tests/test_hostile_answers.py) is graded between two right answers, its neighbours,
all of them in one run. Three functions are graded: a file that harms in one of them keeps its
points for the others. For a cheat the message is the error that it met. Seconds are the file's own,
of all checks; its limits are 0.4 s a check and 3 s in all. Measured on {machine}.

| file | its verdict | neighbours | seconds | message |
|---|---|---|---|---|
"""


def graded(files):
    """The checks of each file, in the order of the files."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        names = hostile.make_workbook(root, files)
        answer = Path(folder, "grade.json")
        subprocess.run(
            hostile.command(f"--grade-json={answer}"), cwd=root, env=hostile.environment(),
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        data = {d["name"]: d["checks"] for d in json.loads(answer.read_text(encoding="utf-8"))}
    return [data[full] for full in names.values()]


def page():
    """The text of docs/hostile_files.md."""
    files = [("right", hostile.RIGHT)]
    for name, (text, *_) in hostile.HOSTILE.items():
        files += [(name, text), (f"right_after_{name}", hostile.RIGHT)]
    outcomes = graded(files)
    right = [{c["outcome"] for c in checks} == {"passed"} for checks in outcomes]
    landlock = f"Landlock {wall.version()}" if wall.version() else "no Landlock"
    machine = f"{platform.system()}, {os.cpu_count()} cores, {landlock}"
    lines = []
    for i in range(1, len(files), 2):
        failed = [c for c in outcomes[i] if c["outcome"] != "passed"]
        verdict = f"{len(failed)} of {len(outcomes[i])} checks fail" if failed else "passed"
        neighbours = "kept" if right[i - 1] and right[i + 1] else "CHANGED"
        seconds = sum(c["seconds"] for c in outcomes[i])
        said = failed[0] if failed else {"message": "", "output": ""}
        caught = re.search(r"^CAUGHT (.*)", said["output"], re.MULTILINE)
        said = (caught[1] if caught else said["message"]).partition("\n")[0]
        said = re.sub(r"0x\w+|/\S+/", "…", said)[:90].replace("|", r"\|")
        lines.append(f"| {files[i][0]} | {verdict} | {neighbours} | {seconds:.1f} | {said} |")
    return HEAD.format(machine=machine) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
