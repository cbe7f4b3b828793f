"""Whether tensors have the layouts of an earlier call, so that its replay is right for them.

`check_of` some tensors is a function that says so of others in half a microsecond; `of` is a key,
and takes longer. Nothing of this concerns options, which the caller compares.
"""

import functools

import torch
from torch.autograd import forward_ad

from fa_numba.runtime import launching

GPU = "cuda"
MAX_RECENT = 4  # layouts that alternate, for instance those of two kinds of layers

try:
    _dispatch_keys = torch._C._dispatch_keys
    _num_dispatch_modes = torch._C._len_torch_dispatch_stack
    _transforms_are_active = torch._C._are_functorch_transforms_active
    _is_tracing = torch._C._is_tracing
    _dispatch_keys(torch.empty(0)).raw_repr()
    HAS_INTERNALS = forward_ad._current_level < 0
except AttributeError:  # another version of PyTorch: every call goes by way of the operator
    HAS_INTERNALS = False


def of(*tensors):
    """All that a call may depend on, apart from addresses.

    Only the dispatcher's keys tell a view that is to be negated from the tensor itself.
    """
    found = ()
    for x in tensors:
        found += x.shape, x.stride(), x.dtype, x.get_device(), _dispatch_keys(x).raw_repr()
    return found


def check_of(*tensors):
    """Return a function that says whether other tensors have the same layouts, or perhaps not.

    It is that of torch.compile: one call takes a fifth of the time of `of`. It also says no
    where one of the modes of `intercepted`, of autocast or of inference is not as it is now, and
    where one tensor comes twice.
    """
    if len(set(map(id, tensors))) < len(tensors):
        return never
    try:
        guards = torch._C._dynamo.guards.TensorGuards(
            *tensors,
            dynamic_dims_sizes=[[*x.shape] for x in tensors],
            dynamic_dims_strides=[[*x.stride()] for x in tensors],
        )
        return guards.check if guards.check(*tensors) else never
    except (AttributeError, TypeError, RuntimeError):  # another version of PyTorch
        return never


def never(*tensors):
    return False


def that_fits(recent, *tensors):
    """Return the first of some recent plans, or backward passes, for these tensors, or None."""
    if launching.enabled:
        for fits, known in recent:
            if fits(*tensors):
                return known
    return None


def with_recent(known, recent, *tensors):
    """Return pairs of a check and its plan: `known` for these tensors, then the recent ones."""
    if not known.fits(*tensors):  # of other modes
        known.fits = check_of(*tensors)
    return (known.fits, known), *recent[: MAX_RECENT - 1]


def is_plain(x):
    """Whether data_ptr() of a tensor says all, and its memory is that of a GPU."""
    return x.device.type == GPU and _dispatch_keys(x).raw_repr() in _plain_kinds(GPU)


@functools.cache
def _plain_kinds(device):
    """The dispatch keys of plain tensors on a device, made in inference mode or not.

    A subclass, and a tensor that torch.func transforms, have more keys.
    """
    plain = []
    for inference in (False, True):
        with torch.inference_mode(inference):
            plain.append(_dispatch_keys(torch.empty(0, device=device)).raw_repr())
    return frozenset(plain)


def intercepted():
    """Whether something wants to see the operators that are called now, or replays are off."""
    return (
        torch.compiler.is_dynamo_compiling()
        or not (HAS_INTERNALS and launching.enabled)
        or _num_dispatch_modes() != 0  # fake tensors, a count of operations, …
        or _transforms_are_active()  # torch.func
        or _is_tracing()  # torch.jit.trace
        or forward_ad._current_level >= 0
    )
