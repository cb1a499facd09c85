"""Detects whether a text was written by a worker with `--watermark-key-file`."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tiergate.admin.options import AsJson
from tiergate.admin.output import show_row
from tiergate.failure import Failure

app = typer.Typer(name="watermark", help="Detect texts that were watermarked by a worker.")


@app.callback()
def _group() -> None:
    """Detect texts that were watermarked by a worker."""


@app.command()
def detect(
    file: Annotated[Path, typer.Argument(help="The text in UTF-8; - for standard input.")],
    key_file: Annotated[Path, typer.Option(help="The file with the worker's watermark key.")],
    model: Annotated[Path, typer.Option(help="The folder of the model's checkpoint, whose tokenizer is used.")],
    gamma: Annotated[float, typer.Option(min=0.01, max=0.99, help="The worker's --watermark-gamma.")] = 0.25,
    as_json: AsJson = False,
) -> None:
    """Tell by its z-score whether a text is watermarked: more than 4 is not chance. The exit code is 1 if it is not."""
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
