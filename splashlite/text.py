"""Tokens to text, as they come: a streaming detokenizer and stop strings.

The pieces that a TextStream returns, joined, are what decoding all ids at once gives, up to the first stop string.
Each pushed token costs the work of its own characters, however long the text already is.
"""

import codecs
from collections.abc import Iterable

from splashlite.errors import SplashliteError, UsageError


def check_stop(stop) -> tuple[str, ...]:
    """The stop strings of a request as a tuple; None means none and one string stands for a list of one.

    Raises UsageError for an empty stop string, or for anything that is not a string.
    """
    stops = () if stop is None else (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, (list, tuple)):
        raise UsageError(f"stop must be a string or a list of strings, not {type(stop).__name__}")
    for each in stops:
        if not isinstance(each, str):
            raise UsageError(f"every stop must be a string, not {type(each).__name__}: {each!r}")
        if not each:
            raise UsageError("a stop string must not be empty: leave it out, or give at least one character")
    return tuple(dict.fromkeys(stops))


class TextStream:
    """The text of a reply while its tokens arrive, in any split, up to the first stop string.

    A stop string ends the text where its last character arrives; of two that end there the longer one is cut away.
    Text is held back only while it may still turn out to be part of a stop string, or of a run of bytes that is not
    complete; a stop string that ends in such a run ends the text there, as nothing behind it is wanted. `stopped` says
    that a stop string was met, `tokens_used` how many ids were needed up to here.
    """

    def __init__(self, tokenizer, stop=()):
        self.stopped = False
        self.tokens_used = 0
        self._detokenizer = detokenizer(tokenizer)
        self._stops = [_Matcher(each) for each in check_stop(stop)]
        self._held = ""

    def push(self, ids: Iterable[int]) -> str:
        """Add token ids; returns the text that is certain by now."""
        pieces = []
        for token in ids:
            if self.stopped:
                break
            self.tokens_used += 1
            pieces.append(self._filter(self._detokenizer.push(token)))
            if not self.stopped and self._meets(self._detokenizer.likely):
                pieces.append(self._filter(self._detokenizer.finish()))
        return "".join(pieces)

    def finish(self) -> str:
        """The rest of the text, when no more ids will come."""
        if self.stopped:
            return ""
        text = self._filter(self._detokenizer.finish())
        if not self.stopped:
            text, self._held = text + self._held, ""
        return text

    def _meets(self, likely: str) -> bool:
        """Whether a stop string ends in the characters that a held run of bytes just got."""
        if not self._detokenizer.holds:
            for stop in self._stops:
                stop.likely = stop.matched
        return any([stop.foresee(character) for character in likely for stop in self._stops])

    def _filter(self, text: str) -> str:
        """Hold back what may become a stop string; returns what can no longer be one."""
        if not self._stops:
            return text
        for position, character in enumerate(text):
            met = [stop.length for stop in self._stops if stop.push(character)]
            if met:
                self.stopped = True
                whole = self._held + text[: position + 1]
                self._held = ""
                return whole[: len(whole) - max(met)]
        whole = self._held + text
        certain = len(whole) - max(stop.matched for stop in self._stops)
        self._held = whole[certain:]
        return whole[:certain]


class _Matcher:
    """Knuth, Morris and Pratt's search for one string, fed a character at a time."""

    def __init__(self, text: str):
        self._text = text
        self.length = len(text)
        self.matched = self.likely = 0  # characters, and with those of a held run of bytes
        self._shorter = [0] * len(text)
        for end in range(1, len(text)):
            self._shorter[end] = self._longest(self._shorter[end - 1], text[end])

    def push(self, character: str) -> bool:
        """Whether the string ends with this character."""
        self.matched = self._longest(self.matched, character)
        return self.matched == self.length

    def foresee(self, character: str) -> bool:
        """Whether the string would end with this character of a held run."""
        self.likely = self._longest(self.likely, character)
        return self.likely == self.length

    def _longest(self, matched: int, character: str) -> int:
        while matched and self._text[matched] != character:
            matched = self._shorter[matched - 1]
        return matched + (self._text[matched] == character)


def openings(tokenizer) -> list[list[int]]:
    """The ways in which the chat template opens a reply, in token ids, the longest first; none without a tokenizer."""
    if tokenizer is None or not getattr(tokenizer, "has_chat_template", False):
        return []
    found, said = [], [{"role": "user", "content": "Hi"}]
    for kwargs in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
        try:
            closed = tokenizer.apply_chat_template(said, add_generation_prompt=False, **kwargs)
            opened = tokenizer.apply_chat_template(said, **kwargs)
        except UsageError:  # this template wants more than a greeting; it will say so when it is used
            continue
        if opened[: len(closed)] == closed and len(opened) > len(closed):
            found.append(opened[len(closed) :])
    return sorted(found, key=len, reverse=True)


