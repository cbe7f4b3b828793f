"""fa_numba.torch on a GPU: the grid of flash-attention's tests, and PyTorch around the calls.

Errors are at most twice those of plain PyTorch in the same dtype, both against float64. A case of
the grid has one value of every axis: all pairs of the first two axes, and values drawn from the
others. `pytest -m gpu -k small` keeps the small ones.
"""

import itertools
import random

import pytest
from few_cases import pairs
from gpu_cases import ON_A_GPU
from numba import cuda

torch = pytest.importorskip("torch", reason="needs PyTorch")
pytestmark = ON_A_GPU
if not (cuda.is_available() and torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from torch_attention import compare, plain, tensors  # noqa: E402

import fa_numba  # noqa: E402
from benchmarks.small_gpt import Training  # noqa: E402
from fa_numba.torch import (  # noqa: E402
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    jobs,
    scaled_dot_product_attention,
)

F = torch.nn.functional
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HEADS = ((6, 6), (6, 2), (6, 1))  # MHA, GQA, MQA
HEAD_DIMS = (32, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256)
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "local": {"window_size": (64, 30)},
    "causal_local": {"causal": True, "window_size": (100, 0)},
    "alibi": {"slopes": True, "causal": True},
    "softcap": {"softcap": 15.0, "causal": True},
    "alibi_local_softcap": {"slopes": True, "window_size": (64, 64), "softcap": 15.0},
}
SEQLENS = (
    (113, 203),
    (128, 217),
    (113, 211),
    (108, 256),
    (256, 512),
    (512, 256),
    (1024, 1024),
    (1023, 1024),
    (1024, 1023),
    (2048, 2048),
)


def grid(first, second, *others, every=1):
    """All pairs of the first two axes, or every third of them, with draws from the others."""
    draw = random.Random(0).choice
    pairs = list(itertools.product(first, second))[::every]
    return [(*pair, *(draw(list(axis)) for axis in others)) for pair in pairs]


def named(case):
    words = ["x".join(map(str, x)) if isinstance(x, tuple) else str(x) for x in case]
    size = "small-" if any(x in ((113, 203), (128, 217)) for x in case) else ""
    return size + "-".join(words).replace("torch.", "")


def options_of(mask, num_heads):
    """A mask's options for `plain`, and those for our functions."""
    options = dict(MASKS[mask])
    if "slopes" in options:
        options["slopes"] = torch.rand(num_heads, generator=torch.Generator().manual_seed(2)).cuda()
    names = {"slopes": "alibi_slopes"}
    return options, {names.get(name, name): x for name, x in options.items()}


def inputs_of(dtype, *shapes, softcap=0.0):
    """q, k, v that require gradients, and dout. Scores are large enough for the softcap."""
    q, k, v = tensors(*shapes, dtype=dtype, device="cuda", requires_grad=False)
    (dout,) = tensors(shapes[0], dtype=dtype, device="cuda", requires_grad=False, seed=1)
    q = q * 4 if softcap else q
    return [x.requires_grad_() for x in (q, k, v)], dout


# flash-attention's grid

GRID = grid(HEAD_DIMS, SEQLENS, MASKS, DTYPES, HEADS, every=3)


