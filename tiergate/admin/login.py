import sys
from typing import Annotated

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AsJson
from tiergate.admin.output import show_row, show_rows
from tiergate.admin.profiles import DEFAULT, Profile, profiles_path, read_profiles, write_profiles
from tiergate.failure import Failure

ProfileName = Annotated[str, typer.Option("--profile", help="The name under which the platform is kept.")]


def login(
    profile: ProfileName = DEFAULT,
    base_url: Annotated[str, typer.Option(help="The gateway's base URL.")] = DEFAULT_BASE_URL,
    as_json: AsJson = False,
) -> None:
    """Store a platform's address and an admin key, which is asked for, so that commands need neither.

    From then on commands use this platform. `TIERGATE_PROFILE=NAME` selects another profile, and --admin-key overrides
    profiles.
    """
    from tiergate.admin.client import AdminClient

    # From a pipe or a terminal, never from the arguments, which every user of the machine can read.
    key = typer.prompt("Admin key", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    key = key.strip()
    if not key:
        raise Failure("no key was given")
    with AdminClient(base_url, key) as client:
        client.get("/keys", limit=1)
    profiles = read_profiles()
    profiles.by_name[profile] = Profile(base_url, key)
    profiles.current = profile
    write_profiles(profiles)
    if as_json:
        show_row({"profile": profile, "base_url": base_url, "kept_in": str(profiles_path())}, as_json=True)
    else:
        typer.echo(f"logged in to {base_url} as profile {profile}; kept in {profiles_path()}")


def logout(profile: ProfileName = DEFAULT) -> None:
    """Forget a profile. Its key keeps working until `tiergate key revoke`."""
    profiles = read_profiles()
    if profiles.by_name.pop(profile, None) is None:
        raise Failure(f"there is no profile {profile!r}")
    if profiles.current == profile:
        profiles.current = next(iter(profiles.by_name), DEFAULT)
    write_profiles(profiles)


def list_profiles(as_json: AsJson = False) -> None:
    """List the platforms that `tiergate login` has stored."""
    profiles = read_profiles()
    rows = [
        {"profile": name, "base_url": each.base_url, "is_current": name == profiles.current}
        for name, each in profiles.by_name.items()
    ]
    show_rows(rows, as_json=as_json)
