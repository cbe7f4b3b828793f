"""Trees of guesses: exact rules, and the same answers as without guesses, in fewer steps."""

import itertools
import math

import numpy as np
import pytest
from serving_models import (
    CHARACTERS,
    CONFIG,
    WEIGHTS,
    Ledger,
    assert_empty,
    make_engine,
    next_tokens,
    submit_or_cancel,
)
from test_serving import GREEDY, NEW, PROMPTS, WAYS, tokens_of

from fa_numba import paged_attn_decode
from fa_numba.language_model import model
from fa_numba.language_model.generate import draw_one
from fa_numba.language_model.server import Engine, Options, draft_tree
from fa_numba.language_model.server.draft_tree import Ask, DraftTree, keep_child
from fa_numba.language_model.server.model_drafter import ModelDrafter
from fa_numba.language_model.server.ngram_drafter import NGramDrafter
from fa_numba.language_model.server.request import Branch

TREE = DraftTree([5, 6, 7, 8, 9, 5], [0, 0, 1, 1, 2, 4])  # 5 and 6; 7 and 8 after 5; ...


def test_a_tree_knows_its_words_and_its_depths():
    assert TREE.depths.tolist() == [0, 1, 1, 2, 2, 2, 3]
    words = [0b1, 0b11, 0b101, 0b1011, 0b10011, 0b100101, 0b1010011]
    assert TREE.words.tolist() == words and not TREE.is_chain
    assert DraftTree().words.tolist() == [1] and DraftTree().is_chain
    chain = DraftTree(range(63), range(63))
    assert chain.is_chain and chain.words[-1] == 2**64 - 1
    for tokens, parents, words in [
        ([1] * 64, [0] * 64, "at most 63, got 64"),
        ([1, 2], [0, 2], r"parents\[1\] must be from 0 to 1, an earlier node, got 2"),
        ([1], [], "must be as many"),
    ]:
        with pytest.raises(ValueError, match=words):
            DraftTree(tokens, parents)


@pytest.mark.parametrize(
    "following, nodes, token",
    [
        ([4, 0, 0, 0, 0, 0, 0], [], 4),
        ([6, 0, 9, 0, 0, 3, 0], [2, 5], 3),
        ([5, 8, 0, 0, 5, 0, 2], [1, 4, 6], 2),
        ([5, 9, 9, 9, 9, 9, 9], [1], 9),
    ],
)
def test_the_walk_goes_to_the_children_that_the_model_writes(following, nodes, token):
    assert TREE.walk(following) == (nodes, token)


class Chance:
    """A random number that decides as it is told, and keeps the probability of that."""

    def __init__(self, decisions):
        self.decisions, self.probability = list(decisions), 1.0

    def __call__(self):
        return self

    def __mul__(self, q):
        self.q = q
        return self

    def __lt__(self, p):
        kept = self.decisions.pop(0)
        chance = min(1.0, p / self.q)
        self.probability *= chance if kept else 1 - chance
        return kept


@pytest.mark.parametrize("number", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_rule_for_several_guesses_leaves_the_distribution_as_it_is(number, seed):
    """By enumeration of all guesses and decisions; some tokens have p = 0, or q = 0."""
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(5, 0.7), 2)
    p[seed], q[(seed + 2) % 5] = 0, 0
    p, q = p / p.sum(), q / q.sum()
    q = q if seed < 3 else p
    got = np.zeros(5)
    for children in itertools.permutations(np.flatnonzero(q), number):
        drawn, left = 1.0, 1.0
        for child in children:
            drawn, left = drawn * q[child] / left, left - q[child]
        for refused in range(number + 1):  # then one is kept, or none is left
            chance = Chance([False] * refused + [True])
            kept, rest = keep_child(p, q, children, chance)
            if kept is None:
                got += drawn * chance.probability * rest
            else:
                got[children[kept]] += drawn * chance.probability
    np.testing.assert_allclose(got, p, rtol=0, atol=1e-14)


def chi_squared_is_more(found, expected):
    """The probability that χ² is larger than found, for counts of cells (Wilson, Hilferty)."""
    cells = expected >= 5
    degrees = cells.sum() - 1
    chi2 = ((found - expected)[cells] ** 2 / expected[cells]).sum() / degrees
    z = (chi2 ** (1 / 3) - 1 + 2 / (9 * degrees)) / math.sqrt(2 / (9 * degrees))
    return 0.5 * math.erfc(z / math.sqrt(2))


