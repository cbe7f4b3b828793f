"""Program of bench_many_gpus on each GPU: `python -m fa_numba.distributed.run -n 2 <this file>`.

Arguments: a file for the rows, and the seconds that the ranks have. Rank 0 writes the file after
each measurement, and decides what there is still time for.
"""

import contextlib
import json
import math
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
# Multicast over NVLink needs rights that shared hosts do not give; nothing here uses it.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import cupy  # noqa: E402
import numpy as np  # noqa: E402

from fa_numba import flash_attn, flash_attn_grad  # noqa: E402
from fa_numba.distributed import local_attn as chosen  # noqa: E402
from fa_numba.distributed import (  # noqa: E402
    nccl,
    prediction,
    ring_attn,
    ring_attn_grad,
    shard,
    tree_decode,
    ulysses_attn,
    ulysses_attn_grad,
)
from fa_numba.distributed.communicator import Arrival  # noqa: E402
from fa_numba.distributed.merge import RunningState  # noqa: E402
from fa_numba.distributed.ring import stacked  # noqa: E402
from fa_numba.on_cuda_cores.running_state import convert  # noqa: E402
from fa_numba.runtime import arrays  # noqa: E402

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
SEQLENS = 16_384, 65_536, 131_072  # tokens of each GPU
KEYS = 1 << 20, 1 << 22, 1 << 23  # of all GPUs, in decoding
CHECKED = 4099  # tokens of all GPUs, where results are compared with float64
METHODS = ("zigzag", "striped", "contiguous", "ulysses")
FORWARD, BOTH = "forward", "forward+backward"
LINK_MIB = 1, 16, 256, 1024  # of a message, in measuring the link
# Largest error, relative to the largest value. A rounding to bfloat16 is at most 2⁻⁸: those of P
# and of out, and those of P, dS and the gradient, leave some room.
LIMITS = {"out": 8e-3, "dq": 1.6e-2, "dk": 1.6e-2, "dv": 1.6e-2}


@contextlib.contextmanager
def noted_waits(comm):
    """Yield the list of pairs of events: before the compute stream waits for an exchange, after.

    The first event happens when the work enqueued so far is done. The second one happens when the
    exchange is complete, too. Between the two the GPU computes nothing.
    """
    usual, pairs = comm.start_exchange, []

    def start_exchange(*args):
        arrival = usual(*args)

        def wait():
            before, after = cupy.cuda.Event(), cupy.cuda.Event()
            before.record()
            arrived = arrival.wait()
            after.record()
            pairs.append((before, after))
            return arrived

        return Arrival(wait)

    comm.start_exchange = start_exchange
    try:
        yield pairs
    finally:
        del comm.start_exchange


def random(*shape, seed=0, dtype="bfloat16"):
    """Standard normal numbers, in bfloat16 rounded by this package's own kernel."""
    x = cupy.random.RandomState(seed).standard_normal(shape, dtype=np.float32)
    return x if dtype == "float32" else convert(x, np.dtype(dtype))


