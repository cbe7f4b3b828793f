"""The peer of bench_many_gpus: zigzag ring attention on torch.distributed, as public rings do it.

Partial results come from PyTorch's FlashAttention-2 kernel, which rounds them to 16 bits, and are
merged in float32 by PyTorch's elementwise operations. Keys travel by batch_isend_irecv. Gradients
of 16 bits are added up in float32, and those of K and V travel in float32.

A rank has chunks r and 2W − 1 − r of 2W, one after the other, as in `fa_numba.distributed`.
"""

import torch
import torch.distributed as dist

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward


def exchange(*tensors):
    """Start to send tensors to the next rank and to receive others from the one before."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    received = [torch.empty_like(x) for x in tensors]
    to, source = (rank + 1) % world_size, (rank - 1) % world_size
    operations = [dist.P2POp(dist.isend, x, to) for x in tensors]
    operations += [dist.P2POp(dist.irecv, x, source) for x in received]
    return dist.batch_isend_irecv(operations), received


def wait(requests):
    """Let the current stream wait for an exchange."""
    for request in requests:
        request.wait()


def part_of(step, rank, length):
    """(queries, keys, causal) of a rank in a step of a causal zigzag ring."""
    half, everything = length // 2, slice(0, length)
    if step == 0:
        return everything, everything, True
    if step <= rank:
        return everything, slice(0, half), False
    return slice(half, length), everything, False


def attend(q, k, v, causal):
    """Out and lse of FlashAttention-2 for tensors of shape (batch, seqlen, heads, head_dim)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out, lse, *rest = FORWARD(q, k, v, 0.0, causal, False)
    return out.transpose(1, 2), lse, rest


def ring(q, k, v):
    """Causal attention over all ranks' tokens: out in the dtype of q, lse in float32."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    out = lse = None
    for step in range(world_size):
        last = step + 1 == world_size
        requests, following = ([], None) if last else exchange(k, v)
        m, n, causal = part_of(step, rank, q.shape[1])
        new, new_lse, _ = attend(q[:, m], k[:, n], v[:, n], causal)
        new, new_lse = new.float(), new_lse.transpose(1, 2)[..., None]
        if out is None:
            out, lse = new, new_lse
        else:
            old, old_lse = out[:, m], lse[:, m]
            out[:, m] = old - torch.sigmoid(new_lse - old_lse) * (old - new)
            lse[:, m] = old_lse - torch.nn.functional.logsigmoid(old_lse - new_lse)
        wait(requests)
        if not last:
            k, v = following
    return out.to(q.dtype), lse[..., 0].transpose(1, 2).contiguous()


def ring_grad(dout, q, k, v, out, lse):
    """Gradients of `ring`: dq, dk, dv in the dtype of q."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    requests_of_sums, sums = [], None
    for step in range(world_size):
        last = step + 1 == world_size
        requests, following = ([], None) if last else exchange(k, v)
        m, n, causal = part_of(step, rank, q.shape[1])
        dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (k, v))
        new = attend_grad(dout[:, m], q[:, m], k[:, n], v[:, n], out[:, m], lse[:, :, m], causal)
        for total, x in zip((dq[:, m], dk[:, n], dv[:, n]), new, strict=True):
            total += x
        if sums is not None:
            wait(requests_of_sums)
            dk, dv = dk + sums[0], dv + sums[1]
        requests_of_sums, sums = exchange(dk, dv)  # the last one brings them home
        wait(requests)
        if not last:
            k, v = following
    wait(requests_of_sums)
    return tuple(x.to(q.dtype) for x in (dq, *sums))


def attend_grad(dout, q, k, v, out, lse, causal):
    """dq, dk, dv of `attend`, with the lse over all keys."""
    lengths = q.shape[1], k.shape[1]
    tensors = [x.transpose(1, 2) for x in (dout, q, k, v, out)]
    seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
    offset = torch.zeros((), dtype=torch.uint64, device=q.device)
    gradients = BACKWARD(
        *tensors, lse.contiguous(), None, None, *lengths, 0.0, causal, seed, offset
    )
    return [x.transpose(1, 2) for x in gradients]
