"""Write docs/features.md, which feature each function has and which tests say so.

    python docs/make_features.py [--check]

`TABLES` declares it: for each feature and function the tests, or why there is none. A claim is
``file::test``, or ``file::test[a|b,c]`` for the cases whose parameters name a or b, and c; ``{}``
stands for the function. How many cases that are is what pytest collects. A claim that finds none is
an error, and so is a function or a feature that says nothing.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "features.md"

# test_gpu asks for CuPy: to count its cases a module of that name will do.
COLLECT = """
import sys, types, pytest
sys.modules.setdefault("cupy", types.ModuleType("cupy"))
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""

NONE = "–"  # the feature means nothing to the function


class No(str):
    """The function has not got the feature: why."""


WINDOWS = "window|window_of_a_tile|wide_window|left_window|right_window|causal_window|itself_alone"
CAPS, SLOPES = "softcap|softcap_alibi|all", "alibi|softcap_alibi|alibi_window|all"
OTHER_LENGTHS = (
    "tail_in_keys_only|tail_in_queries_only|tile_plus_one_minus_one|one_query_many_keys|"
    "more_queries_than_keys|many_queries_one_key|more_keys_than_queries"
)
DIMS = "one_query_one_key_one_dim|head_dim_59|head_dim_111|head_dim_256"
SIXTEEN = "float16|bfloat16"
EMPTY_ROWS = "more_queries_than_keys|many_queries_one_key"
MAPS = "linear_attn_elu1|linear_attn_relu|linear_attn_taylor2|linear_attn_hedgehog"
SAME_STRIDES = "test_same_bits::test_strides_do_not_change_a_bit_and_inputs_are_left_alone[{}]"

STEP = No("`lazy_softmax_attn` is a step on the way, with `causal` alone")
NO_SCORES = No("linear attention has no scores that could be masked, capped or scaled")
FA1_ONLY = No("block-sparse attention is FlashAttention-1's; a window skips tiles everywhere")
TRAINING = No("dropout is for training: in `flash_attn` and the kernels of lessons 06 to 08")
PACKED_DROPOUT = No("packed batches have no dropout")
CHOSEN = No("its problems are all chosen")
SEE_PAGED = No("`paged_attn_decode` is there for it")

ROWS = "online_softmax softmax_registers"
SOFTMAXES = f"naive_softmax safe_softmax {ROWS}"
TOPKS = "softmax_topk softmax_topk_warps"
DECODE = "flash_decode paged_attn_decode"
PACKED_JOBS = "flash_attn_varlen flash_attn_varlen_grad"
ROW_JOBS = "softmax softmax_topk"
JOBS = f"flash_attn flash_attn_grad {PACKED_JOBS} {DECODE} {ROW_JOBS}"
PAGES = "paged_kv_lookup reshape_and_cache copy_pages swap_pages"
MOVES = f"merge_states {PAGES}"
WRITES = "reshape_and_cache copy_pages swap_pages"
TILED = "flash_attn_v2_4x4 flash_attn_registers flash_attn_bwd_registers"
LADDER = "flash_attn_v2_unsigned flash_attn_v2_4x4 flash_attn_registers"
UNSIGNED = "test_same_bits::test_unsigned_indices_are_those_of_flash_attn_v2"
UNSIGNED_MASKS = "test_same_bits::test_unsigned_indices_under_a_mask"


def everywhere(functions, in_place=""):
    """Rows that are the same for all functions; those of `in_place` change their arguments."""
    rows = {
        "any strides, inputs left alone": {functions: SAME_STRIDES},
        "deterministic": {functions: "test_same_bits::test_from_run_to_run[{}]"},
        "bad inputs refused": {f"{functions} {in_place}": "test_checks::test_bad_input[{}]"},
        "compiled for sm_75, sm_80, sm_90a": {
            f"{functions} {in_place}": "test_compile::test_within_the_stated_budget[{}]"
        },
    }
    if in_place:
        rows["any strides, inputs left alone"][in_place] = "test_{}::test_strided_views"
        rows["deterministic"][in_place] = NONE
    return rows


