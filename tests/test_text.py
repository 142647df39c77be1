import random
import time

import pytest
from pairs import toys

from splashlite.errors import SplashliteError, UsageError
from splashlite.text import TextStream

TEXTS = [
    "",
    "plain words, 123",
    "naïve café über",
    "日本語のテキスト 中文",
    "👩\u200d👩\u200d👧 🇩🇪 🤷🏽\u200d♀️ end",
    "ก็ต้องไปที่นี่ क्षत्रिय हिन्दी",
    "e\u0301\u0301 combining \ufffd given",
    "tab\t newline\n\r\x00\x7f",
]
TOKENIZERS = {
    # two merges cut characters in half
    "bytes": toys.byte_level(
        merges=[(b"t", b"h"), (b"E", b"N"), (b"\xe6", b"\x97"), (b"\xa5", b"\xe6"), (b"\xf0", b"\x9f")],
        added=["naïve x", "<think>"],
        special=["<|end|>", "<｜é｜>"],
    ),
    "pieces": toys.pieces(),
    "pieces, first space stripped": toys.pieces(strip=True),
}


@pytest.fixture(params=TOKENIZERS, ids=str)
def tokenizer(request):
    return TOKENIZERS[request.param]


def pushed(stream, ids, dice=None):
    """Push ids in random portions; returns the joined text."""
    out, at = [], 0
    while at < len(ids):
        size = 1 if dice is None else dice.randrange(5)
        out.append(stream.push(ids[at : at + size]))
        at += size
    return "".join([*out, stream.finish()])


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_pieces_joined_are_the_whole_decoded_text(tokenizer, text):
    ids = tokenizer.encode(text)
    dice = random.Random(1)
    assert tokenizer.decode(ids).strip(" ") == text.strip(" ")
    for _ in range(8):
        assert pushed(TextStream(tokenizer), ids, dice) == tokenizer.decode(ids)


def test_any_ids_give_what_decoding_them_all_gives(tokenizer):
    dice = random.Random(2)
    for _ in range(1500):
        ids = [dice.choice([dice.randrange(280), dice.randrange(128, 261), 1000]) for _ in range(dice.randrange(12))]
        assert pushed(TextStream(tokenizer), ids, dice) == tokenizer.decode(ids)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_no_piece_has_a_replacement_character_that_the_text_has_not(tokenizer, text):
    stream = TextStream(tokenizer)
    given = [*(stream.push([each]) for each in tokenizer.encode(text)), stream.finish()]
    assert "".join(given).count("\ufffd") == text.count("\ufffd")
    for piece in given:
        piece.encode()


def test_a_character_is_shown_as_soon_as_its_bytes_are_there():
    stream = TextStream(TOKENIZERS["bytes"])
    assert [stream.push([byte]) for byte in "a🤷b".encode()] == ["a", "", "", "", "🤷", "b"]


def test_ids_beyond_the_vocabulary_print_nothing(tokenizer):
    ids = tokenizer.encode("ab")
    stream = TextStream(tokenizer)
    assert stream.push([len(tokenizer), *ids, len(tokenizer) + 500, 248_000]) + stream.finish() == tokenizer.decode(ids)
    assert tokenizer.decode([*ids, 248_000]) == tokenizer.decode(ids)


def simulate(tokenizer, ids, stops):
    """The definition: the first id after which a stop string is complete, the earliest end in it, then the longest."""
    shown = ""
    for used in range(1, len(ids) + 1):
        shown = tokenizer.decode(ids[:used]).rstrip("\ufffd")
        ends = [(shown.find(stop) + len(stop), -len(stop)) for stop in stops if stop in shown]
        if ends:
            end, length = min(ends)
            return shown[: end + length], used, True
    return tokenizer.decode(ids), len(ids), False


STOPS = [
    ["END\n"],
    ["\n"],
    ["ab", "abc"],
    ["abc", "bc", "c"],
    ["aab", "aaab"],
    ["日"],
    ["👧"],
    ["本 "],
    ["nd", "the end of the world"],
    ["\u0301"],
    ["never"],
    ["abab", "ba"],
]
STOPPED_TEXTS = [
    "xxENEND\nyy",
    "ababcab",
    "aaaab aab",
    "日本 語",
    "👩\u200d👧!",
    "the end of the worm",
    "e\u0301",
    "abaabab\n",
    "END",
    "",
]


