"""tensor_maps: which maps are made and kept, and which maps a replay looks up."""

import functools
import sys
import types

import numpy as np
import pytest
from fake_libraries import CupyArray, fake_cupy

from fa_numba.runtime import arrays, launching, replay, tensor_maps


@pytest.fixture
def made(monkeypatch):
    """Arguments of each encoded map, by the address that the map was copied to."""
    made = {}

    def copy_and_wait(make, device):
        where = 1000 * (len(made) + 1)
        made[where] = (device, *make())
        return where, None

    cupy = fake_cupy([("enter device", 0)])
    cupy.cuda.runtime.streamIsCapturing = lambda stream: 0
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(tensor_maps, "encode_tensor_map", lambda *arguments: arguments)
    monkeypatch.setattr(launching, "copy_and_wait", copy_and_wait)
    monkeypatch.setattr(tensor_maps, "_captured", {})
    monkeypatch.setattr(tensor_maps, "_maps", functools.cache(tensor_maps.Maps))
    return made


def half(*shape, index=0):
    return CupyArray(np.zeros(shape, np.float16), index)


def test_a_map_is_made_once_for_each_address_layout_and_box(made):
    x, y = half(2, 3, 4, 64), half(2, 3, 4, 64)
    first = tensor_maps.tensor_map(x, 64)
    assert made[first][:6] == (0, x.data.ptr, (2, 3, 4, 64), (1536, 512, 128, 2), 64, "float16")
    assert tensor_maps.tensor_map(x, 64) == first and len(made) == 1
    others = [(y, 64), (x, 16), (x.view(np.int16), 64), (CupyArray(x.host[:, :2]), 64)]
    others.append((CupyArray(x.host, 1), 64))
    assert len({tensor_maps.tensor_map(*other) for other in others} | {first}) == 6
    assert tensor_maps.tensor_map(half(2, 0, 4, 64), 64) == 0 and len(made) == 6


def test_windows_have_a_map_of_their_own(made):
    x = half(5, 4, 64)
    plain, windows = (tensor_maps.tensor_map(x, 16, windows=windows) for windows in (False, True))
    assert made[plain][:-1] == made[windows][:-1]
    assert made[plain][-1] is False and made[windows][-1] is True


def test_windows_overlap_and_end_before_their_row():
    shape, strides = (1, 5, 4, 64), (0, 512, 128, 2)
    address, windows, steps = tensor_maps.windows_of(1 << 20, shape, strides, 16)
    assert windows == (6, 16, 4, 64) and steps == (512, 512, 128, 2)
    for window in range(6):  # the row after the last one of a window is row `window`
        assert address + window * steps[0] + 16 * steps[1] == (1 << 20) + 512 * window
    # The stride of a single row may be any number, which a map need not be able to hold.
    address, _, steps = tensor_maps.windows_of(1 << 20, (1, 1, 4, 64), (0, 7, 128, 2), 16)
    assert steps[0] == steps[1] and steps[0] % 16 == 0
    assert address + steps[0] + 15 * steps[1] == 1 << 20


def test_maps_do_not_pile_up_but_those_of_graphs_stay(made, monkeypatch):
    monkeypatch.setattr(tensor_maps, "MAX_MAPS", 3)
    maps = tensor_maps.Maps(0, "layout")
    monkeypatch.setattr(tensor_maps, "_maps", lambda *layout: maps)
    kept = [half(1, 1, 1, 64) for _ in range(5)]  # alive, so that no address comes back
    sys.modules["cupy"].cuda.runtime.streamIsCapturing = lambda stream: 1
    first = tensor_maps.tensor_map(kept[0], 64)
    sys.modules["cupy"].cuda.runtime.streamIsCapturing = lambda stream: 0
    for x in kept:
        tensor_maps.tensor_map(x, 64)
    assert list(maps.known) == [x.data.ptr for x in kept[3:]]
    assert list(maps.older) == [x.data.ptr for x in kept[:3]]
    tensor_maps.tensor_map(kept[1], 64)
    assert len(made) == 5 and kept[1].data.ptr in maps.known  # used again: it stays
    tensor_maps.tensor_map(kept[0], 64)
    tensor_maps.tensor_map(half(1, 1, 1, 64), 64)
    assert len(made) == 6 and list(maps.older) == [x.data.ptr for x in (*kept[3:], kept[1])]
    assert list(tensor_maps._captured) == [first]


def test_a_recorded_call_asks_for_the_maps_of_its_own_arrays(made, monkeypatch):
    given = []

    def launch(kernel, grid, block, shared_bytes, device, stream, arguments, values, normalize):
        given.append(values)
        arguments = [normalize(x) if isinstance(x, tuple) else x for x in arguments]
        return launching.PreparedLaunch(7, grid, block, shared_bytes, arguments)

    @arrays.replayed
    def function(q, k):
        out = arrays.empty(q, q.shape, q.dtype)
        maps = [tensor_maps.tensor_map(x, 64) for x in (q, k, out)]
        arrays.launch("kernel", (1,), (32,), *maps, q)
        return out

    driver = types.SimpleNamespace(cuLaunchKernel=lambda *at: (0,))
    monkeypatch.setattr(launching, "driver", driver)
    monkeypatch.setattr(launching, "cu_stream", lambda handle: handle)
    monkeypatch.setattr(launching, "enabled", True)
    monkeypatch.setattr(launching, "can_try", lambda kernel: True)
    monkeypatch.setattr(launching, "launch", launch)
    kept = []
    for _ in range(3):
        q, k = half(1, 2, 1, 64), half(1, 2, 1, 64)
        kept += q, k, function(q, k)
        assert {address for _, address, *_ in made.values()} == {x.data.ptr for x in kept}
    assert len(given) == 1 and replay.current() is None
