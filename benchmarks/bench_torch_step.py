"""Does GPT-2 small train faster with fa_numba.torch than with PyTorch's attention?

step   one step of training, run by Python or by torch.compile: milliseconds of steps in a row, and
       until Python has enqueued a step after the GPU has finished
call   one call of a registered operator, as a compiled model makes it, forward and backward, and
       of autograd: microseconds until it returns. SDPA without a name is PyTorch's own choice; the
       others pay for the context that names them. A node of Python that does nothing shows how
       much of ours is Python's.

All contenders take short rounds in turn, as in bench_torch.
"""

import itertools
import time

from benchmarks.bench_torch import (
    STEPS_OF_ROUND,
    attends,
    in_rounds,
    median_and_quartiles,
)
from benchmarks.small_gpt import Training
from benchmarks.timing import save_each

GPT2_SMALL = {"num_layers": 12, "num_heads": 12, "width": 768, "vocabulary": 50304}
BATCH, SEQLEN = 8, 1024
LAYER = BATCH, 12, SEQLEN, 64  # batch, heads, seqlen, head_dim
NAMES = "fa_numba.torch", "SDPA", "SDPA cuDNN", "SDPA FlashAttention-2"
WARM_UP, ROUNDS_OF_STEPS, ROUNDS, CALLS = 12, 12, 25, 20


def contenders(device="cuda", **sizes):
    """A `Training` of GPT-2 small by (name, whether it is compiled)."""
    import torch

    sizes = {"seqlen": SEQLEN, "batch": BATCH, "fused": True} | GPT2_SMALL | sizes
    functions = attends()
    return {
        (name, compiled): Training(
            functions[name], device=device, dtype=torch.bfloat16, compiled=compiled, **sizes
        )
        for compiled, name in itertools.product((False, True), NAMES[:2])
    }


def step_rows(num_rounds=ROUNDS_OF_STEPS, **sizes):
    import torch

    runs = contenders(**sizes)
    losses = {run: [] for run in runs.values()}

    def steps(run):
        """Milliseconds of a step among some in a row."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        losses[run] += [run.step() for _ in range(STEPS_OF_ROUND)]
        torch.cuda.synchronize()
        return [(time.perf_counter() - start) * 1e3 / STEPS_OF_ROUND]

    def enqueue(run):
        """Milliseconds until Python has enqueued a step, which begins when the GPU is idle."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        losses[run].append(run.step())
        return [(time.perf_counter() - start) * 1e3]

    for run in runs.values():
        losses[run] += [run.step() for _ in range(WARM_UP)]
    ms = in_rounds(runs, num_rounds, steps)
    host = in_rounds(runs, 2 * num_rounds, enqueue)
    return [
        {
            "what": "step",
            "kernel": name,
            "compiled": compiled,
            **median_and_quartiles("ms", ms[name, compiled], 3),
            **median_and_quartiles("host, ms", host[name, compiled], 3),
            "first loss": round(losses[run][0].item(), 4),
            "last loss": round(losses[run][-1].item(), 4),
        }
        for (name, compiled), run in runs.items()
    ]


def operator_calls(shape=LAYER):
    """Calls of the operators that torch.compile puts into its graphs: ours and PyTorch's own."""
    import torch

    from fa_numba.torch import operators

    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v, dout = torch.randn((4, *shape), device="cuda", generator=generator).bfloat16().unbind()
    ours = [x.transpose(1, 2).contiguous() for x in (q, k, v, dout)]
    options = None, None, True, (-1, -1), 0.0, None, False, 0.0
    aten, calls = torch.ops.aten, {}
    with torch.no_grad():
        results = operators.flash_attn(*ours[:3], *options)
        given = *ours[:3], *options
        calls["fa_numba.torch", "forward"] = lambda: operators.flash_attn(*given)
        calls["fa_numba.torch", "backward"] = lambda: operators.flash_attn_grad(
            ours[3], *results, *given
        )
        flash = aten._scaled_dot_product_flash_attention.default
        found = flash(q, k, v, 0.0, True)
        name = "SDPA FlashAttention-2"
        calls[name, "forward"] = lambda: flash(q, k, v, 0.0, True)
        calls[name, "backward"] = lambda: aten._scaled_dot_product_flash_attention_backward.default(
            dout, q, k, v, *found[:6], 0.0, True, *found[6:8]
        )
        cudnn = aten._scaled_dot_product_cudnn_attention.default
        made = cudnn(q, k, v, None, True, 0.0, True)
        out, lse, cum_q, cum_k, max_q, max_k, seed, offset = made[:8]
        calls["SDPA cuDNN", "forward"] = lambda: cudnn(q, k, v, None, True, 0.0, True)
        calls["SDPA cuDNN", "backward"] = lambda: (
            aten._scaled_dot_product_cudnn_attention_backward.default(
                dout, q, k, v, out, lse, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0, True
            )
        )
    return calls


def autograd_calls(shape=LAYER):
    """A forward and backward pass through autograd, as functions without arguments."""
    import torch

    q, k, v, dout = torch.randn((4, *shape), device="cuda").bfloat16().unbind()
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]

    def both(attend):
        return lambda: torch.autograd.grad(attend(*inputs, is_causal=True), inputs, dout)

    class Nothing(torch.autograd.Function):
        """A node of autograd in Python that returns ready arrays and launches nothing."""

        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q, k, v, dout, lse)
            return dout.detach()

        @staticmethod
        def backward(ctx, dout):
            return ctx.saved_tensors[:3]

    lse = torch.empty(shape[:3], device="cuda")
    functions = {name: attends()[name] for name in NAMES}
    functions["a node that does nothing"] = lambda q, k, v, is_causal: Nothing.apply(q, k, v)
    return {(name, "autograd"): both(attend) for name, attend in functions.items()}


def host_us(call, num_calls):
    """Microseconds until a call returns, of some calls in a row after the GPU has finished."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(num_calls):
        call()
    return (time.perf_counter() - start) * 1e6 / num_calls


def call_rows(num_rounds=ROUNDS):
    calls = operator_calls() | autograd_calls()
    for call in calls.values():
        host_us(call, CALLS)
    us = in_rounds(calls, num_rounds, lambda call: [host_us(call, CALLS)])
    return [
        {"what": "call", "kernel": name, "pass": passes, **median_and_quartiles("µs", samples, 1)}
        for (name, passes), samples in us.items()
    ]


def main():
    note = (
        f"bfloat16; step: GPT-2 small, {BATCH} sequences of {SEQLEN} tokens, autocast, AdamW in "
        f"one kernel, {ROUNDS_OF_STEPS} rounds of {STEPS_OF_ROUND} steps in a row, all models in "
        "turn; host: until Python has enqueued a step that begins on an idle GPU; call: µs until "
        f"a call returns, (batch, heads, seqlen, head_dim) = {LAYER}, causal"
    )
    save_each("torch_step", {"calls": call_rows, "steps": step_rows}, note=note)
