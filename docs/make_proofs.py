"""Write the table of proven kernels in engine/README.md: python docs/make_proofs.py."""

import functools
import importlib
import re
import sys
from pathlib import Path

import numba_cuda_simulator as simt

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "engine" / "README.md"
BEGIN, END = "<!-- docs/make_proofs.py writes from here -->\n", "<!-- to here -->\n"
Q, K, STATE = "b M g*h 16", "b N h 16", "b g*h M"
ATTENTION = "-(-M // 8), g*h, b", (8, 8)


class Row:
    """One kernel and its launches; arrays are written as names of their sizes."""

    def __init__(self, name, grid, block, *arguments, where=()):
        self.name, self.grid, self.block, self.where = name, grid, block, where
        self.arguments = [shape(a) if isinstance(a, str) else a for a in arguments]

    def verdict(self, kernel):
        return simt.prove(kernel, self.grid, self.block, *self.arguments, where=self.where)


def shape(text):
    """Return "b M 16" as "float32[b, M, 16]"; "=n" is the integer n."""
    if text.startswith("="):
        return text[1:]
    dtype, _, sizes = text.rpartition(":")
    return f"{dtype or 'float32'}[{', '.join(sizes.split())}]"


# Of a factory, its constants stand in brackets.
KERNELS = [
    Row("naive_softmax.make_naive_softmax(128)", "M", 128, "M N", "M N"),
    Row("safe_softmax.make_safe_softmax(128)", "M", 128, "M N", "M N"),
    Row("online_softmax.make_online_softmax(128)", "M", 128, "M N", "M N"),
    Row("softmax_topk.make_softmax_topk(128, 5)", "M", 128, "M N", "M 5", "int32:M 5"),
    Row("naive_attn.make_scores(16, 8, 8, True)", "-(-M // 8) * -(-N // 8), g*h, b", (8, 8),
        Q, K, "b g*h M N", 0.1, 0, 0),
    Row("naive_attn.make_probabilities(128)", "M, h, b", 128, "b h M N", "b h M N", "b h M", 0),
    Row("naive_attn.make_weighted_values(16, 8, 8)", *ATTENTION, "b g*h M N", K, Q),
    Row("lazy_softmax_attn.make_summarize_chunk(16, True)", "R * -(-N // C), g*h, b", 32, Q, K, K,
        "-(-N//C) b R g*h 16", "-(-N//C) b g*h R", "-(-N//C) b g*h R", "=first_m", "=C", 0.1, 0,
        where=("C >= 1", "R >= 1", "first_m >= 0")),
    Row("lazy_softmax_attn.make_merge_chunks(16)", "R, h, b", 32, "C b R h 16", "C b h R",
        "C b h R", "b M h 16", "b h M", "=first_m", 0),
    Row("flash_attn_v1.make_flash_attn_v1(16, 8, 8, True)", "g*h, b", (8, 8), Q, K, K, Q, STATE,
        STATE, 0.1, 0, 0, 0),
    Row("flash_attn_v2.make_flash_attn_v2(16, 8, 8, True)", *ATTENTION, Q, K, K, Q, STATE, 0.1, 0,
        0, 0, 0, 0),
    Row("flash_attn_bwd.make_delta(4)", "-(-M // 4), h, b", (32, 4), "b M h d", "b M h d", "b h M"),
    Row("flash_attn_bwd.dsinks_kernel", "h", 32, "h", "b h M", "b h M", "h"),
    Row("flash_attn_bwd.make_dkdv(16, 8, 8, True)", "-(-N // 8), h, b", (8, 8), Q, Q, K, K, STATE,
        STATE, K, K, 0.1, 0, 0, 0, 0),
    Row("flash_attn_bwd.make_dq(16, 8, 8, True)", *ATTENTION, Q, Q, K, K, STATE, STATE, Q, 0.1, 0,
        0, 0, 0),
    Row("merge_states.merge_states_kernel", "M, h, b", 32, *["b M h d", "b h M"] * 3),
    Row("flash_decode.make_combine(16)", "M, h, b", 32, "S b M h 16", "S b h M", "b M h 16",
        "b h M", 0),
    Row("flash_decode.make_flash_decode(16, 4, 8, True)", "-(-M*g // 4) * S, h, b", (8, 4),
        "b M g*h 16", "b N h 16", "b N h 16", "int32:b", 0, 0, "S b M g*h 16", "S b g*h M", 0.1, 0,
        0),
    Row("flash_attn_varlen.make_flash_attn_varlen(16, 8, 8, True)", "T // 8 + b, g*h", (8, 8),
        "T g*h 16", "U h 16", "U h 16", "int32:b+1", "int32:b+1", "T g*h 16", "g*h T", 0.1, 0, 0,
        0),
    Row("linear_attn_recurrent.make_recurrent(16, 2)", "h, b", 32, "b N 2*h F", "b N h F",
        "b N h 16", "b h F 17", "b h F 17", "b N 2*h 16"),
    Row("linear_attn.make_chunk_states(16, 8, True)", "-(-F // 16) * 2, h, b", (16, 16),
        "b N h F", "b N h 16", "b h F 17", "b h -(-N//8)*F 17", "b h F 17"),
    Row("linear_attn.make_chunk_outputs(16, 8, True)", "-(-N // 8), g*h, b", (16, 8), "b N g*h F",
        "b N h F", "b N h 16", "b h -(-N//8)*F 17", "b N g*h 16"),
]  # fmt: skip
EXERCISES = [
    Row("ex00a_thread_index.scale_vector", 1, "n", "n", "n", 2.0),
    Row("ex00b_guard.kernel", 1, "B", "n+1", "n"),
    Row("ex00c_two_axes.subtract_matrices", 1, "X, Y", *["M N"] * 3),
]
