"""Structural tags as sent in requests: vLLM's older form with structures and triggers, and the newer form, a tree."""

import msgspec

from protocol import guided


class _Part(msgspec.Struct, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """A node of the tree; `type` selects its kind."""


class AnyTextPart(_Part, tag="any_text"):
    def spec(self) -> guided.Spec:
        return guided.AnyText()


class ConstPart(_Part, tag="const_string"):
    value: str

    def spec(self) -> guided.Spec:
        return guided.Literal(self.value)


class SchemaPart(_Part, tag="json_schema"):
    json_schema: msgspec.Raw

    def spec(self) -> guided.Spec:
        return guided.JsonSchema(bytes(self.json_schema).decode())


class RegexPart(_Part, tag="regex"):
    pattern: str

    def spec(self) -> guided.Spec:
        return guided.Regex(self.pattern)


class GrammarPart(_Part, tag="grammar"):
    grammar: str

    def spec(self) -> guided.Spec:
        return guided.Grammar(self.grammar)


class SequencePart(_Part, tag="sequence"):
    elements: "list[TagFormat]"

    def spec(self) -> guided.Spec:
        return guided.InOrder(tuple(each.spec() for each in self.elements))


class OrPart(_Part, tag="or"):
    elements: "list[TagFormat]"

    def spec(self) -> guided.Spec:
        return guided.OneOf(tuple(each.spec() for each in self.elements))


class TagPart(_Part, tag="tag"):
    begin: str
    content: "TagFormat"
    end: str

    def spec(self) -> guided.Tag:
        return guided.Tag(self.begin, self.content.spec(), self.end)


class TriggeredTagsPart(_Part, tag="triggered_tags"):
    triggers: list[str]
    tags: list[TagPart]
    at_least_one: bool = False
    stop_after_first: bool = False

    def spec(self) -> guided.Spec:
        return guided.TaggedText(
            tuple(each.spec() for each in self.tags),
            tuple(self.triggers),
            min_tags=int(self.at_least_one),
            max_tags=1 if self.stop_after_first else None,
        )


class SeparatedTagsPart(_Part, tag="tags_with_separator"):
    tags: list[TagPart]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False

    def spec(self) -> guided.Spec:
        return guided.TaggedText(
            tuple(each.spec() for each in self.tags),
            min_tags=int(self.at_least_one),
            max_tags=1 if self.stop_after_first else None,
            is_text_free=False,
            separator=self.separator,
        )


TagFormat = (
    AnyTextPart
    | ConstPart
    | SchemaPart
    | RegexPart
    | GrammarPart
    | SequencePart
    | OrPart
    | TagPart
    | TriggeredTagsPart
    | SeparatedTagsPart
)


class Structure(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    begin: str
    schema: msgspec.Raw
    end: str


def triggered(structures: list[Structure], triggers: list[str]) -> guided.Spec:
    """The spec of the older form."""
    tags = [guided.Tag(each.begin, guided.JsonSchema(bytes(each.schema).decode()), each.end) for each in structures]
    return guided.TaggedText(tuple(tags), tuple(triggers))
