"""Decoding of sequences that share keys, which are read once: two launches on Hopper GPUs.

flash_attn_split      attention of all rows to the keys that they share, divided among the SMs
flash_decode_gather   attention of each sequence to the keys of its own, which begins with the
                      parts of the first kernel (⊕, `merge_states`) and not with nothing

For the first kernel the queries of all sequences are those of one sequence. The second one reads
the parts while its first keys are copied.
"""

import dataclasses

from fa_numba import checks
from fa_numba.checks import HOPPER
from fa_numba.checks.refused import RefusedValueError
from fa_numba.on_cuda_cores.decode_problem import launch
from fa_numba.runtime import arrays
from fa_numba.tensor_core import flash_attn_split as split
from fa_numba.tensor_core import flash_decode_gather as gather
from fa_numba.tensor_core.decoding import check_on_tensor_cores


@arrays.replayed
def attend_together(
    q, k_cache, v_cache, block_table, seq_lens, segment_table, *, causal, softcap, softmax_scale
):
    """Attention to keys of each sequence, and to keys that all of them share.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float16 or bfloat16
    k_cache, v_cache, block_table, seq_lens
        As for `paged_attn_decode`; the tables are those of the keys that are not shared.
    segment_table : array of shape (1, num_pages), int32
        The pages that are shared, all of them whole.
    causal, softcap, softmax_scale
        As for `paged_attn_decode`. No shared key is masked.

    Returns
    -------
    out, lse
        As of `paged_attn_decode`.

    Raises
    ------
    RefusedError
        A kernel cannot take these arrays; nothing has been launched.
    """
    problem = check_on_tensor_cores(
        "flash_decode_gather", HOPPER, q, k_cache, v_cache, seq_lens, block_table=block_table,
        causal=causal, softcap=softcap, softmax_scale=softmax_scale,
    )  # fmt: skip
    batch, seqlen_q, num_heads, head_dim = q.shape
    strides = arrays.facts(q).strides
    if seqlen_q > 1 and strides[0] != seqlen_q * strides[1]:
        raise RefusedValueError(f"q must have rows one after the other, got strides {strides}")
    queries = arrays.as_view(q.reshape(1, batch * seqlen_q, num_heads, head_dim), q)
    keys = dict(zip("kv", checks.keys_of_pages(k_cache, v_cache, segment_table), strict=True))
    split.REQUIREMENTS.check(queries, **keys)
    checks.check_positive_scale(softmax_scale, head_dim)
    scores = dataclasses.replace(problem.scores, mask=problem.scores.mask._replace(causal=False))
    call = checks.Call(q=queries, out=None, lse=None, **vars(scores), **keys)
    tiling, num_splits = split.tiling_of(call)
    shapes = queries.shape, (1, num_heads, batch * seqlen_q)
    parts = tuple(arrays.empty(q, (num_splits, *shape)) for shape in shapes)
    split.launch_parts(call, tiling, num_splits, k_cache, v_cache, parts, segment_table)
    kernel, more = gather.first_kernel(problem, parts=parts)
    return launch(problem, *kernel, **more)
