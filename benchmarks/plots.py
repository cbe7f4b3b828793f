"""Plots of benchmarks/results/, written to docs/plots/.

Run it as `python -m benchmarks.plots`; `python -m benchmarks` does so after it has measured. Only
measured rows are drawn.
"""

import io
import json
import re
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from benchmarks.peers import PRODUCT
from benchmarks.timing import RESULTS
from fa_numba.analysis import devices
from fa_numba.figures.parts import label_ends
from fa_numba.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PAPER,
    PURPLE,
    RED,
    on_paper,
    plain,
)
from fa_numba.figures.themes import SVG_STYLE
from fa_numba.runtime.replacing import replacing
from fa_numba.workbook.ladder import LIBRARY, RUNGS

PLOTS = Path(__file__).parents[1] / "docs" / "plots"
HEAD_DIMS = (64, 128)

# The name in the results, the name in the picture, its colour; ours get thicker.
TEAL, SKY, INDIGO = "#0f7a82", "#1f76b0", "#4a67c8"
STEPS = {
    "flash_attn_mma": ("mma", TEAL),
    "flash_attn_wgmma": ("wgmma", SKY),
    "flash_attn_ws": ("ws", INDIGO),
    "flash_attn_persistent": ("persistent", BLUE),
    "flash_attn_bwd_mma": ("bwd_mma", TEAL),
    "flash_attn_bwd_persistent": ("bwd_persistent", BLUE),
}
LIBRARIES = {
    "SDPA cuDNN": ("cuDNN", ORANGE),
    "SDPA FlashAttention-2": ("FlashAttention-2", GREEN),
    "SDPA FA2": ("FlashAttention-2", GREEN),
    "SDPA memory-efficient": ("memory-efficient", GREY),
    "SDPA, PyTorch's choice": ("SDPA", GREEN),
    "FlexAttention": ("FlexAttention", PURPLE),
    "Triton": ("Triton", RED),
}
BEST = {"flash_attn_persistent", "flash_attn_bwd_persistent"}


def load(question):
    """The record of a question, or None."""
    path = RESULTS / f"{question}.json"
    return json.loads(path.read_text()) if path.exists() else None


def product_rate():
    """TFLOP/s of a product of float16 matrices, or None."""
    rows = (load("peers") or {"rows": ()})["rows"]
    return next((row["TFLOP/s"] for row in rows if row["kernel"] == PRODUCT), None)


def only_in_peers():
    """Rows of the libraries and compilers that bench_tensor_core does not ask."""
    rows = (load("peers") or {"rows": ()})["rows"]
    names = "SDPA memory-efficient", "FlexAttention", "Triton"
    return [row for row in rows if row["kernel"] in names and "TFLOP/s" in row]


def drawing(width, height, title, record, note=""):
    """An empty figure with a title that names the GPU."""
    figure = Figure((width, height), facecolor=PAPER, layout="constrained")
    gpu = record["machine"].split(",")[0]
    figure.suptitle(f"{title}, {gpu}{note}", x=0.01, ha="left", size=12, color=INK)
    return figure


@on_paper
def against_seqlen(question, title):
    """TFLOP/s against n: a panel for each head_dim and mask, float16."""
    record = load(question)
    if record is None:
        return None
    rows = [row for row in record["rows"] if row.get("dtype") == "float16"]
    if question == "tensor_core":
        rows += only_in_peers()
    ceiling = product_rate()
    rows = [
        row for row in rows if row["kernel"] in STEPS | LIBRARIES and row["head_dim"] in HEAD_DIMS
    ]
    head_dims = [d for d in HEAD_DIMS if d in {row["head_dim"] for row in rows}]
    figure = drawing(11, 3.4 * len(head_dims), f"{title}, float16", record, "; dashed: libraries")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1, wspace=0.08)
    panels = figure.subplots(len(head_dims), 2, sharex=True, sharey=True, squeeze=False)
    highest = 1.06 * max([ceiling or 0, *(row["TFLOP/s"] for row in rows)])
    seqlens = sorted({row["seqlen"] for row in rows})
    for (i, j), ax in _each(panels):
        chosen = [row for row in rows if (row["head_dim"], row["causal"]) == (head_dims[i], j == 1)]
        plain(ax, grid="y").set(xscale="log", ylim=(0, highest), xlim=(seqlens[0], seqlens[-1]))
        ax.set_xticks(seqlens, [f"{n:,}" for n in seqlens], minor=False)
        ax.set_xticks([], minor=True)
        ax.tick_params(labelbottom=True, labelleft=True)
        ax.set_title(f"head_dim {head_dims[i]}, {'causal' if j else 'full'}", loc="left", size=10)
        for kernel in sorted({row["kernel"] for row in chosen}, key=_order):
            points = sorted((row["seqlen"], row["TFLOP/s"]) for row in chosen
                            if row["kernel"] == kernel)  # fmt: skip
            ours = kernel in STEPS
            _, colour = (STEPS | LIBRARIES)[kernel]
            width = 2.6 if kernel in BEST else 1.4
            ax.plot(*zip(*points, strict=True), color=colour, lw=width, marker="o", ms=width + 1,
                    ls="-" if ours else (0, (4, 2)), zorder=3 if ours else 2)  # fmt: skip
        if ceiling:
            ax.axhline(ceiling, color=INK, lw=1)
            ax.annotate(f"a product of 8192 × 8192 matrices: {ceiling:.0f}",
                        (seqlens[0], ceiling), (5, 3), textcoords="offset points", va="bottom",
                        size=8.5, color=INK)  # fmt: skip
    for ax in panels[-1]:
        ax.set_xlabel("n, tokens of a sequence", size=9, color=INK)
    for ax in panels[:, 0]:
        ax.set_ylabel("TFLOP/s", size=9, color=INK)
    for (i, j), ax in _each(panels):
        ends = [
            ((STEPS | LIBRARIES)[row["kernel"]][0], row["TFLOP/s"],
             (STEPS | LIBRARIES)[row["kernel"]][1])
            for row in rows
            if (row["head_dim"], row["causal"]) == (head_dims[i], j == 1)
            and row["seqlen"] == seqlens[-1]
        ]  # fmt: skip
        label_ends(ax, seqlens[-1], ends, gap=11)
    return figure


