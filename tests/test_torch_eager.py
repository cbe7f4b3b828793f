"""fa_numba.torch outside of torch.compile: a known call is a replay, and any other one is not.

The tensors are in CPU memory, and pass for a GPU's: the driver is a fake, so results have shapes
and addresses but no values.
"""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

from fa_numba.runtime import launching  # noqa: E402

if launching.driver is None:
    pytest.skip("needs numba-cuda", allow_module_level=True)

import fake_torch_gpu  # noqa: E402

from fa_numba.dispatch.job import Job  # noqa: E402
from fa_numba.torch import (  # noqa: E402
    eager,
    flash_attn_func,
    flash_attn_varlen_func,
    layouts,
    operators,
    scaled_dot_product_attention,
)

half = torch.float16
FUNCTIONS = {
    "sdpa": (scaled_dot_product_attention, (2, 4, 128, 64)),
    "func": (flash_attn_func, (2, 128, 4, 64)),
    "varlen": (flash_attn_varlen_func, (256, 4, 64)),
}


@pytest.fixture
def gpu(monkeypatch):
    """The fake GPU; `gpu.first_calls` counts the jobs that did not run as replays."""
    fake, pick = fake_torch_gpu.install(monkeypatch), Job.pick
    monkeypatch.setattr(Job, "pick", lambda *args: fake.first_calls.append(1) or pick(*args))
    yield fake
    fake_torch_gpu.forget()


def tensors(shape, dtype=half, requires_grad=True, num=3):
    return [torch.zeros(shape, dtype=dtype, requires_grad=requires_grad) for _ in range(num)]


def more_of(function):
    if function is not flash_attn_varlen_func:
        return ()
    starts = torch.tensor([0, 100, 256], dtype=torch.int32)
    return starts, starts.clone(), 156, 156


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_known_call_is_a_replay_with_its_own_addresses(gpu, name):
    function, shape = FUNCTIONS[name]
    more, known = more_of(function), None
    for turn in range(3):
        inputs, dout = tensors(shape), tensors(shape, requires_grad=False)[0]
        out = function(*inputs, *more)
        gradients = torch.autograd.grad(out, inputs, dout)
        layouts = [(x.shape, x.stride(), x.dtype, x.is_contiguous()) for x in (out, *gradients)]
        assert known in (None, layouts)  # those of the operator, which ran first
        known = layouts
        assert len(gpu.first_calls) == 2 and len(gpu.replays) == 2 * turn
        if turn:
            forward, backward = (words for words, *_ in gpu.replays[-2:])
            assert {x.data_ptr() for x in (*inputs, *more[:2], out)} <= {*forward}
            given = *inputs, *more[:2], out, dout, *gradients
            assert {x.data_ptr() for x in given} <= {*backward}
        assert [x.dtype for x in gradients] == [half] * 3
    assert len(eager._plans) == 1 and not out.is_leaf


SDPA = (2, 4, 128, 64)


def is_replayed(gpu, call):
    """Whether a call of something is a replay at once."""
    before = len(gpu.first_calls), len(gpu.replays)
    call()
    after = len(gpu.first_calls), len(gpu.replays)
    assert after != before
    return after == (before[0], before[1] + 1)


def strided(shape, order):
    """Tensors whose axes lie in memory in another order."""
    made = [x.detach() for x in tensors([shape[i] for i in order])]
    back = [order.index(i) for i in range(len(shape))]
    return [x.permute(back).requires_grad_() for x in made]


@pytest.mark.parametrize(
    "inputs, options",
    [
        (tensors((2, 4, 129, 64)), {}),
        (tensors((2, 4, 128, 72)), {}),
        (tensors(SDPA, torch.float32), {}),
        (strided(SDPA, (0, 2, 1, 3)), {}),
        ([*tensors(SDPA)[:2], *strided(SDPA, (0, 2, 1, 3))[:1]], {}),
        ([*tensors(SDPA)[:1], *tensors((2, 2, 128, 64))[:2]], {"enable_gqa": True}),
        (tensors(SDPA), {"is_causal": True}),
        (tensors(SDPA), {"scale": 1.0}),
        (tensors(SDPA), {"scale": 1}),
        (tensors(SDPA), {"enable_gqa": True}),
    ],
)
def test_another_layout_or_option_is_another_call(gpu, inputs, options):
    def first():
        return scaled_dot_product_attention(*tensors(SDPA))

    def other():
        return scaled_dot_product_attention(*inputs, **options)

    first()
    assert is_replayed(gpu, first)
    plans = len(eager._plans)
    other()
    assert len(eager._plans) == plans + 1
    assert is_replayed(gpu, other) and is_replayed(gpu, first)