TABLES = {
    "Attention": (
        "naive_attn lazy_softmax_attn flash_attn_v1 flash_attn_v2 flash_attn_bwd "
        "flash_attn_varlen flash_attn_varlen_bwd linear_attn",
        {
            "`causal`": {
                "naive_attn lazy_softmax_attn flash_attn_v1 flash_attn_v2 flash_attn_bwd": (
                    "test_{}::test_shapes[causal]"
                ),
                "flash_attn_varlen flash_attn_varlen_bwd": "test_{}::test_lengths[causal]",
                "linear_attn": "test_{}::test_shapes[chunked|recurrent]",
            },
            "`window_size`": {
                "naive_attn flash_attn_v1 flash_attn_v2": (
                    f"test_masks::test_forward[{{}},{WINDOWS}]"
                ),
                "flash_attn_bwd": f"test_masks::test_backward[{WINDOWS}]",
                "flash_attn_varlen flash_attn_varlen_bwd": f"test_{{}}::test_masks[{WINDOWS}]",
                "lazy_softmax_attn": STEP,
                "linear_attn": NO_SCORES,
            },
            "`softcap`": {
                "naive_attn flash_attn_v1 flash_attn_v2": f"test_masks::test_forward[{{}},{CAPS}]",
                "flash_attn_bwd": f"test_masks::test_backward[{CAPS}]",
                "flash_attn_varlen flash_attn_varlen_bwd": f"test_{{}}::test_masks[{CAPS}]",
                "lazy_softmax_attn": STEP,
                "linear_attn": NO_SCORES,
            },
            "`alibi_slopes`": {
                "naive_attn flash_attn_v1 flash_attn_v2": (
                    f"test_masks::test_forward[{{}},{SLOPES}]"
                ),
                "flash_attn_bwd": f"test_masks::test_backward[{SLOPES}]",
                "flash_attn_varlen flash_attn_varlen_bwd": f"test_{{}}::test_masks[{SLOPES}]",
                "lazy_softmax_attn": STEP,
                "linear_attn": NO_SCORES,
            },
            "`softmax_scale`": {
                "naive_attn lazy_softmax_attn flash_attn_v1 flash_attn_v2 flash_attn_bwd "
                "flash_attn_varlen flash_attn_varlen_bwd": "test_{}::test_softmax_scale",
                "linear_attn": NO_SCORES,
            },
            "dropout": {
                "flash_attn_v1 flash_attn_v2": "test_dropout::test_forward[{}]",
                "flash_attn_bwd": "test_dropout::test_backward",
                "naive_attn lazy_softmax_attn linear_attn": TRAINING,
                "flash_attn_varlen flash_attn_varlen_bwd": PACKED_DROPOUT,
            },
            "`block_mask`": {
                "flash_attn_v1": (
                    "test_{}::test_block_mask test_{}::test_block_masks_of_any_share "
                    "test_dropout::test_block_mask"
                ),
                "naive_attn lazy_softmax_attn flash_attn_v2 flash_attn_bwd flash_attn_varlen "
                "flash_attn_varlen_bwd linear_attn": FA1_ONLY,
            },
            "GQA, MQA": {
                "naive_attn lazy_softmax_attn flash_attn_v1 flash_attn_v2 flash_attn_bwd "
                "linear_attn": "test_{}::test_shapes[gqa|mqa]",
                "flash_attn_varlen flash_attn_varlen_bwd": "test_{}::test_heads",
            },
            "seqlen_q ≠ seqlen_k": {
                "naive_attn lazy_softmax_attn flash_attn_v1 flash_attn_v2 flash_attn_bwd": (
                    f"test_{{}}::test_shapes[{OTHER_LENGTHS}]"
                ),
                "flash_attn_varlen flash_attn_varlen_bwd": "test_{}::test_lengths",
                "linear_attn": "test_{}::test_lengths_may_differ_without_a_mask",
            },
            "no queries, no keys, no batch": {
                "naive_attn lazy_softmax_attn flash_attn_v1 flash_attn_v2 flash_attn_bwd": (
                    "test_{}::test_shapes[no_queries|no_keys|no_batch]"
                ),
                "flash_attn_varlen flash_attn_varlen_bwd": (
                    "test_{}::test_lengths[no_queries|no_keys|no_batch|no_tokens|"
                    "empty_first_and_last]"
                ),
                "linear_attn": "test_{}::test_shapes[no_tokens|no_batch]",
            },
            "rows that see no key": {
                "naive_attn lazy_softmax_attn flash_attn_v2": (
                    f"test_{{}}::test_shapes[{EMPTY_ROWS},causal]"
                ),
                "flash_attn_v1": (
                    f"test_{{}}::test_shapes[{EMPTY_ROWS},causal] "
                    "test_{}::test_rows_whose_tiles_are_all_masked_are_zero"
                ),
                "flash_attn_bwd": (
                    "test_{}::test_rows_without_keys_and_keys_without_rows_have_no_gradient "
                    "test_masks::test_keys_that_no_query_sees_have_no_gradient"
                ),
                "flash_attn_varlen": "test_{}::test_lengths[more_queries_than_keys|no_keys]",
                "flash_attn_varlen_bwd": (
                    "test_{}::test_sequences_without_keys_or_without_queries_have_no_gradient"
                ),
                "linear_attn": "test_{}::test_no_feature_in_common_gives_zero",
            },
            "head_dim 1 to 256, odd": {
                "naive_attn lazy_softmax_attn flash_attn_v1 flash_attn_v2 flash_attn_bwd": (
                    f"test_{{}}::test_shapes[{DIMS}]"
                ),
                "flash_attn_varlen flash_attn_varlen_bwd": (
                    "test_same_bits::"
                    "test_packed_sequences_of_any_head_dim_are_those_of_flash_attn_v2"
                ),
                "linear_attn": "test_{}::test_any_head_dim",
            },
            "float16, bfloat16": {
                "naive_attn lazy_softmax_attn flash_attn_v1 flash_attn_v2 flash_attn_bwd "
                "flash_attn_varlen": f"test_dtypes::test_attention[{{}},{SIXTEEN}]",
                "flash_attn_varlen_bwd": (
                    f"test_dtypes::test_attention[flash_attn_varlen,{SIXTEEN}]"
                ),
                "linear_attn": f"test_dtypes::test_others[{MAPS},{SIXTEEN}]",
            },
            "scores ±1e4, ascending, equal": {
                "naive_attn lazy_softmax_attn flash_attn_v1 flash_attn_v2 flash_attn_bwd "
                "flash_attn_varlen": "test_{}::test_values",
                "flash_attn_varlen_bwd": (
                    "test_{}::test_each_sequence_is_flash_attn_bwd_bit_for_bit"
                ),
                "linear_attn": "test_{}::test_large_inputs",
            },
            "NaN stays where it is": {
                "naive_attn lazy_softmax_attn flash_attn_v1 flash_attn_v2 linear_attn": (
                    "test_{}::test_nan_in_one_head_stays_there"
                ),
                "flash_attn_bwd": "test_dropout::test_nan_in_one_head_stays_there",
                "flash_attn_varlen flash_attn_varlen_bwd": (
                    "test_{}::test_nan_in_one_sequence_never_reaches_another"
                ),
            },
            "sizes of tiles and chunks change nothing": {
                "naive_attn flash_attn_v1 flash_attn_v2 flash_attn_bwd flash_attn_varlen "
                "flash_attn_varlen_bwd": "test_{}::test_tile_size_does_not_change_the_answer",
                "lazy_softmax_attn": "test_{}::test_chunks_do_not_change_the_answer",
                "linear_attn": "test_{}::test_chunk_size_does_not_change_the_answer",
            },
            "problems that nobody chose": {
                "naive_attn flash_attn_v1 flash_attn_v2": "test_attention_any::test_forward[{}]",
                "flash_attn_bwd": "test_attention_any::test_backward",
                "flash_attn_varlen flash_attn_varlen_bwd": "test_attention_any::test_varlen",
                "lazy_softmax_attn linear_attn": CHOSEN,
            },
            "HBM traffic equals the formula": {
                "naive_attn flash_attn_v1 flash_attn_v2": "test_hbm_traffic::test_forward[{}]",
                "flash_attn_bwd": "test_hbm_traffic::test_backward",
                "lazy_softmax_attn flash_attn_varlen linear_attn": "test_hbm_traffic::test_{}",
                "flash_attn_varlen_bwd": "test_hbm_traffic::test_flash_attn_varlen",
            },
            **everywhere(
                "naive_attn lazy_softmax_attn flash_attn_v1 flash_attn_v2 flash_attn_bwd "
                "flash_attn_varlen flash_attn_varlen_bwd linear_attn"
            ),
            "on a GPU": {
                "lazy_softmax_attn": "test_gpu::test_forward[{}]",
                "naive_attn": "test_gpu::test_forward[{}] test_gpu::test_masks",
                "flash_attn_v1": "test_gpu::test_forward[{}] test_gpu::test_masks "
                "test_gpu::test_block_sparse test_gpu::test_dropout",
                "flash_attn_v2": "test_gpu::test_forward[{}] test_gpu::test_masks "
                "test_gpu::test_dropout",
                "flash_attn_bwd": "test_gpu::test_backward[{}] test_gpu::test_masks "
                "test_gpu::test_dropout",
                "flash_attn_varlen linear_attn": "test_gpu::test_{}",
                "flash_attn_varlen_bwd": "test_gpu::test_flash_attn_varlen",
            },
            "on a GPU, float16 and bfloat16": {
                "naive_attn lazy_softmax_attn flash_attn_v1 flash_attn_v2 flash_attn_bwd "
                "flash_attn_varlen": "test_gpu::test_16_bits[{}]",
                "flash_attn_varlen_bwd": "test_gpu::test_16_bits[flash_attn_varlen]",
                "linear_attn": f"test_gpu::test_16_bits[{MAPS}]",
            },
        },
    ),
    "The ladder: the same, faster": (
        f"flash_attn_v2_unsigned {TILED}",
        {
            "`causal`, lengths, heads, head_dim": {
                "flash_attn_v2_unsigned": UNSIGNED,
                TILED: "test_{}::test_shapes",
            },
            "`window_size`, `softcap`, `alibi_slopes`": {
                "flash_attn_v2_unsigned": UNSIGNED_MASKS,
                TILED: "test_{}::test_masks",
            },
            "dropout": {
                "flash_attn_v2_unsigned": f"{UNSIGNED_MASKS}[dropout]",
                TILED: TRAINING,
            },
            "float16, bfloat16": {
                "flash_attn_v2_unsigned": f"{UNSIGNED_MASKS}[{SIXTEEN}]",
                TILED: "test_{}::test_16_bit_floats",
            },
            "sizes of tiles change nothing": {
                "flash_attn_v2_unsigned": UNSIGNED,
                "flash_attn_v2_4x4": No("its tiles follow from head_dim"),
                "flash_attn_registers flash_attn_bwd_registers": (
                    "test_{}::test_tile_size_does_not_change_the_answer"
                ),
            },
            **everywhere(f"flash_attn_v2_unsigned {TILED}"),
            "on a GPU": {
                LADDER: ("test_gpu::test_forward[{}] test_gpu::test_masks"),
                "flash_attn_bwd_registers": "test_gpu::test_backward[{}] test_gpu::test_masks",
            },
            "on a GPU, float16 and bfloat16": {
                LADDER: "test_gpu::test_16_bits[{}]",
                "flash_attn_bwd_registers": No("its cases of 16 bits run on the CPU engine alone"),
            },
        },
    ),
    "The jobs: by the fastest kernel that can": (
        f"{JOBS} which",
        {
            "the same result as the lesson kernel": {
                JOBS: "test_dispatch::test_a_job_computes_what_the_lesson_kernel_does[{}]",
                "which": "test_dispatch::test_which_takes_a_job_or_its_name",
            },
            "any lengths, heads, head_dim": {
                "flash_attn": "test_dispatch::test_any_shape",
                "flash_attn_grad": "test_dispatch::test_gradients_of_any_shape",
                f"{PACKED_JOBS} {DECODE} {ROW_JOBS} which": NONE,
            },
            "`causal`, `window_size`, `softcap`, `alibi_slopes`": {
                "flash_attn": "test_dispatch::test_any_mask",
                "flash_attn_grad": "test_dispatch::test_gradients_under_any_mask",
                "which": "test_dispatch::test_an_option_that_a_kernel_has_not_got",
                f"{PACKED_JOBS} {DECODE} {ROW_JOBS}": NONE,
            },
            "dropout": {
                "flash_attn flash_attn_grad which": (
                    "test_dispatch::test_dropout_of_numpy_arrays_is_that_of_the_lesson_kernel"
                ),
                PACKED_JOBS: PACKED_DROPOUT,
                f"{DECODE} {ROW_JOBS}": NONE,
            },
            "takes the kernel that was quickest when measured": {
                "flash_attn flash_attn_grad which": (
                    "test_dispatch::test_a_measured_problem_gets_what_was_quickest_there "
                    "test_dispatch::test_a_kernel_that_cannot_is_not_taken"
                ),
                f"{PACKED_JOBS} {DECODE} {ROW_JOBS}": NONE,
            },
            "takes the first in order of preference": {
                f"{PACKED_JOBS} {DECODE} {ROW_JOBS}": (
                    "test_dispatch::test_the_kernel_of_a_job_by_preference[{}]"
                ),
                "flash_attn flash_attn_grad which": NONE,
            },
            "NumPy arrays run compiled for the CPU": {
                JOBS: "test_dispatch::test_numpy_arrays_do_not_meet_the_engine[{}]",
                "which": NONE,
            },
            "`deterministic`": {
                "flash_attn_grad": (
                    "test_dispatch::test_gradients_of_strided_views_in_the_same_bits"
                ),
                "which": "test_dispatch::test_an_option_that_a_kernel_need_not_be_told",
                f"flash_attn {PACKED_JOBS} {DECODE} {ROW_JOBS}": NONE,
            },
            "bad inputs refused": {
                "flash_attn flash_attn_grad which": "test_checks::test_bad_input[{}]",
                f"{PACKED_JOBS} {DECODE} {ROW_JOBS}": "test_checks::test_bad_input[job_{}]",
            },
            "on a GPU": {
                "flash_attn": "test_dispatch_gpu::test_flash_attn",
                "flash_attn_grad": "test_dispatch_gpu::test_flash_attn_grad",
                f"flash_attn_varlen {DECODE}": "test_dispatch_gpu::test_jobs_of_attention[{}]",
                "flash_attn_varlen_grad": (
                    "test_dispatch_gpu::test_jobs_of_attention[flash_attn_varlen]"
                ),
                ROW_JOBS: "test_dispatch_gpu::test_jobs_of_rows[{}]",
                "which": "test_dispatch_gpu::test_which test_dispatch_gpu::test_which_of_every_job",
            },
        },
    ),
    "Decoding and pages": (
        "flash_decode paged_attn_decode merge_states paged_kv_lookup reshape_and_cache copy_pages "
        "swap_pages",
        {
            "`causal`, seqlen_q ≥ 1": {
                "flash_decode": "test_{}::test_shapes",
                "paged_attn_decode": "test_{}::test_page_sizes[causal] test_{}::test_heads",
                MOVES: NONE,
            },
            "`window_size`": {DECODE: f"test_{{}}::test_masks[{WINDOWS}]", MOVES: NONE},
            "`softcap`": {DECODE: f"test_{{}}::test_masks[{CAPS}]", MOVES: NONE},
            "`alibi_slopes`": {DECODE: f"test_{{}}::test_masks[{SLOPES}]", MOVES: NONE},
            "`softmax_scale`": {DECODE: "test_{}::test_softmax_scale", MOVES: NONE},
            "dropout": {DECODE: TRAINING, MOVES: NONE},
            "splits": {
                "flash_decode": "test_{}::test_the_number_of_splits_does_not_change_the_answer",
                "paged_attn_decode": "test_{}::test_page_sizes",
                "merge_states": "test_{}::test_the_halves_of_attention_make_the_whole",
                PAGES: NONE,
            },
            "pages of any size": {
                "flash_decode": SEE_PAGED,
                "paged_attn_decode paged_kv_lookup reshape_and_cache copy_pages": (
                    "test_{}::test_page_sizes"
                ),
                "swap_pages": "test_{}::test_directions",
                "merge_states": NONE,
            },
            "pages anywhere, shared, none": {
                "paged_attn_decode": (
                    "test_{}::test_where_the_pages_are_does_not_change_a_bit "
                    "test_{}::test_sequences_may_share_pages "
                    "test_{}::test_the_block_table_is_not_read_past_the_last_page"
                ),
                "paged_kv_lookup": (
                    "test_{}::test_pages_may_be_shared "
                    "test_{}::test_the_block_table_is_not_read_past_the_last_page"
                ),
                "copy_pages": "test_{}::test_one_page_to_many",
                "reshape_and_cache": "test_{}::test_tokens_without_a_slot_are_not_looked_at",
                "flash_decode": SEE_PAGED,
                "swap_pages": "test_{}::test_there_and_back",
                "merge_states": NONE,
            },
            "GQA, MQA": {
                DECODE: "test_{}::test_heads "
                "test_{}::test_the_heads_of_a_group_share_one_read_of_the_cache",
                MOVES: NONE,
            },
            "nothing to do: no tokens, no keys": {
                "flash_decode": "test_{}::test_sequences_without_a_token_give_zero",
                "paged_attn_decode": "test_{}::test_nothing_to_see",
                "merge_states": "test_{}::test_nothing_to_merge "
                "test_{}::test_two_empty_parts_are_empty",
                "paged_kv_lookup": "test_{}::test_lengths",
                "reshape_and_cache": "test_{}::test_numbers_of_tokens",
                "copy_pages": "test_{}::test_no_copies",
                "swap_pages": "test_{}::test_no_pages",
            },
            "head_dim 1 to 256, odd": {
                "flash_decode": f"test_{{}}::test_shapes[{DIMS}]",
                "paged_attn_decode": "test_{}::test_chosen_tiles_and_splits",
                "merge_states": "test_{}::test_sizes",
                "paged_kv_lookup reshape_and_cache": "test_{}::test_token_shapes",
                "copy_pages": "test_{}::test_page_shapes",
                "swap_pages": "test_{}::test_directions",
            },
            "float16, bfloat16": {
                DECODE: f"test_dtypes::test_attention[{{}},{SIXTEEN}]",
                MOVES: f"test_dtypes::test_others[{{}},{SIXTEEN}]",
            },
            "scores tiny and huge": {
                "flash_decode": "test_{}::test_values",
                "paged_attn_decode": "test_{}::test_tiny_and_huge_scores",
                MOVES: NONE,
            },
            "NaN stays where it is": {
                DECODE: "test_{}::test_nan_in_one_sequence_stays_there",
                "merge_states": "test_{}::test_nan_in_one_row_stays_there "
                "test_{}::test_an_empty_part_changes_nothing_whatever_it_holds",
                PAGES: NONE,
            },
            "sizes of tiles change nothing": {
                DECODE: "test_{}::test_tile_size_does_not_change_the_answer",
                MOVES: NONE,
            },
            "problems that nobody chose": {
                "flash_decode": "test_attention_any::test_flash_decode",
                "paged_attn_decode": "test_{}::test_any_problem",
                MOVES: NONE,
            },
            "HBM traffic equals the formula": {
                f"{DECODE} merge_states paged_kv_lookup reshape_and_cache": (
                    "test_hbm_traffic::test_{}"
                ),
                "copy_pages swap_pages": "test_hbm_traffic::test_copy_and_swap_pages",
            },
            **everywhere(f"{DECODE} merge_states paged_kv_lookup", f"{WRITES}"),
            "on a GPU": {
                "flash_decode": "test_gpu::test_{} test_gpu::test_masks_of_decoding",
                "paged_attn_decode": "test_gpu::test_{} test_gpu::test_masks_of_decoding",
                "merge_states paged_kv_lookup reshape_and_cache copy_pages": (
                    "test_gpu::test_{}_small"
                ),
                "swap_pages": "test_gpu::test_swap_pages_within_a_gpu_small "
                "test_gpu::test_swap_pages_out_and_in_small",
            },
            "on a GPU, float16 and bfloat16": {f"{DECODE} {MOVES}": "test_gpu::test_16_bits[{}]"},
        },
    ),
    "Softmax": (
        f"{SOFTMAXES} {TOPKS}",
        {
            "rows of any length": {
                "naive_softmax safe_softmax": "test_{}::test_shapes",
                ROWS: "test_online_softmax::test_shapes[{}]",
                TOPKS: "test_softmax_topk::test_shapes[{}]",
            },
            "large numbers": {
                "naive_softmax": No("it overflows, on purpose: that is lesson 02's beginning"),
                "safe_softmax": "test_{}::test_large_numbers",
                ROWS: "test_online_softmax::test_large_numbers[{}]",
                TOPKS: "test_softmax_topk::test_large_numbers[{}]",
            },
            "−∞ and rows of it": {
                "safe_softmax": "test_{}::test_some_minus_infinity "
                "test_{}::test_a_row_of_minus_infinity_has_no_softmax",
                ROWS: "test_online_softmax::test_some_minus_infinity[{}] "
                "test_online_softmax::test_a_row_of_minus_infinity_has_no_softmax[{}]",
                TOPKS: "test_softmax_topk::test_minus_infinity_is_a_number_like_others[{}]",
                "naive_softmax": NONE,
            },
            "ties by column": {
                TOPKS: "test_softmax_topk::test_equal_numbers_come_by_column[{}]",
                SOFTMAXES: NONE,
            },
            "NaN stays where it is": {
                "safe_softmax": "test_{}::test_nan_stays_in_its_row",
                ROWS: "test_online_softmax::test_nan_stays_in_its_row[{}]",
                TOPKS: "test_softmax_topk::test_nan_stays_in_its_row_and_its_columns_are_columns"
                "[{}]",
                "naive_softmax": NONE,
            },
            "float16, bfloat16": {
                f"{SOFTMAXES} {TOPKS}": f"test_dtypes::test_others[{{}},{SIXTEEN}]",
            },
            "HBM traffic equals the formula": {
                SOFTMAXES: "test_hbm_traffic::test_softmax[{}]",
                TOPKS: "test_hbm_traffic::test_softmax_topk[{}]",
            },
            **everywhere(f"{SOFTMAXES} {TOPKS}"),
            "on a GPU": {
                SOFTMAXES: "test_gpu::test_softmax[{}]",
                TOPKS: "test_gpu::test_softmax_topk[{}]",
            },
            "on a GPU, float16 and bfloat16": {
                f"{SOFTMAXES} {TOPKS}": "test_gpu::test_16_bits[{}]",
            },
        },
    ),
    "Who has which place in the KV cache": (
        "PagePool Scheduler ContiguousCache RollingCache",
        {
            "append, free": {
                "PagePool": "test_page_pool::test_ten_thousand_random_steps "
                "test_page_pool::TestMachine",
                "ContiguousCache": "test_contiguous_cache::"
                "test_tokens_are_in_order_and_nothing_else_is_written",
                "RollingCache": "test_rolling_cache::"
                "test_any_appends_keep_the_same_tokens_and_positions",
                "Scheduler": "test_scheduler::test_who_waits_can_be_finished_too",
            },
            "no page with two writers: copy-on-write": {
                "PagePool": "test_page_pool::"
                "test_copy_on_write_only_where_the_last_page_is_shared_and_part_filled",
                "Scheduler ContiguousCache RollingCache": NONE,
            },
            "prefixes shared": {
                "PagePool": "test_page_pool::test_full_pages_with_the_same_prefix_are_shared "
                "test_page_pool::test_a_page_that_fills_up_while_decoding_is_found "
                "test_page_pool::test_a_page_whose_beginning_is_gone_is_not_found "
                "test_page_pool::test_sharing_can_be_turned_off",
                "Scheduler": "test_scheduler::test_preemption_changes_no_answer[True]",
                "ContiguousCache RollingCache": No("a row of its own for each sequence"),
            },
            "parallel sampling, beam search": {
                "PagePool": "test_page_pool::test_parallel_samples_share_the_prompt "
                "test_page_pool::test_beam_search_keeps_shared_pages",
                "Scheduler ContiguousCache RollingCache": NONE,
            },
            "preemption, by swapping or recomputing": {
                "Scheduler": "test_scheduler::test_preemption_changes_no_answer "
                "test_scheduler::test_the_last_to_come_gives_way_and_is_the_first_to_come_back",
                "PagePool ContiguousCache RollingCache": NONE,
            },
            "running out changes nothing": {
                "PagePool": "test_page_pool::test_running_out_says_how_many_pages_are_missing",
                "Scheduler": "test_scheduler::test_a_request_that_can_never_fit_is_refused",
                "ContiguousCache": "test_contiguous_cache::"
                "test_running_out_of_room_changes_nothing",
                "RollingCache": NONE,
            },
            "chunked prefill": {
                "ContiguousCache": "test_contiguous_cache::"
                "test_a_prompt_in_parts_equals_the_whole_prompt",
                "PagePool": "test_paged_attn_decode::"
                "test_a_prompt_in_parts_equals_the_whole_prompt",
                "Scheduler": NONE,
                "RollingCache": "test_rolling_cache::"
                "test_any_appends_keep_the_same_tokens_and_positions",
            },
            "a window that rolls, attention sinks": {
                "RollingCache": "test_rolling_cache::test_decoding_sees_the_sinks_and_the_window "
                "test_rolling_cache::test_the_write_pointer_wraps",
                "PagePool Scheduler ContiguousCache": No("`RollingCache` is there for it"),
            },
            "attention straight from it": {
                "PagePool": "test_paged_attn_decode::"
                "test_a_pool_serves_sequences_that_share_fork_and_leave",
                "ContiguousCache": "test_contiguous_cache::"
                "test_it_is_a_paged_cache_with_a_page_for_each_sequence",
                "RollingCache": "test_rolling_cache::test_decoding_sees_the_sinks_and_the_window",
                "Scheduler": "test_scheduler::test_preemption_changes_no_answer",
            },
            "float16, bfloat16": {
                "ContiguousCache RollingCache": f"test_dtypes::test_others[{{}},{SIXTEEN}]",
                "PagePool Scheduler": NONE,
            },
            "bad inputs refused": {
                "PagePool Scheduler ContiguousCache RollingCache": "test_checks::test_bad_input[{}]"
            },
        },
    ),
}