def to_meet(case):
    """Masks, dtypes, groups of heads, widths of 64 columns, and columns that are to be padded."""
    head_dim, lengths, mask, dtype, heads = case
    family = dtype == torch.float32
    return [mask, dtype, heads, lengths, *pairs(-(-head_dim // 64), family), (head_dim % 8, family)]


@pytest.mark.few.with_args(to_meet)  # called, a mark would mark a named function
@pytest.mark.parametrize("case", GRID, ids=named)
def test_flash_attn_func(case):
    head_dim, (seqlen_q, seqlen_k), mask, dtype, (num_heads, num_kv_heads) = case
    reference_options, options = options_of(mask, num_heads)
    keys = (2, seqlen_k, num_kv_heads, head_dim)
    shapes = (2, seqlen_q, num_heads, head_dim), keys, keys
    inputs, dout = inputs_of(dtype, *shapes, softcap=options.get("softcap"))
    compare(
        lambda *x: flash_attn_func(*x, **options),
        lambda *x: plain(*x, **reference_options),
        inputs,
        dout,
    )


LENGTHS = (
    ((113, 203),),
    ((0, 50), (100, 0), (128, 217), (1, 300)),
    ((1024, 1023), (5, 5), (0, 0), (700, 1300), (63, 64)),
)


@pytest.mark.few.with_args(to_meet)  # called, a mark would mark a named function
@pytest.mark.parametrize("case", grid(HEAD_DIMS, LENGTHS, MASKS, DTYPES, HEADS), ids=named)
def test_flash_attn_varlen_func(case):
    head_dim, lengths, mask, dtype, (num_heads, num_kv_heads) = case
    reference_options, options = options_of(mask, num_heads)
    lengths_q, lengths_k = (list(x) for x in zip(*lengths, strict=True))
    starts = [F.pad(torch.tensor(x).cumsum(0), (1, 0)).int().cuda() for x in (lengths_q, lengths_k)]
    keys = (sum(lengths_k), num_kv_heads, head_dim)
    shapes = (sum(lengths_q), num_heads, head_dim), keys, keys
    inputs, dout = inputs_of(dtype, *shapes, softcap=options.get("softcap"))
    longest = max(lengths_q), max(lengths_k)

    def one_by_one(q, k, v):
        cut = zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k), strict=True)
        alone = [plain(*(x[None] for x in one), **reference_options)[0] for one in cut]
        return torch.cat(alone)

    compare(
        lambda *x: flash_attn_varlen_func(*x, *starts, *longest, **options),
        one_by_one,
        inputs,
        dout,
    )


CACHES = grid(
    (32, 59, 64, 128, 256), (None, 16, 16, 256), MASKS, DTYPES, (1, 3, 64), HEADS, (0, 1, 64)
)


@pytest.mark.parametrize("case", CACHES, ids=named)
def test_flash_attn_with_kvcache(case):
    head_dim, page_size, mask, dtype, seqlen_q, (num_heads, num_kv_heads), seqlen_new = case
    reference_options, options = options_of(mask, num_heads)
    lengths, room = [700, 64, 129], 1024
    (q,) = tensors((3, seqlen_q, num_heads, head_dim), dtype=dtype, device="cuda", seed=3)
    q = q.detach() * (4 if "softcap" in options else 1)
    new = tensors(*[(3, seqlen_new, num_kv_heads, head_dim)] * 2, dtype=dtype, device="cuda")
    new = [x.detach() for x in new]
    caches = torch.full((2, 3, room, num_kv_heads, head_dim), torch.nan, dtype=dtype, device="cuda")
    for x, length in zip(caches.unbind(1), lengths, strict=True):
        x[:, :length] = torch.randn_like(x[:, :length])
    want = []
    for b, length in enumerate(lengths):
        keys, values = (torch.cat([x[b, :length], y[b]]) for x, y in zip(caches, new, strict=True))
        one = q[b, None], keys[None], values[None]
        exact = plain(*(x.double() for x in one), **reference_options)
        want.append((exact, plain(*one, **reference_options)))
    k_cache, v_cache, table = *caches.clone(), None
    if page_size:
        pages = caches.view(2, 3 * room // page_size, page_size, num_kv_heads, head_dim)
        order = torch.randperm(pages.shape[1], device="cuda")
        k_cache, v_cache = pages[:, order].clone()
        table = order.argsort().view(3, -1).int()
    out = flash_attn_with_kvcache(
        *(q, k_cache, v_cache, *(new if seqlen_new else (None, None))),
        cache_seqlens=torch.tensor(lengths, dtype=torch.int32, device="cuda"),
        block_table=table,
        **options,
    )
    for one, (exact, simple) in zip(out, want, strict=True):
        error, bound = ((x.double() - exact[0]).abs().max() for x in (one, simple[0]))
        assert error <= 2 * bound + 1e-5
    written = k_cache if table is None else k_cache[table.flatten().long()].view(caches[0].shape)
    for x, y, length in zip(written, new[0], lengths, strict=True):
        assert torch.equal(x[length : length + seqlen_new], y)
        assert x[length + seqlen_new :].isnan().all()


# PyTorch's function


@pytest.mark.few(lambda dtype, is_causal, seqlens: pairs(dtype, is_causal, seqlens))
@pytest.mark.parametrize("seqlens", [(113, 113), (113, 203), (203, 113)], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_sdpa_small(dtype, is_causal, seqlens):
    """The causal mask is aligned top left."""
    keys = (2, 2, seqlens[1], 64)
    inputs, dout = inputs_of(dtype, (2, 6, seqlens[0], 64), keys, keys)

    def by_definition(*x):
        return plain(*(y.transpose(1, 2) for y in x), causal=is_causal, top_left=True).transpose(
            1, 2
        )

    ours = scaled_dot_product_attention
    compare(lambda *x: ours(*x, is_causal=is_causal, enable_gqa=True), by_definition, inputs, dout)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_masks_of_padding_small(side, causal):
    n, lengths = (
        torch.arange(203, device="cuda"),
        torch.tensor([0, 70, 203], device="cuda")[:, None],
    )
    mask = (n >= 203 - lengths if side == "left" else n < lengths)[:, None, None]
    if causal:
        mask = mask & (n <= torch.arange(90, 203, device="cuda")[:, None])
    keys = (3, 2, 203, 64)
    inputs, dout = inputs_of(torch.float16, (3, 6, 113, 64), keys, keys)
    ours, theirs = (
        lambda *x, f=f: f(*x, attn_mask=mask, enable_gqa=True)
        for f in (scaled_dot_product_attention, F.scaled_dot_product_attention)
    )
    compare(ours, theirs, inputs, dout)


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_dropout_small(dtype):
    """Values that are unit vectors show which weights are kept; gradients then follow from them."""
    dropout_p, seqlen, head_dim = 0.17, 128, 128
    inputs, dout = inputs_of(dtype, *[(2, seqlen, 4, head_dim)] * 3)
    q, k, _ = inputs
    unit = (
        torch.eye(seqlen, device="cuda", dtype=dtype)[None, :, None]
        .expand(2, -1, 4, -1)
        .contiguous()
    )

    def weights(dropout_p):
        torch.manual_seed(0)
        with torch.no_grad():
            return flash_attn_func(q, k, unit, dropout_p=dropout_p).transpose(1, 2)

    kept = (weights(dropout_p) > 0) / (1 - dropout_p)
    assert abs((kept == 0).float().mean() - dropout_p) < 0.01

    def with_dropout(*x):
        torch.manual_seed(0)
        return flash_attn_func(*x, dropout_p=dropout_p)

    compare(with_dropout, lambda *x: plain(*x, kept=kept), inputs, dout)


# Inside of PyTorch


def call(q, k, v):
    return flash_attn_func(q, k, v, causal=True)


def gradients(function, inputs, dout):
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, dout)]


def assert_same(got, want):
    """Equal, but for dq, to which thread blocks add in any order."""
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("seqlens", [(113, 203), (256, 512)], ids=str)
def test_deterministic_small(seqlens):
    keys = (2, seqlens[1], 2, 64)
    inputs, dout = inputs_of(torch.float16, (2, seqlens[0], 6, 64), keys, keys)

    def function(*x):
        return flash_attn_func(*x, causal=True, deterministic=True)

    first, *others = (gradients(function, inputs, dout) for _ in range(3))
    for other in others:
        assert all(torch.equal(x, y) for x, y in zip(first, other, strict=True))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_torch_compile(dynamic):
    torch._dynamo.reset()

    def model(q, k, v):
        out = flash_attn_func(q * 2, k, v, causal=True).sin()
        return scaled_dot_product_attention(out, k, v).relu()

    inputs, dout = inputs_of(torch.bfloat16, *[(2, 128, 4, 64)] * 3)
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic)
    assert_same(gradients(compiled, inputs, dout), gradients(model, inputs, dout))


