"""Whether a text was written by a worker with `--watermark-key-file`."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tiergate.admin.options import AsJson
from tiergate.admin.output import show_row
from tiergate.failure import Failure

app = typer.Typer(name="watermark", help="Texts that our workers marked.")


@app.callback()
def _group() -> None:
    """Texts that our workers marked."""


@app.command()
def detect(
    file: Annotated[Path, typer.Argument(help="The text, as UTF-8; - for standard input.")],
    key_file: Annotated[Path, typer.Option(help="The key that the worker has.")],
    model: Annotated[Path, typer.Option(help="Folder of the model's checkpoint: its tokenizer is used.")],
    gamma: Annotated[float, typer.Option(min=0.01, max=0.99, help="As at the worker.")] = 0.25,
    as_json: AsJson = False,
) -> None:
    """Tell by its z-score whether a text has the watermark: more than 4 is no chance. Exit code 1: it has not."""
    from text.folder import FolderError
    from text.tokenizer import Tokenizer
    from text.watermark import KeyFileError, read_watermark

    try:
        written = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        watermark = read_watermark(key_file, gamma=gamma)
        token_ids = Tokenizer.from_folder(model).encode(written, add_special_tokens=False)
    except (OSError, UnicodeDecodeError, KeyFileError, FolderError) as error:
        raise Failure(str(error)) from error
    found = watermark.detect(token_ids)
    show_row({**asdict(found), "is_watermarked": found.is_watermarked}, as_json=as_json)
    raise typer.Exit(0 if found.is_watermarked else 1)
