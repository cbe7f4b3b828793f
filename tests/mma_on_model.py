"""Kernels by `ampere_model`, called by their launchers: the program of a test."""

import expression_cases
import numpy as np
from ampere_model import AmpereModel
from flash_attn_persistent_on_model import no_table, ranges_of
from gradients_on_model import compare, run
from hopper_model import GlobalArray, replace_instructions

from fa_numba import reference
from fa_numba.checks import hardware
from fa_numba.kernels import flash_attn_bwd
from fa_numba.runtime import arrays

MODULES = (
    *(f"ptx.{x}" for x in ("statement", "convert", "cp_async", "barriers", "halves", "ldmatrix")),
    *(f"ptx.{x}" for x in ("mma", "tf32", "vectors", "mbarrier", "tma", "wgmma")),
    "expressions.functions",
    *("kernels.masks", "on_cuda_cores.run_time_masks", "on_cuda_cores.user_scores"),
    *(f"tensor_core.{x}" for x in ("forward", "fragments", "gradient_fragments", "dq_parts")),
    *(f"tensor_core.{x}" for x in ("backward", "shared_plan", "tf32_tiles", "lazy_rescaling")),
    *(f"tensor_core.{x}" for x in ("expression_tiles", "gradient_expressions")),
    *(f"tensor_core.{x}" for x in ("alibi", "dropout_fragments", "mainloop", "tile_scheduler")),
    *(f"tensor_core.flash_attn_{x}" for x in ("mma", "tf32x3", "split", "bwd_mma", "bwd_tf32x3")),
)


def main(name, sizes, heads, head_dim, expressions, **options):
    """Compare a function's results with the definition in float64.

    `expressions` is the name of one of `expression_cases`, heads are (num_heads, num_kv_heads).
    """
    model = AmpereModel(seed=sizes[0])
    modules = dict(zip(MODULES, replace_instructions(model, MODULES), strict=True))
    pretend(model, modules, addressed="split" not in name)
    function = getattr(modules[f"tensor_core.{name}"], name)
    kind = np.float32 if "tf32" in name else np.float16
    rng = np.random.default_rng(sizes[0])
    (seqlen_q, seqlen_k), (num_heads, num_kv_heads) = sizes, heads
    of_queries, of_keys = (seqlen_q, num_heads), (seqlen_k, num_kv_heads)
    shapes = [(1, *x, head_dim) for x in (of_queries, of_queries, of_keys, of_keys)]
    dout, *qkv = (rng.standard_normal(shape).astype(kind) for shape in shapes)
    ours, definition = expression_cases.options_of(expressions, num_heads, seqlen_k)
    definition |= {x: y for x, y in options.items() if x not in ("deterministic", "num_splits")}
    wanted, plain = (
        reference.attention(*qkv, **definition, dtype=dtype) for dtype in (np.float64, kind)
    )
    inputs = qkv
    if "bwd" in name:
        out, lse = plain
        inputs = dout, *qkv, out.astype(kind), lse.astype(np.float32)
        wanted, plain = (
            reference.attention_bwd(dout, *qkv, **definition, dtype=dtype)
            for dtype in (np.float64, kind)
        )
    results = function(*inputs, **ours, **options)
    if "bwd" not in name:
        (*results, lse), (*wanted, wanted_lse), plain = results, wanted, plain[:1]
        np.testing.assert_allclose(lse, wanted_lse, rtol=1e-5, atol=1e-4)
    times = 6 if "tf32" in name else 3  # two TF32 have 22 bits
    compare([GlobalArray(model, x) for x in results], wanted, plain, times)


def pretend(model, modules, addressed):
    """NumPy's arrays are those of a GPU, which is the model; kernels take addresses of floats."""
    tiles = modules["tensor_core.expression_tiles"]
    tiles.make_table, tiles.ranges_of = no_table, ranges_of  # else by kernels of the engine
    modules["tensor_core.gradient_expressions"].make_tables_both_ways = no_table
    flash_attn_bwd.delta_of = lambda dout, out: np.einsum("bmhd,bmhd->bhm", dout, out)
    hardware._require_gpu_arrays = lambda *args: None
    arrays.compute_capability = lambda x: (9, 0)
    arrays.shared_bytes_per_block, arrays.num_sms = lambda x: 227 * 1024, lambda x: 132
    split = modules["tensor_core.flash_attn_split"]
    split.launch_merge, split.ranges_of, split.make_split_table = merge, ranges_of, no_table

    def tensor_map(x, rows, *_):
        model.maps[name := len(model.maps)] = GlobalArray(model, x), rows
        return name

    split.tensor_map = tensor_map

    def argument(x):
        is_floats = isinstance(x, np.ndarray) and x.dtype.kind == "f"
        return GlobalArray(model, x) if is_floats and addressed else x

    def launch(kernel, grid, block, *args, shared_bytes=0):
        model.launch(kernel, grid, block[0], *map(argument, args))

    arrays.launch = launch


def merge(outs, lses, out, lse):
    lse[...] = np.logaddexp.reduce(lses)
    weights = np.exp(lses - np.where(np.isneginf(lse), 0, lse))
    out[...] = np.einsum("sbhm,sbmhd->bmhd", weights, outs)


if __name__ == "__main__":
    run(main)
