"""Kernels on tensor cores by `hopper_model`, called by their launchers: the program of tests.

python tests/on_model.py CASE, the arguments of `main` in JSON.
"""

import json
import sys
from pathlib import Path

import expression_cases
import numpy as np
from ampere_model import AmpereModel
from hopper_model import GlobalArray, HangError, replace_instructions

from fa_numba import reference
from fa_numba.checks import hardware
from fa_numba.expressions.interval_source import NoIntervalError, interval_source
from fa_numba.kernels import flash_attn_bwd
from fa_numba.runtime import arrays
from fa_numba.tensor_core.run_tables import KEYS

MODULES = (
    *(f"ptx.{x}" for x in ("statement", "convert", "cp_async", "counters", "mbarrier", "barriers")),
    *(
        f"ptx.{x}"
        for x in (
            "halves",
            "ldmatrix",
            "mma",
            "tf32",
            "tma",
            "vectors",
            "cluster",
            "wgmma",
            "dependent_launch",
        )
    ),
    "expressions.functions",
    *("kernels.masks", "kernels.sequence_of"),
    *("on_cuda_cores.run_time_masks", "on_cuda_cores.user_scores"),
    *(f"tensor_core.{x}" for x in ("forward", "fragments", "gradient_fragments", "dq_parts")),
    *(f"tensor_core.{x}" for x in ("backward", "shared_plan", "key_tiles", "tf32_tiles", "alibi")),
    *(f"tensor_core.{x}" for x in ("lazy_rescaling", "dropout_fragments", "expression_tiles")),
    *(f"tensor_core.{x}" for x in ("mainloop", "tile_scheduler", "gradient_expressions")),
    *(f"tensor_core.{x}" for x in ("gradient_mainloop", "packed_key_tiles", "packed_backward")),
    "tensor_core.gradient_consumer",
)
# In these the addresses of arrays are those of NumPy.
NOT_ADDRESSED = ("flash_attn_split",)
# Options that the definition has not.
OF_FUNCTION = "deterministic", "num_splits", "cluster"


def main(
    name, sizes, heads, head_dim, expressions=None, head_dim_v=None, order="added", batch=1,
    blocks=2, tiles=None, fault=None, page_size=None, **options,
):  # fmt: skip
    """Compare a function's results with the definition in float64.

    Parameters
    ----------
    name : str
        Of the function and its file, without ``"flash_attn_"``.
    sizes : (seqlen_q, seqlen_k)
        Of a packed batch two lists.
    heads : (num_heads, num_kv_heads)
    expressions : str, optional
        One of `expression_cases`.
    order : str
        Of the sums of dQ where the order is not fixed, of `dq_parts`.
    blocks : int
        Multiprocessors, for kernels that start a thread block on each.
    tiles : int, optional
        Of queries, for which the workspace of flash_attn_bwd_stored has room.
    fault : (str, str), optional
        Text of the function's file, and what takes its place.
    page_size : int, optional
        Keys and values are in pages of so many, in any order.
    options
        Of the function and of the definition, or of the function alone.
    """
    packed, name = isinstance(sizes[0], list), f"flash_attn_{name}"
    starts = [np.cumsum([0, *x], dtype=np.int32) for x in sizes] if packed else []
    seqlen_q, seqlen_k = (int(x[-1]) for x in starts) if packed else sizes
    model, names = AmpereModel(seed=seqlen_q), (*MODULES, f"tensor_core.{name}")
    if name == "flash_attn_wide_varlen":
        names = (*MODULES, "tensor_core.flash_attn_wide", names[-1])
    modules = replace_instructions(model, names)
    if fault:
        plant(modules[-1], *fault)
    pretend(model, modules, name not in NOT_ADDRESSED, order, blocks, options.get("cluster", 1))
    if tiles is not None:
        modules[-1].WORKSPACE_BYTES = tiles * -(-seqlen_k // 128) * 128**2 * 4
    kind, rng = np.float32 if "tf32" in name else np.float16, np.random.default_rng(seqlen_q)
    num_heads, num_kv_heads = heads
    dims, lead = (head_dim, head_dim_v or head_dim), () if packed else (batch,)
    dout, q = (
        rng.standard_normal((*lead, seqlen_q, num_heads, d)).astype(kind) for d in dims[::-1]
    )
    k, v = (rng.standard_normal((*lead, seqlen_k, num_kv_heads, d)).astype(kind) for d in dims)

    definition = {x: y for x, y in options.items() if x not in OF_FUNCTION}
    if "alibi_slopes" in options:
        definition["alibi_slopes"] = np.array(options["alibi_slopes"], np.float32)
    if "window_size" in options:
        definition["window_size"] = tuple(options["window_size"])
    ours = options | definition
    if expressions is not None:
        of_user = expression_cases.options_of(expressions, num_heads, max(np.ravel(sizes[1])))
        ours, definition = ours | of_user[0], definition | of_user[1]
    forward, backward = reference.attention, reference.attention_bwd
    if packed:
        forward, backward = reference.varlen_attention, reference.varlen_attention_bwd
    given, outputs = (q, k, v), forward
    if "bwd" in name:
        out, lse = forward(q, k, v, *starts, **definition, dtype=kind)
        given, outputs = (dout, q, k, v, out.astype(kind), lse.astype(np.float32)), backward
    of_definition = given[: 4 if "bwd" in name else 3]
    want, plain = (
        outputs(*of_definition, *starts, **definition, dtype=x) for x in (np.float64, kind)
    )
    if page_size:
        given, ours["block_table"] = in_pages(rng, *given, page_size)
    results = getattr(modules[-1], name)(*given, *starts, **ours)
    if "bwd" not in name:
        (*results, lse), (*want, want_lse), plain = results, want, plain[:1]
        np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-4)
    times = 6 if "tf32" in name else 3 if "bwd" in name else 2  # two TF32 have 22 bits
    labels = ("dq", "dk", "dv", "dsinks") if "bwd" in name else ("out",)
    labels = labels[: len(want)]
    for label, x, exact, rounded in zip(labels, results, want, plain, strict=True):
        error, allowed = np.abs(x - exact).max(), times * np.abs(rounded - exact).max() + 1e-6
        print(label, error, "of", allowed)
        assert error <= allowed, f"{label}: {error} > {allowed}"
        if label == "out" and kind == np.float16:  # each part of the columns by itself
            for col in range(0, head_dim, 128):
                at = np.s_[..., col : col + 128]
                error, allowed = (np.linalg.norm(y[at] - exact[at]) for y in (x, rounded))
                assert error <= 1.25 * allowed, f"columns from {col}: {error} > {allowed}"


