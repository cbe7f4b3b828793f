"""linear_attn on the CPU engine, every access checked."""

import numpy as np
import pytest
from cases import assert_close, each_mask, make_qkv, random, strided, thorough
from few_cases import pairs

from fa_numba import linear_attn, reference, simt
from fa_numba.analysis import Problem, traffic
from fa_numba.kernels.feature_map import feature_map as feature_map_on_gpu
from fa_numba.tiling.linear_attn import FEATURE_MAPS, feature_dim

pytestmark = pytest.mark.usefixtures("checked")

NUM_FEATURES = 6  # of hedgehog
each_map = pytest.mark.parametrize("feature_map", FEATURE_MAPS)
# the ways to compute it; without a mask there is one
FORMS = {
    "full": {"causal": False},
    "chunked": {"causal": True, "form": "chunked"},
    "recurrent": {"causal": True, "form": "recurrent"},
}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
# batch, seqlen, num_heads, num_kv_heads, head_dim; with chunks of 16: one token, chunk ± 1, tails
SIZES = {
    "one_of_everything": (1, 1, 1, 1, 1),
    "chunk_minus_one": (1, 15, 1, 1, 8),
    "chunk": (1, 16, 1, 1, 16),
    "chunk_plus_one": (2, 17, 2, 2, 15),
    "gqa": (1, 35, 4, 2, 4),
    "mqa": (1, 20, 3, 1, 8),
    "no_tokens": (1, 0, 2, 1, 8),
    "no_batch": (0, 5, 2, 1, 8),
}


def make_weights(rng, num_heads, num_kv_heads, head_dim):
    """Weights of hedgehog that keep e^(x W) moderate."""
    scale = np.float32(0.5 / np.sqrt(head_dim))
    return tuple(scale * random(rng, n, head_dim, NUM_FEATURES) for n in (num_heads, num_kv_heads))


def options_of(rng, feature_map, q, k):
    """feature_map and, where it has some, its weights."""
    if feature_map != "hedgehog":
        return {"feature_map": feature_map}
    weights = make_weights(rng, q.shape[2], k.shape[2], q.shape[3])
    return {"feature_map": feature_map, "weights": weights}


def check_linear(q, k, v, *, form=None, chunk_size=16, **options):
    """Hold linear_attn to the definition."""
    out, state = linear_attn(q, k, v, form=form, chunk_size=chunk_size, **options)
    want = reference.linear_attn(q, k, v, **options)
    plain = reference.linear_attn(q, k, v, **options, dtype=np.float32)
    assert_close(out, want[0], plain[0], name="out")
    assert_close(state, want[1], plain[1], name="state")
    return out, state


@each_form
@each_map
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.few(lambda sizes, feature_map, form: pairs(sizes, feature_map, form))
def test_shapes(rng, sizes, feature_map, form):
    batch, seqlen, *rest = sizes
    q, k, v = make_qkv(rng, batch, seqlen, seqlen, *rest)
    check_linear(q, k, v, **form, **options_of(rng, feature_map, q, k))


@each_form
@pytest.mark.parametrize("head_dim", [31, thorough(59), thorough(111), 256])
def test_any_head_dim(rng, head_dim, form):
    check_linear(*make_qkv(rng, 1, 9, 9, 1, 1, head_dim), **form)


@each_form
@pytest.mark.parametrize("head_dim", [16, thorough(33)])
def test_many_features(rng, head_dim, form):
    check_linear(*make_qkv(rng, 1, 19, 19, 2, 1, head_dim), feature_map="taylor2", **form)


@each_form
def test_a_thousand_features_cost_no_digits(rng, form):
    q, k, v = make_qkv(rng, 1, 5, 5, 1, 1, 47)  # 1176 features, whose products cancel
    options = {"feature_map": "taylor2", "causal": form["causal"]}
    want, _ = reference.linear_attn(q, k, v, **options)
    plain, _ = reference.linear_attn(q, k, v, **options, dtype=np.float32)
    out, _ = linear_attn(q, k, v, feature_map="taylor2", **form)
    assert np.abs(out - want).max() <= np.abs(plain - want).max()


@each_map
@pytest.mark.parametrize("seqlen_q, seqlen_k", [(1, 40), (33, 7), (5, 0), (0, 5)])
def test_lengths_may_differ_without_a_mask(rng, seqlen_q, seqlen_k, feature_map):
    q, k, v = make_qkv(rng, 2, seqlen_q, seqlen_k, 4, 2, 8)
    out, _ = check_linear(q, k, v, **options_of(rng, feature_map, q, k))
    assert seqlen_k or not out.any()  # a row that sees no key


@each_mask
@pytest.mark.parametrize("chunk_size", [1, 2, 7, 15, 16])
def test_chunk_size_does_not_change_the_answer(rng, chunk_size, causal):
    q, k, v = make_qkv(rng, 1, 37, 37, 2, 1, 9)
    check_linear(q, k, v, causal=causal, form="chunked", chunk_size=chunk_size)


@each_map
def test_decoding_from_a_state_of_constant_size(rng, feature_map):
    q, k, v = make_qkv(rng, 2, 30, 30, 4, 2, 8)
    options = options_of(rng, feature_map, q, k) | {"causal": True}
    whole, last = linear_attn(q, k, v, **options)
    prompt = [x[:, :25] for x in (q, k, v)]
    out, state = linear_attn(*prompt, **options)
    pieces, shape = [out], state.shape
    for n in range(25, 30):
        token = [x[:, n : n + 1] for x in (q, k, v)]
        before = state.copy()
        out, new_state = check_linear(*token, **options, state=state)
        np.testing.assert_array_equal(state, before)  # the old state is left alone
        assert new_state.shape == shape == (2, 2, feature_dim(feature_map, 8, NUM_FEATURES), 9)
        pieces.append(out)
        state = new_state
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), whole, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(state, last, rtol=1e-5, atol=1e-5)


