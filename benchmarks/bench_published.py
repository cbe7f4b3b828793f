"""How fast are attention and its gradients at the sizes for which others have published rates?

Four layouts, in bfloat16:

cuDNN   batch 1, 64 query heads, 8 key heads, 2048 to 32768 tokens: NVIDIA's table for cuDNN 9.19.1
        on an H200 (github.com/NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training, 2026-02)
FA3     batch 4, 48 heads, 1024 to 8192 tokens: FlashAttention-3 on an H100, as users of Triton's
        kernels measured it (github.com/meta-pytorch/tritonbench, issue 1267, 2026-09)
MLA     the same table, 128 heads of 192 in Q and K and of 128 in V: prompts of DeepSeek's models
CS336   batch 1, 16 heads of 64, 16384 tokens, causal: the leaderboard of a course, forward and
        backward in one time. The best that is listed has 4.027 ms on an H100
        (github.com/stanford-cs336/assignment2-systems-leaderboard, spring 2025; not verified there)

The first two have head_dim 128. A FLOP of Q Kᵀ, dQ and dK counts for the head_dim of Q and K, one
of P V, dP and dV for that of V.

`flash_attn` and `flash_attn_grad` run beside cuDNN and FlashAttention-2, as PyTorch has them, in
one run. The published rate is in a column of its own: it was measured on another machine.
"""

from functools import partial
from typing import NamedTuple

from benchmarks.exact import ROUNDING, relative_error, with_gradients
from benchmarks.peers import sdpa
from benchmarks.timing import save_each, time_ms
from fa_numba import flash_attn, flash_attn_grad

DTYPE = "bfloat16"
REPEATS = 8
SUMMED = 8192  # longest sequence for which dk and dv are compared: they sum over a group's heads


class Layout(NamedTuple):
    """A published table. `rates` has TFLOP/s forward and backward for (seqlen, causal).

    `ms` has milliseconds of both passes together.
    """

    name: str
    batch: int
    num_heads: int
    num_kv_heads: int
    rates: dict
    head_dim: int = 128
    ms: dict = {}
    head_dim_v: int = 128

    def flops(self, seqlen, causal):
        """Of the forward, and of the backward."""
        pairs = self.batch * self.num_heads * seqlen**2 * (0.5 if causal else 1)
        d, d_v = self.head_dim, self.head_dim_v
        return 2 * pairs * (d + d_v), 2 * pairs * (3 * d + 2 * d_v)


LAYOUTS = (
    Layout(
        "cuDNN 9.19.1, H200",
        1,
        64,
        8,
        {
            (2048, True): (484, 370),
            (4096, True): (591, 474),
            (8192, True): (644, 541),
            (16384, True): (673, 579),
            (32768, True): (688, 581),
            (2048, False): (633, 504),
            (4096, False): (671, 560),
            (8192, False): (691, 594),
            (16384, False): (702, 612),
            (32768, False): (693, 572),
        },
    ),
    Layout(
        "FlashAttention-3, H100",
        4,
        48,
        48,
        {
            (1024, False): (541, None),
            (2048, False): (618, None),
            (4096, False): (628, None),
            (8192, False): (639, None),
            (1024, True): (364, 182),
            (2048, True): (560, 316),
            (4096, True): (667, 444),
            (8192, True): (685, 539),
        },
    ),
    Layout(
        "cuDNN 9.19.1, H200, 192 and 128",
        1,
        128,
        128,
        {(4096, True): (599, 404), (8192, True): (643, 442)},
        192,
    ),
    Layout(
        "CS336 leaderboard, H100",
        1,
        16,
        16,
        {(16384, True): (None, None)},
        64,
        {(16384, True): 4.027},
        64,
    ),
)


def main():
    parts = {
        f"{layout.name}, n = {seqlen}{', causal' if causal else ''}": partial(
            measure, layout, seqlen, causal
        )
        for layout in LAYOUTS
        for seqlen, causal in layout.rates
    }
    save_each(
        "published",
        parts,
        note=f"{DTYPE}, head_dim 128 (CS336: 64); TFLOP/s: 2·batch·heads·seqlen²·(d + d_v) forward "
        "and 2·batch·heads·seqlen²·(3 d + 2 d_v) backward, half of them if causal; published: on "
        "the machine that it names; error: ‖x − float64‖ / ‖float64‖ of one head",
    )


