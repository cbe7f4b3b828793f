"""Does L2 limit attention? The same kernel with half of the bytes; clocks, power and hits in L2.

bytes      `flash_attn_persistent` beside the same kernel whose copies of K and V bring half of a
           tile: the result is wrong, every instruction and every wait the same. If L2 limited the
           kernel, this would be faster. The halves alternate, so the tensor cores see numbers as
           random as before, and draw as much power.
clocks     the layout of NVIDIA's table (`bench_published`) without a mask, ours and cuDNN's: the
           rate falls with n: is that the clock, or the kernel?
hits       where `ncu` is installed, the counters of a launch of each of ours.

The first two have a rate as the tables measure it, with pauses, and one back to back, with the
clock and the power that the driver reports meanwhile. `of peak` is the part of the tensor cores'
multiply-adds that is used in a clock: it does not depend on the clock.
"""

import contextlib
import csv
import io
import subprocess
import sys
import threading

import numpy as np
from numba import cuda

from benchmarks.bench_microscope import NoCountersError, find_ncu, run
from benchmarks.peers import sdpa
from benchmarks.timing import save, time_ms
from fa_numba import flash_attn, flash_attn_grad
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.mbarrier import mbarrier_arrive_expect_tx
from fa_numba.ptx.tma import tma_load_4d
from fa_numba.tensor_core import flash_attn_persistent as persistent
from fa_numba.tensor_core import mainloop

HEAD_DIMS = 128, 256
SEQLEN, HEADS = 8192, 32
PUBLISHED = 64, 8, 128  # query heads, key heads, head_dim
SEQLENS = 8192, 16384, 32768
SECONDS = 0.5  # back to back
PER_CLOCK = 4096  # FLOPs of an SM of Hopper with 16 bits
METRICS = {
    "hits in L2, %": "lts__t_sector_hit_rate.pct",
    "L2, GB": "lts__t_bytes.sum",
    "HBM, GB": "dram__bytes.sum",
    "ms": "gpu__time_duration.sum",
    "cycles": "sm__cycles_elapsed.max",
}


def main():
    rows = [row for head_dim in HEAD_DIMS for row in of_bytes(head_dim)]
    for seqlen in SEQLENS:
        rows += clocks(seqlen)
    save(
        "l2",
        rows + hits(),
        note="bfloat16; TFLOP/s: 4·heads·seqlen²·head_dim forward and 10 backward; "
        f"bytes: batch 1, {HEADS} heads of 128 or half as many of 256, n = {SEQLEN}; "
        "clocks: the layout of NVIDIA's table, 64 query heads and 8 key heads of 128",
    )


# ---------------------------------------------------------------- half of the bytes


def of_bytes(head_dim):
    """Rates of the kernel and of that with half of the bytes, in turns."""
    heads = HEADS * 128 // head_dim
    q, k, v = (array(SEQLEN, heads, head_dim) for _ in range(3))
    call = lambda: persistent.flash_attn_persistent.__wrapped__(q, k, v)  # noqa: E731
    kernels, make = {}, persistent.make_flash_attn_persistent
    for name, change in (("all", contextlib.nullcontext), ("half", half_of_the_bytes)):
        with change(), instead(persistent, "make_flash_attn_persistent", keep(make, kernels, name)):
            call()
    samples = {name: [] for name in kernels}
    for _ in range(3):
        for name, kernel in kernels.items():
            with instead(persistent, "make_flash_attn_persistent", lambda *a, x=kernel: x):
                samples[name].append(rates(call, 4 * heads * SEQLEN**2 * head_dim, 0.25))
    for name, rows in samples.items():
        row = {"question": "bytes", "head_dim": head_dim, "bytes of K and V": name}
        yield row | {key: float(np.median([x[key] for x in rows])) for key in rows[0]}


def keep(make, kernels, name):
    def kept(*args):
        kernels[name] = make(*args)
        return kernels[name]

    return kept


