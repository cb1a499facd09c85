"""Platforms the user has logged in to: address and key by profile name, in a file that only its owner can read."""

import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from tiergate.failure import Failure

DEFAULT = "default"


@dataclass(frozen=True)
class Profile:
    base_url: str
    admin_key: str


@dataclass
class Profiles:
    current: str
    by_name: dict[str, Profile]


def profiles_path() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tiergate" / "profiles.json"


def read_profiles() -> Profiles:
    """Raises Failure if other users may read the file, or if it cannot be read."""
    path = profiles_path()
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise Failure(f"{path} holds keys, and others may read it: `chmod 600 {path}`")
            text = file.read()
    except FileNotFoundError:
        return Profiles(DEFAULT, {})
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{path}: {error}") from error
    try:
        found = json.loads(text)
        known = {
            str(name): Profile(str(of["base_url"]), str(of["admin_key"])) for name, of in found["profiles"].items()
        }
        return Profiles(str(found["current"]), known)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failure(f"{path} is not as `tiergate login` writes it; remove it and log in again") from error


def write_profiles(profiles: Profiles) -> None:
    """Replace the file atomically. Raises Failure."""
    path = profiles_path()
    text = json.dumps(
        {"current": profiles.current, "profiles": {name: asdict(of) for name, of in profiles.by_name.items()}}, indent=2
    )
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text + "\n")
        made.replace(path)
    except OSError as error:
        raise Failure(f"{path}: {error}") from error


def chosen_profile() -> Profile | None:
    """The profile named by TIERGATE_PROFILE, otherwise the current one; None if there is none. Raises Failure."""
    profiles = read_profiles()
    asked = os.environ.get("TIERGATE_PROFILE")
    if asked and asked not in profiles.by_name:
        raise Failure(f"TIERGATE_PROFILE: there is no profile {asked!r}; `tiergate login --profile {asked}` makes it")
    return profiles.by_name.get(asked or profiles.current)
