"""flash_attn_persistent without a GPU: its source on a model of the instructions (`hopper_model`).

Windows and a causal mask whose first or last tile of keys is computed by half; the polynomials of
softcap; a head_dim of V that is not that of Q and K.
"""

import pytest
from cases import thorough

# seqlen_q, seqlen_k, heads, head_dim, causal
CASES = [
    thorough((200, 330, (1, 1), 64, True), {}),
    ((70, 200, (2, 1), 192, True), {"head_dim_v": 128}),
    thorough((70, 200, (1, 1), 128, False), {"head_dim_v": 72}),
    thorough((130, 200, (1, 1), 256, True), {"head_dim_v": 64, "window_size": (90, -1)}),
    ((320, 700, (1, 1), 64, False), {"window_size": (255, 0)}),
    ((130, 450, (1, 1), 64, True), {"window_size": (200, -1), "softcap": 25.0}),
    ((200, 330, (2, 1), 64, True), {"expressions": "a score and a mask"}),
    ((100, 300, (2, 1), 128, False), {"expressions": "sinks and a mask"}),
    ((70, 150, (1, 1), 64, False), {"expressions": "a softcap and a mask"}),
    thorough((200, 330, (1, 1), 64, False), {"expressions": "documents", "window_size": (90, -1)}),
]


@pytest.mark.parametrize("sizes, options", CASES, ids=lambda x: "-".join(map(str, x)))
def test_out_and_lse_on_a_model(sizes, options, run_on_model):
    *of_rows, heads, head_dim, causal = sizes
    case = {"name": "persistent", "sizes": of_rows, "heads": heads, "head_dim": head_dim}
    run_on_model("on_model.py", case | {"causal": causal} | options)
