"""Are the explanations of the lessons right? One experiment for each, on one GPU.

An experiment changes the one thing that an explanation names. Before it measures, two numbers are
stated: a ratio that the explanation predicts, and the ratio if the explanation is wrong. What is
measured lies somewhere between them. Results are compared with the expected ones before any time
is taken.
"""

import traceback
from functools import partial
from typing import NamedTuple

import cupy
import numpy as np
from numba import int64, uint32, uint64

import fa_numba
from benchmarks.bench_paged import BATCH, HEAD_DIM, NUM_KV_HEADS, SEQLEN, WARPS, make_scores
from benchmarks.bench_tensor_core_masks import lengths_of_sequences, seen
from benchmarks.exact import ROUNDING, definition, random_tensors, relative_error
from benchmarks.explanation_kernels import (
    changed,
    make_busy_copy,
    make_copy,
    make_copy_of_rows,
    make_move,
)
from benchmarks.timing import save_each, time_ms
from fa_numba.kernels import flash_attn_v2 as v2
from fa_numba.kernels import safe_softmax as safe
from fa_numba.kernels.online_softmax import make_online_softmax
from fa_numba.on_cuda_cores import flash_attn_registers as registers
from fa_numba.on_cuda_cores.flash_attn_v2_4x4 import make_flash_attn_v2_4x4
from fa_numba.on_cuda_cores.flash_attn_v2_unsigned import make_flash_attn_v2_unsigned
from fa_numba.runtime.arrays import launch
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent
from fa_numba.tensor_core.flash_attn_persistent_varlen import flash_attn_persistent_varlen
from fa_numba.tensor_core.flash_attn_split import flash_attn_split
from fa_numba.workbook.recorded import recorded_rows

RNG = cupy.random.default_rng(0)
MOST = 2 / 3  # of the way from "otherwise" to "predicted": then the explanation holds


class Finding(NamedTuple):
    """A measured ratio, beside those that the explanation and its absence predict."""

    of: str
    otherwise: float
    predicted: float
    measured: float

    @property
    def verdict(self):
        share = (self.measured - self.otherwise) / (self.predicted - self.otherwise)
        if share >= MOST:
            return "holds"
        return "explains a part" if share >= 1 - MOST else "does not hold"


def main():
    failed = []

    def tried(experiment):
        try:
            return rows_of(experiment)
        except Exception:  # the other experiments are worth having
            traceback.print_exc()
            failed.append(experiment.__name__)
            return []

    save_each(
        "explanations",
        {x.__name__: partial(tried, x) for x in EXPERIMENTS},
        note="otherwise, predicted: the ratio if the explanation is wrong, and if it is right; "
        "it holds from two thirds of the way, explains a part from one third",
    )
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def rows_of(experiment):
    """Return a row for each variant of an experiment, and one for its finding."""
    lesson, question = experiment.__doc__.split(": ", 1)
    name = {"experiment": experiment.__name__}
    times, finding = experiment()
    first = next(iter(times.values()))
    rows = []
    for variant, ms in times.items():
        ratio = round(ms / first, 3)
        rows.append(name | {"variant": variant, "ms": round(ms, 4), "of the first": ratio})
    stated = {key: round(float(x), 3) for key, x in finding._asdict().items() if key != "of"}
    about = {"lesson": lesson, "question": question, "ratio": finding.of}
    rows.append(name | about | stated | {"verdict": finding.verdict})
    cupy.get_default_memory_pool().free_all_blocks()
    return rows


def normal(*shape):
    """Numbers of an array of this shape, other ones in each call."""
    return RNG.standard_normal(shape, dtype=np.float32)


def timed(call, output, expected, tolerance=0.0, repeats=10):
    """Milliseconds of a call, after its output was compared with the expected one."""
    output.fill(np.nan)
    call()
    error = abs(output - expected).max()
    assert bool(error <= tolerance), f"error {error}"
    return time_ms(call, repeats=repeats)


