from pathlib import Path

import pytest

from tiergate.failure import Failure
from tiergate.up.checkpoints import Checkpoint, choose_checkpoints
from tiergate.up.plan import Plan, Ports, make_plan
from tiergate.up.ports import free_ports
from tiergate.up.secrets import Secrets

KEPT = Secrets(
    worker_key="the-worker-key",
    key_pepper="the-pepper",
    admin_key="the-admin",
    valkey_password="the-password",
    clickhouse_password="the-other-password",
)


def plan(*, num_cores: int = 8) -> Plan:
    checkpoints = [
        Checkpoint(pool="small", name="s", path=Path("/models/s"), adapters={"pirate": Path("/adapters/pirate")}),
        Checkpoint(pool="large", name="l", path=Path("/models/l"), adapters={}),
    ]
    return make_plan(
        Path("/data"),
        checkpoints,
        ports=Ports(gateway=1, valkey=2, clickhouse=3, workers=(4, 5)),
        kept=KEPT,
        valkey=(Path("/valkey-server"), Path("/valkey.conf")),
        environment={"PATH": "/bin", "TIERGATE_DATA_DIR": "/elsewhere"},
        num_cores=num_cores,
    )


def folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def test_no_secret_is_an_argument() -> None:
    made = plan()
    specs = (made.valkey, made.clickhouse, *made.workers, made.migrate, made.consumer, made.gateway)
    arguments = " ".join(text for spec in specs for text in spec.argv)
    assert "the-" not in arguments


def test_the_gateway_and_the_consumer_send_what_clickhouse_demands() -> None:
    made = plan()
    assert made.clickhouse.env["TIERGATE_CLICKHOUSE_PASSWORD"] == "the-other-password"
    for spec in (made.gateway, made.consumer):
        assert spec.env["TIERGATE_CLICKHOUSE_URL"] == "http://tiergate:the-other-password@127.0.0.1:3"


@pytest.mark.parametrize(("num_cores", "expected"), [(1, "1"), (2, "1"), (8, "4")])
def test_the_workers_share_the_cores(num_cores: int, expected: str) -> None:
    for spec in plan(num_cores=num_cores).workers:
        assert spec.env["OMP_NUM_THREADS"] == expected


def test_each_worker_serves_its_own_adapters() -> None:
    small, large = plan().workers
    assert "--adapter=pirate=/adapters/pirate" in small.argv
    assert not any("--adapter" in text for text in large.argv)
    assert (small.name, large.name) == ("worker-small", "worker-large")


def test_our_settings_win_over_the_environments() -> None:
    assert plan().gateway.env["TIERGATE_DATA_DIR"] == "/data"
    assert plan().gateway.env["PATH"] == "/bin"


def test_checkpoints_are_named_by_their_folders(tmp_path: Path) -> None:
    small, large = choose_checkpoints(folder(tmp_path / "qwen"), folder(tmp_path / "llama"))
    assert (small.name, large.name) == ("qwen", "llama")


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"--large .*config\.json"):
        choose_checkpoints(folder(tmp_path / "a"), tmp_path)


def test_free_ports_are_distinct() -> None:
    assert len(set(free_ports(20))) == 20
