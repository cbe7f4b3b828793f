"""Shared by the graders of latent attention (MLA): a decoding step over rows of a cache."""

from dataclasses import dataclass

import numpy as np

from fa_numba import reference
from fa_numba.workbook.graders.attention import UNWRITTEN, expect_close
from fa_numba.workbook.graders.kernels import launched
from fa_numba.workbook.graders.mistakes import beyond_mistakes, rescaling_mistakes


@dataclass
class Latent:
    """One absorbed query of each head to the rows of each sequence, NaN behind its last one."""

    q: np.ndarray
    latent_cache: np.ndarray
    seq_lens: np.ndarray
    latent_dim: int
    scale: np.float32 = np.float32(0.25)

    def answer(self, dtype=np.float64, *, last=False, rope=True, scale=None):
        """out (batch, num_heads, latent_dim) and lse, by definition or with a usual mistake."""
        k = np.nan_to_num(self.latent_cache[:, :, None])
        v = k[..., -self.latent_dim :] if last else k[..., : self.latent_dim]
        q = self.q[:, None].copy()
        if not rope:
            q[..., self.latent_dim :] = 0
        scale = float(self.scale if scale is None else scale)
        options = {"softmax_scale": scale, "dtype": dtype}
        out, lse = reference.cached_attention(q, k, v, self.seq_lens, **options)
        return {"out": out[:, 0], "lse": lse[..., 0]}

    def mistakes(self, BLOCK_N):
        """For each sequence (sentence, its out and lse) of usual mistakes."""
        said = {
            "The value is the first LATENT_DIM columns, not the last.": {"last": True},
            "The rotated key takes part in the score.": {"rope": False},
            "softmax_scale is missing.": {"scale": 1},
        }
        of_all = [(sentence, self.answer(**how)) for sentence, how in said.items()]
        for b, n in enumerate(self.seq_lens):
            k = self.latent_cache[b, :n].astype(np.float64)
            s, v = float(self.scale) * self.q[b] @ k.T, k[:, : self.latent_dim]
            found = [(sentence, {x: y[b] for x, y in wrong.items()}) for sentence, wrong in of_all]
            yield [*found, *rescaling_mistakes(s, v, 1), *beyond_mistakes(s, v, BLOCK_N)]


def make_latent(seq_lens, num_heads=4, latent_dim=40, rope_dim=9, *, scale=0.25, seed=0):
    """Random queries and rows; rows that hold no token are NaN."""
    rng = np.random.default_rng(seed)
    row_dim = latent_dim + rope_dim
    q = rng.standard_normal((len(seq_lens), num_heads, row_dim), np.float32)
    cache = rng.standard_normal((len(seq_lens), max(seq_lens) + 2, row_dim), np.float32)
    for b, n in enumerate(seq_lens):
        cache[b, n:] = np.nan
    return Latent(q, cache, np.array(seq_lens, np.int32), latent_dim, np.float32(scale))


def with_scores(scores, **sizes):
    """One sequence whose token n has the score `scores[n]` for every head."""
    step = make_latent([len(scores)], **sizes, scale=1.0)
    step.q[...] = 0
    step.q[..., -1] = 1  # of the rotated key: the values stay random
    step.latent_cache[0, : len(scores), -1] = scores
    return step


def run(exercise, step, BLOCK_M=4, BLOCK_N=8):
    """Run checked, compare out and lse; the trace."""
    (batch, num_heads, row_dim), latent_dim = step.q.shape, step.latent_dim
    kernel = exercise.make_kernel(latent_dim, row_dim, BLOCK_M, BLOCK_N)
    inputs = {"q": step.q, "latent_cache": step.latent_cache, "seq_lens": step.seq_lens}
    out = np.full((batch, num_heads, latent_dim), UNWRITTEN)
    lse = out[..., 0].copy()
    grid = (-(-num_heads // BLOCK_M), batch)
    got, trace = launched(
        kernel, grid, (32, BLOCK_M), ("out", "lse"), **inputs, out=out, lse=lse,
        softmax_scale=step.scale,
    )  # fmt: skip
    want, plain = step.answer(), step.answer(np.float32)
    for b, mistakes in enumerate(step.mistakes(BLOCK_N)):
        for name in ("lse", "out"):
            expect_close(
                f"{name}[{b}]", *(x[name][b] for x in (got, want, plain)), tile=BLOCK_M,
                rows="head", mistakes=[(said, {f"{name}[{b}]": x[name]}) for said, x in mistakes],
            )  # fmt: skip
    return trace
