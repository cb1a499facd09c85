"""A compiled grammar, and how far one answer has come in it."""

from collections.abc import Callable, Iterable

import numpy as np
from llguidance import LLMatcher


class Grammar:
    """Thread-safe. What its matchers find out about the vocabulary is shared by all of them."""

    def __init__(self, template: LLMatcher, eos_token_id: int, forget: Callable[[], None] = lambda: None) -> None:
        """forget: has the next one who wants this grammar get a new one."""
        self._template = template
        self._eos_token_id = eos_token_id
        self._forget = forget

    def start(self, given_ids: Iterable[int] = ()) -> "Matcher":
        """given_ids: what the answer has already. Raises ValueError where the grammar does not allow these."""
        matcher = Matcher(self._template.deep_copy(), self._eos_token_id, self._forget)
        for token_id in given_ids:
            matcher.accept(token_id)
            if matcher.error:
                raise ValueError(matcher.error)
        return matcher


class Matcher:
    """One answer's place in a grammar. Not thread-safe."""

    def __init__(self, ll: LLMatcher, eos_token_id: int, forget: Callable[[], None]) -> None:
        self.ll = ll
        self._eos_token_id = eos_token_id
        self._forget = forget

    def accept(self, token_id: int) -> None:
        """Go on by a token, the last one included; one that is not allowed is an error from then on."""
        self.ll.consume_token(token_id)

    def force(self) -> list[int]:
        """Go on by the tokens that must come now, without a choice, and return them. The end is the last of them where
        nothing else may come."""
        forced = self.ll.compute_ff_tokens()
        if forced:
            # A tokenizer that changes the text on its way would give tokens that do not fit.
            forced = forced[: self.ll.try_consume_tokens(forced)]
        if self.ll.is_stopped() and not self.ll.is_error() and self.ll.is_accepting():
            forced.append(self._eos_token_id)
        return forced

    def next_ids(self) -> set[int]:
        """The tokens that may come now; slow beside a `MaskFiller`."""
        bits = np.unpackbits(np.frombuffer(self.ll.compute_bitmask(), dtype=np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist())

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may come."""
        return self.ll.is_stopped()

    def give_up(self) -> None:
        """After an error: the limit that it came upon may be one of the state that it shares."""
        self._forget()

    @property
    def error(self) -> str:
        """Why nothing more may come, although the grammar is not at an end; empty while all is well."""
        return self.ll.get_error().partition("\n")[0] if self.ll.is_error() else ""
