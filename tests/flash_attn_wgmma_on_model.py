"""flash_attn_wgmma by `hopper_model`: python tests/flash_attn_wgmma_on_model.py CASE."""

import json
import sys
from pathlib import Path

import numpy as np
from hopper_model import GlobalArray, HangError, Model, replace_instructions

from fa_numba import reference

MODULES = (
    *(f"ptx.{x}" for x in ("statement", "convert", "mbarrier", "barriers", "ldmatrix", "tma")),
    *(f"ptx.{x}" for x in ("vectors", "cluster", "wgmma")),
    "kernels.masks",
    "on_cuda_cores.run_time_masks",
    *(f"tensor_core.{x}" for x in ("forward", "fragments", "shared_plan", "flash_attn_wgmma")),
)
BLOCK_N = 64
LOG2_E = np.float32(np.log2(np.e))
# Mistakes to plant in the kernel: its text, and what takes the place.
FAULTS = {
    "no arrival": ("if PAIR and tid == 0:", "if False:"),
    "arrives at its own": (", rank ^ 1)", ", rank)"),
    "no wait for the other": ("if PAIR:  # and the other", "if False:  # and the other"),
    "wrong parity": ("phase(n_tile + 1, STAGES) ^ 1", "phase(n_tile + 1, STAGES)"),
    "ends early": ("cluster_sync()  # the other block does", "pass  # the other block does"),
    "begins early": ("cluster_sync()  # both", "cuda.syncthreads()  # both"),
    "announces its own bytes": ("(full, 2 * KV_BYTES)", "(full, 2 // CLUSTER * KV_BYTES)"),
    "copies to itself": ("make_load_tile(NUM_PANELS, CLUSTER)", "make_load_tile(NUM_PANELS)"),
    "each its own tiles": ("(rank + 1) * BLOCK_M", "BLOCK_M"),
    "rank in descriptors": ("wgmma.descriptor_in_cluster if PAIR else ", ""),
}


def plant(module, text, other):
    """Run the module's source again with `other` in the place of `text`."""
    source = Path(module.__file__).read_text()
    assert text in source
    exec(compile(source.replace(text, other), module.__file__, "exec"), module.__dict__)


def main(seqlen_q, seqlen_k, heads, head_dim, causal, cluster, fault=None):
    """Compare out and lse with the definition; heads are (num_heads, num_kv_heads).

    `fault`, one of `FAULTS`, is planted in the kernel.
    """
    model = Model(seed=seqlen_q)
    modules = replace_instructions(model, MODULES)
    wgmma = modules[-1]
    if fault:
        plant(wgmma, *FAULTS[fault])
    num_heads, num_kv_heads = heads
    rng = np.random.default_rng(seqlen_q)
    q = rng.standard_normal((1, seqlen_q, num_heads, head_dim)).astype(np.float16)
    k, v = rng.standard_normal((2, 1, seqlen_k, num_kv_heads, head_dim)).astype(np.float16)
    want, want_lse = reference.attention(q, k, v, causal=causal)
    plain, _ = reference.attention(q, k, v, causal=causal, dtype=np.float16)
    out = GlobalArray(model, np.full_like(q, np.nan))
    lse = GlobalArray(model, np.full((1, num_heads, seqlen_q), np.nan, np.float32))
    for name, x, rows in (("q", q, 64), ("k", k, BLOCK_N), ("v", v, BLOCK_N)):
        model.maps[name] = GlobalArray(model, x), rows
    kernel = wgmma.make_flash_attn_wgmma(head_dim, BLOCK_N, causal, "float16", cluster)
    grid = wgmma.num_blocks(seqlen_q, cluster), num_heads
    sizes = seqlen_k, num_heads // num_kv_heads, LOG2_E / np.float32(head_dim**0.5)
    model.launch(kernel, grid, wgmma.THREADS, *"qkv", out, lse, *sizes, cluster=cluster)
    error, allowed = (np.linalg.norm(x - want) for x in (out.data, plain))
    print("error", error, "and of rounding", allowed)
    assert error <= 1.25 * allowed
    np.testing.assert_allclose(lse.data, want_lse, rtol=1e-5, atol=1e-4)


def finds(case):
    """Whether the model finds the planted fault."""
    try:
        main(**case)
    except (AssertionError, HangError, KeyError):  # KeyError: a barrier that is not there yet
        return True
    return False


if __name__ == "__main__":
    np.seterr(all="ignore")  # numbers of memory that nobody has written
    case = json.loads(sys.argv[1])
    if "fault" in case:
        assert finds(case), "the model sees nothing wrong"
    else:
        main(**case)
