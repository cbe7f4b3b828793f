"""Latent attention (MLA) of a layer: keys and values of all heads from one latent of each token.

    q, c, k_r = norm(x) · qkv      c <- norm(c); k_r, and the last half of each head of q, rotated
    k, v = c · kv                  a head's key is its half of this, then k_r, which heads share

A cache keeps c and k_r alone: `absorb` and `expand` move kv to the other side of the sum over
tokens (lesson 24). Training has the plain form, whose heads any attention takes.

Paper: DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, section 2.1.
"""

import numpy as np

from fa_numba.language_model import rows
from fa_numba.language_model.products import product
from fa_numba.runtime import arrays


def queries_and_rows(weights, config, layer, x, positions, table):
    """Queries of all heads, (rows, heads, head_dim), and rows of a cache, [c ; k_r]."""
    together = rows.normalize(x) @ weights[f"{layer}.qkv"]
    q, latents, k_rope = _parts(config, together)
    rows.rotate(q[..., -config.rotary_dim :], positions, *table)
    rows.rotate(k_rope, positions, *table)
    return q, np.concatenate([rows.normalize(latents), k_rope[:, 0]], axis=1)


def keys_and_values(weights, config, layer, row):
    """Keys and values of every head, each (rows, heads, head_dim), of rows of a cache."""
    latents, k_rope = np.split(row, [config.latent_dim], axis=1)
    both = (latents @ weights[f"{layer}.kv"]).reshape(len(row), config.heads, -1)
    k_nope, v = np.split(both, [config.head_dim - config.rotary_dim], axis=2)
    k_rope = np.broadcast_to(k_rope[:, None], (*k_nope.shape[:2], config.rotary_dim))
    return np.concatenate([k_nope, k_rope], axis=2), arrays.module_of(v).ascontiguousarray(v)


def absorb(weights, config, layer, q):
    """Queries for rows of a cache: (rows, heads, latent_dim + rotary_dim)."""
    q_nope, q_rope = np.split(q, [config.head_dim - config.rotary_dim], axis=2)
    w_uk, _ = _matrices(weights, config, layer)
    absorbed = product(q_nope.transpose(1, 0, 2), w_uk.transpose(1, 2, 0))  # a product per head
    return np.concatenate([absorbed.transpose(1, 0, 2), q_rope], axis=2)


def expand(weights, config, layer, out):
    """Outputs of the heads, (rows, heads, head_dim), of their weighted sums of rows."""
    _, w_uv = _matrices(weights, config, layer)
    latents = out[..., : config.latent_dim].transpose(1, 0, 2)
    return product(latents, w_uv.transpose(1, 0, 2)).transpose(1, 0, 2)


def gradients(weights, config, layer, normalized, positions, table, dheads):
    """From `dheads`, of q, k, v of every head: that of the product qkv, both factors of kv's.

    Returns
    -------
    dqkv : array of shape (rows, columns of qkv)
    latents, dboth : arrays of shape (rows, latent_dim) and (rows, columns of kv)
        The gradient of kv is latentsᵀ · dboth.
    """
    dq, dk, dv = (d.reshape(len(positions), config.heads, -1) for d in dheads)
    dk_nope, dk_rope = np.split(dk, [config.head_dim - config.rotary_dim], axis=2)
    dboth = np.concatenate([dk_nope, dv], axis=2).reshape(len(dq), -1)
    _, before_norm, _ = _parts(config, normalized @ weights[f"{layer}.qkv"])

    dqkv = arrays.module_of(dq).empty((len(dq), weights[f"{layer}.qkv"].shape[1]), dq.dtype)
    to_q, to_latents, to_k_rope = _parts(config, dqkv)
    to_q[...], to_k_rope[:, 0] = dq, dk_rope.sum(axis=1)
    for rotated in (to_q[..., -config.rotary_dim :], to_k_rope):
        rows.rotate(rotated, positions, *table, back=True)
    dlatents = dboth @ weights[f"{layer}.kv"].T
    to_latents[...] = rows.normalize_grad(dlatents, before_norm, np.zeros_like(before_norm))
    return dqkv, rows.normalize(before_norm), dboth


def _parts(config, together):
    """Views of q, (rows, heads, head_dim), of the latents, and of k_r, (rows, 1, rotary_dim)."""
    q, row = together[:, : config.width], together[:, config.width :]
    q = q.reshape(len(q), config.heads, config.head_dim)
    return q, row[:, : config.latent_dim], row[:, None, config.latent_dim :]


def _matrices(weights, config, layer):
    """W_uk and W_uv, as (latent_dim, heads, columns)."""
    both = weights[f"{layer}.kv"][:].reshape(config.latent_dim, config.heads, -1)
    return np.split(both, [config.head_dim - config.rotary_dim], axis=2)
