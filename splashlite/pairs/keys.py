"""The keys of a drafter's config.json: where each may stand, what it may hold, and which carry no meaning.

A fact may stand in one place or, if equal, in several; absent from all of them or different between two, it is
refused by name. A key that is not in these tables is refused too: it may change what the drafter computes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from splashlite.errors import SplashliteError

_NESTED = "dflash_config"
_ROPE = ("rope_parameters", "rope_scaling")
_KINDS = {
    "DFlash2DraftModel": "dflash2",
    "DFlashDraftModel": "dflash",
    "MuseGlimmerAssistantModel": "dflash",
}
_ASSISTANT = "MuseGlimmerAssistantModel"
_ASSISTANT_NAMES = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
_DTYPES = {"bfloat16": mx.bfloat16, "float32": mx.float32, "float16": mx.float16}
_LAYER_TYPES = ("full_attention", "sliding_attention")

# what Hugging Face configurations carry along that a drafter's forward pass never reads
_UNREAD = frozenset(
    """
    _name_or_path add_cross_attention auto_map bad_words_ids base_model_name_or_path begin_suppress_tokens
    chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample
    early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task forced_bos_token_id
    forced_eos_token_id id2label is_decoder is_encoder_decoder label2id length_penalty max_length min_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions output_hidden_states
    output_scores prefix problem_type pruned_heads remove_invalid_values repetition_penalty return_dict
    return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature tie_encoder_decoder
    tokenizer_class top_k top_p torchscript typical_p use_bfloat16
    """.split()
)
# rope_type: the further keys it must have, and those it may have (as mlx-lm's initialize_rope reads them)
_ROPE_KEYS = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (("factor", "original_max_position_embeddings"), ("beta_fast", "beta_slow", "truncate")),
}


@dataclass(frozen=True)
class Keys:
    """A configuration as read: DrafterConfig's fields, the tensors' dtype, and names that this kind renames."""

    fields: dict
    dtype: mx.Dtype
    names: dict[str, str]


@dataclass(frozen=True)
class _Rule:
    """How one value is checked; `says` completes "must be ..."."""

    says: str
    holds: Callable[[object], bool]


def _whole(low: int, high: int = 1 << 31) -> _Rule:
    return _Rule(f"a whole number from {low} to {high}", lambda value: type(value) is int and low <= value <= high)


def _number(says: str, holds: Callable[[float], bool]) -> _Rule:
    return _Rule(says, lambda value: type(value) in (int, float) and abs(value) < 1e300 and holds(value))


def _exactly(wanted) -> _Rule:
    return _Rule(
        f"{wanted!r}, nothing else is supported", lambda value: type(value) is type(wanted) and value == wanted
    )


_BOOLEAN = _Rule("true or false", lambda value: type(value) is bool)
_TOKEN_IDS = _Rule(
    "null, a token id or a list of them",
    lambda value: (
        value is None
        or all(type(each) is int and each >= 0 for each in (value if isinstance(value, list) else [value]))
    ),
)
_POSITIVE = _number("a number above 0", lambda value: value > 0)

_RULES = {
    "hidden_size": _whole(1),
    "intermediate_size": _whole(1),
    "num_hidden_layers": _whole(1, 1024),
    "num_attention_heads": _whole(1),
    "num_key_value_heads": _whole(1),
    "head_dim": _Rule("an even whole number above 0", lambda value: _whole(2).holds(value) and value % 2 == 0),
    "vocab_size": _whole(2),
    "max_position_embeddings": _whole(1),
    "rms_norm_eps": _number("a number above 0 and below 0.01", lambda value: 0 < value < 0.01),
    "rope_theta": _number("a number above 1", lambda value: value > 1),
    "rope_type": _Rule(f"one of {', '.join(_ROPE_KEYS)}", lambda value: isinstance(value, str) and value in _ROPE_KEYS),
    "layer_types": _Rule(
        f"a list of {' and '.join(_LAYER_TYPES)}",
        lambda value: isinstance(value, list) and all(each in _LAYER_TYPES for each in value),
    ),
    "sliding_window": _Rule("null or a whole number above 0", lambda value: value is None or _whole(1).holds(value)),
    "use_sliding_window": _BOOLEAN,
    "is_causal": _BOOLEAN,
    "hidden_act": _exactly("silu"),
    "attention_bias": _exactly(False),
    "dtype": _Rule(f"one of {', '.join(_DTYPES)}", lambda value: isinstance(value, str) and value in _DTYPES),
    "num_target_layers": _whole(1, 4096),
    "block_size": _whole(2, 1024),
    "mask_token_id": _whole(0),
    "target_layer_ids": _Rule(
        "a list of different layer numbers from 0",
        lambda value: isinstance(value, list) and value != [] and all(type(each) is int and each >= 0 for each in value)
        and len(set(value)) == len(value),
    ),
    "conv_kernel_size": _exactly(2),
    "conv_group_size": _whole(1),
    "selector_rank": _whole(1),
    "selector_top_k": _whole(1),
    "input_embedding_scale": _POSITIVE,
    "output_multiplier": _Rule("null or a number above 0", lambda value: value is None or _POSITIVE.holds(value)),
    "final_logit_softcapping": _Rule(
        "null, 0 for none, or a number above 0", lambda value: value is None or value == 0 or _POSITIVE.holds(value)
    ),
    "projector_type": _exactly("dflash"),
}  # fmt: skip

# unread as well, but every published configuration has them: a wrong type there means a damaged file
_CARRIED = {
    "attention_dropout": _number("a number from 0 to 1", lambda value: 0 <= value <= 1),
    "initializer_range": _POSITIVE,
    "max_window_layers": _whole(0),
    "tie_word_embeddings": _BOOLEAN,
    "use_cache": _BOOLEAN,
    "transformers_version": _Rule("a string", lambda value: isinstance(value, str)),
    "bos_token_id": _TOKEN_IDS,
    "eos_token_id": _TOKEN_IDS,
    "pad_token_id": _TOKEN_IDS,
}

# where a fact may stand; anything not listed stands at the top level only
_DRAFTING = ("block_size", "mask_token_id", "target_layer_ids", "num_target_layers", "is_causal",
             "input_embedding_scale", "output_multiplier", "final_logit_softcapping")  # fmt: skip
_SECOND_ONLY = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_PLACES = {name: ((name,), (_NESTED, name)) for name in (*_DRAFTING, *_SECOND_ONLY)}
_PLACES["is_causal"] += ((_NESTED, "causal"),)
_PLACES["projector_type"] = ((_NESTED, "projector_type"),)
_PLACES["dtype"] = (("dtype",), ("torch_dtype",))
_PLACES["rope_theta"] = (("rope_theta",), *((parent, "rope_theta") for parent in _ROPE))
_PLACES["rope_type"] = tuple((parent, name) for parent in _ROPE for name in ("rope_type", "type"))


def is_drafter(raw: dict) -> bool:
    """Whether a config.json is that of a drafter of a kind that splashlite reads."""
    named = raw.get("architectures")
    return isinstance(named, list) and any(isinstance(each, str) and each in _KINDS for each in named)


def read(raw: dict, path: Path) -> Keys:
    """Check a drafter's configuration; `path` is what errors call it. Raises SplashliteError naming the key."""
    reader = _Config(raw, path)
    architecture = reader.architecture()
    kind, assistant = _KINDS[architecture], architecture == _ASSISTANT
    second = _SECOND_ONLY if kind == "dflash2" else ()
    optional = {"input_embedding_scale", "output_multiplier", "final_logit_softcapping", "projector_type"}
    optional |= {"is_causal"} if kind == "dflash" else set()
    optional |= (
        {"vocab_size", "num_target_layers", "use_sliding_window", "attention_bias", "rope_type"} if assistant else set()
    )
    wanted = [name for name in _RULES if name not in _SECOND_ONLY or name in second]
    found = {name: reader.fact(name, required=name not in optional) for name in wanted}
    reader.refuse_unknown(wanted)
    _check_together(found, reader)
    names = {
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
    }
    fields = {
        name: found.get(names.get(name, name))
        for name in (
            "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size",
            "max_position_embeddings", "rms_norm_eps", "rope_theta", "block_size", "mask_token_id", "num_target_layers",
            "conv_group_size", "selector_rank", "selector_top_k", "output_multiplier", "final_logit_softcapping",
        )
    }  # fmt: skip
    fields["kind"] = kind
    fields["rope_theta"] = float(found["rope_theta"])
    fields["rope_scaling"] = reader.rope_scaling(found["rope_type"] or "default")
    fields["layer_types"] = tuple(found["layer_types"])
    fields["target_layer_ids"] = tuple(found["target_layer_ids"])
    fields["sliding_window"] = found["sliding_window"] if "sliding_attention" in found["layer_types"] else None
    fields["is_causal"] = False if assistant and found["is_causal"] is None else found["is_causal"]
    fields["input_embedding_scale"] = 1.0 if found["input_embedding_scale"] is None else found["input_embedding_scale"]
    return Keys(fields, _DTYPES[found["dtype"]], _ASSISTANT_NAMES if assistant else {})


