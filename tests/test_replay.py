"""arrays.replayed: the second call repeats the allocations and launches of the first."""

import ctypes
import gc
import sys
import types
import weakref

import numpy as np
import pytest
from fake_libraries import CupyArray, fake_cupy

import fa_numba
from fa_numba import checks, masks
from fa_numba.dispatch.job import Job
from fa_numba.kernels import dropout
from fa_numba.runtime import arrays, graphs, launching, replay
from fa_numba.tensor_core import expression_tiles

SIZES = 300, 300, 1, 2, 128, 2  # queries, keys, batch, heads; of a tile


class Prepared(launching.PreparedLaunch):
    """A launch that is found by the address of its pointers, and reads the parameters there."""

    def __init__(self, gpu, kernel, *launch):
        self.kernel, self.gpu = kernel, gpu
        super().__init__(7, *launch)

    def _make_parameters(self, parameter_addresses):
        super()._make_parameters(parameter_addresses)
        self.gpu.prepared[self.pointers_at] = self

    def values(self):
        kinds = [(pack_into.__self__, place) for pack_into, place in self.writers]
        found = ((kind, ctypes.string_at(self.pointers[place], kind.size)) for kind, place in kinds)
        return [kind.unpack(content)[0] for kind, content in found]


class FakeDriver:
    """Records the values and streams of launches by kernel, also of those in CUDA graphs."""

    def __init__(self, gpu):
        self.gpu, self.CUresult = gpu, launching.driver.CUresult
        self.CUstreamCaptureMode = launching.driver.CUstreamCaptureMode
        self.CUDA_KERNEL_NODE_PARAMS = types.SimpleNamespace

    def launched(self, kernel, values, stream):
        self.gpu.launches.setdefault(kernel, []).append((values, stream))

    def cuLaunchKernel(self, function, *sizes_stream_where_extra):
        *sizes, stream, where, extra = sizes_stream_where_extra
        assert (function, extra, len(sizes)) == (7, 0, 7)
        if not self.gpu.context:
            return (launching.driver.CUresult.CUDA_ERROR_INVALID_CONTEXT,)
        if not self.gpu.error:
            prepared = self.gpu.prepared[where]
            self.launched(prepared.kernel, prepared.values(), stream)
        return (self.gpu.error,)

    def cuCtxGetCurrent(self):
        return 0, self.gpu.context

    def cuCtxSetCurrent(self, context):
        self.gpu.entered.append(context)
        self.gpu.context = context
        return (0,)

    def cuThreadExchangeStreamCaptureMode(self, mode):
        return 0, mode

    def cuGraphCreate(self, flags):
        return 0, {}

    def cuGraphAddKernelNode(self, graph, after, num_after, params):
        assert [*after] == [*graph][-1:] and params.func == 7
        graph[len(graph)] = self.gpu.prepared[params.kernelParams]
        return 0, len(graph) - 1

    def cuGraphInstantiate(self, graph, flags):
        self.gpu.graphs += 1
        return 0, {node: (launch.kernel, launch.values()) for node, launch in graph.items()}

    def cuGraphExecKernelNodeSetParams(self, launched, node, params):
        assert self.gpu.context
        prepared = self.gpu.prepared[params.kernelParams]
        launched[node] = prepared.kernel, prepared.values()
        return (self.gpu.error,)

    def cuGraphLaunch(self, launched, stream):
        assert self.gpu.context
        if not self.gpu.error:
            self.gpu.by_graph += 1
            for kernel, values in launched.values():
                self.launched(kernel, values, stream)
        return (self.gpu.error,)

    def cuGraphExecDestroy(self, launched):
        assert self.gpu.context
        self.gpu.graphs -= 1

    def cuGraphDestroy(self, graph):
        pass


