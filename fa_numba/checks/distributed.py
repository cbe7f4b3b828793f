"""The arguments of `fa_numba.distributed`."""

import numbers
import operator

import numpy as np

from fa_numba import checks
from fa_numba.checks.values import integer
from fa_numba.runtime import arrays

LAYOUTS = ("contiguous", "striped", "zigzag")
SECRET = "FA_NUMBA_BOARD_SECRET"  # environment variable: who may use the board of rank 0


def check_layout(layout):
    """Raise unless this is the name of a layout."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(map(repr, LAYOUTS))}, got {layout!r}")


def check_world_size(world_size):
    """The number of ranks as an int."""
    return integer("world_size", world_size, at_least=1)


def check_timeout(timeout):
    """The limit in seconds as a float, or None."""
    if timeout is None:
        return None
    return check_positive("timeout", timeout, "a number of seconds or None")


def check_rank_environment(environment):
    """Rank, number of ranks, index of the GPU, and the board's address and secret, from the
    environment."""
    values = {}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"):
        text = environment.get(name)
        if text is None or not text.isdigit():
            got = "nothing" if text is None else repr(text)
            raise ValueError(
                f"the environment variable {name} must be an integer, got {got}: start the program "
                "with python -m fa_numba.distributed.run, or with torchrun"
            )
        values[name] = int(text)
    rank, world_size = values["RANK"], values["WORLD_SIZE"]
    if rank >= world_size:
        raise ValueError(f"RANK must be less than WORLD_SIZE, {world_size}, got {rank}")
    host, secret = environment.get("MASTER_ADDR", "127.0.0.1"), environment.get(SECRET, "")
    if not (secret or host.startswith("127.") or host in ("localhost", "::1")):
        raise ValueError(
            f"the environment variable {SECRET} must be a secret text, the same on all ranks, "
            f"because other machines reach MASTER_ADDR, {host!r}; got nothing"
        )
    return rank, world_size, values["LOCAL_RANK"], (host, values["MASTER_PORT"] + 1), secret


def check_shards(shards, world_size):
    """Raise unless each positional argument of run_ranks has an element for each rank."""
    for i, parts in enumerate(shards):
        if not isinstance(parts, (list, tuple)):
            raise TypeError(
                f"shards[{i}] must be a list with an element for each rank, "
                f"got {type(parts).__name__}: shard(x, layout, world_size) makes one"
            )
        if len(parts) != world_size:
            raise ValueError(
                f"shards[{i}] must have {world_size} elements, one for each rank, got {len(parts)}"
            )


def check_axis(x, axis, name="x"):
    """The length of an axis of an array."""
    if arrays.library_of(x) is None:
        raise TypeError(f"{name} must be an array, got {type(x).__name__}")
    axis = integer("axis", axis, at_least=-len(x.shape))
    if axis >= len(x.shape):
        raise ValueError(f"axis must be less than {len(x.shape)}, the axes of {name}, got {axis}")
    return x.shape[axis]


def check_cu_seqlens(cu_seqlens):
    """Where the sequences of a packed batch begin and end, as a tuple of ints."""
    if arrays.library_of(cu_seqlens) not in (None, "numpy"):
        raise TypeError(
            "cu_seqlens must be a NumPy array, a list or a tuple, got a GPU array: every rank "
            "plans with it on the CPU"
        )
    try:
        starts = tuple(operator.index(n) for n in cu_seqlens)
    except TypeError:
        raise TypeError(f"cu_seqlens must hold integers, got {cu_seqlens!r:.80}") from None
    if len(starts) < 2 or starts[0] != 0 or any(np.diff(starts) < 0):
        raise ValueError(
            f"cu_seqlens must begin with 0 and never decrease, got {list(starts)!s:.80}"
        )
    return starts


def check_tokens(name, length, expected, where):
    """Raise unless an array has as many tokens as its layout says."""
    if length != expected:
        raise ValueError(f"{name} must have {expected} tokens ({where}), got {length}")


def check_seqlen(seqlen, length, world_size, cu_seqlens=None):
    """The length of the whole sequence as an int; None is equal parts on all ranks."""
    if seqlen is None:
        return length * world_size
    if cu_seqlens is not None:
        raise ValueError(f"seqlen must be None where cu_seqlens is given, got {seqlen!r}")
    return integer("seqlen", seqlen, at_least=0)


def check_ring(q, k, v, packed):
    """q, k, v with four axes; raise unless they are one rank's part of self-attention."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if arrays.library_of(x) is None:
            raise TypeError(f"{name} must be an array, got {type(x).__name__}")
    if packed and all(len(x.shape) == 3 for x in (q, k, v)):
        q, k, v = (x[None] for x in (q, k, v))
    elif packed:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(
            "q, k, v must have axes (num_tokens, heads, head_dim) where cu_seqlens is given, "
            f"got shapes {shapes}"
        )
    checks.check_qkv(q, k, v)
    if q.shape[1] != k.shape[1]:
        raise ValueError(
            f"k and v must have the seqlen of q, {q.shape[1]}: each rank holds queries and keys "
            f"of the same tokens, got {k.shape[1]}"
        )
    return q, k, v