class _Config:
    """A raw configuration and the name that errors call it by."""

    def __init__(self, raw: dict, path: Path):
        self._raw, self._path = raw, path

    def error(self, sentence: str) -> SplashliteError:
        return SplashliteError(f"{self._path}: {sentence}")

    def architecture(self) -> str:
        """Which drafter this is; a quantized one, or something that is no drafter, is refused."""
        named = self._raw.get("architectures")
        if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str) or named[0] not in _KINDS:
            raise self.error(
                f"architectures is {named!r}, which is no drafter that splashlite knows ({', '.join(_KINDS)}): "
                "if this is a target, pass it with --target (target= in Python)"
            )
        for key in ("quantization", "quantization_config"):
            if self._raw.get(key) is not None:
                raise self.error(
                    f"{key}: quantized drafter files are not supported; use the published one and draft_bits=4"
                )
        wanted = "muse_glimmer_assistant" if named[0] == _ASSISTANT else "qwen3"
        if self._raw.get("model_type") != wanted:
            raise self.error(f"model_type must be {wanted!r} for {named[0]}, not {self._raw.get('model_type')!r}")
        for parent in (_NESTED, *_ROPE):
            if not isinstance(self._raw.get(parent), (dict, type(None))):
                raise self.error(f"{parent} must be an object or null")
        return named[0]

    def fact(self, name: str, required: bool):
        """The value of a fact, None if it is optional and absent."""
        places = _PLACES.get(name, ((name,),))
        found = {place: self._at(place) for place in places if self._has(place)}
        if name == "rope_type" and not found and not any(self._raw.get(parent) for parent in _ROPE):
            required = False  # a flat configuration without rope scaling
        if not found and required:
            where = " or ".join(".".join(place) for place in places)
            raise self.error(f"{name} is missing: a drafter's configuration must state it (as {where})")
        rule = _RULES[name]
        for place, value in found.items():
            if not rule.holds(value):
                raise self.error(f"{'.'.join(place)} is {value!r}, but must be {rule.says}")
        values = list(found.values())
        if any(value != values[0] for value in values):
            stated = " but ".join(f"{'.'.join(place)} is {value!r}" for place, value in found.items())
            raise self.error(f"{stated}: they must be equal")
        return values[0] if values else None

    def refuse_unknown(self, known: list[str]) -> None:
        """Refuse every key that is neither a known fact's nor known to be meaningless."""
        places = {place for name in known for place in _PLACES.get(name, ((name,),))}
        top = {place[0] for place in places} | {
            "architectures",
            "model_type",
            "quantization",
            "quantization_config",
            "model_file",
        }
        for key in self._raw:
            if key not in top and key not in _UNREAD and key not in _CARRIED:
                raise self.error(
                    f"{key} is unknown and may change what this kind of drafter computes: it is not supported"
                )
            if key in _CARRIED and not _CARRIED[key].holds(self._raw[key]):
                raise self.error(f"{key} is {self._raw[key]!r}, but must be {_CARRIED[key].says}")
        nested = {place[1] for place in places if place[0] == _NESTED and len(place) == 2}
        for key in self._raw.get(_NESTED) or {}:
            if key not in nested:
                raise self.error(
                    f"{_NESTED}.{key} is unknown and may change what this kind of drafter computes: it is not supported"
                )

    def rope_scaling(self, rope_type: str) -> dict | None:
        """The scaling as mlx-lm's initialize_rope takes it, None for plain RoPE."""
        stated = {}
        for parent in _ROPE:
            for key, value in (self._raw.get(parent) or {}).items():
                if key in ("rope_theta", "rope_type", "type"):
                    continue
                if stated.setdefault(key, value) != value:
                    raise self.error(f"{key} differs between {' and '.join(_ROPE)}: they must be equal")
        needed, allowed = _ROPE_KEYS[rope_type]
        for key in needed:
            if key not in stated:
                raise self.error(f"{key} is missing beside rope_type {rope_type!r}")
        for key, value in stated.items():
            if key not in needed + allowed:
                raise self.error(f"{key} is not supported beside rope_type {rope_type!r}")
            rule = _exactly(True) if key == "truncate" else _POSITIVE
            if not rule.holds(value):
                raise self.error(f"{key} is {value!r}, but must be {rule.says}")
        return {"rope_type": rope_type, **stated} if rope_type != "default" else None

    def _has(self, place: tuple[str, ...]) -> bool:
        inside = self._raw if len(place) == 1 else self._raw.get(place[0]) or {}
        return place[-1] in inside

    def _at(self, place: tuple[str, ...]):
        return self._raw[place[0]] if len(place) == 1 else self._raw[place[0]][place[1]]


