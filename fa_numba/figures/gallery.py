"""An example of every drawing, made here and now from traces, records and analysis."""

import numpy as np
from numba import cuda, float32

import fa_numba
from fa_numba import analysis, masks, reference, simt
from fa_numba.analysis import fp8
from fa_numba.analysis.devices import DEVICES
from fa_numba.analysis.overlap import overlap
from fa_numba.analysis.waves import makespan
from fa_numba.distributed import numpy_attn, ring_attn, run_ranks, shard, tree_decode
from fa_numba.distributed import prediction as ranks
from fa_numba.figures.addresses import addresses
from fa_numba.figures.attention_intensity import attention_intensity
from fa_numba.figures.attention_map import attention_map
from fa_numba.figures.backward_flow import backward_flow
from fa_numba.figures.banks import banks
from fa_numba.figures.bit_fields import bit_fields
from fa_numba.figures.block_sizes import feasible_tiles
from fa_numba.figures.cache_growth import cache_growth
from fa_numba.figures.chunk_places import chunk_places
from fa_numba.figures.chunked_weights import chunked_weights
from fa_numba.figures.coalescing import coalescing
from fa_numba.figures.divergence import divergence
from fa_numba.figures.dropout_masks import dropout_masks
from fa_numba.figures.fragments import fragments
from fa_numba.figures.hbm_bytes import hbm_bytes
from fa_numba.figures.head_sharing import head_sharing
from fa_numba.figures.kept_weights import kept_weights
from fa_numba.figures.kernel_roofline import kernel_roofline
from fa_numba.figures.layer_limits import layer_limits
from fa_numba.figures.loss_curve import loss_curve
from fa_numba.figures.mask_tiles import mask_tiles
from fa_numba.figures.memory_hierarchy import memory_hierarchy
from fa_numba.figures.memory_shares import memory_shares
from fa_numba.figures.number_lines import number_lines
from fa_numba.figures.occupancy_by_block import occupancy_by_block
from fa_numba.figures.online_statistics import online_statistics
from fa_numba.figures.overflow import overflow
from fa_numba.figures.packed_batch import packed_batch
from fa_numba.figures.page_table import page_table
from fa_numba.figures.race import race_diagram
from fa_numba.figures.recall_by_pages import recall_by_pages
from fa_numba.figures.rescaling import rescaling
from fa_numba.figures.ring_cache import ring_cache
from fa_numba.figures.roofline import roofline
from fa_numba.figures.score_errors import score_errors
from fa_numba.figures.sectors import sectors
from fa_numba.figures.shared_pages import shared_pages
from fa_numba.figures.softmax_passes import softmax_passes
from fa_numba.figures.split_schedule import split_schedule
from fa_numba.figures.split_times import split_times
from fa_numba.figures.step_bytes import step_bytes
from fa_numba.figures.thread_grid import thread_grid
from fa_numba.figures.tile_frames import recorded_walk, tile_frames
from fa_numba.figures.tile_statistics import tile_statistics
from fa_numba.figures.tile_walk import tile_walk
from fa_numba.figures.tiled_product import tiled_product
from fa_numba.figures.timelines import timelines
from fa_numba.figures.traffic_growth import traffic_growth
from fa_numba.figures.tree_reduction import tree_reduction
from fa_numba.figures.two_orders import two_orders
from fa_numba.figures.warp_partition import warp_partition
from fa_numba.figures.weight_against_score import weight_against_score
from fa_numba.figures.weight_maps import weight_maps
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.kv_cache import ContiguousCache, PagePool, RollingCache, samples
from fa_numba.ptx import layouts

DEVICE = "H100"


class NotDrawnError(RuntimeError):
    """An example needs a tool that this machine does not have; the message names it."""


def draw(left_out=None):
    """Yield (name, Drawing) of every example, in the order of the lessons.

    Parameters
    ----------
    left_out : dict, optional
        Gets the name of each example that cannot be drawn on this machine, and why; without it,
        the first of them raises `NotDrawnError`.
    """
    for function in EXAMPLES:
        try:
            yield function.__name__, function()
        except NotDrawnError as error:
            if left_out is None:
                raise
            left_out[function.__name__] = str(error)


def _random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def _traces(function, *args, **options):
    with simt.tracing() as traces:
        function(*args, **options)
    return traces


# --- Kernels to be looked at --------------------------------------------------------------------

TILE = 32


@cuda.jit
def copy_three_ways(x, y):
    """Rows, columns, and one element for all: the same loads, other addresses."""
    tx = cuda.threadIdx.x
    y[0, tx] = x[3, tx]
    y[1, tx] = x[tx, 3]
    y[2, tx] = x[3, 2 * tx + 3]
    y[3, tx] = x[3, 3]


