"""Write the tables of README.md, between its markers, from benchmarks/results/."""

import json
import re
from pathlib import Path

from benchmarks.timing import RESULTS

README = Path(__file__).parents[1] / "README.md"


def table(rows):
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "|".join("---" for _ in columns) + "|"]
    lines += ["| " + " | ".join(str(row.get(c, "")) for c in columns) + " |" for row in rows]
    return "\n".join(lines)


def load(question):
    path = RESULTS / f"{question}.json"
    return json.loads(path.read_text()) if path.exists() else None


def caption(record):
    return f"{record['machine']}, {record['date']}, `{record['command']}`. {record['note']}."


def attention_table():
    """One row per kernel, one column per causal sequence length, head_dim 64: TFLOP/s."""
    record = load("attention")
    if record is None:
        return None
    rows = {}
    for row in record["rows"]:
        if row["head_dim"] == 64 and row["causal"]:
            cells = rows.setdefault(row["kernel"], {"kernel": row["kernel"]})
            cells[f"n = {row['seqlen']}, TFLOP/s"] = row["TFLOP/s"]
    return f"{caption(record)} Causal, head_dim 64.\n\n{table(list(rows.values()))}"


def softmax_table():
    record = load("softmax")
    if record is None:
        return None
    rows = {}
    for row in record["rows"]:
        if row.get("dtype", "float32") != "float32":
            continue
        cells = rows.setdefault(row["kernel"], {"kernel": row["kernel"]})
        cells[f"{row['rows']}×{row['columns']}, GB/s"] = row["GB/s"]
    return f"{caption(record)}\n\n{table(list(rows.values()))}"


def tensor_core_table():
    """One row per kernel, float16, n = 4096: a column for each head_dim and mask."""
    record = load("tensor_core")
    if record is None:
        return None
    rows = {}
    for row in record["rows"]:
        if row["dtype"] == "float16" and row["seqlen"] == 4096:
            cells = rows.setdefault(row["kernel"], {"kernel": row["kernel"]})
            mask = "causal" if row["causal"] else "full"
            cells[f"d = {row['head_dim']}, {mask}, TFLOP/s"] = row["TFLOP/s"]
    return f"{caption(record)} float16, n = 4096.\n\n{table(list(rows.values()))}"


def engine_table():
    record = load("engine")
    return record and f"{caption(record)}\n\n{table(record['rows'])}"


def write():
    text = README.read_text()
    sections = {
        "engine": [engine_table()],
        "bench": [attention_table(), tensor_core_table(), softmax_table()],
    }
    for marker, tables in sections.items():
        body = "\n\n".join(t for t in tables if t)
        pattern = rf"(<!-- {marker}:begin -->\n).*?(<!-- {marker}:end -->)"
        text = re.sub(pattern, lambda m, body=body: f"{m[1]}{body}\n{m[2]}", text, flags=re.DOTALL)
    README.write_text(text)


if __name__ == "__main__":
    write()
