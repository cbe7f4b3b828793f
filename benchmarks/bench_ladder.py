"""How fast is each step of the ladder in float32, forward and backward, beside PyTorch?

All steps run on the same problems. PyTorch's kernel uses tensor cores, three TF32 products for
one, as flash_attn_tf32x3 does. Before a step is timed, its result of one head is compared with
float64 at that size, and its error with that of plain float32 code: matrix products that keep S
and P.
"""

import itertools
from functools import partial

from benchmarks.exact import relative_error, with_gradients
from benchmarks.peers import sdpa
from benchmarks.timing import save_each, time_ms
from fa_numba import flash_attn_bwd, flash_attn_bwd_registers, flash_attn_registers
from fa_numba.tensor_core.flash_attn_bwd_tf32x3 import flash_attn_bwd_tf32x3
from fa_numba.tensor_core.flash_attn_tf32x3 import flash_attn_tf32x3
from fa_numba.workbook.ladder import LIBRARY, RUNGS

TOKENS, WIDTH = 16384, 2048  # batch · seqlen and num_heads · head_dim, held while seqlen grows
HEAD_DIMS, SEQLENS, CAUSAL = (64, 128, 256), (512, 8192), (False, True)
WIDE = 256  # a head_dim for which only tensor cores and PyTorch are asked, forward
FORWARD = {rung.name: rung for rung in RUNGS} | {"flash_attn_tf32x3": flash_attn_tf32x3}
BACKWARD = flash_attn_bwd, flash_attn_bwd_registers, flash_attn_bwd_tf32x3
LONGEST_OF_V1 = 512  # a thread block walks all tiles of a head: seconds for longer ones
REPEATS = 5
SLOW = 100  # milliseconds; such a step is timed once, after the call that is compared
LARGEST_ERROR = 5  # of that of plain float32, for whatever order a step sums in


def main():
    cases = itertools.product(HEAD_DIMS, SEQLENS, CAUSAL)
    save_each(
        "ladder",
        {"d = {}, n = {}, causal={}".format(*x): partial(measure, *x) for x in cases},
        note=f"float32, {TOKENS} tokens in all, num_heads * head_dim = {WIDTH}; "
        "FLOPs 4·batch·heads·seqlen²·head_dim, halved if causal, ×2.5 backward; "
        "error: ‖x − float64‖ / ‖float64‖ of one head, the largest of the gradients'",
    )


def measure(head_dim, seqlen, causal):
    """The rows of one size."""
    for name, products, call, error, plain in steps(seqlen, head_dim, causal):
        assert error <= LARGEST_ERROR * plain, f"{name}: {error}, plain float32 {plain}"
        ms = time_ms(call, repeats=1, warm_ups=0)
        if ms < SLOW:
            ms = time_ms(call, repeats=REPEATS)
        flops = 2 * products * TOKENS * seqlen * WIDTH / (1 + causal)
        yield {
            "step": name,
            "head_dim": head_dim,
            "seqlen": seqlen,
            "causal": causal,
            "ms": round(ms, 3),
            "TFLOP/s": round(flops / ms / 1e9, 2),
            "error": float(f"{error:.2g}"),
            "error of plain float32": float(f"{plain:.2g}"),
        }


def steps(seqlen, head_dim, causal, tokens=TOKENS):
    """Yield (name, products, call, error, that of plain float32) of each step."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    shape = (tokens // seqlen, seqlen, WIDTH // head_dim, head_dim)
    _, q, k, v = inputs = [torch.randn(shape, device="cuda") for _ in range(4)]
    want, plain = (
        with_gradients(*(x[0, :, 0].to(dtype) for x in inputs), causal)
        for dtype in (torch.float64, torch.float32)
    )

    def error_of(results, wanted):
        of_head = [x[0, :, 0] for x in results]
        return max(map(relative_error, of_head, wanted))

    plain_error = error_of([x[None, :, None] for x in plain[:1]], want[:1])
    for name, function in FORWARD.items():
        if name == "flash_attn_v1" and seqlen > LONGEST_OF_V1:
            continue
        if head_dim == WIDE and function is not flash_attn_tf32x3:
            continue
        call = lambda f=function: f(q, k, v, causal=causal)  # noqa: E731
        error = error_of(call()[:1], want[:1])
        yield name, 2, call, error, plain_error
    # In memory, too, PyTorch's arrays have heads before tokens.
    theirs = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    call, gradients = sdpa("EFFICIENT_ATTENTION", *theirs[1:], causal)
    yield LIBRARY, 2, call, error_of([call()], want[:1]), plain_error
    if head_dim == WIDE:
        return

    plain_error = error_of([x[None, :, None] for x in plain[1:]], want[1:])
    out, lse = flash_attn_registers(q, k, v, causal=causal)
    for function in BACKWARD:
        call = lambda f=function: f(*inputs, out, lse, causal=causal)  # noqa: E731
        yield function.__name__, 5, call, error_of(call(), want[1:]), plain_error
    call = gradients(theirs[0])
    yield f"{LIBRARY}, backward", 5, call, error_of(call(), want[1:]), plain_error
