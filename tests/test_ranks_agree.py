"""Ranks that differ in dtype, shape or an option: every rank names who differs, and in what."""

import re

import numpy as np
import pytest
from cases import make_qkv, thorough
from test_distributed_mpi import mpiexec, needs_mpi
from test_distributed_nccl import on_threads

from fa_numba.distributed import (
    RanksDifferError,
    communicator,
    context_parallel_decode,
    head_parallel_decode,
    numpy_attn,
    numpy_attn_grad,
    ring_attn,
    ring_attn_grad,
    run_ranks,
    shard,
    tree_decode,
    ulysses_attn,
    ulysses_attn_grad,
)

SEQLEN = 16
LENGTHS = [0, 5, SEQLEN], [0, 6, SEQLEN]


def narrow(x):
    return x.astype(np.float16)


# Name: what rank 1 does to its arrays, its options, and what is said of rank 1 and of the others.
DIFFERENT = {
    "dtype": (narrow, {}, 'dtype is "float16" on rank 1, "float32" on ranks 0, 2, 3'),
    "batch": (lambda x: x[:1], {}, "batch is 1 on rank 1, 2 on ranks 0, 2, 3"),
    "heads": (lambda x: x[:, :, :2], {}, "num_heads is 2 on rank 1, 4 on ranks 0, 2, 3"),
    "head_dim": (lambda x: x[..., :4], {}, "head_dim is 4 on rank 1, 8 on ranks 0, 2, 3"),
    "rows": (lambda x: x[:, 2:], {}, f"seqlen is 8 on rank 1, {SEQLEN} on ranks 0, 2, 3"),
    "causal": (None, {"causal": True}, "causal is true on rank 1, false on ranks 0, 2, 3"),
    "window": (None, {"window_size": (3, -1)}, "window_size[0] is 3 on rank 1, -1 on ranks"),
    "softcap": (None, {"softcap": 2.0}, "softcap is 2.0 on rank 1, 0.0 on ranks 0, 2, 3"),
    "scale": (None, {"softmax_scale": 1.0}, "softmax_scale is 1.0 on rank 1, 0.35"),
    "layout": (None, {"layout": "striped"}, 'layout is "striped" on rank 1, "zigzag" on ranks'),
}  # fmt: skip
# On each transport a rank waits for some seconds: two differences in `make test`, of arrays and of
# an option. Between threads all of them are tried there.
BETWEEN_PROCESSES = [x if x in ("dtype", "causal") else thorough(x) for x in DIFFERENT]


def mine(comm, name, q, k, v):
    """This rank's arrays and options: rank 1 differs."""
    change, options, _ = DIFFERENT[name] if comm.rank == 1 else (None, {}, "")
    return (x if change is None else change(x) for x in (q, k, v)), {"layout": "zigzag"} | options


def ring(comm, name, q, k, v):
    x, options = mine(comm, name, q, k, v)
    return ring_attn(comm, *x, attn=numpy_attn, **options)


def ulysses(comm, name, q, k, v):
    x, options = mine(comm, name, q, k, v)
    return ulysses_attn(comm, *x, attn=numpy_attn, **options)


def grad(function):
    def program(comm, name, q, k, v):
        (q, k, v), options = mine(comm, name, q, k, v)
        out, lse = q, np.zeros((q.shape[0], q.shape[2], q.shape[1]), np.float32)
        return function(comm, q, q, k, v, out, lse, attn_grad=numpy_attn_grad, **options)

    return program


def tree(comm, name, q, k, v):
    x, options = mine(comm, name, q, k, v)
    q, k, v = x
    options.pop("causal", None)
    return tree_decode(comm, q[:, :1], k, v, attn=numpy_attn, **options)


PROGRAMS = {
    "ring_attn": ring,
    "ring_attn_grad": grad(ring_attn_grad),
    "ulysses_attn": ulysses,
    "ulysses_attn_grad": grad(ulysses_attn_grad),
    "tree_decode": tree,
}


@pytest.fixture
def shards(rng):
    return [shard(x, "zigzag", 4) for x in make_qkv(rng, 2, SEQLEN, SEQLEN, 4, 4, 8)]


