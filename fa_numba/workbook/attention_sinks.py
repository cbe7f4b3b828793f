"""Heads with and without attention sinks, and what a window makes of them: lesson 16."""

import functools
import math

import numpy as np

from fa_numba import reference
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.kv_cache import ContiguousCache, RollingCache

KEPT = 0, 1, 2, 4  # first tokens
STEPS, WINDOW, NUM_SINKS, EARLY = 32, 12, 2, 24
SLOPE = 0.4  # what each step back takes off a score in a head that looks near


def decode_through(cache, q, k, v):
    """The outputs of all steps: append each token to the cache, then attend to it."""
    out = np.empty_like(q)
    for t in range(q.shape[1]):
        now = slice(t, t + 1)
        cache.append(k[:, now], v[:, now])
        out[:, now], _ = flash_decode(
            q[:, now], cache.k_cache, cache.v_cache, cache.seq_lens, num_splits=1
        )
    return out


def sink_weights(seed=0):
    """The weights of the last query, with everything kept and with a window.

    The scores are random numbers, but 4 for the first two keys. For each cache the weight of every
    token; NaN for one that is not kept.
    """
    scores = np.random.default_rng(seed).standard_normal(STEPS)
    scores[:NUM_SINKS] = 4
    q, k = np.zeros((2, 1, STEPS, 1, STEPS), np.float32)
    q[..., 0], k[0, :, 0, 0] = math.sqrt(STEPS), scores  # q · k / √d is then the score
    one_hot = np.eye(STEPS, dtype=np.float32)[None, :, None]  # so that out is the weights
    caches = {
        "everything": ContiguousCache(1, STEPS, 1, STEPS),
        "the window alone": RollingCache(1, WINDOW, 1, STEPS),
        "sinks and window": RollingCache(1, WINDOW, 1, STEPS, num_sinks=NUM_SINKS),
    }
    weights = {}
    for name, cache in caches.items():
        cache.append(k, one_hot)
        arguments = cache.k_cache, cache.v_cache, cache.seq_lens
        out, _ = flash_decode(q[:, -1:], *arguments, num_splits=1)
        held = cache.v_cache[0, : cache.seq_lens[0], 0].any(axis=0)
        weights[name] = np.where(held, out[0, 0, 0], np.nan)
    return weights


@functools.cache
def sink_errors(seed=0):
    """How wrong a window makes three heads, with 0, 1, 2 and 4 first tokens kept.

    Scores are random, 4 for the first two keys of a head with sinks, whose values are 0. A head
    that looks near takes 0.4 off the score of a key for each step back. For each head the relative
    errors of its output over the last steps.
    """
    rng = np.random.default_rng(seed)
    v = rng.standard_normal((1, STEPS, 1, STEPS), dtype=np.float32)
    v[:, :NUM_SINKS] = 0
    usual, position = rng.standard_normal(STEPS), np.arange(STEPS)
    early, late = slice(0, EARLY), slice(EARLY, None)  # the first tokens have left by then
    errors = {}
    for name, sinks, slope in (
        ("looks near, has sinks", True, SLOPE),
        ("looks near, no sinks", False, SLOPE),
        ("looks everywhere, has sinks", True, 0.0),
    ):
        # q · k / √d = usual[n] - slope (m - n): two components of q and k
        q, k = np.zeros((2, 1, STEPS, 1, STEPS), np.float32)
        q[0, :, 0, 0], q[0, :, 0, 1] = math.sqrt(STEPS), math.sqrt(STEPS) * position
        k[0, :, 0, 0], k[0, :, 0, 1] = usual + slope * position, -slope
        if sinks:
            k[0, :NUM_SINKS, 0, :2] = 4, 0
        full = reference.attention(q, k, v, causal=True)[0][:, late]
        errors[name] = []
        for kept in KEPT:
            cache = RollingCache(1, WINDOW, 1, STEPS, num_sinks=kept)
            cache.append(k[:, early], v[:, early])
            out = decode_through(cache, q[:, late], k[:, late], v[:, late])
            errors[name].append(float(np.linalg.norm(out - full) / np.linalg.norm(full)))
    return errors