@pytest.fixture(params=["launches", "graphs"])
def gpu(monkeypatch, request):
    """Fake CuPy and a fake driver; `gpu.calls` counts the real calls.

    Replays make launches each time; or once, and then launch a CUDA graph of them.
    """
    gpu = types.SimpleNamespace(launches={}, prepared={}, calls=0, error=0, context=99)
    gpu.entered = []
    gpu.graphs = gpu.by_graph = 0

    def launch(kernel, grid, block, shared_bytes, device, stream, arguments, values, normalize):
        arguments = launching.normalized(arguments, normalize)
        prepared = Prepared(gpu, kernel, grid, block, shared_bytes, arguments)
        prepared.context = gpu.context
        prepared.launch(values, stream)
        return prepared

    gpu.cupy = cupy = fake_cupy([("enter device", 0)])
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    driver = FakeDriver(gpu)
    for module in (launching, graphs):
        monkeypatch.setattr(module, "driver", driver)
        monkeypatch.setattr(module, "cu_stream", lambda handle: handle)
    repeats = 0 if request.param == "graphs" else 1000
    monkeypatch.setattr(graphs, "REPEATS_BEFORE_GRAPH", repeats)
    monkeypatch.setattr(launching, "enabled", True)
    monkeypatch.setattr(launching, "can_try", lambda kernel: True)
    monkeypatch.setattr(launching, "launch", launch)
    yield gpu
    for function in vars(fa_numba).values():
        getattr(function, "replays", {}).clear()


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
    for _ in range(2):
        function(*arguments.values())
    assert gpu.calls == 1
    arguments |= changed
    x, y = arguments.pop("x"), arguments.pop("y")
    for _ in range(2):
        function(x, y, **arguments)
    assert gpu.calls == 2


def test_arguments_by_name_are_replayed_too(gpu):
    function = decorated(gpu)
    for turn in range(3):
        x, y = cupy_array(2, 3), cupy_array(5)
        made, _ = function(scale=2.5, x=x, y=y)
        assert gpu.calls == 1 and len(gpu.launches["first"]) == turn + 1
        values, _ = gpu.launches["first"][-1]
        assert values == [*(a.data.ptr for a in (x, y, made)), 2.5]
    function(scale=2.5, x=cupy_array(2, 4), y=y)
    function(x, y=y, scale=2.5)
    assert gpu.calls == 3
    with pytest.raises(TypeError):
        function()


def with_seed(gpu, follows=True):
    """A function that launches with a seed, and with numbers computed from it."""

    @arrays.replayed
    def function(x, *, dropout_p=0.0, seed=0):
        gpu.calls += 1
        number, keys = np.uint64(seed % 2**64), ()
        if follows:
            _, number = checks.check_dropout(dropout_p, seed)
            keys = dropout.round_keys(number)
        arrays.launch("first", (4,), (32,), x, np.uint64(7), number, *keys)
        return arrays.empty(x, (2,))

    return function


def test_another_seed_is_the_same_call_with_other_numbers(gpu):
    function, x = with_seed(gpu), cupy_array(2, 3)
    for seed in (5, 2**64 - 1, 0, 5, 2**40 + 9):
        function(x, dropout_p=0.5, seed=seed)
        values, _ = gpu.launches["first"][-1]
        keys = [int(key) for key in dropout.round_keys(seed)]
        assert values == [x.data.ptr, 7, seed, *keys] and len(set(keys)) == dropout.ROUNDS
    assert gpu.calls == 1 and len(gpu.launches["first"]) == 5
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match="^seed must be"):
            function(x, dropout_p=0.5, seed=seed)
    function(x, dropout_p=0.5)  # without a seed: another call
    values, _ = gpu.launches["first"][-1]
    assert values[2] == 0


def test_a_seed_that_is_not_followed_is_not_replayed(gpu):
    function, x = with_seed(gpu, follows=False), cupy_array(2, 3)
    for seed in (5, 6, 5):
        function(x, seed=seed)
        assert gpu.launches["first"][-1][0] == [x.data.ptr, 7, seed]
    assert gpu.calls == 3


def test_an_incomplete_recording_is_not_replayed(gpu):
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


def test_nothing_is_replayed_while_launching_is_off(gpu, monkeypatch):
    function = decorated(gpu)
    x, y = cupy_array(2, 3), cupy_array(5)
    function(x, y)
    monkeypatch.setattr(launching, "enabled", False)
    function(x, y)
    assert gpu.calls == 2


