"""KV caches: owners of pages, schedules, and the kernels that move keys and values.

caches without pages  contiguous_cache, rolling_cache
owners of pages       page_pool (block table, references, copy-on-write), sampling (forks),
                      cascade_plan (keys that sequences share)
requests              scheduler (who runs, who is preempted), waste (memory use on a trace)
kernels               reshape_and_cache (write new tokens), copy_pages, swap_pages (to host memory),
                      paged_kv_lookup (pages to dense keys and values); for attention to few pages
                      page_scores (bounds of a page's keys, and of its scores) and top_pages
several GPUs          head_shard (which heads a device keeps)

`PagePool` runs on the CPU, in plain Python, and never sees a key. It returns page numbers, and the
kernels follow them. The attention kernels over these caches are in `kernels`, `on_cuda_cores` and
`tensor_core`.
"""

from fa_numba.kv_cache.cascade_plan import CascadePlan, cascade_plan, merge_pays
from fa_numba.kv_cache.contiguous_cache import ContiguousCache
from fa_numba.kv_cache.copy_pages import copy_pages
from fa_numba.kv_cache.head_shard import head_shard
from fa_numba.kv_cache.page_pool import OutOfPagesError, PagePool, Writes
from fa_numba.kv_cache.page_scores import page_scores, update_page_bounds
from fa_numba.kv_cache.reshape_and_cache import reshape_and_cache
from fa_numba.kv_cache.rolling_cache import RollingCache
from fa_numba.kv_cache.sampling import beams, samples
from fa_numba.kv_cache.scheduler import Plan, Request, Scheduler
from fa_numba.kv_cache.swap_pages import swap_pages
from fa_numba.kv_cache.waste import Usage, random_trace, serve_contiguous, serve_paged
