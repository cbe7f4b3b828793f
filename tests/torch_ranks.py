"""What tests/test_torch_distributed.py runs on each rank, or a fault of rank 1.

"die" ends it at once; "differ" changes the dtype of its tensors, "differ-later" after a right call.
"""

import datetime
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch_attention import plain, tensors

from fa_numba.distributed import numpy_attn, numpy_attn_grad, shard
from fa_numba.torch.distributed import ring_attn, ulysses_attn

SEQLEN = 37


def part(x, layout):
    (rows,) = [shard(np.arange(SEQLEN), layout, 2, axis=0)[dist.get_rank()]]
    return x[:, rows]


def differ(fault, inputs):
    mine = [part(x.detach(), "zigzag") for x in inputs]
    options = {"layout": "zigzag", "seqlen": SEQLEN, "attn": numpy_attn}
    if fault == "differ-later":
        ring_attn(*mine, **options)
    if dist.get_rank() == 1:
        mine = [x.half() for x in mine]
    ring_attn(*mine, **options)


def main(fault=None):
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    shapes = (1, SEQLEN, 4, 8), (1, SEQLEN, 2, 8), (1, SEQLEN, 2, 8), (1, SEQLEN, 4, 8)
    *inputs, dout = tensors(*shapes)
    if fault and fault.startswith("differ"):
        differ(fault, inputs)
    plain(*inputs, causal=True).backward(dout)
    out = plain(*inputs, causal=True)
    for layout, attn in (("zigzag", ring_attn), ("striped", ring_attn), ("zigzag", ulysses_attn)):
        if fault == "die" and dist.get_rank() == 1:
            return
        mine = [part(x.detach(), layout).requires_grad_() for x in inputs]
        options = {"layout": layout, "causal": True, "seqlen": SEQLEN}
        got = attn(*mine, attn=numpy_attn, attn_grad=numpy_attn_grad, **options)
        got.backward(part(dout, layout))
        torch.testing.assert_close(got, part(out, layout), atol=2e-6, rtol=1e-5)
        for x, y in zip(mine, inputs, strict=True):
            torch.testing.assert_close(x.grad, part(y.grad, layout), atol=4e-6, rtol=1e-5)
    mine = [part(x.detach(), "zigzag").requires_grad_() for x in inputs]
    got = ring_attn(*mine, attn=numpy_attn, attn_grad=numpy_attn_grad, seqlen=SEQLEN)
    weights = part(dout, "zigzag").requires_grad_()
    (dq,) = torch.autograd.grad((got * weights).sum(), mine[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no gradients of gradients"):
        torch.autograd.grad(dq.sum(), weights)
    half = [part(x.detach(), "zigzag").bfloat16() for x in inputs]  # bytes of any dtype travel
    options = {"layout": "zigzag", "causal": True, "seqlen": SEQLEN, "attn": numpy_attn}
    got = ring_attn(*half, **options)
    torch.testing.assert_close(got.float(), part(out, "zigzag"), atol=5e-2, rtol=5e-2)
    print("done", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