def collect(claims):
    """The node ids of all tests in the files of these claims, as pytest collects them."""
    files = sorted({f"tests/{claim.partition('::')[0]}.py" for claim in claims})
    command = [sys.executable, "-c", COLLECT, *files]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"pytest cannot collect the tests:\n{run.stdout}{run.stderr}")
    return [line for line in run.stdout.splitlines() if "::" in line]


def cases(claim, nodes):
    """Those of `nodes` that a claim names."""
    test, _, words = claim.removesuffix("]").partition("[")
    file, _, test = test.partition("::")
    start = re.compile(rf"tests/{file}\.py::{test}(::|\[|$)")
    found = [node for node in nodes if start.match(node)]
    for alternatives in filter(None, words.split(",")):
        wanted = set(alternatives.split("|"))
        found = [node for node in found if wanted & _parameters(node)]
    return found


def _parameters(node):
    """What the brackets of a node id name; of a bad input, the function in front of the colon."""
    inside = node.partition("[")[2].removesuffix("]")
    return {*inside.split("-"), re.split(r"[:.]", inside)[0]}


def cells(tables=TABLES):
    """(table, feature, function) -> claims, as a list, or the word of a cell without any."""
    found = {}
    for table, (functions, features) in tables.items():
        for feature, declared in features.items():
            for names, what in declared.items():
                for function in names.split():
                    key = table, feature, function
                    if function not in functions.split() or key in found:
                        raise ValueError(
                            f"{table}, {feature}: {function} is unknown or there twice"
                        )
                    said = what == NONE or isinstance(what, No)
                    found[key] = what if said else what.replace("{}", function).split()
            for function in functions.split():
                if not found.get((table, feature, function)):
                    raise ValueError(f"{table}, {feature}: nothing is said of {function}")
    return found


