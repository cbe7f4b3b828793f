"""The kernels in lesson form: one idea per file, shared-memory tiles in plain sight, float32.

softmax          naive_softmax, safe_softmax, online_softmax; softmax_topk
attention        naive_attn, lazy_softmax_attn, flash_attn_v1, flash_attn_v2; flash_attn_bwd
packed batches   flash_attn_varlen, flash_attn_varlen_bwd
decoding         flash_decode, paged_attn_decode, mla_decode, merge_states
linear           linear_attn, linear_attn_recurrent, feature_map

Parts: masks (and score modification), dropout, kahan (compensated sums), sequence_of (the sequence
of a tile in a packed batch).

A file is imported when it is first named: `fa_numba.kernels.flash_decode.flash_decode`.
"""

import importlib
import pkgutil

from fa_numba.checks.names import no_such_name


def __getattr__(name):
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        known = [module.name for module in pkgutil.iter_modules(__path__)]
        raise no_such_name(__name__, name, known) from None
