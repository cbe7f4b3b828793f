"""``fa-numba tour``: the first lessons' kernels on real text, on a GPU or the CPU engine.

The text is the source of a module of this Python's own standard library. Each byte is embedded by
a fixed, seeded projection, so that queries, keys and values have the repetitions and the skew of
real input. Each kernel is compared with its float64 definition, and its HBM traffic counted in two
ways: by formula, and by the CPU engine's meter.
"""

import inspect
import textwrap
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import fa_numba
from fa_numba import analysis, reference, simt
from fa_numba.figures.attention_map import attention_map
from fa_numba.figures.hbm_bytes import hbm_bytes
from fa_numba.runtime import arrays
from fa_numba.workbook import own

SEQLEN, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 384, 2, 1, 32
PAGE_SIZE = 16
FOLDER = Path("tour")


def read_text(length=SEQLEN):
    """The first bytes of a standard-library module, and its name."""
    path = Path(inspect.getsourcefile(textwrap))
    return path.read_bytes()[:length], path.name


def embed(text, num_heads, *, seed):
    """A row of float32 for each byte and head: (1, len(text), num_heads, HEAD_DIM).

    `seed` chooses the projection, num_heads of it: 256 rows, one for each value of a byte.
    """
    rng = np.random.default_rng(seed)
    projection = rng.standard_normal((256, num_heads, HEAD_DIM), dtype=np.float32)
    return projection[np.frombuffer(text, np.uint8)][None]


