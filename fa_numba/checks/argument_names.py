"""Arguments by the names of other libraries: an error says the name that an argument has here."""

import difflib
import functools
import inspect

NOT_NEEDED = "it follows from the shapes of the arrays"
# Names of arguments in PyTorch, flash-attention, FlashInfer, vLLM and JAX. For each: our name, or
# None if we lack the argument, and a sentence of explanation.
OTHER_NAMES = {
    "is_causal": (
        "causal",
        "causal aligns the last query with the last key, PyTorch's is_causal the first query with "
        "the first key: they agree if seqlen_q is seqlen_k",
    ),
    "scale": ("softmax_scale", ""),
    "sm_scale": ("softmax_scale", ""),
    "attn_mask": (None, "use causal, window_size, softcap and alibi_slopes"),
    "key_padding_mask": (None, "flash_attn_varlen takes sequences of any lengths"),
    "attention_mask": (None, "use causal, window_size, softcap and alibi_slopes"),
    "bias": (None, "alibi_slopes is the only bias"),
    "dropout_p": (
        None,
        "flash_attn_v1, flash_attn_v2, flash_attn_v2_unsigned and flash_attn_bwd have dropout",
    ),
    "enable_gqa": (None, f"{NOT_NEEDED}: heads of k and v may be fewer than those of q"),
    "window_left": ("window_size", "(left, right), both inclusive, -1 for no limit"),
    "sliding_window": (
        "window_size",
        "(left, right), both inclusive: a sliding window of W tokens is (W - 1, 0)",
    ),
    "local_window_size": ("window_size", "(left, right), both inclusive, -1 for no limit"),
    "logits_soft_cap": ("softcap", ""),
    "logit_softcap": ("softcap", ""),
    "max_seqlen_q": (None, "it follows from cu_seqlens_q"),
    "max_seqlen_k": (None, "it follows from cu_seqlens_k"),
    "softmax_lse": ("lse", ""),
    "return_lse": (None, "lse is always returned"),
    "return_attn_probs": (None, "the probabilities are never stored; lse is returned"),
    "return_softmax_lse": (None, "lse is always returned"),
    "cache_seqlens": ("seq_lens", "it counts the new token"),
    "seqused_k": ("seq_lens", "it counts the new token"),
    "context_lens": ("seq_lens", "it counts the new token"),
    "page_table": ("block_table", ""),
    "block_tables": ("block_table", ""),
    "key_cache": ("k_cache", ""),
    "value_cache": ("v_cache", ""),
    "query": ("q", ""),
    "key": ("k", ""),
    "value": ("v", ""),
}


def refuses_other_names(function):
    """Decorate a function: an unknown argument is an error that says the name it has here.

    Put it under ``@arrays.replayed``, so that a replayed call does not pay for it.
    """
    parameters = frozenset(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args, **options):
        if not options.keys() <= parameters:
            name = next(name for name in options if name not in parameters)
            raise TypeError(_message(function.__name__, name, parameters))
        return function(*args, **options)

    return call


def _message(function_name, name, parameters):
    ours, more = OTHER_NAMES.get(name, (None, ""))
    if ours in parameters:
        hint = f"it is called {ours} here" + (f". {more[0].upper()}{more[1:]}" if more else "")
    elif more:
        hint = more
    elif close := difflib.get_close_matches(name, sorted(parameters), n=1):
        hint = f"did you mean {close[0]}?"
    else:
        hint = f"it has {', '.join(sorted(parameters))}"
    return f"{function_name} has no argument {name!r}: {hint}"
