"""Attention of a language model by the learner's own kernels, as far as they have passed."""

from __future__ import annotations

from pathlib import Path

from fa_numba.language_model import kernel_choice
from fa_numba.language_model.gradients import Kernels
from fa_numba.workbook import progress
from fa_numba.workbook.catalog import find_one, find_root
from fa_numba.workbook.recorded import say

FORWARD, BACKWARD = ("ex07d",), ("ex08a", "ex08b", "ex08c")


def own_attention(root: Path | None = None) -> Kernels:
    """The learner's kernels, or the package's where not all of a pass have passed; says which.

    attn is the learner's ex07d or `flash_attn_v2`, attn_grad the learner's ex08a, ex08b and ex08c
    or `flash_attn_bwd`.
    """
    root = find_root() if root is None else Path(root)
    kernels = kernel_choice.by_name("lesson")
    passed = {
        part: all(progress.is_passed(find_one(name, root)) for name in names)
        for part, names in (("attn", FORWARD), ("attn_grad", BACKWARD))
    }
    if any(passed.values()):
        own = kernel_choice.by_name(root / "exercises")
        kernels = kernels._replace(**{p: getattr(own, p) for p, ok in passed.items() if ok})
    for part, names in (("attn", FORWARD), ("attn_grad", BACKWARD)):
        if passed[part]:
            say(f"{part}: your {_listed(names)}")
        else:
            verb = "passes" if len(names) == 1 else "pass"
            ours = getattr(kernels, part).__name__
            say(f"{part}: the package's {ours}, until {_listed(names)} {verb}")
    return kernels


def _listed(names):
    return " and ".join([*filter(None, [", ".join(names[:-1])]), names[-1]])