def in_pages(rng, q, k, v, page_size):
    """Keys and values in pages in any order, behind one that must not be read; the block table."""
    table = 1 + rng.permutation(k.size // k[0, :page_size].size).astype(np.int32)
    pages = [np.full((1 + len(table), page_size, *x.shape[2:]), np.nan, x.dtype) for x in (k, v)]
    for cache, x in zip(pages, (k, v), strict=True):
        cache[table] = x.reshape(-1, *cache.shape[1:])
    return (q, *pages), table.reshape(len(k), -1)


def plant(module, text, other):
    """Run the module's source again with `other` in the place of `text`."""
    source = Path(module.__file__).read_text()
    assert text in source
    exec(compile(source.replace(text, other), module.__file__, "exec"), module.__dict__)


def finds(case):
    """Whether the model finds the planted fault."""
    try:
        main(**case)
    except (AssertionError, HangError, KeyError):  # KeyError: a barrier that is not there yet
        return True
    return False


def pretend(model, modules, addressed, order, blocks, cluster):
    """NumPy's arrays are those of a GPU, which is the model."""

    def tensor_map(x, rows, *_, windows=False):
        model.maps[name := len(model.maps)] = [argument(x if x.ndim == 4 or windows else x[None])]
        model.maps[name] += [rows, True] if windows else [rows]
        return name

    def argument(x):
        if isinstance(x, tuple):
            return tuple(map(argument, x))
        is_address = isinstance(x, np.ndarray) and (x.dtype.kind == "f" or x.ndim == 1)
        return GlobalArray(model, x) if is_address else x

    def launch(kernel, grid, block, *args, shared_bytes=0):
        args = map(argument, args) if addressed else args
        model.launch(kernel, grid, block[0], *args, cluster=cluster)

    def empty(like, shape, dtype=np.float32):
        return np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 77, dtype)

    arrays.launch, arrays.empty = launch, empty
    hardware._require_gpu_arrays = lambda *args: None
    flash_attn_bwd.delta_of = lambda dout, out: np.einsum("bmhd,bmhd->bhm", dout, out)
    arrays.compute_capability = lambda x: (9, 0)
    arrays.shared_bytes_per_block, arrays.num_sms = lambda x: 227 * 1024, lambda x: blocks
    replaced = {
        "tensor_map": tensor_map, "launch_merge": merge, "make_packed_table": packed_table,
        # Else by kernels of the engine:
        "make_table": no_table, "make_tables_both_ways": no_table, "make_split_table": no_table,
        "ranges_of": ranges_of, "ranges_of_packed": ranges_of_packed, "queue_of": queue_of,
        "fastest_order": lambda *args: order,
        "pad_rows": lambda *args, multiple: args,  # a copy by TMA ends in zeros
    }  # fmt: skip
    for module in modules:
        for name, value in replaced.items():
            if hasattr(module, name):
                setattr(module, name, value)


def merge(outs, lses, out, lse):
    lse[...] = np.logaddexp.reduce(lses)
    weights = np.exp(lses - np.where(np.isneginf(lse), 0, lse))
    out[...] = np.einsum("sbhm,sbmhd->bmhd", weights, outs)


def no_table(*args):
    raise NoIntervalError


def queue_of(like, runs):
    """As of `run_tables`, but that the last tiles come first."""
    order = np.arange(runs.shape[2])[::-1] + np.zeros(runs.shape[:3], int)
    return order, np.zeros(1, np.int32)


def packed_table(
    like, mask, arguments, ranges, starts, problem, along, parts=None, all_runs=False
):  # fmt: skip
    """As of `run_tables`, by the tables of the sequences."""
    tables = expression_cases.packed_runs(mask, arguments, starts, problem[2], problem[3:], parts)
    return tables[along == KEYS]


def ranges_of(like, mask, arguments):
    """As of `run_tables`, by NumPy."""
    _, needs = interval_source(mask, "interval")
    return tuple(ranges(np.atleast_2d(arguments[i])) for i in needs.ranged)


def ranges_of_packed(*args):
    try:
        return ranges_of(*args)
    except NoIntervalError:
        return ()


def ranges(x):
    levels = max(x.shape[-1], 1).bit_length()
    windows = [[x[:, i : i + (1 << level)] for i in range(x.shape[-1])] for level in range(levels)]
    extremes = [[(y.min(axis=-1), y.max(axis=-1)) for y in row] for row in windows]
    return np.moveaxis(np.int32(extremes), -1, 1)


if __name__ == "__main__":
    np.seterr(all="ignore")  # numbers of memory that nobody has written
    case = json.loads(sys.argv[1])
    if "fault" in case:
        assert finds(case), "the model sees nothing wrong"
    else:
        main(**case)