def _each(panels):
    for i, row in enumerate(panels):
        for j, ax in enumerate(row):
            yield (i, j), ax


def _order(kernel):
    """The best of ours is drawn last, over the others."""
    return (kernel in BEST, kernel in STEPS, kernel)


LADDER = (  # the question, the name there, the gain of the step
    *(("ladder", rung.name, rung.change.partition(":")[0]) for rung in RUNGS),
    ("ladder", "flash_attn_tf32x3", "three TF32 products for one"),
    ("tensor_core", "flash_attn_mma", "mma, ldmatrix, cp.async"),
    ("tensor_core", "flash_attn_wgmma", "wgmma, TMA"),
    ("tensor_core", "flash_attn_ws", "warp specialisation, overlap"),
    ("tensor_core", "flash_attn_persistent", "persistent thread blocks"),
    ("fp8", "flash_attn_fp8", "eight bits"),
)
BESIDE = (
    ("ladder", LIBRARY),
    ("peers", "Triton"),
    ("peers", "FlexAttention"),
    ("tensor_core", "SDPA FlashAttention-2"),
    ("tensor_core", "SDPA cuDNN"),
)
SEQLENS = {"ladder": 8192, "tensor_core": 8192, "fp8": 8192, "peers": 8192}
COLOUR_OF = {"ladder": GREEN, "tensor_core": BLUE, "peers": BLUE, "fp8": PURPLE}
DTYPE_OF = {"ladder": "float32", "tensor_core": "float16", "fp8": "e4m3"}


@on_paper
def ladder():
    """The steps of the ladder as bars, on a logarithmic scale; the libraries below them."""
    bars = []
    for ours, steps in ((True, LADDER), (False, [(*step, "") for step in BESIDE])):
        for question, name, what in steps:
            value = _rate(question, name)
            if value is not None:
                bars.append((question, name, what, value, ours))
    records = [record for record in map(load, SEQLENS) if record]
    if not any(ours for *_, ours in bars) or len({bar[0] for bar in bars}) < 2:
        return None
    title = "The ladder: n = 8192, head_dim 128, not causal"
    figure = drawing(10, 0.36 * len(bars) + 1.4, title, records[0])
    ax = plain(figure.subplots(), grid="x")
    for y, (question, name, what, value, ours) in enumerate(bars):
        y += 0 if ours else 0.6
        ax.barh(y, value, height=0.7, color=COLOUR_OF[question], alpha=1 if ours else 0.35)
        number = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
        ax.text(value * 1.06, y, number + (f": {what}" if what else ""), va="center",
                size=9, color=INK)  # fmt: skip
        ax.text(0.0095 * 10, y, f"{name}  ", ha="right", va="center", size=9, color=INK)
    ax.set(xscale="log", xlim=(0.095, 20_000), yticks=[])
    ax.invert_yaxis()
    ax.spines["left"].set_visible(False)
    ax.set_xticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1000"])
    ax.set_xlabel("TFLOP/s", size=9, color=INK)
    kinds = [question for question in DTYPE_OF if question in {question for question, *_ in bars}]
    for i, question in enumerate(kinds):
        ax.text(0.985, 0.02 + 0.07 * (len(kinds) - 1 - i), DTYPE_OF[question], ha="right", size=10,
                transform=ax.transAxes, color=COLOUR_OF[question], weight="bold")  # fmt: skip
    return figure


