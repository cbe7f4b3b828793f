"""Shared by the graders of attention to few pages: pages with bounds, and how they are compared."""

import numpy as np

from fa_numba.workbook.graders.attention import UNWRITTEN
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.pages import make_paged

AXES = {"bounds": ("page", "K/V head", "column"), "scores": ("sequence", "K/V head", "page")}


def bounds_of(step):
    """k_min and k_max by definition, UNWRITTEN for pages that no sequence has."""
    num_pages, page_size, *rest = step.k_cache.shape
    k_min, k_max = (np.full((num_pages, *rest), UNWRITTEN) for _ in range(2))
    for pages, n in zip(step.block_table, step.seq_lens, strict=True):
        for i in range(-(-n // page_size)):
            keys = step.k_cache[pages[i], : n - i * page_size]
            k_min[pages[i]], k_max[pages[i]] = keys.min(axis=0), keys.max(axis=0)
    return k_min, k_max


def with_bounds(*args, **options):
    """A decoding step in pages, with its bounds: NaN for pages that no sequence has."""
    step = make_paged(*args, **options)
    return step, [np.where(x == UNWRITTEN, np.float32(np.nan), x) for x in bounds_of(step)]


def expect(name, got, want, axes, mistakes=(), tolerance=0.0):
    """Fail unless two arrays are equal up to `tolerance`; `mistakes` are (sentence, array)."""
    with np.errstate(invalid="ignore"):  # −∞ less −∞
        wrong = ~((got == want) | (np.abs(got - want) <= tolerance))  # NaN is wrong
    if not wrong.any():
        return
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    found = [
        said
        for said, x in mistakes
        if np.allclose(got, x, 1e-4, 1e-4, equal_nan=True)
        and not np.allclose(want, x, 1e-3, 1e-3, equal_nan=True)
    ]
    said = "was never written" if got[at] == UNWRITTEN else f"is {got[at]:.6g}"
    must = "be left alone" if want[at] == UNWRITTEN else f"be {want[at]:.6g}"
    raise Wrong(
        f"{name}{list(at)} must {must}, but {said}. {''.join(found[:1])}",
        causes=found,
        where=f"{name}{list(at)}",
        wrong=wrong,
        axes=axes,
    )
