"""A request, and the branches of its answer."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from fa_numba.language_model.server.options import Options

_numbers = itertools.count()


class Answer(NamedTuple):
    """One answer to a request.

    Attributes
    ----------
    index : int
        Which of the request's answers.
    tokens : list of int
        Without the prompt.
    text : str
        Up to the stop string, if one came.
    reason : str
        "length", "stop", "cancelled" or "error".
    scores : Scores or None
        Of the prompt and the answer, where `Options.logprobs` asks for them.
    """

    index: int
    tokens: list
    text: str
    reason: str
    scores: object = None


@dataclass(eq=False)
class Branch:
    """One sequence of a request: a sample, or a beam.

    Attributes
    ----------
    index : int
        Which answer it becomes.
    tokens : list of int
        The prompt and the answer so far; the last one may not be in the cache yet.
    seq, seq_on_host : int or None
        Its sequence in the pool, or in the host's pool.
    score : float
        Of a beam: the log of its probability.
    stream : TextStream or None
        The text of its answer.
    uniform : iterator of float
        A random number from 0 to 1 for each token of its answer.
    """

    index: int
    tokens: list
    seq: int | None = None
    seq_on_host: int | None = None
    score: float = 0.0
    stream: object = None
    uniform: object = None


@dataclass(eq=False)
class Request:
    """A request and all that is known about it.

    Attributes
    ----------
    prompt : list of int
    options : Options
    listener : callable or None
        ``listener(request, index, text, reason)`` is called in the engine's thread for each new
        piece of the text of answer `index`; `reason` is None until its end.
    branches : list of Branch
        The unfinished ones. They are preempted and come back together.
    answers : list of Answer
        The finished ones.
    started : bool
        The prompt has been read, and the answer branches have forked.
    arrived, first_token, ended : float or None
        Times by ``time.perf_counter``.
    shared : int
        Tokens of the prompt that were found in pages.
    """

    prompt: list
    options: Options
    listener: Callable | None = None
    branches: list = field(default_factory=list)
    answers: list = field(default_factory=list)
    started: bool = False
    arrived: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    ended: float | None = None
    shared: int = 0
    preempted: int = 0
    number: int = field(default_factory=lambda: next(_numbers))

    def __post_init__(self):
        self.branches = [Branch(0, list(self.prompt))]

    @property
    def width(self) -> int:
        """Branches that it has, or will have once its prompt has been read."""
        return len(self.branches) if self.started else self.options.width
