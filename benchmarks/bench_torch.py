"""Does a small model train faster with fa_numba.torch, and to the same loss? What does a call cost?

training   a step of a model of nanoGPT's shape under autocast, with our attention and PyTorch's
call       one call of flash_attn_func, forward and backward, beside PyTorch's attention
host       microseconds until such a call returns, of a problem that the GPU solves sooner

A step is timed as a user has it: Python, optimizer and all. The losses of the two compared with
those of PyTorch's two fused implementations say whether they differ by more than rounding.
"""

import itertools
import statistics
import time

from benchmarks.small_gpt import Training
from benchmarks.timing import save, time_ms

SEQLENS, TOKENS = (256, 512, 1024), 16384  # of a batch
WARM_UP, STEPS = 10, 60
HEAD_DIMS, SEQLENS_OF_CALLS, WIDTH = (64, 128), (2048, 8192), 2048
SMALL = 1, 2, 64, 64  # batch, heads, seqlen, head_dim
CALLS_IN_A_ROW, ROUNDS = 100, 200


def attends():
    """Attention functions of PyTorch's signature, by name."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    from fa_numba.torch import scaled_dot_product_attention

    def by(backend):
        def attend(q, k, v, **options):
            with sdpa_kernel(backend):
                return sdpa(q, k, v, **options)

        return attend

    return {
        "fa_numba.torch": scaled_dot_product_attention,
        "SDPA": sdpa,
        "SDPA FlashAttention-2": by(SDPBackend.FLASH_ATTENTION),
        "SDPA memory-efficient": by(SDPBackend.EFFICIENT_ATTENTION),
        "SDPA cuDNN": by(SDPBackend.CUDNN_ATTENTION),
    }


def train(attend, seqlen, steps=STEPS, **sizes):
    """Milliseconds of a step, and the losses of all steps."""
    import torch

    sizes = {"batch": TOKENS // seqlen, "device": "cuda", "dtype": torch.bfloat16} | sizes
    training, losses, samples = Training(attend, seqlen, **sizes), [], []
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(steps):
        start.record()
        losses.append(training.step())
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end))
    return statistics.median(samples[WARM_UP:]), torch.stack(losses).cpu()


def training_rows(seqlens=SEQLENS, steps=STEPS):
    rows = []
    for seqlen in seqlens:
        runs = {name: train(attend, seqlen, steps) for name, attend in attends().items()}
        _, usual = runs["SDPA"]
        for name, (ms, losses) in runs.items():
            rows.append(
                {
                    "what": "training",
                    "kernel": name,
                    "seqlen": seqlen,
                    "ms": round(ms, 3),
                    "first loss": round(losses[0].item(), 4),
                    "last loss": round(losses[-1].item(), 4),
                    "largest difference from SDPA": round((losses - usual).abs().max().item(), 4),
                }
            )
    return rows


def call_times(head_dim, seqlen, causal, repeats=20):
    """Yield (name, milliseconds) of a forward and backward pass: ours, then PyTorch's."""
    import cupy
    import torch

    from fa_numba.torch import flash_attn_func

    shape = TOKENS // seqlen, seqlen, WIDTH // head_dim, head_dim
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v, dout = torch.randn((4, *shape), device="cuda", generator=generator).bfloat16().unbind()
    inputs = [x.requires_grad_() for x in (q, k, v)]

    def ours():
        torch.autograd.grad(flash_attn_func(*inputs, causal=causal), inputs, dout)

    def theirs(attend):
        out = attend(*(x.transpose(1, 2) for x in inputs), is_causal=causal)
        torch.autograd.grad(out, inputs, dout.transpose(1, 2))

    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        yield "flash_attn_func", time_ms(ours, repeats=repeats)
        for name, attend in attends().items():
            if name.startswith("SDPA "):
                yield name, time_ms(theirs, attend, repeats=repeats)


def call_rows():
    rows = []
    for head_dim, seqlen, causal in itertools.product(HEAD_DIMS, SEQLENS_OF_CALLS, (False, True)):
        times = list(call_times(head_dim, seqlen, causal))
        sizes = {"head_dim": head_dim, "seqlen": seqlen, "causal": causal}
        rows += [
            {"what": "call", "kernel": name, **sizes, "ms": round(ms, 4)} for name, ms in times
        ]
    return rows


def host_times(function, inputs, backward):
    """Median µs until a call returns: in a row, and each after the GPU has finished the last."""
    import torch

    dout = torch.ones_like(function(*inputs))

    def call():
        out = function(*inputs)
        if backward:
            torch.autograd.grad(out, inputs, dout)

    def measured(num_calls):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(num_calls):
            call()
        return (time.perf_counter() - start) * 1e6 / num_calls

    for _ in range(20):
        call()
    in_a_row = [measured(CALLS_IN_A_ROW) for _ in range(7)]
    alone = [measured(1) for _ in range(ROUNDS)]
    return statistics.median(in_a_row), statistics.median(alone)


def host_rows():
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    from fa_numba.torch import flash_attn_func, scaled_dot_product_attention

    batch, heads, seqlen, head_dim = SMALL
    q, k, v = torch.randn((3, *SMALL), device="cuda").bfloat16().unbind()
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    ours = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in inputs]
    functions = {
        "scaled_dot_product_attention of fa_numba.torch": (
            lambda *x: scaled_dot_product_attention(*x, is_causal=True),
            inputs,
        ),
        "flash_attn_func": (lambda *x: flash_attn_func(*x, causal=True), ours),
        "SDPA": (lambda *x: sdpa(*x, is_causal=True), inputs),
    }
    rows = []
    for name, (function, given) in functions.items():
        for backward in (False, True):
            in_a_row, alone = host_times(function, given, backward)
            rows.append(
                {
                    "what": "host",
                    "kernel": name,
                    "pass": "forward and backward" if backward else "forward",
                    "in a row, µs": round(in_a_row, 1),
                    "after synchronizing, µs": round(alone, 1),
                }
            )
    return rows


def main():
    note = (
        f"bfloat16; training: 6 layers, 6 heads, 384 wide, {TOKENS} tokens in a batch, ms of a "
        f"step with its optimizer, {STEPS} steps; call: forward and backward, {TOKENS} tokens, "
        f"num_heads · head_dim = {WIDTH}; host: µs until a call returns that records gradients, of "
        f"(batch, heads, seqlen, head_dim) = {SMALL}"
    )
    save("torch", training_rows() + call_rows() + host_rows(), note=note)


if __name__ == "__main__":
    main()
