"""The engine: an answer depends on its request alone, whoever else is served, and how."""

import itertools
import sys
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from serving_models import (
    CHARACTERS,
    CONFIG,
    LATENT,
    LATENT_WEIGHTS,
    WEIGHTS,
    Ledger,
    assert_empty,
    make_engine,
    next_tokens,
    submit_or_cancel,
    wait_until,
)

from fa_numba import paged_attn_decode, topk_decode
from fa_numba.kernels import paged_attn_decode as lesson_kernel
from fa_numba.language_model import model
from fa_numba.language_model.generate import generate
from fa_numba.language_model.server import (
    Engine,
    Options,
    Overloaded,
    choose,
    decode_graphs,
    paged_model,
)
from fa_numba.language_model.server import background as background_module
from fa_numba.language_model.server import engine as engine_module
from fa_numba.language_model.server.background import Background, Stopping, view_of
from fa_numba.language_model.server.decode_graphs import DecodeGraphs
from fa_numba.language_model.server.model_drafter import ModelDrafter
from fa_numba.language_model.server.ngram_drafter import NGramDrafter
from fa_numba.language_model.server.paged_model import PagedModel
from fa_numba.language_model.server.text_stream import TextStream

TEXTS = "A", "abcde", "The quick brown ", "jumps over the lazy dog, and then it sle"
TEXTS += ("jumps over the lazy dog, and then ", "jumps over the lazy dog, and the", "z" * 70, "Nm")
PROMPTS = [CHARACTERS.encode(text).tolist() for text in TEXTS]
NEW = 24
GREEDY = Options(max_tokens=NEW, temperature=0)


def logits_of(tokens):
    """Of each position, by one pass over the whole sequence."""
    return model.forward(WEIGHTS, CONFIG, np.array([tokens], np.int32))[0]


@pytest.fixture(scope="module")
def greedy():
    """The greedy answers, by whole passes, without any cache."""
    answers = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        for _ in range(NEW):
            tokens.append(int(logits_of(tokens)[-1].argmax()))
        answers.append(tokens[len(prompt) :])
    return answers


def count_rows(engine):
    """A list to which each step adds its number of rows."""
    rows, run = [], engine.model.run

    def count(plan, *args):
        rows.append(len(plan.rows()[0]))
        return run(plan, *args)

    engine.model.run = count
    return rows


def tokens_of(replies):
    return [[answer.tokens for answer in answers] for answers in replies]


@pytest.mark.parametrize("max_rows", [256, 7])
def test_logits_from_pages_equal_those_of_a_whole_pass(monkeypatch, max_rows):
    seen, most_likely = [], choose.most_likely

    def record(logits, *args):
        seen.append(logits.copy())
        return most_likely(logits, *args)

    monkeypatch.setattr(choose, "most_likely", record)
    for prompt in PROMPTS:
        seen.clear()
        engine = make_engine(max_rows=max_rows, max_branches=4)
        ((answer,),) = engine.generate([prompt], Options(max_tokens=NEW, seed=3))
        want = logits_of(prompt + answer.tokens)[len(prompt) - 1 : -1]
        got = np.concatenate(seen)
        assert got.shape == want.shape
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


WAYS = {
    "pages of 16": {},
    "pages of 1": {"page_size": 1, "num_pages": 4000},
    "pages of 5": {"page_size": 5},
    "one page each": {"page_size": 128, "num_pages": 8},
    "no sharing": {"share_prefixes": False},
    "chunks": {"max_rows": 9, "max_branches": 8},
    "two at a time": {"max_branches": 2, "max_rows": 3},
    "one at a time": {"max_branches": 1},
    "static": {"static": True, "max_branches": 3},
    "recomputed": {"page_size": 8, "num_pages": 22},
    "recomputed, no sharing": {"page_size": 8, "num_pages": 22, "share_prefixes": False},
    "recomputed in chunks": {"page_size": 4, "num_pages": 40, "max_rows": 10, "max_branches": 8},
    "swapped": {"page_size": 8, "num_pages": 22, "host_pages": 40},
    "swapped, little room": {"page_size": 8, "num_pages": 22, "host_pages": 6},
}


@pytest.mark.parametrize("way", WAYS)
def test_greedy_text_is_the_same_in_all_ways(way, greedy):
    engine = make_engine(**WAYS[way])
    assert [[answer] for answer in greedy] == tokens_of(engine.generate(PROMPTS, GREEDY))
    schedule = engine.schedule
    assert bool(schedule.preemptions) == ("recomputed" in way or "swapped" in way)
    assert bool(schedule.recomputed) == ("recomputed" in way or "little" in way)
    assert bool(schedule.swapped) == ("swapped" in way)
    assert_empty(engine)
    # Again, with the pages as the first time left them.
    assert [[answer] for answer in greedy] == tokens_of(engine.generate(PROMPTS[::-1], GREEDY))[
        ::-1
    ]
    assert_empty(engine)


