"""How to answer a request."""

from dataclasses import dataclass

from fa_numba import checks


@dataclass(frozen=True)
class Options:
    """How to answer a request.

    Attributes
    ----------
    max_tokens : int, default=16
        Tokens of the answer; 0: none, to have the log-probabilities of the prompt.
    temperature : float, default=1.0
        Divides the logits; less than 0.01 is 0.01. 0: the most likely token, always.
    top_k : int, default=32
        Tokens are drawn from so many of the most likely ones; at most 32.
    top_p : float, default=1.0
        Of these, from the fewest whose probabilities add up to top_p (nucleus sampling).
    n : int, default=1
        Number of answers, which share the pages of the prompt.
    beams : int, default=0
        Above 0: beam search with so many beams; its n best are the answers. Temperature, top_k,
        top_p and seed are then not used.
    stop : tuple of str, default=()
        The answer ends before the first of these strings.
    seed : int, default=0
        Answer i of a request draws from ``numpy.random.default_rng([seed, i])``, whoever else is
        served.
    logprobs : int, optional
        Answers have the log-probabilities of the prompt's tokens and their own, and those of so
        many of the likeliest tokens at each position; at most 32.
    client : str, default=""
        Who asks: the server is fair to clients, not to requests.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_k: int = checks.MAX_TOP_K
    top_p: float = 1.0
    n: int = 1
    beams: int = 0
    stop: tuple = ()
    seed: int = 0
    logprobs: int | None = None
    client: str = ""

    def __post_init__(self):
        checks.check_answer_options(**vars(self))

    @property
    def drawn(self) -> int:
        """Tokens that are drawn: one at least, which an answer of none leaves out."""
        return max(1, self.max_tokens)

    @property
    def width(self) -> int:
        """Branches of the answer at a time."""
        return self.beams or self.n