def test_a_replay_is_launched_on_the_current_stream(gpu, monkeypatch):
    function = decorated(gpu)
    for turn, stream in enumerate((11, 0, 5, 11)):
        now = types.SimpleNamespace(ptr=stream)
        monkeypatch.setattr(gpu.cupy.cuda.Stream, "current", now)
        function(cupy_array(2, 3), cupy_array(5))
        assert gpu.calls == 1
        assert [where or 0 for _, where in gpu.launches["first"]][turn] == stream


def test_frequent_replays_launch_a_graph_for_each_stream(gpu, monkeypatch):
    monkeypatch.setattr(graphs, "REPEATS_BEFORE_GRAPH", 2)
    monkeypatch.setattr(graphs, "MAX_STREAMS", 2)
    function = decorated(gpu)
    x, y = cupy_array(2, 3), cupy_array(5)
    for stream, num_graphs in ((11, 1), (5, 2), (7, 2)):
        monkeypatch.setattr(gpu.cupy.cuda.Stream, "current", types.SimpleNamespace(ptr=stream))
        for _ in range(6):
            before = gpu.by_graph
            made, _ = function(x, y)
            values, where = gpu.launches["first"][-1]
            assert where == stream and values[2] == made.data.ptr
        assert num_graphs <= gpu.graphs <= num_graphs * (1 + graphs.GRAPHS_OF_STREAM)
        assert gpu.by_graph - before == (stream != 7)
    monkeypatch.setattr(gpu.cupy.cuda.Stream, "current", types.SimpleNamespace(ptr=5))
    before, gpu.cupy.cuda.runtime.streamIsCapturing = gpu.by_graph, lambda stream: stream == 5
    function(x, y)
    assert gpu.by_graph == before  # in a capture there is no other graph
    function.replays.clear()
    gc.collect(1)
    assert gpu.graphs == 0


def test_addresses_that_alternate_are_set_once(gpu, monkeypatch):
    monkeypatch.setattr(graphs, "REPEATS_BEFORE_GRAPH", 0)
    monkeypatch.setattr(graphs, "GRAPHS_OF_STREAM", 2)
    monkeypatch.setattr(graphs, "CALLS_BEFORE_OWN_GRAPH", 2)
    set_params, count = launching.driver.cuGraphExecKernelNodeSetParams, [0]

    def counted(*args):
        count[0] += 1
        return set_params(*args)

    monkeypatch.setattr(launching.driver, "cuGraphExecKernelNodeSetParams", counted, False)

    @arrays.replayed
    def function(x):
        arrays.launch("kernel", (4,), (32,), x)
        return x

    xs = [cupy_array(2, 3) for _ in range(3)]
    function(xs[0]), function(xs[0])
    for turn in range(12):
        x = xs[turn % 2]
        function(x)
        assert gpu.launches["kernel"][-1][0] == [x.data.ptr]
    assert gpu.graphs == 3 and count[0] == 2  # the spare one is set once for each
    for x in xs * 4:  # more addresses than graphs
        function(x)
        assert gpu.launches["kernel"][-1][0] == [x.data.ptr]
    assert gpu.graphs == 3


def test_addresses_that_do_not_come_back_share_a_graph(gpu, monkeypatch):
    monkeypatch.setattr(graphs, "REPEATS_BEFORE_GRAPH", 0)
    monkeypatch.setattr(graphs, "MAX_COUNTED", 8)

    @arrays.replayed
    def function(x):
        arrays.launch("kernel", (4,), (32,), x)
        return x

    xs = [cupy_array(2, 3) for _ in range(20)]
    function(xs[0]), function(xs[0])
    for turn, x in enumerate(xs * graphs.CALLS_BEFORE_OWN_GRAPH):
        function(x)
        assert gpu.launches["kernel"][-1][0] == [x.data.ptr]
        assert gpu.by_graph == turn + 1 and gpu.graphs == 1
    (launches,) = (x.steps.launches for x in function.replays.values())
    assert len(launches.counted) <= 8
    for turn in range(1, 2 + graphs.CALLS_BEFORE_OWN_GRAPH):
        function(xs[0])
        assert gpu.graphs == 1 + (turn >= graphs.CALLS_BEFORE_OWN_GRAPH)


