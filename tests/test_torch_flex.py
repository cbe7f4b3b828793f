"""fa_numba.torch.flex_attention beside a dense definition in float64: what people write."""

import functools

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

from cases import thorough  # noqa: E402
from torch_attention import tensors  # noqa: E402

from fa_numba.expressions import trace as tracing  # noqa: E402
from fa_numba.torch import and_masks, create_block_mask, flex_attention, or_masks  # noqa: E402

BATCH, HEADS, SEQLEN, DIM = 2, 4, 24, 8
DOCUMENT = torch.tensor([0] * 7 + [1] * 9 + [2] * 8)
STARTS = torch.tensor([0, 7, 16, 24])
PREFIX = torch.tensor([5, 11])
BIAS = torch.linspace(-1, 1, HEADS * 2 * SEQLEN).reshape(HEADS, 2 * SEQLEN)
SLOPES = torch.linspace(0.1, 0.5, HEADS)
PAGE = torch.tensor([[1, 0, -1, 2], [3, 2, 0, 1]])  # the logical page of each physical one
TREE = torch.tril(torch.arange(SEQLEN)[:, None] % (torch.arange(SEQLEN) + 1) == 0)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def sliding_window(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx <= 6)


def natten(width, kernel):
    def get_x_y(idx):
        return idx // width, idx % width

    def near(b, h, q_idx, kv_idx):
        q_x, q_y = get_x_y(q_idx)
        kv_x, kv_y = get_x_y(kv_idx)
        x = q_x.clamp(kernel // 2, (width - 1) - kernel // 2)
        y = torch.clamp(q_y, min=kernel // 2, max=(width - 1) - kernel // 2)
        return ((x - kv_x).abs() <= kernel // 2) & ((y - kv_y).abs() <= kernel // 2)

    return near


def of_documents(mask_mod, document=DOCUMENT, starts=STARTS):
    """As attention-gym does: positions within a document for another mask."""

    def document_mask(b, h, q_idx, kv_idx):
        same = document[q_idx] == document[kv_idx]
        q_logical = q_idx - starts[document[q_idx]]
        return same & mask_mod(b, h, q_logical, kv_idx - starts[document[kv_idx]])

    return document_mask


def prefix(b, h, q_idx, kv_idx):
    return kv_idx < PREFIX[b]


def dilated(b, h, q_idx, kv_idx):
    away = torch.abs(q_idx - kv_idx)
    return torch.logical_and(away < 9, (away % 3) == 0)


def block_diffusion(b, h, q_idx, kv_idx, block_size=4, n=12):
    x0_q, x0_kv = q_idx >= n, kv_idx >= n
    block_q = torch.where(x0_q == 1, (q_idx - n) // block_size, q_idx // block_size)
    block_kv = torch.where(x0_kv == 1, (kv_idx - n) // block_size, kv_idx // block_size)
    diagonal = (block_q == block_kv) & (x0_q == x0_kv)
    offset = (block_q > block_kv) & (x0_kv == 1) & (x0_q == 0)
    return diagonal | offset | ((block_q >= block_kv) & (x0_kv == 1) & (x0_q == 1))


def paged(b, h, q_idx, kv_idx):
    page = PAGE[b, kv_idx // 6]
    return torch.where(page >= 0, causal(b, h, q_idx, page * 6 + kv_idx % 6), False)


def sliding_tile(b, h, q_idx, kv_idx):
    q_tile, kv_tile = q_idx // 4, kv_idx // 4
    center = q_tile.clamp(1, 4)
    return torch.le(torch.abs(center - kv_tile), 1)


def shared_prefix(b, h, q_idx, kv_idx):
    return (kv_idx < 4) | (DOCUMENT[q_idx] == DOCUMENT[kv_idx]).logical_and(q_idx.ge(kv_idx))


MASKS = {
    "causal": causal,
    "sliding window": sliding_window,
    "prefix-LM": or_masks(prefix, causal),
    "documents": lambda b, h, q, kv: DOCUMENT[q] == DOCUMENT[kv],
    "documents, causal": of_documents(causal),
    "and of two": and_masks(of_documents(sliding_window), causal),
    "neighbourhood": natten(5, 3),
    "paged": paged,
    "dilated": dilated,
    "block diffusion": block_diffusion,
    "sliding tile": sliding_tile,
    "shared prefix": shared_prefix,
    "tree": lambda b, h, q, kv: TREE[q, kv],
    "a partial": functools.partial(block_diffusion, block_size=3),
    "nothing for some": lambda b, h, q, kv: (q >= kv) & (q % 5 != 0),
}


def alibi(score, b, h, q_idx, kv_idx):
    return score + (kv_idx - q_idx) * torch.exp2(-((h + 1) * 8.0 / HEADS))


def softcap(score, b, h, q_idx, kv_idx, tanh=torch.tanh):
    return 5 * tanh(score / 5)


SCORES = {
    "identity": lambda score, b, h, q, kv: score,
    "relative": lambda score, b, h, q, kv: score + (q - kv) * 0.1,
    "ALiBi": alibi,
    "ALiBi of a table": lambda score, b, h, q, kv: score - SLOPES[h] * (q - kv).abs(),
    "softcap": softcap,
    "bias": lambda score, b, h, q, kv: score + BIAS[h, q - kv + SEQLEN],
    "causal as a score": lambda score, b, h, q, kv: torch.where(q >= kv, score, -float("inf")),
    "checkerboard": lambda score, b, h, q, kv: torch.where(
        torch.abs(kv - q) % 2 == 1, score * 0.5, -score * 1.5
    ),
}


def definition(q, k, v, score_mod, mask_mod, scale=None):
    """out, lse: the functions on all pairs at once."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    at = [torch.arange(n).view([-1 if j == i else 1 for j in range(4)]) for i, n in enumerate(
        s.shape
    )]  # fmt: skip
    if score_mod is not None:
        s = score_mod(s, *at)
    if mask_mod is not None:
        s = s.masked_fill(~mask_mod(*at), -torch.inf)
    return torch.softmax(s, -1).nan_to_num(0) @ v, torch.logsumexp(s, -1)


def compare(score_mod, mask_mod, seqlen_q=SEQLEN, kv_heads=HEADS, dtype=torch.float32, more=()):
    """Results and gradients of q, k, v and `more`."""
    shapes = (BATCH, HEADS, seqlen_q, DIM), *[(BATCH, kv_heads, SEQLEN, DIM)] * 2
    inputs = tensors(*shapes, dtype=dtype)
    (dout,) = tensors(shapes[0], requires_grad=False, seed=1, dtype=dtype)
    block_mask = mask_mod and create_block_mask(mask_mod, None, None, seqlen_q, SEQLEN, "cpu")
    out, lse = flex_attention(
        *inputs, score_mod, block_mask, 0.4, enable_gqa=True, return_lse=True
    )  # fmt: skip
    got = out, lse, *torch.autograd.grad(out, [*inputs, *more], dout)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    out, lse = definition(*wide, score_mod, mask_mod, 0.4)
    want = out, lse, *torch.autograd.grad(out, [*wide, *more], dout.double())
    for x, y in zip(got, want, strict=True):
        tolerance = {"atol": 2e-2, "rtol": 2e-2} if dtype != torch.float32 else {
            "atol": 2e-5, "rtol": 1e-4
        }  # fmt: skip
        torch.testing.assert_close(x.double(), y.double(), **tolerance)


FEW = "documents, causal", "neighbourhood", "prefix-LM", "ALiBi", "bias", "causal as a score"


def few(names):
    """All in the thorough run: each compiles a kernel."""
    return pytest.mark.parametrize("name", [x if x in FEW else thorough(x) for x in names])


@pytest.mark.parametrize("name", MASKS)
def test_what_is_read_of_a_mask(name):
    """Blocks of one pair, whose intervals are exact."""
    at = torch.arange(BATCH)[:, None, None, None], 0, torch.arange(SEQLEN)[:, None]
    mask = create_block_mask(MASKS[name], BATCH, 1, SEQLEN, SEQLEN, BLOCK_SIZE=1)
    seen = MASKS[name](*at, torch.arange(SEQLEN)).expand(mask.shape)
    assert mask.to_dense().bool().equal(seen)


def test_indices_one_by_one():
    masks = [lambda b, h, q, kv: TREE[q][kv], lambda b, h, q, kv: TREE[q, kv]]
    blocks = [create_block_mask(x, 1, 1, SEQLEN, SEQLEN, BLOCK_SIZE=1).to_dense() for x in masks]
    assert blocks[0].equal(blocks[1])


@few(MASKS)
def test_masks(name):
    compare(None, MASKS[name])


@few(SCORES)
def test_scores(name):
    compare(SCORES[name], None)


def test_the_index_of_a_query_is_no_position():
    """With fewer queries than keys, and with more dtypes and fewer heads of keys."""
    compare(SCORES["bias"], causal, seqlen_q=9, kv_heads=2)
    compare(softcap, sliding_window, seqlen_q=9, kv_heads=1, dtype=torch.bfloat16)


def test_gradients_of_captured_tensors():
    bias = BIAS.clone().requires_grad_()
    factor = torch.tensor(0.7, requires_grad=True)
    compare(lambda s, b, h, q, kv: s * 0.5 + bias[h, q - kv + SEQLEN], causal, more=[bias])
    compare(lambda s, b, h, q, kv: s * factor, None, more=[factor])


def test_new_values_compile_nothing():
    """Other tensors of the same shapes are the same expression, and nothing holds them."""
    (q,) = tensors((1, 1, SEQLEN, DIM), requires_grad=False)
    seen = []
    for document in (DOCUMENT, DOCUMENT.flip(0), DOCUMENT // 2):
        mask_mod = of_documents(causal, document.clone())
        before = len(tracing._traced)
        block_mask = create_block_mask(mask_mod, None, None, SEQLEN, SEQLEN)
        torch.testing.assert_close(
            flex_attention(q, q, q, block_mask=block_mask), definition(q, q, q, None, mask_mod)[0]
        )
        seen.append(len(tracing._traced) - before)
    assert seen[1:] == [0, 0]


def test_masks_of_pytorch_combine_ours():
    theirs = pytest.importorskip("torch.nn.attention.flex_attention")
    compare(None, theirs.and_masks(causal, theirs.or_masks(prefix, sliding_window)))


def test_a_block_mask():
    mask = create_block_mask(causal, BATCH, None, 100, 100, BLOCK_SIZE=(20, 50))
    assert mask.shape == (BATCH, 1, 100, 100) and mask.seq_lengths == (100, 100)
    assert mask.to_dense()[0, 0].tolist() == [[1, 0], [1, 0], [1, 1], [1, 1], [1, 1]]
    assert mask.sparsity() == pytest.approx(20) and mask.numel() == 20000


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch.compile looks at it
def test_compiled():
    """torch.compile breaks its graph at the call."""

    def layer(q, k, v):
        return flex_attention(q * 2, k, v, alibi, MASK).sin()

    MASK = create_block_mask(of_documents(causal), None, None, SEQLEN, SEQLEN)
    inputs = tensors(*[(BATCH, HEADS, SEQLEN, DIM)] * 3)
    got, want = torch.compile(layer, backend="aot_eager")(*inputs), layer(*inputs)
    torch.testing.assert_close(got, want)
    gradients = [torch.autograd.grad(x.sum(), inputs) for x in (got, want)]
    torch.testing.assert_close(*gradients)


def unknown(s, b, h, q, kv):
    return s + torch.fft.fft(q)


def attribute(s, b, h, q, kv):
    return s + q.cumsum(0)


def endless(s, b, h, q, kv):
    while q > kv:
        kv = kv + 1
    return s


def relu(s, b, h, q, kv):
    return torch.nn.functional.relu(s)


def of_integers(s, b, h, q, kv):
    return s.to(torch.int) * 1.0


@pytest.mark.parametrize("function", [unknown, attribute, endless, relu, of_integers])
def test_what_cannot_be_read_is_refused_with_the_line(function):
    q, k, v = tensors(*[(1, 1, 8, 8)] * 3)
    line = function.__code__.co_firstlineno + 1
    with pytest.raises(TypeError, match=rf"score_mod must .*test_torch_flex.py, line {line}"):
        flex_attention(q, k, v, function)


def test_refusals():
    q, k, v = tensors(*[(1, 1, 8, 8)] * 3)
    theirs = pytest.importorskip("torch.nn.attention.flex_attention")
    with pytest.raises(TypeError, match="block_mask must be a BlockMask, got BlockMask: create"):
        flex_attention(q, k, v, block_mask=theirs.create_block_mask(causal, 1, 1, 8, 8, "cpu"))
    with pytest.raises(ValueError, match="block_mask must have Q_LEN 8 of these tensors, got 9"):
        flex_attention(q, k, v, block_mask=create_block_mask(causal, None, None, 9, 8))
    with pytest.raises(TypeError, match="mask_mod must be a function of b, h, q_idx, kv_idx"):
        create_block_mask(None, None, None, 8, 8)
    with pytest.raises(ValueError, match="KV_LEN must be"):
        create_block_mask(causal, None, None, 8, 0)
    with pytest.raises(ValueError, match="heads of query, 1, unless|must divide"):
        flex_attention(q, k.expand(1, 2, 8, 8), v.expand(1, 2, 8, 8))
    short = torch.zeros(5)
    with pytest.raises(ValueError, match="must have more than 7 elements"):
        flex_attention(q, k, v, lambda s, b, h, m, n: s + short[n])
    with pytest.raises(RuntimeError, match="no gradients of gradients"):
        torch.autograd.grad(flex_attention(q, k, v).sum(), q, create_graph=True)
