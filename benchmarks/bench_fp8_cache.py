"""What does a KV cache of e4m3 bring in decoding, and what does it cost?

Times: flash_decode_gather with caches of float16 and of e4m3, contiguous and paged, in one run;
outputs are compared with float64 of the numbers in the cache first. Errors, in NumPy: attention to
keys and values that were rounded, against those that were not, for each way to choose scales.

    python -m benchmarks.bench_fp8_cache --rings    prints times with other rings, and records none
"""

import itertools
import sys
from functools import partial

import numpy as np
import torch

from benchmarks import bench_decode_fast as decode
from benchmarks.exact import definition, relative_error
from benchmarks.timing import save_each, time_graph
from fa_numba import reference
from fa_numba.kernels import e4m3
from fa_numba.kv_cache import reshape_and_cache
from fa_numba.tensor_core import flash_decode_gather as gather
from fa_numba.tensor_core.flash_decode_gather import flash_decode_gather

# Sequences, tokens of each, heads of the query, of K and V.
SIZES = ((64, 8192, 32, 8), (16, 8192, 32, 8), (16, 8192, 32, 32), (1, 65_536, 32, 8))
PAGE_SIZE = 16
# Of `--rings`: LEAN, warps and stages. ROOM: keys that a contiguous cache has room for besides, so
# that sequences do not begin at multiples of 8 MiB.
RINGS = (False, (8, 5)), (True, (8, 5)), (True, (12, 3)), (False, (12, 3)), (True, (12, 4))
ROOM = 0, 48
KEYS, QUERIES, NUM_HEADS, HEAD_DIM = 4096, 16, 4, decode.HEAD_DIM  # of the errors
# Four channels of K are larger by these factors: √20 is 20 times the variance.
CHANNELS = {"4 channels of K × √20": 20**0.5, "4 channels of K × 20": 20}
TOKENS = "every 500th token × 10"
DATA = "normal", *CHANNELS, TOKENS
MOST = 2.0**-9  # error of out against the numbers in the cache
NOTE = (
    f"one query of each sequence, head_dim {HEAD_DIM}, flash_decode_gather; scales of "
    "e4m3: one for each head, or for each token and head; a call in a CUDA graph of "
    f"{decode.CALLS}; GB/s counts K, V and scales once; faster: time of float16 over this, the "
    f"keys lying alike. Errors: ‖out − exact‖ / ‖exact‖ in float64, {KEYS} keys, {NUM_HEADS} "
    f"heads of {HEAD_DIM}, K and V rounded"
)


def main():
    parts = {"{} × {}, {}/{}".format(*size): partial(times, *size) for size in SIZES}
    save_each("fp8_cache", parts | {"errors": errors}, note=NOTE)


def time_rings():
    for size, (lean, ring), room in itertools.product(SIZES, RINGS, ROOM):
        gather.LEAN_BYTES, gather.RINGS_OF_BYTES[1] = lean, ring
        flash_decode_gather.replays.clear()
        for row in times(*size, room):
            names = "cache", "page_size", "ms", "GB/s", "faster"
            if not (room and row["page_size"]):
                print(size, f"{lean=} {ring=} {room=}", *(row[x] for x in names), flush=True)


def times(batch, seqlen, num_heads, num_kv_heads, room=0):
    """Rows for one size: each dtype and kind of scales, contiguous and in pages."""
    torch.manual_seed(0)
    q = torch.randn(batch, 1, num_heads, HEAD_DIM, device="cuda").half()
    shape = (batch, seqlen, num_kv_heads, HEAD_DIM)
    k, v = (torch.empty(shape, device="cuda", dtype=q.dtype).normal_() for _ in range(2))
    lengths = torch.full((batch,), seqlen, dtype=torch.int32, device="cuda")
    rows, float16_ms, unchecked = [], {}, []
    for form in ("float16", "head", "token"):
        caches, scales = cached(k, v, form)
        moved = sum(x.nbytes for x in (*caches, *scales.values()))
        outs = {}
        for page_size in (None, PAGE_SIZE):
            arrays, options, table = [with_room(x, room) for x in caches], scales, None
            if page_size:
                (*arrays, table), options = in_pages(caches, scales, page_size)
            elif form == "token":
                options = {name: with_room(x, room) for name, x in scales.items()}

            options = {"block_table": table, **options}

            def call(arrays=arrays, options=options):
                return flash_decode_gather(q, *arrays, lengths, **options)[0]

            ms, outs[page_size] = time_graph(call, decode.CALLS), call()
            float16_ms.setdefault(page_size, ms)
            rows.append(
                {
                    "cache": "float16" if form == "float16" else f"e4m3, a scale for each {form}",
                    "batch": batch,
                    "seqlen": seqlen,
                    "heads": f"{num_heads}/{num_kv_heads}",
                    "page_size": page_size,
                    "ms": round(ms, 4),
                    "tokens/s": round(1000 * batch / ms),
                    "GB/s": round(moved / ms / 1e6),
                    "faster": round(float16_ms[page_size] / ms, 2),
                }
            )
        unchecked.append((rows[-2:], outs, caches, scales))
        del arrays, options, table, call
    # Only now: the first timing after float64 is slow, 0.280 ms for 0.247 of e4m3.
    for of_form, outs, caches, scales in unchecked:
        want = definition(q, *numbers(caches, scales, q.dtype))
        for row in of_form:
            error = relative_error(outs[row["page_size"]], want)
            assert error <= MOST, f"{row}: {error}"
            row["error"] = float(f"{error:.2g}")
    return rows


