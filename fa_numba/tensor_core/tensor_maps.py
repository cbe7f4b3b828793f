"""Tensor maps of arrays, kept in the memory of their GPU for the next call."""

from collections import OrderedDict

import numpy as np
from numba import cuda

from fa_numba import arrays
from fa_numba.tensor_core import tma

MAX_MAPS = 1024  # that are kept, each 128 bytes

_maps = OrderedDict()


def tensor_map(x, box_rows):
    """The tensor map of an array, as a kernel takes it.

    The first call for an address copies the map to the GPU and waits for that, so that every
    stream may use it. A CUDA graph is captured after such a call.

    Parameters
    ----------
    x : GPU array of shape (batch, seqlen, heads, head_dim), float16 or bfloat16
    box_rows : int
        Rows that a copy takes.

    Returns
    -------
    uint64
        Address in global memory.
    """
    if 0 in x.shape:
        return np.uint64(0)  # nothing is ever copied from it
    address, strides = arrays.address_and_strides(x)
    key = (arrays.device_of(x), address, tuple(x.shape), strides, box_rows, arrays.dtype_name(x))
    if key in _maps:
        _maps.move_to_end(key)
    else:
        with arrays.device_and_stream(x) as stream:
            stream = stream or cuda.default_stream()
            _maps[key] = cuda.to_device(tma.encode_tensor_map(*key[1:]), stream=stream)
            stream.synchronize()
        if len(_maps) > MAX_MAPS:
            _maps.popitem(last=False)
    return np.uint64(_maps[key].device_ctypes_pointer.value)
