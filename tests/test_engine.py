"""The engine's public behaviour on tiny pairs: folders, arguments, ends, text and statistics."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import pytest
from pairs.toys import byte_level
from tiny import BLOCK, Scripted, drafter_config, make_engine, make_target, random_prompt, write_drafter, write_target

import splashlite
from splashlite import SplashliteError, UsageError
from splashlite.drafter import load_drafter

PROMPT = random_prompt(9)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    return write_target(root / "target", "hybrid"), write_drafter(root / "drafter", drafter_config())


@pytest.fixture
def engine(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("SPLASHLITE_CACHE", str(tmp_path))
    return splashlite.load(target=str(folders[0]), drafter=str(folders[1]), dtype="float32")


def test_two_folders_alone_make_a_pair(engine):
    reply = engine.generate(PROMPT, max_tokens=20, width=4)
    assert reply.stats.speculation == "on" and reply.stats.cycles < reply.stats.rows
    assert reply.stats.prompt_tokens == 9 and reply.stats.completion_tokens == len(reply.tokens)
    assert reply.text == "" and engine.eos_ids == {5, 7}
    assert reply.tokens == engine.generate(PROMPT, max_tokens=20, speculative=False).tokens


def test_a_target_alone_decodes_plainly_and_says_why(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("SPLASHLITE_CACHE", str(tmp_path))
    reply = splashlite.load(target=str(folders[0])).generate(PROMPT, max_tokens=5)
    assert reply.stats.speculation == "off: this pair has no drafter" and len(reply.tokens) == 5


@pytest.mark.parametrize("bits", [4, 8])
def test_draft_bits_quantize_matrices_and_leave_codebooks_and_norms(tmp_path, bits):
    config = drafter_config() | {"hidden_size": 128, "intermediate_size": 128}
    drafter = load_drafter(write_drafter(tmp_path, config), dtype=mx.bfloat16, draft_bits=bits)
    layer = drafter.layers[0]
    quantized = [drafter.fc, layer.self_attn.q_proj, layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.down_proj,
                 layer.attention_conv.kernel_projection, drafter.candidate_selector.hidden_projection]
    assert [m.bits for m in quantized if hasattr(m, "bits")] == [bits] * sum(m.scales.shape[0] > 0 for m in quantized if hasattr(m, "bits"))
    assert all(hasattr(m, "bits") for m in quantized if m.weight.shape[0])
    assert drafter.candidate_selector.predecessor_codebook.dtype == mx.bfloat16
    assert layer.attention_conv.base_kernel.dtype == mx.bfloat16 and layer.input_layernorm.weight.dtype == mx.bfloat16
    with pytest.raises(UsageError, match="draft_bits=3"):
        load_drafter(tmp_path, dtype=mx.bfloat16, draft_bits=3)


def test_huge_features_do_not_overflow_the_drafter(tmp_path):
    drafter = load_drafter(write_drafter(tmp_path, drafter_config()), dtype=mx.bfloat16)
    target, context = make_target("dense"), drafter.new_context()
    context.commit(mx.random.normal((1, 20, 3 * 64)) * 1e5)
    hidden = drafter.hidden(target, mx.array([3], mx.uint32), context, BLOCK - 1)
    assert hidden.dtype == mx.bfloat16 and mx.all(mx.isfinite(hidden)).item()


WRONG = [
    ({"temperature": -1}, "temperature"), ({"temperature": float("nan")}, "temperature"), ({"temperature": "hot"}, "temperature"),
    ({"top_k": 1.5}, "top_k"), ({"top_k": -1}, "top_k"), ({"top_p": 0}, "top_p"), ({"top_p": 1.1}, "top_p"), ({"min_p": 2}, "min_p"),
    ({"presence_penalty": float("inf")}, "presence_penalty"), ({"frequency_penalty": None}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"), ({"logit_bias": {160: 1.0}}, "logit_bias"), ({"logit_bias": {1: float("nan")}}, "logit_bias"),
    ({"seed": 1.5}, "seed"), ({"stop": "x"}, "stop"), ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": 2.0}, "max_tokens"),
    ({"logit_bias": "x"}, "logit_bias"), ({"logit_bias": {"1": 1}}, "logit_bias"), ({"logit_bias": {1: True}}, "logit_bias"),
    ({"seed": -1}, "seed"), ({"seed": 2**64}, "seed"), ({"speculative": "no"}, "speculative"), ({"constraint": 5}, "constraint"),
    ({"chat_template_kwargs": "x"}, "chat_template_kwargs"), ({"chat_template_kwargs": {1: 2}}, "chat_template_kwargs"),
    ({"width": True}, "width"), ({"width": 0}, "width"), ({"width": 9}, "width"), ({"width": 4, "speculative": False}, "width"), ({"logprobs": 21}, "logprobs"),
    ({"width": 1.0}, "width"), ({"logit_bias": {1: 1e39}}, "logit_bias of token 1"), ({"repetition_penalty": 1e-40}, "repetition_penalty"),
    ({"logit_bias": {token: -float("inf") for token in range(160)}}, "forbids every token"),
    ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs are for chat messages"),
]


@pytest.mark.parametrize("options, name", WRONG, ids=str)
def test_wrong_arguments_are_refused_by_name_before_anything_runs(folders, options, name):
    engine = make_engine(make_target("hybrid"), load_drafter(folders[1], dtype=mx.float32))
    with pytest.raises(UsageError, match=name):
        engine.stream(PROMPT, **options)
    assert not engine.session.tokens


@pytest.mark.parametrize("name", ["enable_thinkin", "messages", "prompt", "chat_template", "tokenize"])
def test_template_settings_that_the_template_does_not_take_are_refused(name):
    tokenizer = byte_level(chat_template="{% for m in messages %}{{ m.content }}{% endfor %}{{ enable_thinking }}")
    engine = make_engine(make_target("dense"), tokenizer=tokenizer)
    with pytest.raises(UsageError, match=f"'{name}'.*it reads enable_thinking"):
        engine.stream([{"role": "user", "content": "hi"}], chat_template_kwargs={name: "x"})


def test_a_bias_that_leaves_the_grammar_no_token_is_an_error_and_no_text():
    class Only:
        def rows(self, draft):
            return [[token in (3, 4) for token in range(160)]] * (len(draft) + 1)

        def commit(self, tokens):
            pass

    engine = make_engine(make_target("dense"))
    forbidden = {token: -float("inf") for token in (3, 4)}
    assert set(engine.generate(PROMPT, max_tokens=4, constraint=Only(), logit_bias={3: forbidden[3]}).tokens) == {4}
    with pytest.raises(SplashliteError, match="no token"):
        engine.generate(PROMPT, max_tokens=4, constraint=Only(), logit_bias=forbidden)


def test_replies_that_never_ran_teach_nothing_and_take_nothing_away(engine):
    engine.generate(PROMPT, max_tokens=40, width=4)
    seen = list(engine.survival.seen)
    for _ in range(3):
        engine.stream(PROMPT)
        with pytest.raises(UsageError, match="width"):
            engine.stream(PROMPT, width=99)
    assert engine.survival.seen == seen


def test_costs_are_measured_for_each_block_size_of_equally_large_files(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("SPLASHLITE_CACHE", str(tmp_path / "cache"))
    measured = {}
    for block in (8, 4, 8):
        config = drafter_config()
        config["block_size"] = config["dflash_config"]["block_size"] = block
        drafter = write_drafter(tmp_path / str(block), config)
        engine = splashlite.load(target=folders[0], drafter=drafter)
        assert len(engine.costs.cycle_ms()) == block
        assert engine.costs == measured.setdefault(block, engine.costs)  # the third time they are read
        assert len(engine.generate(PROMPT, max_tokens=30).tokens) == 30


@pytest.mark.parametrize("prompt, says", [([], "empty"), ([160], "160"), ([-1], "-1"), (["a"], "'a'"), ("text", "tokenizer"),
                                          ([{"role": "user", "content": "hi"}], "tokenizer"), (list(range(64)), "64 tokens"),
                                          (b"hi", "type bytes"), (None, "type NoneType"), (5, "type int"), ({1, 2}, "type set"), ([True], "True"),
                                          ({"role": "user", "content": "hi"}, "type dict"), ([{"role": "user"}, 3], "3 among its chat")])
def test_wrong_prompts_are_refused(prompt, says):
    with pytest.raises(UsageError, match=says):
        make_engine(make_target("dense"), context=64).generate(prompt)


@pytest.mark.parametrize("length", [61, 62, 63])
def test_the_context_ends_a_reply(length):
    target = make_target("hybrid")
    reply = make_engine(target, context=64).generate(random_prompt(length), max_tokens=50)
    assert len(reply.tokens) == 64 - length and reply.finish_reason == "length"


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_no_token_and_one_token(folders, max_tokens):
    engine = make_engine(make_target("hybrid"), load_drafter(folders[1], dtype=mx.float32))
    reply = engine.generate(PROMPT, max_tokens=max_tokens)
    assert len(reply.tokens) == max_tokens == reply.stats.completion_tokens and reply.finish_reason == "length"
    assert reply.stats.rows == max_tokens


@pytest.mark.parametrize("given", [{"name": 5}, {"name": b"x"}, {"target": 5}, {"drafter": ["a"]}, {"draft_bits": 4.0}], ids=str)
def test_what_is_no_name_is_refused_by_load(given):
    with pytest.raises(UsageError, match=next(iter(given))):
        splashlite.load(**given)


def test_paths_are_sources_too(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("SPLASHLITE_CACHE", str(tmp_path))
    assert splashlite.load(target=folders[0], drafter=folders[1]).drafter is not None


def test_a_closed_engine_says_so(folders):
    engine = make_engine(make_target("hybrid"))
    engine.generate(PROMPT, max_tokens=2)
    engine.close()
    engine.close()
    with pytest.raises(SplashliteError, match="closed: load the pair again"):
        engine.stream(PROMPT)


def test_swapped_halves_are_named(folders):
    with pytest.raises(SplashliteError, match="drafter"):
        splashlite.load(target=str(folders[1]), drafter=str(folders[0]))


def test_a_drafter_for_another_target_is_refused(folders, tmp_path):
    config = drafter_config() | {"num_target_layers": 9}
    with pytest.raises(SplashliteError, match="num_target_layers|9"):
        splashlite.load(target=str(folders[0]), drafter=str(write_drafter(tmp_path, config)))


def test_an_unknown_target_type_is_refused_by_name(folders, tmp_path):
    folder = write_target(tmp_path / "t", "dense")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    with pytest.raises(SplashliteError, match="mamba"):
        splashlite.load(target=str(folder))


def test_not_a_number_logits_are_an_error_and_not_a_text(folders):
    target = make_target("dense")
    engine = make_engine(target, load_drafter(folders[1], dtype=mx.float32))
    target.model.model.norm.weight = target.model.model.norm.weight * float("nan")
    for options in ({"temperature": 0}, {"temperature": 1.0}, {"temperature": 1.0, "seed": 1, "top_k": 5}):
        with pytest.raises(SplashliteError, match="NaN"):
            engine.generate(PROMPT, **options)


def test_loads_on_one_thread_and_generates_on_others(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("SPLASHLITE_CACHE", str(tmp_path))
    box = {}

    def work(name, action):
        thread = threading.Thread(target=lambda: box.__setitem__(name, action()))
        thread.start()
        thread.join()
        return box[name]

    engine = work("engine", lambda: splashlite.load(target=str(folders[0]), drafter=str(folders[1])))
    first = work("first", lambda: engine.generate(PROMPT, max_tokens=12).tokens)
    second = work("second", lambda: engine.generate(PROMPT + first, max_tokens=12).tokens)
    alone = engine.generate(PROMPT, max_tokens=24, speculative=False).tokens
    assert first + second == alone
    unseeded = {tuple(work(i, lambda: engine.generate(PROMPT, max_tokens=12, temperature=2.0).tokens)) for i in range(4)}
    assert len(unseeded) == 4


def elsewhere(action):
    """What `action` returns or raises in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(action).result()