@contextlib.contextmanager
def half_of_the_bytes():
    """Kernels made here copy half of the panels of K and V: of two tiles the left, then the right.

    Both stages of a ring get both halves in turns.
    """

    def make_load_half(NUM_PANELS):
        HALF = NUM_PANELS // 2

        @cuda.jit(device=True, forceinline=True)
        def load_half(tile, num_rows, tensor_map, row, head, b, full):
            first = HALF * (row // (2 * num_rows) & 1)
            for panel in range(HALF):
                start = tile + (first + panel) * num_rows * ROW_BYTES
                col = PANEL_COLS * (first + panel)
                tma_load_4d(start, tensor_map, col, row, head, b, full)

        return load_half

    @cuda.jit(device=True, forceinline=True)
    def expect_half(barrier, num_bytes):
        mbarrier_arrive_expect_tx(barrier, num_bytes // 2)

    def forget():
        for made in mainloop.make_ring, mainloop.make_mainloop:
            made.cache_clear()
        persistent.make_flash_attn_persistent.cache_clear()

    forget()
    with instead(mainloop, "make_load_tile", make_load_half):
        with instead(mainloop, "mbarrier_arrive_expect_tx", expect_half):
            yield
    forget()


@contextlib.contextmanager
def instead(module, name, value):
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


# ---------------------------------------------------------------- clocks and power


class Watch:
    """Samples of the clock of the SMs, in MHz, and of the power, in W, while GPU 0 works."""

    def __enter__(self):
        import pynvml

        pynvml.nvmlInit()
        self.nvml, self.gpu = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        self.samples, self.stop = [], threading.Event()
        self.thread = threading.Thread(target=self._sample)
        self.thread.start()
        return self

    def _sample(self):
        nvml = self.nvml
        while not (self.samples and self.stop.wait(0.01)):
            mhz = nvml.nvmlDeviceGetClockInfo(self.gpu, nvml.NVML_CLOCK_SM)
            (power,) = nvml.nvmlDeviceGetFieldValues(self.gpu, [nvml.NVML_FI_DEV_POWER_INSTANT])
            self.samples.append((mhz, power.value.uiVal / 1000))

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def means(self):
        return tuple(np.mean(self.samples[len(self.samples) // 3 :], axis=0))


def rates(call, flops, seconds):
    """TFLOP/s of a call, with pauses and back to back; clock and power of the GPU meanwhile."""
    import cupy

    with_pauses = time_ms(call, repeats=5)
    count = max(2, round(seconds * 1e3 / with_pauses))
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    with Watch() as watch:
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
    rate = flops * count / cupy.cuda.get_elapsed_time(start, end) / 1e9
    mhz, watts = watch.means()
    num_sms = cuda.get_current_device().MULTIPROCESSOR_COUNT
    return {
        "TFLOP/s": round(flops / with_pauses / 1e9, 1),
        "back to back": round(rate, 1),
        "MHz": round(mhz),
        "W": round(watts),
        "of peak": round(rate * 1e6 / (num_sms * PER_CLOCK * mhz), 3),
    }


def clocks(seqlen):
    """Rates forward and backward."""
    num_heads, _, head_dim = PUBLISHED
    for name, flops, call in calls(seqlen, with_cudnn=True):
        found = rates(call, flops * num_heads * seqlen**2 * head_dim, SECONDS)
        yield {"question": "clocks", "pass": name, "seqlen": seqlen} | found


def calls(seqlen, with_cudnn=False):
    """(name, FLOPs of batch · heads · seqlen² · head_dim, call without arguments)."""
    num_heads, num_kv_heads, head_dim = PUBLISHED
    dout, q, k, v = (
        array(seqlen, heads, head_dim) for heads in (num_heads, num_heads, *2 * (num_kv_heads,))
    )
    out, lse = flash_attn(q, k, v)
    yield "forward", 4, lambda: flash_attn(q, k, v)
    yield "backward", 10, lambda: flash_attn_grad(dout, q, k, v, out, lse)
    if not with_cudnn:
        return
    attention, gradients = sdpa("CUDNN_ATTENTION", q, k, v)
    yield "cuDNN forward", 4, attention
    yield "cuDNN backward", 10, gradients(dout)


def array(seqlen, heads, head_dim):
    import torch

    return torch.randn((1, seqlen, heads, head_dim), device="cuda", dtype=torch.bfloat16)


# ---------------------------------------------------------------- hits


def hits():
    """The counters of each kernel, or a row that says why there are none."""
    try:
        ncu = find_ncu()
        target = [sys.executable, "-m", "benchmarks.bench_l2", "--launch"]
        options = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
        options += ["-k", "regex:flash_attn", "--metrics", ",".join(METRICS.values())]
        status, output = run([ncu, *options, *target], seconds=60)
    except (NoCountersError, subprocess.SubprocessError) as error:
        return [{"question": "hits", "none": str(error)[-300:]}]
    lines = output[output.find('"ID"') :].splitlines() if '"ID"' in output else []
    if status or not lines:
        return [{"question": "hits", "none": output[-300:]}]
    rows = []
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        if not row["ID"]:
            continue  # the units
        found = {"question": "hits", "kernel": row["Kernel Name"][:60]}
        for name, metric in METRICS.items():
            x = float(row[metric].replace(",", ""))
            found[name] = round(x / (1e9 if name.endswith("GB") else 1e6 if name == "ms" else 1), 3)
        rows.append(found)
    return rows


def launch():
    """The launches that ncu watches: twice forward and once backward for each length."""
    for seqlen in SEQLENS:
        for _, _, call in calls(seqlen):
            call()


if __name__ == "__main__":
    launch() if sys.argv[1:] == ["--launch"] else main()