@pytest.mark.parametrize("options", [{}, {"kv_dtype": "fp8"}], ids=["float32", "fp8"])
def test_pages_that_answers_share_are_read_once(options):
    """Twelve answers to prompts that begin alike: the same text with and without a cascade."""
    prompts = [PROMPTS[3] * 2 + PROMPTS[i % 3] for i in range(6)]
    wanted = Options(max_tokens=9, temperature=0.7, seed=3, n=2)
    engines = make_engine(page_size=4, **options), make_engine(page_size=4, **options)
    planned, cascade_of = [], engines[0].model.cascade_of
    engines[0].model.cascade_of = lambda plan: planned.append(cascade_of(plan)) or planned[-1]
    engines[1].model.cascade_of = lambda plan: None
    got, want = (engine.generate(prompts, wanted) for engine in engines)
    assert tokens_of(got) == tokens_of(want)
    segments = [plan.segments for plan in planned if plan]
    assert max(len(rows) for found in segments for rows, *_ in found) == 12
    assert_empty(engines[0])


def test_what_a_learner_attends_with_gets_whole_sequences():
    engine = make_engine(attend=lambda *args, **options: paged_attn_decode(*args, **options))
    seen = []
    engine.model.cascade_of = lambda plan: seen.append(PagedModel.cascade_of(engine.model, plan))
    engine.generate([PROMPTS[3]] * 3, Options(max_tokens=2))
    assert seen and not any(seen)


@pytest.fixture(scope="module")
def greedy_in_8_bits():
    """The greedy answers with pages of e4m3, one prompt after the other, none shared."""
    return [
        make_engine(kv_dtype="fp8", share_prefixes=False).generate([prompt], GREEDY)[0][0].tokens
        for prompt in PROMPTS
    ]


@pytest.mark.parametrize(
    "way", ["pages of 5", "chunks", "recomputed in chunks", "swapped", "swapped, little room"]
)
def test_greedy_text_from_pages_of_8_bits_is_the_same_in_all_ways(way, greedy_in_8_bits):
    """Every key is read from the pages, so that all ways read the same numbers."""
    engine = make_engine(kv_dtype="fp8", **WAYS[way])
    want = [[answer] for answer in greedy_in_8_bits]
    assert want == tokens_of(engine.generate(PROMPTS, GREEDY))
    assert_empty(engine)


def test_pages_of_8_bits_have_a_fourth_of_the_bytes_and_nearly_the_same_logits(monkeypatch):
    seen, most_likely = [], choose.most_likely
    monkeypatch.setattr(
        choose, "most_likely", lambda x, *args: seen.append(x.copy()) or most_likely(x, *args)
    )
    engine, whole = make_engine(kv_dtype="fp8"), make_engine()
    numbers, scales = 2 * CONFIG.kv_heads * CONFIG.head_dim, 2 * CONFIG.kv_heads
    assert whole.model.page_bytes == CONFIG.layers * 16 * 4 * numbers
    assert engine.model.page_bytes == CONFIG.layers * 16 * (numbers + 4 * scales)
    engine.generate([PROMPTS[3]], Options(max_tokens=1))
    want = logits_of(PROMPTS[3])[-1]
    assert 0 < np.linalg.norm(seen[0][0] - want) / np.linalg.norm(want) < 0.1


@pytest.mark.parametrize("way", ["pages of 5", "chunks", "recomputed in chunks", "swapped"])
def test_as_many_top_pages_as_there_are_make_the_same_text(way, greedy):
    engine = make_engine(topk_pages=128, **WAYS[way])
    assert [[answer] for answer in greedy] == tokens_of(engine.generate(PROMPTS, GREEDY))
    assert_empty(engine)