EVERYTHING = {"repetition_penalty": 1.1, "logit_bias": {3: 1.0}, "temperature": 1.0}


@pytest.mark.parametrize("options", [{"width": 4}, {"speculative": False}, EVERYTHING], ids=["drafted", "plain", "everything"])
def test_a_stream_is_read_in_one_thread_and_another_may_have_asked_for_it(folders, options):
    target = make_target("hybrid")
    alone = make_engine(target).generate(PROMPT, max_tokens=12).tokens
    engine = make_engine(target, load_drafter(folders[1], dtype=mx.float32))
    stream = elsewhere(lambda: engine.stream(PROMPT, max_tokens=30, **options))
    assert elsewhere(lambda: sum(len(piece.tokens) for piece in stream)) > 0
    for begin, end in ((next, next), (next, lambda stream: stream.close())):
        stream = engine.stream(PROMPT, max_tokens=30, **options)
        elsewhere(lambda: begin(stream))
        if end is next:
            with pytest.raises(SplashliteError, match="begun in another thread: read all of it in one"):
                next(stream)
        else:
            end(stream)
        assert elsewhere(lambda: engine.generate(PROMPT, max_tokens=12).tokens) == alone
    stream = engine.stream(PROMPT, max_tokens=30, **options)
    next(stream)
    stream.close()  # what it left waits in this thread
    assert elsewhere(lambda: engine.generate(PROMPT, max_tokens=12).tokens) == alone


