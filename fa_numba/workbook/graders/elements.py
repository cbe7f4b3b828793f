"""Checks of kernels in which each thread owns an element: values, accesses, neighbours."""

import numpy as np

from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_stores_by

NO_MEMORY = "each thread reads its element, computes, and writes: registers do"


def vectors(number, n, seed=0):
    """So many standard normal float32 vectors of n elements."""
    return list(np.random.default_rng(seed + n).standard_normal((number, n), np.float32))


def unwritten(*shape):
    """An output array, all NaN."""
    return np.full(shape, np.nan, np.float32)


def exchanged(right, threads_x, threads_y):
    """(sentence, result) where x counts the rows: some elements then have no thread.

    `threads_x` and `threads_y` are those along each axis, of all thread blocks together.
    """
    row, col = np.indices(right.shape)
    result = np.where((row < threads_x) & (col < threads_y), right, np.nan)
    return "x and y are exchanged: x is the column, y the row.", result


def expect_elements(got, want, *, name="out", case="", mistakes=None, rtol=0.0):
    """Fail with the first element that is wrong by more than `rtol`.

    `case`, in words, stands in front of the message. `mistakes` are the results of mistakes that
    people make, by the sentence that names the mistake.
    """
    mask = ~(np.abs(got - want) <= rtol * np.abs(want))
    wrong = np.argwhere(mask)
    if not len(wrong):
        return
    at = tuple(int(i) for i in wrong[0])
    place = f"{name}[{', '.join(map(str, at))}]"
    causes = [
        sentence
        for sentence, result in (mistakes or {}).items()
        if result.shape == got.shape and np.allclose(got, result, 1e-5, 1e-6, equal_nan=True)
    ]
    missing = int(np.isnan(got).sum())
    if missing == got.size:
        causes.append(f"Nothing was stored into {name}.")
    elif missing and missing == len(wrong):
        causes.append(f"Some elements of {name} are never written, the others are right.")
    said = "was never written" if np.isnan(got[at]) else f"is {got[at]:.7g}"
    raise Wrong(
        f"{case}{': ' * bool(case)}{place} must be {want[at]:.7g}, but {said} "
        f"({len(wrong)} of {want.size} elements are wrong)",
        causes=causes,
        where=place,
        wrong=mask,
        axes=("row", "column") if mask.ndim == 2 else ("element",),
    )


def expect_once(trace, loads, stores, output="out"):
    """Fail unless inputs are read so often, and each element of out is stored by one thread.

    `loads` says how many loads there must be of each input, `stores` how many elements `output`
    has.
    """
    for name, enough in loads.items():
        array = trace.arrays[name]
        assert not array.stores, f"{name} is an input, and the kernel wrote into it"
        assert array.loads == enough, f"loads of {name}: {enough} are enough, got {array.loads}"
    out = trace.arrays[output]
    assert out.stores == stores, f"stores of {output}: {stores} are enough, got {out.stores}"
    assert not out.loads, f"{output} was read {out.loads} times: it is only written"
    why = "each thread handles one element, so no thread needs a loop over elements"
    expect_stores_by({output: out}, threads=stores, why=why)
    expect_chip_memory(trace, allowed=NO_MEMORY)


def expect_neighbours(trace, names, why):
    """Fail where a warp's requests touch more sectors than their bytes fill."""
    for name in names:
        array = trace.arrays[name]
        for kind, moved, sectors, requests in (
            ("read", array.load_bytes, array.load_sectors, array.load_requests),
            ("wrote", array.store_bytes, array.store_sectors, array.store_requests),
        ):
            if 32 * sectors > moved:
                raise Wrong(
                    f"a warp {kind} {moved // requests} bytes of {name} at a time and touched "
                    f"{sectors / requests:g} sectors of 32 bytes. {why}",
                    causes=["Neighbouring threads do not take neighbouring elements."],
                    where=name,
                )
