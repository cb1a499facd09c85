from pathlib import Path

import pytest

from protocol.object_store import BadStoreUrl, local_folder, open_object_store


@pytest.mark.parametrize("url", ["ftp://x/y", "s3://", "file://elsewhere/x", "https://x/y"])
def test_what_is_no_store_is_refused(url: str) -> None:
    with pytest.raises(BadStoreUrl, match=url):
        open_object_store(url)


def test_a_folder_is_made_and_is_private(tmp_path: Path) -> None:
    store = open_object_store(f"file://{tmp_path}/a%20b/c")
    store.put("x", b"1")
    assert (tmp_path / "a b" / "c" / "x").read_bytes() == b"1"
    assert (tmp_path / "a b" / "c").stat().st_mode & 0o077 == 0
    assert local_folder("s3://bucket/prefix") is None


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadStoreUrl, match="file"):
        open_object_store(str(tmp_path / "file"))
