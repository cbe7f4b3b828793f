"""Write the tables of docs/functions.md: every public function, by its docstring's first sentence.

python docs/make_functions.py
"""

import importlib
import inspect
from pathlib import Path

import fa_numba
from fa_numba import masks
from fa_numba.dispatch import JOBS
from fa_numba.workbook.tables import as_markdown, between_marks

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "functions.md"

GROUPS = {
    "Jobs: by the fastest kernel that can": (
        "flash_attn flash_attn_grad flash_attn_varlen flash_attn_varlen_grad flash_decode "
        "paged_attn_decode mla_decode softmax softmax_topk which"
    ),
    "Softmax, one kernel each": (
        "naive_softmax safe_softmax online_softmax softmax_registers softmax_topk_warps"
    ),
    "Attention, one kernel each": (
        "naive_attn lazy_softmax_attn flash_attn_v1 flash_attn_v2 flash_attn_v2_unsigned "
        "flash_attn_v2_4x4 flash_attn_registers flash_attn_bwd flash_attn_bwd_registers "
        "flash_attn_varlen_bwd linear_attn"
    ),
    "Parts of decoding, and pages": (
        "merge_states cascade_decode topk_decode paged_kv_lookup reshape_and_cache "
        "copy_pages swap_pages PagePool"
    ),
    "Where kernels run": "backend",
}


def sentence(function):
    """The first sentence of a docstring, on one line."""
    return " ".join(inspect.getdoc(function).split("\n\n")[0].split())


def row(name, function):
    path = Path(inspect.getsourcefile(inspect.unwrap(function))).relative_to(ROOT)
    return f"[`{name}`](../{path})", sentence(function)


def table(functions):
    return as_markdown(["function", "purpose"], (row(*item) for item in functions.items()))


def modules():
    """Kernels that are imported from a module of their name."""
    found = {}
    for room, files in (
        ("kernels", [f"{job}.py" for job in JOBS]),
        ("on_cuda_cores", ["flash_*.py"]),
        ("tensor_core", ["flash_*.py", "mla_*.py"]),
    ):
        for path in sorted(x for file in files for x in (ROOT / "fa_numba" / room).glob(file)):
            function = getattr(importlib.import_module(f"fa_numba.{room}.{path.stem}"), path.stem)
            if getattr(fa_numba, path.stem, None) is not function:
                found[path.stem] = function
    return found


def page():
    """The text of docs/functions.md with new tables."""
    listed = [name for names in GROUPS.values() for name in names.split()]
    if sorted(listed) != sorted(fa_numba.__all__):
        odd = ", ".join(sorted(set(listed) ^ set(fa_numba.__all__))) or "a name that is there twice"
        raise ValueError(f"GROUPS must list each name of fa_numba.__all__ once; see {odd}")
    groups = []
    for title, names in GROUPS.items():
        functions = {name: getattr(fa_numba, name) for name in names.split()}
        groups.append(f"## {title}\n\n{table(functions)}")
    of_masks = table({name: getattr(masks, name) for name in masks.__all__})
    parts = {"groups": "\n\n".join(groups), "modules": table(modules()), "masks": of_masks}
    return between_marks(PAGE.read_text(encoding="utf-8"), parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
