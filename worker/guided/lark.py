"""Translates a spec into llguidance's own form: Lark rules, and beside them the schemas and grammars that they name.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from protocol.guided import (
    AnyText,
    Choice,
    Grammar,
    InOrder,
    JsonSchema,
    Literal,
    Marked,
    OneOf,
    Regex,
    Spec,
    Tag,
    TaggedText,
)
from worker.guided.errors import BadGrammar
from worker.guided.patterns import check_weight
from worker.guided.schema import prepare_schema

MAX_DEPTH = 32
MAX_TAGS = 128
_ANY = "/(.|\\n)*/"
_REFUSED = ("%json", "%regex", "%llguidance", "%lark")
"""Grammar directives through which schemas would bypass our checks."""


def to_llguidance(spec: Spec, marks: Mapping[str, int]) -> str:
    """marks: the model's marks that are control tokens, with their ids. Raises BadGrammar."""
    writer = _Writer(marks)
    start = writer.write(spec, 0)
    rules = [f"start: {start or _quote('')}", *writer.rules]
    return json.dumps({"grammars": [{"name": "answer", "lark_grammar": "\n".join(rules)}, *writer.others]})


class _Writer:
    def __init__(self, marks: Mapping[str, int]) -> None:
        self._marks = marks
        self._any_mark = re.compile(f"({'|'.join(map(re.escape, marks))})") if marks else None
        self._is_marked = False
        self.rules: list[str] = []
        self.others: list[dict[str, Any]] = []

    def write(self, spec: Spec, depth: int) -> str:
        """An expression for the spec; adds the rules that it names."""
        if depth > MAX_DEPTH:
            raise BadGrammar(f"the format is nested deeper than {MAX_DEPTH}", code="invalid_schema")
        match spec:
            case AnyText():
                return self._rule(_ANY, is_terminal=True)
            case Literal():
                return self._text(spec.text)
            case Marked():
                was_marked, self._is_marked = self._is_marked, True
                written = self.write(spec.spec, depth)
                self._is_marked = was_marked
                return written
            case JsonSchema():
                schema = prepare_schema(spec.schema, whitespace=spec.whitespace, is_closed=spec.is_closed)
                return self._beside({"json_schema": schema})
            case Regex():
                check_weight(spec.pattern, "the pattern")
                # A separate rule, since Lark joins adjacent patterns.
                return self._rule(f"/{regex_to_lark(_no_newlines(spec.pattern), use_ascii='')}/", is_terminal=True)
            case Choice():
                # One lexeme, however many options there are.
                options = [_quote(option) for option in dict.fromkeys(spec.options) if option]
                name = self._rule(" | ".join(options), is_terminal=True) if options else ""
                return f"{name}?" if "" in spec.options and name else name
            case Grammar():
                return self._beside({"lark_grammar": _as_lark(spec.text)})
            case Tag():
                return " ".join(filter(None, (self._text(spec.begin), self._inside(spec, depth))))
            case TaggedText():
                return self._rule(self._tagged(spec, depth))
            case InOrder():
                return self._in_order(spec, depth)
            case OneOf():
                return self._rule(" | ".join(self._rule(self.write(each, depth + 1)) for each in spec.options))

    def _inside(self, tag: Tag, depth: int) -> str:
        """The part of a tag that follows its begin."""
        return self._in_order(InOrder((tag.content, Literal(tag.end))), depth)

    def _in_order(self, spec: InOrder, depth: int) -> str:
        written: list[str] = []
        parts = list(spec.parts)
        while parts:
            part = parts.pop(0)
            if isinstance(part, AnyText) and any(part != Literal("") for part in parts):
                following = parts.pop(0)
                if not isinstance(following, Literal) or not following.text:
                    raise BadGrammar("free text must be followed by a fixed text, which ends it, or by nothing")
                written.append(self._up_to(following.text))
            else:
                written.append(self.write(part, depth + 1))
        return " ".join(filter(None, written))

    def _tagged(self, spec: TaggedText, depth: int) -> str:
        if not spec.tags:
            raise BadGrammar("a text with tags needs at least one tag", code="invalid_schema")
        if spec.max_tags is not None and spec.max_tags < max(spec.min_tags, 1):
            raise BadGrammar(f"at most {spec.max_tags} and at least {spec.min_tags} tags", code="invalid_schema")
        if max(spec.min_tags, spec.max_tags or 0, len(spec.tags)) > MAX_TAGS:
            raise BadGrammar(f"at most {MAX_TAGS} tags are taken")
        if not spec.is_text_free:
            one = self._rule(" | ".join(self._rule(self.write(tag, depth + 1)) for tag in spec.tags))
            return self._repeated(one, spec)
        one = self._rule(" | ".join(self._triggered(trigger, spec, depth) for trigger in _triggers_of(spec)))
        tail = self._rule(_ANY, is_terminal=True)
        if spec.max_tags is None:
            return f"{_times(one, spec.min_tags, None)} {tail}"
        all_tags = _times(one, spec.max_tags, spec.max_tags)
        if spec.min_tags == spec.max_tags:
            return all_tags
        return f"{all_tags} | {_times(one, spec.min_tags, spec.max_tags - 1)} {tail}"

    def _repeated(self, one: str, spec: TaggedText) -> str:
        """Tags without free text."""
        another = self._rule(" ".join(filter(None, (self._text(spec.separator), one))))
        most = None if spec.max_tags is None else spec.max_tags - 1
        several = f"{one} {_times(another, max(spec.min_tags - 1, 0), most)}"
        return several if spec.min_tags else f"({several})?"

    def _triggered(self, trigger: str, spec: TaggedText, depth: int) -> str:
        """Free text up to the trigger, and then one of the tags that begin with it."""
        head = self._up_to(trigger)
        tags = [tag for tag in spec.tags if tag.begin.startswith(trigger)]
        rests = [
            self._rule(
                " ".join(filter(None, (self._text(tag.begin[len(trigger) :]), self._inside(tag, depth)))) or '""'
            )
            for tag in tags
        ]
        return f"{head} ({' | '.join(rests)})"

    def _text(self, text: str) -> str:
        return " ".join(self._pieces(text))

    def _up_to(self, text: str) -> str:
        """Any text, up to and including the given text that ends it."""
        first, *rest = self._pieces(text)
        if first.startswith("<["):
            # Free text never contains a control token.
            return " ".join((self._rule(_ANY, is_terminal=True), first, *rest))
        return " ".join((self._rule(f"{_ANY} {first}", is_lazy=True), *rest))

    def _pieces(self, text: str) -> list[str]:
        if not self._is_marked or self._any_mark is None:
            return [_quote(text)] if text else []
        parts = filter(None, self._any_mark.split(text))
        return [f"<[{self._marks[part]}]>" if part in self._marks else _quote(part) for part in parts]

    def _rule(self, body: str, *, is_terminal: bool = False, is_lazy: bool = False) -> str:
        number = len(self.rules)
        name = f"T{number}" if is_terminal else f"r{number}"
        self.rules.append(f"{name}{'[lazy]' if is_lazy else ''}: {body}")
        return name

    def _beside(self, grammar: dict[str, Any]) -> str:
        name = f"g{len(self.others)}"
        self.others.append({"name": name, **grammar})
        return f"@{name}"


