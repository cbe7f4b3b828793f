"""arrays.replayed: the second call allocates and launches what the first one did."""

import struct
import sys
import types

import numpy as np
import pytest
from fake_libraries import CupyArray, fake_cupy

import fa_numba
from fa_numba import arrays, launching


class Plan(launching.Plan):
    """Keeps, by kernel, the values and streams that it is launched with."""

    def __init__(self, gpu, kernel, *launch):
        super().__init__(7, *launch)
        self.kernel, self.gpu = kernel, gpu
        gpu.plans[self.where] = self

    def copy(self, values):
        plan = super().copy(values)
        self.gpu.plans[plan.where] = plan
        return plan

    def launched(self, stream):
        kinds = [pack_into.__self__.format for pack_into, _ in self.variable]
        places = [offset for _, offset in self.variable]
        values = [
            struct.unpack_from(kind, self.words, at)[0]
            for kind, at in zip(kinds, places, strict=True)
        ]
        self.gpu.launches.setdefault(self.kernel, []).append((values, stream))


@pytest.fixture
def gpu(monkeypatch):
    """Fake CuPy, and a driver that keeps what it is given; `gpu.calls` counts the real calls."""
    gpu = types.SimpleNamespace(launches={}, plans={}, calls=0, error=0)

    def launch(kernel, grid, block, shared_bytes, device, stream, arguments, values, in_bytes):
        arguments = [in_bytes(x) if isinstance(x, tuple) else x for x in arguments]
        plan = Plan(gpu, kernel, grid, block, shared_bytes, arguments)
        plan.launch(values, stream)
        return plan

    def launch_kernel(function, *sizes_stream_pointers_where):
        *sizes, stream, pointers, where = sizes_stream_pointers_where
        assert (function, pointers, len(sizes)) == (7, 0, 7)
        if not gpu.error:
            gpu.plans[where].launched(stream)
        return (gpu.error,)

    results = launching.driver and launching.driver.CUresult
    driver = types.SimpleNamespace(CUresult=results, cuLaunchKernel=launch_kernel)
    gpu.cupy = cupy = fake_cupy([("enter device", 0)])
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(launching, "driver", driver)
    monkeypatch.setattr(launching, "stream_at", lambda address: address)
    monkeypatch.setattr(launching, "enabled", True)
    monkeypatch.setattr(launching, "takes", lambda kernel: True)
    monkeypatch.setattr(launching, "launch", launch)
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
        assert len(gpu.launches["first"]) == len(gpu.launches["second"]) == turn + 1
        assert gpu.launches["first"][-1] == ([*pointers, 2.5], 11)
        assert gpu.launches["second"][-1] == ([made.data.ptr, ones.data.ptr], 11)


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


def test_what_is_allocated_during_a_capture_is_kept(gpu, monkeypatch):
    monkeypatch.setattr(arrays, "_captured", kept := [])
    function = decorated(gpu)
    x, y = cupy_array(2, 3), cupy_array(5)
    for capturing in (0, 0, 1):  # a call, a replay, a captured replay
        gpu.cupy.cuda.runtime.streamIsCapturing = lambda stream, answer=capturing: answer
        assert not kept
        results = function(x, y)
    assert kept == list(results)
    results = function(x, y, scale=2.5)  # a captured call
    assert kept[2:] == list(results)


def test_two_calls_with_other_scalars_do_not_mix(gpu):
    function = decorated(gpu)
    x, y = cupy_array(2, 3), cupy_array(5)
    for scale in (2.5, 3.5, 2.5, 3.5):
        function(x, y, scale=scale)
        assert gpu.launches["first"][-1][0][-1] == scale
    assert gpu.calls == 2


def test_the_same_array_twice_is_not_taken_for_two_arrays(gpu):
    function = decorated(gpu)
    x, y = cupy_array(2, 3), cupy_array(2, 3)
    for turn, arguments in enumerate([(x, x), (x, y), (y, x), (x, x)]):
        function(*arguments)
        assert gpu.calls == min(turn + 1, 2)
        values, _ = gpu.launches["first"][-1]
        assert values[:2] == [a.data.ptr for a in arguments]


def test_where_alignment_was_looked_at_another_one_is_called_again(gpu):
    numbers = np.zeros(64, np.float16)
    first = (-numbers.ctypes.data % 16) // 2

    @arrays.replayed
    def function(x):
        gpu.calls += 1
        address, _ = arrays.address_and_strides(x)
        arrays.launch("aligned" if address % 16 == 0 else "other", (1,), (32,), x)
        return x

    for shift, calls in ((0, 1), (8, 1), (1, 2), (16, 2), (24, 2), (3, 3)):
        function(CupyArray(numbers[first + shift : first + shift + 4]))
        assert gpu.calls == calls
    assert len(gpu.launches["aligned"]) == 4 and len(gpu.launches["other"]) == 2


def test_what_is_computed_from_an_address_is_computed_again(gpu):
    seen = []

    def compute(address, capturing):
        seen.append((address, capturing))
        return address + 1

    @arrays.replayed
    def function(x, y):
        gpu.calls += 1
        made = [np.uint64(compute(a.data.ptr, False)) for a in (x, y)]
        for a, number in zip((x, y), made, strict=True):
            arrays.replay.current().computed(number, a, compute)
        arrays.launch("kernel", (1,), (32,), made[1], x, made[0])
        return x
        return x

    gpu.cupy.cuda.runtime.streamIsCapturing = lambda stream: int(stream == 11)
    for turn in range(3):
        x, y = cupy_array(2, 3), cupy_array(2, 3)
        function(x, y)
        addresses = [a.data.ptr for a in (x, y)]
        assert gpu.calls == 1
        assert seen == [(address, turn > 0) for address in addresses]
        values, _ = gpu.launches["kernel"][-1]
        assert values == [addresses[1] + 1, addresses[0], addresses[0] + 1]
        seen.clear()


def test_a_thread_without_a_context_is_helped_by_a_call(gpu):
    function = decorated(gpu)
    x, y = cupy_array(2, 3), cupy_array(5)
    function(x, y)
    gpu.error = launching.driver.CUresult.CUDA_ERROR_INVALID_CONTEXT
    function(x, y)
    assert gpu.calls == 2
    gpu.error = launching.driver.CUresult.CUDA_ERROR_LAUNCH_FAILED
    with pytest.raises(RuntimeError, match=r"grid \(4, 1, 1\).*CUDA_ERROR_LAUNCH_FAILED"):
        function(x, y)


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
        (launches,) = gpu.launches.values()
        pointers = {a.data.ptr for a in (q, k, v, out, lse, slopes)}
        assert len(launches) == turn and pointers <= set(launches[-1][0])
        assert out.shape == q.shape and lse.shape == (1, 2, 3)


@pytest.mark.parametrize("deterministic", [False, True])
def test_backward(gpu, deterministic):
    for turn in range(1, 4):
        dout, q, k, v, out = (cupy_array(1, 3, 2, 4) for _ in range(5))
        lse = cupy_array(1, 2, 3)
        options = {"deterministic": deterministic}
        gradients = fa_numba.flash_attn_bwd_simt(dout, q, k, v, out, lse, **options)
        assert len(gpu.launches) == 2 + deterministic
        assert all(len(launches) == turn for launches in gpu.launches.values())
        given = {value for launches in gpu.launches.values() for value in launches[-1][0]}
        assert {x.data.ptr for x in (*gradients, dout, q, k, v, out, lse)} <= given