def test_few_pages_are_those_of_the_bounds_of_their_keys(monkeypatch):
    """Answers share, copy and swap pages; what attends sees true bounds, and few pages."""
    seen = []

    def attend(q, k_cache, v_cache, k_min, k_max, table, lengths, number, **options):
        for pages, n in zip(table, lengths, strict=True):
            for i in range(-(-n // 4)):
                keys = k_cache[pages[i], : n - 4 * i]
                assert (k_min[pages[i]] <= keys).all() and (keys <= k_max[pages[i]]).all()
        seen.append(number)
        return topk_decode(q, k_cache, v_cache, k_min, k_max, table, lengths, number, **options)

    monkeypatch.setattr(paged_model, "topk_decode", attend)
    engine = make_engine(topk_pages=2, page_size=4, num_pages=44, host_pages=60)
    wanted = [Options(max_tokens=12, n=2, seed=3), Options(max_tokens=12, beams=3)]
    first = tokens_of(engine.generate(PROMPTS[:4] * 2, wanted * 4))
    assert set(seen) == {2} and engine.schedule.swapped
    assert_empty(engine)
    again = make_engine(topk_pages=2, page_size=4)
    assert first == tokens_of(again.generate(PROMPTS[:4] * 2, wanted * 4))
    every = make_engine(page_size=4)
    assert first != tokens_of(every.generate(PROMPTS[:4] * 2, wanted * 4))
    bounds = 2 * 4 * CONFIG.kv_heads * CONFIG.head_dim * CONFIG.layers
    assert engine.model.page_bytes == every.model.page_bytes + bounds


@pytest.mark.parametrize("options", [
    WAYS["pages of 5"], WAYS["chunks"], WAYS["recomputed"], WAYS["swapped"],
    {"drafter": NGramDrafter()},
], ids=["pages of 5", "chunks", "recomputed", "swapped", "drafts"])  # fmt: skip
def test_latents_in_pages_give_the_text_of_one_sequence(options):
    want = [
        list(generate(LATENT_WEIGHTS, LATENT, prompt, NEW, temperature=0)) for prompt in PROMPTS
    ]
    engine = make_engine(LATENT_WEIGHTS, LATENT, **options)
    assert engine.model.page_bytes == engine.pool.page_size * LATENT.layers * (24 + 8) * 4
    for _ in range(2):  # again, with the pages as the first time left them
        assert tokens_of(engine.generate(PROMPTS, GREEDY)) == [[answer] for answer in want]
    assert_empty(engine)


def test_any_attention_can_serve(greedy):
    """A lesson's kernel on the CPU engine, as a learner's own; two prompts in one call."""
    shapes, options = [], Options(max_tokens=2, temperature=0)

    def attend(q, *args, **options):
        shapes.append(q.shape[:2])
        return lesson_kernel.paged_attn_decode(q, *args, **options)

    engine = make_engine(attend=attend, page_size=8)
    replies = engine.generate([PROMPTS[1], PROMPTS[7]], options)
    assert tokens_of(replies) == [[greedy[1][:2]], [greedy[7][:2]]]
    assert set(shapes) == {(2, 5), (2, 1)}


OPTIONS = [
    Options(max_tokens=9, seed=1),
    Options(max_tokens=20, temperature=0.5, top_k=4, seed=2, n=3),
    Options(max_tokens=30, temperature=0),
    Options(max_tokens=12, temperature=1.5, top_p=0.7, seed=3, n=2),
    Options(max_tokens=14, beams=4, n=2),
    Options(max_tokens=1, n=4, seed=9),
    Options(max_tokens=17, temperature=0.7, seed=4),
    Options(max_tokens=6, beams=3),
]


@pytest.mark.parametrize(
    "way",
    [
        {},
        {"max_branches": 4, "max_rows": 6},
        {"page_size": 8, "num_pages": 30},
        {"page_size": 8, "num_pages": 30, "host_pages": 30},
    ],
    ids=["plenty", "four at a time", "recomputed", "swapped"],
)
def test_a_batch_equals_single_runs(way):
    single = [make_engine().generate([p], o)[0] for p, o in zip(PROMPTS, OPTIONS, strict=True)]
    engine = make_engine(**way)
    together = engine.generate(PROMPTS, OPTIONS)
    assert together == single
    assert [len(answers) for answers in together] == [1, 3, 1, 2, 2, 4, 1, 1]
    assert bool(engine.schedule.preemptions) == ("num_pages" in way)
    assert_empty(engine)


def test_samples_of_a_request_differ_and_are_those_of_their_seeds():
    three, two = (
        make_engine().generate([PROMPTS[1]], Options(max_tokens=20, n=n, seed=5))[0] for n in (3, 2)
    )
    assert three[:2] == two and len({tuple(a.tokens) for a in three}) == 3
    (other,) = make_engine().generate([PROMPTS[1]], Options(max_tokens=20, n=3, seed=6))
    assert other[0].tokens != three[0].tokens


def test_samples_share_the_pages_of_their_prompt():
    engine = make_engine(page_size=8)
    prompt = PROMPTS[3]  # 40 tokens: 5 full pages
    engine.submit(prompt, Options(max_tokens=9, n=6))
    for _ in range(4):
        engine.step()
    assert engine.pool.num_pages - engine.pool.num_free == 5 + 6
    assert engine.schedule.used_slots() == 40 + 6 * 3


def test_a_prompt_that_was_read_before_is_not_read_again():
    engine = make_engine(page_size=8)
    engine.generate([PROMPTS[3]], GREEDY)
    rows = count_rows(engine)
    request = engine.submit(PROMPTS[3], GREEDY)
    while engine.busy:
        engine.step()
    assert request.shared == 40 and rows == [1] * NEW, "only the last token, for its logits"


@pytest.mark.parametrize("options", [{}, {"max_rows": 10, "max_branches": 8}], ids=["", "chunks"])
def test_identical_prompts_at_once_cost_one_prefill(options):
    """Of the others the last token is computed, for its logits."""
    engine = make_engine(page_size=8, **options)
    rows, asked = count_rows(engine), Options(max_tokens=3, temperature=0)
    requests = [engine.submit(PROMPTS[3], asked) for _ in range(6)]
    while engine.busy:
        engine.step()
    assert sum(rows) == 40 + 5 + 6 * (3 - 1)
    assert len({tuple(request.answers[0].tokens) for request in requests}) == 1
    view = view_of(engine)
    assert (view["prompt_tokens"], view["shared_tokens"]) == (6 * 40, 5 * 40)
    assert view["hit_rate"] == round(5 / 6, 3)


def test_a_prompt_that_is_read_again_counts_once():
    """Its request is preempted before the first token; its client pays for it once."""
    engine = make_engine(page_size=4, num_pages=27, max_rows=8, max_branches=4)
    first = engine.submit(PROMPTS[3][:10], Options(max_tokens=60, client="a"))
    while len(first.branches[0].tokens) < 31:
        engine.step()
    second = engine.submit(PROMPTS[6], Options(max_tokens=1, client="b"))
    while engine.busy:
        engine.step()
    assert second.preempted and second.shared == 0
    view = view_of(engine)
    assert (view["prompt_tokens"], view["shared_tokens"]) == (80, 0)
    assert engine.schedule.queue.served["b"] == 31 + 70 + 1, "it began as a did"


def test_answers_go_on_while_a_long_prompt_is_read():
    engine = make_engine(max_rows=10, max_branches=4)
    short = engine.submit(PROMPTS[1], Options(max_tokens=40))
    engine.step()
    long = engine.submit(PROMPTS[6], Options(max_tokens=5))
    rows = count_rows(engine)
    while not long.started:
        before = len(short.branches[0].tokens)
        engine.step()
        assert rows[-1] <= 10
        assert len(short.branches[0].tokens) == before + 1
    assert len(short.branches[0].tokens) == len(PROMPTS[1]) + 1 + 8, "70 tokens, 9 in a step"


def test_prompts_that_wait_for_rows_or_branches_are_not_hashed_in_each_step(monkeypatch):
    engine = make_engine(max_rows=20, max_branches=16)
    hashed, of_pool = [], engine.pool._hashes

    def hashes(tokens, *page):
        hashed.append(not page)  # else of a page that an answer has filled
        return of_pool(tokens, *page)

    monkeypatch.setattr(engine.pool, "_hashes", hashes)
    engine.generate([PROMPTS[3]] * 12 + [PROMPTS[6]] * 12, GREEDY)
    # To let it in, to find its shared pages, to take pages
    assert sum(hashed) == 3 * 24 and engine.steps > 48


def test_requests_join_and_leave_between_steps():
    engine, running = make_engine(), []
    for i in range(30):
        if i % 3 == 0:
            engine.submit(PROMPTS[i % 8], Options(max_tokens=5))
        engine.step()
        running.append(len(engine.schedule.running))
    assert running[:8] == [1, 1, 1, 2, 1, 1, 2, 1]


def test_a_client_with_many_requests_does_not_hold_up_another():
    ends = {}
    for share in (True, False):
        engine = make_engine(max_branches=2)
        names = ("many", "few") if share else ("one", "one")
        for _ in range(40):
            engine.submit(PROMPTS[1], Options(max_tokens=4, client=names[0]))
        few = [engine.submit(PROMPTS[0], Options(max_tokens=4, client=names[1])) for _ in range(3)]
        while any(request.ended is None for request in few):
            engine.step()
        ends[share] = engine.ended
        while engine.busy:
            engine.step()
        assert engine.ended == 43
    assert ends[False] >= 42 and ends[True] <= 10


def test_the_queue_lists_requests_about_in_the_order_in_which_they_come():
    engine = make_engine()
    many = [engine.submit(PROMPTS[0], Options(client="many")) for _ in range(3)]
    few = engine.submit(PROMPTS[0], Options(client="few"))
    assert list(engine.schedule.queue) == [many[0], few, *many[1:]]
    engine.schedule.queue.charge(many[0], 1)
    assert list(engine.schedule.queue) == [few, *many]


def test_a_client_that_comes_back_has_saved_nothing_up():
    engine = make_engine(max_branches=1)
    for _ in range(20):
        engine.submit(PROMPTS[1], Options(max_tokens=4, client="busy"))
    for _ in range(40):
        engine.step()
    for _ in range(20):
        engine.submit(PROMPTS[1], Options(max_tokens=4, client="new"))
    waiting = engine.schedule.queue
    before = {c: sum(r.options.client == c for r in waiting) for c in ("busy", "new")}
    for _ in range(40):
        engine.step()
    after = {c: sum(r.options.client == c for r in waiting) for c in ("busy", "new")}
    left = {c: before[c] - after[c] for c in before}
    assert abs(left["busy"] - left["new"]) <= 2 and min(left.values()) >= 4


def test_a_thousand_requests_at_once_all_end():
    engine = make_engine(num_pages=24, page_size=8, host_pages=8)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, CONFIG.vocabulary, n).tolist() for n in rng.integers(1, 25, 1000)]
    options = [Options(max_tokens=int(n), temperature=0) for n in rng.integers(1, 9, 1000)]
    replies = engine.generate(prompts, options)
    for (answer,), o in zip(replies, options, strict=True):
        assert len(answer.tokens) == o.max_tokens and answer.reason == "length"
    assert engine.schedule.preemptions and engine.ended == 1000
    for i in range(0, 1000, 250):
        assert replies[i] == make_engine().generate([prompts[i]], options[i])[0]
    assert_empty(engine)


