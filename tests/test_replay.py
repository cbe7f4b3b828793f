"""arrays.replayed: the second call allocates and launches what the first one did."""

import sys
import types

import numpy as np
import pytest
from fake_libraries import CupyArray, fake_cupy

import fa_numba
from fa_numba import arrays, launching


class Plan:
    """Keeps the values that it is launched with."""

    def __init__(self):
        self.launches = []

    def launch(self, values, stream):
        self.launches.append((values, stream))
        return True


@pytest.fixture
def gpu(monkeypatch):
    """Fake CuPy, and plans by kernel instead of launches; `gpu.calls` counts the real calls."""
    gpu = types.SimpleNamespace(plans={}, calls=0)

    def launch(kernel, grid, block, shared_bytes, device, stream, arguments, values, in_bytes):
        plan = gpu.plans.setdefault(kernel, Plan())
        plan.launch(values, stream)
        return plan

    monkeypatch.setitem(sys.modules, "cupy", fake_cupy([("enter device", 0)]))
    monkeypatch.setattr(launching, "enabled", True)
    monkeypatch.setattr(launching, "takes", lambda kernel: True)
    monkeypatch.setattr(launching, "launch", launch)
    monkeypatch.setattr(launching, "stream_at", lambda address: address)
    return gpu


def cupy_array(*shape, dtype=np.float32):
    return CupyArray(np.zeros(shape, dtype))


def decorated(gpu):
    @arrays.replayed
    def function(x, y, *, scale=1.0, flags=(0, 1), z=None, leak=False):
        gpu.calls += 1
        made, ones = arrays.empty(x, x.shape, np.int32), arrays.full(x, (2,), 1)
        other = CupyArray(np.zeros(3)) if leak else made
        arrays.launch("first", (4,), (32,), x, y, made, np.float32(scale))
        arrays.launch("second", (1,), (32,), other, ones)
        return made, ones

    return function


def test_a_second_call_has_new_results_and_the_same_launches(gpu):
    function = decorated(gpu)
    for turn in range(3):
        x, y = cupy_array(2, 3), cupy_array(5)
        made, ones = function(x, y, scale=2.5)
        assert gpu.calls == 1
        assert made.shape == (2, 3) and made.dtype == np.int32
        assert (ones.host == 1).all()
        pointers = [a.data.ptr for a in (x, y, made)]
        assert len(gpu.plans["first"].launches) == turn + 1
        assert gpu.plans["first"].launches[-1] == ([*pointers, 2.5], 11)
        assert gpu.plans["second"].launches[-1] == ([made.data.ptr, ones.data.ptr], 11)


@pytest.mark.parametrize(
    "changed",
    [
        {"x": cupy_array(3, 3)},
        {"x": cupy_array(2, 3, dtype=np.float16)},
        {"y": CupyArray(np.zeros(10, np.float32)[::2])},
        {"scale": 1},
        {"scale": 3.0},
        {"flags": (0, True)},
        {"z": cupy_array(4)},
    ],
)
def test_another_layout_or_option_is_another_call(gpu, changed):
    function = decorated(gpu)
    arguments = {"x": cupy_array(2, 3), "y": cupy_array(5)}
    function(**arguments)  # all by name: never replayed
    for _ in range(2):
        function(*arguments.values())
    assert gpu.calls == 2
    arguments |= changed
    x, y = arguments.pop("x"), arguments.pop("y")
    for _ in range(2):
        function(x, y, **arguments)
    assert gpu.calls == 3


def test_what_is_not_told_by_its_steps_is_called_again(gpu):
    function = decorated(gpu)
    x, y = cupy_array(2, 3), cupy_array(5)
    for turn in range(3):
        function(x, y, leak=True)
        assert gpu.calls == turn + 1


def test_options_that_cannot_be_compared_are_no_obstacle(gpu):
    function = decorated(gpu)
    x, y = cupy_array(2, 3), cupy_array(5)
    for flags in ([0, 1], ([0], 1), np.float32(1)):
        before = gpu.calls
        for _ in range(2):
            function(x, y, flags=flags)
        assert gpu.calls == before + 2


def test_without_the_short_way_nothing_is_replayed(gpu, monkeypatch):
    function = decorated(gpu)
    x, y = cupy_array(2, 3), cupy_array(5)
    function(x, y)
    monkeypatch.setattr(launching, "enabled", False)
    function(x, y)
    assert gpu.calls == 2


def test_an_error_is_raised_every_time(gpu):
    q, k = cupy_array(1, 3, 2, 4), cupy_array(1, 3, 2, 5)
    for _ in range(2):
        with pytest.raises(ValueError, match="k and v must have the head_dim of q"):
            fa_numba.flash_attn_v2(q, k, k)
        fa_numba.flash_attn_v2(q, q, q)
        with pytest.raises(TypeError, match="causal must be True or False"):
            fa_numba.flash_attn_v2(q, q, q, causal=0)


@pytest.mark.parametrize("name", ["flash_attn_v2", "flash_attn_v2_unsigned", "flash_attn_simt"])
def test_forward(gpu, name):
    slopes = cupy_array(2)
    for turn in range(1, 4):
        q, k, v = (cupy_array(1, 3, 2, 4) for _ in range(3))
        out, lse = getattr(fa_numba, name)(q, k, v, causal=True, alibi_slopes=slopes)
        ((kernel, plan),) = gpu.plans.items()
        values, _ = plan.launches[-1]
        pointers = {a.data.ptr for a in (q, k, v, out, lse, slopes)}
        assert len(plan.launches) == turn and pointers <= set(values)
        assert out.shape == q.shape and lse.shape == (1, 2, 3)


@pytest.mark.parametrize("deterministic", [False, True])
def test_backward(gpu, deterministic):
    for turn in range(1, 4):
        q, k, v, out = (cupy_array(1, 3, 2, 4) for _ in range(4))
        lse = cupy_array(1, 2, 3)
        options = {"deterministic": deterministic}
        gradients = fa_numba.flash_attn_bwd_simt(q, q, k, v, out, lse, **options)
        assert len(gpu.plans) == 2 + deterministic
        assert all(len(plan.launches) == turn for plan in gpu.plans.values())
        given = {value for plan in gpu.plans.values() for value in plan.launches[-1][0]}
        assert {x.data.ptr for x in (*gradients, q, k, v, out, lse)} <= given
