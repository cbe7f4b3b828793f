"""How many elements each kernel moves to and from HBM, by formula.

The formulas count the elements that a kernel's threads ask for; `simt.trace` counts the same by
watching, and the two are equal. A cache may serve some of them: a GPU's DRAM counters can show
less. A formula takes sizes and no arrays, so it answers for problems too large to run.

Every function here has the name of the function of `fa_numba` whose traffic it returns:

    >>> from fa_numba.analysis import Problem, traffic
    >>> problem = Problem(1, 4096, 4096, 8, 8, 64, causal=True)
    >>> traffic.flash_attn_v2(problem).stores
    {'out': 2097152, 'lse': 32768}

- problem: `Problem`, the sizes and options of one attention call
- counts: `Traffic`, elements loaded and stored, by the kernels' parameters
- walks: which tiles of keys a tile of queries loads under a mask, and the other way round
- softmax: the softmax kernels
- forward: attention
- backward: its gradients
- decoding: attention of new queries on a KV cache
- linear: linear attention
- cache: kernels that move keys and values, or merge partial results
- textbook: bytes of one head by the papers' own counts, for standard and for flash attention
"""

from fa_numba.analysis.traffic.backward import (
    flash_attn_bwd,
    flash_attn_bwd_registers,
    flash_attn_varlen_bwd,
)
from fa_numba.analysis.traffic.cache import (
    copy_pages,
    merge_states,
    page_scores,
    paged_kv_lookup,
    reshape_and_cache,
    swap_pages,
    top_pages,
    update_page_bounds,
)
from fa_numba.analysis.traffic.counts import Traffic
from fa_numba.analysis.traffic.decoding import (
    cascade_decode,
    flash_decode,
    flash_decode_wide,
    mla_decode,
    paged_attn_decode,
)
from fa_numba.analysis.traffic.forward import (
    flash_attn_registers,
    flash_attn_v1,
    flash_attn_v2,
    flash_attn_varlen,
    lazy_softmax_attn,
    naive_attn,
)
from fa_numba.analysis.traffic.linear import linear_attn
from fa_numba.analysis.traffic.problem import Problem
from fa_numba.analysis.traffic.softmax import (
    naive_softmax,
    online_softmax,
    safe_softmax,
    softmax_registers,
    softmax_topk,
    softmax_topk_warps,
)
from fa_numba.analysis.traffic.textbook import flash_attention, standard_attention
