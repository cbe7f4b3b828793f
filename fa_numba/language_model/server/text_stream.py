"""Text of tokens as they come, up to a stop string.

Text that may be the beginning of a stop string is held back until that is known: a server cannot
take back text that it has sent. So are tokens whose text ends in U+FFFD, which decoders put in the
place of a character that is not complete: the next token may complete it.
"""

INCOMPLETE = "\ufffd"


class TextStream:
    """The text of one answer.

    Parameters
    ----------
    decode : callable
        ``decode(tokens)`` is a str. The texts of two runs of tokens, joined, are the text of both
        where the first one does not end within a character.
    stop : tuple of str

    Attributes
    ----------
    text : str
        All that may be sent.
    stopped : bool
        A stop string has come; nothing follows.
    """

    def __init__(self, decode, stop=()):
        self.decode, self.stop = decode, stop
        self.text, self.stopped = "", False
        self._held, self._tokens = "", []

    def finish(self) -> str:
        """The answer is complete: return the text that was held back."""
        first = self._add(self.decode(self._tokens)) if self._tokens else ""
        piece, self._held, self._tokens = self._held, "", []
        self.text += piece
        return first + piece

    def feed(self, token) -> str:
        """Add a token; return the text that may be sent now."""
        self._tokens.append(token)
        piece = self.decode(self._tokens)
        if piece.endswith(INCOMPLETE):
            return ""
        self._tokens = []
        return self._add(piece)

    def _add(self, piece):
        if not self.stop:
            self.text += piece
            return piece
        self._held += piece
        found = [at for s in self.stop if (at := self._held.find(s)) >= 0]
        if found:
            piece, self._held, self.stopped = self._held[: min(found)], "", True
        else:
            keep = max((_overlap(self._held, s) for s in self.stop), default=0)
            end = len(self._held) - keep
            piece, self._held = self._held[:end], self._held[end:]
        self.text += piece
        return piece


def _overlap(text, stop):
    """Length of the longest end of `text` that `stop` begins with, but is not all of it."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