@pytest.mark.parametrize(
    "options",
    [
        {"causal": True},
        {"window_size": (64, 0)},
        {"window_size": (64, 1)},
        {"softcap": 15.0},
        {"softmax_scale": 0.3},
        {"alibi_slopes": torch.ones(4)},
        {"deterministic": True},
        {"dropout_p": 0.5},
    ],
    ids=str,
)
def test_options_of_flash_attn_func(gpu, options):
    """Forward and backward; other slopes and seeds are the same call."""
    inputs = tensors((2, 128, 4, 64))

    def call(**options):
        out = flash_attn_func(*inputs, **options)
        return torch.autograd.grad(out, inputs, out.detach())

    call()
    call()
    assert len(gpu.replays) == 2
    recorded = len(gpu.first_calls)
    call(**options)
    assert len(gpu.first_calls) > recorded and len(eager._plans) == 2
    if "alibi_slopes" in options:
        options = {"alibi_slopes": torch.zeros(4)}
    gpu.replays.clear()
    recorded = len(gpu.first_calls)
    call(**options)
    assert len(gpu.replays) == 2 and len(gpu.first_calls) == recorded
    if "alibi_slopes" in options:
        assert all(options["alibi_slopes"].data_ptr() in words for words, *_ in gpu.replays)
    if "dropout_p" in options:
        (forward, *_), (backward, *_) = gpu.replays
        call(**options)
        (again, *_), _ = gpu.replays[2:]
        assert forward[-1] in backward and forward[-1] not in again


@pytest.mark.parametrize(
    "options, message",
    [
        ({"causal": 1}, "causal must be True or False"),
        ({"dropout_p": False}, "dropout_p must be a number"),
        ({"window_size": (True, 0)}, r"window_size\[0\] must be an integer"),
        ({"alibi_slopes": torch.ones(4, requires_grad=True)}, "alibi_slopes must not require"),
    ],
    ids=str,
)
def test_an_argument_that_is_refused_is_refused_beside_an_equal_one(gpu, options, message):
    inputs = tensors((2, 128, 4, 64))
    good = {"causal": True, "dropout_p": 0.0, "window_size": (1, 0), "alibi_slopes": torch.ones(4)}
    (name,) = options
    for _ in range(2):
        flash_attn_func(*inputs, **{name: good[name]})
    with pytest.raises((TypeError, ValueError), match=message):
        flash_attn_func(*inputs, **options)


def test_a_mask_is_refused_after_a_call_without_one(gpu):
    for _ in range(2):
        scaled_dot_product_attention(*tensors(SDPA))
    with pytest.raises(ValueError, match="attn_mask must be None, or"):
        scaled_dot_product_attention(*tensors(SDPA), attn_mask=torch.ones(128, 128))


def test_gradients_are_recorded_where_pytorch_records_them(gpu):
    scaled_dot_product_attention(*tensors(SDPA))
    for needs, enabled in ((True, True), (False, True), (True, False)):
        with torch.set_grad_enabled(enabled):
            inputs = tensors(SDPA, requires_grad=False)
            inputs[1].requires_grad_(needs)
            before = len(gpu.replays)
            out = scaled_dot_product_attention(*inputs)
        assert len(gpu.replays) == before + 1
        assert out.requires_grad == (needs and enabled)
        assert out.is_leaf != out.requires_grad and not out._is_view()
    with torch.inference_mode():
        inputs = tensors(SDPA, requires_grad=False)
        scaled_dot_product_attention(*inputs)
        assert is_replayed(gpu, lambda: scaled_dot_product_attention(*inputs))
    assert len(gpu.first_calls) == 1  # the recording of the job is the same one


def test_deterministic_algorithms_are_another_call(gpu, monkeypatch):
    inputs, grad, seen = tensors(SDPA), operators.jobs.flash_attn_grad, []

    def call():
        out = scaled_dot_product_attention(*inputs)
        torch.autograd.grad(out, inputs, out.detach())

    def watched(*args, **options):
        seen.append(options["deterministic"])
        return grad(*args, **options)

    watched.replay_of = grad.replay_of
    monkeypatch.setattr(operators.jobs, "flash_attn_grad", watched)
    call()
    call()
    call()
    seen.clear()
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    call()
    call()
    call()
    assert seen == [True]  # then the operator has a replay, then the plan


