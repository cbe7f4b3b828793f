"""Tensor maps: descriptors of arrays for TMA, kept in the memory of their GPU for later calls."""

import ctypes
import functools

import numpy as np
from numba import cuda

from fa_numba.ptx.layouts import PANEL_COLS
from fa_numba.runtime import arrays, launching, replay

MAP_BYTES = 128
MAX_LAYOUTS = 256  # whose maps are kept
MAX_MAPS = 256  # of one layout, in each of two generations

_captured = {}  # maps that CUDA graphs may read until this process ends


class Maps:
    """The tensor maps of arrays that differ only by their address.

    Parameters
    ----------
    device : int
        Index of their GPU.
    shape, strides, box_rows, dtype, l2_bytes, windows
        As for `encode_tensor_map`.
    """

    def __init__(self, device, *layout):
        self.device, self.layout = device, layout
        self.known, self.older = {}, {}

    def at(self, address: int, capturing: bool) -> int:
        """Return the address in global memory of the map of an array at `address`.

        With `capturing`, a CUDA graph is being captured, and may be replayed at any time later.
        """
        map_address, owner = self._find(address)
        if capturing:
            _captured[map_address] = owner
        return map_address

    def owner(self, address: int):
        """The object that keeps the map of an array at `address`."""
        _, owner = self._find(address)
        return owner

    def _find(self, address):
        found = self.known.get(address)
        if found is None:
            found = self.older.get(address) or self._make(address)
            if len(self.known) >= MAX_MAPS:  # keeps recently used maps, so this call's too
                self.known, self.older = {}, self.known
            found = self.known.setdefault(address, found)  # or that of a thread that was faster
        return found

    def _make(self, address):
        encode = functools.partial(encode_tensor_map, address, *self.layout)
        return launching.copy_and_wait(encode, self.device)


_maps = functools.lru_cache(MAX_LAYOUTS)(Maps)


def tensor_map(x, box_rows: int, l2_bytes: int = 256, windows: bool = False) -> np.uint64:
    """Return the address of an array's tensor map, the argument that a kernel takes.

    The first call for an address copies the map to the GPU and waits for that. So every stream may
    use the map, also while a CUDA graph is captured.

    Parameters
    ----------
    x : GPU array of shape (batch, seqlen, heads, head_dim), float16 or bfloat16
        A packed batch, (num_tokens, heads, head_dim), counts as a batch of one sequence.
    box_rows : int
        Rows of one copy.
    l2_bytes : int, default=256
    windows : bool, default=False
        As for `encode_tensor_map`.

    Returns
    -------
    uint64
        Address in global memory.
    """
    if 0 in x.shape:
        return np.uint64(0)  # nothing is ever copied from it
    facts = arrays.facts(x)
    shape, strides = facts.shape, facts.strides
    if len(shape) == 3:
        shape, strides = (1, *shape), (0, *strides)
    device = cuda.get_current_device().id if facts.device is None else facts.device
    maps = _maps(device, shape, strides, box_rows, facts.dtype, l2_bytes, windows)
    found = np.uint64(maps.at(facts.address, arrays.is_capturing(x)))
    if recording := replay.current():
        recording.note_computation(found, x, maps.at, maps.owner)
    return found


def windows_of(address: int, shape: tuple, strides: tuple, num_rows: int) -> tuple:
    """Return address, shape and strides of a packed batch's windows of num_rows rows.

    They overlap, and take the place of the axis of the batch: window w is the rows before row w, up
    to row w − 1. The first windows begin before the array; a copy must not take these rows.

    A copy from window w, from its row r on, ends at row w of the packed batch, and in shared memory
    zeros follow: TMA zero-pads past the window's end, as past the end of any axis, and does not
    store there. So one map for all sequences lets a copy end at the end of any of them.
    `ptx.tma.in_window` computes w and r.

    Parameters
    ----------
    address, shape, strides
        As for `encode_tensor_map`, with a batch of 1.
    num_rows : int
        Rows of a window.

    Returns
    -------
    address : int
    shape : (num_tokens + 1, num_rows, heads, head_dim)
    strides : (int, int, int, int)
    """
    _, num_tokens, heads, head_dim = shape
    _, of_row, of_head, of_col = strides
    if num_tokens == 1:
        of_row = 16 * head_dim  # it may be any number
    windows = num_tokens + 1, num_rows, heads, head_dim
    return address - num_rows * of_row, windows, (of_row, of_row, of_head, of_col)


def encode_tensor_map(
    address: int,
    shape: tuple,
    strides: tuple,
    box_rows: int,
    dtype: str,
    l2_bytes: int = 256,
    windows: bool = False,
) -> np.ndarray:
    """Encode the tensor map of a (batch, seqlen, heads, head_dim) array of 16-bit floats.

    Parameters
    ----------
    address : int
        Address of its first element; a multiple of 16.
    shape : (batch, seqlen, heads, head_dim)
    strides : (int, int, int, int)
        In bytes; the last axis is contiguous, the others' strides are multiples of 16.
    box_rows : int
        Rows of one copy, which takes 64 columns of them, of one head of one batch entry.
    dtype : "float16" or "bfloat16"
    l2_bytes : 64, 128 or 256, default=256
        Size of the pieces that L2 fetches from HBM for a copy.
    windows : bool, default=False
        Describe the array's windows of box_rows rows in its place (`windows_of`).

    Returns
    -------
    numpy array of 128 uint8

    Raises
    ------
    RuntimeError
        The driver refused shape or strides, which the message holds.
    """
    from cuda.bindings import driver

    if windows:
        address, shape, strides = windows_of(address, shape, strides, box_rows)
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