def test_a_full_queue_refuses_and_changes_nothing():
    engine = make_engine(max_waiting=2)
    for _ in range(2):
        engine.submit(PROMPTS[0])
    with pytest.raises(Overloaded, match="2 requests wait already"):
        engine.submit(PROMPTS[0])
    assert len(engine.schedule.queue) == 2


def test_cancelled_anywhere():
    """In the queue, while its prompt is read, while it answers, preempted, and after its end."""
    for way in ({}, {"host_pages": 30}):
        engine = make_engine(page_size=4, num_pages=30, max_rows=12, max_branches=8, **way)
        requests = [engine.submit(p, Options(max_tokens=20, n=2)) for p in PROMPTS[1:6]]
        states = set()
        while engine.busy:
            engine.step()
            for request in requests[::2]:
                queue = engine.schedule.queue
                state = (request.started, request in queue.preempted, request in list(queue))
                if request.ended is None and state not in states:
                    states.add(state)
                    engine.cancel(request)
        for request in requests:
            engine.cancel(request)
        reasons = {answer.reason for r in requests for answer in r.answers}
        assert reasons == {"cancelled", "length"} and len(states) >= 2
        assert_empty(engine)


def test_ten_thousand_random_steps_leave_no_page_behind():
    """Pages are checked to the token: `Ledger` has a code of its prefix in the place of each key.

    Its next tokens are arithmetic on the code of the last token, so that answers are known.
    """
    rng = np.random.default_rng(1)
    engine = Engine(
        WEIGHTS, CONFIG, num_pages=12, page_size=4, host_pages=8, max_rows=14, max_branches=10
    )
    engine.model = ledger = Ledger(engine)
    live, done, stems = [], [], [rng.integers(0, 9, 16).tolist() for _ in range(4)]
    for step in range(10_000):
        submit_or_cancel(engine, rng, live, stems, most=12, chance=0.35, longest=10)
        engine.step()
        pool = engine.pool
        if step % 50 == 0:
            held = {p for seq in pool.sequences for p in pool.pages(seq)}
            assert len(held) + pool.num_free == pool.num_pages
            view = view_of(engine)
            assert sum(owner >= 0 or owner == -3 for owner in view["pages"]) == len(held)
            assert view["used_slots"] <= 4 * len(held)
        done += [request for request in live if request.ended is not None]
        live = [request for request in live if request.ended is None]
    schedule = engine.schedule
    assert schedule.preemptions > 100 and schedule.swapped > 100 and schedule.recomputed > 100
    assert engine.cancelled > 100 and ledger.copied > 100 and len(done) > 1000
    for request in live:
        engine.cancel(request)
    assert_empty(engine)
    for request in done:
        if request.options.temperature == 0 and request.answers[0].reason == "length":
            tokens = list(request.prompt)
            for _ in range(request.options.max_tokens):
                tokens.append(int(next_tokens(tokens)[0]))
            assert request.answers[0].tokens == tokens[len(request.prompt) :]