def _check_together(found: dict, config: _Config) -> None:
    """Refuse values that contradict one another."""
    if len(found["layer_types"]) != found["num_hidden_layers"]:
        raise config.error(
            f"layer_types has {len(found['layer_types'])} entries, "
            f"but num_hidden_layers is {found['num_hidden_layers']}"
        )
    if found["num_attention_heads"] % found["num_key_value_heads"]:
        raise config.error(
            f"num_key_value_heads ({found['num_key_value_heads']}) must divide "
            f"num_attention_heads ({found['num_attention_heads']})"
        )
    slides = "sliding_attention" in found["layer_types"]
    if slides and found["sliding_window"] is None:
        raise config.error(
            "sliding_window is null, but layer_types names sliding_attention: it must be a whole number above 0"
        )
    if found["use_sliding_window"] is not None and found["use_sliding_window"] != slides:
        raise config.error(
            f"use_sliding_window is {found['use_sliding_window']}, but layer_types is {found['layer_types']}"
        )
    if found["vocab_size"] is not None and found["mask_token_id"] >= found["vocab_size"]:
        raise config.error(f"mask_token_id is {found['mask_token_id']}, but vocab_size is {found['vocab_size']}")
    layers = found["num_target_layers"]
    if layers is not None and max(found["target_layer_ids"]) >= layers:
        raise config.error(f"target_layer_ids is {found['target_layer_ids']}, but num_target_layers is {layers}")
    if "selector_top_k" not in found:
        return
    if found["selector_top_k"] > found["vocab_size"]:
        raise config.error(f"selector_top_k is {found['selector_top_k']}, but vocab_size is {found['vocab_size']}")
    if found["hidden_size"] % found["conv_group_size"]:
        raise config.error(
            f"conv_group_size ({found['conv_group_size']}) must divide hidden_size ({found['hidden_size']})"
        )
