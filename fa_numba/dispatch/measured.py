"""The choice by measured times: of the kernels that can, the fastest on the most similar problem.

fastest.json holds the times of a few hundred problems for each GPU that was measured, an H100 and
an H200; ``python -m benchmarks fastest`` measures them and writes the file. Nothing is
timed in a call. On a GPU that nobody has measured, the times of one of the same compute capability
decide, else those of the first, with one exception: see `tf32_pays_off`. ``python -m benchmarks
choice`` measures how good the choice is, at problems that are not in the file.
"""

import functools
import json
import math
from pathlib import Path

from fa_numba.runtime import arrays
from fa_numba.simt import devices

TABLE = Path(__file__).parents[1] / "fastest.json"
OTHER_MASK = 1.0  # distance of a causal problem from a full one; twice the keys are as far
OTHER_GROUP = 2.0  # distance for each factor of two in the query heads of a key head


@functools.cache
def table():
    """The contents of fastest.json: records by the name of a GPU."""
    return json.loads(TABLE.read_text())


def record_of(q) -> dict:
    """The measurements for q's GPU: its own, those of its compute capability, or the first."""
    records = table()
    here = arrays.compute_capability(q)
    alike = (x for x in records.values() if tuple(x["compute_capability"]) == here)
    return records.get(arrays.gpu_name(q)) or next(alike, None) or next(iter(records.values()))


def fastest(part, able, inputs, options):
    """Choose by the table.

    Parameters
    ----------
    part : str
        Which rows of the table: "rows" or "gradients".
    able : list of str
        Titles of the candidates that can run.
    inputs : facts of arrays, with q and k
    options : dict

    Returns
    -------
    (title, reason), or None if no able candidate was ever measured
    """
    record = record_of(inputs.q)
    bounded = any(name in options for name in ("causal", "window_size"))
    row = most_like(record[part], able, inputs.q, inputs.k, bounded, "deterministic" in options)
    if row is None:
        return None
    times = {name: ms for name, ms in row["ms"].items() if name in able}
    title = min(times, key=times.get)
    reason = (
        f"quickest of {len(times)}, {times[title]} ms, at the measured problem most like this "
        f"one: {_described(row)}; {record['machine']}"
    )
    return title, reason


def tf32_pays_off(compute_capability) -> bool:
    """Can three TF32 products replace one of float32? By the peaks in the table of GPUs.

    TF32 is 7 to 15 times as fast as float32 without tensor cores on data-centre GPUs since the
    A100, once or twice on all others.
    """
    gpu = devices.alike(compute_capability)
    return gpu is not None and (gpu.tf32 or 0) > 3 * gpu.float32


def slow_tf32(q) -> str | None:
    """Say why three TF32 products are not taken for one in float32 on q's GPU, or return None."""
    here = arrays.compute_capability(q)
    if tf32_pays_off(here) or here == tuple(record_of(q)["compute_capability"]):
        return None
    return (
        "makes three TF32 products of one in float32, and on a GPU of compute capability "
        f"{here[0]}.{here[1]} TF32 is not known to be three times as fast as float32"
    )


def most_like(rows, able, q, k, bounded, deterministic=False):
    """Return the measured problem nearest to that of q and k, where an able kernel was timed.

    None if there is none.
    """
    batch, seqlen_q, num_heads, head_dim = q.shape
    dtype = "float32" if arrays.facts(q).dtype == "float32" else "float16"  # bfloat16 is as fast

    def distance(row):
        sizes = (
            (head_dim, row["head_dim"]),
            (seqlen_q, row["seqlen_q"]),
            (k.shape[1], row["seqlen_k"]),
            (batch * num_heads, row["batch"] * row["num_heads"]),
        )
        far = sum(abs(math.log2(max(a, 1) / b)) for a, b in sizes)
        row_group = row["num_heads"] // row.get("num_kv_heads", row["num_heads"])
        other_group = abs(math.log2(num_heads // k.shape[2] / row_group))
        return far + OTHER_MASK * (bounded != row["causal"]) + OTHER_GROUP * other_group

    rows = [row for row in rows if set(row["ms"]) & set(able)]
    rows = [row for row in rows if row["dtype"] == dtype] or rows
    rows = [row for row in rows if row.get("deterministic", False) == deterministic] or rows
    return min(rows, key=distance, default=None)


def _described(row):
    return (
        f"{row['dtype']}, batch {row['batch']}, {row['seqlen_q']} queries, {row['seqlen_k']} keys, "
        f"{row['num_heads']} heads{_key_heads(row)} of {row['head_dim']}"
        f"{', causal' if row['causal'] else ''}"
        f"{', deterministic' if row.get('deterministic') else ''}"
    )


def _key_heads(row):
    return f" on {row['num_kv_heads']}" if "num_kv_heads" in row else ""
