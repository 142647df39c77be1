"""Small tokenizers of the two kinds that are supported: bytes, and SentencePiece pieces with byte fallback."""

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from splashlite.pairs.tokenizer import Tokenizer


def characters_of_bytes() -> list[str]:
    """The byte-level alphabet, in the order of the bytes, as the tokenizers library has it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    kept = [c for c in alphabet if ord(c) < 256]
    moved = [c for c in alphabet if ord(c) >= 256]
    by_byte = {ord(c): c for c in kept}
    for byte in range(256):
        if byte not in by_byte:
            by_byte[byte] = moved.pop(0)
    return [by_byte[byte] for byte in range(256)]


def byte_level(merges=(), special=("<|end|>",), added=(), **options) -> Tokenizer:
    """Ids 0 to 255 are bytes, then merges (of bytes); special and added tokens follow."""
    characters = characters_of_bytes()
    vocabulary = {character: byte for byte, character in enumerate(characters)}
    pairs = []
    for left, right in merges:
        left, right = ("".join(characters[byte] for byte in part) for part in (left, right))
        vocabulary[left + right] = len(vocabulary)
        pairs.append((left, right))
    backend = Backend(models.BPE(vocab=vocabulary, merges=pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(special))
    backend.add_tokens(list(added))
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, **options))


def pieces(strip: bool = False) -> Tokenizer:
    """Like Gemma's (without Strip) or Llama 2's (with): a mark for spaces, <0xHH> for single bytes."""
    vocabulary = {"<unk>": 0, "\u2581a": 1, "b": 2, "\u2581": 3, "é": 4}
    vocabulary |= {f"<0x{byte:02X}>": 5 + byte for byte in range(256)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