def test_beams_find_the_best_answer():
    """With as many beams as candidates nothing is missed: all 5 · 5 answers, by whole passes."""
    config = model.Config(5, layers=1, heads=2, kv_heads=1, head_dim=16, context=32)
    weights = {name: 20 * x for name, x in model.init_weights(config, seed=2).items()}
    prompt = [1, 2, 3]

    def log_probability(answer):
        logits = model.forward(weights, config, np.array([prompt + list(answer)], np.int32))[0]
        logits = logits.astype(np.float64)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return sum(log_p[2 + i, token] for i, token in enumerate(answer))

    best = sorted(itertools.product(range(5), repeat=2), key=log_probability)[::-1]
    engine = Engine(weights, config)
    (answers,) = engine.generate([prompt], Options(max_tokens=2, beams=25, n=6))
    assert [tuple(answer.tokens) for answer in answers] == best[:6]


def test_a_beam_search_for_more_answers_than_there_are_is_refused():
    config = model.Config(4, layers=1, heads=2, kv_heads=1, head_dim=8, context=16)
    engine = Engine(model.init_weights(config), config)
    (answers,) = engine.generate([[0]], Options(max_tokens=1, beams=4, n=4))
    assert sorted(answer.tokens for answer in answers) == [[0], [1], [2], [3]]
    with pytest.raises(ValueError, match="n must be at most 4, the different .* 1 tokens, got 5"):
        engine.submit([0], Options(max_tokens=1, beams=5, n=5))
    (answers,) = engine.generate([[0]], Options(max_tokens=2, beams=5, n=5))
    assert len(answers) == 5


