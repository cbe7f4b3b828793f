"""A request, and the branches of its answer."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from fa_numba.language_model.server.options import Options

_numbers = itertools.count()


class Answer(NamedTuple):
    """One answer to a request."""

    index: int  # which of the request's answers
    tokens: list  # without the prompt
    text: str  # up to the stop string, if one came
    reason: str  # "length", "stop", "cancelled" or "error"
    scores: object = None  # of the prompt and the answer, where `Options.logprobs` asks for them


@dataclass(eq=False)
class Branch:
    """One sequence of a request: a sample, or a beam."""

    index: int  # which answer it becomes
    tokens: list  # the prompt and the answer so far; the last one may not be in the cache yet
    seq: int | None = None  # its sequence in the pool
    seq_on_host: int | None = None  # or that in the host's pool
    score: float = 0.0  # of a beam: the log of its probability
    stream: object = None  # the text of its answer
    uniform: list = ()  # a random number from 0 to 1 for each token of its answer
    rng: object = None  # of further numbers, for guesses that are drawn


@dataclass(eq=False)
class Request:
    """A request and all that is known about it."""

    prompt: list
    options: Options
    # Callable or None; ``listener(request, index, text, reason)`` is called in the engine's thread
    # for each new piece of the text of answer `index`; `reason` is None until its end
    listener: Callable | None = None
    # The unfinished ones. They are preempted and come back together.
    branches: list = field(default_factory=list)
    answers: list = field(default_factory=list)  # the finished ones
    started: bool = False  # the prompt has been read, and the answer branches have forked
    arrived: float = field(default_factory=time.perf_counter)  # times by ``time.perf_counter``
    first_token: float | None = None
    ended: float | None = None
    # Tokens of the prompt that were found in pages; None until its first ones are read
    shared: int | None = None
    preempted: int = 0
    number: int = field(default_factory=lambda: next(_numbers))

    def __post_init__(self):
        self.branches = [Branch(0, list(self.prompt))]

    @property
    def width(self) -> int:
        """Branches that it has, or will have once its prompt has been read."""
        return len(self.branches) if self.started else self.options.width