def test_one_reply_at_a_time(folders):
    engine = make_engine(make_target("hybrid"), load_drafter(folders[1], dtype=mx.float32))
    first = engine.stream(PROMPT, max_tokens=30)
    next(first)
    with pytest.raises(SplashliteError, match="in the middle of a reply"):
        engine.generate(PROMPT)
    first.close()
    assert len(engine.generate(PROMPT, max_tokens=3).tokens) == 3


def test_stop_ends_the_reply_after_the_cycle(folders):
    engine = make_engine(make_target("hybrid"), load_drafter(folders[1], dtype=mx.float32))
    pieces = []
    for piece in engine.stream(PROMPT, max_tokens=100):
        pieces.append(piece)
        engine.stop()
    assert pieces[-1].finish_reason == "cancelled" and len(pieces) == 2 and engine.session.whole()


def test_pieces_add_up_and_say_what_was_drafted():
    target = make_target("dense")
    folder_less = make_engine(target).generate(PROMPT, max_tokens=30).tokens
    from pathlib import Path
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        drafter = load_drafter(write_drafter(Path(folder), drafter_config()), dtype=mx.float32)
    engine = make_engine(target, Scripted(drafter, PROMPT + folder_less, 3))
    pieces = list(engine.stream(PROMPT, max_tokens=30))
    assert sum((piece.tokens for piece in pieces), []) == folder_less
    assert all(piece.drafted == [True] * (len(piece.tokens) - 1) + [False] for piece in pieces)
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]