def with_room(x, room):
    """x, or a copy of it in a longer cache."""
    if not room:
        return x
    longer = torch.empty(len(x), x.shape[1] + room, *x.shape[2:], device="cuda", dtype=x.dtype)
    longer[:, : x.shape[1]] = x
    return longer[:, : x.shape[1]]


def cached(k, v, form):
    """The caches, and the options k_scale and v_scale; written as a server writes them."""
    if form == "float16":
        return (k, v), {}
    batch, seqlen, heads, _ = k.shape
    caches = tuple(torch.empty(k.shape, dtype=torch.uint8, device="cuda") for _ in range(2))
    if form == "head":
        scales = [(x.abs().amax((0, 1, 3)).float() / float(e4m3.E4M3_MAX)) for x in (k, v)]
    else:
        scales = [torch.empty(batch, seqlen, heads, device="cuda") for _ in range(2)]
    scales = dict(zip(("k_scale", "v_scale"), scales, strict=True))
    slots = torch.arange(batch * seqlen, dtype=torch.int32, device="cuda")
    reshape_and_cache(*(x.reshape(-1, *x.shape[2:]) for x in (k, v)), *caches, slots, **scales)
    return caches, scales


def numbers(caches, scales, dtype):
    """The numbers of the caches, in float32 if they are bytes."""
    if not scales:
        return caches
    of = torch.from_numpy(e4m3.decode(np.arange(256), np.float32(1))).cuda()
    return [
        of[x.int()] * (s[:, None] if s.ndim == 1 else s[..., None])
        for x, s in zip(caches, scales.values(), strict=True)
    ]


def in_pages(caches, scales, page_size):
    """((k, v, block_table), scales) of the same tokens in shuffled pages."""
    batch, seqlen = caches[0].shape[:2]
    pages = seqlen // page_size
    order = torch.randperm(batch * pages, device="cuda")

    def shuffled(x):
        moved = torch.empty(batch * pages, page_size, *x.shape[2:], device="cuda", dtype=x.dtype)
        moved[order] = x.reshape(moved.shape)
        return moved

    scales = {name: shuffled(x) if x.ndim == 3 else x for name, x in scales.items()}
    return (*map(shuffled, caches), order.reshape(batch, pages).int()), scales


def errors():
    """A row for each kind of data: the error with each way to choose scales, and of float16."""
    return [{"data": data, **errors_of(data)} for data in DATA]


def errors_of(data):
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, QUERIES, NUM_HEADS, HEAD_DIM))
    k, v = (rng.standard_normal((1, KEYS, NUM_HEADS, HEAD_DIM)).astype(np.float32) for _ in "kv")
    k[..., :4] *= CHANNELS.get(data, 1)
    if data == TOKENS:
        k[:, ::500] *= 10
        v[:, ::500] *= 10
    exact, _ = reference.attention(q, k, v)
    found = {}
    for name, rounded in ROUNDED.items():
        out, _ = reference.attention(q, *(rounded(x) for x in (k, v)))
        found[name] = float(f"{np.linalg.norm(out - exact) / np.linalg.norm(exact):.2g}")
    return found


def rounded_by(*shape):
    """A function that rounds to e4m3, with a scale for each block of this shape."""

    def rounded(x):
        blocks = x.reshape(KEYS // shape[0], shape[0], NUM_HEADS // shape[1], shape[1], HEAD_DIM)
        scale = e4m3.scale_of(np.abs(blocks).max((1, 3, 4), keepdims=True))
        return e4m3.decode(e4m3.encode(blocks, scale), scale.astype(np.float64)).reshape(x.shape)

    return rounded


ROUNDED = {
    "one scale": rounded_by(KEYS, NUM_HEADS),
    "a head": rounded_by(KEYS, 1),
    f"a page of {PAGE_SIZE}, a head": rounded_by(PAGE_SIZE, 1),
    "a token, a head": rounded_by(1, 1),
    "no scale": lambda x: e4m3.decode(e4m3.encode(x, np.float32(1)), np.float64(1)),
    "float16": lambda x: x.astype(np.float16).astype(np.float64),
}


if __name__ == "__main__":
    time_rings() if "--rings" in sys.argv else main()
