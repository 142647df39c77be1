"""Text to tokens and back: a thin wrapper over Hugging Face's tokenizers, from a model folder or from a GGUF file."""

import json
from collections.abc import Iterable
from pathlib import Path

from splashlite.errors import SplashliteError, UsageError
from splashlite.pairs.gguf_header import read_header
from splashlite.pairs.template import variables
from splashlite.pairs.weights import read_json

# GGUF's tokenizer.ggml.token_type
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4


class Tokenizer:
    """Encodes, decodes and applies the chat template of one model.

    `eos_ids` are all the ids that end a reply; `bos_id` is None where there is none; `decoder` lists the decoding
    steps as the tokenizers library describes them; `chat_template` is the source of the model's own template ("" where
    there is none, all of them where it has several); `hugging_face` is the tokenizer that is wrapped, for libraries
    that ask for one. An id that has no token (a padded vocabulary) decodes to nothing,
    and special tokens decode to their own text, so nothing that a model says is hidden.
    """

    def __init__(self, fast, eos_ids: Iterable[int] = ()):
        """`fast` is a transformers PreTrainedTokenizerFast; `eos_ids` are added to its own."""
        self.hugging_face = fast
        self._tokenizer = fast.backend_tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        own = () if fast.eos_token_id is None else (fast.eos_token_id,)
        self.eos_ids = frozenset((*own, *eos_ids))
        self.bos_id = fast.bos_token_id
        template = fast.chat_template
        self.has_chat_template = template is not None
        self.chat_template = "\n".join(template.values()) if isinstance(template, dict) else template or ""
        self.id_to_token = self._tokenizer.id_to_token
        state = json.loads(self._tokenizer.decoder.__getstate__()) if self._tokenizer.decoder else {"type": "none"}
        self.decoder = tuple(state["decoders"] if state["type"] == "Sequence" else [state])
        self._settings = None
        self._size = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def __len__(self) -> int:
        """One more than the largest id that has a token."""
        return self._size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; `add_special_tokens` is whether the model's own prefix (often none) is put before it."""
        try:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except (TypeError, UnicodeEncodeError):
            raise UsageError("a prompt must be text without lone surrogates, which are no characters") from None

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; ids without a token are left out."""
        known = [token for token in ids if 0 <= token < self._size]
        return self._tokenizer.decode(known, skip_special_tokens=False)

    def apply_chat_template(self, messages: list[dict], **kwargs) -> list[int]:
        """Token ids of a conversation, as the model's own template writes it, ready for the assistant's turn.

        `kwargs` are the template's own settings (tools, enable_thinking, ...); add_generation_prompt is True unless
        given. Raises UsageError when there is no template, or when the template refuses the messages.
        """
        return self.encode(self.render(messages, **kwargs), add_special_tokens=False)

    @property
    def settings(self) -> frozenset[str]:
        """The names that the chat template reads."""
        if self._settings is None:
            self._settings = variables(self.chat_template)
        return self._settings

    def render(self, messages: list[dict], **kwargs) -> str:
        """The text that `apply_chat_template` encodes."""
        if not self.has_chat_template:
            raise UsageError("this model has no chat template: give the prompt as text or as token ids")
        from jinja2 import TemplateError

        try:
            return self.hugging_face.apply_chat_template(messages, tokenize=False, **{"add_generation_prompt": True, **kwargs})
        except (TemplateError, TypeError, ValueError, KeyError) as problem:
            raise UsageError(f"the model's chat template refuses these messages: {problem}") from problem


def load_tokenizer(path, config: dict) -> Tokenizer | None:
    """The tokenizer of a model folder or of a .gguf file, None for a folder that has none.

    End-of-reply ids are the union of what the tokenizer, `config` (and its text_config), config.json and
    generation_config.json name. Nothing in the folder is executed and the network is not used.

    Raises SplashliteError when there is a tokenizer that cannot be used, with what is missing.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        return _from_gguf(path, read_header(path).metadata)
    if not (path / "tokenizer.json").is_file():
        others = [
            name for name in ("tokenizer.model", "vocab.json", "tokenizer_config.json") if (path / name).is_file()
        ]
        if others:
            raise SplashliteError(
                f"{path} has {others[0]} but no tokenizer.json: only fast tokenizers are supported, "
                "get the model's tokenizer.json"
            )
        return None
    from transformers import PreTrainedTokenizerFast

    try:
        fast = PreTrainedTokenizerFast.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as problem:
        raise SplashliteError(f"the tokenizer in {path} cannot be loaded: {problem}") from problem
    return Tokenizer(fast, eos_ids(path, config))


def eos_ids(folder: Path, config: dict) -> frozenset[int]:
    """The ids that end a reply, as a model folder's own files and its config say: all of them together.

    Raises SplashliteError for an eos_token_id that is no id.
    """
    eos = _eos_ids(config or {}, "the model's config")
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            eos |= _eos_ids(read_json(folder / name), folder / name)
    return frozenset(eos)


def _eos_ids(config: dict, where) -> set[int]:
    named = config.get("eos_token_id")
    ids = set() if named is None else set(named) if isinstance(named, list) else {named}
    for each in ids:
        if type(each) is not int or each < 0:
            raise SplashliteError(f"eos_token_id in {where} must be an id or a list of ids, not {named!r}")
    text = config.get("text_config")
    return ids | (_eos_ids(text, where) if isinstance(text, dict) else set())


def _from_gguf(path: Path, metadata: dict) -> Tokenizer:
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerFast

    def field(name: str, kind: type):
        value = metadata.get(f"tokenizer.ggml.{name}")
        if not isinstance(value, kind):
            raise SplashliteError(
                f"{path}: tokenizer.ggml.{name} is missing or of the wrong type; use a safetensors folder"
            )
        return value

    if (field("model", str), field("pre", str)) != ("gpt2", "smollm"):
        kind = f"{metadata['tokenizer.ggml.model']}/{metadata['tokenizer.ggml.pre']}"
        raise SplashliteError(
            f"{path}: tokenizer {kind} is not supported from GGUF (gpt2/smollm is): use a safetensors folder"
        )
    tokens, merges, types = field("tokens", list), field("merges", list), field("token_type", list)
    vocabulary = {token: place for place, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens) or len(types) != len(tokens):
        raise SplashliteError(f"{path}: its token list is inconsistent; fetch the file again")
    backend = Backend(models.BPE(vocab=vocabulary, merges=[tuple(merge.split(" ")) for merge in merges]))
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, types) if kind == _CONTROL]
    )
    backend.add_tokens([AddedToken(t, normalized=False) for t, kind in zip(tokens, types) if kind == _USER_DEFINED])

    def token(name: str) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if value is not None and (type(value) is not int or not 0 <= value < len(tokens)):
            raise SplashliteError(f"{path}: tokenizer.ggml.{name}_token_id is {value!r}, which is no token")
        return value

    bos, eos = token("bos"), token("eos")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=None if bos is None else tokens[bos],
        eos_token=None if eos is None else tokens[eos],
        chat_template=metadata.get("tokenizer.chat_template"),
    )
    if metadata.get("tokenizer.ggml.add_bos_token", False):
        raise SplashliteError(
            f"{path}: tokenizer.ggml.add_bos_token is not supported from GGUF: use a safetensors folder"
        )
    return Tokenizer(fast, {each for each in (eos, token("eot")) if each is not None})
