"""What an answer must look like: plain data between the HTTP surface that reads it and the worker's guided decoding."""

import msgspec


class AnyText(msgspec.Struct, frozen=True, tag=True):
    """Whatever the model writes."""


class Literal(msgspec.Struct, frozen=True, tag=True):
    """Exactly this text."""

    text: str


class JsonSchema(msgspec.Struct, frozen=True, tag=True):
    """A JSON value that the schema allows. `{"type": "object"}` is any object.

    schema: JSON. whitespace: a regular expression for what may stand between two of JSON's marks; "" for nothing, None
    for the worker's own rule. is_closed: objects have no properties beyond the listed ones, unless they say so.
    """

    schema: str
    whitespace: str | None = None
    is_closed: bool = False


class Regex(msgspec.Struct, frozen=True, tag=True):
    """A text that matches as a whole, in the syntax of Rust's regex."""

    pattern: str


class Choice(msgspec.Struct, frozen=True, tag=True):
    """One of these texts; at least one."""

    options: tuple[str, ...]


class Grammar(msgspec.Struct, frozen=True, tag=True):
    """A context-free grammar in the Lark dialect of llguidance, or in GBNF (llama.cpp)."""

    text: str


class Tag(msgspec.Struct, frozen=True, tag=True):
    """begin, content, end, one after the other; begin and end are texts, of which one may be ""."""

    begin: str
    content: "Spec"
    end: str


class TaggedText(msgspec.Struct, frozen=True, tag=True):
    """Tags with free text around them.

    triggers: as soon as the free text contains one of them, a tag that begins with it must follow; each tag begins with
    one. is_text_free: False for tags alone, with `separator` between two. The answer ends with the max_tags-th tag.
    """

    tags: tuple[Tag, ...]
    triggers: tuple[str, ...] = ()
    min_tags: int = 0
    max_tags: int | None = None
    is_text_free: bool = True
    separator: str = ""


class InOrder(msgspec.Struct, frozen=True, tag=True):
    """One part after the other."""

    parts: tuple["Spec", ...]


class OneOf(msgspec.Struct, frozen=True, tag=True):
    """Any of the options; at least one."""

    options: tuple["Spec", ...]


class Marked(msgspec.Struct, frozen=True, tag=True):
    """The spec, in whose literals, tags and triggers a model's marks are its control tokens where it has these: not
    for texts that a client wrote."""

    spec: "Spec"


Spec = AnyText | Literal | JsonSchema | Regex | Choice | Grammar | Tag | TaggedText | InOrder | OneOf | Marked
ANY_OBJECT = JsonSchema(schema='{"type":"object"}')
