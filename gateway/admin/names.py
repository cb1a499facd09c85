"""Names that people give to things: what every database and every page can show."""

from typing import Annotated

from pydantic import AfterValidator, Field


def _printable(name: str) -> str:
    if not name.strip() or any(ord(char) < 32 or ord(char) == 127 for char in name):
        raise ValueError("must not be blank or hold control characters")
    return name


Name = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_printable)]

ModelId = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\s\p{Cc}]+$")]