def _rate(question, name):
    """TFLOP/s of a kernel at head_dim 128, not causal."""
    for row in (load(question) or {"rows": ()})["rows"]:
        called = row.get("kernel", row.get("step"))
        sizes = row.get("head_dim", 128), row.get("seqlen"), row.get("causal", False)
        if (
            called == name
            and sizes == (128, SEQLENS[question], False)
            and row.get("dtype") != "bfloat16"
        ):
            return row.get("TFLOP/s")
    return None


@on_paper
def decoding():
    """Bandwidth of one query over a long cache, and the copy's."""
    record = load("decode_fast")
    if record is None:
        return None
    rows = [row for row in record["rows"] if row["dtype"] == "float16" and row["page_size"] is None]
    copies = [row["GB/s"] / row["of copy"] for row in rows]
    copy = sorted(copies)[len(copies) // 2] / 1000
    problems = list(dict.fromkeys((row["batch"], row["seqlen"], row["heads"]) for row in rows))
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    title = "Decoding one query of each sequence, head_dim 128, float16"
    figure = drawing(11, 3.8, title, record)
    ax = plain(figure.subplots(), grid="y")
    colours = {"flash_decode_wide": TEAL, "flash_decode_mma": SKY, "flash_decode_gather": BLUE}
    colours |= {name: colour for name, (_, colour) in LIBRARIES.items()}
    width = 0.8 / len(kernels)
    for i, kernel in enumerate(kernels):
        for x, problem in enumerate(problems):
            (row,) = (
                row for row in rows
                if (row["batch"], row["seqlen"], row["heads"], row["kernel"]) == (*problem, kernel)
            )  # fmt: skip
            place, height = x + (i - (len(kernels) - 1) / 2) * width, row["GB/s"] / 1000
            colour = colours.get(kernel, GREY)
            ax.bar(place, height, 0.92 * width, color=colour)
            ax.text(place, height + 0.02, f"{height:.1f}", ha="center", va="bottom", size=8,
                    color=INK, bbox={"fc": PAPER, "ec": "none", "pad": 0.4})  # fmt: skip
            if x == 0:
                name = LIBRARIES.get(kernel, (kernel,))[0]
                ax.text(place, 0.06, f" {name}", rotation=90, ha="center", va="bottom", size=8.5,
                        color=PAPER)  # fmt: skip
    ax.axhline(copy, color=INK, lw=1)
    ax.text(len(problems) - 0.45, copy, f" copy {copy:.1f}", va="center", size=9, color=INK)
    labels = [f"{b} × {n:,}\n{heads} heads" for b, n, heads in problems]
    ax.set_xticks(range(len(problems)), labels, size=9)
    ax.set(xlim=(-0.55, len(problems) - 0.45), ylim=(0, 1.12 * copy))
    ax.set_ylabel("TB/s of keys and values", size=9, color=INK)
    ax.set_xlabel(
        "sequences × tokens of each, heads of the query / of the cache", size=9, color=INK
    )
    return figure


@on_paper
def roofline():
    """Measured kernels under the roofs of bandwidth and arithmetic."""
    points, records = [], []
    for name, (question, work) in ROOFLINE.items():
        record = load(question)
        if record:
            records.append(record)
            points += [(name, *point) for row in record["rows"] if (point := work(row))]
    if len({name for name, *_ in points}) < 2:
        return None
    device = devices.device("H200")
    bandwidth = (load("bandwidth") or {"rows": [{"kernel": "", "GB/s asked for": 0}]})["rows"]
    copies = [row["GB/s asked for"] for row in bandwidth if row["kernel"] == "cupy.copyto"]
    bytes_per_second = (copies[0] if copies else device.memory_bandwidth / 1e9) / 1e3
    roofs = [("float32", device.peak("float32") / 1e12, GREEN, "data sheet")]
    if product_rate():
        roofs.append(("float16", product_rate(), BLUE, "a product of matrices"))
    else:
        roofs.append(("float16", device.peak("float16") / 1e12, BLUE, "data sheet"))
    figure = drawing(10, 5, "Kernels under the roofs", records[0])
    ax = plain(figure.subplots(), grid="y")
    low, high = 0.2, 4 * max(intensity for _, intensity, _ in points)
    for name, peak, colour, source in roofs:
        ridge = peak / bytes_per_second
        ax.plot([low, ridge, high], [low * bytes_per_second, peak, peak], color=colour, lw=1.6)
        ax.text(high, peak * 1.05, f"{name}: {peak:.0f} TFLOP/s ({source})", ha="right", size=9,
                va="bottom", color=colour)  # fmt: skip
    ax.annotate(f"a copy: {bytes_per_second:.1f} TB/s", (2, 2 * bytes_per_second), (-6, 4),
                textcoords="offset points", ha="right", va="bottom", size=9, color=INK)  # fmt: skip
    lines = {name: sorted(point[1:] for point in points if point[0] == name) for name in ROOFLINE}
    ends = [line[-1] for line in lines.values() if line]
    for name, (question, _) in ROOFLINE.items():
        if lines[name]:
            colour, (x, y) = COLOUR_OF.get(question, ORANGE), lines[name][-1]
            ax.plot(*zip(*lines[name], strict=True), "o-", color=colour, ms=5, lw=0.8)
            crowded = any(x == other_x and y / 1.4 < other_y < y for other_x, other_y in ends)
            ax.annotate(name, (x, y), (7, 3 if crowded else -3), textcoords="offset points",
                        va="bottom" if crowded else "top", size=9, color=colour)  # fmt: skip
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(0.1, 2500))
    ax.set_xticks([1, 10, 100, 1000, 10_000], ["1", "10", "100", "1,000", "10,000"])
    ax.set_yticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1,000"])
    ax.set_xlabel("FLOP per byte of inputs and outputs, each counted once", size=9, color=INK)
    ax.set_ylabel("TFLOP/s measured", size=9, color=INK)
    return figure


