"""The NCCL engine on a model of NCCL: the bits of ranks in one process, an end to every wait."""

import contextlib
import json
import socket
import sys
import threading

import fake_nccl
import numpy as np
import pytest
from cases import assert_equal, make_qkv

from fa_numba.checks.distributed import SECRET
from fa_numba.distributed import (
    RankLostError,
    nccl,
    numpy_attn,
    numpy_attn_grad,
    ring_attn,
    ring_attn_grad,
    run,
    run_ranks,
    shard,
)
from fa_numba.distributed.board import Board, proof


@pytest.fixture(autouse=True)
def short_graces(monkeypatch):
    monkeypatch.setattr("fa_numba.distributed.lost.GRACE", 0.3)
    monkeypatch.setattr("fa_numba.distributed.nccl.GRACE", 0.3)
    monkeypatch.setattr("fa_numba.distributed.nccl.LOOK", 0.02)


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()


def on_threads(program, world_size, *shards, timeout=20.0):
    """Call program(comm, fake, *its shards) on each rank: results, errors, fakes."""
    world, address = fake_nccl.World(world_size), free_address()
    fakes = [fake_nccl.Rank(world, rank) for rank in range(world_size)]
    results, errors = [None] * world_size, [None] * world_size

    def body(rank):
        try:
            board = Board(rank, world_size, address, timeout, "secret")
            comm = None
            try:
                fake = fakes[rank]
                comm = nccl._NCCL(fake.cupy, fake.nccl, board, bytes(range(128)), timeout)
                results[rank] = program(comm, fake, *(parts[rank] for parts in shards))
                comm.finish()
            except BaseException as error:
                nccl._leave(board, comm, error)
                raise
            board.close()
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=body, args=(r,), daemon=True) for r in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results, errors, fakes


def ring(comm, fake, q, k, v, dout):
    options = {"layout": "zigzag", "seqlen": 37, "causal": True}
    out, lse = ring_attn(comm, q, k, v, attn=numpy_attn, **options)
    gradients = ring_attn_grad(comm, dout, q, k, v, out, lse, attn_grad=numpy_attn_grad, **options)
    return out, lse, *gradients, np.array([s.bytes_sent for s in comm.record.steps])


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_bits_of_ranks_in_one_process(rng, world_size):
    q, k, v = make_qkv(rng, 1, 37, 37, 4, 2, 8)
    shards = [shard(x, "zigzag", world_size) for x in (q, k, v, q)]
    got, errors, fakes = on_threads(ring, world_size, *shards)
    assert errors == [None] * world_size
    want = run_ranks(lambda comm, *x: ring(comm, None, *x), world_size, *shards)
    for mine, other in zip(got, want.results, strict=True):
        assert_equal(mine, other)
    assert all(fake.destroyed and not fake.aborted for fake in fakes)


def test_transfers_and_computation_wait_for_each_other():
    """The transfer's stream waits for what is sent, the current one for what arrives."""

    def program(comm, fake):
        fake.waited.clear()
        other = 1 - comm.rank
        arrival = comm.start_send_recv(np.array([comm.rank]), other, other)
        ((stream, ready),) = fake.waited
        assert stream is not fake.current and ready.recorded is fake.current
        got = arrival.wait()
        _, (stream, done) = fake.waited
        assert stream is fake.current and done.recorded is not fake.current
        return int(got[0])

    results, errors, _ = on_threads(program, 2)
    assert errors == [None] * 2 and results == [1, 0]


def test_exchanges_may_be_awaited_in_any_order():
    def program(comm, fake):
        other = 1 - comm.rank
        first = comm.start_send_recv(np.array([comm.rank]), other, other)
        second = comm.start_send_recv(np.array([comm.rank + 10]), other, other)
        return int(second.wait()[0]), int(first.wait()[0])

    results, errors, _ = on_threads(program, 2)
    assert errors == [None] * 2 and results == [(11, 1), (10, 0)]


def test_a_rank_that_raises_is_named():
    def program(comm, fake):
        if comm.rank == 1:
            raise ValueError("out of luck")
        comm.all_gather(np.ones(1))

    _, errors, fakes = on_threads(program, 3)
    assert isinstance(errors[1], ValueError)
    for rank in (0, 2):
        assert str(errors[rank]) == "rank 1 is lost: ValueError: out of luck"
        assert isinstance(errors[rank], RankLostError) and errors[rank].rank == 1
        assert fakes[rank].aborted


