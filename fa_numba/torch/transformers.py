"""Attention for models of the package transformers: `register_transformers`.

transformers asks two functions by the name of an attention: one for a mask, once in each pass of a
model, and one for attention, in each layer. A batch with padding brings a mask (batch, seqlen_k),
as it does for flash-attention.
"""

import functools
import inspect

import torch

from fa_numba.torch import padding
from fa_numba.torch.flash import flash_attn_func

REFUSED = "position_bias", "output_attentions"  # if they are not None or False
REMEDY = 'load this model with attn_implementation="sdpa"'
NOT_ONE_RUN = (
    "attention_mask must have one run of ones in each row, with padding before or after it, got "
    f"padding between tokens: {REMEDY}"
)


def register_transformers(name="fa_numba"):
    """Let models of the package transformers use this attention, by name.

    Parameters
    ----------
    name : str, default="fa_numba"
        Then ``AutoModelForCausalLM.from_pretrained(…, attn_implementation=name)`` uses it, and so
        does ``model.set_attn_implementation(name)``.

    Raises
    ------
    ImportError
        transformers is not installed, or its masks are other ones than those of version 5.24.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

        known = inspect.signature(masking_utils.flash_attention_mask).parameters
        if not {"q_length", "q_offset", "mask_function"} <= known.keys():
            raise ImportError("masks are made of other arguments")
        _sequences(masking_utils.causal_mask_function)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            "register_transformers needs the package transformers, as of version 5.24: pip install "
            f"transformers; {error}"
        ) from error
    AttentionInterface.register(name, attention)
    # Not at import: it takes seconds.
    outside_of_graphs = torch.compiler.disable(_mask)
    AttentionMaskInterface.register(name, functools.partial(mask, outside_of_graphs))


def mask(
    read,
    batch_size,
    q_length,
    kv_length,
    q_offset=0,
    kv_offset=0,
    mask_function=None,
    attention_mask=None,
    device="cpu",
    **_,
):
    """Return what `attention` has to know beside shapes: which tokens are no padding, or None.

    It reads attention_mask once, which waits for the GPU. `torch.compile` breaks its graph there.

    Parameters
    ----------
    read : callable
        `_mask`, which `torch.compile` does not trace.
    batch_size, q_length, kv_length, q_offset, kv_offset
        Of a pass: numbers of queries and keys, and the positions of the first ones.
    mask_function : callable
        Of transformers: says which keys a query sees.
    attention_mask : boolean tensor of shape (batch, number of tokens up to now), or None
        True where there is no padding.

    Returns
    -------
    None, or tensor of shape (batch, at most kv_length)
        Boolean: the tokens that are no padding. Integers: the sequence that a token belongs to.
    """
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    num_tokens = q_offset + q_length - kv_offset
    plain = mask_function is causal_mask_function or mask_function is bidirectional_mask_function
    if plain and attention_mask is None and isinstance(num_tokens, int) and num_tokens == kv_length:
        return None  # no graph break
    return read(batch_size, kv_length, num_tokens, mask_function, attention_mask, device)


def _mask(batch_size, kv_length, num_tokens, mask_function, attention_mask, device):
    sequences = _sequences(mask_function)
    if sequences is not None:
        return sequences
    if attention_mask is None:
        if (num_tokens := int(num_tokens)) == kv_length:
            return None
        return torch.ones(batch_size, num_tokens, dtype=torch.bool, device=device)  # a static cache
    seen = attention_mask[:, -kv_length:]
    begins = torch.cat([seen[:, :1], seen[:, 1:] & ~seen[:, :-1]], 1)
    one_run, padded = torch.stack([(begins.sum(1) <= 1).all(), ~seen.all()]).tolist()
    if not one_run:
        raise ValueError(NOT_ONE_RUN)
    return seen if padded or seen.shape[1] < kv_length else None


def _sequences(mask_function):
    """The sequence of each token if transformers found packed ones, else None.

    Raise for a mask that is neither causal nor bidirectional, with or without a window.
    """
    from transformers import masking_utils as known

    causal, sliding = known.causal_mask_function, known.sliding_window_causal_mask_function(1)
    others = (
        known.bidirectional_mask_function,
        known.sliding_window_bidirectional_mask_function(1),
    )
    if any(_is_alike(mask_function, x) for x in (causal, sliding, *others)):
        return None
    nothing = torch.empty(0)
    of_sequences = known.packed_sequence_mask_function(nothing)
    for one in (causal, sliding):
        remapped = known.remap_positions_for_packed_sequence(one, nothing)
        if _is_alike(mask_function, known.and_masks(remapped, of_sequences)):
            _, found = inspect.getclosurevars(mask_function).nonlocals["mask_functions"]
            return inspect.getclosurevars(found).nonlocals["packed_sequence_mask"]
    raise ValueError(
        f"the mask of a model must be causal or bidirectional, perhaps with a sliding window, got "
        f"the function {mask_function.__qualname__} of other ones: {REMEDY}"
    )


def _is_alike(function, other):
    """Whether two functions differ by the numbers and tensors in their closures alone."""
    if inspect.isfunction(function) and inspect.isfunction(other):
        cells = [[x.cell_contents for x in f.__closure__ or ()] for f in (function, other)]
        return function.__code__ is other.__code__ and _is_alike(*cells)
    if isinstance(function, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(function) == len(other) and all(map(_is_alike, function, other))
    return type(function) is type(other)


def attention(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    sliding_window=None,
    softcap=None,
    is_causal=None,
    s_aux=None,
    **others,
):
    """Attention of one layer, with the arguments of transformers.

    Parameters
    ----------
    module : torch.nn.Module
        Its `is_causal` counts where the argument is None.
    query, key, value : tensors with axes (batch, heads, seqlen, head_dim)
    attention_mask : tensor or None
        That of `mask`.
    dropout : float, default=0.0
        Only without padding.
    scaling, softcap, sliding_window, is_causal
        sliding_window is the number of keys that a query sees, with its own.
    s_aux : tensor of shape (heads,), default=None
        Sinks, of gpt-oss.

    Returns
    -------
    out : tensor with axes (batch, seqlen_q, heads, head_dim)
        0 for queries that are padding, if it is causal.
    None
        In place of the weights, which are never stored.
    """
    for name in REFUSED:
        if others.get(name) is not None and others[name] is not False:
            got = type(others[name]).__name__
            raise ValueError(f"{name} must be None, got a {got}: {REMEDY}")
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    window_size = (-1, -1) if sliding_window is None else (sliding_window - 1,) * 2
    options = {
        "dropout_p": dropout,
        "softmax_scale": scaling,
        "causal": getattr(module, "is_causal", True) if is_causal is None else is_causal,
        "window_size": window_size,
        "softcap": softcap or 0.0,
        "s_aux": s_aux,
    }
    if attention_mask is None:
        return flash_attn_func(q, k, v, **options), None
    if attention_mask.ndim != 2:
        raise ValueError(
            "attention_mask must have shape (batch, number of tokens), got "
            f"{tuple(attention_mask.shape)}: {REMEDY}"
        )
    if attention_mask.dtype != torch.bool:
        return _within_sequences(q, k, v, attention_mask, **options), None
    if k.shape[1] > attention_mask.shape[1]:  # a static cache has room for more
        k, v = (x[:, : attention_mask.shape[1]] for x in (k, v))
    return padding.attend_to_run(q, k, v, attention_mask, **options), None


def _within_sequences(q, k, v, sequences, **options):
    """Attention within the sequences that follow each other in each row."""
    batch, seqlen = sequences.shape
    begins = torch.ones_like(sequences, dtype=torch.bool)
    begins[:, 1:] = sequences[:, 1:] != sequences[:, :-1]
    starts = begins.flatten().nonzero().flatten()
    starts = torch.nn.functional.pad(starts, (0, 1), value=batch * seqlen).int()
    return padding.attend_packed(q, k, v, starts, starts, **options)
