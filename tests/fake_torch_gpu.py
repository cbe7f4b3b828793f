"""Tensors in CPU memory that pass for a GPU's, with a driver that only counts: host code alone."""

import contextlib
import types

import torch

from fa_numba.runtime import arrays, graphs, launching
from fa_numba.torch import eager

H200 = types.SimpleNamespace(
    compute_capability=(9, 0),
    name=b"NVIDIA H200",
    MULTIPROCESSOR_COUNT=132,
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=232_448,
)


class FakeGPU:
    """What reached the driver.

    Attributes
    ----------
    first_calls : list of str
        Names of the jobs that ran as functions, not as replays.
    words : list of list of int
        Addresses, and numbers computed from them, of each replay.
    capturing : bool
    stream, device : int
        The current ones.
    """

    def __init__(self):
        self.first_calls, self.words, self.launches = [], [], 0
        self.capturing, self.stream, self.device = False, 0, 0


def install(monkeypatch):
    """Return a `FakeGPU`, on which all tensors are."""
    gpu, tensor_maps = FakeGPU(), iter(range(1024, 1 << 30, 1024))

    def launch(kernel, grid, block, shared_bytes, device, stream, arguments, values, normalize):
        arguments = [normalize(x) if isinstance(x, tuple) else x for x in arguments]
        gpu.launches += 1
        return launching.PreparedLaunch(7, grid, block, shared_bytes, arguments)

    def enqueue(self, words, stream, capturing):
        gpu.words.append(words)
        return True

    def copy_and_wait(make, device):
        pointer = types.SimpleNamespace(value=next(tensor_maps))
        return types.SimpleNamespace(device_ctypes_pointer=pointer)

    library = arrays._LIBRARIES["torch"]
    for owner, name, value in (
        (launching, "enabled", True),
        (launching, "can_try", lambda kernel: True),
        (launching, "launch", launch),
        (launching, "copy_and_wait", copy_and_wait),
        (launching, "relaxed_capture", contextlib.nullcontext),
        (graphs.Launches, "enqueue", enqueue),
        (arrays, "library_of", lambda x: arrays._library_of_type(type(x))),
        (arrays, "device_of", lambda x: 0),
        (arrays, "gpu_available", lambda: True),
        (arrays, "_gpu_of", lambda x: H200),
        (torch.cuda, "is_current_stream_capturing", lambda: gpu.capturing),
        (eager, "GPU", "cpu"),
        (eager, "_plans", {}),
    ):
        monkeypatch.setattr(owner, name, value)
    device_and_stream = lambda: lambda: (gpu.device, gpu.stream)  # noqa: E731
    fake = vars(library) | {"current_device_and_stream": device_and_stream}
    monkeypatch.setitem(arrays._LIBRARIES, "torch", arrays.Library(**fake))
    arrays._library.cache_clear()
    return gpu