def paged(k, v, *, seed=0):
    """Cut k and v into shuffled pages; slots that no sequence owns are NaN."""
    (num_tokens, *shape), (pages, rest) = k[0].shape, divmod(k.shape[1], PAGE_SIZE)
    pages += bool(rest)
    block_table = np.random.default_rng(seed).permutation(pages + 2)[:pages].astype(np.int32)
    t = np.arange(num_tokens)
    caches = np.full((2, pages + 2, PAGE_SIZE, *shape), np.nan, np.float32)
    for cache, x in zip(caches, (k, v), strict=True):
        cache[block_table[t // PAGE_SIZE], t % PAGE_SIZE] = x[0]
    return *caches, block_table[None], np.array([num_tokens], np.int32)


def inputs(text):
    """q, k, v, dout: queries and keys share a projection, so that equal bytes find each other."""
    k = embed(text, NUM_KV_HEADS, seed=0)
    q = np.repeat(k, NUM_HEADS // NUM_KV_HEADS, axis=2)
    return q, k, embed(text, NUM_KV_HEADS, seed=1), embed(text, NUM_HEADS, seed=2)


def cases(text):
    """Yield (name, arguments, options, float64 answers, plain float32 answers, traffic formula)."""
    q, k, v, dout = inputs(text)
    problem = analysis.Problem(
        1, len(text), len(text), NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, causal=True
    )
    precisions = (np.float64, np.float32)

    scores = q[0, :, 0] @ k[0, :, 0].T / np.float32(np.sqrt(HEAD_DIM))
    answers = [(reference.softmax(scores, dtype=t),) for t in precisions]
    for name in ("naive_softmax", "safe_softmax", "online_softmax"):
        traffic = getattr(analysis.traffic, name)(*scores.shape)
        yield name, (scores,), {}, *answers, traffic

    causal = {"causal": True}
    answers = [reference.attention(q, k, v, **causal, dtype=t) for t in precisions]
    for name in ("naive_attn", "flash_attn_v1", "flash_attn_v2"):
        yield name, (q, k, v), causal, *answers, getattr(analysis.traffic, name)(problem)

    out, lse = (x.astype(np.float32) for x in answers[0])
    answers = [reference.attention_bwd(dout, q, k, v, **causal, dtype=t) for t in precisions]
    traffic = analysis.traffic.flash_attn_bwd(problem)
    yield "flash_attn_bwd", (dout, q, k, v, out, lse), causal, *answers, traffic

    pages = paged(k, v)
    answers = [reference.paged_kv_lookup(*pages)] * 2
    traffic = analysis.traffic.paged_kv_lookup(pages[3], PAGE_SIZE, NUM_KV_HEADS, HEAD_DIM)
    yield "paged_kv_lookup", pages, {}, *answers, traffic


def worst(got, want):
    """Largest |got − want| over the outputs, infinities apart; NaN where one of them is NaN."""
    errors = [
        np.abs(np.where(np.isfinite(y), x, 0) - np.where(np.isfinite(y), y, 0))
        for x, y in zip(got, want, strict=True)
    ]
    return max(float(e.max(initial=0.0)) for e in errors)


def run(name, args, options, *, on_gpu):
    """Call a function of the package; return its outputs and the bytes that the meter counted."""
    function = getattr(fa_numba, name)
    with simt.tracing() as traces:
        got = function(*args, **options)  # NumPy arrays: on the CPU engine, metered
    if on_gpu:
        import cupy

        got = function(*(cupy.asarray(x) for x in args), **options)
    got = [arrays.to_numpy(x) for x in (got if isinstance(got, tuple) else (got,))]
    if name == "flash_attn_v1":  # it returns l and m, the others lse
        out, l, m = got
        got = [out, m + np.log(l)]
    counts = [c for trace in traces for c in trace.arrays.values()]
    return got, sum(c.load_bytes + c.store_bytes for c in counts)


def main(options=None):
    """Run the tour and print its table.

    0 if every error is within its tolerance and every formula equals the meter, else 1.
    """
    console = Console()
    start = time.perf_counter()
    text, source = read_text()
    on_gpu = own.has_cupy_and_gpu()
    console.print(f"The first {len(text)} bytes of {source}, embedded.")
    console.print(str(arrays.backend()))

    table = Table("kernel", "shape", "backend", box=None, padding=(0, 1, 0, 0))
    for heading in ("error", "tolerance", "HBM formula", "HBM meter"):
        table.add_column(heading, justify="right")
    formula, meter, failed = {}, {}, False
    for name, args, options, want, plain, traffic in cases(text):
        got, meter[name] = run(name, args, options, on_gpu=on_gpu)
        formula[name] = traffic.bytes(4)
        factor = 3 if name == "flash_attn_bwd" else 2  # the rule of the tests
        error, tolerance = worst(got, want), factor * worst(plain, want) + 1e-6
        good = error <= tolerance and formula[name] == meter[name]
        failed |= not good
        table.add_row(
            name,
            "×".join(map(str, args[0].shape)),
            "GPU" if on_gpu else "engine",
            f"{error:.1e}",
            f"{tolerance:.1e}",
            f"{formula[name]:,}",
            f"{meter[name]:,}",
            style=None if good else "bold red",
        )
    console.print(table)
    console.print("HBM in bytes. The tolerance is twice the error of plain NumPy in float32,")
    console.print("three times for gradients.")

    try:
        FOLDER.mkdir(exist_ok=True)
        for file, meaning, drawing in pictures(text, formula, meter):
            drawing.savefig(FOLDER / file, dpi=110)
            console.print(f"{FOLDER / file}: {meaning}")
    except OSError as error:
        console.print(f"No pictures: {FOLDER.absolute()} cannot be written ({error.strerror}).")
    console.print(f"{time.perf_counter() - start:.1f} s")
    return int(failed)


def pictures(text, formula, meter):
    """Yield (file, caption, Drawing)."""
    drawing = hbm_bytes(formula, meter, title="Bytes through HBM")
    yield "hbm_bytes.png", "bytes through HBM by kernel, formula beside meter", drawing

    piece = text[:48]
    q, k, v, _ = inputs(piece)
    _, lse = fa_numba.flash_attn_v2(q, k, v, causal=True)
    scores = q[0, :, 0] @ k[0, :, 0].T / np.sqrt(HEAD_DIM)
    p = np.tril(np.exp(scores - lse[0, 0, :, None]))  # the weights again, from lse alone
    yield "attention_map.png", "which byte looks at which, in one head", attention_map(p, piece)
