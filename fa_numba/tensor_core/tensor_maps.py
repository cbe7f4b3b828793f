"""Tensor maps of arrays, kept in the memory of their GPU for the next call."""

import functools

import numpy as np
from numba import cuda

from fa_numba import arrays, launching, replay
from fa_numba.tensor_core import tma

MAX_LAYOUTS, MAX_MAPS = 256, 256  # that are kept, and maps of each; 512 bytes for a map

_captured = {}  # maps that CUDA graphs may read as long as this process lives


class Maps:
    """The tensor maps of all arrays that differ in nothing but their address.

    Parameters
    ----------
    device : int
        The GPU they are on.
    shape, strides, box_rows, dtype, l2_bytes
        As for `tma.encode_tensor_map`.
    """

    def __init__(self, device, *layout):
        self.device, self.layout = device, layout
        self.known, self.older = {}, {}

    def at(self, address, capturing):
        """Address in global memory of the map of an array at `address`.

        `capturing`: a CUDA graph is being captured, and may be replayed at any time from now on.
        """
        found = self.known.get(address)
        if found is None:
            found = self.older.get(address) or self._make(address)
            if len(self.known) >= MAX_MAPS:  # what was used of late, for this call too, stays
                self.known, self.older = {}, self.known
            found = self.known.setdefault(address, found)  # another thread's, if that was first
        where, array = found
        if capturing:
            _captured[where] = array
        return where

    def _make(self, address):
        encode = functools.partial(tma.encode_tensor_map, address, *self.layout)
        array = launching.copy_at_once(encode, self.device)
        return array.device_ctypes_pointer.value, array


_maps = functools.lru_cache(MAX_LAYOUTS)(Maps)


def tensor_map(x, box_rows, l2_bytes=256):
    """The tensor map of an array, as a kernel takes it.

    The first call for an address copies the map to the GPU and waits for that, so that every
    stream may use it, also while a CUDA graph is captured.

    Parameters
    ----------
    x : GPU array of shape (batch, seqlen, heads, head_dim), float16 or bfloat16
        A packed batch, (num_tokens, heads, head_dim), is taken as one of a single sequence.
    box_rows : int
        Rows that a copy takes.
    l2_bytes : int, default=256
        As for `tma.encode_tensor_map`.

    Returns
    -------
    uint64
        Address in global memory.
    """
    if 0 in x.shape:
        return np.uint64(0)  # nothing is ever copied from it
    shape, (address, strides) = tuple(x.shape), arrays.address_and_strides(x)
    if len(shape) == 3:
        shape, strides = (1, *shape), (0, *strides)
    device = arrays.device_of(x)
    device = cuda.get_current_device().id if device is None else device
    maps = _maps(device, shape, strides, box_rows, arrays.dtype_name(x), l2_bytes)
    found = np.uint64(maps.at(address, arrays.is_capturing(x)))
    if recording := replay.current():
        recording.computed(found, x, maps.at)
    return found