def test_another_alignment_is_not_replayed(gpu):
    numbers = torch.zeros(2**17, dtype=half)
    shift = (-numbers.data_ptr() % 256) // 2

    def call(shift):
        cut = numbers[shift : shift + 2 * 4 * 128 * 64].view(SDPA)
        return lambda: scaled_dot_product_attention(cut, *tensors(SDPA)[:2])

    call(shift)()
    assert is_replayed(gpu, call(shift)) and is_replayed(gpu, call(shift + 8))
    assert not is_replayed(gpu, call(shift + 1))
    assert is_replayed(gpu, call(shift + 16))


def test_the_current_stream_and_gpu(gpu):
    inputs = tensors(SDPA)

    def call():
        scaled_dot_product_attention(*inputs)

    call()
    for gpu.stream, gpu.capturing in ((0, False), (7, False), (7, True)):
        assert is_replayed(gpu, call)
        _, *where = gpu.replays[-1]
        assert where == [gpu.stream, gpu.capturing]
    gpu.device, gpu.capturing = 1, False
    assert not is_replayed(gpu, call)


def test_dropout_is_refused_in_a_capture(gpu):
    inputs = tensors(SDPA)
    for _ in range(2):
        scaled_dot_product_attention(*inputs, dropout_p=0.5)
    gpu.capturing = True
    with pytest.raises(ValueError, match="captured dropout"):
        scaled_dot_product_attention(*inputs, dropout_p=0.5)


def test_autocast_is_the_call_in_its_dtype(gpu, monkeypatch):
    with torch.autocast("cpu", half):
        for dtype in (torch.float32, half, torch.float32):
            inputs = tensors(SDPA, dtype)
            out = scaled_dot_product_attention(*inputs)
            assert out.dtype == half
            gradients = torch.autograd.grad(out, inputs, out.detach())
            assert [x.dtype for x in gradients] == [dtype] * 3
        assert len(eager._plans) == 1 and len(gpu.replays) == 4
    with torch.no_grad():
        assert scaled_dot_product_attention(*tensors(SDPA, torch.float32)).dtype == torch.float32


def test_autocast_to_another_dtype_is_another_call(gpu):
    inputs = tensors(SDPA)
    for _ in range(3):
        for dtype in (half, torch.bfloat16):
            with torch.autocast("cpu", dtype):
                assert scaled_dot_product_attention(*inputs).dtype == dtype
        assert scaled_dot_product_attention(*inputs).dtype == half
    recorded = len(gpu.first_calls)
    assert recorded == 2 and len(gpu.replays) == 7


class Subclass(torch.Tensor):
    """A tensor that notes which operators are called with it."""

    seen = []

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        cls.seen.append(str(function))
        return function(*(x.plain if isinstance(x, cls) else x for x in args), **(kwargs or {}))


def test_an_operator_is_called_where_something_may_want_to_see_it(gpu):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    inputs = tensors(SDPA)
    for _ in range(3):
        out = scaled_dot_product_attention(*inputs)
    with Mode():
        scaled_dot_product_attention(*inputs)
        torch.autograd.grad(out, inputs, out.detach())
    assert [x for x in seen if "fa_numba" in x] == [
        "fa_numba.flash_attn.default",
        "fa_numba.flash_attn_grad.default",
    ]
    before = len(eager._plans), len(gpu.replays)
    wrapped = Subclass._make_wrapper_subclass(Subclass, SDPA, dtype=half)
    wrapped.plain = inputs[0].detach()
    with torch.no_grad():
        scaled_dot_product_attention(wrapped, *inputs[1:])
    assert any("fa_numba" in x or "transpose" in x for x in Subclass.seen)
    assert len(eager._plans) == before[0]