def _attention(name, item_size):
    """(FLOP per byte, TFLOP/s) of a row of attention, head_dim 128, not causal.

    Per head 4 n² d FLOPs, and q, k, v and out of n · d numbers.
    """

    def work(row):
        called = row.get("kernel", row.get("step"))
        if called != name or row.get("head_dim") != 128 or row.get("causal"):
            return None
        if row.get("dtype") == "bfloat16":
            return None
        return row["seqlen"] / item_size, row["TFLOP/s"]

    return work


def _decode(name):
    """4 FLOPs for 2 numbers of 2 bytes and each query head that reads them."""

    def work(row):
        if (row["kernel"], row["dtype"], row["page_size"]) != (name, "float16", None):
            return None
        heads, kv_heads = map(int, row["heads"].split("/"))
        intensity = heads / kv_heads
        return intensity, intensity * row["GB/s"] / 1e3

    return work


def _softmax(name):
    """A maximum, a difference, an exponential, a sum and a quotient for 8 bytes."""

    def work(row):
        if row["kernel"] != name or row.get("dtype", "float32") != "float32":
            return None
        return 5 / 8, 5 / 8 * row["GB/s"] / 1e3

    return work


ROOFLINE = {
    "online_softmax": ("softmax", _softmax("online_softmax")),
    "softmax_registers": ("softmax", _softmax("softmax_registers")),
    "flash_decode_gather": ("decode_fast", _decode("flash_decode_gather")),
    "naive_attn": ("ladder", _attention("naive_attn", 4)),
    "flash_attn_v2": ("ladder", _attention("flash_attn_v2", 4)),
    "flash_attn_registers": ("ladder", _attention("flash_attn_registers", 4)),
    "flash_attn_mma": ("tensor_core", _attention("flash_attn_mma", 2)),
    "flash_attn_persistent": ("tensor_core", _attention("flash_attn_persistent", 2)),
}

PICTURES = {
    "forward": lambda: against_seqlen("tensor_core", "Attention, forward"),
    "backward": lambda: against_seqlen("tensor_core_bwd", "Attention, backward"),
    "ladder": ladder,
    "decoding": decoding,
    "roofline": roofline,
}


def write(folder=PLOTS, suffix="svg"):
    """Draw the measured rows."""
    folder.mkdir(parents=True, exist_ok=True)
    # The same picture is the same file; its text is text, which can be selected and is short.
    with matplotlib.rc_context({"svg.hashsalt": "fa-numba", "svg.fonttype": "none"}):
        for name, draw in PICTURES.items():
            picture = draw()
            if picture is not None:
                options = {"metadata": {"Date": None}} if suffix == "svg" else {"dpi": 110}
                drawn = io.BytesIO()
                picture.savefig(drawn, format=suffix, **options)
                with replacing(folder / f"{name}.{suffix}") as file:
                    if suffix == "svg":
                        text = _one_line_for_each_part(drawn.getvalue().decode())
                        text = text.replace("</style>", f"{SVG_STYLE}</style>", 1)
                        drawn = io.BytesIO(text.encode())
                    file.write(drawn.getvalue())


def _one_line_for_each_part(svg):
    """The picture with a line for each named group, where matplotlib has one for each point."""
    joined = re.sub(r">\s+<", "><", " ".join(svg.split()))
    return joined.replace("<g id=", "\n<g id=") + "\n"


if __name__ == "__main__":
    write()
