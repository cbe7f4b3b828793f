"""The dtype of `torch.autocast`, in which PyTorch's own attention runs."""

import torch

FLOATS = torch.float32, torch.float16, torch.bfloat16


def autocast(*tensors):
    """Return the tensors as autocast casts those of attention; as they are where it is off.

    It casts float32, float16 and bfloat16 to its own dtype, and nothing else.
    """
    first = tensors[0]
    if not (isinstance(first, torch.Tensor) and torch.is_autocast_enabled(first.device.type)):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)
    return tuple([_cast(x, dtype) for x in tensors])


def _cast(x, dtype):
    given = getattr(x, "dtype", None)
    return x.to(dtype) if given != dtype and given in FLOATS else x
