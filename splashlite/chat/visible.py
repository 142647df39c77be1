"""Text from a model, made safe to show: what a terminal would obey becomes something a person can see."""

import re

# C0 without tab and newline, DEL, C1, the bidirectional overrides that reorder what is read, line separators
# that break the layout, and lone surrogates, which no terminal can encode.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """`text` with every control character replaced by a visible one: ESC becomes ␛, U+202E becomes \\u202e."""
    return UNSAFE.sub(_picture, text)


def _picture(match: re.Match) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
