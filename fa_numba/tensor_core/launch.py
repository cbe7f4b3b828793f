"""Launches with tensor maps and more than 48 KiB of shared memory.

All that the tensor-core kernels need of numba-cuda's inside is here.
"""

import functools
import warnings
from collections import OrderedDict

import numpy as np
from cuda.bindings import driver
from numba import cuda
from numba.core.errors import NumbaPerformanceWarning

from fa_numba import arrays
from fa_numba.tensor_core import tma

MAX_MAPS = 1024  # that are kept: 128 bytes on the GPU each

_maps = OrderedDict()


class TensorMap:
    """An argument of `launch`: the tensor map of an array, as `tma.encode_tensor_map` makes it.

    Parameters
    ----------
    x : GPU array of shape (batch, seqlen, heads, head_dim), float16 or bfloat16
    box_rows : int
    """

    def __init__(self, x, box_rows):
        address, strides = arrays.address_and_strides(x)
        self.key = address, tuple(x.shape), strides, box_rows, arrays.dtype_name(x)

    def on_gpu(self, stream):
        """Address of the map in the memory of the current GPU; maps are kept, for the next call."""
        key = (cuda.get_current_device().id, *self.key)
        if key in _maps:
            _maps.move_to_end(key)
        else:
            _maps[key] = cuda.to_device(tma.encode_tensor_map(*self.key), stream=stream)
            stream.synchronize()  # the map is there for other streams too
            if len(_maps) > MAX_MAPS:
                _maps.popitem(last=False)
        return np.uint64(_maps[key].device_ctypes_pointer.value)


def launch(kernel, grid, threads, *args, shared_bytes):
    """Run a kernel on the GPU of its arrays; a grid without thread blocks is not launched.

    Parameters
    ----------
    kernel : function decorated with ``@cuda.jit``
    grid : tuple of int
    threads : int
    *args : GPU arrays of one library, `TensorMap`, NumPy scalars
    shared_bytes : int
        Dynamic shared memory of a thread block; may exceed 48 KiB.
    """
    if 0 in grid:
        return
    first = next(x for x in args if arrays.library_of(x))
    with arrays._device_and_stream(first) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        stream = stream or cuda.default_stream()
        args = [
            x.on_gpu(stream) if isinstance(x, TensorMap) else arrays._for_numba(x) for x in args
        ]
        types = tuple(kernel.typeof_pyval(x) for x in args)
        compiled = kernel.overloads.get(types) or kernel.compile(types)
        _allow_shared_bytes(compiled, shared_bytes, cuda.get_current_device().id)
        kernel[grid, threads, stream, shared_bytes](*args)


@functools.cache
def _allow_shared_bytes(compiled, shared_bytes, device):
    """More than 48 KiB must be asked for once, kernel by kernel."""
    function = compiled._codelibrary.get_cufunc()
    (error,) = driver.cuKernelSetAttribute(
        driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        shared_bytes,
        driver.CUkernel(int(function.handle)),
        driver.CUdevice(device),
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{shared_bytes} bytes of shared memory: {error.name}")