def test_the_number_of_all_graphs_is_limited(gpu, monkeypatch):
    """Beyond it a graph is set to other addresses, the oldest first, and calls stay right."""
    gc.collect(1)
    monkeypatch.setattr(graphs, "REPEATS_BEFORE_GRAPH", 0)
    monkeypatch.setattr(graphs, "MAX_GRAPHS", graphs._num_graphs + 3)

    @arrays.replayed
    def function(x):
        arrays.launch("kernel", (4,), (32,), x)
        return x

    xs = [cupy_array(2, 3) for _ in range(5)]
    for x in (xs[0], *xs * 2 * graphs.CALLS_BEFORE_OWN_GRAPH):
        function(x)
        assert gpu.launches["kernel"][-1][0] == [x.data.ptr]
        assert gpu.graphs <= 3
    assert gpu.graphs == 3
    function.replays.clear()
    gc.collect(1)
    assert gpu.graphs == 0 and graphs._num_graphs == graphs.MAX_GRAPHS - 3


def test_scratch_arrays_are_parts_of_one_block(gpu, monkeypatch):
    @arrays.replayed
    def function(x):
        one, result, two = (arrays.empty(x, (n,), np.int32) for n in (100, 5, 7))
        zeros = arrays.full(x, (3,), 0)
        arrays.launch("kernel", (4,), (32,), x, one, result, two, zeros, np.float32(1))
        return result

    x, made = cupy_array(2, 3), []
    function(x)
    allocate, alloc = gpu.cupy.ndarray, gpu.cupy.cuda.alloc
    monkeypatch.setattr(gpu.cupy, "ndarray", lambda *args: made.append(args[0]) or allocate(*args))
    monkeypatch.setattr(gpu.cupy.cuda, "alloc", lambda n: made.append(n) or alloc(n))
    function.replays.clear()
    function(x)
    for _ in range(3):
        made.clear()
        result = function(x)
        values, _ = gpu.launches["kernel"][-1]
        assert values[0] == x.data.ptr and values[2] == result.data.ptr
        assert values[3] - values[1] == 512  # 400 bytes, and the next multiple of 256
        assert made == [(5,), 512 + 256]


def test_a_replay_may_allocate_its_results_otherwise(gpu):
    function, seen = decorated(gpu), []

    def change(i, allocation):
        seen.append((i, allocation.num_bytes))
        return (lambda: cupy_array(3, 2, dtype=np.int32)) if i == 0 else allocation.allocate

    x, y = cupy_array(2, 3), cupy_array(5)
    assert function.replay_of(x, y) is None
    function(x, y)
    other = replay.with_results(function.replay_of(x, y), change)
    made, ones = other((x, y))
    assert seen == [(0, 24), (1, None)]
    assert made.shape == (3, 2) and (ones.host == 1).all() and gpu.calls == 1
    assert gpu.launches["first"][-1][0][:3] == [a.data.ptr for a in (x, y, made)]
    made, _ = function(x, y)
    assert made.shape == (2, 3)


def test_without_graphs_there_are_launches(gpu, monkeypatch):
    monkeypatch.setattr(graphs, "REPEATS_BEFORE_GRAPH", 0)
    error, tries = launching.driver.CUresult.CUDA_ERROR_NOT_SUPPORTED, []

    def refuse(*args):
        tries.append(args)
        return error, None

    monkeypatch.setattr(launching.driver, "cuGraphInstantiate", refuse, False)
    function = decorated(gpu)
    for turn in range(1, 5):
        function(cupy_array(2, 3), cupy_array(5))
        assert gpu.calls == 1 and len(gpu.launches["first"]) == turn and gpu.by_graph == 0
    assert len(tries) == 1


def test_nothing_is_replayed_while_another_gpu_is_current(gpu, monkeypatch):
    @arrays.replayed
    def function(x):
        gpu.calls += 1
        return x

    for current, calls in ((0, 1), (0, 1), (1, 2), (0, 2)):
        monkeypatch.setattr(gpu.cupy.cuda.runtime, "current", current)
        x = cupy_array(2, 3)
        assert function(x) is x
        assert gpu.calls == calls


