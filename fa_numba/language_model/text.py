"""The text that a model learns: the copy in this package, or files of the user's own.

The copy is 465 thousand characters of Python's own help topics, which every learner can read:
corpus/NOTICE.txt names its authors and licence. It is frozen, because the topics differ from one
Python version to the next, and with them every loss.
"""

import gzip
import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from fa_numba import checks

TOPICS_SHA256 = "2a95af4ac93f5b719944030ce3769070ddf827d847cba42192afa8da989e5dc4"
FOR_VALIDATION = 0.1  # share of a text, at its end, that is not trained on


class Damaged(Exception):
    """A file of this package, or one that this package wrote, has other contents than it had."""


def topics() -> str:
    """Python's help topics, as a text.

    Raises
    ------
    Damaged
        The file's hash is not the expected one.
    """
    packed = resources.files("fa_numba.language_model") / "corpus" / "topics.txt.gz"
    text = gzip.decompress(packed.read_bytes())
    if hashlib.sha256(text).hexdigest() != TOPICS_SHA256:
        raise Damaged(f"{packed} is not the text that was shipped: install fa-numba again")
    return text.decode()


def read_files(paths) -> str:
    """The contents of UTF-8 files, one after the other.

    Raises
    ------
    ValueError
        A file is not UTF-8.
    """
    texts = []
    for path in paths:
        try:
            texts.append(Path(path).read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} is not UTF-8, at byte {error.start}: if it is Latin-1, "
                f"iconv -f LATIN1 -t UTF-8 {path} writes it anew"
            ) from None
    return "\n".join(texts)


def shown(text) -> str:
    """A text for a terminal, which would obey its control characters: their pictures instead."""
    return text.translate(_PICTURES)


_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
_PICTURES |= dict.fromkeys(range(0x7F, 0xA0), 0xFFFD) | {0x7F: 0x2421}


@dataclass(frozen=True)
class Characters:
    """A vocabulary of characters; a character's token is its index."""

    symbols: str  # different characters, sorted by code point

    def __post_init__(self):
        checks.check_symbols(self.symbols)

    @classmethod
    def of(cls, text) -> "Characters":
        """The vocabulary of a text."""
        return cls("".join(sorted(set(text))))

    def __len__(self):
        return len(self.symbols)

    def encode(self, text, name="text") -> np.ndarray:
        """Tokens of a text.

        Parameters
        ----------
        text : str
            Of characters in the vocabulary.
        name : str, default="text"
            Name of the argument, for messages.

        Returns
        -------
        array of shape (len(text),), int32
        """
        checks.check_characters(name, text, self.symbols)
        return np.searchsorted(_code_points(self.symbols), _code_points(text)).astype(np.int32)

    def decode(self, tokens) -> str:
        """The text of tokens."""
        return "".join(self.symbols[token] for token in tokens)


def _code_points(text):
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def split(tokens) -> tuple:
    """The parts of a text's tokens for training and for validation.

    Returns
    -------
    train, validation : views of tokens
        The last tenth is for validation.
    """
    cut = round(len(tokens) * (1 - FOR_VALIDATION))
    return tokens[:cut], tokens[cut:]