def test_a_rank_that_stalls_is_named():
    others = threading.Semaphore(0)  # those that have found out

    def program(comm, fake):
        if comm.rank == 2:
            assert others.acquire(timeout=30) and others.acquire(timeout=30)
            return
        try:
            comm.all_gather(np.ones(1))
        finally:
            others.release()

    _, errors, fakes = on_threads(program, 3, timeout=0.7)
    for rank in (0, 1):
        assert str(errors[rank]).startswith("rank 2 is lost: no answer within"), errors
        assert errors[rank].rank == 2 and fakes[rank].aborted


def test_a_process_that_ends_is_named():
    def program(comm, fake):
        if comm.rank == 1:
            comm._board._socket.shutdown(socket.SHUT_RDWR)  # as if the process were killed
            return
        comm.all_gather(np.ones(1))

    _, errors, fakes = on_threads(program, 3)
    for rank in (0, 2):
        assert str(errors[rank]) == "rank 1 is lost: its process has ended"
        assert fakes[rank].aborted


def test_an_error_of_nccl_is_an_error():
    def program(comm, fake):
        if comm.rank == 0:
            fake.broken = "NCCL_ERROR_REMOTE_ERROR"
            comm.send_recv(np.ones(1), 1, 1)

    _, errors, fakes = on_threads(program, 2)
    assert str(errors[0]) == "NCCL reports NCCL_ERROR_REMOTE_ERROR, waiting for rank 1"
    assert fakes[0].aborted and isinstance(errors[1], RankLostError)


def test_ranks_that_all_wait_are_an_error():
    def program(comm, fake):
        comm.start_exchange({}, {1 - comm.rank: (1,)}, np.zeros(1)).wait()

    _, errors, _ = on_threads(program, 2, timeout=0.5)
    assert any(str(error).startswith("no rank can go on") for error in errors), errors


def test_a_rank_that_never_comes_is_named():
    board = Board(0, 2, free_address(), 0.3, "secret")
    with pytest.raises(RankLostError, match="rank 1 has not arrived at 'start' within 0.3 s"):
        board.arrive("start")
    with pytest.raises(RankLostError, match="no rank has pinned 'x' within 0.3 s"):
        board.get("x")
    board.close()
    with pytest.raises(RankLostError, match="rank 0 is lost: no board at"):
        Board(1, 2, free_address(), 0.1, "secret")


def hello(number, secret="secret", rank=1):
    return json.dumps(["hello", rank, proof(secret, number, rank)]).encode()


def stolen(number):
    """The proof of another connection."""
    return hello("0" * 32)


STRANGERS = {
    "put": lambda number: b'["put", "nccl", [1]]',
    "tell": lambda number: b'["tell", "lost", 1, "rank 1 is lost"]',
    "hello": lambda number: b'["hello", 1]',
    "hello without a secret": lambda number: hello(number, ""),
    "hello with another secret": lambda number: hello(number, "Secret"),
    "hello, as another connection's": stolen,
    "hello as a rank that is there": hello,
    "hello as no rank": lambda number: hello(number, rank=2),
    "other types": lambda number: b'["hello", "1", 7]',
    "a method of the class": lambda number: b'["_dir__"]',
    "no list": lambda number: b"7",
    "no JSON": lambda number: b"GET / HTTP/1.1",
    "brackets": lambda number: b"[" * 100_000,
    "no text": lambda number: b"\xff\xfe",
    "nothing": lambda number: b"",
}


