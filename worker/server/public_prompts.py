"""The operator's public system prompts, as the token ids that chats using them begin with."""

from itertools import takewhile
from pathlib import Path

from protocol.errors import ProtocolError
from protocol.messages import SystemMessage, UserMessage
from text.bundle import Bundle
from text.folder import FolderError


def read_public_prompts(folder: Path, bundle: Bundle) -> list[list[int]]:
    """One prompt per *.txt file; a trailing newline does not count. Raises FolderError, one line naming the file."""
    if not folder.is_dir():
        raise FolderError(f"--public-prompts: {folder} is not a folder")
    return [_beginning(path, bundle) for path in sorted(folder.glob("*.txt"))]


def _beginning(path: Path, bundle: Bundle) -> list[int]:
    """The common prefix of two chats that differ from the user message's first letter on."""
    try:
        system = SystemMessage(content=path.read_text("utf-8").removesuffix("\n"))
        first, second = (bundle.encode_chat([system, UserMessage(content=letter)]) for letter in "ab")
    except (OSError, UnicodeError, ProtocolError) as error:
        raise FolderError(f"{path}: {error}") from error
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return [token_id for token_id, _ in pairs]