@pytest.mark.parametrize("stops", STOPS, ids=repr)
def test_stop_strings_end_the_text_where_they_are_first_complete(stops):
    tokenizer = TOKENIZERS["bytes"]
    dice = random.Random(4)
    met = 0
    for text in STOPPED_TEXTS:
        ids = tokenizer.encode(text)
        for _ in range(6):
            stream = TextStream(tokenizer, stops)
            joined = pushed(stream, ids, dice)
            assert (joined, stream.tokens_used, stream.stopped) == simulate(tokenizer, ids, stops)
            met += stream.stopped
    assert met > 0 or stops == ["never"]


def test_random_texts_over_a_small_alphabet_stop_where_the_definition_says():
    tokenizer = toys.byte_level(merges=[(b"a", b"b"), (b"ab", b"a"), (b"b", b"b")])
    dice = random.Random(5)
    for _ in range(600):
        ids = tokenizer.encode("".join(dice.choice("ab") for _ in range(dice.randrange(14))))
        stops = ["".join(dice.choice("ab") for _ in range(dice.randrange(1, 6))) for _ in range(dice.randrange(1, 4))]
        stream = TextStream(tokenizer, stops)
        joined = pushed(stream, ids, dice)
        assert (joined, stream.tokens_used, stream.stopped) == simulate(tokenizer, ids, stops)


@pytest.mark.parametrize("kind", ["pieces", "pieces, first space stripped"])
def test_stop_strings_written_byte_by_byte_end_the_text_as_soon_as_they_are_there(kind):
    tokenizer, dice, met = TOKENIZERS[kind], random.Random(6), 0
    alphabet = [1, 2, 3, 4, 1000, *(5 + byte for byte in b"\n\n \xc3\xa9a")]
    for _ in range(2000):
        ids = [dice.choice(alphabet) for _ in range(dice.randrange(1, 10))]
        stops = ["".join(dice.choice("\nab é") for _ in range(dice.randrange(1, 4))) for _ in range(dice.randrange(1, 3))]
        stream = TextStream(tokenizer, stops)
        joined = pushed(stream, ids, dice)
        assert (joined, stream.tokens_used, stream.stopped) == simulate(tokenizer, ids, stops), (ids, stops)
        met += stream.stopped
    assert met > 500


def test_a_false_start_is_held_back_and_then_released():
    stream = TextStream(TOKENIZERS["bytes"], "END\n")
    assert [stream.push([byte]) for byte in b"EENDX"] == ["", "E", "", "", "ENDX"]
    assert stream.push(list(b"END")) == ""
    assert stream.finish() == "END"
    assert not stream.stopped


def test_nothing_comes_after_the_stop():
    stream = TextStream(TOKENIZERS["bytes"], ["b"])
    assert stream.push(list(b"abab")) == "a"
    assert stream.push(list(b"more")) == stream.finish() == ""
    assert (stream.stopped, stream.tokens_used) == (True, 2)


@pytest.mark.parametrize("stop", ["", [""], ["a", 3], 3, {"a": 1}, [None]], ids=repr)
def test_stops_that_mean_nothing_are_refused(stop):
    with pytest.raises(UsageError, match="stop"):
        TextStream(TOKENIZERS["bytes"], stop)


def test_none_and_an_empty_list_are_no_stops():
    for stop in (None, [], ()):
        assert pushed(TextStream(TOKENIZERS["bytes"], stop), list(b"text")) == "text"


def test_a_decoder_that_cannot_be_followed_is_refused_by_name():
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models
    from transformers import PreTrainedTokenizerFast

    from splashlite.pairs.tokenizer import Tokenizer

    backend = Backend(models.BPE(vocab={"a": 0}, merges=[]))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(SplashliteError, match="WordPiece"):
        TextStream(Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend)))


def test_the_work_per_token_does_not_grow_with_the_text():
    tokenizer = TOKENIZERS["bytes"]
    stops = ["a" * 50 + "b", "never"]

    def seconds(count):
        stream, start = TextStream(tokenizer, stops), time.process_time()
        for _ in range(count):
            stream.push([97])
        return time.process_time() - start

    seconds(1000)
    assert min(seconds(40_000) for _ in range(3)) < 20 * min(seconds(4_000) for _ in range(3))