def test_logprobs_are_the_targets_own(folders):
    target = make_target("hybrid")
    for drafter in (None, load_drafter(folders[1], dtype=mx.float32)):
        engine = make_engine(target, drafter)
        pieces = list(engine.stream(PROMPT, max_tokens=10, logprobs=3, temperature=1.5, seed=1, repetition_penalty=1.2))
        tokens = sum((piece.tokens for piece in pieces), [])
        entries = sum((piece.logprobs for piece in pieces), [])
        logits = target.verify(target.new_state(), mx.array([PROMPT + tokens], mx.uint32)).logits[len(PROMPT) - 1 : -1]
        expected = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        assert len(entries) == len(tokens) == 10
        for token, entry, row in zip(tokens, entries, expected):
            assert entry.logprob == pytest.approx(row[token].item(), abs=1e-4)
            best = mx.argsort(-row)[:3].tolist()
            assert [i for i, _ in entry.top] == best
            assert [v for _, v in entry.top] == pytest.approx([row[i].item() for i in best], abs=1e-4)


class Alternating:
    """Allows even and odd tokens by turns: a constraint whose state moves along the draft and comes back."""

    def __init__(self, length):
        self.committed, self.length = 0, length

    def rows(self, draft):
        parity = mx.arange(160) % 2
        return mx.stack([parity == (self.committed + i) % 2 for i in range(len(draft) + 1)])

    def commit(self, tokens):
        self.committed += len(tokens)


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.3, "seed": 2}, {"temperature": 1.0, "top_k": 5}], ids=str)
def test_a_constraint_holds_at_every_position(folders, options):
    target = make_target("hybrid")
    constrained = make_engine(target).generate(PROMPT, max_tokens=24, constraint=Alternating(24), **options).tokens
    drafter = Scripted(load_drafter(folders[1], dtype=mx.float32), PROMPT + constrained, lambda call: call % BLOCK)
    reply = make_engine(target, drafter).generate(PROMPT, max_tokens=24, constraint=Alternating(24), **options)
    assert all(token % 2 == i % 2 for i, token in enumerate(reply.tokens))
    if "seed" in options or options["temperature"] == 0:
        assert reply.tokens == constrained and sum(reply.stats.accepted[1:])
