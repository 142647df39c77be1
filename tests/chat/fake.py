"""An engine that says what it is told to, with the public API of the real one, and a command line that uses it."""

import logging
import sys
import time
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from unittest.mock import Mock

if __name__ == "__main__":
    sys.modules["splashlite.engine"] = Mock()  # MLX takes seconds to import, and nothing here computes

from splashlite.errors import SplashliteError


@dataclass
class Stats:
    prompt_tokens: int = 12
    cached_tokens: int = 4
    completion_tokens: int = 0
    cycles: int = 0
    accepted: list = field(default_factory=lambda: [0, 0, 0])
    acceptance_length: float = 0.0
    speculation: str = "on"
    prefill_ms: float = 3.5
    ttft_ms: float = 4.5
    decode_tps: float = 100.0
    peak_memory_bytes: int = 1_234_567
    draft_ms: float | None = None
    verify_ms: float | None = None

    def as_dict(self):
        return asdict(self)


@dataclass
class Piece:
    text: str
    tokens: list
    drafted: list
    finish_reason: str | None = None
    stats: Stats | None = None


class Tokenizer:
    """One character is one token."""

    decoder = ({"type": "ByteLevel"},)
    eos_ids = frozenset()
    has_chat_template = True

    def __init__(self, thinks: bool = False):
        self.thinks = thinks

    def __len__(self):
        return 0x110000

    def id_to_token(self, token):
        return chr(token)

    def decode(self, ids):
        return "".join(map(chr, ids))

    def render(self, messages, enable_thinking=True, **_):
        text = "".join(f"<{turn['role']}>{turn['content']}\n" for turn in messages) + "<assistant>\n"
        return text + ("<think>\n" if self.thinks and enable_thinking else "")


class Engine:
    """Answers with `script(messages)`; `delay` seconds between pieces of `block` characters."""

    def __init__(self, script=None, *, delay=0.0, block=3, thinks=False):
        self.script = script or scripted
        self.delay, self.block = delay, block
        self.tokenizer = Tokenizer(thinks)
        self.pair, self.target = None, SimpleNamespace(vocab_rows=49152)
        self.sampling = {"temperature": 0.5, "top_p": 1.0}
        self.asked, self.closed, self.context = [], 0, 2048
        self.on_prefill = lambda done, total: None
        self._stop = False

    def close(self):
        """Nothing to keep."""

    def stop(self):
        self._stop = True

    def describe(self):
        return {
            "target": "fake-135M",
            "drafter": "fake-dflash2",
            "quantization": "4-bit",
            "dtype": "float32",
            "blas": "OpenBLAS",
            "kernels": "none",
            "memory_bytes": 654_000_000,
            "context": 2048,
            "block_size": 8,
        }

    def stream(self, prompt, *, chat_template_kwargs=None, max_tokens=256, **options):
        self.asked.append((prompt, {"max_tokens": max_tokens, "template": chat_template_kwargs, **options}))
        text = self.script(prompt)
        if isinstance(text, Exception):
            raise text
        reason = "length" if len(text) > max_tokens else "stop"
        return self._pieces(text[:max_tokens], reason)

    def _pieces(self, text, reason):
        stats, self._stop = Stats(), False
        try:
            for done in range(3):
                self.on_prefill(6 * done, 12)
                time.sleep(self.delay)
                if self._stop:
                    raise SplashliteError("the reply was stopped while the prompt was being read")
            for start in range(0, max(1, len(text)), self.block):
                time.sleep(self.delay)
                part = text[start : start + self.block]
                stats.completion_tokens += len(part)
                stats.cycles += 1
                stats.accepted[max(0, len(part) - 1)] += 1
                stats.acceptance_length = stats.completion_tokens / stats.cycles
                last = start + self.block >= len(text) or self._stop
                drafted = [True] * (len(part) - 1) + [False] * bool(part)
                yield Piece(
                    part,
                    [ord(c) for c in part],
                    drafted,
                    ("cancelled" if self._stop else reason) if last else None,
                    stats,
                )
                if last:
                    return
        finally:
            self.closed += 1


def scripted(messages):
    """Replies that tests ask for by name; anything else is echoed."""
    asked = messages if isinstance(messages, str) else messages[-1]["content"]
    return REPLIES.get(asked.strip(), f"You said: {asked}")


REPLIES = {
    "long": " ".join(f"word{n}" for n in range(2000)),
    "escape": "a \x1b[31mred\x1b[0m bell\a \x1b]0;title\a \u202eback end",
    "fail": SplashliteError("the prompt is longer than the context: shorten it"),
    "empty": "",
    "think": "<think>\nfirst this\nthen that\n</think>\n\nThe **answer**.",
    "table": "Here:\n\n| name | value |\n|---|---:|\n| one | 1 |\n| two | 22 |\n\nDone.",
    "code": "Use this:\n\n```python\ndef f(x):\n    return x  # a comment\n```\n\nand **run** it with `f(1)`.",
}


def main():
    """`python tests/chat/fake.py LOAD_SECONDS DELAY COMMAND...`"""
    from splashlite import cli

    seconds, delay = float(sys.argv[1]), float(sys.argv[2])

    def load(pair, progress, **halves):
        progress("loading weights", 1_000_000, 4_000_000)
        if pair == "warner":
            for _ in range(2):
                logging.getLogger("splashlite").warning("the measured costs cannot be kept: read-only\nTraceback: here")
        time.sleep(seconds)
        if pair == "broken":
            raise SplashliteError("the folder broken does not exist: give a pair's name, a repo id or a folder")
        return Engine(delay=delay, thinks=pair == "thinker")

    cli.load, cli.check_names = load, lambda *names: None
    sys.exit(cli.run(sys.argv[3:]))


if __name__ == "__main__":
    main()