def check_ring_grad(dout, q, k, v, out, lse, packed):
    """The arrays of `check_ring`, dout, out and lse with a batch axis; raise unless they fit."""
    q, k, v = check_ring(q, k, v, packed)
    if packed:
        dout, out, lse = (x[None] for x in (dout, out, lse))
    checks.check_bwd(dout, q, k, v, out, lse)
    return q, k, v, dout, out, lse


def check_tree(q, k, v):
    """Raise unless these are one query per sequence, and one rank's keys and values."""
    checks.check_qkv(q, k, v)
    check_one_query(q)


def check_one_query(q):
    """Raise unless q is one query per sequence."""
    if len(q.shape) != 4 or q.shape[1] != 1:
        raise ValueError(
            "q must have shape (batch, 1, num_heads, head_dim), the query of the last token, "
            f"got {tuple(q.shape)}"
        )


def check_cache_heads(k_cache, kv_heads, rank):
    """Raise unless a rank's cache has the K/V heads that head_shard gives it."""
    expected = kv_heads.stop - kv_heads.start
    if k_cache.shape[2] != expected:
        raise ValueError(
            f"k_cache must have {expected} K/V heads on rank {rank}, those that head_shard gives "
            f"it, got {k_cache.shape[2]}"
        )


def check_scores(q, causal, window_size, softcap, softmax_scale):
    """The two sides of the window, causal in them, and a kernel's options that mask nothing."""
    left, right = checks.check_window_size(window_size)
    right = 0 if checks.check_causal(causal) else right
    scale = checks.check_softmax_scale(softmax_scale, q.shape[3])
    return left, right, {"softcap": checks.check_softcap(softcap), "softmax_scale": float(scale)}


def check_slopes(q, alibi_slopes):
    """Raise unless these are slopes for the heads of q, or None."""
    checks.check_mask(q, False, (-1, -1), 0.0, alibi_slopes)


def check_rank_tokens(x, layout, rank, name="q"):
    """Raise unless a rank has as many tokens as its layout says."""
    expected = layout.count(rank)
    if x.shape[1] != expected:
        raise ValueError(
            f"{name} must have {expected} tokens on rank {rank} of {layout.world_size} in the "
            f"{layout.name} layout of {layout.cu_seqlens[-1]} tokens, got {x.shape[1]}: pass "
            "seqlen, or cu_seqlens for a packed batch, where ranks hold different numbers of tokens"
        )


def check_communicator(comm):
    """Raise unless this can be a Communicator."""
    if not hasattr(comm, "start_exchange"):
        raise TypeError(
            f"comm must be a Communicator, got {type(comm).__name__}: run_ranks gives each rank "
            "one, and so does fa_numba.distributed.mpi.communicator()"
        )


def check_positive(name, value, wanted="a number"):
    """A positive number as a float."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be {wanted}, got {value!r}")
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return float(value)
