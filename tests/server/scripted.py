"""An engine that says what it is told, in the pieces it is told, and a server over it in this process."""

import threading
import time
from types import SimpleNamespace

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from splashlite.decode.stats import Stats
from splashlite.engine import Piece
from splashlite.pairs.tokenizer import Tokenizer
from splashlite.server import app, run
from splashlite.server.model import Model
from splashlite.server.protocol import Server
from splashlite.server.worker import Worker
from splashlite.text import TextStream, check_stop

PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
CALLS = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<tool_call>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments }}</tool_call>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is not defined or enable_thinking %}<think>\n"
    "{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
XML = CALLS.replace("<tool_call>{{ c.function.name }}", "<tool_call>\n<function={{ c.function.name }}")


def byte_tokenizer(template: str | None = PLAIN) -> Tokenizer:
    """One token per byte, and one that ends a reply; every text has tokens and every token has text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={each: i for i, each in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", chat_template=template)
    return Tokenizer(fast)


class Session:
    def __init__(self, target=None, drafter=None, store=None):
        self.resets, self.prompt, self.done, self.store = 0, None, 0, store

    def reset(self):
        self.resets, self.prompt, self.done = self.resets + 1, None, 0


class Engine:
    """Says `say(prompt_text)` (or a fixed text) in pieces of `cut(number of tokens)` lengths, after a prefill
    in chunks.

    `pause_s` is slept in every chunk and before every piece; `steps` counts both.
    """

    def __init__(
        self, say="Hello.", *, template=PLAIN, cut=lambda n: [1] * n, pause_s=0.0, chunk=2048, context=100_000
    ):
        self.tokenizer = byte_tokenizer(template)
        self.eos_ids, self.context, self.pair, self.drafter = self.tokenizer.eos_ids, context, None, None
        self.target = SimpleNamespace(vocab_rows=len(self.tokenizer) + 7)
        self.sampling = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        self.session, self.plan, self.on_prefill = Session(), None, lambda done, total: None
        self.say, self.cut, self.pause_s, self.chunk = say, cut, pause_s, chunk
        self.closed = False
        self.steps, self.order, self.options = 0, [], None

    def describe(self):
        return {"target": "scripted", "drafter": None, "block_size": 8}

    def close(self):
        self.closed = True

    def stream(self, prompt, **options):
        self.options = options
        if isinstance(self.say, BaseException):
            raise self.say
        return self._pieces(list(prompt), options)

    def _pieces(self, prompt, options):
        text = self.tokenizer.decode(prompt)
        said = self.say(text) if callable(self.say) else self.say
        stats = Stats(
            prompt_tokens=len(prompt),
            speculation="on" if options.get("speculative", True) else "off: speculative=False",
        )
        session, end = self.session, len(prompt) - 1
        began = session.done if session.prompt == prompt else 0
        session.prompt = prompt
        for done in range(began, end, self.chunk):
            self.on_prefill(done, end)
            self._step()
            session.done = min(done + self.chunk, end)
        self.on_prefill(end, end)
        session.prompt = None
        stats.prefill_ms, stats.cached_tokens = 1.0, began
        self.order.append(text)
        if isinstance(said, BaseException):
            raise said
        tokens, writer = (
            self.tokenizer.encode(said, add_special_tokens=False),
            TextStream(self.tokenizer, check_stop(options.get("stop"))),
        )
        limit, at = options["max_tokens"], 0
        reason = "stop" if len(tokens) < limit else "length"
        tokens = tokens[:limit]
        for length in self.cut(len(tokens)):
            part = tokens[at : at + length]
            at += length
            self._step()
            if options.get("constraint") is not None:
                options["constraint"].rows(part)
                options["constraint"].commit(part)
            words = writer.push(part)
            stats.count(len(part) - 1, len(part))
            stats.completion_tokens += len(part)
            stats.decode_ms += 1.0
            if writer.stopped:
                yield Piece(words, part, "stop", stats, [True] * len(part))
                return
            yield Piece(words, part, None, stats, [i + 1 < len(part) for i in range(len(part))])
        yield Piece(writer.finish(), [], reason, stats, [])

    def _step(self):
        self.steps += 1
        if self.pause_s:
            time.sleep(self.pause_s)


class serving:
    """A context: an engine behind a server in threads of this process."""

    def __init__(self, engine, *, hosts=(), origins=(), key=None, queue=32, address="127.0.0.1"):
        self.worker = Worker((lambda: engine) if not callable(engine) else engine, Model, queue)
        self._listener = run._listen(address, 0)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = Server(app.build(self.worker, hosts=hosts, origins=origins, key=key), self.worker.stop)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True
        )

    def __enter__(self):
        self.worker.start()
        self.worker.loaded.wait()
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        return self

    def __exit__(self, *_):
        self._server.should_exit = True
        self._thread.join()
        self.worker.close()
