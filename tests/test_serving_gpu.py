"""The serving engine on a GPU: with and without CUDA graphs, by every kind of preemption."""

import numpy as np
import pytest
from serving_models import CONFIG, LATENT, LATENT_WEIGHTS, WEIGHTS, assert_empty
from test_serving import GREEDY, NEW, OPTIONS, PROMPTS, tokens_of

import fa_numba
from fa_numba.kernels import e4m3
from fa_numba.language_model import model
from fa_numba.language_model.generate import generate
from fa_numba.language_model.server import Engine, Options, paged_model
from fa_numba.language_model.server.ngram_drafter import NGramDrafter
from fa_numba.runtime import arrays

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")


def make_engine(dtype=np.float32, weights=WEIGHTS, config=CONFIG, **options):
    """An engine on the GPU, whose pages are full of NaN."""
    weights = {name: cupy.asarray(x, dtype) for name, x in weights.items()}
    engine = Engine(weights, config, **options)
    nothing = e4m3.NAN_BYTE if engine.model.in_8_bits else np.nan
    engine.model.k_caches.fill(nothing)
    engine.model.v_caches.fill(nothing)
    for scale in engine.model.scales:
        scale.fill(np.nan)
    return engine


def plain_attention(q, k, v, causal):
    """In NumPy, with the precision of its arguments."""
    group, n = q.shape[2] // k.shape[2], q.shape[1]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    s = np.einsum("bmhd,bnhd->bhmn", q, k) / np.sqrt(q.shape[3])
    s = np.where(np.tril(np.ones((n, n), bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhmn,bnhd->bmhd", p / p.sum(-1, keepdims=True), v), None


@pytest.fixture(scope="module")
def greedy():
    """The greedy answers by whole passes in NumPy."""
    answers = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        for _ in range(GREEDY.max_tokens):
            given = np.array([tokens], np.int32)
            logits = model.forward(WEIGHTS, CONFIG, given, attn=plain_attention)
            tokens.append(int(logits[0, -1].argmax()))
        answers.append([tokens[len(prompt) :]])
    return answers


WAYS = {
    "graphs": {},
    "no graphs": {"graphs": False},
    "chunks": {"max_rows": 9, "max_branches": 8},
    "recomputed": {"page_size": 8, "num_pages": 22},
    "swapped": {"page_size": 8, "num_pages": 22, "host_pages": 40},
}


@pytest.mark.parametrize("way", WAYS)
def test_greedy_text_equals_that_of_numpy(way, greedy):
    engine = make_engine(**WAYS[way])
    assert tokens_of(engine.generate(PROMPTS, GREEDY)) == greedy
    assert bool(engine.model.graphs and engine.model.graphs.graphs) == (way != "no graphs")
    assert bool(engine.schedule.preemptions) == (way in ("recomputed", "swapped"))
    assert_empty(engine)


@pytest.mark.parametrize("way", WAYS)
def test_latents_in_pages_give_the_text_of_numpy(way):
    want = [
        [list(generate(LATENT_WEIGHTS, LATENT, prompt, NEW, temperature=0))] for prompt in PROMPTS
    ]
    engine = make_engine(np.float32, LATENT_WEIGHTS, LATENT, **WAYS[way])
    assert tokens_of(engine.generate(PROMPTS, GREEDY)) == want
    assert bool(engine.model.graphs and engine.model.graphs.graphs) == (way != "no graphs")
    assert_empty(engine)


def test_latents_of_16_bits_are_read_by_tensor_cores():
    engine = make_engine(np.float16, LATENT_WEIGHTS, LATENT)
    q = cupy.zeros((1, 1, LATENT.heads, 32), np.float16)
    given = q, engine.model.k_caches[0][:, :, 0], cupy.ones(1, np.int32)
    options = {"block_table": cupy.zeros((1, 8), np.int32), "softmax_scale": 1.0, "latent_dim": 24}
    assert fa_numba.which(fa_numba.mla_decode, *given, **options).kernel == "mla_decode_mma"
    answers = [
        tokens_of(x.generate(PROMPTS, GREEDY))
        for x in (engine, make_engine(np.float32, LATENT_WEIGHTS, LATENT))
    ]
    same = [x[0][:2] == y[0][:2] for x, y in zip(*answers, strict=True)]
    assert sum(same) >= len(PROMPTS) // 2
    assert_empty(engine)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("latents", [False, True])
def test_guesses_change_no_text(latents, width):
    of_model = (LATENT_WEIGHTS, LATENT) if latents else (WEIGHTS, CONFIG)
    plain, engine = (
        make_engine(np.float32, *of_model, drafter=drafter)
        for drafter in (None, NGramDrafter(width=width))
    )
    want = tokens_of(plain.generate(PROMPTS, GREEDY))
    assert tokens_of(engine.generate(PROMPTS, GREEDY)) == want
    assert engine.guesses
    assert_empty(engine)


def test_300_requests_at_once_with_everything_on():
    """Nothing is lost and nothing leaks, with some cancelled; 8-bit pages, guesses, few pages."""
    engine = make_engine(
        np.float16,
        kv_dtype="fp8",
        drafter=NGramDrafter(),
        page_size=16,
        num_pages=64,
        host_pages=32,
    )
    requests = [
        engine.submit(PROMPTS[3] * 2 + PROMPTS[i % 3] + [i % 50], Options(max_tokens=12))
        for i in range(300)
    ]
    cancelled = requests[::9]
    for _ in range(3):
        engine.step()
    for request in cancelled:
        engine.cancel(request)
    while engine.busy:
        engine.step()
    ended = [request for request in requests if request not in cancelled]
    assert all(len(request.answers[0].tokens) == 12 for request in ended)
    assert engine.schedule.shared and engine.guesses
    assert_empty(engine)


@pytest.mark.parametrize("way", ["graphs", "no graphs", "swapped"])
def test_pages_of_8_bits(way):
    """By the kernel on Hopper; most answers begin as those from pages of float16."""
    kernels = which_attends(make_engine(np.float16, kv_dtype="fp8"))
    assert kernels == {"flash_decode_gather"}
    options = {"page_size": 16, **WAYS[way], "kv_dtype": "fp8"}
    engine = make_engine(np.float16, **options)
    answers = tokens_of(engine.generate(PROMPTS, GREEDY))
    assert bool(engine.schedule.preemptions) == (way == "swapped")
    assert_empty(engine)
    plain = tokens_of(make_engine(np.float16).generate(PROMPTS, GREEDY))
    same = [x[0][:2] == y[0][:2] for x, y in zip(answers, plain, strict=True)]
    assert sum(same) >= len(PROMPTS) // 2


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_with_as_many_top_pages_as_there_are_the_text_is_that_of_all(dtype):
    options = {"page_size": 4, "num_pages": 200}
    few, all_pages, plain = (
        make_engine(dtype, **options, topk_pages=number) for number in (2, 64, 0)
    )
    want = tokens_of(plain.generate(PROMPTS, GREEDY))
    assert tokens_of(all_pages.generate(PROMPTS, GREEDY)) == want
    assert tokens_of(few.generate(PROMPTS, GREEDY)) != want
    without = make_engine(dtype, **options, topk_pages=2, graphs=False)
    assert tokens_of(without.generate(PROMPTS, GREEDY)) == tokens_of(few.generate(PROMPTS, GREEDY))
    assert few.model.graphs.graphs and not without.model.graphs
    for engine in few, all_pages, without:
        assert_empty(engine)


def test_pages_that_answers_share_are_read_once(monkeypatch):
    """As if a launch cost nothing: the same text with and without a cascade."""
    monkeypatch.setattr(paged_model, "LAUNCHES_BYTES", 0)
    monkeypatch.setattr(paged_model, "GRAPH_BYTES", 0)
    prompts = [PROMPTS[3] * 2 + PROMPTS[i % 3] for i in range(6)]
    engines = make_engine(page_size=4), make_engine(page_size=4)
    planned, cascade_of = [], engines[0].model.cascade_of
    engines[0].model.cascade_of = lambda plan: planned.append(cascade_of(plan)) or planned[-1]
    engines[1].model.cascade_of = lambda plan: None
    got, want = (engine.generate(prompts, GREEDY) for engine in engines)
    assert tokens_of(got) == tokens_of(want)
    assert any(plan and len(plan.segments) > 1 for plan in planned)
    assert_empty(engines[0])


def which_attends(engine):
    """Names of the kernels that paged_attn_decode would take for a step of one answer."""
    paged = engine.model
    q = cupy.zeros((1, 1, CONFIG.heads, CONFIG.head_dim), np.float16)
    tables = cupy.zeros((1, 8), np.int32), cupy.ones(1, np.int32)
    scales = {"k_scale": paged.scales[0][0], "v_scale": paged.scales[1][0]}
    caches = paged.k_caches[0], paged.v_caches[0]
    return {fa_numba.which(fa_numba.paged_attn_decode, q, *caches, *tables, **scales).kernel}


def test_a_batch_with_graphs_equals_single_runs_without():
    single = [
        make_engine(graphs=False).generate([p], o)[0] for p, o in zip(PROMPTS, OPTIONS, strict=True)
    ]
    assert make_engine().generate(PROMPTS, OPTIONS) == single


def test_a_step_without_prompts_is_one_graph_and_one_wait(monkeypatch):
    engine = make_engine()
    for prompt in PROMPTS[:4]:
        engine.submit(prompt, Options(max_tokens=40))
    for _ in range(5):
        engine.step()
    (rows, _), (reading, _) = sorted(engine.model.graphs.graphs)
    copies, to_numpy = [], arrays.to_numpy
    monkeypatch.setattr(arrays, "to_numpy", lambda x: copies.append(x.shape) or to_numpy(x))
    monkeypatch.setattr(engine.model, "layers", None)  # nothing is enqueued piece by piece
    engine.step()
    assert rows == 4 < reading and len(copies) == 1
