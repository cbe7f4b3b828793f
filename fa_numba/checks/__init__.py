"""The arguments of every function that runs kernels, and of caches, models and servers.

`analysis`, `simt` and `workbook` check their own. Each message names the argument, says what it
must be, and what it got. A check of an option returns the option in the form that launchers need.
Checks of arrays take arrays, or the `Facts` of arrays that a launcher or another check has read
(fa_numba.runtime.arrays).

expressions     masks, scores and sinks of the user's
values          flags, numbers, sizes, masks
attention       arrays of attention, forward, backward, decoding and linear, and of softmax
hardware        arrays against a GPU: its instructions, 16-byte copies, shared memory, registers
model           sizes of a language model, its tokens, the options of its training
cache           key-value caches: contiguous ones, pages, page pools, tokens and requests
serving         a server's sizes, and the requests to it
call            options of scores, and a whole forward call with its results, checked
options         the options that functions share: names, defaults, signatures
requirements    single requirements on arrays, which the checks combine
argument_names  an argument by the name that another library gives it
"""

from fa_numba.checks.attention import (
    check_block_mask,
    check_bwd,
    check_decode,
    check_decode_contents,
    check_decode_layouts,
    check_feature_map,
    check_linear_form,
    check_qkv,
    check_rows,
    check_state,
    check_states,
    check_varlen,
    check_varlen_bwd,
)
from fa_numba.checks.cache import (
    check_append,
    check_beams,
    check_cache_shape,
    check_cascade,
    check_cascade_tables,
    check_copy,
    check_guesses,
    check_head_shard,
    check_latent_decode,
    check_new_tokens,
    check_page,
    check_page_bounds,
    check_page_scores,
    check_paged,
    check_paged_decode,
    check_paged_decode_contents,
    check_paged_decode_layouts,
    check_pool,
    check_pools,
    check_request,
    check_room,
    check_seq,
    check_seqs,
    check_settled,
    check_swap,
    check_tokens,
    check_topk_decode,
    check_window,
    check_write,
    keys_of_pages,
)
from fa_numba.checks.call import Call, Scores, check_scores, forward_call
from fa_numba.checks.expressions import (
    as_options,
    check_axes_of_arguments,
    check_expressions,
    check_score_args_grad,
    check_sinks,
    check_sums_of_arguments,
)
from fa_numba.checks.hardware import (
    AMPERE,
    HOPPER,
    KERNELS,
    MAX_BWD_HEAD_DIM,
    MAX_BWD_HEAD_DIM_OVER_V,
    TensorCores,
    check_4x4_tiles,
    check_aligned,
    check_backward_tiles,
    check_block_sizes,
    check_bwd_over_v,
    check_decode_tensor_core,
    check_forward_tiles,
    check_fp8,
    check_latent_tensor_core,
    check_no_dropout,
    check_shared_bytes,
    rows_suit_tensor_maps,
)
from fa_numba.checks.model import (
    check_characters,
    check_config,
    check_exercise_files,
    check_float16,
    check_generation,
    check_losses,
    check_model_tokens,
    check_no_latents,
    check_recipe,
    check_room_in_context,
    check_symbols,
    check_text_length,
)
from fa_numba.checks.options import DECODING, DROPOUT, FUNCTIONS, NO_SLOPES, PLAIN, SCORES, takes
from fa_numba.checks.requirements import (
    ANY_HEAD_DIMS,
    MAX_HEAD_DIM,
    MAX_WIDE_HEAD_DIM,
    ONE_HEAD_DIM,
    WIDE_HEAD_DIM,
    HeadDims,
)
from fa_numba.checks.serving import (
    check_answer_options,
    check_draft,
    check_draft_sizes,
    check_draft_vocabulary,
    check_fits,
    check_kv_dtype,
    check_number_of,
    check_number_of_answers,
    check_prompt,
    check_step_sizes,
    check_topk_pages,
)
from fa_numba.checks.values import (
    MAX_TOP_K,
    Mask,
    check_causal,
    check_chunk_size,
    check_cluster,
    check_dropout,
    check_flag,
    check_grad_dtype,
    check_job,
    check_linear_chunk_size,
    check_mask,
    check_num_splits,
    check_number,
    check_positive_scale,
    check_softcap,
    check_softmax_scale,
    check_top_k,
    check_window_size,
    require_candidate,
)
