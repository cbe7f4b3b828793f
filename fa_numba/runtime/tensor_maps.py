"""Tensor maps of arrays, kept in the memory of their GPU for the next call."""

import ctypes
import functools

import numpy as np
from numba import cuda

from fa_numba.ptx.layouts import PANEL_COLS
from fa_numba.runtime import arrays, launching, replay

MAP_BYTES = 128
MAX_LAYOUTS, MAX_MAPS = 256, 256  # that are kept, and maps of each; 512 bytes for a map

_captured = {}  # maps that CUDA graphs may read as long as this process lives


class Maps:
    """The tensor maps of all arrays that differ in nothing but their address.

    Parameters
    ----------
    device : int
        The GPU they are on.
    shape, strides, box_rows, dtype, l2_bytes
        As for `encode_tensor_map`.
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
        encode = functools.partial(encode_tensor_map, address, *self.layout)
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
        As for `encode_tensor_map`.

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
        recording.note_computation(found, x, maps.at)
    return found


def encode_tensor_map(address, shape, strides, box_rows, dtype, l2_bytes=256):
    """A tensor map of a (batch, seqlen, heads, head_dim) array of 16-bit floats.

    Parameters
    ----------
    address : int
        Of its first element; a multiple of 16.
    shape : (batch, seqlen, heads, head_dim)
    strides : (int, int, int, int)
        In bytes; the last axis is contiguous, the others' strides are multiples of 16.
    box_rows : int
        A copy takes so many rows, and 64 columns, of one head of one batch.
    dtype : "float16" or "bfloat16"
    l2_bytes : 64, 128 or 256, default=256
        What L2 fetches from HBM around what a copy asks for.

    Returns
    -------
    numpy array of 128 uint8

    Raises
    ------
    RuntimeError
        The driver refused, for shape or strides that a map cannot describe; it names both.
    """
    from cuda.bindings import driver

    batch, seqlen, heads, head_dim = shape
    # An axis of one element is never stepped along, and may have any stride.
    of_batch, of_row, of_head = (
        stride if size > 1 else 16 * head_dim
        for stride, size in zip(strides[:3], shape[:3], strict=True)
    )
    error, tensor_map = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{dtype.upper()}"),
        4,
        address,
        [driver.cuuint64_t(n) for n in (head_dim, seqlen, heads, batch)],
        [driver.cuuint64_t(n) for n in (of_row, of_head, of_batch)],
        [driver.cuuint32_t(n) for n in (PANEL_COLS, box_rows, 1, 1)],
        [driver.cuuint32_t(1)] * 4,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        getattr(driver.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_L2_{l2_bytes}B"),
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuTensorMapEncodeTiled: {error.name} for {shape=}, {strides=}")
    bits = (ctypes.c_uint8 * MAP_BYTES).from_address(tensor_map.getPtr())
    return np.frombuffer(bits, np.uint8).copy()