def test_a_view_to_be_negated_is_not_read_as_it_lies_in_memory(gpu):
    plain = tensors(SDPA, torch.float32, requires_grad=False)
    negated = torch.zeros(SDPA, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    given = torch.zeros((*SDPA, 2))[..., 0]  # the same layout
    assert given.stride() == negated.stride()
    for x in (*plain[:2], negated, negated):
        scaled_dot_product_attention(x, *plain[1:])
        assert all(negated.data_ptr() not in words for words, *_ in gpu.replays)


def test_saved_tensors_may_come_back_with_other_strides(gpu):
    inputs = strided(SDPA, (0, 2, 1, 3))

    def call(copies):
        def unpack(x):
            return x.contiguous() if copies else x

        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
            out = scaled_dot_product_attention(*inputs)
        torch.autograd.grad(out, inputs, torch.zeros_like(out))
        words, *_ = gpu.replays[-1]
        return {x.data_ptr() for x in inputs} <= {*words}

    flash = scaled_dot_product_attention(*inputs)
    torch.autograd.grad(flash, inputs, torch.zeros_like(flash))
    assert call(copies=False) and call(copies=False)
    recorded = len(gpu.first_calls)
    call(copies=True)
    assert len(gpu.first_calls) == recorded + 1
    assert not call(copies=True) and call(copies=False)
    assert len(gpu.first_calls) == recorded + 1


def test_autograd_around_a_replay(gpu):
    """A gradient without strides, one that is not asked for, an input changed, a second one."""
    inputs = tensors(SDPA)
    for _ in range(3):
        scaled_dot_product_attention(*inputs).sum().backward()
    assert len(gpu.replays) == 4 and all(x.grad.shape == x.shape for x in inputs)
    (dk,) = torch.autograd.grad(scaled_dot_product_attention(*inputs).sum(), inputs[1])
    assert dk.shape == SDPA
    keys = inputs[1] * 1
    out = scaled_dot_product_attention(inputs[0], keys, inputs[2])
    with torch.no_grad():
        keys.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    out = scaled_dot_product_attention(*inputs)
    (gradient,) = torch.autograd.grad(out.sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="computes no gradients of gradients"):
        gradient.sum().backward()


# The calls of a training loop. `fits` finds a call that is among the recent ones. Any other call
# needs `_layouts`, which takes longer.


@pytest.fixture
def looked_up(monkeypatch):
    """Layouts that were looked up: a list that grows by one for each."""
    found, of = [], layouts.of
    monkeypatch.setattr(layouts, "of", lambda *x: found.append(1) or of(*x))
    return found


def packed(batch=2, seqlen=128, heads=4):
    """One tensor of queries, keys and values, as nanoGPT has it, and views of its three parts."""
    qkv = torch.zeros(batch, seqlen, 3 * heads * 64, dtype=half, requires_grad=True)
    parts = qkv.split(heads * 64, dim=2)
    return qkv, [x.view(batch, seqlen, heads, 64).transpose(1, 2) for x in parts]


def layer(seqlen=128, gradient="of a layer"):
    """Forward and backward pass of a layer of attention."""
    qkv, views = packed(seqlen=seqlen)
    out = scaled_dot_product_attention(*views, is_causal=True)
    match gradient:
        case "of a layer":
            out.transpose(1, 2).reshape(2, seqlen, 256).mul(2).sum().backward()
        case "expanded":
            out.sum().backward()
        case "axes in another order":
            dout = torch.zeros(64, seqlen, 4, 2, dtype=half).permute(3, 2, 1, 0)
            torch.autograd.grad(out, qkv, dout)


def evaluation(seqlen=128):
    with torch.no_grad():
        scaled_dot_product_attention(*packed(seqlen=seqlen)[1], is_causal=True)


def in_float16(function):
    def call():
        with torch.autocast("cpu", half):
            function()

    return call


@pytest.mark.parametrize(
    "calls",
    [
        [layer],
        [lambda: layer(gradient="expanded")],
        [lambda: layer(gradient="axes in another order")],
        [layer, lambda: layer(64)],
        [layer, lambda: layer(gradient="expanded"), lambda: layer(64), evaluation],
        [in_float16(layer), in_float16(lambda: layer(64))],
    ],
    ids=["layer", "expanded", "order", "lengths", "mixed", "autocast"],
)
def test_calls_that_come_back_are_replays_without_a_look_up(gpu, looked_up, calls):
    for _ in range(4):
        gpu.first_calls.clear(), gpu.replays.clear(), looked_up.clear()
        for call in calls:
            call()
    assert not gpu.first_calls and not looked_up
    assert len(gpu.replays) == 2 * len(calls) - (evaluation in calls)


def test_a_model_that_trains(gpu, looked_up):
    """Under autocast, with gradients that accumulate, and evaluation between the steps."""
    from benchmarks.small_gpt import Training

    sizes = {"num_layers": 3, "num_heads": 2, "width": 128}
    training = Training(scaled_dot_product_attention, 64, 2, "cpu", half, **sizes)

    def loss(tokens):
        with torch.autocast("cpu", half):
            return training.model(tokens)

    def steps():
        training.step()
        for tokens in training.tokens:
            loss(tokens).backward()
        with torch.no_grad():
            loss(training.tokens[0])

    for _ in range(3):
        steps()
    gpu.first_calls.clear(), gpu.replays.clear(), looked_up.clear()
    steps()
    assert not gpu.first_calls and not looked_up and len(gpu.replays) == 7 * 3


def test_a_tensor_of_another_kind_is_no_known_call(gpu):
    for x in (None, 3, torch.zeros(SDPA).numpy(), torch.zeros(3, 3).to_sparse()):
        assert eager.repeat("flash_attn_func", x, x, x, (), (True,)) is None
        assert eager.repeat("flash_attn_func", *tensors(SDPA), (x,), (True,)) is None


def test_a_small_number_of_plans_is_kept(gpu, monkeypatch):
    monkeypatch.setattr(eager, "MAX_PLANS", 2)
    for seqlen in (64, 65, 66, 64):
        scaled_dot_product_attention(*tensors((1, 1, seqlen, 64)))
        assert len(eager._plans) <= 2


def test_no_tensor_is_kept(gpu):
    slopes = torch.ones(4)
    seen = [weakref.ref(slopes)]
    for _ in range(3):
        inputs, dout = tensors((2, 128, 4, 64)), torch.zeros(2, 128, 4, 64, dtype=half)
        out = flash_attn_func(*inputs, alibi_slopes=slopes)
        gradients = torch.autograd.grad(out, inputs, dout)
        seen += map(weakref.ref, (*inputs, dout, out, *gradients))
    del slopes, inputs, dout, out, gradients
    gc.collect()
    assert all(x() is None for x in seen)


# Operators, as the code of torch.compile calls them


def operator_calls(function, *more, **options):
    """Forward and backward pass of a function in a compiled graph, by a new list of tensors."""
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")

    def call(shape, dtype=half):
        inputs = tensors(shape, dtype)
        out = compiled(*inputs, *more, **options)
        return torch.autograd.grad(out, inputs, torch.zeros_like(out))

    return call


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_compiled_graph_makes_replays(gpu, name):
    function, shape = FUNCTIONS[name]
    call = operator_calls(function, *more_of(function), causal=True)
    if function is scaled_dot_product_attention:
        call = operator_calls(function, is_causal=True)
    for turn in range(4):
        gpu.first_calls.clear(), gpu.replays.clear()
        gradients = call(shape)
        assert len(gpu.first_calls) + len(gpu.replays) == 2
        assert turn < 2 or len(gpu.replays) == 2
    words, *_ = gpu.replays[-1]
    assert {x.data_ptr() for x in gradients} <= {*words}


def test_an_operator_is_replayed_for_the_same_layouts_and_options_alone(gpu):
    """Not for another layout, number or tensor, nor where gradients or modes are on."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v = tensors((2, 128, 4, 64), requires_grad=False)
    numbers = True, (-1, -1), 0.0, None, False, 0.0

    def call(q=q, k=k, slopes=None, numbers=numbers):
        return operators.flash_attn(q, k, v, slopes, None, *numbers)

    call()
    assert is_replayed(gpu, call) and is_replayed(gpu, lambda: call(q=torch.zeros_like(q)))
    halves = torch.zeros(2, 128, 4, 128, dtype=half)[..., :64]
    for options in (
        {"k": halves},
        {"slopes": torch.ones(4)},
        {"numbers": (False, *numbers[1:])},
        {"numbers": (True, (5, 0), *numbers[2:])},
        {"numbers": (*numbers[:3], 0.5, *numbers[4:])},
        {"q": q[:, :64]},
    ):
        recorded = len(gpu.first_calls)
        call(**options)
        assert len(gpu.first_calls) > recorded, options
        assert is_replayed(gpu, lambda options=options: call(**options))
    assert is_replayed(gpu, call)
    needs = q.clone().requires_grad_()
    with torch.no_grad():  # so do compiled graphs call
        call(q=needs)
        assert is_replayed(gpu, lambda: call(q=needs))
    for _ in range(3):
        out, _ = call(q=needs)
        assert out.requires_grad
    replays = len(gpu.replays)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out, _ = call(q=mode.from_tensor(q))
    assert isinstance(out, torch._subclasses.FakeTensor) and len(gpu.replays) == replays


def test_a_dropped_seed_of_an_operator_is_that_of_its_call(gpu):
    q, k, v = tensors((2, 128, 4, 64), requires_grad=False)
    numbers = True, (-1, -1), 0.0, None, False, 0.5
    for seed in (3, 3, 4, 5):
        operators.flash_attn(q, k, v, None, torch.tensor(seed), *numbers)
    numbers_of_seed = [words[-1] for words, *_ in gpu.replays]
    assert len(set(numbers_of_seed)) == len(numbers_of_seed) == 3
    gpu.capturing = True
    with pytest.raises(ValueError, match="captured dropout"):
        operators.flash_attn(q, k, v, None, torch.tensor(6), *numbers)
