"""What a chat template can be told besides the messages."""

from splashlite.errors import UsageError

RESERVED = frozenset(  # what a caller gives in other ways, or the tokenizer itself
    "messages tools documents add_generation_prompt continue_final_message chat_template tokenize "
    "bos_token eos_token unk_token pad_token raise_exception strftime_now".split()
)


def variables(source: str) -> frozenset[str]:
    """The names that a template reads. Raises UsageError when it is not valid Jinja."""
    from jinja2 import TemplateSyntaxError, meta
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):  # transformers' own block, which marks what the assistant says
        tags = frozenset({"generation"})

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)

    environment = ImmutableSandboxedEnvironment(extensions=[loopcontrols, Generation])
    try:
        return frozenset(meta.find_undeclared_variables(environment.parse(source)))
    except TemplateSyntaxError as problem:
        raise UsageError(f"this model's chat template is not valid Jinja: {problem}") from None


def unread(settings: dict, read: frozenset[str]) -> tuple[str, str] | None:
    """The first of a caller's settings that a template reading these names does not take, and which ones it does."""
    name = next((each for each in settings if each in RESERVED or each not in read), None)
    if name is None:
        return None
    readable = sorted(read - RESERVED)
    return name, f"it reads {', '.join(readable)}" if readable else "it reads none"