def message(function, said):
    return f"all ranks must call {function} with equal arguments, got: {said}"


@pytest.mark.parametrize(
    "function, name",
    [(f, name) for f in PROGRAMS for name in DIFFERENT if (f, name) != ("tree_decode", "causal")],
)
def test_a_rank_that_differs_is_named(shards, function, name):
    said = DIFFERENT[name][2]
    if function == "tree_decode":
        said = said.replace("window_size[0]", "window_left")
    with pytest.raises(RanksDifferError) as raised:
        run_ranks(PROGRAMS[function], 4, [name] * 4, *shards)
    assert str(raised.value).startswith(message(function, said))


@pytest.mark.parametrize("name", BETWEEN_PROCESSES)
def test_on_processes_with_nccl(shards, name):
    def program(comm, fake, *x):
        return ring(comm, name, *x)

    _, errors, fakes = on_threads(program, 4, *shards)
    for error in errors:
        assert type(error) is RanksDifferError
        assert str(error).startswith(message("ring_attn", DIFFERENT[name][2]))
    assert all(fake.aborted for fake in fakes)


@needs_mpi
def test_on_processes_with_mpi(tmp_path):
    """Differences one after the other, which each rank catches; a later call's ends the program."""
    said = {
        "differ-dtype": 'dtype is "float16" on rank 1, "float32" on ranks 0, 2',
        "differ-heads": "num_heads is 2 on rank 1, 4 on ranks 0, 2",
        "differ-rows": "seqlen is 36 on rank 1, 42 on ranks 0, 2",
        "differ-causal": "causal is false on rank 1, true on ranks 0, 2",
    }
    status, output = mpiexec(3, tmp_path / "results.npz", *said, "differ-later-checked")
    assert status != 0 and "RankLostError" not in output, output
    for name, what in said.items():
        assert output.count(f"{name}: {message('ring_attn', what)}") == 3, output
    last = message("ring_attn", said["differ-dtype"])
    assert output.count(f"RanksDifferError: {last}") == 3, output


@needs_mpi
def test_a_later_call_that_differs(tmp_path):
    """MPI's counts tell that ranks differ; in the checked mode, above, the ranks say in what."""
    status, output = mpiexec(3, tmp_path / "results.npz", "differ-later")
    assert status != 0
    hint = f"differ in the dtype, the shape or an option: .*{communicator.HOW_TO_COMPARE}"
    assert "rank 1 and rank " in output or " and rank 1 differ" in output, output
    assert re.search(hint, output), output