@each_form
def test_a_state_is_seen_by_every_query(rng, form):
    q, k, v = make_qkv(rng, 1, 40, 40, 4, 2, 8)
    _, state = linear_attn(q[:, :15], k[:, :15], v[:, :15], **form)
    check_linear(q[:, 15:], k[:, 15:], v[:, 15:], **form, state=state)


@each_form
def test_no_feature_in_common_gives_zero(rng, form):
    q, k, v = (np.abs(x) for x in make_qkv(rng, 1, 20, 20, 1, 1, 8))
    q[..., 4:] *= -1
    k[..., :4] *= -1  # relu: no feature of q is a feature of k
    q[:, 7] = np.abs(q[:, 7])
    out, _ = check_linear(q, k, v, feature_map="relu", **form)
    assert (out[:, np.arange(20) != 7] == 0).all() and (out[:, 7] != 0).all()


@each_form
def test_the_first_token_sees_itself_alone(rng, form):
    q, k, v = make_qkv(rng, 1, 18, 18, 1, 1, 8)
    out, _ = linear_attn(q, k, v, **form)
    assert np.allclose(out[:, 0], v[:, 0], rtol=1e-6) == form["causal"]


@each_form
@each_map
def test_large_inputs(rng, feature_map, form):
    q, k, v = make_qkv(rng, 1, 20, 20, 1, 1, 8)
    options = options_of(rng, feature_map, q, k)
    check_linear(30 * q, 30 * k if feature_map != "hedgehog" else k, v, **options, **form)


@each_form
def test_nan_in_one_head_stays_there(rng, form):
    q, k, v = make_qkv(rng, 2, 20, 20, 2, 2, 8)
    v[0, 3, 1, 2] = np.nan
    out, state = linear_attn(q, k, v, **form)
    first = 3 if form["causal"] else 0  # a mask hides it from the queries before
    assert np.isnan(out[0, first:, 1, 2]).all() and np.isnan(out).sum() == 20 - first
    assert np.isnan(state[0, 1, :, 2]).all() and np.isnan(state).sum() == 8


@each_map
@each_form
def test_nan_in_a_key_is_not_seen_before_it(rng, form, feature_map):
    q, k, v = make_qkv(rng, 1, 20, 20, 2, 2, 8)
    k[0, 18, 1, 2] = np.nan
    out, _ = linear_attn(q, k, v, **form, **options_of(rng, feature_map, q, k))
    first = 18 if form["causal"] else 0
    assert np.isfinite(out[:, :, 0]).all() and np.isfinite(out[:, :first]).all()
    assert np.isnan(out[:, first:, 1]).all()


@each_form
def test_strided_views_are_read_in_place_and_left_alone(rng, form):
    q, k, v = (strided(x) for x in make_qkv(rng, 2, 9, 9, 2, 1, 8))
    _, state = linear_attn(q, k, v, **form)
    state, weights = strided(state), make_weights(rng, 2, 1, 8)
    for x in (q, k, v, state, *weights):
        x.flags.writeable = False
    check_linear(q, k, v, **form, state=state)
    check_linear(q, k, v, **form, feature_map="hedgehog", weights=weights)


def test_a_group_too_large_for_a_thread_is_chunked(rng):
    q, k, v = make_qkv(rng, 1, 1, 1, 65, 1, 4)
    with simt.tracing() as traces:
        check_linear(q, k, v, causal=True)
    assert [t.kernel for t in traces][-1] == "chunk_outputs_kernel"
    problem = Problem(1, 1, 1, 65, 1, 4, causal=True)
    assert traffic.linear_attn(problem).stores["states"] == 4 * 5


@each_form
def test_run_to_run_bit_equal(rng, form):
    q, k, v = make_qkv(rng, 1, 40, 40, 2, 1, 8)
    for x, y in zip(linear_attn(q, k, v, **form), linear_attn(q, k, v, **form), strict=True):
        np.testing.assert_array_equal(x, y)


@each_map
@pytest.mark.parametrize("head_dim", [1, 8, 59])
def test_feature_maps(rng, feature_map, head_dim):
    x = random(rng, 2, 3, 2, head_dim)
    w, _ = make_weights(rng, 2, 1, head_dim) if feature_map == "hedgehog" else (None, None)
    want = reference.feature_map(x, feature_map, w)
    plain = reference.feature_map(x, feature_map, w, dtype=np.float32)
    assert_close(feature_map_on_gpu(x, feature_map, w), want, plain)
    assert want.shape[3] == feature_dim(feature_map, head_dim, NUM_FEATURES)


def test_chunks_move_the_state_less_often():
    problem, D = Problem(1, 1024, 1024, 1, 1, 64, causal=True), 64 * 65
    recurrent, chunked = (
        traffic.linear_attn(problem, form=form) for form in ("recurrent", "chunked")
    )
    assert recurrent.loads["state"] == 1024 * D
    assert chunked.loads["states"] == chunked.stores["states"] == 1024 // 16 * D
    assert chunked.elements() * 10 < recurrent.elements()


def test_traffic_grows_with_the_length_and_not_its_square(rng):
    moved = []
    for seqlen in (32, 64, 128):
        q, k, v = make_qkv(rng, 1, seqlen, seqlen, 1, 1, 4)
        with simt.tracing() as traces:
            linear_attn(q, k, v, causal=True)
        moved.append(sum(x.loads + x.stores for t in traces for x in t.arrays.values()))
    assert moved[2] - moved[1] == 2 * (moved[1] - moved[0])
