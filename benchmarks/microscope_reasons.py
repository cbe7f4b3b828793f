"""Where a GPU executes other accesses than a kernel's source states: the reasons and the counts.

The engine does what the source says; the compilers may do it with fewer or other instructions.
Each reason here was read in the machine code, and carries a `change` that turns the engine's
counts into those of the code as compiled. A difference counts as explained only where the result
is exactly what the hardware counted.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks import microscope_kernels as kernels
from fa_numba import simt


@dataclass(frozen=True)
class Reason:
    """Why a launch differs.

    Attributes
    ----------
    text : str
    change : callable
        Takes the engine's counts, by the names of `bench_microscope.COMPARED`, and the trace;
        alters the counts.
    """

    text: str
    change: Callable


def loaded_once(counts, trace):
    """The same element was to be loaded twice."""
    for what in ("requests", "sectors"):
        counts[f"load {what}"] //= 2


def by_sixteen_bytes(name, *, wavefronts=2, reused=False):
    """Loads of `name`, on the line that loads most of it, become a quarter as many of 16 bytes.

    A warp's 16-byte elements are served in quarters, in halves where lanes load in pairs: the
    rule of 8-byte elements, once more. reused: what other lines load is there already.
    """

    def change(counts, trace):
        loads = [x for x in trace.lines if (x.array, x.action) == (name, "load")]
        by_line = {x.line: [y for y in loads if y.line == x.line] for x in loads}
        widened = max(by_line.values(), key=requests_of)
        for load in loads if reused else widened:
            counts["shared load requests"] -= load.requests
            counts["shared load wavefronts"] -= load.cost
            counts["shared load conflicts"] -= load.conflicts
        counts["shared load requests"] += requests_of(widened) // 4
        counts["shared load wavefronts"] += requests_of(widened) // 4 * wavefronts

    return change


def requests_of(accesses):
    return sum(access.requests for access in accesses)


def leave_early(warps, wide, narrow):
    """So many warps have nothing to store, and leave before the last loads."""

    def change(counts, trace):
        counts["shared load requests"] -= warps * (wide + narrow)
        counts["shared load wavefronts"] -= warps * (2 * wide + narrow)

    return change


def in_fours(*, loads=1):
    """A loop over columns is unrolled: threads with 3 iterations diverge from those with 4.

    Counted by running it unrolled: `microscope_kernels.rows_in_fours`.
    """

    def change(counts, trace):
        for op, passes in (("load", loads), ("store", 1)):
            requests, sectors = one_pass()[op]
            counts[f"{op} requests"] = passes * requests
            counts[f"{op} sectors"] = passes * sectors

    return change


@functools.cache
def one_pass():
    """Requests and sectors of loading and storing all columns of all rows, in fours."""
    (x,) = kernels.row_numbers()
    arrays = simt.trace(kernels.rows_in_fours, len(x), kernels.THREADS, x, np.zeros_like(x)).arrays
    x, y = arrays["x"], arrays["y"]
    return {"load": (x.load_requests, x.load_sectors), "store": (y.store_requests, y.store_sectors)}


def after_the_guard(counts, trace):
    """Only the warps that store load."""
    stores = trace.arrays["y"].store_requests
    for what in ("requests", "wavefronts"):
        counts[f"shared load {what}"] = stores


def all_of(*changes):
    def change(counts, trace):
        for each in changes:
            each(counts, trace)

    return change


WIDE = "neighbouring 4-byte loads become one of 16 bytes (LDS.128)"
UNROLLED = "the loop is unrolled by 4: threads with 3 iterations run apart from those with 4"
TILES = Reason(
    f"{WIDE}: rows of q_tile and of s_tile",
    all_of(by_sixteen_bytes("q_tile"), by_sixteen_bytes("s_tile")),
)


def scores(narrow):
    """32 warps lie past the last query; 2 wide loads and some narrow ones come after the exit."""
    return Reason(
        f"{WIDE}: rows of q_tile; warps past the last query leave before the last loads",
        all_of(by_sixteen_bytes("q_tile"), leave_early(32, 2, narrow)),
    )


REASONS = {
    "same element twice": Reason("one load serves both uses", loaded_once),
    "four neighbours": Reason(WIDE, by_sixteen_bytes("tile", wavefronts=4)),
    "four neighbours, for 2 threads": Reason(WIDE, by_sixteen_bytes("tile")),
    "rows": Reason(UNROLLED, in_fours()),
    "guard after load": Reason(
        "loads only what is stored: it moves behind the if", after_the_guard
    ),
    "naive_softmax": Reason(UNROLLED, in_fours(loads=2)),
    "safe_softmax": Reason(UNROLLED, in_fours(loads=3)),
    "online_softmax": Reason(
        f"{UNROLLED}; {WIDE}: m_warp, read once for both its uses, and l_warp",
        all_of(
            in_fours(loads=2), by_sixteen_bytes("m_warp", reused=True), by_sixteen_bytes("l_warp")
        ),
    ),
    "naive_attn: scores": scores(8),
    "naive_attn, causal: scores": scores(9),
    "flash_attn_v1": TILES,
    "flash_attn_v1, causal": TILES,
    "flash_attn_v2": TILES,
    "flash_attn_v2, causal": TILES,
}