@pytest.mark.parametrize("samples, honest", [(40_000, True), (5_000, False)])
def test_two_tokens_of_a_tree_have_the_model_s_distribution(samples, honest):
    """χ² at a significance of 0.001. A tree that says a wrong q is found out."""
    rng = np.random.default_rng(7)
    first, q = rng.dirichlet(np.full(4, 0.8), 2)
    second, q2 = (rng.dirichlet(np.full(4, 0.8), 4) for _ in range(2))
    uniform = iter(rng.random(20 * samples).tolist()).__next__
    counts, said = np.zeros((4, 4)), q if honest else np.full(4, 0.25)

    def children_of(q):
        q, children = q.tolist(), []
        for _ in range(2):
            left = uniform() * (sum(q) - 1e-9)
            child = next(i for i in range(4) if (left := left - q[i]) < 0)
            q[child] = 0
            children.append(child)
        return children

    for _ in range(samples):
        tokens = children_of(q)
        known = {0: said, 1: q2[tokens[0]]}
        tree = DraftTree(tokens + children_of(known[1]), [0, 0, 1, 1], known)
        nodes, token = tree.walk_by_chance(
            lambda node, t=tokens: second[t[node - 1]] if node in (1, 2) else first, uniform
        )
        written = [tree.tokens[node - 1] for node in nodes[:1]] or [token]
        if len(nodes) == 2:
            written.append(tree.tokens[nodes[1] - 1])
        else:  # the next token is the model's, whoever draws it
            written.append(token if nodes else draw_one(second[written[0]], uniform()))
        counts[tuple(written)] += 1
    more = chi_squared_is_more(counts, samples * first[:, None] * second)
    assert (more > 0.001) == honest, f"the probability of a χ² so large is {more}"