def _triggers_of(spec: TaggedText) -> list[str]:
    triggers = list(dict.fromkeys(spec.triggers))
    if not triggers or not all(triggers):
        raise BadGrammar("tags in free text need triggers, which must not be empty", code="invalid_schema")
    for tag in spec.tags:
        if not any(tag.begin.startswith(trigger) for trigger in triggers):
            raise BadGrammar(f"no trigger begins the tag {tag.begin[:60]!r}", code="invalid_schema")
    return [trigger for trigger in triggers if any(tag.begin.startswith(trigger) for tag in spec.tags)]


def _times(rule: str, least: int, most: int | None) -> str:
    return "" if most == 0 else f"{rule}{{{least},{'' if most is None else most}}}"


def _as_lark(text: str) -> str:
    for directive in _REFUSED:
        if directive in text:
            raise BadGrammar(f"{directive} is not taken inside a grammar")
    check_weight(text, "the grammar")
    try:
        return any_to_lark(text)
    except (Exception, RecursionError) as error:  # the library raises its own and bare ones
        raise BadGrammar(f"the grammar is neither Lark nor GBNF: {error}", code="invalid_schema") from error


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _no_newlines(pattern: str) -> str:
    """A Lark pattern must stand on one line."""
    return pattern.replace("\r", "\\r").replace("\n", "\\n")