def test_arrays_on_another_gpu_are_another_call(gpu):
    function = decorated(gpu)
    x, y = np.zeros((2, 3), np.float32), np.zeros(5, np.float32)
    for index, calls in ((0, 1), (0, 1), (1, 2)):
        function(CupyArray(x), CupyArray(y, index))
        assert gpu.calls == calls


def test_arrays_on_a_gpu_that_is_not_current_are_not_replayed(gpu, monkeypatch):
    @arrays.replayed
    def function(x):
        gpu.calls += 1
        return x

    x = CupyArray(np.zeros(3), 1)
    for current, calls in ((0, 1), (0, 2), (1, 2), (0, 3)):
        monkeypatch.setattr(gpu.cupy.cuda.runtime, "current", current)
        assert function(x) is x
        assert gpu.calls == calls


def test_a_replay_does_not_choose_the_kernel_again(gpu, monkeypatch):
    chosen = []
    pick = Job.pick
    monkeypatch.setattr(Job, "pick", lambda *args: chosen.append(1) or pick(*args))
    for turn in range(1, 4):
        q, k, v = (cupy_array(1, 3, 2, 4) for _ in range(3))
        out, lse = fa_numba.flash_attn(q, k, v, causal=True)
        (launches,) = gpu.launches.values()
        assert len(launches) == turn and len(chosen) == 1
        assert {a.data.ptr for a in (q, k, v, out, lse)} <= set(launches[-1][0])


def test_arrays_allocated_during_a_capture_are_kept(gpu, monkeypatch):
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


def test_an_option_by_position_is_replayed(gpu):
    """softmax_topk(x, k) chooses once, for each k and each way to give it."""
    x = cupy_array(4, 40)
    for turn in range(1, 4):
        for values, columns in (
            fa_numba.softmax_topk(x, 3), fa_numba.softmax_topk(x, k=3), fa_numba.softmax_topk(x, 5)
        ):  # fmt: skip
            assert values.shape == columns.shape
        assert len(fa_numba.softmax_topk.replays) == 3 * min(turn, 1)
        assert all(fa_numba.softmax_topk.replays.values())


def test_lengths_of_one_query_are_filled_once(gpu, monkeypatch):
    filled, waited, full = [], [], gpu.cupy.full
    gpu.cupy.full = lambda *args: filled.append(args) or full(*args)
    gpu.cupy.cuda.Stream.current.synchronize = lambda: waited.append(1)
    monkeypatch.setattr(arrays, "_constants", {})
    monkeypatch.setattr(Job, "pick", lambda *args: ("flash_decode_wide", ""))
    for turn in range(1, 4):
        q, k = cupy_array(2, 1, 2, 4), cupy_array(2, 6, 2, 4)
        fa_numba.flash_attn(q, k, k)
        ((shape, value, _),) = filled
        assert (shape, value, waited) == ((2,), 6, [1])
        (lengths,) = arrays._constants.values()
        (launches,) = gpu.launches.values()
        assert len(launches) == turn and lengths.data.ptr in launches[-1][0]
    assert all(fa_numba.flash_attn.replays.values())


@pytest.mark.parametrize("full, capturing", [(True, 0), (False, 1)])
def test_a_constant_that_cannot_be_kept_is_an_array_like_any_other(
    gpu, monkeypatch, full, capturing
):
    monkeypatch.setattr(arrays, "_constants", {})
    monkeypatch.setattr(arrays, "_captured", [])
    monkeypatch.setattr(arrays, "MAX_CONSTANTS", 0 if full else 9)
    gpu.cupy.cuda.runtime.streamIsCapturing = lambda stream: capturing
    x = cupy_array(3)
    one, other = (arrays.constant(x, (2,), 6, np.int32) for _ in range(2))
    assert one is not other and not arrays._constants
    assert (one.host == 6).all() and one.dtype == np.int32


