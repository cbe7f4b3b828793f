"""Does a small model train faster with fa_numba.torch, and to the same loss? What does a call cost?

training   a step of a model of nanoGPT's shape under autocast, with our attention and PyTorch's
call       one call of flash_attn_func, forward and backward, beside PyTorch's attention; the host's
           time of a call is asked by bench_torch_step

A step is timed as a user has it: Python, optimizer and all. The losses of the two compared with
those of PyTorch's two fused implementations say whether they differ by more than rounding.

A step and a call take their time on the host, which other work on the machine makes slower for
seconds on end. So all contenders alternate in short rounds, each round begins with another one, and
the rows have the median of all rounds and the quartiles.
"""

import itertools
import statistics

from benchmarks.small_gpt import Training
from benchmarks.timing import save_each, time_ms

SEQLENS, TOKENS = (256, 512, 1024), 16384  # of a batch
WARM_UP, ROUNDS_OF_STEPS, STEPS_OF_ROUND = 10, 10, 5
HEAD_DIMS, SEQLENS_OF_CALLS, WIDTH = (64, 128), (2048, 8192), 2048


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


def in_rounds(contenders, num_rounds, measure):
    """The samples of each contender, measured in turn.

    Parameters
    ----------
    contenders : dict of str to object
    num_rounds : int
    measure : callable
        ``measure(contender)`` returns a list of samples.

    Returns
    -------
    dict of str to list
    """
    names = list(contenders)
    samples = {name: [] for name in names}
    for i in range(num_rounds):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            samples[name] += measure(contenders[name])
    return samples


def median_and_quartiles(name, samples, digits):
    """Two cells of a row."""
    first, median, third = statistics.quantiles(samples, n=4)
    quartiles = [round(first, digits), round(third, digits)]
    return {name: round(median, digits), f"{name}, quartiles": quartiles}


def train(seqlen, num_rounds=ROUNDS_OF_STEPS, **sizes):
    """Milliseconds of steps, and the losses of all steps, by the names of attention functions."""
    import torch

    sizes = {"batch": TOKENS // seqlen, "device": "cuda", "dtype": torch.bfloat16} | sizes
    trainings = {name: Training(attend, seqlen, **sizes) for name, attend in attends().items()}
    losses = {training: [] for training in trainings.values()}
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def steps(training, number=STEPS_OF_ROUND):
        samples = []
        for _ in range(number):
            start.record()
            losses[training].append(training.step())
            end.record()
            end.synchronize()
            samples.append(start.elapsed_time(end))
        return samples

    for training in trainings.values():
        steps(training, WARM_UP)
    ms = in_rounds(trainings, num_rounds, steps)
    return {
        name: (ms[name], torch.stack(losses[training]).cpu())
        for name, training in trainings.items()
    }


def training_rows(seqlens=SEQLENS, num_rounds=ROUNDS_OF_STEPS):
    rows = []
    for seqlen in seqlens:
        runs = train(seqlen, num_rounds)
        _, usual = runs["SDPA"]
        for name, (ms, losses) in runs.items():
            rows.append(
                {
                    "what": "training",
                    "kernel": name,
                    "seqlen": seqlen,
                    **median_and_quartiles("ms", ms, 3),
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


def main():
    note = (
        f"bfloat16; training: 6 layers, 6 heads, 384 wide, {TOKENS} tokens in a batch, ms of a "
        f"step with its optimizer, {ROUNDS_OF_STEPS * STEPS_OF_ROUND} steps after {WARM_UP}, all "
        f"models in turn; call: forward and backward, {TOKENS} tokens, num_heads · head_dim = "
        f"{WIDTH}"
    )
    parts = {"training": training_rows, "calls": call_rows}
    save_each("torch", parts, note=note)
