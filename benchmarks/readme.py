"""Write the tables of README.md and docs/, between their markers, from benchmarks/results/."""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.timing import RESULTS, write_whole
from fa_numba.distributed import LAYOUTS, prediction
from fa_numba.workbook.ladder import LIBRARY
from fa_numba.workbook.tables import as_markdown, between_marks

ROOT = Path(__file__).parents[1]
HEAD_DIMS = (64, 96, 128, 256)  # of the tables of the tensor-core kernels
YARDSTICKS = "full", "causal", "padded", "padded, causal"  # masks are compared with these: 1
# The README's failing check: the solution of this exercise without its line about this.
WRONG, MISSING = "ex02d_safe_softmax_kernel.py", "# everyone has read the maximum"
# Rows of the README's table: a title, the results, and the record that each cell shows.
GPU_ROWS = (
    ("forward, n = 512", "tensor_core", 512, False),
    ("forward, n = 8192", "tensor_core", 8192, False),
    ("forward, causal, n = 8192", "tensor_core", 8192, True),
    ("backward, n = 8192", "tensor_core_bwd", 8192, False),
    ("backward, causal, n = 8192", "tensor_core_bwd", 8192, True),
)
GPU_KERNELS = {
    "flash_attn_persistent": "fa-numba",
    "flash_attn_bwd_persistent": "fa-numba",
    "SDPA cuDNN": "cuDNN",
    "SDPA FlashAttention-2": "FlashAttention-2",
}
PUBLISHED = "fa-numba", "cuDNN", "FlashAttention-2", "published"  # columns
GRADIENTS = "out", "dq", "dk", "dv"
FORWARD, BOTH = "forward", "forward+backward"  # of bench_many_gpus
INFINIBAND = "InfiniBand", 50  # GB/s of each GPU: a port of 400 Gbit/s
H100 = "h100"  # folder of results: python -m benchmarks --into h100
NEAR = 0.97  # a kernel is as good as the fastest
# Kernels of the table of calls.
CALLS = "flash_attn_v2", "flash_attn,", "flash_attn_persistent", "flash_decode_mma", "SDPA"


def table(rows):
    return as_markdown(rows[0], ([row.get(column, "") for column in rows[0]] for row in rows))


def load(question, folder=""):
    """The record of a question, or None: in a folder of results those of another GPU."""
    path = RESULTS / folder / f"{question}.json"
    return json.loads(path.read_text()) if path.exists() else None


def of_record(question):
    """For a function of a record that makes rows, or a text: it becomes one of a folder of results.

    Rows become a table with the record's caption. Without a record the result is None.
    """

    def decorate(function):
        @functools.wraps(function)
        def read(folder=""):
            record = load(question, folder)
            made = record and function(record)
            return f"{caption(record)}\n\n{table(made)}" if isinstance(made, list) else made

        return read

    return decorate


def caption(record):
    where = "" if record["machine"] == usual_machine() else f"{record['machine']}, "
    return f"{where}{record['date']}, `{record['command']}`. {record['note']}."


def usual_machine():
    """The machine of most results."""
    return Counter(load(path.stem)["machine"] for path in RESULTS.glob("*.json")).most_common(1)[0][
        0
    ]


def section(question, row_of, column_of, value, keep=lambda row: True, note="", title="kernel"):
    """Caption and table of what a script recorded, or None where it has not run.

    Parameters
    ----------
    question : str
    row_of, column_of : callable
        Title of the row and of the column of a record.
    value : str or callable
        The cell: a field of the record, or a function of it.
    keep : callable
        False for a record that the table leaves out.
    note, title : str
        Text after the caption, and the first column's title.
    """
    record = load(question)
    if record is None:
        return None
    value_of = value if callable(value) else lambda row: row[value]
    rows = {}
    for row in filter(keep, record["rows"]):
        cells = rows.setdefault(row_of(row), {title: row_of(row)})
        cells[column_of(row)] = value_of(row)
    text = caption(record) + (f" {note}" if note else "")
    return f"{text}\n\n{table(with_all_columns(list(rows.values())))}" if rows else None