@pytest.mark.parametrize("first", ["one array twice", "two arrays"])
def test_the_same_array_twice_is_replayed_too(gpu, first):
    function = decorated(gpu)
    x, y = cupy_array(2, 3), cupy_array(2, 3)
    calls = [(x, x), (x, y), (y, x), (x, x), (y, y)]
    for arguments in calls if first == "one array twice" else calls[1:]:
        function(*arguments)
        assert gpu.calls == 1
        values, _ = gpu.launches["first"][-1]
        assert values[:2] == [a.data.ptr for a in arguments]


def test_another_alignment_is_another_call_if_alignment_was_noted(gpu):
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


def test_numbers_computed_from_addresses_are_computed_again(gpu):
    seen = []

    def compute(address, capturing):
        seen.append((address, capturing))
        return address + 1

    @arrays.replayed
    def function(x, y):
        gpu.calls += 1
        made = [np.uint64(compute(a.data.ptr, False)) for a in (x, y)]
        for a, number in zip((x, y), made, strict=True):
            arrays.replay.current().note_computation(number, a, compute)
        arrays.launch("kernel", (1,), (32,), made[1], x, made[0])
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


@pytest.mark.parametrize("calls", [1, 100])
def test_a_graph_keeps_the_owners_of_its_numbers_and_computes_them_once(gpu, monkeypatch, calls):
    """A graph of the addresses' own; for the spare one they are kept for later calls."""
    monkeypatch.setattr(graphs, "REPEATS_BEFORE_GRAPH", 0)
    monkeypatch.setattr(graphs, "GRAPHS_OF_STREAM", 1)
    monkeypatch.setattr(graphs, "CALLS_BEFORE_OWN_GRAPH", calls)
    gc.collect(1)
    gc.freeze()  # the seven collections below look through this test's own objects alone
    made, computed = [], []

    def compute(address, capturing):
        computed.append(address)
        return address + 1

    def owner(address):
        array = cupy_array(1)
        made.append(weakref.ref(array))
        return array

    def alive():
        return sum(x() is not None for x in made)

    @arrays.replayed
    def function(x):
        number = np.uint64(x.data.ptr + 1)
        arrays.replay.current().note_computation(number, x, compute, owner)
        arrays.launch("kernel", (1,), (32,), x, number)
        return x

    x, y = cupy_array(2, 3), cupy_array(2, 3)
    own = (x, 0, 0), (x, 0, 1), (x, 1, 2), (x, 1, 2), (y, 1, 3), (x, 1, 4)
    spare = (x, 0, 0), (x, 0, 1), (x, 1, 2), (x, 1, 2), (y, 2, 3), (x, 2, 3)
    for argument, owners, computations in own if calls == 1 else spare:
        function(argument)
        assert gpu.launches["kernel"][-1][0] == [argument.data.ptr, argument.data.ptr + 1]
        gc.collect(1)
        assert alive() == owners and len(computed) == computations
    function.replays.clear()
    gc.collect(1)
    assert alive() == 0


def test_a_thread_without_a_context_enters_that_of_the_recording(gpu):
    function = decorated(gpu)
    x, y = cupy_array(2, 3), cupy_array(5)
    for turn in range(1, 4):
        function(x, y)
        gpu.context = 0
        function(x, y)
        assert gpu.calls == 1 and gpu.context == 99
        assert gpu.entered == [99] * turn and len(gpu.launches["second"]) == 2 * turn


def test_another_context_calls_the_function(gpu, monkeypatch):
    function = decorated(gpu)
    x, y = cupy_array(2, 3), cupy_array(5)
    for _ in range(3):
        function(x, y)
    if gpu.by_graph:
        gpu.context = 7
        function(x, y)
        assert gpu.calls == 2
    gpu.context = 0
    monkeypatch.setattr(launching.PreparedLaunch, "context", 0)
    function(cupy_array(3, 3), y)
    assert gpu.entered == []
    gpu.context, gpu.error = 99, launching.driver.CUresult.CUDA_ERROR_LAUNCH_FAILED
    with pytest.raises(RuntimeError, match="CUDA_ERROR_LAUNCH_FAILED"):
        function(x, y)


