"""A small decoder: embedding, layers of attention and MLP, logits.

    x = embedding[tokens]
    in each layer:   q, k, v = rotary(norm(x) · qkv)
                     x += attention(q, k, v) · out
                     x += relu(norm(x) · up)² · down
    logits = norm(x) · embeddingᵀ

Each piece takes tokens as rows, in whatever sequences they are: training passes whole sequences,
a server passes one token of each. Only attention relates the rows of a sequence to each other, and
it is passed by name: any function with the arguments and results of `fa_numba.flash_attn`.

NumPy or CuPy, as the weights are. The norms have no learnable gain: the product that follows would
absorb it.

Papers: Radford et al. 2019 (the decoder); Zhang and Sennrich 2019, arXiv:1910.07467 (RMSNorm); Su
et al. 2021, arXiv:2104.09864 (rotary embedding); Ainslie et al. 2023, arXiv:2305.13245 (GQA); So et
al. 2021, arXiv:2109.08668 (squared ReLU); Press and Wolf 2017, arXiv:1608.05859 (tied embedding).
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from fa_numba import checks
from fa_numba.language_model import latent, rows
from fa_numba.language_model.jobs import flash_attn
from fa_numba.runtime import arrays

MLP = 4  # columns of the MLP for each column of x
STD = 0.02  # of the weights at first, as in GPT-2


@dataclass(frozen=True)
class Config:
    """The sizes of a model.

    Attributes
    ----------
    vocabulary : int
        Number of different tokens.
    layers : int, default=4
    heads : int, default=4
        Heads of q.
    kv_heads : int, default=2
        Heads of k and v; each serves heads / kv_heads heads of q.
    head_dim : int, default=32
        Columns of a head; even.
    context : int, default=64
        Most tokens in a sequence.
    rotary_base : float, default=10000.0
        The slowest pair of columns turns by about 1 / rotary_base radian per token.
    latent_dim : int, default=0
        Columns of the latents of latent attention (MLA), from which each head has keys and values
        of its own: kv_heads becomes heads, and the last half of a head's columns is rotated. 0 for
        no latents.
    """

    vocabulary: int
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    context: int = 64
    rotary_base: float = 10000.0
    latent_dim: int = 0

    def __post_init__(self):
        checks.check_config(**vars(self))
        if self.latent_dim:
            object.__setattr__(self, "kv_heads", self.heads)

    @property
    def width(self) -> int:
        """Columns of x."""
        return self.heads * self.head_dim

    @property
    def rotary_dim(self) -> int:
        """Columns of a head that are rotated, the last."""
        return self.head_dim // 2 if self.latent_dim else self.head_dim

    @property
    def cached(self) -> tuple:
        """Shape of all that a cache keeps of a token in a layer: (arrays, heads, columns)."""
        if self.latent_dim:
            return 1, 1, self.latent_dim + self.rotary_dim
        return 2, self.kv_heads, self.head_dim

    @property
    def shapes(self) -> dict:
        """Shape of each weight, by name."""
        width, qkv = self.width, self.width + math.prod(self.cached)
        shapes = {"embedding": (self.vocabulary, width)}
        for layer in range(self.layers):
            shapes[f"{layer}.qkv"] = width, qkv
            if self.latent_dim:
                columns = self.heads * (2 * self.head_dim - self.rotary_dim)
                shapes[f"{layer}.kv"] = self.latent_dim, columns
            shapes[f"{layer}.out"] = width, width
            shapes[f"{layer}.up"] = width, MLP * width
            shapes[f"{layer}.down"] = MLP * width, width
        return shapes

    @property
    def num_weights(self) -> int:
        """Number of weights, in all."""
        width = self.width  # a file may claim any number of layers, so their shapes are not listed
        of_a_layer = width * (math.prod(self.cached) + (2 + 2 * MLP) * width)
        of_a_layer += self.latent_dim * self.heads * (2 * self.head_dim - self.rotary_dim)
        return width * self.vocabulary + self.layers * of_a_layer


def init_weights(config, seed=0, xp=np) -> dict:
    """Random weights to start from: the same numbers for NumPy and CuPy.

    Parameters
    ----------
    config : Config
    seed : int, default=0
    xp : module, default=numpy
        numpy or cupy.

    Returns
    -------
    dict of str to array
        float32, of the names and shapes of `Config.shapes`.
    """
    rng, weights = np.random.default_rng(seed), {}
    for name, shape in config.shapes.items():
        # Each layer adds twice to x: a smaller std keeps the sum as large as with one layer.
        adds = name.endswith((".out", ".down"))
        std = STD / math.sqrt(2 * config.layers) if adds else STD
        weights[name] = xp.asarray(np.float32(std) * rng.standard_normal(shape, np.float32))
    return weights


def unflatten(config, numbers) -> dict:
    """The weights, or their gradients, as views of one array of shape (config.num_weights,)."""
    views, start = {}, 0
    for name, shape in config.shapes.items():
        stop = start + math.prod(shape)
        views[name] = numbers[start:stop].reshape(shape)
        start = stop
    return views


def flatten(weights):
    """One array of all weights, in their order: a copy."""
    xp = arrays.module_of(weights["embedding"])
    return xp.concatenate([weight.reshape(-1) for weight in weights.values()])


def embed(weights, tokens):
    """Rows of the embedding: tokens of any shape become (*shape, width)."""
    return weights["embedding"][tokens]


def qkv(weights, config, layer, x, positions):
    """Queries, keys and values of tokens, with rotary embedding.

    Parameters
    ----------
    weights : dict
    config : Config
    layer : int
    x : array of shape (rows, width)
    positions : array of shape (rows,), int32
        Position of each token in its sequence, from 0, less than config.context.

    Returns
    -------
    q : array of shape (rows, heads, head_dim)
    k, v : arrays of shape (rows, kv_heads, head_dim)
    """
    if config.latent_dim:
        table = rotary_table_for(config, x)
        q, row = latent.queries_and_rows(weights, config, layer, x, positions, table)
        return q, *latent.keys_and_values(weights, config, layer, row)
    together = rows.normalize(x) @ weights[f"{layer}.qkv"]
    together = together.reshape(len(x), -1, config.head_dim)
    q, k, v = split_heads(config, together)
    rows.rotate(together[:, : -config.kv_heads], positions, *rotary_table_for(config, x))
    return q, k, v


def qkv_of_cache(weights, config, layer, x, positions):
    """As `qkv`; with latents q is absorbed, and k and v are both the cache's row, of one head."""
    if not config.latent_dim:
        return qkv(weights, config, layer, x, positions)
    table = rotary_table_for(config, x)
    q, row = latent.queries_and_rows(weights, config, layer, x, positions, table)
    return latent.absorb(weights, config, layer, q), row[:, None], row[:, None]