def test_several_trees_in_one_call_see_their_own_nodes():
    """The mask by words, in pages, for trees of different sizes: against each path alone."""
    rng, size, heads, d = np.random.default_rng(0), 4, 2, 16
    trees = [TREE, DraftTree([1], [0]), DraftTree(range(63), [*range(40), *range(23)])]
    starts, rows = [9, 0, 30], 12  # the last nodes
    lengths = np.array([s + len(t) for s, t in zip(starts, trees, strict=True)], np.int32)
    table = rng.permutation(80)[:72].reshape(3, 24).astype(np.int32)
    k, v = np.full((2, 80, size, heads, d), np.nan, np.float32)
    q = rng.standard_normal((3, rows, heads, d), np.float32)
    for b, n in enumerate(lengths):
        at = np.arange(n)
        for cache in (k, v):
            cache[table[b, at // size], at % size] = rng.standard_normal((n, heads, d))
    args = draft_tree.mask_args_of(trees, starts)
    out, _ = paged_attn_decode(q, k, v, table, lengths, mask=draft_tree.sees, mask_args=args)
    for b, (tree, start) in enumerate(zip(trees, starts, strict=True)):
        for node in range(max(0, len(tree) - rows), len(tree)):
            word = int(tree.words[node])
            seen = [*range(start), *(start + u for u in range(64) if word >> u & 1)]
            at = table[b, np.array(seen) // size], np.array(seen) % size
            keys, values = k[at], v[at]
            row = rows - len(tree) + node
            s = np.einsum("hd,nhd->hn", q[b, row].astype(float), keys) / math.sqrt(d)
            weight = np.exp(s - s.max(axis=1, keepdims=True))
            want = np.einsum("hn,nhd->hd", weight / weight.sum(axis=1, keepdims=True), values)
            np.testing.assert_allclose(out[b, row], want, atol=1e-5)


class Forks:
    """A drafter that knows what the model writes, and hides it among other guesses.

    `known(tokens, n)` are the next n tokens. Some of the first ones are anywhere in the tree, so
    that guesses that are kept lie apart.
    """

    tokens = 9

    def __init__(self, known, vocabulary=CONFIG.vocabulary):
        self.known, self.vocabulary, self.rng = known, vocabulary, np.random.default_rng(0)

    def draft(self, asks):
        return [self._tree(ask) for ask in asks]

    def _tree(self, ask):
        rng, right, depths, tokens, parents = self.rng, 0, [0], [], []
        following = self.known(ask.branch.tokens, ask.depth)[: rng.integers(6)]
        for node in range(1, 1 + rng.integers(ask.nodes + 1)):
            if following and rng.random() < 0.5:
                parent, token, right = right, following.pop(0), node
            else:
                parent, token = int(rng.integers(node)), int(rng.integers(self.vocabulary))
                parent = 0 if depths[parent] == ask.depth else parent
            depths.append(depths[parent] + 1)
            tokens.append(token)
            parents.append(parent)
        return DraftTree(tokens, parents)


def known_from(replies):
    """`known` of `Forks`, from the answers to PROMPTS."""
    whole = [
        prompt + answer.tokens
        for prompt, answers in zip(PROMPTS, replies, strict=True)
        for answer in answers
    ]

    def known(tokens, n):
        found = (text for text in whole if text[: len(tokens)] == tokens)
        return next(found)[len(tokens) : len(tokens) + n]

    return known


SMALL = model.Config(CONFIG.vocabulary, layers=1, heads=2, kv_heads=1, head_dim=16, context=80)


def drafter_of(name, replies):
    return {
        "forks": lambda: Forks(known_from(replies)),
        "ngram": lambda: NGramDrafter(width=2),
        "chain": NGramDrafter,
        "small model": lambda: ModelDrafter(
            model.init_weights(SMALL, seed=3), SMALL, tokens=6, width=2, max_branches=6
        ),
        "itself": lambda: ModelDrafter(WEIGHTS, CONFIG),
    }[name]()


@pytest.fixture(scope="module")
def undrafted():
    """The answers without guesses, by options and dtype of the pages."""
    found = {}

    def answers(options, kv_dtype="auto"):
        key = options, kv_dtype
        if key not in found:
            found[key] = make_engine(kv_dtype=kv_dtype).generate(PROMPTS, options)
        return found[key]

    return answers


@pytest.mark.parametrize(
    "way, kv_dtype, drafter",
    [
        ("pages of 16", "auto", "itself"),
        ("pages of 16", "auto", "ngram"),
        ("pages of 16", "fp8", "chain"),
        ("pages of 1", "auto", "forks"),
        ("pages of 5", "fp8", "forks"),
        ("no sharing", "auto", "small model"),
        ("chunks", "auto", "forks"),
        ("recomputed", "auto", "forks"),
        ("recomputed", "fp8", "small model"),
        ("swapped", "fp8", "forks"),
        ("swapped, little room", "auto", "ngram"),
    ],
)
def test_greedy_text_is_that_without_guesses(way, kv_dtype, drafter, undrafted):
    want = undrafted(GREEDY, kv_dtype)
    engine = make_engine(drafter=drafter_of(drafter, want), kv_dtype=kv_dtype, **WAYS[way])
    assert tokens_of(engine.generate(PROMPTS, GREEDY)) == tokens_of(want)
    assert engine.kept > 15 and engine.guesses >= engine.kept and engine.trees
    assert engine.kept == engine.guesses or drafter != "itself"
    assert bool(engine.schedule.preemptions) == ("recomputed" in way or "swapped" in way)
    assert_empty(engine)


@pytest.mark.parametrize("drafter", ["forks", "ngram"])
def test_guesses_that_are_not_drawn_leave_samples_as_they_are(drafter, undrafted):
    """Each token is drawn first, with the number of its position, and then compared."""
    options = Options(max_tokens=NEW, temperature=0.6, top_k=9, top_p=0.9, n=2, seed=4)
    want = undrafted(options)
    engine = make_engine(drafter=drafter_of(drafter, want), page_size=8)
    pieces = {}

    def listener(request, index, text, reason):
        pieces[request, index] = pieces.get((request, index), "") + text

    requests = [engine.submit(prompt, options, listener) for prompt in PROMPTS]
    while engine.busy:
        engine.step()
    assert tokens_of(r.answers for r in requests) == tokens_of(want) and engine.kept
    assert all(a.text == pieces[r, a.index] for r in requests for a in r.answers)
    assert_empty(engine)


def test_an_answer_ends_at_a_stop_string_though_more_guesses_are_kept(undrafted):
    want = undrafted(GREEDY)
    text = want[2][0].text
    options = Options(max_tokens=NEW, temperature=0, stop=(text[9:12],))
    engine = make_engine(drafter=drafter_of("itself", want))
    ((answer,),) = engine.generate([PROMPTS[2]], options)
    assert (answer.text, answer.reason) == (text[: text.index(text[9:12])], "stop")
    assert_empty(engine)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_guesses_end_with_the_context(page_size):
    """A tree has more nodes than there are positions left."""
    prompt = np.random.default_rng(3).integers(0, CONFIG.vocabulary, 100).tolist()
    options = Options(max_tokens=CONFIG.context - 100, temperature=0)
    ((want,),) = make_engine().generate([prompt], options)

    class Wide:
        tokens = 20

        def draft(self, asks):
            right = [want.tokens[len(ask.branch.tokens) - 100] for ask in asks]
            wide = [
                [(t + i) % 50 for i in range(ask.nodes)] for t, ask in zip(right, asks, strict=True)
            ]
            return [DraftTree(tokens[::-1], [0] * len(tokens)) for tokens in wide]

    engine = make_engine(drafter=Wide(), page_size=page_size, num_pages=160)
    assert engine.generate([prompt], options) == [[want]] and engine.kept
    assert_empty(engine)


def test_beams_and_samples_with_guesses_share_steps():
    options = [Options(max_tokens=9, n=2), Options(max_tokens=9, beams=3, n=2), GREEDY]
    want = make_engine().generate(PROMPTS[4:7], options)
    engine = make_engine(drafter=NGramDrafter())
    assert engine.generate(PROMPTS[4:7], options) == want and engine.kept
    assert_empty(engine)


def test_guesses_that_are_drawn_leave_the_distribution_of_samples():
    """The first two tokens of 4000 answers, by χ² at 0.001: the large model's by whole passes."""
    config = model.Config(5, layers=1, heads=2, kv_heads=1, head_dim=16, context=32)
    weights = {name: 12 * x for name, x in model.init_weights(config, seed=2).items()}
    small = {name: 12 * x for name, x in model.init_weights(config, seed=5).items()}
    drafter = ModelDrafter(small, config, tokens=4, width=2)
    engine = Engine(weights, config, drafter=drafter, max_branches=64)
    prompt, rng = [1, 2, 3], np.random.default_rng(0)
    asked = [Options(max_tokens=4, n=25, seed=int(s)) for s in rng.integers(0, 2**40, 160)]
    answers = [a.tokens for reply in engine.generate([prompt] * 160, asked) for a in reply]
    counts = np.zeros((5, 5))
    np.add.at(counts, tuple(np.array(answers)[:, 1:3].T), 1)

    def after(tokens):
        x = model.forward(weights, config, np.array([tokens], np.int32))[0, -1].astype(float)
        return np.exp(x) / np.exp(x).sum()

    expected = np.zeros((5, 5))
    for first, p in enumerate(after(prompt)):
        for second, p2 in enumerate(after([*prompt, first])):
            expected[second] += 4000 * p * p2 * after([*prompt, first, second])
    assert engine.kept > 500 and chi_squared_is_more(counts, expected) > 0.001


def test_a_small_model_guesses_what_it_writes_itself():
    """Its cache follows the branch, whichever guesses were kept, and has room for two."""
    weights = {name: 8 * x for name, x in model.init_weights(SMALL, seed=3).items()}
    drafter, rng = (
        ModelDrafter(weights, SMALL, tokens=6, width=2, max_branches=2),
        (np.random.default_rng(0)),
    )
    branches = [Branch(0, rng.integers(0, 50, n).tolist()) for n in (1, 9, 30, 76)]
    for turn in range(12):
        asked = [branches[i] for i in rng.permutation(4)[: 1 + turn % 3]]
        trees = drafter.draft([Ask(branch, GREEDY, 6, 3) for branch in asked])
        going = [branch for branch in asked if len(branch.tokens) <= SMALL.context][:2]
        for branch, tree in zip(asked, trees, strict=True):
            if branch not in going:
                assert len(tree) == 1
                continue
            tokens = list(branch.tokens)
            for guesses in zip(tree.tokens[::2], tree.tokens[1::2], strict=True):
                x = model.forward(weights, SMALL, np.array([tokens], np.int32))[0, -1]
                assert list(guesses) == np.argsort(-x)[:2].tolist()
                tokens.append(guesses[0])
            assert len(tokens) == min(len(branch.tokens) + 3, SMALL.context + 1)
            kept = rng.integers(3)
            branch.tokens += [*tree.tokens[: 2 * kept : 2], int(rng.integers(50))]


@pytest.mark.parametrize(
    "tokens, nodes, want",
    [
        ("abcd1abcd2abcd", 4, (["2", "1", "a", "a"], [0, 0, 1, 2])),  # the latest first
        ("abcd1abcd1abcd", 4, (["1", "a", "b", "c"], [0, 1, 2, 3])),  # alike: one path
        ("xyzxyz", 9, (["x", "y", "z", "x"], [0, 1, 2, 3])),  # goes on with its own
        ("abcabd", 5, ([], [])),  # nothing was there before
    ],
)
def test_tokens_are_looked_up_in_the_sequence(tokens, nodes, want):
    drafter, branch = NGramDrafter(width=2), Branch(0, [ord(c) for c in tokens])
    (tree,) = drafter.draft([Ask(branch, GREEDY, nodes, 9)])
    assert ([chr(t) for t in tree.tokens], tree.parents) == want


def test_guesses_are_fewer_where_they_were_wrong():
    """Twice as many as were right; after a miss one, and for some steps none."""
    drafter, branch, made = NGramDrafter(), Branch(0, [1, 2, 3] * 3), []
    for new in ([1, 2, 3, 1], [2, 3, 1, 2, 3, 1, 2, 3], [9], [1], [2], [3], *([1, 2, 3] * 6)):
        (tree,) = drafter.draft([Ask(branch, GREEDY, 8, 9)])
        made.append(len(tree) - 1)
        branch.tokens += new if isinstance(new, list) else [new]
    assert made[:6] == [4, 8, 8, 0, 0, 0]  # 9 was not foretold: two steps without a guess
    assert made[6:11] == [1, 0, 0, 0, 0], "9 came last after 1 2 3, and was wrong: four steps"
    assert made[-1] > 1, "each step adds a token, which was right"


def test_two_thousand_random_steps_with_guesses_leave_no_page_behind():
    """As without guesses in test_serving: pages to the token, preemptions, cancelled requests."""
    rng = np.random.default_rng(1)

    def known(tokens, n):
        tokens, start = list(tokens), len(tokens)
        for _ in range(n):
            tokens.append(next_tokens(tokens)[int(rng.random() < 0.05)])
        return tokens[start:]

    sizes = {"num_pages": 14, "page_size": 4, "host_pages": 8, "max_rows": 40, "max_branches": 8}
    engine = Engine(WEIGHTS, CONFIG, drafter=Forks(known, 27), **sizes)
    engine.model = ledger = Ledger(engine)
    live, done, stems = [], [], [rng.integers(0, 9, 16).tolist() for _ in range(4)]
    for _ in range(2000):
        submit_or_cancel(engine, rng, live, stems, most=9, chance=0.5, longest=20)
        engine.step()
        pool = engine.pool
        held = {page for seq in pool.sequences for page in pool.pages(seq)}
        assert len(held) + pool.num_free == pool.num_pages
        used = [len(pool.pages(seq)) for seq in pool.sequences]
        assert used == [-(-pool.length(seq) // 4) for seq in pool.sequences], "a guess has a page"
        done += [request for request in live if request.ended is not None]
        live = [request for request in live if request.ended is None]
    schedule = engine.schedule
    counts = schedule.preemptions, schedule.swapped, schedule.recomputed, engine.cancelled
    assert min(counts) > 20 and engine.kept > 300 and ledger.moved > 100 and ledger.copied > 20
    assert len(done) > 200
    for request in live:
        engine.cancel(request)
    assert_empty(engine)
    for request in done:
        if request.options.temperature == 0 and request.answers[0].reason == "length":
            tokens = list(request.prompt)
            for _ in range(request.options.max_tokens):
                tokens.append(int(next_tokens(tokens)[0]))
            assert request.answers[0].tokens == tokens[len(request.prompt) :]


@pytest.mark.parametrize(
    "words, call",
    [
        ("tokens must be at most 63, got 64", lambda: NGramDrafter(64)),
        ("tokens must be at least 1", lambda: ModelDrafter(WEIGHTS, CONFIG, tokens=0)),
        ("width must be at least 1, got 0", lambda: NGramDrafter(width=0)),
        (
            "the draft must have the vocabulary of the model, 54 tokens, got 5",
            lambda: make_engine(
                drafter=ModelDrafter(
                    model.init_weights(model.Config(5, layers=1)), model.Config(5, layers=1)
                )
            ),
        ),
    ],
)
def test_bad_drafters_are_refused_by_name(words, call):
    with pytest.raises(ValueError, match=words.replace("54", str(len(CHARACTERS)))):
        call()