def test_an_error_is_raised_every_time(gpu):
    q, k = cupy_array(1, 3, 2, 4), cupy_array(1, 3, 2, 5)
    for _ in range(2):
        with pytest.raises(ValueError, match="k and v must have the head_dim of q"):
            fa_numba.flash_attn_v2(q, k, k)
        fa_numba.flash_attn_v2(q, q, q)
        with pytest.raises(TypeError, match="causal must be True or False"):
            fa_numba.flash_attn_v2(q, q, q, causal=0)


@pytest.mark.parametrize(
    "name", ["flash_attn_v2", "flash_attn_v2_unsigned", "flash_attn_v2_4x4", "flash_attn_registers"]
)
def test_forward(gpu, name):
    slopes = cupy_array(2)
    for turn in range(1, 4):
        q, k, v = (cupy_array(1, 3, 2, 4) for _ in range(3))
        out, lse = getattr(fa_numba, name)(q, k, v, causal=True, alibi_slopes=slopes)
        (launches,) = gpu.launches.values()
        pointers = {a.data.ptr for a in (q, k, v, out, lse, slopes)}
        assert len(launches) == turn and pointers <= set(launches[-1][0])
        assert out.shape == q.shape and lse.shape == (1, 2, 3)


def test_a_score(gpu):
    """Functions of one meaning are one function; a replay reads its own call's arrays."""
    replays = fa_numba.flash_attn_v2.replays

    def call(factor, *score_args):
        q, k, v = (cupy_array(1, 3, 2, 4) for _ in range(3))
        score = lambda s, b, h, m, n, x, y: factor * s + x[h] + y[n]  # noqa: E731
        fa_numba.flash_attn_v2(q, k, v, score=score, score_args=score_args)
        return {x.data.ptr for x in (q, k, v, *score_args)}

    for turn in range(1, 4):
        given = call(2, cupy_array(2), cupy_array(3))
        (launches,) = gpu.launches.values()
        assert len(launches) == turn and given <= set(launches[-1][0])
        assert len(replays) == 1 and all(replays.values())
    call(3, cupy_array(2), cupy_array(3))
    assert len(replays) == 2
    same = cupy_array(3)
    call(2, same, same)  # two places of one array cannot be told apart
    assert len(replays) == 2


def test_a_mask(gpu):
    """A table without arrays is kept; one that NumPy makes of an array is made in each call."""

    @arrays.replayed
    def function(q, *, mask=None):
        gpu.calls += 1
        given = checks.check_expressions(q, mask, (), None, (), checks.Mask(), None)
        table, _ = expression_tiles.tables_of(q, given, expression_tiles._table, *SIZES)
        results = arrays.empty(q, (3,)), arrays.empty(q, (3,))
        arrays.launch("first", (4,), (32,), q, table, *results)
        return results

    def call(mask):
        q = cupy_array(1, 300, 2, 64)
        results = function(q, mask=mask)
        (q_at, table, *others), _ = gpu.launches["first"][-1]
        assert [q_at, *others] == [x.data.ptr for x in (q, *results)]
        return gpu.calls, table

    (calls, table), again = call(masks.prefix_lm(30)), call(masks.prefix_lm(30))
    assert calls == 1 and again == (1, table)
    calls, other = call(masks.prefix_lm(31))
    assert calls == 2 and other != table
    documents = masks.documents(cupy_array(300, dtype=np.int32))
    assert [call(documents)[0] for _ in range(2)] == [3, 4]


@pytest.mark.parametrize("deterministic", [False, True])
def test_backward(gpu, deterministic):
    for turn in range(1, 4):
        dout, q, k, v, out = (cupy_array(1, 3, 2, 4) for _ in range(5))
        lse = cupy_array(1, 2, 3)
        options = {"deterministic": deterministic}
        gradients = fa_numba.flash_attn_bwd_registers(dout, q, k, v, out, lse, **options)
        assert len(gpu.launches) == 2 + deterministic
        assert all(len(launches) == turn for launches in gpu.launches.values())
        given = {value for launches in gpu.launches.values() for value in launches[-1][0]}
        assert {x.data.ptr for x in (*gradients, dout, q, k, v, out, lse)} <= given