def test_a_vocabulary_of_one_token():
    """Each way of choosing asks for more candidates than there are."""
    config = model.Config(1, layers=1, heads=2, kv_heads=1, head_dim=8, context=16)
    weights = model.init_weights(config)
    assert [*generate(weights, config, [0], 20, top_k=32)] == [0] * 20
    ways = {"n": 2}, {"beams": 2}, {"temperature": 0, "logprobs": 5}, {"top_k": 9, "top_p": 0.1}
    for way, drafter in itertools.product(ways, (None, NGramDrafter())):
        engine = Engine(weights, config, drafter=drafter)
        (answers,) = engine.generate([[0, 0, 0]], Options(max_tokens=5, **way))
        assert [answer.tokens for answer in answers] == [[0] * 5] * way.get("n", 1)
    with pytest.raises(ValueError, match="n must be at most 1, the different .* 5 tokens, got 2"):
        engine.submit([0], Options(max_tokens=5, beams=2, n=2))


def test_draws_follow_the_probabilities():
    rng, rows = np.random.default_rng(0), 20_000
    probabilities = np.tile(np.array([0.4, 0.3, 0.2, 0.05], np.float32), (rows, 1))
    tokens = np.tile(np.array([7, 3, 9, 1], np.int32), (rows, 1))

    def shares(top_k, top_p):
        given = np.full(rows, top_k), np.full(rows, top_p)
        drawn = choose.draw(probabilities, tokens, *given, rng.random(rows))
        return [round(float((drawn == token).mean()), 2) for token in (7, 3, 9, 1)]

    np.testing.assert_allclose(shares(4, 1.0), np.array([0.4, 0.3, 0.2, 0.05]) / 0.95, atol=0.02)
    np.testing.assert_allclose(shares(2, 1.0), [4 / 7, 3 / 7, 0, 0], atol=0.02)
    np.testing.assert_allclose(shares(4, 0.71), [4 / 9, 3 / 9, 2 / 9, 0], atol=0.02)
    assert shares(4, 0.69)[2:] == [0, 0] and shares(4, 0.0) == [1, 0, 0, 0]
    last = choose.draw(
        probabilities[:1], tokens[:1], np.array([4]), np.array([1.0]), np.array([1.0])
    )
    assert last == [1], "never a token past the last one"


def test_the_smallest_temperatures_are_nearly_greedy(greedy):
    options = Options(max_tokens=NEW, temperature=1e-320)
    assert tokens_of(make_engine().generate(PROMPTS[:3], options)) == [[a] for a in greedy[:3]]


def test_text_up_to_a_stop_string_however_it_comes():
    rng = np.random.default_rng(0)
    for _ in range(500):
        text = "".join(rng.choice(list("abc"), rng.integers(1, 30)))
        stop = tuple("".join(rng.choice(list("abc"), rng.integers(1, 5))) for _ in range(2))
        stream, pieces = TextStream("".join, stop), []
        for letter in text:
            pieces.append(stream.feed(letter))
            if stream.stopped:
                break
        found = [text.index(s) for s in stop if s in text]
        ends = [text.index(s) + len(s) for s in stop if s in text]
        assert stream.stopped == bool(found)
        if found:  # the string that is complete first ends the text
            first = min(ends)
            at = min(text.index(s) for s in stop if s in text[:first])
            assert "".join(pieces) == text[:at] == stream.text and stream.finish() == ""
        else:
            shown = "".join(pieces)
            assert text.startswith(shown) and len(text) - len(shown) < max(map(len, stop))
            assert shown + stream.finish() == text == stream.text


BYTES = "é😀ß漢 a".encode()


@pytest.mark.parametrize(
    "data, stop",
    [
        (BYTES, ()),
        (BYTES, ("ß",)),
        (BYTES, ("漢", "😀ß")),
        (BYTES[:-3], ("x",)),  # ends within a character
        (b"\xffa\xc3\xc3\xa9\xf0\x9f", ()),  # no UTF-8
    ],
)
def test_a_character_of_several_tokens_comes_whole(data, stop):
    def decode(tokens):
        return bytes(tokens).decode("utf-8", "replace")

    stream, pieces = TextStream(decode, stop), []
    for byte in data:
        pieces.append(stream.feed(byte))
        assert "\ufffd" not in pieces[-1][-1:], "the next token may complete it"
        if stream.stopped:
            break
    pieces.append(stream.finish())
    whole = decode(data)
    ends = [whole.index(s) for s in stop if s in whole]
    assert "".join(pieces) == stream.text == whole[: min(ends, default=None)]
    assert stream.stopped == bool(ends)


def test_answers_of_a_decoder_of_bytes_are_whole():
    """In the answer, its pieces, and beams; each character has a token of 2 bytes, in turn."""

    def decode(tokens):
        return bytes(b for t in tokens for b in ((0xC3,) if t % 2 else (0xA9,))).decode(
            "utf-8", "replace"
        )

    engine, pieces = make_engine(), {}
    engine.decode = decode

    def listener(request, index, text, reason):
        pieces[index] = pieces.get(index, "") + text

    for options in (Options(max_tokens=NEW, n=3, seed=2), Options(max_tokens=5, beams=3, n=2)):
        pieces.clear()
        request = engine.submit(PROMPTS[2], options, listener)
        while engine.busy:
            engine.step()
        for answer in request.answers:
            assert answer.text == pieces[answer.index] == decode(answer.tokens)