@pytest.mark.parametrize("says", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_at_the_board_does_no_harm(capfd, says):
    address = free_address()
    boards = [Board(rank, 2, address, 20.0, "secret") for rank in range(2)]
    with socket.create_connection(address, timeout=5) as stranger:
        number = stranger.makefile("r").readline().strip()
        with contextlib.suppress(ConnectionError):  # the board may have closed it before
            stranger.sendall(says(number) + b"\n")
            assert stranger.makefile("rb").read() in (b"", b"false\n")
    boards[0].put("nccl", [2])
    assert boards[1].get("nccl") == [2]
    for board in boards:
        assert board.notices() == {}
    threads = [threading.Thread(target=board.close) for board in boards]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert capfd.readouterr().err == ""


def test_a_silent_stranger_does_no_harm(monkeypatch):
    address = free_address()
    board = Board(0, 1, address, 20.0, "secret")
    monkeypatch.setattr("fa_numba.distributed.board.PATIENCE", 0.2)
    with socket.create_connection(address, timeout=5) as stranger:
        lines = stranger.makefile("rb")
        lines.readline()
        board.arrive("start")
        assert lines.read() == b"false\n"  # and closed
    board.close()


def test_a_rank_with_another_secret_is_told():
    address = free_address()
    board = Board(0, 2, address, 20.0, "secret")
    with pytest.raises(ValueError, match=r"refuses rank 1: .* FA_NUMBA_BOARD_SECRET must be the"):
        Board(1, 2, address, 20.0, "another")
    assert board.notices() == {}
    board.close()
    with socket.create_server(("127.0.0.1", 0)) as server:  # another program has the port
        threading.Thread(target=lambda: server.accept()[0].close()).start()
        with pytest.raises(RankLostError, match="rank 0 is lost: its board is gone"):
            Board(1, 2, server.getsockname(), 20.0, "secret")


def launch(tmp_path, text, world_size, *options):
    """Exit status of `python -m fa_numba.distributed.run`."""
    program = tmp_path / "program.py"
    program.write_text(text)
    return run.main(["-n", str(world_size), *options, str(program), "a"])


RANKS = """
import os, sys, time
names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"
assert len(os.environ["FA_NUMBA_BOARD_SECRET"]) == 32
line = " ".join([*(os.environ[x] for x in names), sys.argv[1]]) + "\\n"
os.write(1, line.encode())
if os.environ["RANK"] == "1":
    {fault}
"""


def test_the_launcher_starts_the_ranks_and_ends_them(tmp_path, capfd):
    assert launch(tmp_path, RANKS.format(fault="pass"), 2) == 0
    lines = sorted(capfd.readouterr().out.splitlines())
    assert lines == ["0 0 2 127.0.0.1 a", "1 1 2 127.0.0.1 a"]
    assert launch(tmp_path, RANKS.format(fault="sys.exit(3)"), 2) == 3
    assert launch(tmp_path, RANKS.format(fault="time.sleep(600)"), 2, "--limit", "1") == 124


def test_isolated_ranks_see_one_gpu_each(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    text = """
import os
line = os.environ["CUDA_VISIBLE_DEVICES"] + os.environ["LOCAL_RANK"]
os.write(1, line.encode() + bytes([10]))
"""
    assert launch(tmp_path, text, 2, "--isolate") == 0
    assert sorted(capfd.readouterr().out.split()) == ["30", "50"]


def test_a_failed_rank_ends_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "PATIENCE", 0.2)
    program = tmp_path / "program.py"
    program.write_text(RANKS.format(fault="sys.exit(5)") + "else:\n    time.sleep(600)\n")
    assert run.start([sys.executable, str(program), "a"], 2) == 5


@pytest.mark.parametrize(
    "environment, message",
    [
        ({}, "the environment variable RANK must be an integer, got nothing"),
        ({"RANK": "one"}, "the environment variable RANK must be an integer, got 'one'"),
        (
            {"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_PORT": "1"},
            "RANK must be less than WORLD_SIZE, 2, got 2",
        ),
        (
            {
                "RANK": "0",
                "WORLD_SIZE": "2",
                "LOCAL_RANK": "0",
                "MASTER_PORT": "1",
                "MASTER_ADDR": "10.0.0.1",
            },
            "FA_NUMBA_BOARD_SECRET must be a secret text, the same on all ranks, because other",
        ),
    ],
)
def test_an_environment_without_ranks(monkeypatch, environment, message):
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "MASTER_ADDR", SECRET
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message), nccl.communicator():
        raise AssertionError("no communicator without ranks")


def test_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match=r"needs CuPy: pip install fa-numba\[cuda13,nccl\]"):
        nccl.load()
