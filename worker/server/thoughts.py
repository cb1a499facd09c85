"""Takes the thoughts out of one answer's text, token by token, so that each token counts as thought or as answer."""

from text.reasoning import ReasoningFormat, ReasoningReader, is_thinking_begun
from text.tokenizer import Tokenizer

_NUM_LAST = 16
"""Tokens at the prompt's end that are searched for the opening mark; the mark and white space after it are fewer."""


class AnswerThoughts:
    """reasoning: None if thoughts are not taken out."""

    def __init__(self, reasoning: ReasoningFormat | None, tokenizer: Tokenizer, prompt_ids: list[int]) -> None:
        self._reader: ReasoningReader | None = None
        if reasoning is not None:
            prompt_end = tokenizer.decode(prompt_ids[-_NUM_LAST:], skip_special_tokens=False)
            self._reader = ReasoningReader(reasoning, is_begun=is_thinking_begun(reasoning, prompt_end))
        self._thought = ""
        self._num_chars = 0
        self.num_tokens = 0
        """Tokens of the thoughts and of the marks around them."""

    def add(self, text: str) -> str:
        """text: one token's. Returns the part that belongs to the answer."""
        if self._reader is None or self._reader.is_over:
            return text
        was_thinking = self._reader.is_thinking
        rest = self._read(self._reader, text, is_last=False)
        self.num_tokens += was_thinking or self._reader.is_thinking
        return rest

    def flush(self, text: str) -> str:
        """Like `add`, at the end, with the remaining text of the last tokens."""
        return text if self._reader is None else self._read(self._reader, text, is_last=True)

    def _read(self, reader: ReasoningReader, text: str, *, is_last: bool) -> str:
        num_before = reader.num_held + len(text)
        thought, rest = reader.add(text)
        if is_last:
            last_thought, last = reader.flush()
            thought, rest = thought + last_thought, rest + last
        self._thought += thought
        self._num_chars += num_before - reader.num_held - len(rest)
        return rest

    def take(self) -> tuple[str, int]:
        """The thoughts since the last call, and how many characters of the text they and their marks used up."""
        taken = self._thought, self._num_chars
        self._thought, self._num_chars = "", 0
        return taken
