"""Rings over several GPUs for those who have a process group of PyTorch.

    from fa_numba.torch.distributed import ring_attn       # after init_process_group
    out = ring_attn(q, k, v, layout="zigzag", causal=True)

q, k and v are this rank's tokens, as `fa_numba.distributed.shard` cuts them. The functions are
those of `fa_numba.distributed`, and differentiable. Tensors in GPU memory are passed on as CuPy
arrays that share their memory, tensors in CPU memory as NumPy arrays.

`ProcessGroup` is the communicator: sends and receives of torch.distributed, on its streams. A lost
rank is an error after the group's own time limit, which `init_process_group` sets; it says for
which ranks this one waited. Ranks that differ are an error: see `Communicator.agree`.
"""

import contextlib
import functools
import weakref

import torch
import torch.distributed as dist

from fa_numba import distributed
from fa_numba.checks import torch_calls
from fa_numba.distributed.communicator import HOW_TO_COMPARE, Communicator, RankLostError
from fa_numba.runtime import arrays
from fa_numba.torch.jobs import as_numpy, as_tensor

__all__ = ["ProcessGroup", "ring_attn", "ulysses_attn"]

_agreed = weakref.WeakKeyDictionary()  # a group of PyTorch: the layouts on which its ranks agree


def ring_attn(q, k, v, *, group=None, **options):
    """Self-attention over the tokens of all ranks, by a ring; every rank calls it.

    Parameters
    ----------
    q : tensor of shape (batch, its tokens, num_heads, head_dim)
    k, v : tensors of shape (batch, its tokens, num_kv_heads, head_dim)
        This rank's part, as `fa_numba.distributed.shard` cuts it.
    group : ProcessGroup of PyTorch, default=the default group
    **options
        Those of `fa_numba.distributed.ring_attn`.

    Returns
    -------
    tensor of the shape and dtype of q

    Raises
    ------
    RankLostError
        Another rank has died or stalled.
    """
    functions = distributed.ring_attn, distributed.ring_attn_grad
    return _Attention.apply(q, k, v, functions, ProcessGroup(group), options)


def ulysses_attn(q, k, v, *, group=None, **options):
    """Self-attention over the tokens of all ranks, with the heads split: see `ring_attn`.

    Parameters
    ----------
    q, k, v, group
        As for `ring_attn`.
    **options
        Those of `fa_numba.distributed.ulysses_attn`.

    Returns
    -------
    tensor of the shape and dtype of q
    """
    functions = distributed.ulysses_attn, distributed.ulysses_attn_grad
    return _Attention.apply(q, k, v, functions, ProcessGroup(group), options)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, functions, comm, options):
        attn, ctx.attn_grad = functions
        forward = {name: x for name, x in options.items() if name != "attn_grad"}
        with _stream_of(q):
            out, lse = map(_to_tensor, attn(comm, *map(_to_array, (q, k, v)), **forward))
        ctx.comm = comm
        ctx.options = {name: x for name, x in options.items() if name != "attn"}
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, dout):
        call = functools.partial(ctx.attn_grad, ctx.comm, **ctx.options)
        gradients = _Gradients.apply(call, dout.contiguous(), *ctx.saved_tensors)
        return *gradients, None, None, None


class _Gradients(torch.autograd.Function):
    """A node of autograd, so that a gradient of a gradient is an error, and not a missing term."""

    @staticmethod
    def forward(ctx, call, *tensors):
        with _stream_of(tensors[0]):
            return tuple(map(_to_tensor, call(*map(_to_array, tensors))))

    @staticmethod
    def backward(ctx, *_):
        torch_calls.refuse_second_derivatives()


class ProcessGroup(Communicator):
    """A communicator over torch.distributed, for NumPy and CuPy arrays.

    Parameters
    ----------
    group : ProcessGroup of PyTorch, default=the default group
    """

    def __init__(self, group=None):
        super().__init__(dist.get_rank(group), dist.get_world_size(group))
        self._group = group
        whole = dist.group.WORLD if group is None else group
        self._agreed = _agreed.setdefault(whole, self._agreed)

    def _start_exchange(self, outgoing, shapes, like):
        arrived = {r: arrays.empty(like, shape, like.dtype) for r, shape in shapes.items()}
        operations = [self._operation(dist.isend, x, r) for r, x in outgoing.items()]
        operations += [self._operation(dist.irecv, x, r) for r, x in arrived.items()]
        ranks = ", ".join(f"rank {r}" for r in sorted({*outgoing, *shapes}))
        with self._errors(ranks), _cupys_stream(like):
            requests = dist.batch_isend_irecv(operations)
        kept = list(outgoing.values())  # alive until they are sent

        def wait():
            with self._errors(ranks), _cupys_stream(like):
                for request in requests:
                    request.wait()
            kept.clear()
            return arrived

        return wait

    def _operation(self, function, x, rank):
        peer = rank if self._group is None else dist.get_global_rank(self._group, rank)
        return dist.P2POp(function, _to_tensor(x.reshape(-1).view("uint8")), peer, self._group)

    @contextlib.contextmanager
    def _errors(self, ranks):
        try:
            yield
        except RuntimeError as error:  # DistBackendError is one
            first = (str(error).splitlines() or [""])[0]
            raise RankLostError(
                f"torch.distributed fails, with {ranks}: {first}; {HOW_TO_COMPARE}"
            ) from error


def _to_array(x):
    """A tensor as the NumPy or CuPy array that shares its memory."""
    if not x.is_cuda:
        return as_numpy(x)
    import cupy

    x = x.detach()
    if x.dtype == torch.bfloat16:
        return cupy.asarray(x.view(torch.int16)).view("bfloat16")
    return cupy.asarray(x)


def _to_tensor(x):
    """A contiguous NumPy or CuPy array as the tensor that shares its memory."""
    if arrays.library_of(x) == "numpy":
        return as_tensor(x)
    device = torch.device("cuda", arrays.device_of(x))
    if arrays.dtype_name(x) == "bfloat16":
        return torch.as_tensor(x.view("int16"), device=device).view(torch.bfloat16)
    return torch.as_tensor(x, device=device)


def _stream_of(x):
    """Make PyTorch's current stream CuPy's, for tensors in GPU memory."""
    if not x.is_cuda:
        return contextlib.nullcontext()
    import cupy

    stream = torch.cuda.current_stream(x.device)
    return cupy.cuda.ExternalStream(stream.cuda_stream, device_id=x.device.index)


@contextlib.contextmanager
def _cupys_stream(x):
    """Make CuPy's current stream PyTorch's, for CuPy arrays."""
    if arrays.library_of(x) == "numpy":
        yield
        return
    import cupy

    device = torch.device("cuda", arrays.device_of(x))
    pointer = cupy.cuda.get_current_stream().ptr
    if pointer:
        stream = torch.cuda.ExternalStream(pointer, device=device)
    else:  # ExternalStream(0) is a new stream
        stream = torch.cuda.default_stream(device)
    with torch.cuda.device(device), torch.cuda.stream(stream):
        yield
