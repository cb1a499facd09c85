"""A compiled grammar, and one answer's position in it."""

from collections.abc import Callable, Iterable

import numpy as np
from llguidance import LLMatcher


class Grammar:
    """Thread-safe. All its matchers share what each finds out about the vocabulary."""

    def __init__(self, template: LLMatcher, eos_token_id: int, forget: Callable[[], None] = lambda: None) -> None:
        """forget: drops this grammar from the cache, so that the next request for it gets a new one."""
        self._template = template
        self._eos_token_id = eos_token_id
        self._forget = forget

    def start(self, given_ids: Iterable[int] = ()) -> "Matcher":
        """given_ids: tokens that the answer already has. Raises ValueError if the grammar does not allow them."""
        matcher = Matcher(self._template.deep_copy(), self._eos_token_id, self._forget)
        for token_id in given_ids:
            matcher.accept(token_id)
            if matcher.error:
                raise ValueError(matcher.error)
        return matcher


class Matcher:
    """One answer's position in a grammar. Not thread-safe."""

    def __init__(self, ll: LLMatcher, eos_token_id: int, forget: Callable[[], None]) -> None:
        self.ll = ll
        self._eos_token_id = eos_token_id
        self._forget = forget

    def accept(self, token_id: int) -> None:
        """Advance by a token, the last one included. A token that is not allowed puts the matcher in error."""
        self.ll.consume_token(token_id)

    def force(self) -> list[int]:
        """Advance by the tokens that must come next, and return them. The last is the end token where nothing else may
        follow."""
        forced = self.ll.compute_ff_tokens()
        if forced:
            # A tokenizer that normalises its text may yield tokens that do not fit.
            forced = forced[: self.ll.try_consume_tokens(forced)]
        if self.ll.is_stopped() and not self.ll.is_error() and self.ll.is_accepting():
            forced.append(self._eos_token_id)
        return forced

    def next_ids(self) -> set[int]:
        """The tokens that may come next; slow compared with a `MaskFiller`."""
        bits = np.unpackbits(np.frombuffer(self.ll.compute_bitmask(), dtype=np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist())

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may come."""
        return self.ll.is_stopped()

    def give_up(self) -> None:
        """Drop the grammar after an error: the limit that was hit may be one of the state that matchers share."""
        self._forget()

    @property
    def error(self) -> str:
        """Why nothing more may come although the grammar has not ended; empty if there is no error."""
        return self.ll.get_error().partition("\n")[0] if self.ll.is_error() else ""