def kernel(row):
    return row.get("kernel", row.get("step"))


def size(row):
    """Head dim and mask, over the columns of the attention tables."""
    return f"d = {row['head_dim']}, {'causal' if row['causal'] else 'full'}, TFLOP/s"


def attention_table():
    """One row per kernel, one column per causal sequence length, head_dim 64: TFLOP/s."""
    return section(
        "attention",
        kernel,
        lambda row: f"n = {row['seqlen']}, TFLOP/s",
        "TFLOP/s",
        lambda row: row["head_dim"] == 64 and row["causal"],
        "Causal, head_dim 64.",
    )


def softmax_table():
    return section(
        "softmax",
        kernel,
        lambda row: f"{row['rows']}×{row['columns']}, GB/s",
        "GB/s",
        lambda row: row.get("dtype", "float32") == "float32",
    )


def ladder_table():
    """Each step of the float32 ladder: a column for each head_dim and mask."""
    return section(
        "ladder",
        lambda row: kernel(row) + " (tensor cores inside)" * kernel(row).startswith(LIBRARY),
        size,
        "TFLOP/s",
        lambda row: row["seqlen"] == 8192,
        "n = 8192.",
    )


def float16_of(seqlen, head_dims):
    """A filter: float16 records of this length and these head_dims."""
    return lambda row: (
        (row.get("dtype"), row.get("seqlen")) == ("float16", seqlen)
        and row["head_dim"] in head_dims
    )


def tensor_core_table(question="tensor_core", seqlen=4096, head_dims=HEAD_DIMS):
    """One row per kernel, float16, one length: a column for each head_dim and mask."""
    keep = float16_of(seqlen, head_dims)
    return section(question, kernel, size, "TFLOP/s", keep, f"float16, n = {seqlen}.")


def short_table():
    """The shortest sequences, where a launch weighs most: called alone, and in a CUDA graph."""

    def both(row):
        return f"{row['TFLOP/s']} / {row['graph TFLOP/s']}"

    note = "float16, n = 512: called alone / in a graph."
    return section("tensor_core", kernel, size, both, float16_of(512, (64, 128)), note)


def peers_table():
    """Compilers of attention beside a library's kernel and ours."""
    return section(
        "peers",
        kernel,
        size,
        lambda row: row.get("TFLOP/s", "does not run"),
        lambda row: row.get("seqlen") == 8192,
        "n = 8192.",
    )


def decode_table():
    """One row per kernel and page size, float16: a column for each size of the cache."""

    def name(row):
        return kernel(row) + (f", pages of {row['page_size']}" if row["page_size"] else "")

    return section(
        "decode_fast",
        name,
        lambda row: f"{row['batch']} × {row['seqlen']}, {row['heads']} heads, GB/s",
        "GB/s",
        lambda row: row["dtype"] == "float16",
        "float16; a column is sequences × tokens of each.",
    )


def fp8_table():
    """Rates, a column for each head_dim and mask; then errors."""
    rates = section(
        "fp8",
        kernel,
        size,
        "TFLOP/s",
        lambda row: row.get("seqlen") == 8192 and "TFLOP/s" in row,
        "The rates: n = 8192.",
    )
    errors = [row for row in (load("fp8") or {"rows": ()})["rows"] if "RMSE" in row]
    return rates and "\n\n".join([rates, table(errors)] if errors else [rates])


@of_record("fp8_cache")
def fp8_cache_table(record):
    """Tokens per second of a cache of e4m3 beside float16; then errors."""
    rates = {}
    for row in (row for row in record["rows"] if "ms" in row):
        size = f"{row['batch']} × {row['seqlen']}", row["heads"], row["cache"]
        names = "sequences × keys", "heads", "cache"
        cells = rates.setdefault(size, dict(zip(names, size, strict=True)))
        if row["page_size"]:
            where = f", pages of {row['page_size']}"
            cells |= {f"{name}{where}": row[name] for name in ("tokens/s", "faster")}
        else:
            cells |= {name: row[name] for name in ("tokens/s", "GB/s", "faster", "error")}
    errors = [row for row in record["rows"] if "data" in row]
    tables = [table(rows) for rows in (list(rates.values()), errors) if rows]
    return "\n\n".join([caption(record), *tables])


