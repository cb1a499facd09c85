"""The required format of an answer, as plain data between the HTTP layer that reads it and guided decoding."""

import msgspec


class AnyText(msgspec.Struct, frozen=True, tag=True):
    """Any text."""


class Literal(msgspec.Struct, frozen=True, tag=True):
    """Exactly this text."""

    text: str


class JsonSchema(msgspec.Struct, frozen=True, tag=True):
    """A JSON value that the schema allows. `{"type": "object"}` is any object.

    schema: JSON. whitespace: a regular expression for the whitespace between JSON tokens; "" for none, None for the
    worker's own rule. is_closed: objects have only the listed properties, unless their schema allows more explicitly.
    """

    schema: str
    whitespace: str | None = None
    is_closed: bool = False


class Regex(msgspec.Struct, frozen=True, tag=True):
    """A text that matches the pattern as a whole; in the syntax of Rust's regex."""

    pattern: str


class Choice(msgspec.Struct, frozen=True, tag=True):
    """One of these texts; at least one."""

    options: tuple[str, ...]


class Grammar(msgspec.Struct, frozen=True, tag=True):
    """A context-free grammar in the Lark dialect of llguidance, or in GBNF (llama.cpp)."""

    text: str


class Tag(msgspec.Struct, frozen=True, tag=True):
    """begin, content and end in sequence; begin and end are texts, one of which may be ""."""

    begin: str
    content: "Spec"
    end: str


class TaggedText(msgspec.Struct, frozen=True, tag=True):
    """Tags with free text around them.

    triggers: once the free text contains a trigger, a tag that begins with it must follow; each tag begins with a
    trigger. is_text_free: False for tags only, separated by `separator`. The answer ends with the max_tags-th tag.
    """

    tags: tuple[Tag, ...]
    triggers: tuple[str, ...] = ()
    min_tags: int = 0
    max_tags: int | None = None
    is_text_free: bool = True
    separator: str = ""


class InOrder(msgspec.Struct, frozen=True, tag=True):
    """The parts in sequence."""

    parts: tuple["Spec", ...]


class OneOf(msgspec.Struct, frozen=True, tag=True):
    """Any of the options; at least one."""

    options: tuple["Spec", ...]


class Marked(msgspec.Struct, frozen=True, tag=True):
    """The spec, with the model's marks in its literals, tags and triggers read as control tokens where the model has
    them. Not for texts that a client wrote."""

    spec: "Spec"


Spec = AnyText | Literal | JsonSchema | Regex | Choice | Grammar | Tag | TaggedText | InOrder | OneOf | Marked
ANY_OBJECT = JsonSchema(schema='{"type":"object"}')
