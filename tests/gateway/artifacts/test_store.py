"""The store over a folder and over S3: what it keeps, and that nothing stays of what was refused, cut or broken off."""

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from gateway.artifacts.refusal import BadAdapter
from gateway.artifacts.store import ABANDONED, MAX_UPLOADS, MAX_UPLOADS_OF_ONE, ArtifactStore
from gateway.http.errors import Unavailable
from protocol.artifacts import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE, decode_manifest, object_path
from tests.support.adapter_files import PREFIX, config_bytes, in_chunks, objects_below, tensors, weights_bytes
from tests.support.object_stores import S3Server
from tests.support.ports import free_port

CONFIG = config_bytes()
WEIGHTS = weights_bytes(tensors())
LARGE = weights_bytes(tensors(layers=16, size=40_000))
"""Of several parts."""


class Kept:
    """A store, and how to look at what it holds."""

    def __init__(self, url: str, folder: Path, objects: Callable[[], list[str]], read: Callable[[str], bytes]) -> None:
        self.store = ArtifactStore(url)
        self.objects = objects
        self.read = read
        self._folder = folder

    def folders(self) -> list[Path]:
        return [path for path in self._folder.glob("adapters/*/*") if path.is_dir()]


@pytest.fixture(params=["folder", "s3"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    if request.param == "folder":
        return Kept(
            f"file://{tmp_path}", tmp_path, lambda: objects_below(tmp_path), lambda key: (tmp_path / key).read_bytes()
        )
    s3: S3Server = request.getfixturevalue("s3")
    bucket = s3.make_bucket()
    return Kept(
        f"s3://{bucket}/some/prefix",
        tmp_path,
        lambda: [key.removeprefix("some/prefix/") for key in s3.keys(bucket)],
        lambda key: s3.client.get_object(Bucket=bucket, Key=f"some/prefix/{key}")["Body"].read(),
    )


@pytest.mark.parametrize("weights", [WEIGHTS, LARGE], ids=["small", "large"])
async def test_what_is_published_can_be_read_by_its_digest_and_goes_again(kept: Kept, weights: bytes) -> None:
    async with kept.store.staging(CONFIG, in_chunks(weights, 1 << 20)) as staged:
        assert [key.split("/")[0] for key in kept.objects()] == ["uploads"]
        await kept.store.publish(staged)
    digest = staged.digest
    assert kept.objects() == sorted(object_path(digest, name) for name in (CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE))
    manifest = decode_manifest(kept.read(object_path(digest, MANIFEST_FILE)), digest=digest)
    for name, content in ((CONFIG_FILE, CONFIG), (WEIGHTS_FILE, weights)):
        assert kept.read(object_path(digest, name)) == content
        assert manifest.files[name].sha256 == hashlib.sha256(content).hexdigest()
    assert staged.size_bytes == manifest.size == len(CONFIG) + len(weights)
    await kept.store.remove(digest)
    await kept.store.remove(digest)
    assert kept.objects() == []
    assert not kept.folders()


async def test_the_same_content_has_the_same_digest_and_another_config_another_one(kept: Kept) -> None:
    digests = []
    for config in (CONFIG, CONFIG, config_bytes(lora_alpha=9)):
        async with kept.store.staging(config, in_chunks(WEIGHTS)) as staged:
            await kept.store.publish(staged)
        digests.append(staged.digest)
    assert digests[0] == digests[1] != digests[2]
    assert len(kept.objects()) == 6


class ClientLeft(Exception):
    pass


async def cut_after(content: bytes, size: int) -> AsyncIterator[bytes]:
    async for chunk in in_chunks(content[:size], 1 << 20):
        yield chunk
    raise ClientLeft


@pytest.mark.parametrize("size", [0, 100, 5 << 20, 30 << 20])
async def test_nothing_stays_of_an_upload_that_is_cut(kept: Kept, size: int) -> None:
    with pytest.raises(ClientLeft):
        async with kept.store.staging(CONFIG, cut_after(LARGE, size)):
            raise AssertionError("not whole")
    assert kept.objects() == []


@pytest.mark.parametrize(
    ("config", "weights", "reason"),
    [
        (CONFIG, LARGE[:-1], "it was cut"),
        (CONFIG, LARGE + b"\0", "goes on"),
        (CONFIG, b"\x80\x04" + LARGE, "pickle"),
        (config_bytes(r=8), WEIGHTS, "with r 8"),
        (config_bytes(use_dora=True), WEIGHTS, "use_dora"),
    ],
)
async def test_nothing_stays_of_what_is_refused(kept: Kept, config: bytes, weights: bytes, reason: str) -> None:
    with pytest.raises(BadAdapter, match=reason):
        async with kept.store.staging(config, in_chunks(weights, 1 << 20)):
            raise AssertionError("refused")
    assert kept.objects() == []


async def test_nothing_stays_of_what_is_not_published_after_all(kept: Kept) -> None:
    with pytest.raises(ClientLeft):
        async with kept.store.staging(CONFIG, in_chunks(WEIGHTS)):
            raise ClientLeft
    assert kept.objects() == []


async def test_the_bound_ends_an_upload_at_once(kept: Kept) -> None:
    store, num_read = kept.store, 0
    store.max_weights_bytes = 10 << 20

    async def endless() -> AsyncIterator[bytes]:
        nonlocal num_read
        yield weights_bytes(tensors(layers=16, size=10_000))[:1000]
        while True:
            num_read += 1
            yield bytes(1 << 20)

    with pytest.raises(BadAdapter):
        async with store.staging(CONFIG, endless()):
            raise AssertionError("endless")
    assert num_read < 30 and kept.objects() == []


async def test_what_a_dead_gateway_left_on_the_way_is_removed_when_it_is_old(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    (tmp_path / "uploads").mkdir()
    for name in ("left", "half-written#1"):
        (tmp_path / "uploads" / name).write_bytes(b"x")
    now = datetime.now(UTC)
    await store.remove_abandoned(now=now)
    assert objects_below(tmp_path) == ["uploads/half-written#1", "uploads/left"]
    await store.remove_abandoned(now=now + ABANDONED + timedelta(minutes=1))
    assert objects_below(tmp_path) == []


async def test_an_abandoned_upload_in_s3_is_removed_too(s3: S3Server) -> None:
    bucket = s3.make_bucket()
    s3.client.put_object(Bucket=bucket, Key="uploads/left", Body=b"x")
    store = ArtifactStore(f"s3://{bucket}")
    await store.remove_abandoned(now=datetime.now(UTC))
    assert s3.keys(bucket) == ["uploads/left"]
    await store.remove_abandoned(now=datetime.now(UTC) + ABANDONED + timedelta(minutes=1))
    assert s3.keys(bucket) == []


def test_uploads_at_a_time_are_bounded_for_each_tenant_and_for_all(tmp_path: Path) -> None:
    store, tenants = ArtifactStore(str(tmp_path)), [uuid4() for _ in range(20)]
    with ExitStack() as stack:
        for _ in range(MAX_UPLOADS_OF_ONE):
            stack.enter_context(store.permit(tenants[0]))
        with pytest.raises(Unavailable), store.permit(tenants[0]):
            raise AssertionError("one too many")
        for tenant in tenants[1 : MAX_UPLOADS - MAX_UPLOADS_OF_ONE + 1]:
            stack.enter_context(store.permit(tenant))
        with pytest.raises(Unavailable), store.permit(tenants[-1]):
            raise AssertionError("one too many")
    with store.permit(tenants[0]):
        pass


async def test_an_uploads_memory_does_not_depend_on_its_size(tmp_path: Path) -> None:
    process, most = psutil.Process(), 0
    num_blocks, size = 256, 1 << 20

    async def blocks() -> AsyncIterator[bytes]:
        nonlocal most
        yield _large_header(num_blocks, size)
        for _ in range(num_blocks):
            most = max(most, process.memory_info().rss)
            yield bytes(size)

    before = process.memory_info().rss
    async with ArtifactStore(str(tmp_path)).staging(CONFIG, blocks()) as staged:
        assert staged.size_bytes > num_blocks * size
    assert most - before < 96 << 20


def _large_header(num_blocks: int, size: int) -> bytes:
    """Of lora_A and lora_B of many layers, a block each."""
    header, columns = {}, size // 16
    for block in range(num_blocks):
        side, shape = ("A", [4, columns]) if block % 2 == 0 else ("B", [columns, 4])
        key = f"{PREFIX}.{block // 2}.self_attn.q_proj.lora_{side}.weight"
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [block * size, (block + 1) * size]}
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded


async def test_a_store_that_is_down_is_told_soon(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    store = ArtifactStore("s3://bucket")
    for weights in (WEIGHTS, LARGE):
        with pytest.raises(Unavailable, match="object store"):
            async with store.staging(CONFIG, in_chunks(weights)):
                raise AssertionError("down")
    with pytest.raises(Unavailable):
        await store.remove("0" * 64)


async def test_a_store_without_its_bucket_is_told(s3: S3Server) -> None:
    with pytest.raises(Unavailable, match="object store"):
        async with ArtifactStore("s3://no-such-bucket").staging(CONFIG, in_chunks(WEIGHTS)):
            raise AssertionError("there is no bucket")
