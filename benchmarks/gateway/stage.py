"""The setup that every row needs before a gateway starts: a folder, Valkey, the upstreams and a migrated database."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gateway.admin import make_full_key
from benchmarks.gateway.load import Load, Target
from benchmarks.gateway.machine import Cores
from benchmarks.gateway.servers import (
    Dialect,
    Gateway,
    Site,
    model_of,
    running_relay,
    running_upstreams,
    running_valkey,
)


@dataclass(frozen=True)
class Stage:
    """dialects: those to be measured. The gateway has a pool for each dialect in any case."""

    site: Site
    load: Load
    dialects: Sequence[Dialect]
    profile: Path | None = None

    @property
    def direct(self) -> Target:
        return Target("direct", (self.site.upstreams.ports["foreign"],))

    @contextmanager
    def gateway(
        self, name: str, *, num_processes: int = 1, cores: frozenset[int] | None = None
    ) -> Iterator[tuple[Gateway, dict[Dialect, Target]]]:
        """Yields a fresh gateway, and its target for each dialect."""
        profile = self.profile and self.profile.with_name(f"{self.profile.name}.{name}")
        with self.site.running_gateway(name, num_processes=num_processes, cores=cores, profile=profile) as gateway:
            key = make_full_key(gateway, f"tenant-{name}")
            targets = {each: Target(each, (gateway.port,), model_of(each), key) for each in self.dialects}
            yield gateway, targets

    @contextmanager
    def relay(self) -> Iterator[tuple[Gateway, Target]]:
        with running_relay(self.site.upstreams.ports["foreign"], self.site.cores) as relay:
            yield relay, Target("relay", (relay.port,))


@contextmanager
def open_stage(
    cores: Cores,
    dialects: Sequence[Dialect],
    *,
    profile: Path | None = None,
    database_url: str = "",
    over_tcp: bool = False,
) -> Iterator[Stage]:
    """database_url: SQLAlchemy's URL of an empty database; without it, an SQLite file in the folder is used. over_tcp:
    how Valkey is reached, instead of over its Unix socket."""
    with (
        tempfile.TemporaryDirectory(prefix="tiergate-benchmark-") as name,
        running_upstreams(cores) as upstreams,
        running_valkey(Path(name), cores, over_tcp=over_tcp) as redis_url,
    ):
        site = Site(Path(name), redis_url, upstreams, cores, database_url)
        site.migrate()
        yield Stage(site, Load(cores), dialects, profile)
