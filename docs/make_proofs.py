"""Write the table of proven kernels in engine/README.md: python docs/make_proofs.py."""

import importlib
import sys
from pathlib import Path

import numba_cuda_simulator as simt

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "engine" / "README.md"
BEGIN, END = "<!-- docs/make_proofs.py writes from here -->\n", "<!-- to here -->\n"
Q, K, STATE = "b M g*h 16", "b N h 16", "b g*h M"
ATTENTION = "-(-M // 8), g*h, b", (8, 8)
TILES = "-(-N // 8), -(-M // 8)", (8, 8)


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
    Row("flash_attn_bwd.make_dkdv(16, 8, 8, True)", "-(-N // 8), h, b", (8, 8), Q, Q, K, K, 0, 0,
        STATE, STATE, K, K, 0.1, 0, 0, 0, 0),
    Row("flash_attn_bwd.make_dq(16, 8, 8, True)", *ATTENTION, Q, Q, K, K, 0, 0, STATE, STATE, Q,
        0.1, 0, 0, 0, 0),
    Row("merge_states.merge_states_kernel", "M, h, b", 32, *["b M h d", "b h M"] * 3),
    Row("flash_decode.make_combine(16)", "M, h, b", 32, "S b M h 16", "S b h M", "b M h 16",
        "b h M", 0),
    Row("flash_decode.make_flash_decode(16, 4, 8, True)", "-(-M*g // 4) * S, h, b", (8, 4),
        "b M g*h 16", "b N h 16", "b N h 16", 0, "int32:b", 0, 0, "S b M g*h 16", "S b g*h M", 0.1,
        0, 0),
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
    Row("ex00b_guard.broken_kernel", 1, "B", "n+1", "n"),
    Row("ex00b_guard.kernel", 1, "B", "n+1", "n"),
    Row("ex00c_two_axes.subtract_matrices", 1, "X, Y", *["M N"] * 3),
    Row("ex00d_broadcast.rescale", 1, "X, Y", "M N", "M", "N", "M N"),
    Row("ex00e_thread_blocks.add_matrices", None, "X, Y", *["M N"] * 3),
    Row("ex00f_shared_tile.below_largest", "g", 64, "64*g", "64*g"),
    Row("ex00h_divergence.divergent_kernel", "g", 128, *["64*g"] * 6),
    Row("ex00h_divergence.kernel", "g", 128, *["64*g"] * 6),
    Row("ex02a_safe_softmax_rows.safe_softmax_rows", None, 128, "M N", "M N"),
    Row("ex02b_tree.row_maxima", "M", 128, "M N", "M 128"),
    Row("ex02c_barriers.broken_kernel", "M", 128, "M N", "M N"),
    Row("ex02c_barriers.kernel", "M", 128, "M N", "M N"),
    Row("ex02d_safe_softmax_kernel.safe_softmax_kernel", "M", 128, "M N", "M N"),
    Row("ex03b_warp_bugs.broken_kernel", "M", 32, "M N", "M", "M"),
    Row("ex03b_warp_bugs.kernel", "M", 32, "M N", "M", "M"),
    Row("ex03c_online_softmax_kernel.online_softmax_kernel", "M", 128, "M N", "M N"),
    Row("ex03d_topk_update.make_topk(5)", None, 64, "M N", "M 5", "int32:M 5"),
    Row("ex04e_lazy_softmax.summarize_chunks", "-(-M // 64), -(-N // C)", 64, "M D", "N D", "N D",
        "-(-N//C) M D", "-(-N//C) M", "-(-N//C) M", "=C", 0.1, where=("C >= 1", "D == 16")),
    Row("ex04e_lazy_softmax.merge_chunks", None, 64, "C M D", "C M", "C M", "M D", where="D == 16"),
    Row("ex05a_find_the_race.broken_kernel", "G", 64, "M N", "M N"),
    Row("ex05a_find_the_race.kernel", "G", 64, "M N", "M N"),
    Row("ex05b_tiled_matmul.make_tiled_matmul(8)", *TILES, "M K", "K N", "M N"),
    Row("ex05c_row_sums.broken_kernel", "m", 32, "32*m 32*n", "32*m"),
    Row("ex05c_row_sums.kernel", "m", 32, "32*m 32*n", "32*m"),
    Row("ex06b_flash_attn_v1.make_kernel(16, 8, 8)", 1, (8, 8), "M 16", "N 16", "N 16", "M 16", "M",
        "M", 0.1),
    Row("ex06c_find_the_bug.make_kernel(16, 8, 8)", 1, (8, 8), "M 16", "N 16", "N 16", "M 16", "M",
        "M"),
    Row("ex06d_one_barrier.make_two_barriers(16, 8, 8)", 1, (8, 8), "M 8", "8 16", "M 16"),
    Row("ex06d_one_barrier.make_kernel(16, 8, 8)", 1, (8, 8), "M 8", "8 16", "M 16"),
    Row("ex07b_rows_in_registers.make_kernel(16, 8, 8)", "m", (8, 8), "8*m 8*n", "8*n 16",
        "8*m 16", "8*m"),
    Row("ex07c_fewer_barriers.make_cautious_kernel(32, 4)", "m", (32, 4), "4*m 32*n", "32*n 32",
        "4*m 32", "4*m"),
    Row("ex07c_fewer_barriers.make_kernel(32, 4)", "m", (32, 4), "4*m 32*n", "32*n 32", "4*m 32",
        "4*m"),
    Row("ex07d_flash_attn_v2.make_kernel(16, 8, 8, True)", "-(-M // 8)", (8, 8), "M 16", "N 16",
        "N 16", "M 16", "M", 0.1),
    Row("ex07e_published_update.make_kernel(16)", "-(-M // 32)", 32, "M 4*n", "4*n 16", "M 16",
        "M n", "M n", "M n 16"),
]  # fmt: skip
GROUPS = {
    "`fa_numba.kernels`": ("fa_numba.kernels.", KERNELS),
    "exercises of lessons 00 to 07": ("solutions.", EXERCISES),
}


