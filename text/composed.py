"""Control tokens that a template puts together: `'<|' + message.role + '|>'`, as Phi-3, GLM-4 and EXAONE do.

No string of such a template holds the whole token. So the strings that may begin a token and those that may end one are
marked. After rendering, a control token is a marked beginning, followed by a role or a word of the template's own,
followed by a marked end. The same word from a user carries a mark that spoils the token.
"""

import re
from collections.abc import Iterable
from typing import Any

from text.seal import Seal, Sealed

ROLES = frozenset(("system", "developer", "user", "assistant", "tool"))


class Composition:
    """The control tokens that a template's strings can make together with a role or with each other."""

    def __init__(self, seal: Seal, literals: Iterable[str]) -> None:
        found = list(literals)
        longest = max(map(len, seal.names), default=0)
        tails = {text[-size:] for text in found for size in range(1, min(len(text), longest) + 1)}
        heads = {text[:size] for text in found for size in range(1, min(len(text), longest) + 1)}
        words = ROLES.union(found)
        self._tokens = {
            (token[:start], token[start:end], token[end:]): token
            for token in seal.names
            for start in range(1, len(token) - 1)
            if token[:start] in tails
            for end in range(start + 1, len(token))
            if token[end:] in heads and token[start:end] in words
        }
        self._seal = seal
        self._begins, self._ends, self._spoils = (f"<{seal.secret}-{mark}>" for mark in ("begins", "ends", "spoils"))
        self._words = {word for _, word, _ in self._tokens}
        self._whole = re.compile("|".join(map(self._spelled, self._tokens)) or r"(?!)")
        self._marks = re.compile(f"<{seal.secret}-(?:begins|ends|spoils)>")

    def mark(self, literal: str) -> str:
        """A string of the template with its whole control tokens sealed, and beginnings and ends of others marked."""
        text: str = self._seal.close(literal)
        if self._tokens:
            text = self._mark_end(self._mark_beginning(text))
        return text

    def spoil(self, value: Any) -> Any:
        """A user's string, or JSON with strings, with words of control tokens marked as not being part of one."""
        if not self._tokens:
            return value
        if isinstance(value, str):
            word = value.strip()
            is_part = bool(word) and any(word in each for each in self._words)
            return value.replace(word, word + self._spoils) if is_part else value
        if isinstance(value, dict):
            return {self.spoil(key): self.spoil(each) for key, each in value.items()}
        return [self.spoil(each) for each in value] if isinstance(value, list) else value

    def close(self, rendered: str) -> Sealed:
        """Seals the control tokens that are complete by their marks, and removes all other marks."""
        if not self._tokens:
            return Sealed(rendered)
        return Sealed(self._marks.sub("", self._whole.sub(self._name, rendered)))

    def _name(self, found: re.Match[str]) -> str:
        return self._seal.name_of(self._marks.sub("", found[0]))

    def _spelled(self, parts: tuple[str, str, str]) -> str:
        beginning, word, end = parts
        return re.escape(f"{self._begins}{beginning}{word}{end}{self._ends}")

    def _mark_beginning(self, text: str) -> str:
        beginnings = [beginning for beginning, _, _ in self._tokens if text.endswith(beginning)]
        size = max(map(len, beginnings), default=0)
        return f"{text[: len(text) - size]}{self._begins}{text[len(text) - size :]}" if size else text

    def _mark_end(self, text: str) -> str:
        ends = [end for _, _, end in self._tokens if text.startswith(end)]
        size = max(map(len, ends), default=0)
        return f"{text[:size]}{self._ends}{text[size:]}" if size else text
