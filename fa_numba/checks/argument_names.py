"""Arguments by the names of other libraries: an error says the name that an argument has here."""

import difflib
import functools
import inspect

NOT_NEEDED = "it follows from the shapes of the arrays"
OWN_SCALES = "flash_attn_fp8 rounds to 8 bits by itself, with scales of its own"

# Names of arguments in PyTorch, flash-attention, FlashInfer, vLLM, JAX and transformers, and ours
# that some functions lack. For some with one meaning: our names (a function has at most one of
# them), and a sentence of explanation.
NAMES = {
    "is_causal": (
        "causal",
        "causal aligns the last query with the last key, PyTorch's is_causal the first query with "
        "the first key: they agree if seqlen_q is seqlen_k",
    ),
    "scale sm_scale scaling": ("softmax_scale", ""),
    "attn_mask attention_mask block_mask custom_mask mask_mod": (
        "mask",
        "it is a function of b, h, m, n: whether the query at position m sees key n",
    ),
    "score_mod": (
        "score",
        "it is a function of s, b, h, m, n, and m is the query's position among the keys",
    ),
    "mask score": (
        "",
        "flash_attn, flash_attn_v2, flash_attn_varlen and flash_decode take a mask and a score",
    ),
    "attn_bias bias": ("", "alibi_slopes is the only bias"),
    (
        "key_padding_mask query_seq_lengths key_value_seq_lengths segment_ids cu_seqlens_q "
        "cu_seqlens_k"
    ): ("", "flash_attn_varlen takes sequences of any lengths"),
    "is_training training": ("", "dropout_p=0 is what evaluation needs"),
    "dropout": ("dropout_p", "it is a number, and seed says what is dropped"),
    "p_dropout": ("dropout_p", ""),
    "dropout_p seed": (
        "",
        "flash_attn, flash_attn_grad, flash_attn_v1 and flash_attn_v2 have dropout",
    ),
    "num_heads num_kv_heads head_dim page_size block_size": ("", NOT_NEEDED),
    "enable_gqa": ("", f"{NOT_NEEDED}: heads of k and v may be fewer than those of q"),
    "window_left local_window_size": (
        "window_size",
        "(left, right), both inclusive, -1 for no limit",
    ),
    "sliding_window": (
        "window_size",
        "(left, right), both inclusive: a sliding window of W tokens is (W - 1, 0)",
    ),
    "sinks": ("", "the softmax is over the keys alone: there is no sink"),
    "s_aux sink learnable_sink": ("sinks", ""),
    "q_scale q_descale": ("", OWN_SCALES),
    "k_scale v_scale": (
        "",
        "flash_decode and paged_attn_decode have it, for caches of 8 bits; " + OWN_SCALES,
    ),
    "k_descale": ("k_scale", "a key is its scale times its bytes; q has no scale"),
    "v_descale": ("v_scale", "a key is its scale times its bytes; q has no scale"),
    "logits_soft_cap logit_softcap soft_cap": ("softcap", ""),
    "deterministic": ("", "it is for gradients; every other function gives the same bits anyway"),
    "cu_seqlens cu_seq_lens": ("", "it is two arguments here, cu_seqlens_q and cu_seqlens_k"),
    "cu_seq_lens_q qo_indptr": ("cu_seqlens_q", "int32"),
    "cu_seq_lens_k kv_indptr": ("cu_seqlens_k", "int32"),
    "max_seqlen_q max_length_q": ("", "it follows from cu_seqlens_q"),
    "max_seqlen_k max_length_k": ("", "it follows from cu_seqlens_k"),
    "max_seqlen": ("", "it follows from cu_seqlens_q and cu_seqlens_k"),
    "lse": ("", "it is for gradients; a forward function returns it"),
    "softmax_lse": ("lse", ""),
    "return_lse return_softmax_lse": ("", "lse is always returned"),
    "return_attn_probs": ("", "the probabilities are never stored; lse is returned"),
    "seq_lens k_cache v_cache": ("", "flash_decode and paged_attn_decode take caches"),
    "cache_seqlens seqused_k context_lens": ("seq_lens", "it counts the new tokens too"),
    "kv_cache paged_kv_cache": ("", "it is two arrays here, k_cache and v_cache"),
    "cache_batch_idx": ("", "pass k_cache[cache_batch_idx], or pages"),
    "cache_leftpad": ("", "each sequence begins at token 0 of its cache"),
    "rotary_cos rotary_sin rotary_interleaved": ("", "rotate q and k before the call"),
    "block_table": ("", "paged_attn_decode takes caches in pages"),
    "page_table block_tables": ("block_table", ""),
    "paged_kv_indices paged_kv_indptr": (
        "",
        "block_table has a row of page numbers for each sequence, and seq_lens its length",
    ),
    "kv_layout tensor_layout layout": (
        "",
        "the axes are (batch, seqlen, num_heads, head_dim); PyTorch's x.transpose(1, 2) has them",
    ),
    "key_cache k": ("k_cache", ""),
    "value_cache v": ("v_cache", ""),
    "query": ("q", ""),
    "key": ("k k_cache", ""),
    "value": ("v v_cache", ""),
    "input": ("x", ""),
    "out dtype": ("", "the results are new arrays, of the dtype of the first argument"),
    "largest sorted": ("", "the largest come first"),
    "dim axis": ("", "softmax is over the last axis of a matrix, its rows"),
    "backward": (
        "",
        'which("flash_attn_grad", dout, q, k, v, out, lse) names the kernel for gradients',
    ),
    "num_splits": (
        "",
        "the kernel chooses it; the lesson kernels of decoding have it as an option",
    ),
    "block_m block_n": ("", "the kernel chooses its tiles; flash_attn_v2 has it as an option"),
}