def page(tables=TABLES, nodes=None):
    """The text of docs/features.md, for these node ids or those that pytest collects."""
    found = cells(tables)
    claims = {claim for what in found.values() if isinstance(what, list) for claim in what}
    nodes = collect(claims) if nodes is None else nodes
    counted = {claim: cases(claim, nodes) for claim in sorted(claims)}
    nothing = [claim for claim, of_it in counted.items() if not of_it]
    if nothing:
        raise ValueError(f"no such test: {', '.join(nothing)}")

    every = {node for of_it in counted.values() for node in of_it}
    on_gpu = sum(node.startswith("tests/test_gpu.py") for node in every)
    text = [_HEAD.format(cases=f"{len(every):,}", on_gpu=f"{on_gpu:,}")]
    notes = {}
    for table, (functions, features) in tables.items():
        functions = functions.split()
        text += [f"\n## {table}\n", _row(["", *(f"`{name}`" for name in functions)])]
        text.append(_row(["---", *["---:"] * len(functions)]))
        for feature in features:
            line = [feature]
            for function in functions:
                what = found[table, feature, function]
                if isinstance(what, No):
                    line.append(f"no[^{notes.setdefault(what, len(notes) + 1)}]")
                elif what == NONE:
                    line.append(NONE)
                else:
                    line.append(" + ".join(_link(claim, counted[claim]) for claim in what))
            text.append(_row(line))
    text += ["", *(f"[^{number}]: {note[0].upper()}{note[1:]}." for note, number in notes.items())]
    text += ["\n## The tests\n", _row(["test", "cases"]), _row(["---", "---:"])]
    text += [_row([_name(claim), len(counted[claim])]) for claim in counted]
    return "\n".join(text) + "\n"


