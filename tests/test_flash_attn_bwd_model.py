"""Backward kernels' source on a model of a GPU, and those of mma.sync forward: indices, layouts.

Each case has a process of its own, because the model replaces names of Numba.
"""

import pytest
from cases import thorough

SLOPES = (0.5, 0.25, 0.125, 1)
ALL_MASKS = {"window_size": (30, 20), "softcap": 15.0, "alibi_slopes": SLOPES[:2]}
# batch, seqlen_q, seqlen_k, heads, head_dim, causal, blocks
CASES = [
    # flash_attn_bwd_persistent
    thorough((1, 200, 330, (1, 1), 128, True, 1), {}),
    thorough(
        (1, 200, 150, (4, 2), 128, True, 2), {"alibi_slopes": SLOPES}
    ),  # in step; rows without keys
    ((1, 140, 270, (2, 1), 72, True, 2), {"softcap": 15.0}),  # in step
    thorough((1, 140, 390, (2, 1), 72, True, 2), {"softcap": 15.0}),
    thorough((1, 260, 390, (2, 1), 64, True, 2), {}),  # in step; masks as bits
    thorough((1, 260, 140, (2, 2), 64, True, 1), {"alibi_slopes": SLOPES[:2]}),
    thorough((1, 140, 260, (2, 1), 64, False, 2), {"window_size": (-1, 40)}),  # in step
    thorough((1, 140, 260, (1, 1), 40, True, 2), {"softcap": 15.0}),
    thorough((1, 140, 260, (2, 1), 128, False, 2), {}),
    ((1, 90, 130, (2, 1), 64, False, 1), ALL_MASKS),
    thorough((1, 260, 300, (2, 1), 64, True, 1), {"order": "by arrival"}),
    thorough((1, 140, 260, (2, 2), 128, True, 1), {"deterministic": True}),
    # with the user's functions
    thorough((1, 90, 200, (2, 1), 128, False, 2), {"expressions": "a score and a mask"}),
    (
        (1, 140, 200, (2, 1), 64, False, 1),
        {"expressions": "sinks and a mask", "deterministic": True},
    ),
    thorough(  # a tile of queries sees no key
        (1, 260, 100, (1, 1), 64, False, 1), {"expressions": "causal", "deterministic": True}
    ),
    thorough(
        (1, 140, 200, (1, 1), 64, False, 1),
        {"expressions": "documents", "window_size": (60, -1), "deterministic": True},
    ),
    thorough(  # the first tile of keys is a long one
        (1, 700, 700, (2, 1), 128, False, 1), {"expressions": "window and first keys"}
    ),
    thorough((2, 70, 140, (1, 1), 72, False, 1), {"expressions": "sequences differ"}),
    thorough((1, 90, 150, (1, 1), 72, False, 1), {"expressions": "a softcap and a mask"}),
    thorough((1, 70, 100, (2, 1), 40, True, 1), {"expressions": "sinks"}),
    # with another head_dim of V
    ((1, 70, 100, (2, 1), 192, True, 1), {"head_dim_v": 128}),
    thorough((1, 140, 270, (2, 1), 136, True, 2), {"head_dim_v": 72}),  # in step
    # rows that see no key
    thorough((1, 260, 20, (1, 1), 192, True, 1), {"head_dim_v": 128, "deterministic": True}),
    thorough((1, 100, 140, (1, 1), 192, False, 1), {"head_dim_v": 128, "softcap": 15.0}),
    thorough((1, 100, 140, (1, 1), 128, False, 1), {"head_dim_v": 72, "deterministic": True}),
    # flash_attn_bwd_wide
    thorough((1, 330, 130, (1, 1), 136, False, 1), {}),
    thorough((1, 130, 100, (1, 1), 256, False, 2), {}),
    thorough((1, 70, 130, (2, 1), 136, True, 1), {"deterministic": True}),
    ((1, 100, 70, (2, 1), 136, True, 1), {"deterministic": True}),  # rows that see no key
    thorough((1, 100, 70, (2, 2), 192, True, 1), {}),
    ((1, 140, 180, (2, 1), 136, True, 2), {"alibi_slopes": SLOPES[:2]}),  # in step
    thorough((1, 140, 180, (4, 2), 136, True, 2), {"alibi_slopes": SLOPES}),
    thorough((1, 70, 130, (1, 1), 256, True, 1), {"head_dim_v": 136, "softcap": 15.0}),
    ((1, 90, 130, (2, 1), 200, False, 1), ALL_MASKS),
    ((1, 40, 100, (2, 1), 136, False, 1), {"expressions": "a score and a mask"}),
    thorough(
        (1, 140, 200, (2, 1), 136, False, 1), {"expressions": "documents", "deterministic": True}
    ),
    thorough((1, 90, 140, (1, 1), 256, False, 1), {"expressions": "sinks and a mask"}),
]


