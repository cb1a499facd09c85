"""The failure of a command: one line on stderr and an exit code."""

import typer

BAD_INPUT = 2


class Failure(typer.TyperException):
    """`main` prints the message as `tiergate <command>: message`. Exit code 2: the user has to change something."""

    def __init__(self, message: str, *, exit_code: int = BAD_INPUT) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code
