"""Floating-point operations of the lessons' kernels: by formula, and as a GPU counts them."""

import json
from collections import Counter

import numpy as np
import pytest

from benchmarks.bench_microscope import flop_rows, launches_of
from benchmarks.microscope_kernels import CASES
from benchmarks.timing import RESULTS
from fa_numba import flash_attn_v2, simt


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


# --- a lesson's kernel, by formula ------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    "seqlen_q, seqlen_k, head_dim",
    [(64, 64, 32), (64, 32, 16), (40, 56, 32), (17, 70, 24), (5, 2, 8)],
)
def test_flash_attn_v2(rng, seqlen_q, seqlen_k, head_dim, causal):
    """Two products in every tile, 4 FLOPs a score and dimension, and the softmax between them."""
    block_m, block_n = 8, 16
    q, k, v = (
        floats(rng, 2, n, h, head_dim) for n, h in ((seqlen_q, 4), (seqlen_k, 2), (seqlen_k, 2))
    )
    with simt.tracing() as traces:
        flash_attn_v2(q, k, v, causal=causal, block_m=block_m, block_n=block_n)
    got = traces[0].flops.by_kind

    heads, cols = 2 * 4, -(-head_dim // block_n)
    m = np.arange(-(-seqlen_q // block_m) * block_m)  # rows of the last tile that are not in q, too
    last = m + seqlen_k - seqlen_q if causal else np.full(m.size, seqlen_k - 1)
    n_end = np.minimum(seqlen_k, last.reshape(-1, block_m).max(1) + 1)
    turns = -(-n_end.clip(0) // block_n)  # of a thread block through its loop
    scores = heads * int(turns.sum()) * block_m * block_n
    rows = heads * seqlen_q
    unmasked = heads * int((last.clip(-1, seqlen_k - 1) + 1).sum())
    empty = heads * int((last[:seqlen_q] < 0).sum())
    assert got == {
        "fma": 2 * scores * head_dim + scores * (1 + cols),  # S, P V; l_i, acc
        "mul": unmasked,  # softmax_scale
        "add": scores * (2 + block_n) + rows,  # m_i and s less shift; l_ij; lse
        "exp": 2 * scores,  # alpha, P
        "max": scores * block_n,
        "div": (rows - empty) * head_dim,
        "log": rows,
        "compare": scores + rows * head_dim,  # with -inf, with 0
    }
    assert traces[0].flops.total == 2 * got["fma"] + sum(
        got[kind] for kind in ("mul", "add", "exp", "div", "log")
    )


# --- as a GPU counts --------------------------------------------------------------------------


PLAIN = [
    *(f"reduce, {how}" for how in ("divergent", "interleaved", "sequential")),
    *(
        f"{what} {dtype}"
        for what in ("add", "multiply", "multiply_add")
        for dtype in ("float32", "float64")
    ),
    "same element twice",
    "four neighbours",
    "naive_attn: weighted_values",
    "naive_attn, causal: weighted_values",
]
EXPANDED = ["naive_softmax", "safe_softmax", "online_softmax"]
EXPANDED += ["flash_attn_bwd, causal: dkdv", "flash_attn_bwd, causal: dq"]


def of_gpu(label, letter="f"):
    """add + mul + 2 fma of the instructions that an H200 executed."""
    rows = flop_rows(launches_of(json.loads((RESULTS / "microscope.json").read_text())))
    row = next(row for row in rows if row["kernel"] == label)
    return row[f"{letter}add"] + row[f"{letter}mul"] + 2 * row[f"{letter}fma"]


def of_engine(label, dtype="float32"):
    """The same, and the other kinds, of the engine."""
    name, _, kernel = label.partition(": ")
    case = next(case for case in CASES if case.name == name)
    with simt.tracing() as traces:
        case.call(*case.arguments())
    (trace,) = (t for t in traces if not kernel or t.kernel == f"{kernel}_kernel")
    assert set(trace.flops.by_dtype) == {dtype}
    kinds = Counter(trace.flops.by_kind)
    return kinds["add"] + kinds["mul"] + 2 * kinds["fma"], kinds


@pytest.mark.parametrize("label", PLAIN)
def test_as_many_as_a_gpu_executes(label):
    dtype = "float64" if label.endswith("64") else "float32"
    engine, kinds = of_engine(label, dtype)
    assert engine == of_gpu(label, "d" if dtype == "float64" else "f")
    assert set(kinds) <= {"add", "mul", "fma"}


@pytest.mark.parametrize("label", EXPANDED)
def test_as_many_as_a_gpu_executes_where_exp_and_division_are_expanded(label):
    """The compilers make additions and multiplications of them: as many as in a kernel of one."""
    exp, div = (
        of_gpu(f"{what} float32") / of_engine(f"{what} float32")[1][kind]
        for what, kind in (("exponential", "exp"), ("divide", "div"))
    )
    engine, kinds = of_engine(label)
    assert engine + exp * kinds["exp"] + div * kinds["div"] == of_gpu(label)
    assert (exp, div) == (10, 10) and "log" not in kinds


LOG = 24  # what a logarithm expands to; nothing measures it alone, but two kernels agree on it


@pytest.mark.parametrize("causal", ["", ", causal"])
def test_what_the_page_says_of_the_others(causal):
    probabilities, kinds = of_engine(f"naive_attn{causal}: probabilities")
    expanded = 10 * (kinds["exp"] + kinds["div"]) + LOG * kinds["log"]
    assert probabilities + expanded == of_gpu(f"naive_attn{causal}: probabilities")

    forward, kinds = of_engine(f"flash_attn_v2{causal}")
    expanded = 10 * (kinds["exp"] + kinds["div"]) + LOG * kinds["log"]
    masked = kinds["exp"] // 2 - kinds["mul"]  # the GPU scales every score, then selects
    assert forward + expanded + masked == of_gpu(f"flash_attn_v2{causal}")
    assert masked == (792 if causal else 768)
