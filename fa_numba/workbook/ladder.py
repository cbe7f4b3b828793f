"""The ladder of lesson 11: the float32 kernels, slowest first. `fa-numba ladder` runs one.

`benchmarks/bench_ladder.py` times the same rungs at one size. Here a rung is timed where there is a
GPU, and counted by the CPU engine's meter elsewhere, beside the rung below it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import fa_numba
from fa_numba import reference, simt
from fa_numba.microscope.command import BadRequest
from fa_numba.runtime import arrays
from fa_numba.tiling.register_tiling import block_of_4x4, columns
from fa_numba.workbook import own
from fa_numba.workbook.catalog import PACKAGE
from fa_numba.workbook.counts import QUANTITIES, counted
from fa_numba.workbook.recorded import recorded_rows

LIBRARY = "SDPA memory-efficient"  # of PyTorch, in float32
HEAD_DIMS = 64, 128
SEQLEN, TIMED_SEQLEN, TIMED_WIDTH = 128, 4096, 1024  # counted; timed: num_heads · head_dim
FMAS_PER_CYCLE = 128  # of an SM


class Rung(NamedTuple):
    """A step of the ladder: a function of the package with its options."""

    function: str
    change: str  # since the rung below
    options: Callable[[int], dict] = lambda head_dim: {}  # of head_dim
    called: str = ""  # in tables, if not by its function

    @property
    def name(self) -> str:
        return self.called or self.function

    @property
    def file(self) -> str:
        """Its file, from the folder above the package."""
        module = inspect.getmodule(inspect.unwrap(getattr(fa_numba, self.function)))
        return str(Path(module.__file__).resolve().relative_to(PACKAGE.parent))

    def __str__(self):
        return self.name

    def __call__(self, q, k, v, *, causal=False):
        return getattr(fa_numba, self.function)(q, k, v, causal=causal, **self.options(q.shape[3]))


def _rows_of_four(head_dim):
    threads_x, _ = columns(head_dim)
    return {"rows": 4, "block_m": block_of_4x4(head_dim), "block_n": 4 * threads_x}


RUNGS = (
    Rung("naive_attn", "S and P in HBM"),
    Rung("flash_attn_v1", "tiles and online softmax"),
    Rung("flash_attn_v2", "the loop over keys inside"),
    Rung("flash_attn_v2_unsigned", "unsigned indices"),
    Rung(
        "flash_attn_v2_4x4",
        "4 × 1 scores per thread: a number of K serves four FMAs",
        lambda head_dim: {"columns": 1},
        "flash_attn_v2_4x4(columns=1)",
    ),
    Rung("flash_attn_v2_4x4", "4 × 4 scores: a number of Q serves four FMAs, too"),
    Rung(
        "flash_attn_v2_4x4",
        "copies in a batch: a thread waits for HBM once for a row",
        lambda head_dim: {"batched": True},
        "flash_attn_v2_4x4(batched=True)",
    ),
    Rung(
        "flash_attn_registers",
        "16-byte loads; K not transposed, its rows padded",
        _rows_of_four,
        "flash_attn_registers(rows=4)",
    ),
    Rung("flash_attn_registers", "8 × 8 scores, larger tiles"),
)


def listed():
    """All rungs, with the rates that `python -m benchmarks ladder` has recorded, for a terminal."""
    from rich.console import Group

    rates = {
        (row["step"], row["head_dim"]): row["TFLOP/s"]
        for row in recorded_rows("ladder")
        if (row["seqlen"], row["causal"]) == (8192, False)
    }
    steps = [(str(i), rung.name, rung.name, rung.change) for i, rung in enumerate(RUNGS, 1)]
    steps.append(("", LIBRARY, f"{LIBRARY},", "a library; tensor cores inside"))
    table = _table("", "kernel", *(f"d = {d}" for d in HEAD_DIMS), "change since the rung below")
    for number, step, name, change in steps:
        table.add_row(number, name, *(_text(rates.get((step, d))) for d in HEAD_DIMS), change)
    return Group(
        "Attention in float32 on CUDA cores. TFLOP/s of an H200, N = 8192, no mask; – is not "
        "measured.",
        table,
        "fa-numba ladder 4 runs rung 4 beside rung 3.",
    )


def run(number: int, head_dim: int = HEAD_DIMS[0]):
    """Run a rung and the one below it: timed on a GPU, else counted on the CPU engine.

    Parameters
    ----------
    number : int
        From 1 on.
    head_dim : 64 or 128, default=64

    Returns
    -------
    Group
        For a terminal: the file to read, the change since the rung below, the numbers of both.
    """
    from rich.console import Group

    if not 1 <= number <= len(RUNGS):
        raise BadRequest(f"a rung must be a number from 1 to {len(RUNGS)}, got {number}")
    if head_dim not in HEAD_DIMS:
        raise BadRequest(f"--head-dim must be 64 or 128, got {head_dim}")
    rung, pair = RUNGS[number - 1], RUNGS[max(number - 2, 0) : number]
    if own.has_cupy_and_gpu():
        measured, place, seqlen, units = timed(pair, head_dim), arrays.backend(), TIMED_SEQLEN, {}
    else:
        measured, place, seqlen, units = metered(pair, head_dim), "one head", SEQLEN, QUANTITIES
    table = _table("", *(f"{number - len(pair) + i}" for i in range(1, len(pair) + 1)), "ratio")
    for name in measured[0]:
        values = [row[name] for row in measured]
        ratio = values[-1] / values[0] if len(values) == 2 and values[0] else None
        table.add_row(
            " ".join(filter(None, (name, units.get(name)))), *map(_text, [*values, ratio])
        )
    beside = f", beside {pair[0].file}" if pair[0].file != rung.file else ""
    lines = [f"Rung {number}: {rung.name}", f"Change: {rung.change}", f"Read {rung.file}{beside}"]
    lines.append(f"{place}, N = {seqlen}, d = {head_dim}, no mask")
    if units:
        lines[-1] = f"Counted by the engine (times need a GPU and CuPy): {lines[-1]}"
    return Group(*lines, table)


def _table(*columns):
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0))
    for column in columns:
        number = column.isdigit() or column.startswith("d =") or column == "ratio"
        table.add_column(column, justify="right" if number else "left", no_wrap=column == "kernel")
    return table


def _text(value):
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def metered(rungs, head_dim):
    """A row of counts for each rung, each result compared with float64."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, SEQLEN, 1, head_dim), dtype=np.float32)
    want = reference.attention(q, k, v)[0]
    cycles = 2 * SEQLEN**2 * head_dim // FMAS_PER_CYCLE  # of the FMAs of both products
    rows = []
    for rung in rungs:
        with simt.tracing() as traces, simt.options(device="H200"):
            out = rung(q, k, v)[0]
        if not np.abs(out - want).max() < 1e-5:
            raise AssertionError(f"{rung.name} is wrong")
        rows.append(counted(traces) | {"cycles of the FMAs": cycles})
    return rows


def timed(rungs, head_dim):
    """A row of milliseconds and TFLOP/s for each rung, each result compared with float64."""
    import cupy

    shape = 1, TIMED_SEQLEN, TIMED_WIDTH // head_dim, head_dim
    rng = cupy.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(3))
    flops = 4 * math.prod(shape) * TIMED_SEQLEN
    head = q[:, -SEQLEN:, :1].get(), k[:, :, :1].get(), v[:, :, :1].get()
    want = reference.attention(*head)[0]
    rows = []
    for rung in rungs:
        out = rung(q, k, v)[0]
        if not np.abs(out[:, -SEQLEN:, :1].get() - want).max() < 1e-5:
            raise AssertionError(f"{rung.name} is wrong")
        ms = own.gpu_ms(lambda rung=rung: rung(q, k, v))
        rows.append({"ms": ms, "TFLOP/s": flops / ms / 1e9})
    return rows