class Ranks:
    """The ranks' common clock, and the rows so far."""

    def __init__(self, comm, path, seconds):
        self.comm, self.path, self.rows = comm, path, []
        self.end = time.monotonic() + seconds

    def add(self, **row):
        self.rows.append(row)
        if self.comm.rank == 0:
            print(*(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
            sys.stdout.flush()
            self.path.write_text(json.dumps(self.rows))

    def agree(self, number, op="max"):
        """The largest number of all ranks, or their sum."""
        return float(self.comm.all_reduce(cupy.full(1, number, np.float64), op)[0])

    def time_left_for(self, seconds):
        """Whether rank 0 has that many seconds left."""
        enough = self.comm.rank != 0 or time.monotonic() + seconds < self.end
        return self.agree(0.0 if enough else 1.0) == 0

    def seconds(self, function, repeats):
        """Median over `repeats` of the slowest rank's seconds; all ranks start together."""
        samples = []
        for _ in range(repeats):
            self.comm.all_reduce(cupy.zeros(1))
            cupy.cuda.Device().synchronize()
            start = time.perf_counter()
            function()
            cupy.cuda.Device().synchronize()
            samples.append(time.perf_counter() - start)
        return float(np.median([self.agree(x) for x in samples]))


def run_method(comm, method, q, k, v, dout=None, seqlen=None):
    """Forward, or forward and backward if there is a dout."""
    attn, attn_grad, layout = ring_attn, ring_attn_grad, method
    if method == "ulysses":
        attn, attn_grad, layout = ulysses_attn, ulysses_attn_grad, "contiguous"
    options = {"layout": layout, "causal": True, "seqlen": seqlen}
    result = attn(comm, q, k, v, **options)
    if dout is None:
        return result
    return *result, *attn_grad(comm, dout, q, k, v, *result, **options)


def check(ranks):
    """Each method against float64 and the formulas, for a length that no number of ranks divides.

    The rows have root mean square errors, and those of one GPU that has the whole sequence.
    """
    comm, seqlen = ranks.comm, CHECKED
    rng = np.random.default_rng(0)
    shapes = [(1, seqlen, heads, HEAD_DIM) for heads in (16, 4, 4, 16)]
    dtype = np.dtype("bfloat16")
    q, k, v, dout = (rng.standard_normal(s, dtype=np.float32).astype(dtype) for s in shapes)
    want = in_float64(q, k, v, dout)
    whole = [on_gpu(x) for x in (q, k, v)]
    out, lse = flash_attn(*whole, causal=True)
    alone = out, *flash_attn_grad(on_gpu(dout), *whole, out, lse, causal=True)
    squares_alone = [squares(x, y) for x, y in zip(alone, want, strict=True)]
    for method in METHODS:
        layout = "contiguous" if method == "ulysses" else method
        mine = [on_gpu(shard(x, layout, comm.world_size)[comm.rank]) for x in (q, k, v, dout)]
        comm.record.steps.clear()
        out, _, *gradients = run_method(comm, method, *mine, seqlen=seqlen)
        row, ok = counted(ranks, method, layout, shapes), True
        found = zip(LIMITS, (out, *gradients), want, squares_alone, strict=True)
        for name, x, y, of_alone in found:
            part = shard(y, layout, comm.world_size)[comm.rank]
            error = np.abs(arrays.to_numpy(x).astype(np.float64) - part).max()
            row[name] = ranks.agree(float(error / np.abs(y).max()))
            ok = ok and row[name] <= LIMITS[name]
            row[f"rms_{name}"] = math.sqrt(ranks.agree(squares(x, part), "sum") / y.size)
            row[f"rms_{name}_one_gpu"] = math.sqrt(of_alone / y.size)
        ranks.add(check=method, **row, ok=ok)
        if not ok:
            raise SystemExit(f"{method}: an error above {LIMITS}: {row}")


def squares(x, y):
    """The sum of the squared differences from float64."""
    return float(np.square(arrays.to_numpy(x).astype(np.float64) - y).sum())


def counted(ranks, method, layout, shapes):
    """Bytes sent and pairs computed by this rank since the record was cleared, both passes.

    Raises
    ------
    SystemExit
        They are not those of the formulas.
    """
    comm = ranks.comm
    (_, seqlen, heads, head_dim), (_, _, kv_heads, _), *_ = shapes
    problem = prediction.Problem(seqlen, comm.world_size, heads, kv_heads, head_dim, layout)
    formula = prediction.ulysses_bytes if method == "ulysses" else prediction.ring_bytes
    want = {"bytes": sum(int(formula(problem, backward)[comm.rank].sum()) for backward in (0, 1))}
    if method != "ulysses":  # there each rank has all pairs of its heads
        want["pairs"] = 2 * int(prediction.pairs_per_rank(problem)[comm.rank])
    steps = comm.record.steps
    got = {"bytes": sum(x.bytes_sent for x in steps), "pairs": sum(x.pairs for x in steps)}
    wrong = any(got[name] != want[name] for name in want)
    if ranks.agree(wrong):
        raise SystemExit(f"{method}, rank {comm.rank}: {got}, by the formulas {want}")
    least = -ranks.agree(-got["pairs"])
    return {"bytes": got["bytes"], "most pairs": ranks.agree(got["pairs"]), "fewest pairs": least}


def in_float64(q, k, v, dout):
    """Causal attention and its gradients in float64, one head after the other."""
    try:
        xp, _ = cupy, cupy.ones((2, 2)) @ cupy.ones((2, 2))
    except Exception:  # CuPy does not find cuBLAS
        xp = np
    q, k, v, dout = (xp.asarray(x[0].astype(np.float64)) for x in (q, k, v, dout))
    group, scale = q.shape[1] // k.shape[1], 1 / np.sqrt(q.shape[2])
    out, dq, dk, dv = (xp.zeros_like(x) for x in (q, q, k, v))
    unseen = xp.triu(xp.ones((len(q), len(q)), bool), 1)
    for h in range(q.shape[1]):
        g = h // group
        s = scale * q[:, h] @ k[:, g].T
        s[unseen] = -np.inf
        p = xp.exp(s - s.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        out[:, h] = p @ v[:, g]
        delta = (dout[:, h] * out[:, h]).sum(axis=1, keepdims=True)
        ds = scale * p * (dout[:, h] @ v[:, g].T - delta)
        dq[:, h] = ds @ k[:, g]
        dk[:, g] += ds.T @ q[:, h]
        dv[:, g] += p.T @ dout[:, h]
    return [arrays.to_numpy(x)[None] for x in (out, dq, dk, dv)]


def on_gpu(x):
    return arrays.from_numpy(cupy.empty(0), np.ascontiguousarray(x))


def measure_link(ranks):
    """Bytes per second from one GPU to the next, all at once: one send and one receive."""
    comm = ranks.comm
    to, source = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    rates = {}
    for mib in LINK_MIB:
        x = cupy.zeros(mib << 20, np.uint8)
        times = 20 if mib < 256 else 5

        def exchange(x=x, times=times):
            for _ in range(times):
                comm.send_recv(x, to, source)

        exchange()
        rates[mib] = times * x.nbytes / ranks.seconds(exchange, 3)
        ranks.add(link_mib=mib, gb_per_s=rates[mib] / 1e9)
    return max(rates.values())


def measure_latency(ranks):
    """Seconds of an exchange of one number between all ranks, the wait of the CPU included."""
    comm, times = ranks.comm, 50
    pieces = [cupy.zeros(1, np.float32)] * comm.world_size

    def exchanges():
        for _ in range(times):
            comm.all_to_all(pieces, [(1,)] * comm.world_size)

    exchanges()
    latency = ranks.seconds(exchanges, 3) / times
    ranks.add(latency_us=1e6 * latency)
    return latency


def measure(ranks, peer, link):
    """Times of each method beside those of one GPU that has the whole sequence."""
    world_size = ranks.comm.world_size
    for seqlen in SEQLENS:
        repeats = {16_384: 15, 65_536: 5 if world_size == 2 else 3}.get(seqlen, 1)
        calls = repeats + 1
        whole = seqlen * world_size
        for what in (FORWARD, BOTH):
            # Seconds of one GPU at 600 TFLOP/s, gradients included: the cost of what comes next.
            one = (1 if what == FORWARD else 4) * 2 * whole**2 * HEADS * HEAD_DIM / 6e14
            if not ranks.time_left_for(one * calls):
                ranks.add(tokens=seqlen, what=what, skipped="no time left")
                continue
            single = measure_single(ranks, whole, what, repeats)
            for method in METHODS:
                slower = 1.4 if method == "contiguous" else 1.1
                if ranks.time_left_for(slower * one / world_size * calls):
                    measure_method(ranks, method, seqlen, what, repeats, single, link)
                else:
                    ranks.add(tokens=seqlen, what=what, method=method, skipped="no time left")
            if peer and ranks.time_left_for(2 * one / world_size * calls):
                measure_peer(ranks, peer, seqlen, what, repeats, single)
            if what == FORWARD and repeats > 1 and ranks.time_left_for(one * calls):
                with persistent_thread_blocks():
                    measure_method(
                        ranks, "zigzag", seqlen, what, repeats, single, link, "persistent"
                    )


@contextlib.contextmanager
def persistent_thread_blocks():
    """Let the local kernel be flash_attn_persistent, whose thread blocks hold all SMs."""
    chosen.FORWARD, usual = "flash_attn_persistent", chosen.FORWARD
    try:
        yield
    finally:
        chosen.FORWARD = usual


def inputs(seqlen, rank):
    """q, k, v, dout of a rank; memory of larger inputs before is freed."""
    cupy.get_default_memory_pool().free_all_blocks()
    shapes = [(1, seqlen, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    return [random(*shape, seed=10 * rank + i) for i, shape in enumerate(shapes)]


def measure_single(ranks, seqlen, what, repeats):
    """Seconds of this package's fastest kernels on one GPU."""
    q, k, v, dout = inputs(seqlen, ranks.comm.rank)

    def function():
        out, lse = flash_attn(q, k, v, causal=True)
        if what == BOTH:
            flash_attn_grad(dout, q, k, v, out, lse, causal=True)

    function()  # allocates, which takes up to a third of a second
    seconds = ranks.seconds(function, repeats)
    tokens = seqlen // ranks.comm.world_size
    ranks.add(tokens=tokens, what=what, method="one GPU", ms=1e3 * seconds)
    return seconds


def measure_method(ranks, method, seqlen, what, repeats, single, link, kernel=None):
    """Add a row: the time of a method, and the time in which its ranks wait for transfers."""
    comm = ranks.comm
    q, k, v, dout = inputs(seqlen, comm.rank)
    dout = dout if what == BOTH else None
    run_method(comm, method, q, k, v, dout)
    comm.record.steps.clear()
    waits = []

    def function():
        with noted_waits(comm) as pairs:
            run_method(comm, method, q, k, v, dout)
        waits.append(pairs)

    seconds = ranks.seconds(function, repeats)
    sent = sum(step.bytes_sent for step in comm.record.steps) / repeats
    transfer = ranks.agree(sent) / link
    ms = [sum(cupy.cuda.get_elapsed_time(*pair) for pair in pairs) for pairs in waits]
    waited = ranks.agree(float(np.median(ms))) / 1e3
    ranks.add(
        tokens=seqlen,
        what=what,
        method=f"{method}, {kernel}" if kernel else method,
        ms=1e3 * seconds,
        ms_of_transfers=1e3 * transfer,
        ms_waited=1e3 * waited,
        share_of_single=single / (comm.world_size * seconds),
        hidden=max(0.0, 1 - waited / transfer),
    )


def measure_peer(ranks, peer, seqlen, what, repeats, single):
    import torch

    q, k, v, dout = (peer.as_tensor(x) for x in inputs(seqlen, ranks.comm.rank))

    def function():
        out, lse = peer.ring(q, k, v)
        if what == BOTH:
            peer.ring_grad(dout, q, k, v, out, lse)
        torch.cuda.synchronize()

    try:
        function()
        seconds = ranks.seconds(function, repeats)
    except RuntimeError as error:
        ranks.add(tokens=seqlen, what=what, method="peer", error=" ".join(str(error).split())[:200])
        return
    finally:
        torch.cuda.empty_cache()
    share = single / (ranks.comm.world_size * seconds)
    ranks.add(tokens=seqlen, what=what, method="peer", ms=1e3 * seconds, share_of_single=share)


def make_peer():
    """The ring of torch.distributed, or None and why not."""
    try:
        import datetime

        import torch
        import torch.distributed as dist

        from benchmarks import ring_of_torch

        device = torch.device("cuda", cupy.cuda.runtime.getDevice())
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=60), device_id=device)
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"[:200]

    def as_tensor(x):
        return torch.as_tensor(x.view(np.int16), device=device).view(torch.bfloat16)

    ring_of_torch.as_tensor = as_tensor
    return ring_of_torch, "as public rings do: PyTorch's FlashAttention-2, partials of 16 bits"


def check_peer(ranks, peer):
    """Raise unless the peer's results equal those of this package's ring, within roundings."""
    comm = ranks.comm
    q, k, v, dout = inputs(2048, comm.rank)
    want = run_method(comm, "zigzag", q, k, v, dout)
    tensors = [peer.as_tensor(x) for x in (q, k, v, dout)]
    out, lse = peer.ring(*tensors[:3])
    gradients = peer.ring_grad(tensors[3], *tensors[:3], out, lse)
    for name, x, y in zip(LIMITS, (out, *gradients), (want[0], *want[2:]), strict=True):
        y = peer.as_tensor(y).float()
        error = float((x.float() - y).abs().max() / y.abs().max())
        if ranks.agree(error) > 2 * LIMITS[name]:
            raise SystemExit(f"the peer's {name} differs by {error:.3g}")


def measure_decoding(ranks, keys, link, latency):
    """One query and many keys: tree_decode, a ring of the keys, and one GPU with all keys."""
    comm = ranks.comm
    cupy.get_default_memory_pool().free_all_blocks()
    q = random(1, 1, HEADS, HEAD_DIM)
    shape = 1, keys // comm.world_size, KV_HEADS, HEAD_DIM
    k, v = (random(*shape, seed=1 + i + 2 * comm.rank) for i in range(2))
    attn = chosen.local_attn()

    def ring():
        """Every rank sees all keys: they travel, and the query is at home on all ranks."""
        state, kv = RunningState(q), stacked(k, v)
        to, source = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
        for step in range(comm.world_size):
            last = step + 1 == comm.world_size
            arriving = None if last else comm.start_send_recv(kv, to, source)
            state.merge(slice(0, 1), *attn(q, kv[0], kv[1]))
            kv = kv if last else arriving.wait()
        return state.result()

    def tree():
        return tree_decode(comm, q, k, v)

    comm.record.steps.clear()
    out, _ = tree()
    problem = prediction.Problem(keys, comm.world_size, HEADS, KV_HEADS, HEAD_DIM, "contiguous")
    sent = sum(step.bytes_sent for step in comm.record.steps)
    assert sent == prediction.tree_bytes(problem)[comm.rank], sent
    error = float(abs(convert(out, np.dtype("float32")) - ring()[0]).max())
    assert ranks.agree(error) < 2e-3, error
    functions = {"tree": tree, "ring": ring}  # both have run: the check above
    ms = {name: 1e3 * ranks.seconds(function, 20) for name, function in functions.items()}
    alone = [cupy.concatenate([x.view(np.int16)] * comm.world_size, axis=1) for x in (k, v)]
    k, v = (x.view(np.dtype("bfloat16")) for x in alone)
    flash_attn(q, k, v)
    single = ranks.seconds(lambda: flash_attn(q, k, v), 20)
    ms["one GPU"] = 1e3 * single
    options = {"single": single, "bytes_per_second": link, "latency": latency}
    expected = prediction.predict_decode(problem, **options)
    for name, measured in ms.items():
        row = {"keys": keys, "decoding": name, "ms": measured}
        if name in expected:
            row["predicted_ms"] = 1e3 * expected[name]
        ranks.add(**row)


def main(path, seconds):
    with nccl.communicator(timeout=100) as comm:
        ranks = Ranks(comm, Path(path), float(seconds))
        peer, why = make_peer()
        ranks.add(peer=why)
        check(ranks)
        if peer:
            check_peer(ranks, peer)
        link, latency = measure_link(ranks), measure_latency(ranks)
        for keys in KEYS:
            measure_decoding(ranks, keys, link, latency)
        measure(ranks, peer, link)
        if peer:
            import torch.distributed as dist

            dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
