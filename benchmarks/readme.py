"""Write the tables of README.md, between its markers, from benchmarks/results/."""

import json
import re
from collections import Counter
from pathlib import Path

from benchmarks.timing import RESULTS

README = Path(__file__).parents[1] / "README.md"
HEAD_DIMS = (64, 96, 128, 256)  # of the tables of the tensor-core kernels
YARDSTICKS = "full", "causal", "padded", "padded, causal"  # that masks are compared with: 1
# Rows of the last table.
CALLS = "flash_attn_v2", "flash_attn,", "flash_attn_persistent", "flash_decode_mma", "SDPA"


def table(rows):
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "|".join("---" for _ in columns) + "|"]
    lines += ["| " + " | ".join(str(row.get(c, "")) for c in columns) + " |" for row in rows]
    return "\n".join(lines)


def load(question):
    path = RESULTS / f"{question}.json"
    return json.loads(path.read_text()) if path.exists() else None


def caption(record):
    where = "" if record["machine"] == usual_machine() else f"{record['machine']}, "
    return f"{where}{record['date']}, `{record['command']}`. {record['note']}."


def usual_machine():
    """The one that most results are of."""
    return Counter(load(path.stem)["machine"] for path in RESULTS.glob("*.json")).most_common(1)[0][
        0
    ]


def section(question, row_of, column_of, value, keep=lambda row: True, note=""):
    """Caption and table of what a script recorded, or None where it has not run.

    Parameters
    ----------
    question : str
    row_of, column_of : callable
        Title of the row, the column, that a record belongs to.
    value : str or callable
        What stands there.
    keep : callable
        False leaves a record out.
    note : str
        Added to the caption.
    """
    record = load(question)
    if record is None:
        return None
    value_of = value if callable(value) else lambda row: row[value]
    rows = {}
    for row in filter(keep, record["rows"]):
        cells = rows.setdefault(row_of(row), {"kernel": row_of(row)})
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
    """The steps in float32: a column for each head_dim and mask."""
    return section(
        "ladder", kernel, size, "TFLOP/s", lambda row: row["seqlen"] == 8192, "n = 8192."
    )


def float16_of(seqlen, head_dims):
    """What keeps the records of this length and these head_dims."""
    return lambda row: (
        (row.get("dtype"), row.get("seqlen")) == ("float16", seqlen)
        and row["head_dim"] in head_dims
    )


def tensor_core_table(question="tensor_core", seqlen=4096):
    """One row per kernel, float16, one length: a column for each head_dim and mask."""
    keep = float16_of(seqlen, HEAD_DIMS)
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


def masks_table():
    """What is left of the plain kernel's rate: a column for each head_dim and length."""
    return section(
        "tensor_core_masks",
        lambda row: row["mask"],
        lambda row: f"d = {row['head_dim']}, n = {row['seqlen']}",
        lambda row: row["of plain"],
        lambda row: row["mask"] not in YARDSTICKS,
        "flash_attn_persistent: rate over that without the mask, windows over causal; packed over "
        "padded, flash_attn_persistent_varlen.",
    )


def memory_table():
    """One row per function, a column for each length."""
    return section(
        "memory",
        lambda row: row["function"],
        lambda row: f"n = {row['seqlen']}, bytes",
        lambda row: f"{row['extra bytes']:,}",
    )


def launch_table():
    """Calls that enqueue; then first calls, which have other columns."""
    record = load("launch")
    if record is None:
        return None
    rows = [row for row in record["rows"] if row["call"].startswith(CALLS)]
    first = [row for row in rows if "first call, s" in row]
    parts = [[row for row in rows if row not in first], first]
    return "\n\n".join([caption(record), *(table(with_all_columns(x)) for x in parts if x)])


def with_all_columns(rows):
    """The same rows, the first with a place for what only others have."""
    columns = dict.fromkeys(column for row in rows for column in row)
    return [columns | dict.fromkeys(columns, "") | row for row in rows]


def engine_table():
    record = load("engine")
    return record and f"{caption(record)}\n\n{table(record['rows'])}"


def serial_table():
    """What single threads cost that work alone."""
    record = load("serial")
    return record and f"{caption(record)}\n\n{table(record['rows'])}"


def pictures(*names):
    """Links to those of these plots that there are."""
    return "\n".join(
        f"![{what}](docs/plots/{name}.svg)"
        for name, what in names
        if (README.parent / "docs" / "plots" / f"{name}.svg").exists()
    )


def rendered(text):
    """README.md with what is between its markers written anew."""
    sections = {
        "engine": [engine_table(), serial_table()],
        "bench": [
            f"Measured on an {usual_machine()}, where a table does not say otherwise.",
            pictures(("ladder", "TFLOP/s of each step of the ladder and of the libraries")),
            attention_table(),
            ladder_table(),
            pictures(
                ("forward", "TFLOP/s against the length of the sequence, forward"),
                ("backward", "TFLOP/s against the length of the sequence, backward"),
            ),
            tensor_core_table(),
            short_table(),
            peers_table(),
            tensor_core_table("tensor_core_bwd", 8192),
            fp8_table(),
            masks_table(),
            pictures(("decoding", "bandwidth of decoding beside the copy's")),
            decode_table(),
            softmax_table(),
            memory_table(),
            launch_table(),
            pictures(("roofline", "the kernels under the roofs of bandwidth and arithmetic")),
        ],
    }
    for marker, parts in sections.items():
        body = "\n\n".join(part for part in parts if part)
        pattern = rf"(<!-- {marker}:begin -->\n).*?(<!-- {marker}:end -->)"
        text = re.sub(pattern, lambda m, body=body: f"{m[1]}{body}\n{m[2]}", text, flags=re.DOTALL)
    return text


def write():
    README.write_text(rendered(README.read_text()))


if __name__ == "__main__":
    write()
