"""Uploads an adapter's folder to the gateway, with a progress bar."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote

from protocol.artifacts import CONFIG_FILE, WEIGHTS_FILE
from tiergate.admin.client import AdminClient, Json
from tiergate.failure import Failure


def upload(
    client: AdminClient, folder: Path, *, name: str | None, model: str | None, tenant_id: str | None, replaces: bool
) -> Json:
    """Raises Failure."""
    name = name or folder.resolve().name
    _check(folder)
    model = model or _base_model(client, folder)
    existing = next(
        (row for row in client.rows("/adapters") if row["name"] == name and row["tenant_id"] == tenant_id), None
    )
    fields = {"name": name, "model": model}
    if tenant_id is not None:
        fields["tenant_id"] = tenant_id
    method, path = "POST", "/adapters"
    if existing is not None:
        if model in existing["variants"] and not replaces:
            raise Failure(
                f"there is an adapter {name!r} for {model!r}; replace it with --replace, or choose another --name",
                exit_code=1,
            )
        method, path, fields = "PUT", f"/adapters/{existing['id']}/variants/{quote(model)}", {}
    with ExitStack() as stack:
        config = stack.enter_context((folder / CONFIG_FILE).open("rb"))
        weights = stack.enter_context((folder / WEIGHTS_FILE).open("rb"))
        note = stack.enter_context(_progress(f"uploading {name}", (folder / WEIGHTS_FILE).stat().st_size))
        files = {"config": config, "weights": cast(BinaryIO, _Told(weights, note))}
        return client.upload(method, path, fields, files)


class _Told:
    """A file that reports how many bytes each read returned."""

    def __init__(self, file: BinaryIO, note: Callable[[int], None]) -> None:
        self._file = file
        self._note = note
        self.name = file.name

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self._note(len(block))
        return block

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def _progress(what: str, num_bytes: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, so that stdout holds nothing but the result."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        task = progress.add_task(what, total=num_bytes)
        yield lambda num: progress.advance(task, num)


def _check(folder: Path) -> None:
    for file in (CONFIG_FILE, WEIGHTS_FILE):
        if (folder / file).is_file():
            continue
        if file == WEIGHTS_FILE and (folder / "adapter_model.bin").is_file():
            raise Failure(f"{folder} holds a pickle, adapter_model.bin; save the adapter with safetensors")
        raise Failure(f"{folder}: there is no {file}; give the folder that PEFT saved")


def _base_model(client: AdminClient, folder: Path) -> str:
    """The model that the adapter's config names if the platform has it, otherwise the platform's only chat model.

    Raises Failure if there is neither.
    """
    try:
        named = json.loads((folder / CONFIG_FILE).read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise Failure(f"{folder / CONFIG_FILE} cannot be read: {error}") from error
    models = [row["id"] for row in client.rows("/models") if row["kind"] == "chat"]
    if named in models:
        return str(named)
    if len(models) == 1:
        return str(models[0])
    raise Failure(f"the base model {named!r} is none of the platform's; name one with --model: {', '.join(models)}")