def make_transpose(ROW, with_barrier):
    """A transpose through a shared tile, with rows of ROW floats."""

    @cuda.jit
    def transpose(x, y):
        tile = cuda.shared.array((TILE, ROW), float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        tile[ty, tx] = x[ty, tx]
        if with_barrier:
            cuda.syncthreads()
        y[ty, tx] = tile[tx, ty]

    return transpose


@cuda.jit
def forgets_the_barrier(x, y):
    """A transpose of one tile, without a barrier."""
    tile = cuda.shared.array((TILE, TILE + 1), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile[ty, tx] = x[ty, tx]
    y[ty, tx] = tile[tx, ty]


@cuda.jit
def tree_levels(x, levels):
    """Sum 8 numbers; levels[depth] is the shared array after `depth` levels."""
    partial = cuda.shared.array(8, float32)
    tid = cuda.threadIdx.x
    partial[tid] = x[tid]
    levels[0, tid] = x[tid]
    cuda.syncthreads()
    stride = 4
    for depth in range(1, 4):
        if tid < stride:
            partial[tid] += partial[tid + stride]
        cuda.syncthreads()
        levels[depth, tid] = partial[tid]
        stride //= 2


@cuda.jit
def tiled_loads(turn_a, turn_b, mine):
    """Thread block (3, 1) of a tiled product notes its loads."""
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 8 + ty, cuda.blockIdx.x * 8 + tx
    if cuda.blockIdx.x == 3 and cuda.blockIdx.y == 1:
        for k_start in range(0, turn_a.shape[1], 8):
            turn_a[row, k_start + tx] = k_start // 8
            turn_b[k_start + ty, col] = k_start // 8
        mine[row, col] = True


def walks(seqlen_q, seqlen_k, block_m, block_n, *, causal=False):
    """The walks of FlashAttention-1 and FlashAttention-2, as recorded from our kernels."""
    d = 4
    q, k, v = _random(1, seqlen_q, 1, d), *_random(2, 1, seqlen_k, 1, d)
    tiles = {"block_m": block_m, "block_n": block_n}
    num_tiles = -(-seqlen_q // block_m), -(-seqlen_k // block_n)
    found = {}
    for number, function in enumerate((fa_numba.flash_attn_v1, fa_numba.flash_attn_v2), 1):
        (trace,) = _traces(function, q, k, v, causal=causal, **tiles)
        again = trace.launched  # the same launch, this time with a record of every access
        accesses = simt.record(again.kernel, trace.grid, trace.block, *again.arguments)
        walk = recorded_walk(accesses, *num_tiles, **tiles, head_dim=d)
        found[f"FlashAttention-{number}"] = walk
    return found


def row_after_each_tile(tile=4, num_tiles=6, d=8):
    """m, l and acc of one query after each tile: FlashAttention-1 on more and more keys.

    It keeps m, l and out in HBM, so their values after each tile can be read.
    """
    q, k, v = np.ones((1, 1, 1, 1), np.float32), *_random(2, 1, tile * num_tiles, 1, d, seed=6)
    scores = k[0, :, 0, 0] + np.repeat(np.float32([0.0, 1.5, 0.3, 2.6, 1.0, 2.0]), tile)
    q = np.eye(1, d, dtype=np.float32).reshape(1, 1, 1, d)
    k = np.zeros_like(k)
    k[0, :, 0, 0] = scores  # a query that picks column 0: its scores
    rows = []
    for seen in range(tile, tile * num_tiles + 1, tile):
        out, l, m = fa_numba.flash_attn_v1(
            q, k[:, :seen], v[:, :seen], softmax_scale=1.0, block_m=tile, block_n=tile
        )
        rows.append((m[0, 0, 0], l[0, 0, 0], out[0, 0, 0] * l[0, 0, 0]))
    m, l, acc = (np.array(x) for x in zip(*rows, strict=True))
    return scores.reshape(num_tiles, tile), m, l, acc


# --- The examples -------------------------------------------------------------------------------


def a_thread_grid():
    return thread_grid(shape=(8, 32), block=(16, 4))


@cuda.jit
def branch_by_thread(x, out):
    """Every other thread takes the other side."""
    t = cuda.threadIdx.x
    if t % 2 == 0:
        out[t] = x[t] + 1
    else:
        out[t] = x[t] - 1


@cuda.jit
def branch_by_warp(x, out):
    """Every other warp takes the other side."""
    t = cuda.threadIdx.x
    if t // 32 == 0:
        out[t] = x[t] + 1
    else:
        out[t] = x[t] - 1


def a_divergent_warp():
    arrays = tuple(np.zeros((2, 64), np.float32))
    return divergence({
        "if t % 2 == 0": (branch_by_thread, arrays), "if t // 32 == 0": (branch_by_warp, arrays)
    })  # fmt: skip


def a_layer_and_its_limits():
    return layer_limits("A100-40GB", 32, launch=11e-6)


def a_memory_hierarchy():
    return memory_hierarchy(DEVICE)


def a_roofline():
    N, d = 1024, 64
    unfused = 4 * N * N * d / analysis.traffic.standard_attention(N, d, 4)["total"]
    fused = 4 * N * N * d / analysis.traffic.flash_attention(N, d, 128, 64, 4)["total"]
    points = {"vector add": 1 / 12, "standard attention": unfused, "FlashAttention-2": fused}
    return roofline(points, "A100-40GB")


def every_kernel_on_the_roofline():
    return kernel_roofline(work_of_every_kernel(), DEVICE)


def work_of_every_kernel(N=64, d=32):
    """(FLOPs, bytes) of the lesson kernels, both counted as they run."""
    q, k, v, dout = _random(4, 1, N, 1, d)
    out, lse = fa_numba.flash_attn_v2(q, k, v)
    cases = dict.fromkeys(("naive_softmax", "safe_softmax", "online_softmax"), (_random(2, 2048),))
    cases |= dict.fromkeys(("naive_attn", "flash_attn_v1", "flash_attn_v2"), (q, k, v))
    cases["flash_attn_bwd"] = dout, q, k, v, out, lse
    decoding = q[:, :1], k, v, np.full(1, N, np.int32)
    kernels = [(name, getattr(fa_numba, name), args) for name, args in cases.items()]
    work = {}
    for name, function, args in (*kernels, ("flash_decode", flash_decode, decoding)):
        traces = _traces(function, *args)
        moved = sum(trace.load_bytes + trace.store_bytes for trace in traces)
        work[name] = sum(trace.flops.total for trace in traces), moved
    return work


def an_attention_intensity():
    lengths, d = [1024 << i for i in range(7)], 128
    alone = {"projections": False}
    curves = {
        "standard": [analysis.intensity.prefill(N, 96, d, **alone).intensity for N in lengths],
        "flash, B_r = 128": [
            4 * N * N * d / analysis.traffic.flash_attention(N, d, 128, 64)["total"]
            for N in lengths
        ],
        "decoding": [
            analysis.intensity.decode(N, 96, d, fused=True, **alone).intensity for N in lengths
        ],
    }
    ridge = analysis.Roofline("A100-40GB", "float16").ridge
    return attention_intensity(lengths, curves, ridge, device="A100, tensor cores")


def the_range_of_exp():
    q, k = _random(2, 128, 128)
    return overflow(q @ k.T)


def a_tree_reduction():
    numbers, levels = np.float32([3, 1, 4, 1, 5, 9, 2, 6]), np.zeros((4, 8), np.float32)
    simt.run(tree_levels, 1, 8, numbers, levels)
    return tree_reduction(levels)


def passes_over_a_row():
    x = _random(2, 256)
    names = ("naive", "safe", "online")
    return softmax_passes({
        name: _traces(getattr(fa_numba, f"{name}_softmax"), x)[0] for name in names
    })  # fmt: skip


def online_softmax_along_a_row():
    scores = _random(24, seed=7) * 0.7 + np.repeat([0, 1, 2], 8)
    m = np.maximum.accumulate(scores)
    l = np.array([np.exp(scores[: n + 1] - m[n]).sum() for n in range(len(scores))])
    alpha = np.exp(np.concatenate([[-np.inf], m[:-1]]) - m)
    return online_statistics(scores, m, l, alpha)


def traffic_against_length():
    lengths = [1024 << i for i in range(6)]
    standard = [analysis.traffic.standard_attention(N, 128)["total"] for N in lengths]
    curves = {"standard": standard} | {
        f"flash, B_r = {B_r}": [
            analysis.traffic.flash_attention(N, 128, B_r, 64)["total"] for N in lengths
        ]
        for B_r in (64, 256)
    }
    return traffic_growth(lengths, curves, title="One head, d = 128, float16")


def who_reads_which_address():
    trace = simt.trace(copy_three_ways, 1, 32, _random(80, 80), np.zeros((4, 32), np.float32))
    titles = ("x[3, tx]: a row", "x[tx, 3]: a column", "x[3, 2 tx + 3]: every other, shifted",
              "x[3, 3]: one for all")  # fmt: skip
    loads = [line for line in trace.lines if line.action == "load"]
    return addresses(dict(zip(titles, loads, strict=True)))


def the_sectors_of_a_matrix():
    along_row, down_column = np.full((2, 32, 32), -1)
    for name, matrix in (("row", along_row), ("column", down_column)):
        simt.run(make_one_request(name == "row"), 1, 32, matrix)
    return coalescing({"x[4, tx]: along a row": along_row, "x[tx, 4]: down a column": down_column})


def make_one_request(along_row):
    @cuda.jit
    def one_request(thread):
        tx = cuda.threadIdx.x
        if along_row:
            thread[4, tx] = tx
        else:
            thread[tx, 4] = tx

    return one_request


def bytes_asked_for_and_moved():
    (trace,) = _traces(fa_numba.flash_attn_v2, *_random(3, 1, 48, 1, 20))
    return sectors(trace)


def a_bank_grid():
    requests = {}
    for row in (TILE, TILE + 1):
        x, y = _random(2, TILE, TILE)
        trace = simt.trace(make_transpose(row, True), 1, (TILE, TILE), x, y)
        (load,) = (line for line in trace.lines if (line.array, line.action) == ("tile", "load"))
        words = [address // 4 for address in load.addresses]
        requests[f"tile[tx, ty], rows of {row} floats"] = words, row
    return banks(requests)


def a_race():
    trace = simt.trace(forgets_the_barrier, 1, (TILE, TILE), *_random(2, TILE, TILE))
    return race_diagram(trace.races[0], forgets_the_barrier)


def a_tiled_product():
    turn_a, turn_b = np.full((24, 32), -1), np.full((32, 40), -1)
    mine = np.zeros((24, 40), bool)
    simt.run(tiled_loads, (5, 3), (8, 8), turn_a, turn_b, mine)
    return tiled_product(turn_a, turn_b, mine)


def tiles_that_fit():
    a100 = DEVICES["A100-40GB"]
    budgets = {
        "any GPU, without asking": a100.shared_bytes_default,
        "A100, asking": a100.shared_bytes_per_block,
        "H100, asking": DEVICES["H100"].shared_bytes_per_block,
    }
    return feasible_tiles(budgets, 64, points={"128 × 128": (128, 128)})


def occupancy_against_block_size():
    kernels = {}
    cases = (("flash_attn_v2", _random(3, 1, 32, 1, 64)), ("safe_softmax", _random(1, 2, 256)))
    for name, args in cases:
        (trace,) = _traces(getattr(fa_numba, name), *args)
        registers = _registers(trace)
        threads = int(np.prod(trace.block))
        kernels[name] = analysis.occupancy(threads, registers, trace.shared_bytes, device=DEVICE)
    return occupancy_by_block(kernels)


def _registers(trace):
    """Of a thread, as compiled."""
    try:
        launched = trace.launched
        return analysis.machine_code(launched.kernel, launched.arguments, device=DEVICE).registers
    except RuntimeError as error:  # no compiler, or one that is too old
        raise NotDrawnError(str(error).strip()) from error


def the_order_of_tiles():
    return tile_walk(walks(16, 20, 4, 4))


def flash_attention_as_frames():
    return tile_frames(walks(16, 20, 4, 4), [0, 1, 2, 4, 5, 19])


def m_l_acc_through_the_tiles():
    _, m, l, acc = row_after_each_tile()
    return tile_statistics(m, l, acc)


@cuda.jit
def my_warp(owner):
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    owner[y, x] = (y * cuda.blockDim.x + x) // 32


def keys_or_queries_to_a_warp():
    by_keys, by_queries = np.zeros((16, 8), int), np.zeros((8, 16), int)
    simt.run(my_warp, 1, by_keys.shape[::-1], by_keys)
    simt.run(my_warp, 1, by_queries.shape[::-1], by_queries)
    return warp_partition({"warps own keys": by_keys.T, "warps own queries": by_queries})


def weights_through_the_tiles():
    scores, m, l, _ = row_after_each_tile()
    num_tiles = len(m)
    undivided = np.array([
        [np.exp(scores[j] - m[t]).sum() if j <= t else 0 for j in range(num_tiles)]
        for t in range(num_tiles)
    ])  # fmt: skip
    histories = {
        "FlashAttention-1: out, divided": undivided / l[:, None],
        "FlashAttention-2: acc, not divided": undivided,
    }
    return rescaling(histories, m)


def bytes_by_formula_and_meter():
    batch, N, heads, d = 1, 96, 2, 32
    q, k, v = _random(3, batch, N, heads, d)
    (trace,) = _traces(fa_numba.flash_attn_v2, q, k, v)
    traffic = analysis.traffic.flash_attn_v2(analysis.Problem(batch, N, N, heads, heads, d))
    meter = {name: a.load_bytes + a.store_bytes for name, a in trace.arrays.items()}
    formula = {
        name: 4 * (traffic.loads.get(name, 0) + traffic.stores.get(name, 0)) for name in meter
    }
    return hbm_bytes(formula, meter, title=f"flash_attn_v2: N = {N}, d = {d}, {heads} heads")


def masks_that_are_not_stored():
    options, units = {"dropout_p": 0.3, "seed": 7}, np.eye(32, dtype=np.float32)[None, :, None]
    drawn = {}
    for name, block_m, block_n in (("flash_attn_v1", 4, 16), ("flash_attn_v2", 8, 8)):
        tiles = {"block_m": block_m, "block_n": block_n}
        out, *_ = getattr(fa_numba, name)(units, units, units, **options, **tiles)
        drawn[name] = out[0, :, 0] > 0, block_m, block_n  # P times the unit matrix
    out, lse = fa_numba.flash_attn_v2(units, units, units, **options)
    tiles = {"block_m": 16, "block_n": 8}
    _, _, dv = fa_numba.flash_attn_bwd(units, units, units, units, out, lse, **options, **tiles)
    return dropout_masks({**drawn, "flash_attn_bwd": (dv[0, :, 0].T > 0, 16, 8)})


def a_packed_batch():
    return packed_batch([60, 12, 30, 11, 31], 12, causal=True)


def what_the_backward_pass_computes():
    return backward_flow(seqlen_q=4096, seqlen_k=4096, head_dim=64, block_m=16, block_n=16)


def growth_of_the_cache():
    lengths, (layers, heads, head_dim) = [1024 << i for i in range(8)], (32, 32, 128)
    kinds = {"32 K/V heads, MHA": heads, "8 K/V heads, GQA": 8, "1 K/V head, MQA": 1}
    curves = {
        name: [analysis.kv_cache_bytes(n, layers, num_kv_heads, head_dim) for n in lengths]
        for name, num_kv_heads in kinds.items()
    }
    curves["GQA, window of 4096"] = [
        analysis.kv_cache_bytes(min(n, 4096), layers, 8, head_dim) for n in lengths
    ]
    memory = {DEVICE: round(DEVICES[DEVICE].memory_bytes)}
    return cache_growth(lengths, curves, memory, title="32 layers, 32 query heads of 128, float16")


def a_rolling_cache():
    window, num_sinks, steps = 6, 2, 12
    cache = RollingCache(1, window, 1, 1, num_sinks=num_sinks)
    cache.k_cache[...] = -1
    tokens, pointers = [], []
    for t in range(steps):
        token = np.full((1, 1, 1, 1), t, np.float32)  # whose key is its number
        cache.append(token, token)
        tokens.append(cache.k_cache[0, :, 0, 0].astype(int))
        pointers.append(cache.write_pointer[0])
    return ring_cache(np.array(tokens), np.array(pointers), num_sinks)


def masks_and_their_tiles():
    document = np.repeat([0, 1, 2], [20, 15, 29])
    parents = [-1, 0, 0, 1, 1, 2, *(i // 2 for i in range(6, 24))]
    drawn = {
        "causal": masks.causal,
        "window(12)": masks.window(12),
        "window_and_first(9, 4)": masks.window_and_first(9, 4),
        "dilated(3)": masks.dilated(3),
        "prefix_lm(20)": masks.prefix_lm(20),
        "causal & documents": masks.causal & masks.documents(document),
        "block_causal(16)": masks.block_causal(16),
        "block_diffusion(8, 32)": masks.block_diffusion(8, 32),
        "neighbours_2d(8, 1)": masks.neighbours_2d(8, 1),
        "neighbours_3d(4, 4, 1)": masks.neighbours_3d(4, 4, 1),
        "tree(parents, 40)": masks.tree(parents, 40),
        "causal & ~window(12)": masks.causal & ~masks.window(12),
    }
    return mask_tiles(
        {name: masks.tiles(x, 64, block_m=8, block_n=8, pairs=True) for name, x in drawn.items()}
    )


def heads_that_share_keys(num_heads=8):
    """The values of a K/V head are its number, so that out says which one a query head read."""
    q, read = np.ones((1, 1, num_heads, 1), np.float32), {}
    for name, num_kv_heads in (("MHA", num_heads), ("GQA", 2), ("MQA", 1)):
        v = np.arange(num_kv_heads, dtype=np.float32).reshape(1, 1, -1, 1)
        out, _ = flash_decode(q, np.ones_like(v), v, np.ones(1, np.int32), num_splits=1)
        read[name] = out[0, 0, :, 0].astype(int)
    return head_sharing(read)


def weights_without_the_first_tokens(steps=32, window=12, num_sinks=2):
    """One-hot values, so that out is the weight of each token."""
    q, k = np.zeros((2, 1, steps, 1, steps), np.float32)
    q[..., 0], k[0, :, 0, 0] = np.sqrt(steps), _random(steps)  # the scores of all queries alike
    k[0, :num_sinks, 0, 0] += 4  # the first keys please every query
    v = np.eye(steps, dtype=np.float32)[None, :, None]
    caches = {
        "everything": ContiguousCache(1, steps, 1, steps),
        "the window alone": RollingCache(1, window, 1, steps),
        "sinks and window": RollingCache(1, window, 1, steps, num_sinks=num_sinks),
    }
    weights = {}
    for name, cache in caches.items():
        cache.append(k, v)
        out, _ = flash_decode(q[:, -1:], cache.k_cache, cache.v_cache, cache.seq_lens)
        held = cache.v_cache[0, : cache.seq_lens[0], 0].any(axis=0)
        weights[name] = np.where(held, out[0, 0, 0], np.nan)
    return kept_weights(weights, num_sinks)


def split_into(num_splits, num_n_tiles):
    """Tiles of each split, as flash_decode shares them out."""
    ends = [split * num_n_tiles // num_splits for split in range(num_splits + 1)]
    return np.diff(ends).tolist()


def thread_blocks_on_the_sms():
    grids = {}
    for num_splits in (1, 4, 5):
        grids[f"num_splits = {num_splits}"] = [
            (f"K/V head {kv_head}", tiles)
            for kv_head in range(2)
            for tiles in split_into(num_splits, 20)
        ]
    return split_schedule(grids, num_slots=8)


def the_saw_of_splits(num_n_tiles=128, kv_heads=8, blocks_per_sm=2):
    times, chosen = {}, {}
    for name in ("T4", "H100"):
        num_sms = DEVICES[name].num_sms
        chosen[name] = analysis.choose_num_splits(kv_heads, num_n_tiles, num_sms)
        times[name] = [
            makespan([t + 1 for t in split_into(splits, num_n_tiles)] * kv_heads,
                     num_sms * blocks_per_sm)
            for splits in range(1, num_n_tiles + 1)
        ]  # fmt: skip
    return split_times(times, chosen, title=f"{kv_heads} K/V heads, {num_n_tiles} tiles of keys")


def a_page_table():
    page_size, seq_lens = 4, np.array([10, 8, 13], np.int32)
    pages = iter(np.random.default_rng(0).permutation(12).tolist())
    block_table = np.full((3, 4), -1, np.int32)
    for t in range(0, seq_lens.max(), page_size):  # as they fill up, side by side
        for b in np.flatnonzero(t < seq_lens):
            block_table[b, t // page_size] = next(pages)
    return page_table(block_table, seq_lens, page_size, num_pages=12)


def pages_that_are_shared():
    pool = PagePool(16, 4)
    prompt, _ = pool.allocate(range(10))
    names = ("sample 0", "sample 1", "sample 2")
    seqs = samples(pool, prompt, 3)
    tables, references = {}, {}
    for moment in ("after the prompt", "three tokens later"):
        tables[moment] = {
            name: (pool.pages(seq), pool.length(seq)) for name, seq in zip(names, seqs, strict=True)
        }
        counts = [pool.references(page) for page in range(pool.num_pages)]
        references[moment] = counts.__getitem__
        for token in range(3):
            pool.append({seq: [token] for seq in seqs})
    return shared_pages(tables, references, page_size=4)


def shares_of_the_kv_memory():
    page_size, seq_lens = 16, np.random.default_rng(0).integers(1, 1024, 64)
    tokens, shares = seq_lens.sum(), {}
    for name, held in (("the maximum, 2048", 2048 * len(seq_lens)),
                       ("pages of 16", (-(-seq_lens // page_size) * page_size).sum())):  # fmt: skip
        shares[name] = {"tokens": tokens / held, "never used": 1 - tokens / held}
    return memory_shares(shares, title="KV memory of 64 sequences")


def registers_of_a_product():
    matrices = {
        "A (16 × 16)": layouts.mma_a(),
        "B (16 × 8)": layouts.mma_b(),
        "D (16 × 8)": layouts.mma_d(),
    }
    return fragments(matrices, lanes=(5, 18))


def a_swizzled_tile():
    row, chunk = np.mgrid[:8, :8]
    places = {
        name: layouts.tile_offset(row, 8 * chunk, 8, swizzled=swizzled)
        for name, swizzled in (("row after row", False), ("swizzled", True))
    }
    return chunk_places(places, chunk=2)


def descriptors_of_k_and_v():
    address, block_n, row_bytes = 0x8400, 64, 128

    def of_bytes(number):
        return f"{16 * number:,}"

    fields = {
        "address": (0, 13, lambda number: f"{16 * number:#x}"),
        "leading bytes": (16, 29, of_bytes),
        "stride bytes": (32, 45, of_bytes),
        "base offset": (49, 51, str),
        "swizzle": (62, 63, str),
    }
    words = {
        title: (1 << 62) | (8 * row_bytes >> 4 << 32) | (leading >> 4 << 16) | (address >> 4)
        for title, leading in (
            ("K, rows along the sum", 16),
            ("V, a row for each term", block_n * row_bytes),
        )
    }
    return bit_fields(words, fields)


def products_beside_softmax():
    panels = {}
    for warpgroups, ahead in ((1, False), (1, True), (2, False), (2, True)):
        title = "one warpgroup" if warpgroups == 1 else "two warpgroups"
        title += ", the next S beside this O" if ahead else ", step by step"
        panels[title] = [
            (o.unit, f"{o.name}{o.tile}", f"warpgroup {o.warpgroup}", o.start, o.end)
            for o in overlap(6, 1.0, warpgroups=warpgroups, ahead=ahead)
        ]
    return timelines(panels, unit="time, in products of a tile")


def errors_of_scores_in_fp8(seqlen=1024, d=128):
    q, k = fp8.with_outliers(np.random.default_rng(0), 2, seqlen, d)
    hadamard = np.ones((1, 1))
    while len(hadamard) < d:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    rotation = np.random.default_rng(1).choice([-1, 1], (d, 1)) * hadamard / np.sqrt(d)

    def scores(q, k):
        return q @ k.T / np.sqrt(d)

    quantised = {
        "Q, K as they are": scores(fp8.quantise(q), fp8.quantise(k)),
        "rotated": scores(fp8.quantise(q @ rotation), fp8.quantise(k @ rotation)),
    }
    return score_errors(scores(q, k), quantised)


def recall_of_few_pages():
    """256 keys in 32 pages: all alike, or in eight topics; the query is near to one topic."""
    rng, rows, tables = np.random.default_rng(0), [], (np.arange(32)[None], np.array([256]))
    q, k, v = rng.standard_normal((3, 256, 8), np.float32)
    topics = np.repeat(3 * rng.standard_normal((8, 8), np.float32), 32, axis=0)
    for kind, keys, query in (("alike", k, q[0]), ("in topics", k + topics, topics[0])):
        pages = keys.reshape(32, 8, 1, 8)
        bounds = pages.min(axis=1), pages.max(axis=1)
        cache = pages, v.reshape(pages.shape), *bounds, *(x.astype(np.int32) for x in tables)
        exact, every = fa_numba.topk_decode(query[None, None, None], *cache, 32)
        for top in (1, 2, 4, 8, 16, 32):
            out, lse = fa_numba.topk_decode(query[None, None, None], *cache, top)
            error = np.linalg.norm(out - exact) / np.linalg.norm(exact)
            row = {"keys": kind, "share of pages": top / 32, "error": max(float(error), 1e-7)}
            rows.append(row | {"recall": float(np.exp(lse - every)[0, 0, 0])})
    return recall_by_pages(rows)


def eight_bit_numbers():
    e4m3 = fp8.round_e4m3(np.linspace(0, 32, 1 << 14))
    return number_lines({"e4m3": e4m3, "int8, scaled": np.arange(128) / 4}, upto=32)


def two_orders_of_a_product():
    return two_orders(seqlen=96, feature_dim=24, head_dim=16)


def scores_inside_a_chunk():
    m, n = np.indices((24, 24))
    return chunked_weights(n <= m, (n <= m) & (m // 8 == n // 8))


def _text_head(seqlen=48, d=16):
    """Queries look for the byte that they are, among keys that tell which byte was before them."""
    text = b"to be or not to be, that is the question: whether"[:seqlen]
    x = 1.5 * np.random.default_rng(0).standard_normal((256, d))[np.frombuffer(text, np.uint8)]
    return x, np.roll(x, 1, axis=0)


def _weights_of(q, k, feature_map):
    """Causal attention weights of a head: of softmax, or of a feature map."""
    if feature_map == "softmax":
        a = np.exp(q @ k.T / np.sqrt(q.shape[1]))
    else:
        q, k = (reference.feature_map(x[None, :, None], feature_map)[0, :, 0] for x in (q, k))
        a = q @ k.T
    a = np.tril(a)
    return a / np.maximum(a.sum(axis=1, keepdims=True), 1e-30)


KINDS = "softmax", "elu1", "relu", "taylor2"


def maps_of_weights():
    q, k = _text_head()
    return weight_maps({kind: _weights_of(q, k, kind) for kind in KINDS})


def weights_of_one_query():
    q, k = _text_head()
    rows = {kind: _weights_of(q, k, kind)[-1] for kind in KINDS}
    return weight_against_score(q[-1] @ k.T / np.sqrt(q.shape[1]), rows)


def a_map_learns(steps=200, step_size=0.3):
    """Gradient descent on e^(xW) for queries and keys, towards the weights of softmax."""
    q, k = _text_head()
    p = _weights_of(q, k, "softmax")
    w_q, w_k = 0.3 * np.random.default_rng(1).standard_normal((2, q.shape[1], 32))
    floor = -np.sum(p * np.log(np.where(p > 0, p, 1))) / len(p)
    losses = []
    for _ in range(steps):
        phi_q, phi_k = np.exp(q @ w_q), np.exp(k @ w_k)
        a = phi_q @ phi_k.T
        weights = np.tril(a) / np.tril(a).sum(axis=1, keepdims=True)
        da = np.tril((weights - p) / a) / len(p)
        losses.append(-np.sum(p * np.log(np.where(p > 0, weights, 1))) / len(p) - floor)
        w_q -= step_size * q.T @ (da @ phi_k * phi_q)
        w_k -= step_size * k.T @ (da.T @ phi_q * phi_k)
    even = np.log(np.arange(1, len(p) + 1)).mean() - floor
    return loss_curve(losses, {"even weights": even}, label="cross-entropy − entropy", window=5)


def an_attention_map():
    text = b"to be or not to be, that is the question"
    q = np.random.default_rng(0).standard_normal((256, 1, 32), dtype=np.float32)
    q = q[np.frombuffer(text, np.uint8)][None]
    _, lse = fa_numba.flash_attn_v2(q, q, q, causal=True)
    scores = q[0, :, 0] @ q[0, :, 0].T / np.sqrt(32)
    return attention_map(np.tril(np.exp(scores - lse[0, 0, :, None])), text)


def bytes_of_a_ring_and_a_tree(seqlen=64, heads=4, d=16, world_size=4):
    q, k, v = _random(3, 1, seqlen, heads, d)
    problem = ranks.Problem(seqlen, world_size, heads, heads, d, itemsize=4)
    parts = [shard(x, "zigzag", world_size) for x in (q, k, v)]
    ring = run_ranks(ring_attn, world_size, *parts, causal=True, attn=numpy_attn)
    queries = [q[:, -1:]] * world_size
    tree = run_ranks(tree_decode, world_size, queries, *parts[1:], layout="zigzag", attn=numpy_attn)
    return step_bytes({
        "ring": (ring.bytes_sent[0], ranks.ring_bytes(problem)[0]),
        "tree": (tree.bytes_sent[0], ranks.tree_bytes(problem)[:1]),
    })  # fmt: skip


EXAMPLES = (
    a_thread_grid, a_divergent_warp, a_memory_hierarchy, a_roofline, a_layer_and_its_limits,
    every_kernel_on_the_roofline, the_range_of_exp, a_tree_reduction, passes_over_a_row,
    online_softmax_along_a_row, traffic_against_length, an_attention_intensity,
    who_reads_which_address, the_sectors_of_a_matrix, bytes_asked_for_and_moved, a_bank_grid,
    a_race, a_tiled_product, tiles_that_fit, occupancy_against_block_size, the_order_of_tiles,
    flash_attention_as_frames, m_l_acc_through_the_tiles, weights_through_the_tiles,
    keys_or_queries_to_a_warp, bytes_by_formula_and_meter, masks_that_are_not_stored,
    a_packed_batch, what_the_backward_pass_computes, growth_of_the_cache, a_rolling_cache,
    masks_and_their_tiles, heads_that_share_keys, weights_without_the_first_tokens,
    thread_blocks_on_the_sms, the_saw_of_splits, a_page_table, pages_that_are_shared,
    shares_of_the_kv_memory, registers_of_a_product, a_swizzled_tile, descriptors_of_k_and_v,
    products_beside_softmax, recall_of_few_pages, eight_bit_numbers, errors_of_scores_in_fp8,
    two_orders_of_a_product, scores_inside_a_chunk, maps_of_weights, weights_of_one_query,
    a_map_learns, bytes_of_a_ring_and_a_tree, an_attention_map,
)  # fmt: skip