@pytest.fixture
def operators_called(monkeypatch):
    """Names of the jobs that ran by way of an operator."""
    called, run = [], jobs.run
    monkeypatch.setattr(
        jobs, "run", lambda job, *args, **options: called.append(job) or run(job, *args, **options)
    )
    return called


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_calls_of_a_compiled_graph_small(operators_called, mode):
    """Each is a replay with its own numbers, or part of PyTorch's own CUDA graph."""
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, mode=mode)
    for seed in range(14):
        made = tensors(*[(2, 256, 4, 64)] * 4, dtype=torch.float16, device="cuda", seed=seed)
        *inputs, dout = [x.detach() for x in made]
        inputs = [x.requires_grad_() for x in inputs]
        want = gradients(call, inputs, dout)
        operators_called.clear()
        assert_same(gradients(compiled, inputs, dout), want)
        assert seed < 2 or mode != "default" or not operators_called


def transposed(function):
    return lambda *x: function(*(y.transpose(1, 2) for y in x)).transpose(1, 2)


@pytest.mark.parametrize(
    "function",
    [call, transposed(lambda *x: scaled_dot_product_attention(*x, is_causal=True))],
    ids=["flash_attn_func", "sdpa"],
)
def test_known_calls_small(operators_called, function):
    """Each is a replay with its own numbers, also in the thread of the backward pass."""
    for turn in range(5):
        shapes = [(2, 256, 4, 64)] * 3
        made = tensors(*shapes, (2, 256, 4, 64), dtype=torch.float16, device="cuda", seed=turn)
        *inputs, dout = [x.detach() for x in made]
        operators_called.clear()
        compare(
            function, lambda *x: plain(*x, causal=True), [x.requires_grad_() for x in inputs], dout
        )
        assert turn < 2 or not operators_called, (turn, operators_called)


