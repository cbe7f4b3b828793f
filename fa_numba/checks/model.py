"""Checks of a language model: its sizes, the tokens it takes, the options of its training."""

import itertools
from pathlib import Path

import numpy as np

from fa_numba.checks.requirements import MAX_HEAD_DIM, require_axes, require_one_library
from fa_numba.checks.values import MAX_TOP_K, check_flag, check_number_between, integer
from fa_numba.runtime.arrays import facts

MAX_VOCABULARY = 2**20  # tokens are int32; larger vocabularies than any model's
MAX_CONTEXT = 2**17  # tables and caches have a row for each position


def check_config(
    vocabulary, layers, heads, kv_heads, head_dim, context, rotary_base, latent_dim
) -> None:
    """Raise unless these sizes make a model."""
    integer("vocabulary", vocabulary, at_least=1, at_most=MAX_VOCABULARY)
    integer("context", context, at_least=1, at_most=MAX_CONTEXT)
    sizes = {"layers": layers, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    for name, size in sizes.items():
        integer(name, size, at_least=1)
    if heads % kv_heads:
        raise ValueError(f"kv_heads must divide the {heads} heads, got {kv_heads}")
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise ValueError(
            "head_dim must be even, because the rotary embedding turns pairs of columns, and at "
            f"most {MAX_HEAD_DIM}, got {head_dim}"
        )
    check_number_between("rotary_base", rotary_base, above=1)
    if integer("latent_dim", latent_dim, at_least=0):
        if head_dim % 4:
            raise ValueError(
                "head_dim must be a multiple of 4 with latent_dim, because half of its columns are "
                f"rotated, in pairs, got {head_dim}"
            )
        if latent_dim + head_dim // 2 > MAX_HEAD_DIM:
            raise ValueError(
                f"latent_dim must be at most {MAX_HEAD_DIM} - head_dim / 2, so that decoding "
                f"kernels take a row of the cache, got {latent_dim}"
            )


def check_no_latents(config, where) -> None:
    """Raise for a model with latent attention where only keys and values can be."""
    if config.latent_dim:
        raise ValueError(f"latent_dim must be 0 {where}, got {config.latent_dim}")


def check_model_tokens(config, weights, tokens, targets=None) -> None:
    """Raise unless a model can take these tokens, and predict these targets."""
    named = {"tokens": tokens} if targets is None else {"tokens": tokens, "targets": targets}
    for name, x in named.items():
        read = facts(x)
        require_one_library(weights=facts(weights["embedding"]), **{name: read})
        require_axes(name, read, ("batch", "tokens"))
        if read.dtype not in ("int32", "int64"):
            raise TypeError(f"{name} must be int32 or int64, got {read.dtype}")
    if targets is not None and targets.shape != tokens.shape:
        raise ValueError(
            f"targets must have the shape of tokens, {tokens.shape}, got {targets.shape}"
        )
    if not 1 <= tokens.shape[1] <= config.context:
        raise ValueError(
            f"tokens must have between 1 and {config.context} tokens in a row, the model's "
            f"context, got {tokens.shape[1]}"
        )
    for name, x in named.items():
        # Only where the numbers are at hand: a look at a GPU's would wait for it in every step.
        if isinstance(x, np.ndarray) and x.size and not 0 <= x.min() <= x.max() < config.vocabulary:
            raise ValueError(
                f"{name} must be at least 0 and less than the vocabulary, {config.vocabulary}, "
                f"got numbers from {x.min()} to {x.max()}"
            )


def check_symbols(symbols) -> None:
    """Raise unless these can be a vocabulary: a token is found by searching in their order."""
    if not isinstance(symbols, str):
        raise TypeError(f"characters must be a str, got {type(symbols).__name__}")
    symbols.encode()  # half of a pair, "\ud800", is no character
    for one, following in itertools.pairwise(symbols):
        if one >= following:
            raise ValueError(
                "characters must differ and be in the order of their code points, got "
                f"{following!r} after {one!r}"
            )


def check_losses(name, losses) -> None:
    """Raise unless these are the losses of a run."""
    if not isinstance(losses, list):
        raise TypeError(f"{name} must be a list, got {type(losses).__name__}")
    for loss in losses:
        check_number_between(name, loss)


def check_characters(name, text, symbols) -> None:
    """Raise unless a text has no character that is missing from a vocabulary."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, got {type(text).__name__}")
    if unknown := sorted(set(text) - set(symbols)):
        raise ValueError(
            f"{name} must have only the {len(symbols)} characters that the model knows, got "
            f"{', '.join(map(repr, unknown[:5]))}{' and others' if len(unknown) > 5 else ''}"
        )


def check_text_length(name, length, needed) -> None:
    """Raise unless a text has enough tokens for one sequence and its target."""
    if length < needed:
        raise ValueError(f"{name} must have at least {needed} tokens, got {length}")


def check_recipe(
    *,
    steps,
    batch,
    learning_rate,
    warm_up,
    last_rate,
    beta1,
    beta2,
    weight_decay,
    clip,
    seed,
    float16,
) -> None:
    """Raise unless a model can be trained with these options.

    Parameters
    ----------
    steps, batch, learning_rate, warm_up, last_rate, beta1, beta2, weight_decay, clip, seed, float16
        As for `language_model.train.train`.
    """
    integer("steps", steps, at_least=1)
    integer("batch", batch, at_least=1)
    integer("warm_up", warm_up, at_least=0)
    integer("seed", seed, at_least=0)
    check_flag("float16", float16)
    check_number_between("learning_rate", learning_rate, above=0)
    check_number_between("clip", clip, above=0)
    check_number_between("weight_decay", weight_decay, at_least=0)
    for name, share in {"last_rate": last_rate, "beta1": beta1, "beta2": beta2}.items():
        check_number_between(name, share, at_least=0, at_most=1 if name == "last_rate" else 0.9999)


def check_float16(float16, xp) -> None:
    """Raise if float16 is asked for on NumPy arrays."""
    if float16 and xp is np:
        raise ValueError(
            "float16 must be False for NumPy, which multiplies float16 slowly; got True"
        )


def check_room_in_context(length, context) -> None:
    """Raise unless a sequence of this length fits the model's context."""
    if length > context:
        raise ValueError(
            f"tokens must leave the sequence within the model's context of {context} tokens, got "
            f"{length} in all"
        )


def check_generation(config, prompt, length, temperature, top_k, seed) -> int:
    """Raise unless a prompt can be continued with these options; return the length as an int."""
    if not len(prompt):
        raise ValueError("prompt must have at least one token, got none")
    for token in prompt:
        if not 0 <= integer("a token of prompt", token) < config.vocabulary:
            raise ValueError(
                f"prompt must have tokens from 0 to {config.vocabulary - 1}, got {token}"
            )
    check_number_between("temperature", temperature, at_least=0)
    integer("seed", seed, at_least=0)
    integer("top_k", top_k, at_least=1, at_most=MAX_TOP_K, why=", which a thread keeps")
    return integer("length", length, at_least=0)


def check_exercise_files(folder, files) -> None:
    """Raise unless a folder has these files."""
    if missing := [file for file in files if not (Path(folder) / file).is_file()]:
        raise ValueError(
            'kernels must be "fastest", "lesson" or a folder with the exercises 07d, 08a, 08b and '
            f"08c, got {str(folder)!r}, without {missing[0]}"
        )