def test_another_function_and_other_lengths(rng, shards):
    def program(comm, *x):
        return (ulysses_attn if comm.rank == 2 else ring_attn)(comm, *x, attn=numpy_attn)

    said = 'function is "ulysses_attn" on rank 2, "ring_attn" on ranks 0, 1, 3'
    with pytest.raises(RanksDifferError, match=message("one function", said)):
        run_ranks(program, 4, *shards)

    def packed(comm, *x):
        lengths = LENGTHS[comm.rank // 3]
        x = (shard(part, "striped", 4, axis=0, cu_seqlens=lengths)[comm.rank] for part in whole)
        return ring_attn(comm, *x, attn=numpy_attn, cu_seqlens=lengths, layout="striped")

    whole = [x[0] for x in make_qkv(rng, 1, SEQLEN, SEQLEN, 4, 4, 8)]
    with pytest.raises(RanksDifferError) as raised:
        run_ranks(packed, 4)
    assert str(raised.value) == message(
        "ring_attn", "cu_seqlens[1] is 6 on rank 3, 5 on ranks 0, 1, 2"
    )


@pytest.mark.parametrize("checked", [False, True])
def test_the_first_call_of_a_layout_asks(shards, checked):
    """32 bytes to each other rank; later calls ask in the checked mode alone."""
    asked = []

    def program(comm, *x):
        comm.checked = checked
        gather = comm._gather_bytes
        comm._gather_bytes = lambda *args: asked.append(comm.rank) or gather(*args)
        for causal in (True, False, True, False):
            ring_attn(comm, *x, attn=numpy_attn, causal=causal)
        return comm.record

    run = run_ranks(program, 4, *shards)
    assert len(asked) == 4 * (4 if checked else 2)
    sent = 4 * 3 * 2 * shards[1][0].nbytes
    assert run.bytes_sent.sum(axis=1).tolist() == [sent] * 4  # those of the rings alone


def test_the_environment_chooses_the_checked_mode(shards, monkeypatch):
    def program(comm, *x):
        for causal in (True, False, comm.rank != 1):
            ring_attn(comm, *x, attn=numpy_attn, causal=causal)

    run_ranks(program, 4, *shards)  # all have made calls with both before: nothing tells
    monkeypatch.setenv(communicator.CHECK_RANKS, "1")
    said = "causal is false on rank 1, true on ranks 0, 2, 3"
    with pytest.raises(RanksDifferError, match=said):
        run_ranks(program, 4, *shards)

    def one_is_checked(comm, *x):
        comm.checked = comm.rank == 1
        return ring_attn(comm, *x, attn=numpy_attn)

    with pytest.raises(RanksDifferError, match="FA_NUMBA_CHECK_RANKS is true on rank 1, false"):
        run_ranks(one_is_checked, 4, *shards)


def test_a_rank_that_sends_an_array_in_place_of_its_question(shards, monkeypatch):
    """What a transport may deliver that checks no sizes, after a later call that differs."""
    monkeypatch.setattr(
        communicator.Communicator, "_gather_bytes", lambda self, data, *_: [data, bytes(32)]
    )
    said = f"rank 0 calls ring_attn .* new here, and rank 1 does not; {communicator.HOW_TO_COMPARE}"
    with pytest.raises(RanksDifferError, match=said):
        run_ranks(ring, 2, ["dtype"] * 2, *(x[:2] for x in shards))


def test_all_ranks_forget_layouts_together(shards, monkeypatch):
    monkeypatch.setattr(communicator, "MOST_AGREED", 2)

    def program(comm, *x):
        for left in (1, 2, 3, 1, 1, 3):
            ring_attn(comm, *x, attn=numpy_attn, window_size=(left, 0))
        return len(comm._agreed)

    assert run_ranks(program, 4, *shards).results == [2] * 4


ARGUMENTS = {
    head_parallel_decode: ["q", "alibi_slopes", "block_table", "seq_lens", "softcap"],
    context_parallel_decode: ["q", "block_table", "seq_lens", "softcap"],
    tree_decode: ["q", "alibi_slopes", "softcap"],
}


@pytest.mark.parametrize(
    "function, name", [(f, x) for f, names in ARGUMENTS.items() for x in names]
)
def test_decoding_from_other_values(rng, function, name):
    """Of arrays that all ranks must have alike, the values are compared too."""
    q, k, v = make_qkv(rng, 1, 1, 4, 4, 4, 8)
    slopes = np.float32([0.5, 0.25, 0.125, 0.0625])
    table, lengths = np.int32([[0, 1]]), np.int32([4])

    def program(comm):
        other = comm.rank == 1
        change = {name: lambda x: (x / 2).astype(x.dtype)}
        x = {"q": q, "alibi_slopes": slopes, "block_table": table, "seq_lens": lengths}
        if other and name in x:
            x[name] = change[name](x[name])
        options = {"softcap": 1.0 if other and name == "softcap" else 0.0}
        if function is not context_parallel_decode:
            options["alibi_slopes"] = x["alibi_slopes"]
        if function is tree_decode:
            return tree_decode(comm, x["q"], k, v, attn=numpy_attn, **options)
        pages = [part.reshape(2, 2, 4, 8) for part in (k, v)]
        if function is head_parallel_decode:
            pages = [part[:, :, 2 * comm.rank : 2 * comm.rank + 2] for part in pages]
            options["num_kv_heads"] = 4
        return function(comm, x["q"], *pages, x["block_table"], x["seq_lens"], **options)

    said = "softcap is 0.0 on rank 0" if name == "softcap" else f"digest of {name} is "
    with pytest.raises(RanksDifferError, match=message(function.__name__, said)):
        run_ranks(program, 2)
