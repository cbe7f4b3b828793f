"""Write the tables of docs/other_languages.md: python docs/make_other_languages.py.

A line of a kernel is shown if it ends in the name of a step, `#: scores`. Numba's lines are those
of solutions/ex07d_flash_attn_v2.py. The counts are those of compiled.json.
"""

import json
import re
from pathlib import Path

from fa_numba.workbook.tables import between_marks

HERE = Path(__file__).parent
KERNELS = HERE / "other_languages"
PAGE = HERE / "other_languages.md"
NUMBA = HERE.parent / "solutions" / "ex07d_flash_attn_v2.py"
LANGUAGES = {  # the file, and the package that compiles it
    "Numba CUDA": (NUMBA, "numba-cuda"),
    "CUDA C++": (KERNELS / "cuda_cpp.cu", "cuda-bindings"),
    "Mojo": (KERNELS / "mojo_kernel.mojo", "mojo"),
    "CuTe DSL": (KERNELS / "cute_kernel.py", "nvidia-cutlass-dsl"),
    "Triton": (KERNELS / "triton_kernel.py", "triton"),
    "cuTile": (KERNELS / "cutile_kernel.py", "cuda-tile"),
}
STEPS = {
    "own": "Whose queries?",
    "q": "Load Q",
    "state": "m, ℓ and acc",
    "kv": "Load a tile of K (V is alike)",
    "ready": "Wait until the tile is there",
    "scores": "S = Q Kᵀ",
    "edge": "Keys that do not exist",
    "max": "The new maximum",
    "alpha": "α",
    "p": "P",
    "sum": "ℓ ← α ℓ + rowsum(P)",
    "acc": "acc ← α acc + P V",
    "free": "Wait until the tile may be overwritten",
    "out": "Store",
}
OF_NUMBA = {  # the beginning of each step's line
    "own": "m = m_start + ty",
    "q": "q_tile[ty, d] = ",
    "state": "m_i = float32(-math.inf)",
    "kv": "k_tile[row, d] = ",
    "ready": "cuda.syncthreads()  # q_tile, k_tile, v_tile are complete",
    "scores": "s += q_tile",
    "edge": "s = float32(-math.inf)",
    "max": "m_new = max(m_new",
    "alpha": "alpha = ",
    "p": "p_tile[ty, tx] = ",
    "sum": "l_i += p_tile",
    "acc": "acc[i] += p_tile",
    "free": "cuda.syncthreads()  # every thread is done with v_tile",
    "out": "out[m, d] = ",
}


def lines_of(file):
    """The lines of each step: {step: [line, ...]}."""
    text = file.read_text(encoding="utf-8").splitlines()
    if file == NUMBA:
        found = {
            step: [x.strip() for x in text if x.strip().startswith(start)]
            for step, start in OF_NUMBA.items()
        }
        return {step: [re.sub(r"\s+#.*", "", x) for x in lines] for step, lines in found.items()}
    found = {step: [] for step in STEPS}
    for line in text:
        if marked := re.fullmatch(r"\s*(.*?)\s*(?:#|//): (\w+)", line):
            found[marked[2]].append(marked[1])
    return found


def steps():
    """A heading for each step, and the line of each language."""
    found = {name: lines_of(file) for name, (file, _) in LANGUAGES.items()}
    parts = []
    for step, title in STEPS.items():
        parts.append(f"**{title}**\n\n| | |\n|---|---|")
        for name, lines in found.items():
            code = "<br>".join(f"`{x}`".replace("|", "\\|") for x in lines[step])
            parts.append(f"| {name} | {code or 'the compiler does it'} |")
        parts.append("")
    return "\n".join(parts)


def counts():
    """The instructions of each kernel."""
    compiled = json.loads((KERNELS / "compiled.json").read_text(encoding="utf-8"))
    kinds = [kind for kind in compiled["triton"] if kind != "version"]
    rows = [f"| | compiled by | {' | '.join(kinds)} |", "|---|---|" + "---:|" * len(kinds)]
    names = {package: name for name, (_, package) in LANGUAGES.items()}
    names |= {"cuda-tile sm_80": "cuTile, A100", "cuda-tile sm_100": "cuTile, B200"}
    for key, name in names.items():
        row, (package, *_) = compiled[key], key.split()
        numbers = " | ".join(str(row[kind] or "") for kind in kinds)
        rows.append(f"| {name} | {package} {row['version']} | {numbers} |")
    return "\n".join(rows)


def written(text):
    """The page with its tables."""
    return between_marks(text, {"steps": steps(), "counts": counts()})


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
