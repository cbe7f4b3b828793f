"""Tensors in CPU memory that pass for a GPU's, with a driver that only counts: host code alone."""

import contextlib
import types

import torch

import fa_numba
from fa_numba.checks import torch_calls
from fa_numba.runtime import arrays, graphs, launching
from fa_numba.torch import eager, layouts, operators

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
        self.first_calls, self.replays, self.launches = [], [], 0
        self.capturing, self.stream, self.device = False, 0, 0


def install(monkeypatch):
    """Return a `FakeGPU`, on which all tensors are."""
    gpu, tensor_maps = FakeGPU(), iter(range(1024, 1 << 30, 1024))

    def launch(kernel, grid, block, shared_bytes, device, stream, arguments, values, normalize):
        arguments = [normalize(x) if type(x) is tuple else x for x in arguments]
        gpu.launches += 1
        return launching.PreparedLaunch(7, grid, block, shared_bytes, arguments)

    def enqueue(self, key, words, owners, stream, capturing):
        gpu.replays.append((words, stream, capturing))
        return True

    def copy_and_wait(make, device):
        return next(tensor_maps), None

    @contextlib.contextmanager
    def device_and_stream(x):
        before, gpu.device = gpu.device, 0
        yield gpu.stream
        gpu.device = before

    def refuse_captured_dropout(q, dropout_p):
        if dropout_p and gpu.capturing:
            raise ValueError("captured dropout")

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
        (arrays, "device_and_stream", device_and_stream),
        (torch_calls, "refuse_captured_dropout", refuse_captured_dropout),
        (arrays, "gpu_available", lambda: True),
        (arrays, "_gpu_of", lambda x: H200),
        (torch.cuda, "is_current_stream_capturing", lambda: gpu.capturing),
        (layouts, "GPU", "cpu"),
        (eager, "_plans", {}),
        (eager, "_recent", {}),
        (operators, "_recent", {}),
    ):
        monkeypatch.setattr(owner, name, value)

    def layout(x):
        *layout, _, needs_gradient = library.layout(x)
        return *layout, 0, needs_gradient

    current = {"current_device_and_stream": lambda: lambda: (gpu.device, gpu.stream)}
    current["layout"] = layout
    monkeypatch.setitem(arrays._LIBRARIES, "torch", arrays.Library(**vars(library) | current))
    arrays._library.cache_clear()
    return gpu


def forget():
    """Drop what was recorded on the fake."""
    arrays._library.cache_clear()
    for function in vars(fa_numba).values():
        getattr(function, "replays", {}).clear()
