"""Text from a model, one sequence at a time, with its keys and values in a contiguous cache."""

import functools

import numpy as np

from fa_numba import checks
from fa_numba.language_model import model
from fa_numba.language_model.jobs import flash_decode, softmax_topk
from fa_numba.runtime import arrays


class Cache:
    """Keys and values of the tokens of one sequence, of every layer; latents where it has them."""

    def __init__(self, weights, config):
        xp = arrays.module_of(weights["embedding"])
        number, heads, columns = config.cached
        shape = number, config.layers, 1, config.context, heads, columns
        self.arrays = xp.zeros(shape, weights["embedding"].dtype)
        self.k, self.v = self.arrays[0], self.arrays[-1]  # of latents one array: the value is in it
        self.length = 0

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the arrays for each token that they have room for."""
        return self.arrays.nbytes // self.arrays.shape[3]

    def append(self, weights, config, tokens, *, decode=flash_decode):
        """Add tokens to the sequence; return the logits after the last one.

        Parameters
        ----------
        weights : dict
        config : Config
        tokens : sequence of int
            At least one.
        decode : callable, default=flash_decode
            ``decode(q, k_cache, v_cache, seq_lens, causal=True)`` returns (out, lse). For latents
            both caches are the rows, of one head, and there is a softmax_scale.

        Returns
        -------
        array of shape (vocabulary,)
        """
        xp = arrays.module_of(self.k)
        start, stop = self.length, self.length + len(tokens)
        checks.check_room_in_context(stop, config.context)
        positions = xp.arange(start, stop, dtype=np.int32)
        seq_lens = xp.full(1, stop, np.int32)
        x = model.embed(weights, xp.asarray(np.asarray(tokens, np.int32)))
        for layer in range(config.layers):
            q, k, v = model.qkv_of_cache(weights, config, layer, x, positions)
            self.k[layer, 0, start:stop], self.v[layer, 0, start:stop] = k, v
            caches = self.k[layer], self.v[layer], seq_lens
            options = model.scale_of_cache(config)
            out, _ = decode(q[None], *caches, causal=True, **options)
            out = model.heads_of_cache(weights, config, layer, out[0])
            x = model.after_attention(weights, config, layer, x, out)
        self.length = stop
        return model.logits(weights, x[-1:])[0]


def generate(
    weights, config, prompt, length, *, temperature=0.8, top_k=32, seed=0, decode=flash_decode
):
    """Continue a prompt, token by token.

    A model sees no more tokens than its context. Where the context is full, its last half becomes
    the first of the next one, whose keys and values are computed anew.

    Parameters
    ----------
    weights : dict
        As from `model.init_weights`.
    config : Config
    prompt : sequence of int
        Tokens, at least one.
    length : int
        Number of tokens to generate.
    temperature : float, default=0.8
        Divisor of the logits; at 0 the likeliest token is chosen.
    top_k : int, default=32
        Tokens to choose from, the likeliest; 32 at most.
    seed : int, default=0
    decode : callable, default=flash_decode
        As for `Cache.append`.

    Returns
    -------
    iterator of int
        The next tokens, each computed when it is asked for.
    """
    length = checks.check_generation(config, prompt, length, temperature, top_k, seed)
    choose = functools.partial(
        sample,
        temperature=temperature,
        top_k=min(top_k, config.vocabulary),
        rng=np.random.default_rng(seed),
    )
    return _continue(weights, config, list(prompt), length, choose, decode)


def _continue(weights, config, tokens, length, choose, decode):
    cache, new = Cache(weights, config), tokens[-config.context :]
    for _ in range(length):
        if cache.length == config.context:
            cache, new = Cache(weights, config), tokens[-max(1, config.context // 2) :]
        tokens.append(choose(cache.append(weights, config, new, decode=decode)))
        yield tokens[-1]
        new = tokens[-1:]


def sample(logits, temperature, top_k, rng) -> int:
    """Choose a token by the softmax of its logits, among the likeliest."""
    if temperature == 0:
        return int(logits.argmax())
    scores = logits.astype(np.float32)[None] / np.float32(temperature)
    p, tokens = (arrays.to_numpy(x)[0] for x in softmax_topk(scores, top_k))
    return int(tokens[draw_one(p, rng.random())])


def draw_one(p, uniform) -> int:
    """The token that a random number from 0 to 1 draws from a distribution."""
    tokens = np.flatnonzero(p)
    ends = np.cumsum(p[tokens], dtype=np.float64)
    chosen = np.searchsorted(ends, uniform * ends[-1], side="right")
    return int(tokens[min(chosen, len(tokens) - 1)])  # a product that was rounded up is the end