def timed_attention(call, expected, tolerance=1e-4, repeats=4):
    """The same for a function that returns out first; the last head is compared."""
    out = call()[0]
    error = abs(out[-1, :, -1] - expected).max()
    assert bool(error <= tolerance), f"error {error}"
    return time_ms(call, repeats=repeats)


def one_head(q, k, v, score=lambda s: s):
    """Attention of the last head by matrix products, in float64."""
    q, k, v = (x[-1, :, -1].astype(np.float64) for x in (q, k, v))
    return softmax(score(q @ k.T / q.shape[1] ** 0.5)) @ v


def softmax(s):
    p = cupy.exp(s - s.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def copies(side=8192):
    """01: does our copy wait for the arithmetic of its indices and bounds?"""
    x = normal(side, side)
    y = cupy.empty_like(x)
    grid, block = (side // 32, side // 8), (32, 8)
    times = {"CuPy's copy": timed(lambda: cupy.copyto(y, x), y, x)}
    for name, options in {
        "signed indices, bounds": (True, int64),
        "signed indices": (False, int64),
        "unsigned indices": (False, uint64),
    }.items():
        kernel = make_copy(*options)
        times[name] = timed(lambda kernel=kernel: launch(kernel, grid, block, x, y), y, x)
    for rows in (2, 4, 8):
        kernel, few = make_copy_of_rows(rows), (side // 32, side // 8 // rows)
        times[f"unsigned, {rows} loads in flight"] = timed(
            lambda kernel=kernel, few=few: launch(kernel, few, block, x, y), y, x
        )
    of_cupy = {name: ms / times["CuPy's copy"] for name, ms in times.items()}
    ours, plain = of_cupy["signed indices, bounds"], of_cupy["unsigned indices"]
    return times, Finding("time of CuPy's, without that arithmetic", ours, 1, plain)


def loads_of_softmax(rows=8192, columns=8192):
    """02: does safe softmax wait because each load of a thread waits for the one before?"""
    several = changed(safe, FOUR_AT_ONCE)
    x = normal(rows, columns)
    y, expected = cupy.empty_like(x), softmax(x)
    times = {"copy": timed(lambda: cupy.copyto(y, x), y, x)}
    for name, module in {"a load at a time": safe, "four loads at a time": several}.items():
        kernel = module.make_safe_softmax(safe.THREADS)
        call = lambda kernel=kernel: launch(kernel, (rows,), (safe.THREADS,), x, y)  # noqa: E731
        times[name] = timed(call, y, expected, 1e-6)
    one, four = times["a load at a time"], times["four loads at a time"]
    twice = 2 * times["copy"] / one  # four accesses where the copy has two
    return times, Finding("time of four loads over one", 1, twice, four / one)


FOUR_AT_ONCE = {
    """        for col in range(tid, num_cols, THREADS):
            row_max = max(row_max, float32(x[row, col]))
""": """        for col in range(tid, num_cols, 4 * THREADS):
            x0, x1 = float32(x[row, col]), float32(x[row, col + THREADS])
            x2, x3 = float32(x[row, col + 2 * THREADS]), float32(x[row, col + 3 * THREADS])
            row_max = max(max(row_max, max(x0, x1)), max(x2, x3))
""",
    """        for col in range(tid, num_cols, THREADS):
            row_sum += math.exp(float32(x[row, col]) - row_max)
""": """        for col in range(tid, num_cols, 4 * THREADS):
            x0, x1 = float32(x[row, col]), float32(x[row, col + THREADS])
            x2, x3 = float32(x[row, col + 2 * THREADS]), float32(x[row, col + 3 * THREADS])
            row_sum += math.exp(x0 - row_max) + math.exp(x1 - row_max)
            row_sum += math.exp(x2 - row_max) + math.exp(x3 - row_max)
""",
    """        for col in range(tid, num_cols, THREADS):  # y_j = e^(x_j - m) / d       lines 9-11
            y[row, col] = math.exp(float32(x[row, col]) - row_max) / row_sum
""": """        for col in range(tid, num_cols, 4 * THREADS):
            x0, x1 = float32(x[row, col]), float32(x[row, col + THREADS])
            x2, x3 = float32(x[row, col + 2 * THREADS]), float32(x[row, col + 3 * THREADS])
            y[row, col] = math.exp(x0 - row_max) / row_sum
            y[row, col + THREADS] = math.exp(x1 - row_max) / row_sum
            y[row, col + 2 * THREADS] = math.exp(x2 - row_max) / row_sum
            y[row, col + 3 * THREADS] = math.exp(x3 - row_max) / row_sum
""",
}


def rows_at_sectors(rows=4096, widths=(32768, 32760, 32767, 50256, 50257)):
    """03: does online softmax win less where rows do not begin at a sector?"""
    times, gains = {}, []
    for columns in widths:
        x = normal(rows, columns)
        y, expected = cupy.empty_like(x), softmax(x)
        for name, make in (("safe", safe.make_safe_softmax), ("online", make_online_softmax)):
            call = lambda make=make, x=x, y=y: launch(  # noqa: E731
                make(safe.THREADS), (rows,), (safe.THREADS,), x, y
            )
            times[f"{name}, {columns:,} columns"] = ms = timed(call, y, expected, 1e-6)
        gains.append(times[f"safe, {columns:,} columns"] / ms)
    power, _, _, aligned, odd = gains
    return times, Finding("safe over online, a column less than 50,257", odd, power, aligned)


def blocks_per_sm(seqlen=2048, sms=132):
    """07: is the remaining factor of two that an SM with one thread block waits at barriers?"""
    times, over = {}, {}
    for blocks in (1, 2):  # of flash_attn_v1 per SM: a thread block has a head
        q, k, v = (normal(1, seqlen, blocks * sms, 64) for _ in range(3))
        expected = one_head(q, k, v)
        for function in (fa_numba.flash_attn_v1, fa_numba.flash_attn_v2):
            name = f"{function.__name__}, heads per SM: {blocks}"
            times[name] = timed_attention(lambda f=function: f(q, k, v), expected, repeats=2)  # noqa: B023
        over[blocks] = times[f"flash_attn_v1, heads per SM: {blocks}"] / times[name]
    return times, Finding("v1 over v2, two heads per SM", over[1], 1, over[2])


def running_maximum(seqlen=4096, heads=16):
    """08: is the forward pass slow for its products because of its maximum and barriers?"""
    fixed = {"m_new = m_i  #": "m_new = float32(0.0)  #"}
    fixed |= {"m_new = max(m_new, s_tile[ty, c])": "pass"}
    barrier = "cuda.syncthreads()  # s_tile is complete: each thread reads its whole row"
    variants = {
        "flash_attn_v2": v2,
        "no running maximum": changed(v2, fixed),
        "nor a barrier for it": changed(v2, fixed | {barrier: ""}),
    }
    q, k, v, dout = (normal(1, seqlen, heads, 64) for _ in range(4))
    expected = one_head(q, k, v)
    times = {
        name: timed_attention(lambda m=module: m.flash_attn_v2(q, k, v), expected)
        for name, module in variants.items()
    }
    out, lse = fa_numba.flash_attn_v2(q, k, v)
    p = softmax((q[-1, :, -1] @ k[-1, :, -1].T).astype(np.float64) / 8)
    back = lambda: fa_numba.flash_attn_bwd(dout, q, k, v, out, lse)[::-1]  # noqa: E731  dv first
    times["backward"] = timed_attention(back, p.T @ dout[-1, :, -1])
    back, forward = times["backward"], list(times.values())
    now, without = back / forward[0], back / forward[2]
    return times, Finding("backward over forward", now, 3.5, without)


def few_tiles(seqlen=8192, heads=16, share=0.1):
    """09: does a tenth of the tiles take an eighth because all of K and V are loaded?"""
    q, k, v = (normal(1, seqlen, heads, 64) for _ in range(3))
    tiles = seqlen // 16
    rng = np.random.default_rng(0)
    masks = {
        "all tiles": np.ones((tiles, tiles), bool),
        "a tenth, drawn": rng.random((tiles, tiles)) < share,
        "a tenth, whole columns": np.broadcast_to(rng.random(tiles) < share, (tiles, tiles)).copy(),
        "none": np.zeros((tiles, tiles), bool),
    }
    times = {}
    for name, mask in masks.items():
        mask, unseen = cupy.asarray(mask), cupy.asarray(~np.kron(mask, np.ones((16, 16), bool)))
        score = lambda s, unseen=unseen: cupy.where(unseen, -1e30, s)  # noqa: E731
        expected = one_head(q, k, v, score) if name != "none" else 0
        call = lambda mask=mask: fa_numba.flash_attn_v1(q, k, v, block_mask=mask)  # noqa: E731
        times[name] = timed_attention(call, expected, repeats=2)
    full = times["all tiles"] / masks["all tiles"].sum()
    per_tile = {n: times[n] / masks[n].sum() / full for n in masks if n != "none"}
    drawn, columns = per_tile["a tenth, drawn"], per_tile["a tenth, whole columns"]
    return times, Finding("time per tile, whole columns", drawn, 1, columns)


def hidden_softcap(seqlen=4096, heads=16):
    """09: does softcap cost nothing because its arithmetic hides behind loads and addresses?"""
    plain, text = "score(s * softmax_scale, position - n, slope)", "s * softmax_scale"
    q, k, v = (normal(1, seqlen, heads, 64) for _ in range(3))
    times = {}
    for count in (0, 1, 4, 8):
        repeated = text
        for _ in range(count):
            repeated = f"score({repeated}, position - n, slope)"
        module = changed(v2, {plain: repeated}) if count else v2

        def capped(s, count=count):
            for _ in range(count):
                s = 30 * cupy.tanh(s / 30)
            return s

        options = {"softcap": 30.0} if count else {}
        call = lambda m=module, o=options: m.flash_attn_v2(q, k, v, **o)  # noqa: E731
        times[f"softcaps: {count}"] = timed_attention(call, one_head(q, k, v, capped))
    none, one, _, eight = times.values()
    later = (eight - one) / 7 / none
    return times, Finding("time with one softcap over none", 1 + later, 1, one / none)


def fixed_cost(seqlen=8192, head_dim=128, tokens=16384, width=2048):
    """09: is a window of 512 slow because each tile of queries has a fixed cost?"""
    q, k, v = random_tensors(3, (tokens // seqlen, seqlen, width // head_dim, head_dim))
    call = lambda k, v, **mask: flash_attn_persistent(q, k, v, **mask)  # noqa: E731
    masks = {"causal": {"causal": True}, "window of 512": {"window_size": (511, 0)}}
    times = {}
    for name, mask in masks.items():
        error = relative_error(call(k, v, **mask)[0], definition(q, k, v, **mask))
        assert error <= 2 * ROUNDING["float16"], f"{name}: {error}"
        times[name] = time_ms(call, k, v, **mask)
    counts = np.array([2, 4, 8, 16, 32])
    for count in counts:
        few = [x[:, : 128 * count].contiguous() for x in (k, v)]
        times[f"{count} tiles of keys"] = time_ms(call, *few)
    slope, start = np.polyfit(counts, [times[f"{n} tiles of keys"] for n in counts], 1)
    print(f"a tile of queries: {start / slope:.2f} tiles of keys")
    rates = {n: int(seen(seqlen, **mask).sum()) / times[n] for n, mask in masks.items()}
    all_tiles = seqlen // 128
    # Of causal: (T + 1) / 2 tiles of keys for a tile of queries; of the window: five.
    tiles = {"causal": (all_tiles + 1) / 2, "window of 512": 5}
    pairs = {n: int(seen(seqlen, **mask).sum()) for n, mask in masks.items()}

    def ratio(start):
        rate = {n: pairs[n] / (start + slope * tiles[n]) for n in masks}
        return rate["window of 512"] / rate["causal"]

    measured = rates["window of 512"] / rates["causal"]
    return times, Finding("rate of the window over causal", ratio(0), ratio(start), measured)


def packed_lengths(head_dim=128, width=2048):
    """10: do random lengths cost 2 % because their last tiles are partly empty?"""
    import torch

    named = {name.split(", ")[1]: x for name, x in lengths_of_sequences().items()}
    ends = np.cumsum(named["random lengths"])
    named["random, multiples of 128"] = np.diff(np.round(ends / 128) * 128, prepend=0).astype(int)
    named["the same, longest first"] = np.sort(named["random, multiples of 128"])[::-1]
    q, k, v = random_tensors(3, (int(ends[-1]), width // head_dim, head_dim))
    times, rates = {}, {}
    for name, lengths in named.items():
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        cu_seqlens = [torch.as_tensor(starts, device="cuda")] * 2
        call = lambda c=cu_seqlens: flash_attn_persistent_varlen(q, k, v, *c)  # noqa: E731
        parts = [slice(*starts[b : b + 2]) for b in range(len(lengths))]
        want = torch.cat([definition(*(x[None, part] for x in (q, k, v)))[0] for part in parts])
        error = relative_error(call()[0], want)
        assert error <= 2 * ROUNDING["float16"], f"{name}: {error}"
        times[name] = time_ms(call)
        rates[name] = int((lengths.astype(np.int64) ** 2).sum()) / times[name]
    equal, drawn, rounded, _ = rates.values()
    return times, Finding("rate over equal lengths, full tiles", drawn / equal, 1, rounded / equal)


def warps_of_unsigned(seqlen=8192, heads=16):
    """11: is flash_attn_v2_unsigned slow because too few warps hide the latency?"""
    kernel = make_flash_attn_v2_unsigned(64, 16, 16, False)
    seed = np.uint64(0)
    times = by_warps(kernel, 16, seqlen, heads, {1: 150_000, 2: 90_000, 3: 0}, seed)
    _, two, three = times.values()
    return times, Finding("rate of 24 warps over 16", 1, 1.5, two / three)


def warps_of_4x4(seqlen=8192, heads=32):
    """11: is flash_attn_v2_4x4 slow at head_dim 128 because an SM holds 8 warps, not 24?"""
    kernel = make_flash_attn_v2_4x4(64, False)
    times = by_warps(kernel, 64, seqlen, heads, {3: 0, 2: 60_000, 1: 100_000})
    q, k, v = (normal(1, seqlen, heads // 2 or 1, 128) for _ in range(3))
    call = lambda: fa_numba.flash_attn_v2_4x4(q, k, v)  # noqa: E731
    times["head_dim 128"] = timed_attention(call, one_head(q, k, v))
    most, _, fewest, wide = times.values()
    return times, Finding("rate of 8 warps over 24", 1, most / wide, most / fewest)


def by_warps(kernel, block_m, seqlen, heads, more, *options):
    """Times of a kernel by thread blocks per SM; `more` shared memory keeps the others out."""
    q, k, v = (normal(1, seqlen, heads, 64) for _ in range(3))
    out, lse = cupy.empty_like(q), cupy.empty((1, heads, seqlen), np.float32)
    grid, block = (seqlen // block_m, heads, 1), (16, 16)
    arguments = q, k, v, out, lse, np.float32(1 / 8), np.float32(0), *options
    times, expected = {}, one_head(q, k, v)
    for blocks, shared_bytes in more.items():

        def call(shared_bytes=shared_bytes):
            launch(kernel, grid, block, *arguments, shared_bytes=shared_bytes)
            return (out,)

        out.fill(np.nan)
        times[f"{8 * blocks} warps per SM"] = timed_attention(call, expected)
    return times


def waves_of_4x4(seqlen_k=8192, blocks=(396, 512, 792, 3168)):
    """11: was flash_attn_v2_4x4 slow on four heads because 512 thread blocks are 1.3 waves?"""
    times, rates = {}, []  # 396 thread blocks are resident at a time on 132 SMs
    for count in blocks:
        heads = 32 if count == blocks[-1] else 4
        q = normal(1, 64 * count // heads, heads, 64)
        k, v = (normal(1, seqlen_k, heads, 64) for _ in range(2))
        call = lambda q=q, k=k, v=v: fa_numba.flash_attn_v2_4x4(q, k, v)  # noqa: E731
        times[f"{count} thread blocks"] = ms = timed_attention(call, one_head(q, k, v))
        rates.append(count / ms)
    two_waves = blocks[1] / blocks[2]
    return times, Finding("rate of 512 over 792 blocks", 1, two_waves, rates[1] / rates[2])


def copies_of_registers(seqlen=8192, heads=16):
    """11: is flash_attn_registers slow at head_dim 128 because it copies, then multiplies?"""
    load = "load_{}(tiles, {}_TILE, {}, b, n_start, kv_head, seqlen_k, ONE)"
    loads = [load.format(x, x.upper(), x) for x in "kv"]
    once = {text: f"if n_start == n_first:\n                {text}" for text in loads}
    times, saved = {}, {}
    for head_dim, num_heads in ((64, 2 * heads), (128, heads)):
        # Without queries all scores are 0, whatever a tile of K holds; P overwrites it. And all
        # rows of V are equal: one tile of it is as good as another.
        q = cupy.zeros((2, seqlen, num_heads, head_dim), np.float32)
        k = normal(*q.shape)
        v = cupy.zeros_like(q) + normal(head_dim)
        expected = one_head(q, k, v)
        for name, module in {"copies": registers, "no copies": changed(registers, once)}.items():
            call = lambda m=module: m.flash_attn_registers(q, k, v)  # noqa: B023, E731
            times[f"{name}, head_dim {head_dim}"] = timed_attention(call, expected, repeats=3)
        first, second = list(times.values())[-2:]
        saved[head_dim] = second / first
    rate = {
        row["step"]: row["TFLOP/s"]
        for row in recorded_rows("ladder")
        if (row["head_dim"], row["seqlen"], row["causal"]) == (128, 8192, False)
    }
    library = rate["flash_attn_registers"] / rate["SDPA memory-efficient"]
    return times, Finding("time without copies, head_dim 128", saved[64], library, saved[128])


def transpositions(side=8192):
    """15: is a transposition slower than a copy because its thread blocks wait at barriers?"""
    x = normal(side, side)
    y = cupy.empty_like(x)
    grid, block = (side // 32, side // 32), (32, 8)
    times = {}
    for name, options in {
        "copy by tiles, no barrier": (False, False, False),
        "copy through a tile, barrier": (False, True, False),
        "copy through a tile, barrier, four loads at a time": (False, True, True),
        "transposition": (True, True, False),
        "transposition, four loads at a time": (True, True, True),
    }.items():
        kernel, expected = make_move(*options), x.T if options[0] else x
        times[name] = timed(lambda kernel=kernel: launch(kernel, grid, block, x, y), y, expected)
    times["CuPy's copy"] = timed(lambda: cupy.copyto(y, x), y, x)
    direct, barrier, _, transposed, *_ = times.values()
    return times, Finding(
        "copy with a barrier over without", 1, transposed / direct, barrier / direct
    )


def page_arithmetic():
    """18: do keys in pages cost the scores a quarter because of the division by page_size?"""
    k, q = normal(BATCH, SEQLEN, NUM_KV_HEADS, HEAD_DIM), normal(BATCH, NUM_KV_HEADS, HEAD_DIM)
    s = cupy.empty((BATCH, NUM_KV_HEADS, SEQLEN), np.float32)
    grid, block = (SEQLEN // WARPS, NUM_KV_HEADS, BATCH), (32, WARPS)
    launch(make_scores(False), grid, block, q, k, cupy.zeros((1, 1), np.int32), s)
    expected = s.copy()
    wanted = cupy.einsum("hd,thd->ht", q[-1].astype(np.float64), k[-1].astype(np.float64))
    assert bool(abs(s[-1] - wanted).max() < 1e-3)
    times = {}
    for name, page_size, options in (
        ("dense keys", SEQLEN, (False,)),
        ("page_size at run time, 64 bits", 16, (True,)),
        ("page_size at run time, 32 bits", 16, (True, None, uint32)),
        ("page_size 16 at compile time", 16, (True, 16)),
        ("page_size 12 at compile time", 12, (True, 12)),
        ("page_size 1 at compile time", 1, (True, 1)),
    ):
        pages = -(-SEQLEN // page_size)
        order = np.random.default_rng(0).permutation(BATCH * pages)
        padded = cupy.zeros((BATCH, pages * page_size, NUM_KV_HEADS, HEAD_DIM), np.float32)
        padded[:, :SEQLEN] = k
        keys = k
        if options[0]:
            keys = cupy.empty((BATCH * pages, page_size, *k.shape[2:]), np.float32)
            keys[cupy.asarray(order)] = padded.reshape(keys.shape)
        table = cupy.asarray(order.reshape(BATCH, pages).astype(np.int32))
        kernel = make_scores(*options)
        times[name] = timed(
            lambda kernel=kernel, keys=keys, table=table: launch(
                kernel, grid, block, q, keys, table, s
            ),
            s, expected, 1e-4,
        )  # fmt: skip
        del padded, keys
    dense, run_time, _, compiled, *_ = times.values()
    return times, Finding("pages over dense, compiled", run_time / dense, 1, compiled / dense)


def busy_sms(seqlen=16384, head_dim=128, heads=16, sms_of_link=16, passes=100):
    """21: does a persistent kernel lose most where other thread blocks hold some of the SMs?"""
    import torch

    q, k, v = random_tensors(3, (1, seqlen, heads, head_dim))
    want = definition(q, k, v)
    x = normal(1 << 20)
    y = cupy.empty_like(x)
    link, compute = torch.cuda.Stream(), torch.cuda.Stream()
    kernel, times = make_busy_copy(passes), {}
    # As much shared memory as keeps other thread blocks away, as NCCL's own does.
    copy = lambda: launch(kernel, (sms_of_link,), (512,), x, y, shared_bytes=120_000)  # noqa: E731
    for function in (flash_attn_persistent, flash_attn_split):
        error = relative_error(function(q, k, v)[0], want)
        assert error <= 2 * ROUNDING["float16"], f"{function.__name__}: {error}"
        call = lambda f=function: f(q, k, v)  # noqa: E731
        for when in ("alone", "copy first", "copy after"):
            samples = []
            for _ in range(7):
                start, end, end_of_copy = (torch.cuda.Event(enable_timing=True) for _ in range(3))
                torch.cuda.synchronize()
                with torch.cuda.stream(link), cupy.cuda.ExternalStream(link.cuda_stream):
                    if when == "copy first":
                        copy()
                with torch.cuda.stream(compute):
                    torch.cuda._sleep(400_000)  # until the copy runs, and the launch is enqueued
                    start.record()
                    call()
                    end.record()
                with torch.cuda.stream(link), cupy.cuda.ExternalStream(link.cuda_stream):
                    if when == "copy after":
                        torch.cuda._sleep(600_000)
                        copy()
                    end_of_copy.record()
                torch.cuda.synchronize()
                samples.append((start.elapsed_time(end), start.elapsed_time(end_of_copy)))
            ms, until = np.median(samples, axis=0)
            times[f"{function.__name__}, {when}"] = float(ms)
            if when != "alone":
                times[f"{function.__name__}, {when}: the copy ends after"] = float(until)
    assert bool((y == x).all())
    persistent, split = (
        times[f"{name}, copy first"] / times[f"{name}, alone"]
        for name in ("flash_attn_persistent", "flash_attn_split")
    )
    return times, Finding("persistent, beside a copy over alone", split, 2, persistent)


EXPERIMENTS = (
    page_arithmetic, transpositions, copies, rows_at_sectors, loads_of_softmax, waves_of_4x4,
    warps_of_unsigned, warps_of_4x4, copies_of_registers, running_maximum, hidden_softcap,
    blocks_per_sm, fixed_cost, packed_lengths, busy_sms, few_tiles,
)  # fmt: skip

if __name__ == "__main__":
    main()
