"""All that is needed to turn a model's text into ids. A worker serves it at `GET /tokenizer`; a gateway loads it."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from protocol.errors import ProtocolError
from protocol.messages import Message, Tool
from text.chat import PLAIN, ChatOptions, ChatTemplate
from text.folder import FolderError, read_chat_templates
from text.seal import Sealed
from text.tokenizer import Tokenizer

_LONG_CHARS = 50_000


class TextTooLong(Exception):
    """least_tokens: a lower bound of the text's tokens."""

    def __init__(self, least_tokens: int) -> None:
        super().__init__(f"at least {least_tokens} tokens")
        self.least_tokens = least_tokens


class BundleFile(msgspec.Struct, kw_only=True, frozen=True):
    """The JSON format of `to_bytes`."""

    schema_version: int = 1
    tokenizer_json: str
    chat_templates: dict[str, str]
    special_tokens: dict[str, str]
    eos_token_ids: list[int]
    max_model_len: int | None = None
    allow_special_tokens: bool = False


class Bundle:
    """template: None for a model that is not for chat. max_model_len: the window of the worker that serves the model.

    allow_special_tokens: the operator wants control tokens that a text prompt spells to count as such. Those spelled
    in chats never do.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        max_model_len: int | None,
        allow_special_tokens: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.max_model_len = max_model_len
        self.allow_special_tokens = allow_special_tokens

    @classmethod
    def from_folder(
        cls, folder: Path, *, max_model_len: int | None = None, allow_special_tokens: bool = False
    ) -> "Bundle":
        """Raises FolderError, one line naming the file."""
        try:
            sources = read_chat_templates(folder)
            tokenizer = Tokenizer.from_folder(folder, chat_templates=sources.values())
            template = _make_template(sources, tokenizer)
        except (ValueError, KeyError, TypeError) as error:
            raise FolderError(f"{folder}: {error}") from error
        return cls(tokenizer, template, max_model_len=max_model_len, allow_special_tokens=allow_special_tokens)

    @classmethod
    def from_bytes(cls, encoded: bytes) -> "Bundle":
        """Raises ValueError for what `to_bytes` did not write."""
        file = msgspec.json.decode(encoded, type=BundleFile)
        tokenizer = Tokenizer(
            file.tokenizer_json,
            special_tokens=file.special_tokens,
            eos_token_ids=file.eos_token_ids,
            chat_templates=file.chat_templates.values(),
        )
        return cls(
            tokenizer,
            _make_template(file.chat_templates, tokenizer),
            max_model_len=file.max_model_len,
            allow_special_tokens=file.allow_special_tokens,
        )

    def to_bytes(self) -> bytes:
        file = BundleFile(
            tokenizer_json=self.tokenizer.tokenizer_json,
            chat_templates=self.template.sources if self.template else {},
            special_tokens=self.tokenizer.special_tokens,
            eos_token_ids=sorted(self.tokenizer.eos_token_ids),
            max_model_len=self.max_model_len,
            allow_special_tokens=self.allow_special_tokens,
        )
        return msgspec.json.encode(file)

    def render_chat(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, options: ChatOptions = PLAIN
    ) -> Sealed:
        """Raises ProtocolError when there is no template or it refuses the messages."""
        if self.template is None:
            raise ProtocolError("this model has no chat template; use /v1/completions", code="no_chat_template")
        return self.template.render(messages, tools, options)

    def encode_chat(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, *, limit: int | None = None
    ) -> list[int]:
        """Raises TextTooLong for a text that cannot fit into `limit` tokens, before encoding it."""
        return self.encode_rendered(self.render_chat(messages, tools), limit=limit)

    def encode_rendered(
        self, rendered: Sealed, *, limit: int | None = None, add_special_tokens: bool = False
    ) -> list[int]:
        """Raises TextTooLong as `encode_chat` does.

        add_special_tokens: mostly False, since the template wrote the special tokens, and they would be added again.
        """
        return self._encode(rendered, limit, add_special_tokens=add_special_tokens)

    def encode_text(self, text: str, *, limit: int | None = None, add_special_tokens: bool = True) -> list[int]:
        """Encodes a text prompt. Raises TextTooLong as `encode_chat` does."""
        prompt = self.tokenizer.seal.close(text) if self.allow_special_tokens else text
        return self._encode(prompt, limit, add_special_tokens=add_special_tokens)

    def _encode(self, text: str, limit: int | None, *, add_special_tokens: bool) -> list[int]:
        # Looking up the longest token takes a moment, which pays only for a long text.
        if limit is not None and len(text) > _LONG_CHARS:
            least = self.tokenizer.least_tokens(text)
            if least > limit:
                raise TextTooLong(least)
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)


def _make_template(sources: dict[str, str], tokenizer: Tokenizer) -> ChatTemplate | None:
    return ChatTemplate(sources, tokenizer.special_tokens, tokenizer.seal) if sources else None