_HEAD = """# What each function has, and which test says so

A number says how many cases test that feature of that function, and leads to their file; with the
pointer on it, it says the name of the test. All names are listed [below](#the-tests). – means that
a feature does not apply. Behind the tables are {cases} different cases. {on_gpu} of them need
a GPU (`pytest -m gpu`). The others need none: they run kernels on the CPU engine, run what is
compiled for the CPU, or compile for a GPU. The README says what has run on which GPU.

Four names are those of a job and of a lesson kernel: `flash_attn_varlen`, `flash_decode`,
`paged_attn_decode` and `softmax_topk`. The table of the jobs is about the jobs, the others are
about the kernels, in `fa_numba/kernels`.

This page is written by `python docs/make_features.py`, and a test fails where it is out of date."""


def _row(items):
    return "| " + " | ".join(str(item) for item in items) + " |"


def _name(claim):
    """A claim to be read: the bars between alternatives would end a cell of the table."""
    test, bracket, words = claim.partition("[")
    file, _, test = test.partition("::")
    words = words.removesuffix("]").replace("|", " or ").replace(",", "; ")
    return f"[{file}.py](../tests/{file}.py)::{test}" + (f" ({words})" if bracket else "")


def _link(claim, of_it):
    file, _, test = claim.partition("[")[0].partition("::")
    return f'[{len(of_it)}](../tests/{file}.py "{file}.py::{test}")'


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv[1:]:
        sys.exit(PAGE.read_text(encoding="utf-8") != text and f"{PAGE} is out of date")
    PAGE.write_text(text, encoding="utf-8", newline="\n")