@pytest.mark.parametrize("options", [{}, {"n": 3}, {"beams": 2}])
@pytest.mark.parametrize("length", [1, 70, CONFIG.context])
def test_no_tokens_are_an_answer(options, length):
    engine = make_engine(max_rows=9, max_branches=4)
    ((first, *more),) = engine.generate(
        [[3] * length], Options(max_tokens=0, logprobs=0, **options)
    )
    assert len(more) == options.get("n", 1) - 1
    assert first.tokens == [] and first.text == "" and first.reason == "length"
    assert len(first.scores.logprobs) == length
    assert_empty(engine)


def test_a_failed_pass_for_scores_ends_its_request(monkeypatch):
    def fail(*_):
        raise MemoryError

    engine, heard = make_engine(), []
    monkeypatch.setattr(engine_module.scores, "of", fail)
    running = Background(engine)
    running.start()
    running.submit([1, 2], Options(max_tokens=1, logprobs=0), lambda *said: heard.append(said[3]))
    wait_until(lambda: "error" in heard)
    running.stop()
    assert_empty(engine)


def test_an_error_anywhere_in_a_step_ends_all_requests():
    """At each 131st call within the server and its pages, which leaves them half changed."""
    engine, reasons, left = make_engine(page_size=4, num_pages=24, host_pages=5), {}, 0
    options = GREEDY, Options(max_tokens=4, n=3), Options(max_tokens=3, beams=3, n=2)

    def hear(request, index, text, reason):
        reasons[request, index] = reason

    def fail(frame, event, arg):
        nonlocal left
        code = frame.f_code
        if event == "call" and ("server" in code.co_filename or "kv_cache" in code.co_filename):
            left -= code.co_name != "_tell"  # nobody can be told that telling failed
            if left == 0:
                raise MemoryError

    for n in itertools.count(1):
        reasons.clear()
        for prompt, option in zip(PROMPTS[:3], options, strict=True):
            engine.submit(prompt, option, hear)
        left = 131 * n
        try:
            sys.setprofile(fail)
            while engine.busy:
                engine.step()
            break
        except MemoryError:
            engine.fail()
        finally:
            sys.setprofile(None)
        assert len(reasons) == 6 and None not in reasons.values() and not engine.busy
        assert_empty(engine)
    assert n > 9


def test_a_failed_step_ends_all_requests_and_leaves_empty_pages():
    engine = make_engine()
    told = []
    for prompt in PROMPTS:
        engine.submit(prompt, GREEDY, lambda *event: told.append(event[3]))
    for _ in range(3):
        engine.step()
    engine.fail()
    assert told.count("error") == len(PROMPTS) and not engine.busy
    assert_empty(engine)
    assert len(engine.generate([PROMPTS[0]], GREEDY)[0][0].tokens) == NEW


def test_after_a_failed_step_there_are_never_two_caches(monkeypatch):
    """A GPU that the caches fill has no memory for others beside them."""
    engine, failed, alive = make_engine(), threading.Event(), []
    kept, make = weakref.ref(engine.model.k_caches), engine_module.PagedModel

    def fail(*given):
        raise RuntimeError("the model failed")

    class Model(make):
        def __init__(self, *args, **options):
            alive.append(kept() is not None)
            super().__init__(*args, **options)
            failed.set()

    monkeypatch.setattr(engine_module, "PagedModel", Model)
    monkeypatch.setattr(make, "move", fail)
    monkeypatch.setattr(background_module.log, "exception", lambda said: None)  # pytest keeps it
    engine.model.graphs = SimpleNamespace(paged=engine.model)  # a circle, as on a GPU
    background = Background(engine)
    background.start()
    background.submit(PROMPTS[0], GREEDY, None)
    assert failed.wait(60)
    background.stop()
    assert alive == [False]


def test_an_engine_that_cannot_begin_again_refuses_requests(monkeypatch):
    engine, heard = make_engine(), []
    background = Background(engine)

    def submit():
        background.submit(PROMPTS[0], GREEDY, lambda *said: heard.append(said[3]))

    def fail():
        submit()  # at the last moment
        return 1 / 0

    monkeypatch.setattr(engine, "step", lambda: 1 / 0)
    monkeypatch.setattr(engine, "_begin", fail)
    with monkeypatch.context() as quiet:
        quiet.setattr(threading, "excepthook", lambda error: None)
        background.start()
        submit()
        background._thread.join(60)
    assert heard == ["error", "cancelled"]
    with pytest.raises(Stopping, match="the server is stopping"):
        background.submit(PROMPTS[0], GREEDY, None)


