"""Continuous batching: each step gives every answer that is under way its next token.

Requests join and leave between any two steps, so that no answer waits for the longest of a batch.

With a drafter, a step verifies guesses of the tokens that follow, and an answer gets as many tokens
as were guessed, and one more. Guesses that were not drawn leave each token as it is without them:
the token is drawn first, with the same random number, and then compared.

Paper: Yu et al. 2022, Orca, OSDI, section 4.1, "iteration-level scheduling".
"""

import functools
import time
from collections import deque

import numpy as np

from fa_numba import checks
from fa_numba.kv_cache.page_pool import PagePool
from fa_numba.kv_cache.sampling import beams, samples
from fa_numba.language_model.server import choose, scores
from fa_numba.language_model.server.chunked_scheduler import ChunkedScheduler
from fa_numba.language_model.server.options import Options
from fa_numba.language_model.server.paged_model import PagedModel
from fa_numba.language_model.server.request import Answer, Branch, Request
from fa_numba.language_model.server.text_stream import TextStream

SECONDS_OF_RATE = 2.0  # tokens per second are averaged over so long


class Overloaded(RuntimeError):
    """The queue is full; nothing has been changed."""


class Engine:
    """A model that answers many requests at a time.

    Parameters
    ----------
    weights, config
        Of the model; NumPy or CuPy arrays.
    num_pages : int, default=256
    page_size : int, default=16
        Tokens of a page.
    host_pages : int, default=0
        Pages in host memory, to swap preempted requests to. 0: they are recomputed.
    share_prefixes : bool, default=True
        Let prompts that begin alike share pages.
    max_rows, max_branches, static
        Of `ChunkedScheduler`.
    max_waiting : int, default=2048
        Requests in the queue; more are refused.
    decode : callable, default=None
        ``decode(tokens)`` is the text of tokens; without it answers have no text.
    drafter : object, default=None
        `NGramDrafter` or `ModelDrafter`, or another one as `DraftTree` says.
    **model_options
        Of `PagedModel`.

    Attributes
    ----------
    schedule : ChunkedScheduler
    requests : dict
        Its keys are the requests that run or wait.
    steps, tokens_made : int
    trees, guesses, kept : int
        Trees of guesses that were verified, their guesses, and those that became tokens.

    Examples
    --------
    >>> from fa_numba.language_model.model import Config, init_weights
    >>> config = Config(vocabulary=10)
    >>> engine = Engine(init_weights(config), config)
    >>> answers = engine.generate([[1, 2, 3], [4]], Options(max_tokens=5, temperature=0))
    >>> [len(answer.tokens) for answer, in answers]
    [5, 5]
    """

    def __init__(
        self,
        weights,
        config,
        *,
        num_pages=256,
        page_size=16,
        host_pages=0,
        share_prefixes=True,
        max_rows=256,
        max_branches=64,
        max_waiting=2048,
        static=False,
        decode=None,
        drafter=None,
        **model_options,
    ):
        self.max_waiting = checks.check_number_of("max_waiting", max_waiting)
        if checks.check_number_of("host_pages", host_pages, at_least=0):
            checks.check_pool(host_pages, page_size, ("host_pages", "page_size"))
        of_pages = [model_options.get(name) for name in ("topk_pages", "kv_dtype")]
        checks.check_topk_pages(*of_pages, drafter)
        of_draft = getattr(drafter, "config", config)  # n-grams need none
        checks.check_draft_vocabulary(of_draft.vocabulary, config.vocabulary)
        self.decode, self.config, self.weights = decode, config, weights

        def begin():
            """The schedule and the caches, empty."""
            pool = PagePool(num_pages, page_size, share_prefixes=share_prefixes)
            host = (
                PagePool(host_pages, page_size, share_prefixes=share_prefixes)
                if host_pages
                else None
            )
            sizes = {"max_rows": max_rows, "max_branches": max_branches, "static": static}
            sizes |= {"max_length": config.context, "drafter": drafter}
            self.schedule = ChunkedScheduler(pool, host, **sizes)
            sizes = {"max_branches": max_branches, **model_options}
            self.model = PagedModel(weights, config, pool, host, **sizes)

        self._begin = begin
        begin()
        self.requests = {}
        self.steps = self.tokens_made = self.ended = self.cancelled = 0
        self.trees = self.guesses = self.kept = 0
        self._recent = deque()  # (time, tokens) of the last steps

    @property
    def pool(self) -> PagePool:
        """The pages."""
        return self.schedule.pool

    @property
    def busy(self) -> bool:
        """Whether a request runs or waits."""
        return bool(self.requests)

    def submit(self, prompt, options=None, listener=None) -> Request:
        """Add a request.

        Parameters
        ----------
        prompt : sequence of int
            At least one token.
        options : Options, default=Options()
        listener : callable, default=None
            As in `Request`.

        Raises
        ------
        TypeError, ValueError
            The prompt has tokens that the model does not know, or it is too long, with its answer,
            for the model or for the pages.
        Overloaded
            The queue is full.
        """
        request = self.make_request(prompt, options, listener)
        self.add(request)
        return request

    def make_request(self, prompt, options=None, listener=None, *, others=0) -> Request:
        """A request, checked; changes nothing, and may be called from any thread.

        `others` wait too, but not in the queue.
        """
        options = options or Options()
        limits = self.config.vocabulary, self.config.context
        prompt = checks.check_prompt(prompt, options.max_tokens, *limits)
        checks.check_number_of_answers(options, self.config.vocabulary)
        schedule = self.schedule
        checks.check_fits(
            len(prompt), options.drawn, options.width, schedule.pool, schedule.max_branches
        )
        if len(schedule.queue) + others >= self.max_waiting:
            raise Overloaded(f"{self.max_waiting} requests wait already: try again later")
        return Request(prompt, options, listener)

    def add(self, request):
        """Put a request of `make_request` into the queue."""
        self.schedule.queue.push(request)
        self.requests[request] = None

    def cancel(self, request, reason="cancelled"):
        """End a request now, and free its pages; an ended one is left alone."""
        if request.ended is not None:
            return
        self.schedule.remove(request)
        self.cancelled += 1
        branches, request.branches = request.branches, []
        for branch in branches:
            self._answer(request, branch, reason)
        self._end(request)

    def fail(self):
        """End all requests with the reason "error", and begin with empty pages.

        A step may fail anywhere, even where it ends an answer: pages and lists are half changed,
        and are not used again. Nothing is decoded, which may be the error.
        """
        for request in list(self.requests):
            self.cancelled += 1
            branches, request.branches = {b.index: b for b in request.branches}, []
            for i in set(range(request.options.n)) - {answer.index for answer in request.answers}:
                branch = branches.get(i) or Branch(i, list(request.prompt))
                branch.stream = None
                self._answer(request, branch, "error")
            self._end(request)
        # Its caches are freed before there are others; its graphs refer to it.
        self.model.graphs = None
        self.model = None
        self._begin()

    def step(self) -> int:
        """Compute one step; return the number of tokens that were added to answers."""
        plan = self.schedule.step()
        rows, chosen = plan.decoding.rows, [part for part in plan.parts if part.chosen]
        options = [part.request.options for part in chosen]
        divisors = [choose.divisor(p.request.options) for p in chosen for _ in range(p.choices)]
        temperatures = np.append(rows["temperature"], divisors)
        needed = [*map(choose.candidates_needed, options), rows["candidates"].max(initial=1)]
        number = min(int(max(needed)), self.config.vocabulary)
        candidates = self.model.run(plan, temperatures.astype(np.float32), number)
        self.steps += 1
        made = self._choose(chosen, *candidates) if len(temperatures) else 0
        now = time.perf_counter()
        self.tokens_made += made
        self._recent.append((now, made))
        while self._recent[0][0] < now - SECONDS_OF_RATE:
            self._recent.popleft()
        return made

    def generate(self, prompts, options=None) -> list:
        """Answer all prompts.

        Returns
        -------
        list of list of Answer
            The answers to each prompt.
        """
        several = isinstance(options, (list, tuple))
        options = options if several else [options] * len(prompts)
        requests = [self.submit(p, o) for p, o in zip(prompts, options, strict=True)]
        while any(request.ended is None for request in requests):
            self.step()
        return [request.answers for request in requests]

    def tokens_per_second(self) -> float:
        """Tokens added to answers, averaged over the last seconds."""
        now = time.perf_counter()
        made = sum(n for at, n in list(self._recent) if at >= now - SECONDS_OF_RATE)
        return made / SECONDS_OF_RATE

    def _choose(self, parts, probabilities, tokens):
        """Choose the next tokens of all that decode, and of each part; return how many were added.

        The rows of those that decode are first. Parts that draw their first token join them.
        """
        decoding = self.schedule.decoding
        row, beams, trees = len(decoding), {}, []  # beams: rows of each search
        made, sampled = 0, list(range(row))
        for part in parts:
            rows, row = slice(row, row + part.choices), row + part.choices
            if not part.request.started:
                self._fork(part.request)
            if part.request.options.beams:
                beams.setdefault(part.request, []).append(rows.start)
            elif part.draft:
                trees.append((part, rows))
            else:
                decoding.add(part.request)
                sampled += [rows.start] * len(part.request.branches)
        for request, mine in beams.items():
            self.schedule.queue.charge(request, len(mine))
            made += self._search(request, probabilities[mine], tokens[mine])
        if trees:
            made += self._follow(trees, probabilities, tokens)
        if parts:
            probabilities, tokens = probabilities[sampled], tokens[sampled]
        return made + self._sample(probabilities, tokens)

    def _fork(self, request):
        """The prompt has been read: one branch for each answer. Beams fork by their tokens."""
        request.started, request.first_token = True, time.perf_counter()
        options = request.options
        if options.beams:
            return
        seqs = samples(self.pool, request.branches[0].seq, options.n)
        request.branches = [Branch(i, list(request.prompt), seq) for i, seq in enumerate(seqs)]
        for branch in request.branches:
            branch.stream = self._stream(options)
            rng = np.random.default_rng([options.seed, branch.index])
            branch.uniform = rng.random(options.drawn).tolist()
            branch.rng = np.random.default_rng([options.seed, branch.index, 1])

    def _stream(self, options):
        return TextStream(self.decode, options.stop) if self.decode else None

    def _sample(self, probabilities, tokens):
        """Draw the next token of each branch that decodes, and end those that are complete."""
        decoding = self.schedule.decoding
        members, rows, ended = decoding.members, decoding.rows, {}
        if not members:
            return 0
        uniform = np.array([b.uniform[len(b.tokens) - len(r.prompt)] for r, b in members])
        drawn = choose.draw(probabilities, tokens, rows["top_k"], rows["top_p"], uniform)
        decoding.extend(drawn)
        for (request, branch), token in zip(members, drawn.tolist(), strict=True):
            if reason := self._add(request, branch, token):
                ended[branch] = request, reason
        made = len(members)
        if ended:
            decoding.remove(ended)
        self._end_branches(ended)
        return made

    def _follow(self, trees, probabilities, tokens):
        """Add to each branch the guesses that are kept, and the token after them.

        `trees` are (part, slice of its rows).
        """
        made, src, dst, ended = 0, [], [], {}
        rows = np.concatenate([np.arange(rows.start, rows.stop) for _, rows in trees])
        probabilities, tokens = probabilities[rows], tokens[rows]
        drawn = self._draw_nodes([part for part, _ in trees], probabilities, tokens)
        stop = 0
        for part, _ in trees:
            request, branch, tree = part.request, part.branch, part.draft
            start, stop = stop, stop + len(tree)
            if tree.q is None:
                nodes, token = tree.walk(drawn[start:stop].tolist())
            else:
                of_tree = request, probabilities[start:stop], tokens[start:stop]
                p = functools.partial(self._distribution, *of_tree)
                nodes, token = tree.walk_by_chance(p, branch.rng.random)
            kept = [tree.tokens[node - 1] for node in nodes]
            self.pool.settle(branch.seq, kept)
            moves = [(u, i) for i, u in enumerate(nodes, 1) if u != i]
            src += [part.slots[u] for u, _ in moves]
            dst += [part.slots[i] for _, i in moves]
            self.trees += len(tree) > 1
            self.guesses += len(tree) - 1
            self.kept += len(kept)
            for new in (*kept, token):
                made += 1
                if reason := self._add(request, branch, new):
                    ended[branch] = request, reason
                    break
        if src:
            self.model.keep(src, dst)
        self._end_branches(ended)
        return made

    def _draw_nodes(self, parts, probabilities, tokens):
        """The token after each node, drawn with the random number of its position."""
        uniform, top_k, top_p = [], [], []
        for part in parts:
            options, depths = part.request.options, part.draft.depths
            first = part.start + 1 - len(part.request.prompt)
            uniform += [part.branch.uniform[first + depth] for depth in depths.tolist()]
            top_k += [1 if options.temperature == 0 else options.top_k] * len(depths)
            top_p += [options.top_p] * len(depths)
        return choose.draw(probabilities, tokens, *map(np.array, (top_k, top_p, uniform)))

    def _distribution(self, request, probabilities, tokens, node):
        """That of the token after a node, from which `choose.draw` would draw."""
        both = probabilities[node], tokens[node]
        return choose.distribution(*both, request.options, self.config.vocabulary)

    def _add(self, request, branch, token):
        """Add a token to a branch and tell its text; the reason for its end, or None."""
        branch.tokens.append(token)
        self.schedule.queue.charge(request, 1)
        if self.decode and request.options.max_tokens:
            self._tell(request, branch.index, branch.stream.feed(token), None)
            if branch.stream.stopped:
                return "stop"
        complete = len(branch.tokens) == len(request.prompt) + request.options.drawn
        return "length" if complete else None

    def _end_branches(self, ended):
        """End branches: a dict of their requests and reasons."""
        for branch, (request, reason) in ended.items():
            found = self._scores(request, branch)  # may fail: the request still runs
            request.branches.remove(branch)
            self.schedule.free(branch)
            self._answer(request, branch, reason, found)
            if not request.branches:
                self.schedule.remove(request)
                self._end(request)

    def _search(self, request, probabilities, tokens):
        """Continue the best beams; at the end the n best are the answers."""
        branches, options = request.branches, request.options
        scores = np.array([branch.score for branch in branches])
        found = choose.best_beams(scores, probabilities, tokens, options.beams)
        parents, new_tokens, scores = found
        seqs = beams(self.pool, [branch.seq for branch in branches], parents)
        request.branches = [
            Branch(i, [*branches[parent].tokens, token], seq, score=score)
            for i, (parent, token, score, seq) in enumerate(
                zip(parents, new_tokens, scores, seqs, strict=True)
            )
        ]
        made = len(request.branches[0].tokens) - len(request.prompt)
        if made == options.drawn:
            best = [(b, self._scores(request, b)) for b in request.branches[: options.n]]
            self.schedule.remove(request)
            request.branches = []
            for branch, found in best:
                branch.stream = self._stream(options)
                if branch.stream:
                    for token in _answer_of(request, branch):
                        branch.stream.feed(token)
                    self._tell(request, branch.index, branch.stream.text, None)
                self._answer(request, branch, "length", found)
            self._end(request)
        return len(seqs)

    def _scores(self, request, branch):
        if request.options.logprobs is None:
            return None
        tokens = [*request.prompt, *_answer_of(request, branch)]
        return scores.of(self.weights, self.config, tokens, request.options.logprobs)

    def _answer(self, request, branch, reason, found=None):
        piece = branch.stream.finish() if branch.stream else ""
        text = branch.stream.text if branch.stream else ""
        tokens = _answer_of(request, branch)
        request.answers.append(Answer(branch.index, tokens, text, reason, found))
        self._tell(request, branch.index, piece, reason)

    def _end(self, request):
        request.ended = time.perf_counter()
        # A new list: another thread may read the old one, which is empty while it is sorted.
        request.answers = sorted(request.answers, key=lambda answer: answer.index)
        self.ended += 1
        del self.requests[request]

    def _tell(self, request, index, text, reason):
        if request.listener and (text or reason):
            request.listener(request, index, text, reason)


def _answer_of(request, branch):
    """The tokens of a branch's answer."""
    start = len(request.prompt)
    return branch.tokens[start : start + request.options.max_tokens]
