"""The paged KV cache: who owns which page, and the kernels that move keys and values.

`PagePool` decides on the CPU, in plain Python, and never sees a key. What it decides are a few page
numbers, which the kernels follow. `ContiguousCache` and `RollingCache` are caches without pages.
"""

from fa_numba.kv_cache.contiguous_cache import ContiguousCache
from fa_numba.kv_cache.copy_pages import copy_pages
from fa_numba.kv_cache.head_shard import head_shard
from fa_numba.kv_cache.page_pool import OutOfPagesError, PagePool, Writes
from fa_numba.kv_cache.reshape_and_cache import reshape_and_cache
from fa_numba.kv_cache.rolling_cache import RollingCache
from fa_numba.kv_cache.sampling import beams, samples
from fa_numba.kv_cache.scheduler import Plan, Request, Scheduler
from fa_numba.kv_cache.swap_pages import swap_pages
from fa_numba.kv_cache.waste import Usage, random_trace, serve_contiguous, serve_paged

__all__ = [
    "ContiguousCache",
    "OutOfPagesError",
    "PagePool",
    "Plan",
    "Request",
    "RollingCache",
    "Scheduler",
    "Usage",
    "Writes",
    "beams",
    "copy_pages",
    "head_shard",
    "random_trace",
    "reshape_and_cache",
    "samples",
    "serve_contiguous",
    "serve_paged",
    "swap_pages",
]
