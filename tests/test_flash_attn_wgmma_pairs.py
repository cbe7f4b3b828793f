"""flash_attn_wgmma in clusters of two thread blocks, without a GPU: on a model of the instructions.

Mistakes are planted in the kernel: so the model is known to find them.
"""

import numpy as np
import pytest
from cases import thorough
from tensor_core_kernels import HOPPER
from test_tensor_core import MAP, SIZES, float32_3d, half, needs_compiler

from fa_numba.analysis.machine_code import compile_ptx
from fa_numba.tensor_core import flash_attn_wgmma

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
# seqlen_q, seqlen_k, heads, head_dim, causal, cluster
CASES = [
    (300, 330, (2, 1), 80, True, 2),
    thorough((300, 330, (2, 1), 80, True, 1)),
    thorough((260, 100, (1, 1), 64, True, 2)),  # a pair without a key, a block without a query
    thorough((200, 500, (1, 1), 128, False, 2)),
]
MAKE_TEST = "no arrival", "ends early", "rank in descriptors"  # runs these


@pytest.mark.parametrize("sizes", CASES, ids=lambda x: "-".join(map(str, x)))
def test_out_and_lse_on_a_model(sizes, run_on_model):
    run_on_model("on_model.py", case_of(*sizes))


def case_of(seqlen_q, seqlen_k, heads, head_dim, causal, cluster):
    case = {"name": "wgmma", "sizes": (seqlen_q, seqlen_k), "heads": heads, "head_dim": head_dim}
    return case | {"causal": causal, "cluster": cluster}


@pytest.mark.parametrize("fault", [x if x in MAKE_TEST else thorough(x) for x in FAULTS])
def test_the_model_finds(fault, run_on_model):
    case = case_of(140, 260, (1, 1), 72, True, 2)
    run_on_model("on_model.py", case | {"fault": FAULTS[fault]})


@needs_compiler
def test_the_kernel_says_that_it_comes_in_clusters():
    args = MAP, MAP, MAP, half, float32_3d, *SIZES
    for cluster in 1, 2:
        kernel = flash_attn_wgmma.make_flash_attn_wgmma(64, 64, False, "float16", cluster)
        ptx = compile_ptx(kernel, args, cc=HOPPER)
        assert (".reqnctapercluster 2, 1, 1" in ptx) == (cluster == 2)


def test_the_grid_is_whole_clusters():
    assert [flash_attn_wgmma.num_blocks(n, 2) for n in (1, 128, 129, 256, 257)] == [2, 2, 2, 2, 4]
    assert [flash_attn_wgmma.num_blocks(n, 1) for n in (1, 128, 129)] == [1, 1, 2]


def test_other_clusters_are_refused():
    x = np.zeros((1, 4, 1, 64), np.float16)
    with pytest.raises(ValueError, match="cluster must be 1 or 2, got 4"):
        flash_attn_wgmma.flash_attn_wgmma(x, x, x, cluster=4)
