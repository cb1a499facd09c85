"""The file of a backup: each damage is told, and told before anything is done with it."""

import io
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
import zstandard

from gateway.domain.tables import Base
from gateway.peppers import id_of
from tests.support.cli import refusal, tiergate
from tiergate.backup.archive import ArchiveWriter, verify
from tiergate.backup.manifest import Manifest
from tiergate.backup.rows import kind_of
from tiergate.failure import Failure

CONTENT = bytes(range(256)) * 40


def write_archive(path: Path, *, revision: str = "0001", version: str = "0.1.0", **members: bytes) -> Manifest:
    with path.open("wb") as file:
        archive = ArchiveWriter(file)
        for name, content in members.items():
            archive.add(name, len(content), [content[:100], content[100:]])
        manifest = Manifest(
            id="b1",
            taken_at=datetime(2026, 5, 1, tzinfo=UTC),
            tiergate_version=version,
            revision=revision,
            database="sqlite",
            pepper_ids=(id_of("pepper-of-the-tests").hex(),),
            has_objects=True,
            rows={},
            outboxes={},
            missing_objects=(),
            members=archive.members,
        )
        archive.finish(manifest)
    return manifest


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    write_archive(tmp_path / "backup", a=CONTENT, b=b"")
    return tmp_path / "backup"


def test_what_was_written_is_read_again_by_others_too(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    assert write_archive(path, a=CONTENT, b=b"") == verify(path)
    # As `tar --zstd` does: all frames, whatever they are.
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as plain:
        content = io.BytesIO(plain.read())
    with tarfile.open(fileobj=content) as archive:
        files = {name: archive.extractfile(name) for name in ("a", "b")}
        assert {name: file and file.read() for name, file in files.items()} == {"a": CONTENT, "b": b""}


def test_a_flipped_bit_is_found_wherever_it_is(backup: Path) -> None:
    whole = backup.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        backup.write_bytes(damaged)
        with pytest.raises(Failure):
            verify(backup)
    assert len(whole) > 500


def test_one_that_was_cut_or_goes_on_is_found_wherever_it_was(backup: Path) -> None:
    whole = backup.read_bytes()
    for length in range(len(whole)):
        backup.write_bytes(whole[:length])
        with pytest.raises(Failure):
            verify(backup)
    backup.write_bytes(whole + b"\0")
    with pytest.raises(Failure):
        verify(backup)


def test_a_member_that_changes_while_it_is_copied_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "backup").open("wb") as file, pytest.raises(Failure, match="changed while"):
        ArchiveWriter(file).add("a", 10, [b"123"])


def test_every_column_of_every_table_has_a_form_of_its_own() -> None:
    assert all(kind_of(column.type) for table in Base.metadata.sorted_tables for column in table.columns)


def test_verifying_tells_what_is_wrong_in_one_line(tmp_path: Path, backup: Path) -> None:
    whole = backup.read_bytes()
    assert "2026-05-01" in tiergate("verify-backup", str(backup)).stdout
    for content, told in (
        (whole[:-1], "cut short"),
        (whole[:300] + b"\0\0\0" + whole[303:], "damaged"),
        (b"PK\x03\x04" + whole, "no backup"),
        (b"", "no backup"),
    ):
        backup.write_bytes(content)
        assert told in refusal("verify-backup", str(backup))
    assert "no file" in refusal("verify-backup", str(tmp_path / "nowhere"))