def test_known_calls_with_other_strides_small(operators_called):
    inputs, dout = inputs_of(torch.float16, *[(2, 256, 4, 64)] * 3)
    want = gradients(call, inputs, dout)
    for _ in range(3):
        operators_called.clear()
        for order in ((0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)):
            back = [order.index(i) for i in range(4)]
            q, k, v, d = (
                x.detach().permute(order).contiguous().permute(back) for x in (*inputs, dout)
            )
            others = [x.requires_grad_() for x in (q, k, v)]
            assert_same(gradients(call, others, d), want)
    assert not operators_called
    with torch.autograd.graph.save_on_cpu():
        out = call(*inputs)
    assert_same(torch.autograd.grad(out, inputs, dout), want[1:])
    numbers = torch.zeros(inputs[0].numel() + 8, device="cuda", dtype=torch.float16)
    for shift in (0, 1, 8):
        with torch.no_grad():
            q = numbers[shift : shift + inputs[0].numel()].view(inputs[0].shape).copy_(inputs[0])
            assert_same([call(q, *inputs[1:])], want[:1])


def test_deterministic_algorithms_small():
    inputs, dout = inputs_of(torch.float16, *[(2, 256, 4, 64)] * 3)
    gradients(call, inputs, dout)
    torch.use_deterministic_algorithms(True)
    try:
        first, *others = (gradients(call, inputs, dout) for _ in range(4))
    finally:
        torch.use_deterministic_algorithms(False)
    for other in others:
        assert all(torch.equal(x, y) for x, y in zip(first, other, strict=True))


