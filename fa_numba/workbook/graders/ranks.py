"""Shared by the graders of programs for many ranks: a causal problem cut into parts, and its runs.

The ranks run in the answering process, by `fa_numba.distributed.run_ranks`. What a rank did comes
back as plain data: its result, its messages, and the order in which it did things.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fa_numba.distributed.layouts import make_layout
from fa_numba.workbook.graders.attention import Head
from fa_numba.workbook.graders.causes import Wrong


@dataclass(frozen=True)
class RankRun:
    """The run of a program on all ranks.

    Attributes
    ----------
    results : list
        Of each rank.
    bytes_sent, messages : integer arrays of shape (world_size, num_steps)
    events : list of lists of tuples
        Of each rank, in order: ("start", destination, source), ("wait",), ("begin_step",),
        ("attend", rank, owner, whose keys they are), ("all_reduce", op, size).
    """

    results: list
    bytes_sent: np.ndarray
    messages: np.ndarray
    events: list


def run_on_ranks(program, world_size, *shards, functions=(), attend=None, order=None, strict=False):
    """Run a learner's program on ranks, in its own process.

    Parameters
    ----------
    program : Function
        The learner's: called as ``program(comm, *its shards, [attend,] *functions)``.
    world_size : int
    *shards : lists of world_size arrays
        The last one is that of the keys and values, where there is `attend`.
    functions : sequence of functions
        The same for every rank; of the grader, and such that they can be sent as code.
    attend : function of (q, kv, rank, owner), optional
        The calls are noted among the events.
    order : int, optional
        Seed of the order in which ranks run.
    strict : bool, default=False
        A warning is an error.
    """
    __tracebackhide__ = True
    parts = [list(part) for part in shards]
    arguments = (program, world_size, parts, list(functions), attend, order, strict)
    return RankRun(*program._answer.request("call", _on_ranks, args=arguments))


def _on_ranks(program, world_size, shards, functions, attend, order, strict):
    """Runs in the answering process, as code; so it imports what it needs."""
    import warnings

    import numpy

    from fa_numba.distributed import RankLostError, run_ranks

    events = [[] for _ in range(world_size)]

    def noted(comm, *mine):
        events[comm.rank].clear()  # without threads a rank begins more than once
        note = events[comm.rank].append
        start, all_reduce = comm.start_send_recv, comm.all_reduce
        begin_step = comm.record.begin_step

        def start_noted(x, destination, source, shape=None):
            note(("start", destination, source))
            arrival = start(x, destination, source, shape)
            wait = arrival.wait

            def wait_noted():
                note(("wait",))
                return wait()

            arrival.wait = wait_noted
            return arrival

        def attend_noted(q, kv, rank, owner):
            same = [r for r in range(world_size) if numpy.array_equal(kv, shards[-1][r])]
            note(("attend", rank, owner, same[0] if same else None))
            return attend(q, kv, rank, owner)

        def all_reduce_noted(x, op="sum"):
            note(("all_reduce", op, x.size))
            return all_reduce(x, op)

        def begin_step_noted():
            note(("begin_step",))
            begin_step()

        comm.start_send_recv, comm.all_reduce = start_noted, all_reduce_noted
        comm.record.begin_step = begin_step_noted
        first = [] if attend is None else [attend_noted]
        return program(comm, *mine, *first, *functions)

    try:
        with warnings.catch_warnings():
            if strict:
                warnings.simplefilter("error")
            run = run_ranks(noted, world_size, *shards, order=order, timeout=None)
    except RankLostError as error:  # the learner's own error says more
        if error.__cause__ is None:
            raise RuntimeError(str(error)) from None
        raise error.__cause__ from None
    return run.results, run.bytes_sent, run.messages, events


# --- a causal head, cut into parts


@dataclass(frozen=True)
class CutHead:
    """One causal head whose tokens are on several ranks; float32, with answers in float64."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    dout: np.ndarray
    layout: str
    world_size: int

    @cached_property
    def tokens(self):
        """The tokens of each rank."""
        layout = make_layout(self.layout, len(self.q), self.world_size)
        return [layout.tokens(rank) for rank in range(self.world_size)]

    def of_ranks(self, x):
        """A list with the rows of each rank."""
        return [np.ascontiguousarray(x[tokens]) for tokens in self.tokens]

    @property
    def shards(self):
        """q and kv of each rank."""
        kv = [np.stack(pair) for pair in zip(*map(self.of_ranks, (self.k, self.v)), strict=True)]
        return self.of_ranks(self.q), kv

    def joined(self, parts):
        """The rows of all ranks in the order of the tokens: the inverse of `of_ranks`."""
        rows = np.concatenate([np.asarray(part) for part in parts])
        return rows[np.argsort(np.concatenate(self.tokens))]

    def answers(self, dtype=np.float64):
        """out, lse, delta, dq, dk and dv, computed at once."""
        head = Head(self.q, self.k, self.v, self.dout, causal=True, dtype=dtype)
        return head.forward | head.backward

    @property
    def functions(self):
        """attend, merge and attend_grad for these ranks, which can be sent as code."""
        layout, world_size, seqlen = self.layout, self.world_size, len(self.q)

        def positions(rank):
            count = seqlen // world_size
            if layout == "contiguous":
                return np.arange(rank * count, (rank + 1) * count)
            if layout == "striped":
                return np.arange(rank, seqlen, world_size)
            first = np.arange(rank * count // 2, (rank + 1) * count // 2)
            return np.append(first, seqlen - 1 - first[::-1])

        def scores(q, kv, rank, owner):
            s = q @ kv[0].T / np.float32(np.sqrt(q.shape[1]))
            return np.where(positions(rank)[:, None] >= positions(owner), s, -np.float32(np.inf))

        def attend(q, kv, rank, owner):
            s = scores(q, kv, rank, owner)
            m = s.max(axis=1)
            p = np.exp(s - np.where(m == -np.inf, np.float32(0), m)[:, None])
            l = p.sum(axis=1)
            with np.errstate(divide="ignore"):
                return p @ kv[1] / np.where(l == 0, np.float32(1), l)[:, None], m + np.log(l)

        def merge(a, b):
            (out_a, lse_a), (out_b, lse_b) = a, b
            lse = np.logaddexp(lse_a, lse_b)
            base = np.where(lse == -np.inf, np.float32(0), lse)
            w_a, w_b = np.exp(lse_a - base)[:, None], np.exp(lse_b - base)[:, None]
            return w_a * out_a + w_b * out_b, lse

        def attend_grad(dout, q, kv, out, lse, rank, owner):
            p = np.exp(scores(q, kv, rank, owner) - lse[:, None])
            delta = np.sum(dout * out, axis=1, keepdims=True)
            ds = p * (dout @ kv[1].T - delta) / np.float32(np.sqrt(q.shape[1]))
            return ds @ kv[0], np.stack([ds.T @ q, p.T @ dout])

        return attend, merge, attend_grad


def cut_head(layout, world_size, c=4, head_dim=5, *, seed=0):
    """A head of normally distributed numbers, c tokens on each rank; c is even."""
    rng = np.random.default_rng(seed)
    arrays = rng.standard_normal((4, world_size * c, head_dim), np.float32)
    return CutHead(*arrays, layout, world_size)


# --- comparison


def first_difference(got, want, plain, factor):
    """The index of the first element that is farther from float64 than plain float32 is, or None.

    `want` is the float64 and `plain` the float32 result; allowed is `factor` times the largest
    error of plain float32.
    """
    error = factor * np.abs(plain - want).max(initial=0) + 1e-6 * np.maximum(1, np.abs(want))
    wrong = ~(np.abs(got - want) <= error)  # NaN is wrong
    return tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else None


def expect_on_ranks(head, name, parts, *, factor, mistakes=()):
    """Fail unless the parts of all ranks are those of one device.

    `parts` are world_size arrays, `factor` is that of `first_difference`. `mistakes` are known
    causes, each with the parts that it leads to; None fits always.
    """
    wants, plains = (head.of_ranks(head.answers(d)[name]) for d in (np.float64, np.float32))
    for rank, (got, want, plain) in enumerate(zip(parts, wants, plains, strict=True)):
        got = np.asarray(got)
        assert got.shape == want.shape, (
            f"rank {rank}: {name} must have the shape {want.shape}, got {got.shape}"
        )
        at = first_difference(got, want, plain, factor)
        if at is None:
            continue
        causes = [
            f"That is the result of rank {r}."
            for r, (x, y) in enumerate(zip(wants, plains, strict=True))
            if first_difference(got, x, y, factor) is None
        ]
        causes += [
            sentence
            for sentence, of_ranks in mistakes
            if of_ranks is None or np.allclose(got, of_ranks[rank], rtol=1e-4, atol=1e-5)
        ]
        raise Wrong(
            f"W = {head.world_size}, rank {rank}: {name}{list(at)} (token "
            f"{head.tokens[rank][at[0]]}) must be {want[at]:.6g}, got {got[at]:.6g}. "
            f"{causes[0] if causes else ''}",
            causes=causes,
            where=f"W = {head.world_size}, rank {rank}",
        )
