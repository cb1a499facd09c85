"""Fetching by digest from a folder and from S3: every byte is checked, nothing half fetched stays, disk is bounded."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocol.artifacts import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, object_path
from tests.support.adapter_files import config_bytes, tensors, weights_bytes
from tests.support.object_stores import S3Server
from tests.support.ports import free_port
from tests.support.stored_adapters import store_adapter
from worker.artifacts.cache import ArtifactCache, CacheError
from worker.artifacts.errors import BadArtifact, NotInStore, StoreAway


def write(folder: Path, *, alpha: int = 8, layers: int = 2) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_bytes(config_bytes(lora_alpha=alpha))
    (folder / WEIGHTS_FILE).write_bytes(weights_bytes(tensors(layers=layers)))
    return folder


@contextmanager
def opened(url: str, folder: Path, *, max_bytes: int = 1 << 30) -> Iterator[ArtifactCache]:
    cache = ArtifactCache(url, folder, max_bytes=max_bytes)
    try:
        yield cache
    finally:
        cache.close()


def names(cache_folder: Path) -> list[str]:
    return sorted(path.name for path in cache_folder.iterdir() if path.is_dir())


async def test_an_adapter_comes_from_s3_whole(s3: S3Server, tmp_path: Path) -> None:
    source, url = write(tmp_path / "a"), f"s3://{s3.make_bucket()}/prefix"
    digest = await store_adapter(url, source)
    with opened(url, tmp_path / "cache") as cache:
        folders = await asyncio.gather(*(cache.fetch(digest) for _ in range(5)))
    assert set(folders) == {tmp_path / "cache" / digest}
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        assert (folders[0] / name).read_bytes() == (source / name).read_bytes()


async def test_what_was_fetched_is_there_after_a_restart_without_the_store_and_checked(tmp_path: Path) -> None:
    url, folder = str(tmp_path / "store"), tmp_path / "cache"
    first, second = [await store_adapter(url, write(tmp_path / f"{i}", alpha=i)) for i in (1, 2)]
    with opened(url, folder) as cache:
        for digest in (first, second):
            await cache.fetch(digest)
    (folder / second / WEIGHTS_FILE).write_bytes(b"changed")
    (folder / "incoming-left").mkdir()
    for path in (tmp_path / "store").rglob("*.*"):
        path.unlink()
    with opened(url, folder) as cache:
        assert await cache.fetch(first) == folder / first
        with pytest.raises(NotInStore):
            await cache.fetch(second)
    assert names(folder) == [first]


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE, MANIFEST_FILE])
@pytest.mark.parametrize("change", ["other", "longer", "shorter", "missing"])
async def test_another_content_than_the_digests_is_refused_and_nothing_stays(
    tmp_path: Path, name: str, change: str
) -> None:
    url, folder = str(tmp_path / "store"), tmp_path / "cache"
    digest = await store_adapter(url, write(tmp_path / "a"))
    stored = tmp_path / "store" / object_path(digest, name)
    content = stored.read_bytes()
    if change == "missing":
        stored.unlink()
    else:
        altered = {"other": content[:-1] + b"?", "longer": content + b" ", "shorter": content[:-1]}[change]
        stored.write_bytes(altered)
    with opened(url, folder) as cache:
        with pytest.raises(NotInStore if change == "missing" else BadArtifact):
            await cache.fetch(digest)
        assert names(folder) == []
        stored.write_bytes(content)
        assert (await cache.fetch(digest)).is_dir()


async def test_a_store_that_is_away_is_told_and_asked_again(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{s3.make_bucket()}"
    digest = await store_adapter(url, write(tmp_path / "a"))
    with monkeypatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
        with opened(url, tmp_path / "cache") as cache:
            for _ in range(2):
                with pytest.raises(StoreAway):
                    await cache.fetch(digest)
    with opened(url, tmp_path / "cache") as cache:
        assert (await cache.fetch(digest)).is_dir()


async def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    url, folder = str(tmp_path / "store"), tmp_path / "cache"
    first, second, third = [await store_adapter(url, write(tmp_path / f"{i}", alpha=i)) for i in (1, 2, 3)]
    size = sum(path.stat().st_size for path in (tmp_path / "1").iterdir())
    with opened(url, folder, max_bytes=int(2.5 * size)) as cache:
        for digest in (first, second):
            await cache.fetch(digest)
            assert list(cache.surplus()) == []
        await cache.fetch(first)
        await cache.fetch(third)
        assert list(cache.surplus()) == [second]
        await cache.remove(second)
        assert list(cache.surplus()) == [] and names(folder) == sorted([first, third])


async def test_what_is_larger_than_the_bound_is_refused_before_it_comes(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    digest = await store_adapter(url, write(tmp_path / "a"))
    with (
        opened(url, tmp_path / "cache", max_bytes=100) as cache,
        pytest.raises(BadArtifact, match="more than the 100"),
    ):
        await cache.fetch(digest)


async def test_who_leaves_does_not_stop_what_others_wait_for(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    digest = await store_adapter(url, write(tmp_path / "a"))
    with opened(url, tmp_path / "cache") as cache:
        leaving, staying = [asyncio.create_task(cache.fetch(digest)) for _ in range(2)]
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await staying).is_dir()
        assert leaving.cancelled()


def test_a_folder_has_one_worker(tmp_path: Path) -> None:
    with opened(str(tmp_path / "store"), tmp_path / "cache"), pytest.raises(CacheError, match="another worker"):
        ArtifactCache(str(tmp_path / "store"), tmp_path / "cache", max_bytes=1)
    with opened(str(tmp_path / "store"), tmp_path / "cache"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot be used"):
        ArtifactCache(str(tmp_path / "store"), tmp_path / "file", max_bytes=1)