def every_row(question, across=""):
    """The rows as they were recorded, or side by side: as `beside`."""
    record = load(question)
    rows = record and (beside(record["rows"], across) if across else record["rows"])
    return record and f"{caption(record)}\n\n{table(rows)}"


@of_record("wide")
def wide_table(record):
    """The rows in float16: those in bfloat16 are in the record."""
    rows = (row for row in record["rows"] if row["dtype"] == "float16")
    return [{name: x for name, x in row.items() if name != "dtype"} for row in rows]


@of_record("topk_decode")
def topk_pays(record):
    """From which number of keys few pages take less time than all, by lines through the lengths."""
    found = []
    for top in sorted({row["pages"] for row in record["rows"]}):
        rows = [row for row in record["rows"] if row["pages"] == top]
        lengths = [row["seqlen"] for row in rows]
        times = ([row[name] for row in rows] for name in ("ms", "all ms"))
        few, all_pages = (np.polyfit(lengths, ms, 1) for ms in times)
        slope, constant = all_pages - few
        found.append(f"{round(-constant / slope, -2):,.0f} keys for {top} pages")
    return f"By lines through these lengths few pages take less time from {', '.join(found)}."


def masks_table():
    """Rate over the plain kernel's: a column for each head_dim and length."""
    return section(
        "tensor_core_masks",
        lambda row: row["mask"],
        lambda row: f"d = {row['head_dim']}, n = {row['seqlen']}",
        lambda row: row["of plain"],
        lambda row: row["mask"] not in YARDSTICKS,
        "flash_attn_persistent: rate over that without the mask, windows over causal; packed over "
        "padded, flash_attn_persistent_varlen.",
    )


@of_record("user_masks")
def user_masks_table(record):
    """A problem of `bench_user_masks` with a row for each head_dim."""
    return with_all_columns([{"problem": row["problem"], **row} for row in record["rows"]])


def beside(rows, across):
    """Merge rows that differ in `across` and in numbers alone; `across` names the columns.

    `across` is the name of a cell; the cells before it say which row it is.
    """
    found = {}
    for row in rows:
        names = list(row)
        keys = names[: names.index(across)]
        cells = found.setdefault(tuple(row[x] for x in keys), {x: row[x] for x in keys})
        cells |= {f"{row[across]}: {x}": row[x] for x in names[len(keys) + 1 :]}
    return with_all_columns(list(found.values()))


@of_record("few_queries")
def few_queries_table(record):
    """Our time and that of PyTorch's attention: a row for each problem, its head_dims beside."""
    rows = (
        {
            "queries × keys": f"{row['batch']} × {row['seqlen_q']} × {row['seqlen_k']}",
            "heads": row["heads"],
            "d": f"d = {row['head_dim']}",
            "kernel": row["kernel"],
            "ms": row["ms"],
            "PyTorch's best over ours": row["ratio"],
        }
        for row in record["rows"]
    )
    return beside(rows, "d")


@of_record("mla")
def mla_table(record):
    """A row for each problem: without pages, and with pages beside."""
    names = "batch", "seqlen", "heads", "pages", "ms", "TB/s", "of copy", "TFLOP/s", "graph of copy"
    pages = {None: "no pages", 64: "pages of 64"}
    rows = (row | {"pages": pages[row["page_size"]]} for row in record["rows"])
    return beside(({name: row[name] for name in names} for row in rows), "pages")


def packed_table():
    """One row per kernel and batch, a column for each pass, head_dim and mask: TFLOP/s."""
    return section(
        "packed",
        lambda row: f"{kernel(row).removesuffix('_grad')}, {row['batch']}",
        lambda row: f"{row['pass']}, {size(row)}",
        "TFLOP/s",
        note="Backward flash_attn_varlen_grad.",
    )


def length(row):
    return f"{row['seqlen']}{', causal' if row['causal'] else ''}"