def detokenizer(tokenizer):
    """A fresh incremental decoder with `push(id) -> str` and `finish() -> str`, after the tokenizer's own decoder.

    `holds` says that it keeps a run of bytes back, `likely` which characters the last id would add to that run's text.

    Raises SplashliteError when the tokenizer decodes in a way that cannot be followed token by token.
    """
    kinds = tuple(step["type"] for step in tokenizer.decoder)
    if kinds == ("ByteLevel",):
        return _ByteLevel(tokenizer)
    if kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"} and _pieces_decode_apart(tokenizer.decoder):
        return _Pieces(tokenizer)
    raise SplashliteError(
        f"this tokenizer's decoder ({' + '.join(kinds) or 'none'}) is not supported: byte-level decoders and "
        "Replace + ByteFallback + Fuse (+ Strip) are"
    )


def _pieces_decode_apart(steps) -> bool:
    """Whether the steps are Replace..., ByteFallback, Fuse and at most one Strip of leading characters."""
    kinds = [step["type"] for step in steps]
    body = [kind for kind in kinds if kind != "Replace"]
    replaces_first = kinds == ["Replace"] * kinds.count("Replace") + body
    strip = steps[-1] if kinds[-1] == "Strip" else None
    strips_start = strip is None or strip["stop"] == 0
    strings = all("String" in step["pattern"] for step in steps if step["type"] == "Replace")
    return (
        replaces_first
        and strips_start
        and strings
        and body in (["ByteFallback", "Fuse"], ["ByteFallback", "Fuse", "Strip"])
    )


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: one printable character for each byte; the unprintable ones moved to U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(moved)}


_BYTES = _byte_of_character()


class _ByteLevel:
    """Every token is a run of bytes; a token with a character outside the alphabet stands for its own text."""

    holds, likely = False, ""

    def __init__(self, tokenizer):
        self._token = tokenizer.id_to_token
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        text = self._token(token)
        if text is None:
            return ""
        try:
            return self._decoder.decode(bytes([_BYTES[character] for character in text]))
        except KeyError:
            return self._decoder.decode(text.encode())

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _Pieces:
    """SentencePiece tokens: text with a mark for spaces, and <0xHH> for a byte that has no token of its own.

    A run of byte tokens is text only if all of it is UTF-8 (else every byte becomes U+FFFD), so a run is held until
    it ends.
    """

    def __init__(self, tokenizer):
        self._token = tokenizer.id_to_token
        steps = tokenizer.decoder
        self._replacements = [
            (step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"
        ]
        strip = steps[-1] if steps[-1]["type"] == "Strip" else {"content": "", "start": 0}
        self._stripped, self._to_strip = strip["content"], strip["start"]
        self._bytes, self.likely = b"", ""
        self._trial = _Run(self._to_strip)

    @property
    def holds(self) -> bool:
        return bool(self._bytes)

    def push(self, token: int) -> str:
        text, self.likely = self._token(token), ""
        if text is None:
            return ""
        for pattern, content in self._replacements:
            text = text.replace(pattern, content)
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">") and _is_hex(text[3:5]):
            byte = bytes([int(text[3:5], 16)])
            self._bytes += byte
            self.likely = self._trial.push(byte, self._stripped)
            return ""
        text, self._to_strip = _strip(self._flush() + text, self._stripped, self._to_strip)
        self._trial = _Run(self._to_strip)
        return text

    def finish(self) -> str:
        return _strip(self._flush(), self._stripped, self._to_strip)[0]

    def _flush(self) -> str:
        run, self._bytes = self._bytes, b""
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)


class _Run:
    """What a run of bytes will be as long as it is UTF-8, a byte at a time."""

    def __init__(self, to_strip: int):
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._to_strip, self._broken = to_strip, False

    def push(self, byte: bytes, stripped: str) -> str:
        try:
            text = "" if self._broken else self._decoder.decode(byte)
        except UnicodeDecodeError:
            text, self._broken = "", True
        text, self._to_strip = _strip(text, stripped, self._to_strip)
        return text


def _strip(text: str, stripped: str, left: int) -> tuple[str, int]:
    """`text` without up to `left` leading `stripped`, and how many may still be taken from what follows."""
    while left and text:
        if not text.startswith(stripped):
            return text, 0
        text, left = text[1:], left - 1
    return text, left


def _is_hex(text: str) -> bool:
    return all(character in "0123456789abcdefABCDEF" for character in text)
