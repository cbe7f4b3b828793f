"""The work of a step: who runs, on which pages, and who is preempted when the pages run out.

A step has at most `max_rows` rows; a row is one token of one sequence. First each answer that is
under way gets its one row. The rows that are left go to prompts, oldest first, so that a long
prompt is read in chunks, and no answer waits for the whole of it.

    1   new tokens of the sequences that have pages; while there is no room for them, the request
        that came last is preempted
    2   without a preemption in 1: the next requests of the queue, while there is room for them
    3   first chunks of those that have no pages yet

With a drafter, answers have rows for guesses besides: a row for each node of their trees. Guesses
take no page that a token of an answer needs, and at most half of the rows left for prompts.

`kv_cache.Scheduler`, lesson 19's, is the same idea with whole prompts and one answer for each. Here
a request has branches, which run, are preempted and come back together. A preempted request is
swapped out if there is a host pool with room, else recomputed: its branches become prompts, one
after another, so that a later one finds the pages that they have in common.

No request waits for ever: the oldest one that runs is never preempted for another one, and
`Engine.submit` refuses one whose branches would not fit into an empty pool.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fa_numba import checks
from fa_numba.kv_cache.page_pool import OutOfPagesError, PagePool
from fa_numba.kv_cache.scheduler import copy_sequence, pairs_of
from fa_numba.language_model.server.decoding import Decoding
from fa_numba.language_model.server.draft_tree import NO_GUESS, Ask, DraftTree
from fa_numba.language_model.server.fair_queue import FairQueue
from fa_numba.language_model.server.request import Branch, Request
from fa_numba.tiling.block_sizes import ceil_div

MAX_GUESSES = 64  # of a step: with more answers than that, a step has rows enough without guesses


@dataclass
class Part:
    """The rows of one branch in a step: its tokens `start` to `stop` − 1."""

    request: Request
    branch: Branch
    start: int
    stop: int
    # Int32 array of shape (stop − start,); where their keys and values go; −1: they are in a shared
    # page already
    slots: np.ndarray | None = None
    chosen: bool = False  # the last row's logits choose the branch's next token
    # The rows are those of its nodes, from the branch's last token on; each chooses a token
    draft: DraftTree | None = None

    def tokens(self):
        """The token of each row: a list."""
        return self.branch.tokens[self.start : self.stop] + (self.draft or NO_GUESS).tokens

    def positions(self):
        """The position of each row in its sequence: an array."""
        if self.draft is None:
            return np.arange(self.start, self.stop)
        return self.start + self.draft.depths

    @property
    def choices(self) -> int:
        """Rows whose logits choose a token: so many of the last ones."""
        return len(self.draft) if self.draft else int(self.chosen)


class Plan(NamedTuple):
    """One step: changes of the caches, to apply in this order, and the rows to compute."""

    # Int32 arrays of shape (2, pages); src and dst: to the host's cache, from it, and within the
    # cache
    swap_out: np.ndarray
    swap_in: np.ndarray
    copies: np.ndarray
    decoding: Decoding  # branches whose last token is computed; their rows come first
    # The other rows. Parts of one row first, those of answers before those of prompts; then trees
    # of guesses.
    parts: list
    preempted: list

    def rows(self):
        """Tokens, positions and slots of all rows: three int32 arrays."""
        rows, parts = self.decoding.rows, self.parts
        tokens = [rows["token"], *(part.tokens() for part in parts)]
        positions = [rows["length"] - 1, *(part.positions() for part in parts)]
        slots = [rows["slot"], *(part.slots for part in parts)]
        return [np.concatenate(x).astype(np.int32) for x in (tokens, positions, slots)]

    def sizes(self):
        """The number of rows of each sequence: an array."""
        ones = np.ones(len(self.decoding), int)
        return np.append(ones, [part.stop - part.start for part in self.parts]).astype(int)

    def choosing(self):
        """The rows whose logits choose a token, as indices: an array."""
        end = len(self.decoding)
        rows = [np.arange(end)]
        for part in self.parts:
            end += part.stop - part.start
            rows.append(np.arange(end - part.choices, end))
        return np.concatenate(rows)


class ChunkedScheduler:
    """Requests, and the pages that they share.

    Parameters
    ----------
    pool : PagePool
    host_pool : PagePool, default=None
        To swap to; without it, and when it is full, preempted requests are recomputed.
    max_length : int
        Tokens of the longest sequence.
    max_rows : int, default=256
        Of a step. More: prompts are read faster, and the answers beside them come more slowly.
    max_branches : int, default=64
        That run at a time.
    static : bool, default=False
        Let requests in only when all that ran have ended, for comparison: static batching.
    drafter : object, default=None
        Guesses the next tokens of answers, as `DraftTree` says.

    Attributes
    ----------
    running : list of Request
        In the order in which they were let in.
    queue : FairQueue
    decoding : Decoding
        The branches of the running requests that draw a token in every step.
    recomputed, swapped : int
        Tokens computed again after a preemption; pages swapped out.
    preemptions, shared, read : int
        Requests preempted; tokens of prompts found in pages, and of all prompts that have begun.
    """

    def __init__(
        self,
        pool: PagePool,
        host_pool: PagePool | None = None,
        *,
        max_length,
        max_rows=256,
        max_branches=64,
        static=False,
        drafter=None,
    ):
        checks.check_pools(pool, host_pool)
        checks.check_step_sizes(max_rows, max_branches)
        self.pool, self.host_pool = pool, host_pool
        self.max_rows, self.max_branches, self.static = max_rows, max_branches, static
        self.max_length, self.drafter = max_length, drafter
        self.running, self.queue = [], FairQueue()
        self.decoding = Decoding(pool, ceil_div(max_length, pool.page_size))
        self.preemptions = self.recomputed = self.swapped = self.shared = self.read = 0

    def remove(self, request):
        """Take a request out, wherever it is, and free its pages."""
        if request in self.running:
            self.running.remove(request)
            self._leave(request)
        else:
            self.queue.remove(request)
        for branch in request.branches:
            self.free(branch)

    def _leave(self, request):
        if request in self.decoding.requests:
            self.decoding.remove(request.branches)

    def free(self, branch):
        """Free a branch's pages."""
        if branch.seq is not None:
            self.pool.free(branch.seq)
        if branch.seq_on_host is not None:
            self.host_pool.free(branch.seq_on_host)
        branch.seq = branch.seq_on_host = None

    def used_slots(self) -> int:
        """Slots of the pool that hold a token of a request which runs; a shared one counts once."""
        size, used = self.pool.page_size, {}
        for branch in (b for r in self.running for b in r.branches if b.seq is not None):
            length = self.pool.length(branch.seq)
            for i, page in enumerate(self.pool.pages(branch.seq)):
                used[page] = max(used.get(page, 0), min(size, length - i * size))
        return sum(used.values())

    def step(self) -> Plan:
        """Find pages for the rows of a step. Apply the plan before the next call."""
        preempted, swap_out, drafts = [], [], self._drafts()
        while True:
            parts, left = self._next_rows(drafts)
            try:
                copies = self._append(parts)
                break
            except OutOfPagesError:
                if drafts:
                    drafts = {}
                else:
                    swap_out += self._preempt(preempted)
        swap_in = [] if preempted else self._let_in()
        first, progress = self._first_chunks(left)
        parts += first
        some = len(self.decoding) or parts
        if not (some or progress or swap_in or preempted) and len(self.running) > 1:
            # Each waits for pages that another one has.
            swap_out += self._preempt(preempted)
        parts.sort(key=_order)  # stable
        self.recomputed += sum(
            p.stop - p.start - p.chosen for p in parts if p.request.started and p.draft is None
        )
        self.queue.forget_idle(self.running)
        swaps = pairs_of(swap_out), pairs_of(swap_in)
        return Plan(*swaps, copies, self.decoding, parts, preempted)

    def _append(self, parts):
        """Give the rows of a step their slots; return the (src, dst) to copy."""
        decoding, asks = self.decoding, self.decoding.asks()
        new = {seq: [token] for seq, token in decoding.new_tokens(asks)}
        at = len(new)
        new |= {p.branch.seq: p.branch.tokens[p.start : p.stop] for p in parts}
        guesses = {p.branch.seq: len(p.draft) - 1 for p in parts if p.draft}
        src, dst, slots = self.pool.append(new, guesses)
        self.pool.append_in_page(decoding.new_tokens(~asks))
        decoding.place(asks, slots[:at])
        for part in parts:
            part.slots = slots[at : at + part.stop - part.start]
            at += part.stop - part.start
        return np.array([src, dst])

    def _not_decoding(self):
        """The running requests whose prompts are read, and the beam searches."""
        return [request for request in self.running if request not in self.decoding.requests]

    def _drafts(self):
        """The trees of guesses of the branches that have some: a dict."""
        if self.drafter is None:
            return {}
        ready = list(self.decoding.members)
        for request in self._not_decoding():
            if not request.options.beams and self._is_ready(request):
                ready += [(request, branch) for branch in request.branches]
        left = min(MAX_GUESSES, (self.max_rows - len(ready)) // 2)
        most, asks = min(self.drafter.tokens, left // max(1, len(ready))), []
        if most <= 0:
            return {}
        for request, branch in ready:
            length, end = len(branch.tokens), len(request.prompt) + request.options.drawn
            nodes = min(most, self.max_length - length)  # block tables end there
            asks.append(Ask(branch, request.options, nodes, end - length - 1))
        asks = [ask for ask in asks if ask.nodes and ask.depth]
        trees = self.drafter.draft(asks) if asks else []
        return {ask.branch: tree for ask, tree in zip(asks, trees, strict=True) if len(tree) > 1}

    def _next_rows(self, drafts):
        """Parts of the branches that have pages, and the number of rows that are left.

        Branches with guesses, and the others of their requests, are parts and do not decode.
        """
        parts, reading = [], []
        if drafts:
            guessed = {r for r, branch in self.decoding.members if branch in drafts}
            self.decoding.remove({branch for r in guessed for branch in r.branches})
        for request in self._not_decoding():
            branches = request.branches
            if not self._is_ready(request):
                reading.append(request)
            elif request.options.beams:
                for branch in branches:
                    end = len(branch.tokens)
                    parts.append(Part(request, branch, end - 1, end, chosen=True))
            elif any(branch in drafts for branch in branches):
                for branch in branches:
                    draft, start = drafts.get(branch, NO_GUESS), len(branch.tokens) - 1
                    stop = start + len(draft)
                    parts.append(Part(request, branch, start, stop, chosen=True, draft=draft))
            else:
                self.decoding.add(request)
        left = self.max_rows - len(self.decoding) - sum(part.stop - part.start for part in parts)
        for request in reading:
            for branch in request.branches:
                if branch.seq is None or left <= 0:
                    break
                start, end = self.pool.length(branch.seq), _end_of_reading(request, branch)
                stop = min(end, start + left)
                if start < stop:
                    parts.append(_part(request, branch, start, stop))
                    left -= stop - start
                if stop < end:
                    break
        return parts, left

    def _is_ready(self, request):
        """Only the last token of each branch is not in the cache, and none is a prompt's first."""
        return request.started and all(
            b.seq is not None and self.pool.length(b.seq) == len(b.tokens) - 1
            for b in request.branches
        )

    def _let_in(self):
        """Let in the next requests while there is room; return the (src, dst) to swap in."""
        moves = []
        if not len(self.queue) or (self.static and self.running):
            return moves
        others, lengths = self._not_decoding(), self.decoding.rows["length"]
        branches = len(self.decoding) + sum(request.width for request in others)
        reserved = np.count_nonzero(lengths % self.pool.page_size == 0)  # pages are full
        reserved += sum(map(self._pages_to_come, others))
        while (request := self.queue.first()) is not None:
            branches += request.width
            if branches > self.max_branches:  # before tokens are hashed: the first may wait long
                break
            needed = sum(self.pool.pages_needed(self._to_cache(b)) for b in request.branches)
            if needed + reserved > self.pool.num_free:
                break
            self.queue.remove(request)
            self.running.append(request)
            if not request.preempted:
                self.queue.charge(request, len(request.prompt))
            for branch in request.branches:
                if branch.seq_on_host is not None:
                    branch.seq, pages = copy_sequence(self.host_pool, branch.seq_on_host, self.pool)
                    self.host_pool.free(branch.seq_on_host)
                    branch.seq_on_host = None
                    moves += pages
            reserved += self._pages_to_come(request)
        return moves

    def _to_cache(self, branch):
        """The tokens whose pages a branch takes, or soon will take, once it is let in."""
        if branch.seq_on_host is None:
            return branch.tokens
        return self.host_pool.tokens(branch.seq_on_host)

    def _pages_to_come(self, request):
        """Pages for all tokens that a request has now, and for the next one of each branch."""
        size, total = self.pool.page_size, 0
        for branch in request.branches:
            held = 0 if branch.seq is None else len(self.pool.pages(branch.seq))
            total += max(0, ceil_div(len(branch.tokens) + 1, size) - held)
        return total

    def _first_chunks(self, left):
        """Parts of branches that get their first pages now; and whether any got some."""
        parts, progress = [], False
        for request in self._not_decoding():
            for branch in request.branches:
                end = _end_of_reading(request, branch)
                if branch.seq is not None:
                    if self.pool.length(branch.seq) < end:
                        break  # the branches after it share its pages once they are full
                    continue
                if left <= 0:  # before tokens are hashed: many requests may wait here
                    return parts, progress
                shared = self.pool.shared_tokens(branch.tokens[:end])
                stop = min(end, shared + left)
                try:
                    branch.seq, writes = self.pool.allocate(branch.tokens[:stop])
                except OutOfPagesError:
                    break
                progress = True
                if request.shared is None:
                    request.shared = shared
                    self.shared += shared
                    self.read += end
                # The last token of a prompt is computed though it is shared: for its logits.
                start = min(shared, stop - 1) if stop == len(branch.tokens) else shared
                if start < stop:
                    part = _part(request, branch, start, stop)
                    part.slots = writes.slot_mapping[start:]
                    parts.append(part)
                    left -= stop - start
                if stop < end:
                    break
        return parts, progress

    def _preempt(self, preempted):
        """Preempt the request that was let in last; return the (src, dst) to swap out."""
        request = self.running.pop()
        self._leave(request)
        preempted.append(request)
        self.queue.push_preempted(request)
        self.preemptions += 1
        request.preempted += 1
        branches = [branch for branch in request.branches if branch.seq is not None]
        moves = []
        if self.host_pool is not None and len(branches) == len(request.branches):
            needed = sum(self.host_pool.pages_needed(self.pool.tokens(b.seq)) for b in branches)
            if needed <= self.host_pool.num_free:
                for branch in branches:
                    branch.seq_on_host, pages = copy_sequence(self.pool, branch.seq, self.host_pool)
                    moves += pages
        self.swapped += len(moves)
        for branch in branches:
            self.pool.free(branch.seq)
            branch.seq = None
        return moves


def _order(part):
    """Single rows first, those of answers before others; then guesses; then chunks, by length."""
    rows = part.stop - part.start
    return rows > 1, part.draft is None, rows if rows > 1 else not part.request.started


def _end_of_reading(request, branch):
    """Number of tokens to read as a prompt is.

    The last token of several branches is left for a step in which all of them are ready.
    """
    return len(branch.tokens) - (len(request.branches) > 1)


def _part(request, branch, start, stop):
    chosen = len(request.branches) == 1 and stop == len(branch.tokens)
    return Part(request, branch, start, stop, chosen=chosen)
