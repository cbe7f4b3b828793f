"""A batch in which padding hides keys, as a packed batch: exactly, and without waiting for a GPU.

`flash_attn_varlen_func` attends within each sequence of a packed batch. A row of a batch with
padding becomes a few sequences of its own. Padding lies in sequences without queries or without
keys, which cost nothing: rows of such queries are 0, gradients of such keys too.
"""

import torch

from fa_numba.torch.flash import flash_attn_varlen_func


def keys_of(seen):
    """Return the keys that all queries see, (batch, seqlen_k), or None if queries differ.

    Parameters
    ----------
    seen : boolean tensor of shape (batch, seqlen_q or 1, seqlen_k)
        With an axis of queries its numbers are read, which waits for a GPU.
    """
    keys = seen[:, :1]
    if seen.shape[1] == 1 or seen.stride(1) == 0 or (seen == keys).all().item():
        return seen.any(1)
    return None


def causal_run_of(seen):
    """Return the run of keys of each row within which a mask is causal, or None.

    Parameters
    ----------
    seen : boolean tensor of shape (batch, seqlen_q, seqlen_k)
        It is read, which waits for a GPU.

    Returns
    -------
    keys : boolean tensor of shape (batch, seqlen_k)
    seen_after : bool
        Queries after the run see all of it; otherwise nothing.
    """
    _, seqlen_q, seqlen_k = seen.shape
    keys = seen.any(1)
    first, last = (x[:, None, None] for x in bounds(keys))
    key = torch.arange(seqlen_k, device=seen.device)
    query = torch.arange(seqlen_k - seqlen_q, seqlen_k, device=seen.device)[:, None]
    causal = (first <= key) & (key < last) & (key <= query)
    within = causal & (query < last)
    alike = torch.stack([(seen == within).all(), (seen == causal).all()]).tolist()
    return (keys, not alike[0]) if any(alike) else None


def attend_to_keys(q, k, v, seen, softmax_scale=None, **options):
    """Attention of all queries of a row to the keys that are `seen`, whichever they are.

    Keys are sorted: those of a row that are seen come first. This copies k and v.

    Parameters
    ----------
    q, k, v : tensors with axes (batch, seqlen, heads, head_dim)
    seen : boolean tensor of shape (batch, seqlen_k)
    softmax_scale, **options
        As for `flash_attn_varlen_func`; nothing in them may depend on the positions of keys.
    """
    seqlen_q = q.shape[1]
    order = torch.argsort((~seen).byte(), dim=1, stable=True)
    rows = torch.arange(len(seen), device=seen.device)[:, None]
    k, v = k[rows, order], v[rows, order]
    lengths = seen.sum(1)
    starts_q = torch.zeros_like(lengths), torch.full_like(lengths, seqlen_q)
    starts_k = torch.zeros_like(lengths), lengths
    return _attend(q, k, v, starts_q, starts_k, softmax_scale=softmax_scale, **options)


def attend_to_run(q, k, v, seen, causal, seen_after=False, **options):
    """Attention to one run of keys of each row.

    Parameters
    ----------
    q, k, v : tensors with axes (batch, seqlen, heads, head_dim)
        The last query is at the last key.
    seen : boolean tensor of shape (batch, seqlen_k)
        In each row one run of True, or none.
    causal : bool
        Otherwise all queries see the run.
    seen_after : bool, default=False
        With causal: whether queries after the run see it, or nothing.
    **options
        As for `flash_attn_varlen_func`.
    """
    before, run = k.shape[1] - q.shape[1], bounds(seen)  # keys before the first query
    first, last = (x.clamp(before, k.shape[1]) - before for x in run)
    end = torch.full_like(first, q.shape[1])
    if not causal:
        return _attend_between(q, k, v, (torch.zeros_like(end), end), run, causal=False, **options)
    out = _attend_between(q, k, v, (first, last), run, causal=True, **options)
    if seen_after:  # other rows are 0 in both
        out = out + _attend_between(q, k, v, (last, end), run, causal=False, **options)
    return out


def _attend_between(q, k, v, queries, keys, **options):
    """Attention of some queries of each row to some keys; each is a pair: the first, and the end.

    The sequences of a row: the queries before these, the keys before these, these, and the queries
    and keys after them.
    """
    (first_q, end_q), (first_k, end_k) = queries, keys
    zero, after_q = torch.zeros_like(first_q), torch.full_like(first_q, q.shape[1])
    starts_q = zero, first_q, first_q, end_q, after_q
    starts_k = zero, zero, first_k, end_k, end_k
    return _attend(q, k, v, starts_q, starts_k, **options)


def bounds(seen):
    """First token of each row's run, and the one after its last: 0 and 0 for a row without any."""
    positions = torch.arange(seen.shape[1], device=seen.device)
    last = (seen * (positions + 1)).amax(1)
    return last - seen.sum(1), last


def _attend(q, k, v, starts_q, starts_k, **options):
    """Attention in a packed batch of so many sequences of each row; `starts` are within it."""
    starts = _packed_starts(starts_q, q.shape[1]), _packed_starts(starts_k, k.shape[1])
    return attend_packed(q, k, v, *starts, **options)


def attend_packed(q, k, v, starts_q, starts_k, **options):
    """Attention of a batch as a packed one, with the starts of its sequences among all tokens."""
    packed = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    out = flash_attn_varlen_func(*packed, starts_q, starts_k, q.shape[1], k.shape[1], **options)
    return out.reshape(*q.shape[:3], v.shape[3])


def _packed_starts(starts, seqlen):
    """The starts of all rows' sequences in a packed batch, and its number of tokens."""
    starts = torch.stack(starts, 1)
    batch = len(starts)
    of_rows = torch.arange(batch, device=starts.device)[:, None] * seqlen
    return torch.nn.functional.pad((starts + of_rows).flatten(), (0, 1), value=batch * seqlen).int()
