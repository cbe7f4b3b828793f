"""Shared by the graders of decoding over keys and values in pages, of float32, e4m3 or int8."""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from fa_numba import reference, simt
from fa_numba.kernels import e4m3
from fa_numba.workbook.graders.attention import UNWRITTEN, guarded
from fa_numba.workbook.graders.causes import Wrong

OWNED = "k_cache", "v_cache", "k_scale", "v_scale"
SCALES = "k_scale", "v_scale"


@dataclass
class Paged:
    """A decoding step over pages. In e4m3, or int8, if `scales` has k_scale and v_scale."""

    q: np.ndarray
    k_cache: np.ndarray
    v_cache: np.ndarray
    block_table: np.ndarray
    seq_lens: np.ndarray
    scale: np.float32
    scales: dict = field(default_factory=dict)
    int8: bool = False

    @property
    def page_size(self):
        return self.k_cache.shape[1]

    @property
    def group_size(self):
        return self.q.shape[1] // self.k_cache.shape[2]

    @property
    def inputs(self):
        """The kernel's arrays that are not written, in its order."""
        caches = {"k_cache": self.k_cache, "v_cache": self.v_cache}
        rest = {"block_table": self.block_table, "seq_lens": self.seq_lens}
        return {"q": self.q, **caches, **self.scales, **rest}

    def dense(self, b, *, page_of=None, offset_of=None, scale_of=None):
        """Keys and values of sequence b, (n, num_kv_heads, head_dim) float64."""
        n = np.arange(self.seq_lens[b])
        page = self.block_table[b, n // self.page_size] if page_of is None else page_of(n)
        offset = n % self.page_size if offset_of is None else offset_of(n)
        both = []
        for cache, name in ((self.k_cache, "k_scale"), (self.v_cache, "v_scale")):
            x = cache[page, offset]
            if self.scales:
                scale = (scale_of or self.scale_of)(name, page, offset)[..., None]
                number = x.view(np.int8) if self.int8 else e4m3.decode(x, np.float64(1))
                x = number * scale.astype(np.float64)
            x = x.astype(np.float64)
            both.append(np.nan_to_num(x))
        return both

    def scale_of(self, name, page, offset):
        return self.scales[name][page, offset]

    def answer(self, dtype=np.float64, scale=None, **how):
        """out (batch, num_heads, head_dim) and lse (batch, num_heads), by definition."""
        scale = float(self.scale if scale is None else scale)
        outs, lses = [], []
        for b in range(len(self.q)):
            k, v = (x[None].astype(dtype) for x in self.dense(b, **how))
            q = self.q[None, None, b]
            out, lse = reference.attention(q, k, v, softmax_scale=scale, dtype=dtype)
            outs.append(out[0, 0])
            lses.append(lse[0, :, 0])
        return np.array(outs), np.array(lses)

    def mistakes(self, BLOCK_N):
        """(sentence, (out, lse)) of usual mistakes of the lookup."""
        last = self.block_table.shape[1] - 1
        row = self.block_table
        size = self.page_size

        def of_tile(n):
            return row[0, np.minimum((n - n % BLOCK_N) // size, last)]

        if len(self.q) == 1:
            yield "One page serves a whole tile: the page belongs to the key.", {"page_of": of_tile}
            yield "The table is not looked at.", {"page_of": lambda n: n // size}
            yield (
                "The offset is key % PAGE_SIZE, not that in the tile.",
                {"offset_of": lambda n: n % BLOCK_N % size},
            )
        else:
            yield (
                "Every sequence follows row 0 of the table.",
                {"page_of": lambda n: row[0, np.minimum(n // size, last)]},
            )
        if self.scales:
            known = {
                "The scales are not applied.": lambda name, *at: 0 * self.scale_of(name, *at) + 1,
                "K and V have a scale each; one serves both.": (
                    lambda name, *at: self.scale_of("k_scale", *at)
                ),
                "Every head takes the scale of head 0.": (
                    lambda name, *at: 0 * self.scale_of(name, *at) + self.scale_of(name, *at)[:, :1]
                ),
                "Every key takes the scale of its page's first: the scale belongs to the token.": (
                    lambda name, page, offset: self.scale_of(name, page, 0 * offset)
                ),
            }
            yield from ((sentence, {"scale_of": scale_of}) for sentence, scale_of in known.items())


def make_paged(seq_lens, page_size, num_heads=4, num_kv_heads=2, head_dim=8, *, fp8=False,
               int8=False, scale=None, seed=0):  # fmt: skip
    """Random keys in shuffled pages; NaN, or scales of NaN, where no token lives."""
    rng = np.random.default_rng(seed)
    counts = [-(-n // page_size) for n in seq_lens]
    num_pages = sum(counts) + 2
    shape = (num_pages, page_size, num_kv_heads, head_dim)
    q = rng.standard_normal((len(seq_lens), num_heads, head_dim), np.float32)
    caches = [rng.standard_normal(shape, np.float32) for _ in range(2)]
    block_table = np.full((len(seq_lens), max(counts) + 1), -1, np.int32)
    pages = iter(rng.permutation(num_pages))
    owned = np.zeros((num_pages, page_size), bool)
    for b, (n, count) in enumerate(zip(seq_lens, counts, strict=True)):
        for i in range(count):
            block_table[b, i] = page = next(pages)
            owned[page, : n - i * page_size] = True
    scales = {}
    for i, name in enumerate(SCALES if fp8 or int8 else ()):  # tokens, heads of very different size
        sizes = np.exp(rng.uniform(-2, 2, (*shape[:3], 1)))
        caches[i], scales[name] = (in_int8 if int8 else e4m3.quantise)(caches[i] * sizes)
        scales[name][~owned] = np.nan
    for x in caches:
        x[~owned] = e4m3.NAN_BYTE if scales else np.nan
    scale = np.float32(1 / math.sqrt(head_dim) if scale is None else scale)
    lens = np.array(seq_lens, np.int32)
    return Paged(q, *caches, block_table, lens, scale, scales, int8)


def in_int8(x):
    """Bytes of x (…, head_dim) in two's complement, and the scale of each row."""
    x = x.astype(np.float32)
    scale = np.abs(x).max(axis=-1) / np.float32(127)
    return np.rint(x / scale[..., None]).astype(np.int8).view(np.uint8), scale


def prepare(exercise, step, num_splits, BLOCK_N):
    """The launch, and the outputs with their guards."""
    batch, num_heads, head_dim = step.q.shape
    constants = head_dim, step.group_size, BLOCK_N, step.page_size
    kernel = exercise.make_kernel(*constants, *[True] * step.int8)
    outputs = {
        "out_partial": guarded(num_splits, batch, num_heads, head_dim),
        "lse_partial": guarded(num_splits, batch, num_heads),
    }
    grid = (num_splits, step.k_cache.shape[2], batch)
    arrays = [array for array, _ in outputs.values()]
    args = (*step.inputs.values(), *arrays, step.scale)
    return (kernel, grid, (BLOCK_N, step.group_size), *args), outputs


def run(exercise, step, num_splits=3, BLOCK_N=8):
    """Run checked; out_partial and lse_partial, every element of them written."""
    launch, outputs = prepare(exercise, step, num_splits, BLOCK_N)
    simt.run(*launch)
    of_nan = "A slot that holds no token was read."
    if step.int8:
        of_nan = "The bytes are int8 here, and were read as e4m3: `from_byte` is the one to call."
    for name, (array, _) in outputs.items():
        bad = np.argwhere((array == UNWRITTEN) | np.isnan(array))
        if len(bad):
            at = [int(i) for i in bad[0]]
            said = "was never written" if array[tuple(at)] == UNWRITTEN else "is NaN"
            raise Wrong(
                f"{name}{at} {said}: sequence {at[1]} has {step.seq_lens[at[1]]} keys in pages of "
                f"{step.page_size}. Slots without a token, and scales of pages that nobody has, "
                "are NaN here",
                causes=[of_nan] if said == "is NaN" else [],
                where=name,
            )
    return [array for array, _ in outputs.values()]


def combine(out_partial, lse_partial):
    """The splits' results together, in float64."""
    m = lse_partial.max(axis=0).astype(np.float64)
    w = np.exp(lse_partial - np.where(np.isneginf(m), 0, m))
    total = w.sum(axis=0)
    out = (w[..., None] * out_partial).sum(axis=0) / np.where(total == 0, 1, total)[..., None]
    with np.errstate(divide="ignore"):
        return out, m + np.log(total)


def check(exercise, step, num_splits=3, BLOCK_N=8):
    """Combine the partial results, and compare with the definition."""
    got = combine(*run(exercise, step, num_splits, BLOCK_N))
    answers = step.answer(), step.answer(np.float32)
    for name, x, want, plain in zip(("out", "lse"), got, *answers, strict=True):
        with np.errstate(invalid="ignore"):
            size = np.maximum(1, np.where(np.isfinite(want), np.abs(want), 0))
            off = np.abs(np.where(np.isfinite(want), plain - want, 0)).max(initial=0)
            mask = ~((x == want) | (np.abs(x - want) <= 2 * off + 1e-6 * size))
        if not mask.any():
            continue
        at = tuple(int(i) for i in np.argwhere(mask)[0])
        causes = []
        for sentence, how in step.mistakes(BLOCK_N):
            wrong = step.answer(**how)
            near = [np.allclose(a, b, 1e-3, 1e-3) for a, b in zip(got, wrong, strict=True)]
            same = [np.allclose(a, b, 1e-3, 1e-3) for a, b in zip(answers[0], wrong, strict=True)]
            causes += [sentence] * (all(near) and not all(same))
        raise Wrong(
            f"the partial results, combined: {name}{list(at)} must be {want[at]:.6g}, got "
            f"{x[at]:.6g}. Sequence {at[0]} has {step.seq_lens[at[0]]} keys in pages of "
            f"{step.page_size}, tiles of {BLOCK_N}, {num_splits} splits. {''.join(causes[:1])}",
            causes=causes,
            where=f"sequence {at[0]}, head {at[1]}",
            wrong=mask,
            axes=("sequence", "head", "column")[: mask.ndim],
        )


def with_scores(scores, page_size, **options):
    """One sequence whose key n has the score `scores[n]` for every head."""
    step = make_paged([len(scores)], page_size, **options, scale=1.0)
    q, k_cache = np.zeros_like(step.q), np.where(np.isnan(step.k_cache), np.nan, np.float32(0))
    q[..., 0] = 1
    n = np.arange(len(scores))
    k_cache[step.block_table[0, n // page_size], n % page_size, :, 0] = np.array(scores)[:, None]
    return replace(step, q=q, k_cache=k_cache)
