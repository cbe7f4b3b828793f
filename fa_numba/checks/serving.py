"""Checks of a server's sizes and of the requests to it."""

from fa_numba.checks.cache import check_tokens
from fa_numba.checks.values import MAX_TOP_K, check_number_between, integer
from fa_numba.tiling.block_sizes import ceil_div

MAX_STOPS = 4
KV_DTYPES = "auto", "fp8"
MOST_NODES = 64  # of a tree of drafts: its ancestors are the bits of a word


def check_answer_options(
    max_tokens, temperature, top_k, top_p, n, beams, stop, seed, logprobs, client
) -> None:
    """Raise unless these say how to answer a request.

    Parameters
    ----------
    max_tokens, temperature, top_k, top_p, n, beams, stop, seed, logprobs, client
        As for `language_model.server.Options`.
    """
    integer("max_tokens", max_tokens, at_least=0)
    check_number_between("temperature", temperature, at_least=0, at_most=2)
    integer("top_k", top_k, at_least=1, at_most=MAX_TOP_K)
    check_number_between("top_p", top_p, at_least=0, at_most=1)
    integer("n", n, at_least=1)
    integer("beams", beams, at_least=0, at_most=MAX_TOP_K)
    if beams and n > beams:
        raise ValueError(f"n must be at most beams = {beams}, got {n}")
    _require_stop(stop)
    if beams and stop:
        raise ValueError(f"stop must be empty in a beam search, got {stop!r:.60}")
    integer("seed", seed, at_least=0)
    integer("logprobs", 0 if logprobs is None else logprobs, at_least=0, at_most=MAX_TOP_K)
    if not isinstance(client, str):
        raise TypeError(f"client must be a string, got {client!r:.60}")


def _require_stop(stop):
    if not isinstance(stop, tuple) or not all(isinstance(s, str) for s in stop):
        raise TypeError(f"stop must be a tuple of strings, got {stop!r:.60}")
    if len(stop) > MAX_STOPS or "" in stop:
        raise ValueError(f"stop must be at most {MAX_STOPS} strings, none empty, got {stop!r:.60}")


def check_prompt(prompt, max_tokens, vocabulary, context) -> list:
    """Return the prompt as a list of ints; raise unless the model can read and answer it."""
    try:
        prompt = check_tokens(prompt)
    except (TypeError, ValueError) as error:
        raise type(error)(f"prompt: {error}") from None
    if not prompt:
        raise ValueError("prompt must have at least one token, got none")
    if not 0 <= min(prompt) <= max(prompt) < vocabulary:
        i, token = next((i, x) for i, x in enumerate(prompt) if not 0 <= x < vocabulary)
        raise ValueError(f"prompt[{i}] must be from 0 to {vocabulary - 1}, got {token}")
    if len(prompt) + max_tokens > context:
        raise ValueError(
            f"prompt and max_tokens must be at most {context} tokens together, the model's "
            f"context, got {len(prompt)} + {max_tokens}"
        )
    return prompt


def check_number_of_answers(options, vocabulary) -> None:
    """Raise unless a beam search, whose answers all differ, can find n of them."""
    if options.beams and options.n > vocabulary**options.max_tokens:
        raise ValueError(
            f"n must be at most {vocabulary**options.max_tokens}, the different answers of "
            f"{options.max_tokens} tokens, got {options.n}"
        )


def check_fits(prompt, max_tokens, width, pool, max_branches) -> None:
    """Raise unless `width` answers to a prompt of so many tokens fit into an empty pool.

    As if they shared no page: sharing may end when they are preempted.
    """
    if width > max_branches:
        raise ValueError(
            f"n and beams must be at most {max_branches}, the answers of a step, got {width}"
        )
    needed = width * ceil_div(prompt + max_tokens, pool.page_size)
    if needed > pool.num_pages:
        raise ValueError(
            f"prompt and max_tokens must fit into the {pool.num_pages} pages of {pool.page_size} "
            f"tokens: {width} x ({prompt} + {max_tokens}) tokens may need {needed} pages"
        )


def check_step_sizes(max_rows, max_branches) -> None:
    """Raise unless a step has room for every branch, and for a part of a prompt."""
    integer("max_branches", max_branches, at_least=1)
    if integer("max_rows", max_rows, at_least=1) <= max_branches:
        raise ValueError(
            f"max_rows must be more than max_branches = {max_branches}, or prompts are never "
            f"read, got {max_rows}"
        )


def check_kv_dtype(kv_dtype) -> str:
    """Return the dtype of a server's pages."""
    if kv_dtype not in KV_DTYPES:
        raise ValueError(f'kv_dtype must be "auto" or "fp8", got {kv_dtype!r:.60}')
    return kv_dtype


def check_topk_pages(topk_pages, kv_dtype, drafter) -> None:
    """Raise unless the rows of answers can attend to so many pages; 0 or None: to all."""
    if not integer("topk_pages", topk_pages or 0, at_least=0):
        return
    reasons = {'kv_dtype is "auto"': kv_dtype == "fp8", "drafter is none": drafter is not None}
    for needed, broken in reasons.items():
        if broken:
            raise ValueError(f"topk_pages must be 0 unless {needed}, got {topk_pages}")


def check_draft(tokens, parents) -> tuple:
    """Return guesses and their parents as lists of int."""
    tokens, parents = check_tokens(tokens), list(parents)
    if len(tokens) != len(parents) or len(tokens) >= MOST_NODES:
        raise ValueError(
            f"tokens and parents must be as many, and at most {MOST_NODES - 1}, got {len(tokens)} "
            f"and {len(parents)}"
        )
    for node, parent in enumerate(parents, 1):
        if not 0 <= parent < node:
            raise ValueError(
                f"parents[{node - 1}] must be from 0 to {node - 1}, an earlier node, got {parent}"
            )
    return tokens, parents


def check_draft_sizes(tokens, width) -> tuple:
    """Return the guesses of a tree, and the children of a node, as ints."""
    tokens = integer("tokens", tokens, at_least=1, at_most=MOST_NODES - 1)
    return tokens, integer("width", width, at_least=1)


def check_draft_vocabulary(draft, model) -> None:
    """Raise unless a draft has the vocabulary of the model."""
    if draft != model:
        raise ValueError(
            f"the draft must have the vocabulary of the model, {model} tokens, got {draft}"
        )


def check_number_of(name, value, at_least=1) -> int:
    """Return a number of things as an int."""
    return integer(name, value, at_least=at_least)