def scale_of_cache(config):
    """Options of attention to a cache: the scale that rows of latents do not tell."""
    return {"softmax_scale": config.head_dim**-0.5} if config.latent_dim else {}


def heads_of_cache(weights, config, layer, out):
    """Outputs of the heads, of attention's sums of rows of a cache."""
    return latent.expand(weights, config, layer, out) if config.latent_dim else out


def split_heads(config, together):
    """Views of the heads of q, of k and of v, which each row has side by side."""
    return (
        together[:, : config.heads],
        together[:, config.heads : -config.kv_heads],
        together[:, -config.kv_heads :],
    )


def rotary_table_for(config, x) -> tuple:
    """Cosine and sine of the angle of each position and pair, on the device of x.

    Returns
    -------
    cos, sin : arrays of shape (context, rotary_dim / 2), float32
    """
    return _rotary_table(config, arrays.module_of(x), arrays.device_of(x))


@functools.cache
def _rotary_table(config, xp, device):  # `device` is the current one
    pairs = np.arange(config.rotary_dim // 2)
    radians_per_token = config.rotary_base ** (-2 * pairs / config.rotary_dim)
    angles = np.outer(np.arange(config.context), radians_per_token)
    return tuple(xp.asarray(f(angles).astype(np.float32)) for f in (np.cos, np.sin))


def after_attention(weights, config, layer, x, out):
    """The remainder of a layer: output projection and MLP, each added to x.

    Parameters
    ----------
    weights : dict
    config : Config
    layer : int
    x : array of shape (rows, width)
        As `qkv` got it.
    out : array of shape (rows, heads, head_dim), or any shape of as many numbers
        Of attention.

    Returns
    -------
    array of shape (rows, width)
    """
    x = x + out.reshape(x.shape) @ weights[f"{layer}.out"]
    up = rows.normalize(x) @ weights[f"{layer}.up"]
    return x + rows.square_relu(up) @ weights[f"{layer}.down"]


def logits(weights, x):
    """Scores of the next token, before softmax: (..., width) becomes (..., vocabulary)."""
    return rows.normalize(x) @ weights["embedding"].T


def positions_of(tokens):
    """Positions of whole sequences, (batch, n), as rows: 0 to n − 1 for each of them."""
    xp = arrays.module_of(tokens)
    batch, n = tokens.shape
    return xp.tile(xp.arange(n, dtype=np.int32), batch)


def as_sequences(tokens, *row_arrays):
    """Views of rows of heads as (batch, n, heads, head_dim), which attention takes."""
    return tuple(x.reshape(*tokens.shape, *x.shape[1:]) for x in row_arrays)


def forward(weights, config, tokens, *, attn=flash_attn):
    """Logits of every position of whole sequences.

    Parameters
    ----------
    weights : dict
        As from `init_weights`.
    config : Config
    tokens : array of shape (batch, n), int32 or int64
        n is at most config.context.
    attn : callable, default=flash_attn
        ``attn(q, k, v, causal=True)`` returns (out, lse), as `fa_numba.flash_attn` does.

    Returns
    -------
    array of shape (batch, n, vocabulary), dtype of the weights
    """
    checks.check_model_tokens(config, weights, tokens)
    positions, x = positions_of(tokens), embed(weights, tokens.reshape(-1))
    for layer in range(config.layers):
        q, k, v = as_sequences(tokens, *qkv(weights, config, layer, x, positions))
        out, _ = attn(q, k, v, causal=True)
        x = after_attention(weights, config, layer, x, out)
    return logits(weights, x).reshape(*tokens.shape, config.vocabulary)