def classics():
    """Return the kernels of courses and textbooks that the engine's tests have."""
    sys.path.insert(0, str(ROOT / "engine" / "tests"))
    found = importlib.import_module("proof_launches")
    pairs = found.LAUNCHES.items()
    return [(name, simt.prove(found.KERNELS[name], *launch)) for name, launch in pairs]


def verdicts(prefix, rows):
    """Return the name and the verdict of each row."""
    for row in rows:
        module, _, attribute = row.name.partition(".")
        found = importlib.import_module(prefix + module)
        name = module.partition("_")[0] if module.startswith("ex") else module
        called = attribute.partition("(")[0].removeprefix("make_")
        name = name if called in (module, "kernel") else f"{name}.{called}"
        yield name, row.verdict(eval(attribute, vars(found)))


def table():
    groups = {name: list(verdicts(*group)) for name, group in GROUPS.items()}
    groups["of courses and textbooks"] = classics()
    lines = ["| kernels | proven | refuted, by the launch | undecided |", "|---|---|---|---|"]
    for name, found in groups.items():
        proven = ", ".join(n for n, v in found if v)
        refuted = "; ".join(
            f"{n} ({type(v.error).__name__}, {v.launch})" for n, v in found if v.error
        )
        left = [(n, v.reason.splitlines()[0].rstrip(".")) for n, v in found if v.reason]
        left = "; ".join(f"{n} ({reason})" for n, reason in left)
        count = sum(map(bool, (v for _, v in found)))
        lines.append(
            f"| {name} | {count} of {len(found)}: {proven} | {refuted or '–'} | {left or '–'} |"
        )
    return "\n".join(lines) + "\n"


def page():
    """Return the README with the table made anew."""
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return f"{text[:start]}\n{table()}\n{text[end:]}"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(), encoding="utf-8")