def measure(layout, seqlen, causal):
    """Rows for one size: forward and backward, and both where both were published."""
    flops = layout.flops(seqlen, causal)
    rows, times = {}, {}
    for name, backward, call, error in functions(layout, seqlen, causal):
        row = rows.setdefault(
            backward,
            {
                "layout": layout.name,
                "pass": "backward" if backward else "forward",
                "seqlen": seqlen,
                "causal": causal,
                "published": layout.rates[seqlen, causal][backward],
            },
        )
        ms = time_ms(call, repeats=REPEATS)
        times[name] = times.get(name, 0) + ms
        row[name] = round(flops[backward] / ms / 1e9, 1)
        if name == "fa-numba":
            row["error"] = float(f"{error:.2g}")
    rows = list(rows.values())
    if (published := layout.ms.get((seqlen, causal))) is not None:
        times["published"] = published
        both = {k: round(sum(flops) / ms / 1e9, 1) for k, ms in times.items()}
        both |= {f"{name}, ms": round(ms, 3) for name, ms in times.items()}
        rows.append(rows[0] | {"pass": "both", "error": max(x["error"] for x in rows)} | both)
    return rows


def functions(layout, seqlen, causal):
    """Yield (name, whether it is a backward, call without arguments, relative error of ours)."""
    import torch
    from torch.backends import cuda

    torch.manual_seed(0)
    of_q, of_k = (layout.num_heads, layout.head_dim), (layout.num_kv_heads, layout.head_dim)
    of_dout, of_v = ((heads, layout.head_dim_v) for heads, _ in (of_q, of_k))
    dout, q, k, v = (
        torch.randn((layout.batch, seqlen, *size), device="cuda", dtype=torch.bfloat16)
        for size in (of_dout, of_q, of_k, of_v)
    )
    out, lse = flash_attn(q, k, v, causal=causal)
    gradients = flash_attn_grad(dout, q, k, v, out, lse, causal=causal)
    errors = errors_of(layout, dout, q, k, v, out, gradients, causal)
    del gradients
    assert max(errors) <= 4 * ROUNDING[DTYPE], f"{layout.name}, {seqlen}, {causal=}: {errors}"
    forward = lambda: flash_attn(q, k, v, causal=causal)  # noqa: E731
    yield "fa-numba", False, forward, errors[0]
    backward = lambda: flash_attn_grad(dout, q, k, v, out, lse, causal=causal)  # noqa: E731
    yield "fa-numba", True, backward, max(errors[1:])
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    for name, library, can_use in (
        ("cuDNN", "CUDNN_ATTENTION", cuda.can_use_cudnn_attention),
        ("FlashAttention-2", "FLASH_ATTENTION", cuda.can_use_flash_attention),
    ):
        if not can_use(cuda.SDPAParams(*heads_first, None, 0.0, causal, True)):
            continue  # a head_dim of V that is not that of Q and K
        call, gradients = sdpa(library, q, k, v, causal)
        yield name, False, call, None
        yield name, True, gradients(dout), None


def errors_of(layout, dout, q, k, v, out, gradients, causal):
    """Relative errors of out and of the gradients, for the heads of one group or for one head."""
    seqlen, group_size = q.shape[1], layout.num_heads // layout.num_kv_heads
    dq, dk, dv = gradients
    heads = range(layout.num_heads - group_size, layout.num_heads)
    if seqlen > SUMMED:
        heads = heads[-1:]
    errors, sums = [], [0, 0]
    for head in heads:
        one = [x[-1, :, head].double() for x in (dout, q)] + [x[-1, :, -1].double() for x in (k, v)]
        want_out, want_dq, *want = with_gradients(*one, causal)
        errors.append(relative_error(out[-1, :, head], want_out))
        errors.append(relative_error(dq[-1, :, head], want_dq))
        sums = [x + y for x, y in zip(sums, want, strict=True)]
    if len(heads) == group_size:
        got = dk[-1, :, -1], dv[-1, :, -1]
        errors += [relative_error(x, y) for x, y in zip(got, sums, strict=True)]
    return errors
