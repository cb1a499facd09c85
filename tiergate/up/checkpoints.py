"""Chooses the checkpoints and adapters of the two pools: the demo's, or the user's own."""

from pathlib import Path

import msgspec

from router.fleet import LARGE, SMALL
from tiergate.failure import Failure

_DEMO = Path(__file__).parents[2] / "demo"
"""The demo is beside this package, both in a checkout and in an installation."""


class Checkpoint(msgspec.Struct, kw_only=True, frozen=True):
    """adapters: name -> folder."""

    pool: str
    name: str
    path: Path
    adapters: dict[str, Path]


def choose_checkpoints(small: Path | None, large: Path | None) -> tuple[Checkpoint, Checkpoint]:
    """Raises Failure when a folder is missing."""
    chosen = (_choose(SMALL, small), _choose(LARGE, large))
    if chosen[0].name != chosen[1].name:
        return chosen
    # Both folders have the same name, but the two pools need two model ids.
    first, second = (msgspec.structs.replace(each, name=f"{each.name}-{each.pool}") for each in chosen)
    return first, second


def _choose(pool: str, path: Path | None) -> Checkpoint:
    if path is not None:
        if not (path / "config.json").is_file():
            raise Failure(f"--{pool} {path}: there is no config.json; give the folder of a Hugging Face checkpoint")
        resolved = path.resolve()
        # A model id must not contain spaces.
        name = "-".join(resolved.name.split())
        return Checkpoint(pool=pool, name=name, path=resolved, adapters={})
    if not (_DEMO / "models" / pool / "config.json").is_file():
        raise Failure(f"the demo model {_DEMO / 'models' / pool} is missing; give a checkpoint with --{pool} PATH")
    folders = sorted((_DEMO / "adapters" / pool).glob("*/adapter_config.json"))
    adapters = {file.parent.name: file.parent for file in folders}
    return Checkpoint(pool=pool, name=f"tiergate-demo-{pool}", path=_DEMO / "models" / pool, adapters=adapters)