def test_autocast():
    inputs, _ = inputs_of(torch.float32, *[(2, 128, 4, 64)] * 3)
    for dtype in DTYPES[:2]:
        with torch.autocast("cuda", dtype):
            ours, theirs = (
                f(*inputs, is_causal=True)
                for f in (scaled_dot_product_attention, F.scaled_dot_product_attention)
            )
        assert ours.dtype == theirs.dtype == dtype
        torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)
        got, want = (torch.autograd.grad(x.float().square().sum(), inputs) for x in (ours, theirs))
        assert_same(got, want)


def test_cuda_graph():
    """Forward and backward pass of one captured step, with other numbers at every replay."""
    inputs, dout = inputs_of(torch.float16, *[(2, 256, 4, 64)] * 3)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compile first
        for _ in range(3):
            gradients(call, inputs, dout)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients(call, inputs, dout)
    for seed in range(3):
        others = tensors(*[x.shape for x in inputs], seed=seed + 5, device="cuda")
        for x, y in zip(inputs, others, strict=True):
            x.data.copy_(y)
        graph.replay()
        assert_same(captured, gradients(call, inputs, dout))
    with pytest.raises(ValueError, match="dropout_p must be 0 while a CUDA graph"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            flash_attn_func(*inputs, dropout_p=0.5)


def test_streams():
    """A call waits for what its stream does before it, forward and backward."""
    inputs, dout = inputs_of(torch.float16, *[(2, 256, 4, 64)] * 3)
    want = gradients(call, inputs, dout)
    stream, long = torch.cuda.Stream(), torch.zeros(1 << 28, dtype=torch.uint8, device="cuda")
    late = [torch.zeros_like(x).requires_grad_() for x in inputs]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(10):
            long.add_(1)
        for x, y in zip(late, inputs, strict=True):
            x.data.copy_(y)
        got = gradients(call, late, dout)
    stream.synchronize()
    assert_same(got, want)


def test_a_function_without_gradients_refuses_a_tensor_that_requires_one_small():
    """Also where the same call was recorded while PyTorch recorded no gradients."""
    inputs, _ = inputs_of(torch.float16, *[(2, 64, 4, 64)] * 3)
    with torch.no_grad():
        for _ in range(3):
            fa_numba.flash_attn(*inputs)
    with pytest.raises(ValueError, match="q must not require a gradient.*fa_numba.torch"):
        fa_numba.flash_attn(*inputs)
    fa_numba.flash_attn(*(x.detach() for x in inputs))


def test_two_gpus():
    """A tensor's GPU need not be the current one."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    inputs, dout = inputs_of(torch.float16, *[(2, 256, 4, 64)] * 3)
    want = gradients(call, inputs, dout)
    others = [x.detach().to("cuda:1").requires_grad_() for x in inputs]
    for _ in range(3):
        got = gradients(call, others, dout.to("cuda:1"))
        assert_same([x.to("cuda:0") for x in got], want)


def losses(attend, **more):
    sizes = {"seqlen": 256, "batch": 8, "device": "cuda", "dtype": torch.bfloat16}
    return Training(attend, **sizes | more).losses(40)


def test_a_small_model_trains_as_with_pytorch():
    """The loss curves differ by little more than those of two implementations in PyTorch."""

    def other_backend(q, k, v, is_causal):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    theirs, other = losses(F.scaled_dot_product_attention), losses(other_backend)
    ours = losses(scaled_dot_product_attention)
    assert theirs[-1] < theirs[0] - 1
    noise = (theirs - other).abs().max()
    assert (theirs - ours).abs().max() <= 3 * noise + 1e-2


def test_a_compiled_model_trains_in_one_graph():
    torch._dynamo.reset()
    compiled, eager = (
        losses(scaled_dot_product_attention, num_layers=2, compiled=compiled)
        for compiled in (True, False)
    )
    torch.testing.assert_close(compiled, eager, atol=0.1, rtol=0.1)
