"""Which characters of a reply the drafter proposed, so that speculation can be seen."""

from collections import deque

from splashlite.text import TextStream


class Drafts:
    """Splits the text of pieces by who proposed each token: True for the drafter, False for the target itself."""

    def __init__(self, tokenizer):
        self._stream = TextStream(tokenizer)
        self._ready: deque[tuple[str, bool]] = deque()
        self._last = False

    def parts(self, piece) -> list[tuple[str, bool]]:
        """The parts of `piece.text`; a character made of several tokens goes with its last."""
        for token, drafted in zip(piece.tokens, piece.drafted, strict=True):
            self._ready.append((self._stream.push([token]), drafted))
            self._last = drafted
        if piece.finish_reason:
            self._ready.append((self._stream.finish(), self._last))
        parts, wanted = [], len(piece.text)
        while wanted and self._ready:
            text, drafted = self._ready.popleft()
            if len(text) > wanted:
                self._ready.appendleft((text[wanted:], drafted))
            parts.append((text[:wanted], drafted))
            wanted -= len(parts[-1][0])
        return [part for part in parts if part[0]]