@pytest.mark.parametrize(
    "sizes, captured",
    [
        ({}, [16, 8, 8, 4, 2]),  # 9 rows, then 1 + 2 + 2 and so on
        ({"max_rows": 5, "max_branches": 4}, None),  # prompts in chunks
        ({"page_size": 4, "num_pages": 9}, None),  # requests are recomputed
        ({"drafter": ModelDrafter(WEIGHTS, CONFIG)}, None),  # chains of guesses
        ({"topk_pages": 1, "page_size": 2}, [8, 8, 4, 2]),  # 1 + 2 + 2 answers; no prompts
    ],
    ids=["whole prompts", "chunks", "few pages", "guesses", "few pages of each answer"],
)
def test_the_work_of_a_graph_equals_that_of_a_step(sizes, captured):
    """All of `DecodeGraphs` except the capture, on NumPy arrays: padding, columns and prompts."""

    class OnCpu:
        """The functions of CuPy that it uses."""

        class cuda:
            MemoryPool = object

        ascontiguousarray = staticmethod(np.ascontiguousarray)

    engine = make_engine(**sizes)
    paged, run, sizes = engine.model, engine.model.run, []
    paged.xp = OnCpu
    graphs = DecodeGraphs(paged, 64)
    paged.xp = np

    def both(plan, temperatures, number):
        if not graphs.suits(plan):
            return run(plan, temperatures, number)
        before = paged.k_caches.copy(), paged.v_caches.copy()
        paged.move(plan)
        paged.xp, inputs = OnCpu, graphs._numbers(plan, temperatures)
        got = choose.on_host(graphs._decode(inputs, number))
        paged.xp, written = np, paged.k_caches.copy()
        paged.k_caches[:], paged.v_caches[:] = before
        want = run(plan, temperatures, number)
        np.testing.assert_allclose(written, paged.k_caches, rtol=1e-2, atol=1e-4)
        if want[0] is not None:
            np.testing.assert_allclose(got[0][plan.choosing()], want[0], rtol=1e-2, atol=1e-4)
        sizes.append(len(inputs))
        return want

    paged.run = both
    options = Options(max_tokens=3), Options(max_tokens=5, n=2), Options(max_tokens=4, beams=2)
    engine.generate([[1, 2, 3], [4], [5, 6, 7, 8, 9]], options)
    assert sizes == captured or (captured is None and len(sizes) == engine.steps)
    assert_empty(engine)


@pytest.mark.parametrize("limit, suits", [(decode_graphs.LARGEST_READ, True), (1, False)])
def test_a_prompt_whose_rows_would_read_too_much_has_no_graph(monkeypatch, limit, suits):
    engine = make_engine()
    engine.submit(list(range(20)), Options(max_tokens=2))
    engine.model.xp = SimpleNamespace(cuda=SimpleNamespace(MemoryPool=object))
    monkeypatch.setattr(decode_graphs, "LARGEST_READ", limit)
    assert DecodeGraphs(engine.model, 4).suits(engine.schedule.step()) == suits


@pytest.mark.parametrize(
    "error, words, call",
    [
        (ValueError, "prompt must have at least one token", lambda e: e.submit([])),
        (ValueError, r"prompt\[1\] must be from 0 to 52, got 54", lambda e: e.submit([1, 54])),
        (TypeError, "prompt: tokens must be a sequence", lambda e: e.submit([1.5])),
        (ValueError, "at most 128 tokens together", lambda e: e.submit([1] * 120)),
        (ValueError, "must fit into the 6 pages", lambda e: e.submit([1] * 90)),
        (ValueError, "n and beams must be at most 4", lambda e: e.submit([1], Options(n=5))),
        (ValueError, "temperature must be from 0 to 2", lambda e: Options(temperature=np.nan)),
        (ValueError, "top_k must be at most 32", lambda e: Options(top_k=33)),
        (TypeError, "stop must be a tuple of strings", lambda e: Options(stop="abc")),
        (
            ValueError,
            "stop must be empty in a beam search",
            lambda e: Options(beams=2, stop=("a",)),
        ),
        (ValueError, "max_rows must be more than max_branches", lambda e: make_engine(max_rows=64)),
        (ValueError, "max_waiting must be at least 1", lambda e: make_engine(max_waiting=0)),
        (ValueError, "host_pages must be at least 0", lambda e: make_engine(host_pages=-1)),
        (ValueError, 'kv_dtype must be "auto" or "fp8", got', lambda e: make_engine(kv_dtype="f")),
        (ValueError, "topk_pages must be at least 0", lambda e: make_engine(topk_pages=-1)),
        (
            ValueError,
            'topk_pages must be 0 unless kv_dtype is "auto", got 4',
            lambda e: make_engine(topk_pages=4, kv_dtype="fp8"),
        ),
        (
            ValueError,
            "topk_pages must be 0 unless drafter is none, got 4",
            lambda e: make_engine(topk_pages=4, drafter=NGramDrafter()),
        ),
    ],
)
def test_bad_arguments_are_refused_by_name(error, words, call):
    engine = make_engine(num_pages=6, max_branches=4)
    with pytest.raises(error, match=words):
        call(engine)
    assert_empty(engine)
