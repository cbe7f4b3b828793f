"""Print the size of the tree: tracked files and their lines, by room.

python docs/size.py
"""

import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def room(path):
    """The folder that a file counts for: in fa_numba its room, elsewhere the first folder."""
    folders = path.parts[:-1]
    return "/".join(folders[: 2 if folders[:1] == ("fa_numba",) else 1]) or "."


def main():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    files, lines, binary = Counter(), Counter(), Counter()
    for path in map(Path, filter(None, listed.split("\0"))):
        if not (ROOT / path).is_file():  # deleted, and not committed yet
            continue
        data = (ROOT / path).read_bytes()
        counted = binary if b"\0" in data else files
        counted[room(path)] += 1
        if counted is files:
            lines[room(path)] += data.count(b"\n")
    print(f"{'room':32}{'files':>7}{'lines':>9}{'binary':>8}")
    for name in sorted(files | binary):
        print(f"{name:32}{files[name]:7,}{lines[name]:9,}{binary[name] or '':>8}")
    print(f"{'all':32}{files.total():7,}{lines.total():9,}{binary.total() or '':>8}")
    package = sum(n for name, n in lines.items() if name.startswith("fa_numba"))
    print(f"\nfa_numba/ is {package:,} lines, of which kernels/ is {lines['fa_numba/kernels']:,}")


if __name__ == "__main__":
    main()