@of_record("published")
def published_table(record):
    """Our rate, those of PyTorch's in the same run, and the published one: a row for each size.

    `published_of_both` has the published times of both passes together.
    """
    rows = (
        {
            "layout": row["layout"],
            "n": length(row),
            "pass": row["pass"],
            **{name: row.get(name) or "" for name in PUBLISHED},
        }
        for row in record["rows"]
        if row["pass"] != "both"
    )
    return beside(rows, "pass")


@of_record("published")
def published_of_both(record):
    """The published time of both passes together, beside ours, in a sentence."""
    return " ".join(
        f"{row['layout']}, {length(row)}, both passes: "
        f"{', '.join(f'{name} {row[name]}' for name in PUBLISHED)}."
        for row in record["rows"]
        if row["pass"] == "both"
    )


@of_record("choice")
def choice_table(record):
    """How near the kernel that a job takes is to the fastest: a row for each job."""
    rows = []
    for job in dict.fromkeys(row["job"] for row in record["rows"]):
        ratios = sorted(row["ratio"] for row in record["rows"] if row["job"] == job)
        near = sum(ratio >= NEAR for ratio in ratios)
        rows.append(
            {
                "job": job,
                "problems": len(ratios),
                f"ratio at least {NEAR}": near,
                "median": ratios[len(ratios) // 2],
                "least": ratios[0],
            }
        )
    return rows


@of_record("dropout")
def dropout_table(record):
    """Rates over FlashAttention-2 and over the kernel without dropout: a row for each problem."""
    names = "pass", "TFLOP/s", "over FlashAttention-2", "over no dropout"
    rows = []
    for row in record["rows"]:
        mask = "causal" if row["causal"] else "full"
        problem = f"d = {row['head_dim']}, n = {row['seqlen']}, {mask}"
        rows.append({"problem": problem} | {name: row[name] for name in names})
    return beside(rows, "pass")


def with_quartiles(row, name):
    first, third = row.get(f"{name}, quartiles") or (None, None)
    return row[name] if first is None else f"{row[name]} ({first} to {third})"


def torch_step_tables():
    """A step of GPT-2 small; then the host time of calls."""

    def rows(what, cells_of):
        found = {}
        for row in (load("torch_step") or {"rows": ()})["rows"]:
            if row["what"] == what:
                found.setdefault(kernel(row), {"kernel": kernel(row)}).update(cells_of(row))
        return list(found.values())

    def of_step(row):
        how = "compiled" if row["compiled"] else "eager"
        return {f"{how}, {name}": with_quartiles(row, name) for name in ("ms", "host, ms")}

    steps = rows("step", of_step)
    calls = rows("call", lambda row: {f"{row['pass']}, µs": with_quartiles(row, "µs")})
    if not steps:
        return None
    tables = map(table, map(with_all_columns, (steps, calls)))
    return "\n\n".join([caption(load("torch_step")), *tables])


def torch_tables():
    """Training of a small model; then calls, forward and backward."""

    def step(row):
        return f"{with_quartiles(row, 'ms')}, ± {row['largest difference from SDPA']}"

    training = section(
        "torch",
        kernel,
        lambda row: f"n = {row['seqlen']}, ms (± loss)",
        step,
        lambda row: row["what"] == "training",
    )
    record = load("torch") or {"rows": ()}
    rows = {}
    for row in record["rows"]:
        if row["what"] == "call":
            mask = "causal" if row["causal"] else "full"
            column = f"d = {row['head_dim']}, n = {row['seqlen']}, {mask}, ms"
            rows.setdefault(kernel(row), {"kernel": kernel(row)})[column] = row["ms"]
    return training and "\n\n".join([training, table(with_all_columns(list(rows.values())))])


@of_record("ranks")
def ranks_table(record):
    """Errors, bytes and pairs of rings on ranks in one process."""

    def row_of(row):
        errors = [row[f"error_{name}"] for name in ("out", "dq", "dk", "dv")]
        return {
            "layout": row["layout"],
            "ranks": row["ranks"],
            **{f"error of {n}": f"{x:.1e}" for n, x in zip(GRADIENTS, errors, strict=True)},
            "pairs, most : fewest": f"{row['most_pairs'] / row['fewest_pairs']:.2f}",
            "limit of the layout": f"{row['efficiency']:.2f}",
        }

    return [row_of(row) for row in record["rows"]]


def many_gpus_tables():
    """Shares of one GPU's rate, transfers, correctness, decoding, and predictions."""
    record = load("many_gpus")
    if record is None:
        return []
    rows = record["rows"]
    timed = [row for row in rows if "ms" in row and "method" in row]
    single = {size_of(r): r["ms"] for r in timed if r["method"] == "one GPU"}
    links = {row["gpus"]: row["gb_per_s"] for row in rows if "gb_per_s" in row}  # the last: largest
    shares, waits = {}, {}
    for row in timed:
        size, link = size_of(row), links.get(row["gpus"])
        head = dict(zip(("GPUs", "tokens of each", "pass"), size, strict=True))
        cells = shares.setdefault(size, head | {"one GPU, ms": f"{single[size]:.4g}"})
        if "share_of_single" not in row:
            continue
        cells[row["method"]] = f"{row['share_of_single']:.3f}"
        share = predicted(row, size, single, link) if link else None
        cells[row["method"]] += f" ({share:.3f})" if share else ""
        if "ms_waited" in row:
            times = f"{row['ms_of_transfers']:.3g} / {row['ms_waited']:.3g}"
            waits.setdefault(size, dict(head))[row["method"]] = times
    link = ", ".join(f"{rate:.0f} GB/s on {gpus} GPUs" for gpus, rate in sorted(links.items()))
    parts = [
        f"{caption(record)} Share of the rate of one GPU that has the whole sequence; in "
        "parentheses the prediction of `fa_numba.distributed.prediction`, from the rate of one GPU "
        f"and that of the link: {link}.\n\n{table(beside(shares.values(), 'pass'))}",
        "The time of transfers, in ms: by their bytes and the rate of the link alone / how long a "
        "GPU computes nothing because it waits for them, or for the rank that sends them:\n\n"
        f"{table(beside(waits.values(), 'pass'))}",
        checks_on_gpus(rows),
        decoding_on_gpus(rows),
        many_more_gpus(single, links.get(max(links))) if links else None,
    ]
    return [part for part in parts if part]


def size_of(row):
    return row["gpus"], row["tokens"], row["what"]


def checks_on_gpus(rows):
    """Errors beside those of one GPU, and what each rank sent and computed."""
    found = []
    for row in rows:
        if "rms_out" not in row:
            continue
        cells = {"GPUs": row["gpus"], "method": row["check"]}
        for name in ("out", "dq", "dk", "dv"):
            ratio = row[f"rms_{name}"] / row[f"rms_{name}_one_gpu"]
            cells[f"error of {name}"] = f"{row[f'rms_{name}']:.2e} ({ratio:.3f})"
        cells["bytes sent by rank 0"] = f"{row['bytes']:,}"
        if row["fewest pairs"]:
            cells["pairs, most : fewest"] = f"{row['most pairs'] / row['fewest pairs']:.2f}"
        found.append(cells)
    return found and (
        "Errors against float64, root mean square, of 4099 tokens on 16 heads and 4 K/V heads; in "
        "parentheses over those of one GPU. The run ends with an error unless the bytes sent and "
        f"the pairs computed are those of the formulas:\n\n{table(with_all_columns(found))}"
    )


def decoding_on_gpus(rows):
    """Milliseconds of one query over many keys, with the predictions."""
    found = {}
    for row in rows:
        if "decoding" not in row:
            continue
        key = row["gpus"], row["keys"]
        cells = found.setdefault(key, dict(zip(("GPUs", "keys"), key, strict=True)))
        cells[row["decoding"]] = f"{row['ms']:.3g}"
        if "predicted_ms" in row:
            cells[row["decoding"]] += f" ({row['predicted_ms']:.3g})"
    latency = {row["gpus"]: row["latency_us"] for row in rows if "latency_us" in row}
    latency = ", ".join(f"{us:.0f} µs on {gpus} GPUs" for gpus, us in sorted(latency.items()))
    return found and (
        "Decoding, one query and many keys, ms; in parentheses the prediction, from the time of "
        f"one GPU, the link, and an exchange of one number: {latency}.\n\n"
        f"{table(with_all_columns(list(found.values())))}"
    )


def many_more_gpus(single, link):
    """A table of predictions: nobody measured these."""
    gpus, tokens = max(size[0] for size in single), 65_536
    if not {(gpus, tokens, FORWARD), (gpus, tokens, BOTH)} <= set(single):
        return None
    rows = []
    for world_size, wire, rate in ((8, "NVLink", link), (64, *INFINIBAND), (1024, *INFINIBAND)):
        if world_size <= gpus:
            continue
        row = {"GPUs": world_size, "link": f"{wire}, {rate:.0f} GB/s"}
        for layout in ("zigzag", "contiguous"):
            for what in (FORWARD, BOTH):
                share = predicted_share(layout, world_size, (gpus, tokens, what), single, rate)
                row[f"{layout}, {what}"] = f"{share:.3f}"
        rows.append(row)
    return (
        f"A prediction, not a measurement: the share at {tokens} tokens of each GPU, by the same "
        "model. 50 GB/s is what a port of 400 Gbit/s carries for each GPU; the model knows no "
        f"latency and no other traffic.\n\n{table(rows)}"
    )


def predicted(row, size, single, link):
    """The predicted share of a row of the record; None for a method without a model."""
    gpus = row["gpus"]
    if row["method"] in LAYOUTS:
        return predicted_share(row["method"], gpus, size, single, link)
    if row["method"] == "ulysses":  # its transfers are not hidden
        return single[size] / (single[size] + gpus * row["ms_of_transfers"])
    return None


def predicted_share(layout, world_size, size, single, link):
    """The predicted share of one GPU's rate; None where that rate was not measured."""
    gpus, tokens, what = size
    passes = {False: single.get((gpus, tokens, FORWARD))}
    if what == BOTH and passes[False]:
        passes[True] = single[size] - passes[False]
    if None in passes.values():
        return None
    measured = prediction.Problem(gpus * tokens, gpus, 32, 8, 128)
    problem = prediction.Problem(world_size * tokens, world_size, 32, 8, 128, layout)
    pairs = prediction.pairs_per_rank(measured).sum()
    seconds = alone = 0.0
    for backward, ms in passes.items():
        per_pair = prediction.FLOPS_PER_PAIR["backward" if backward else "forward"] * 32 * 128
        options = {"flops": per_pair * pairs / (ms / 1e3), "bytes_per_second": link * 1e9}
        found = prediction.predict_ring(problem, **options, backward=backward)
        seconds, alone = seconds + found.seconds, alone + found.single
    return alone / (world_size * seconds)


def memory_table():
    """One row per function, a column for each length."""
    return section(
        "memory",
        lambda row: row["function"],
        lambda row: f"n = {row['seqlen']}, bytes",
        lambda row: f"{row['extra bytes']:,}",
    )


@of_record("launch")
def launch_table(record):
    """Calls that enqueue; then first calls, whose columns differ."""
    rows = [row for row in record["rows"] if row["call"].startswith(CALLS)]
    first = [row for row in rows if "first call, s" in row]
    parts = [[row for row in rows if row not in first], first]
    return "\n\n".join([caption(record), *(table(with_all_columns(x)) for x in parts if x)])


def with_all_columns(rows):
    """The same rows; the first has an empty cell for each column that only others have."""
    columns = dict.fromkeys(column for row in rows for column in row)
    return [columns | dict.fromkeys(columns, "") | row for row in rows]


def language_model_table(question):
    """Steps beside PyTorch's; then runs to a loss, whose columns differ."""
    record = load(question)
    if record is None:
        return None
    kinds = {}
    for row in record["rows"]:
        cells = {name: value for name, value in row.items() if name != "what"}
        kinds.setdefault(row["what"], []).append(cells)
    return "\n\n".join([caption(record), *map(table, kinds.values())])


def serving_tables(question):
    """A table for each of the script's questions, under its title; rates by batch side by side."""
    record = load(question)
    if record is None:
        return None
    parts, kinds = [caption(record)], {}
    for row in record["rows"]:
        cells = {name: value for name, value in row.items() if name != "table"}
        kinds.setdefault(row["table"], []).append(cells)
    for title, rows in kinds.items():
        if "batch" in rows[0]:
            title, rows = f"{title}: tokens/s", by_batch(rows)
        parts += [f"**{title}**", table(with_all_columns(rows))]
    return "\n\n".join(parts)


def by_batch(rows):
    """A row for each configuration, a column for each number of answers at a time."""
    batches = sorted({row["batch"] for row in rows})
    rates = {(row["what"], row["batch"]): row["tokens/s"] for row in rows}
    return [
        {"what": what} | {str(batch): rates.get((what, batch), "") for batch in batches}
        for what in dict.fromkeys(row["what"] for row in rows)
    ]


def gpu_table():
    """The README's one table: fa-numba beside the libraries, with one sentence before it."""
    records = {question: load(question) for question in ("tensor_core", "tensor_core_bwd")}
    if not all(records.values()):
        return None
    rows, over_cudnn = [], []
    for title, question, seqlen, causal in GPU_ROWS:
        cells = {"TFLOP/s": title}
        for head_dim in (64, 128):
            wanted = "float16", head_dim, seqlen, causal
            rates = {
                GPU_KERNELS[row["kernel"]]: row["TFLOP/s"]
                for row in records[question]["rows"]
                if row["kernel"] in GPU_KERNELS
                and (row["dtype"], row["head_dim"], row["seqlen"], row["causal"]) == wanted
            }
            if {"fa-numba", "cuDNN"} <= rates.keys():  # else not measured, the time was over
                over_cudnn.append(rates["fa-numba"] / rates["cuDNN"])
            for name in ("fa-numba", "cuDNN", "FlashAttention-2"):
                rate = f"{rates[name]:.0f}" if name in rates else ""
                cells[f"d = {head_dim}: {name}"] = rate
        rows.append(cells)
    if not over_cudnn:
        return None
    dates = " and ".join(sorted({record["date"] for record in records.values()}))
    said = (
        f"{records['tensor_core']['machine']}, {dates}; float16, 16384 tokens in all, "
        "num_heads · head_dim = 2048. "
        f"In these rows fa-numba runs at {min(over_cudnn):.2f} to {max(over_cudnn):.2f} times the "
        "speed of cuDNN. More is better."
    )
    return f"{said}\n\n{table(rows)}"


def failing_check():
    """The grader's report of an answer that lacks one barrier, as a learner sees it."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("exercises", "solutions"):
            shutil.copytree(ROOT / name, Path(folder, name))
        lines = (ROOT / "solutions" / WRONG).read_text().splitlines(keepends=True)
        answer = [x for x in lines if not x.lstrip().startswith("###") and MISSING not in x]
        Path(folder, "exercises", WRONG).write_text("".join(answer))
        done = subprocess.run(
            [sys.executable, "-m", "fa_numba.workbook.cli", "check", WRONG[:5]],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/engine", "COLUMNS": "118"},
            capture_output=True,
            text=True,
        )
    said = "\n".join(line.rstrip() for line in done.stdout.splitlines())
    return f"$ fa-numba check {WRONG[:5]}\n{said}"


@of_record("engine")
def engine_sentence(record):
    """The speed of the CPU engine beside Numba's simulator, for the README."""
    row = record["rows"][0]
    return (
        f"One launch of “{row['kernel']}” takes {row['plain']} ms on the engine and "
        f"{row['simulator']} ms on Numba's own simulator ({record['machine'].split(',')[0]}, "
        f"{record['date']}; [all kernels](docs/microscope.md#speed))."
    )


def cpu_table(*jobs):
    """One row per size: our speed, and how many times that of the best other function."""
    return section(
        "cpu",
        lambda row: row["problem"].replace(" x ", "×"),
        lambda row: f"{row['job']}, {row['variant']}, {row['unit']}",
        lambda row: f"{row['fa_numba']} ({row['over the best other']}×)",
        lambda row: row["job"] in jobs,
        title="size",
    )


def pictures(*names):
    """Links from docs/ to the plots of these names that exist."""
    return "\n".join(
        f"![{what}](plots/{name}.svg)"
        for name, what in names
        if (ROOT / "docs" / "plots" / f"{name}.svg").exists()
    )


def parts_of_benchmarks():
    """For each marker of docs/benchmarks.md, what stands between its begin and end."""
    return {
        "machine": [f"The machine is an {usual_machine()}, where a table names no other."],
        "lessons": [
            attention_table(),
            pictures(("ladder", "TFLOP/s of each step of the ladder and of the libraries")),
        ],
        "float32": [ladder_table()],
        "forward": [
            pictures(("forward", "TFLOP/s against the length of the sequence, forward")),
            tensor_core_table(),
        ],
        "short": [short_table()],
        "wide": [wide_table()],
        "beside_copy": [every_row("short")],
        "peers": [peers_table()],
        "backward": [
            pictures(("backward", "TFLOP/s against the length of the sequence, backward")),
            tensor_core_table("tensor_core_bwd", 8192, (*HEAD_DIMS, 192)),
        ],
        "fp8": [fp8_table()],
        "fp8_cache": [fp8_cache_table()],
        "cascade": [every_row("cascade", "pages of the prefix")],
        "topk_pages": [every_row("topk_pages")],
        "topk_decode": [every_row("topk_decode"), topk_pays()],
        "mla": [mla_table()],
        "masks": [masks_table()],
        "user_masks": [user_masks_table()],
        "user_masks_cpu": [every_row("user_masks_cpu")],
        "published": [published_table(), published_of_both()],
        "few_queries": [few_queries_table()],
        "packed": [packed_table()],
        "choice": [choice_table()],
        "h100": [table(H100) for table in (published_table, few_queries_table, choice_table)],
        "decoding": [
            pictures(("decoding", "bandwidth of decoding beside the copy's")),
            decode_table(),
        ],
        "softmax": [softmax_table()],
        "memory": [memory_table()],
        "calls": [launch_table()],
        "dropout": [dropout_table()],
        "torch": [torch_tables()],
        "torch_step": [torch_step_tables()],
        "language_model": [language_model_table("language_model")],
        "language_model_cpu": [language_model_table("language_model_cpu")],
        "many_gpus": many_gpus_tables(),
        "ranks": [ranks_table()],
        "serving": [serving_tables("serving")],
        "serving_gpu": [serving_tables("serving_gpu")],
        "cpu": [cpu_table("flash_attn", "flash_attn_grad")],
        "cpu_decoding": [cpu_table("flash_decode", "paged_attn_decode")],
        "cpu_softmax": [cpu_table("softmax", "softmax_topk")],
        "roofline": [
            pictures(("roofline", "the kernels under the roofs of bandwidth and arithmetic"))
        ],
    }


# Each document, and a function that gives the parts of each of its markers.
DOCUMENTS = {
    "README.md": lambda: {"gpu": [gpu_table()], "engine": [engine_sentence()]},
    "docs/benchmarks.md": parts_of_benchmarks,
    "docs/serving.md": lambda: {
        "drafts": [every_row("drafts")],
        "same_text": [every_row("same_text")],
        "serving_switches_cpu": [every_row("serving_switches_cpu")],
        "serving_switches": [every_row("serving_switches")],
    },
    "docs/microscope.md": lambda: {"engine": [every_row("engine"), every_row("serial")]},
}


def rendered(name, text):
    """The text of a document, with the parts between its markers written anew."""
    missing = "Not recorded yet: `python -m benchmarks {}` on a GPU makes the table."
    parts = DOCUMENTS[name]().items()
    bodies = {marker: "\n\n".join(filter(None, part)) for marker, part in parts}
    return between_marks(text, {x: body or missing.format(x) for x, body in bodies.items()})


def write():
    for name in DOCUMENTS:
        path = ROOT / name
        write_whole(path, rendered(name, path.read_text()))


if __name__ == "__main__":
    write()