# The same for fa_numba.torch, whose arguments have the names of PyTorch's and flash-attention's.
NAMES_IN_TORCH = {
    "is_causal": ("causal", "it aligns the last query with the last key"),
    "causal": ("is_causal", "it aligns the first query with the first key"),
    "scale": ("softmax_scale", ""),
    "sm_scale": ("softmax_scale scale", ""),
    "softmax_scale": ("scale", ""),
    "query": ("q", ""),
    "key": ("k_cache k", ""),
    "value": ("v_cache v", ""),
    "q": ("query", ""),
    "k": ("key", ""),
    "v": ("value", ""),
    "dropout": ("dropout_p", ""),
    "mask attn_mask attn_bias attention_mask": (
        "",
        "flash_attn_func has causal, window_size, softcap, alibi_slopes; flex_attention any mask",
    ),
    "mask_mod block_mask score_mod": ("", "flex_attention has it"),
    "sinks learnable_sink": ("s_aux", ""),
    "s_aux window_size softcap alibi_slopes": ("", "flash_attn_func has it"),
    "deterministic": ("", "torch.use_deterministic_algorithms(True) asks for it"),
    "enable_gqa": ("", NOT_NEEDED),
    "return_lse": ("return_softmax_lse return_attn_probs", ""),
    "return_softmax_lse": ("return_attn_probs", ""),
    "return_attn_probs": ("return_softmax_lse", ""),
    "page_table": ("block_table", ""),
    "seq_lens seqused_k": ("cache_seqlens", "it does not count the tokens of k"),
}
OTHER_NAMES, OTHER_NAMES_IN_TORCH = (
    {name: meant for names, meant in table.items() for name in names.split()}
    for table in (NAMES, NAMES_IN_TORCH)
)


def refuses_other_names(function):
    """Decorate a function: an unknown argument is an error that says the name it has here.

    So is an option by its position, such as the causal of flash-attention's functions. Put it under
    ``@arrays.replayed``, so that a replayed call does not pay for it.
    """
    parameters = inspect.signature(function).parameters
    by_position = [x.name for x in parameters.values() if x.kind is x.POSITIONAL_OR_KEYWORD]
    names = frozenset(parameters)

    @functools.wraps(function)
    def call(*args, **options):
        if options and not names.issuperset(options):  # sooner than options.keys() <= names
            name = next(name for name in options if name not in names)
            raise TypeError(message_for(function.__name__, name, names, OTHER_NAMES))
        if len(args) > len(by_position):
            by_name = ", ".join(sorted(names.difference(by_position)))
            raise TypeError(
                f"{function.__name__} takes {len(by_position)} arguments by position, "
                f"{', '.join(by_position)}, got {len(args)}"
                + (f": give options by their names, {by_name}" if by_name else "")
            )
        return function(*args, **options)

    return call


def message_for(function_name, name, parameters, other_names):
    """The text of an error for an unknown argument: it names the one that the function has."""
    names, more = other_names.get(name, ("", ""))
    ours = next((x for x in names.split() if x in parameters), None)
    if names and not ours:  # of another function here: what takes it?
        _, more = next((other_names[x] for x in names.split() if x in other_names), ("", ""))
    if ours:
        hint = f"it is called {ours} here" + (f". {more[0].upper()}{more[1:]}" if more else "")
    elif more:
        hint = more
    elif len(name) > 2 and (close := difflib.get_close_matches(name, sorted(parameters), n=1)):
        hint = f"did you mean {close[0]}?"
    else:
        hint = f"it has {', '.join(sorted(parameters))}"
    return f"{function_name} has no argument {name!r}: {hint}"