# seqlens_q, seqlens_k, heads, head_dim, causal, blocks; in order a block waits for others, so one
PACKED_CASES = [
    # In step: pairs of tiles of keys, and single ones in the last sequence.
    (((130, 1, 70), (200, 40, 130), (2, 1), 128, True, 1), {}),
    thorough(((300, 100), (390, 60), (4, 2), 128, True, 3), {"alibi_slopes": SLOPES}),
    thorough(((130, 70), (300, 50), (8, 1), 128, True, 3), {}),
    thorough(((140, 100), (270, 300), (2, 1), 72, False, 2), {"window_size": (-1, 40)}),
    thorough(((130, 0, 170), (200, 40, 130), (2, 2), 64, True, 2), {"alibi_slopes": SLOPES[:2]}),
    thorough(((140, 60), (140, 60), (1, 1), 128, False, 2), {"softcap": 15.0}),
    thorough(((130, 1, 170), (130, 1, 170), (2, 1), 64, True, 1), {"order": "by arrival"}),
    thorough(((130, 1, 70), (200, 40, 130), (2, 1), 192, True, 1), {"head_dim_v": 128}),
    thorough(
        ((90, 30), (130, 0), (2, 1), 136, False, 1), {"head_dim_v": 72, "deterministic": True}
    ),
    # A sequence without keys.
    (((90, 30), (130, 0), (2, 1), 72, False, 1), ALL_MASKS | {"deterministic": True}),
    # with the user's functions
    (((20, 0, 70), (60, 9, 140), (2, 1), 64, False, 1), {"expressions": "a score and a mask"}),
    thorough(
        ((70, 0, 130), (90, 7, 150), (1, 1), 128, False, 1),
        {"expressions": "a softcap and a mask", "deterministic": True},
    ),
    thorough(
        ((140, 9), (300, 0), (2, 1), 64, False, 1),
        {"expressions": "sinks and a mask", "deterministic": True},
    ),
    thorough(((140, 90), (300, 90), (2, 2), 128, False, 2), {"expressions": "documents"}),
]


# flash_attn_*: name, sizes, heads, head_dim, functions of the user
MMA_CASES = [
    thorough(("mma", (70, 200), (2, 1), 64, "documents")),
    ("tf32x3", (40, 70), (1, 1), 32, "sinks and a mask"),
    thorough(("tf32x3", (140, 200), (2, 1), 32, "documents")),
    thorough(("tf32x3", (70, 100), (1, 1), 160, "a score and a mask")),
    ("bwd_mma", (40, 100), (1, 1), 64, "a score and a mask"),
    thorough(("bwd_mma", (40, 100), (1, 1), 64, "a score and a mask", {"deterministic": True})),
    thorough(("bwd_mma", (140, 200), (2, 1), 64, "documents")),
    thorough(("bwd_mma", (70, 140), (1, 1), 128, "sinks and a mask", {"deterministic": True})),
    thorough(("bwd_mma", (70, 140), (1, 1), 72, "sinks", {"window_size": (20, 9), "softcap": 5})),
    ("bwd_tf32x3", (70, 100), (1, 1), 32, "documents"),
    thorough(("bwd_tf32x3", (90, 140), (1, 1), 64, "a score and a mask")),
    thorough(("bwd_tf32x3", (90, 140), (1, 1), 64, "a score and a mask", {"deterministic": True})),
    # more splits than tiles
    ("split", (40, 200), (2, 1), 64, "prefix", {"num_splits": 4}),
    thorough(("split", (40, 400), (2, 1), 64, "documents", {"num_splits": 3})),
    thorough(("split", (17, 300), (8, 2), 64, "a score and a mask", {"num_splits": 2})),
    thorough(("split", (130, 300), (1, 1), 128, "sinks and a mask", {"num_splits": 2})),
]


@pytest.mark.parametrize("case", MMA_CASES, ids=lambda x: "-".join(map(str, x)))
def test_functions_of_the_user_in_kernels_of_mma_on_a_model(case, run_on_model):
    *given, options = case if isinstance(case[-1], dict) else (*case, {})
    names = "name", "sizes", "heads", "head_dim", "expressions"
    run_on_model("on_model.py", dict(zip(names, given, strict=True)) | options)


@pytest.mark.parametrize("sizes, options", CASES, ids=lambda x: "-".join(map(str, x)))
def test_gradients_on_a_model(sizes, options, run_on_model):
    batch, *of_rows, heads, head_dim, causal, blocks = sizes
    head_dim_v = options.get("head_dim_v", head_dim)
    is_wide = head_dim > (128 if head_dim_v == head_dim else 192) or head_dim_v > 128
    case = {"name": "bwd_wide" if is_wide else "bwd_persistent", "sizes": of_rows, "batch": batch}
    case |= {"heads": heads, "head_dim": head_dim, "causal": causal, "blocks": blocks}
    run_on_model("on_model.py", case | options)


@pytest.mark.parametrize("sizes, options", PACKED_CASES, ids=lambda x: "-".join(map(str, x)))
def test_packed_gradients_on_a_model(sizes, options, run_on_model):
    *of_sequences, heads, head_dim, causal, blocks = sizes
    case = {"name": "bwd_varlen", "sizes": of_sequences, "heads": heads, "head_dim": head_dim}
    run_on_model("on_model.py", case | {"causal": causal, "blocks": blocks} | options)
