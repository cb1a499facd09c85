"""The backup file: a tar in a zstd frame, then a seal in a skippable frame, which decompressors ignore.

So `tar --zstd -xf` reads a backup, and one SHA-256 covers every byte of the file, the compression's included.
"""

import hashlib
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, BinaryIO

import msgspec
import zstandard

from tiergate.backup.manifest import MANIFEST, Manifest, Member
from tiergate.failure import Failure

FORMAT = 1
_SKIPPABLE, _ZSTD = 0x184D2A5A, b"\x28\xb5\x2f\xfd"
_SEAL = struct.Struct("<II16sI")
"""Magic and length of the skippable frame, our name, and the format version; then comes the SHA-256 of all before."""
_NAME = b"tiergate-backup\0"
_DIGEST_BYTES = 32
_LEVEL = 3
_BLOCK = 1 << 20


class ArchiveWriter:
    """Takes members one after another, then `finish`. Raises OSError, for example if the disk is full."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        self._compressed = compressor.stream_writer(_Through(file, self._digest.update), closefd=False)  # type: ignore[arg-type]
        self.members: dict[str, Member] = {}

    def add(self, name: str, size: int, blocks: Iterable[bytes]) -> None:
        """Raises Failure if the blocks do not add up to `size` bytes: the source changed while it was copied."""
        self.members[name] = Member(size, self._write(name, size, blocks))

    def finish(self, manifest: Manifest) -> None:
        encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        self._write(MANIFEST, len(encoded), [encoded])
        self._compressed.write(bytes(2 * tarfile.BLOCKSIZE))
        self._compressed.flush(zstandard.FLUSH_FRAME)
        head = _SEAL.pack(_SKIPPABLE, _SEAL.size - 8 + _DIGEST_BYTES, _NAME, FORMAT)
        self._digest.update(head)
        self._file.write(head + self._digest.digest())

    def _write(self, name: str, size: int, blocks: Iterable[bytes]) -> str:
        header = tarfile.TarInfo(name)
        header.size, header.mode = size, 0o600
        self._compressed.write(header.tobuf(tarfile.PAX_FORMAT))
        digest, written = hashlib.sha256(), 0
        for block in blocks:
            digest.update(block)
            written += len(block)
            self._compressed.write(block)
        if written != size:
            raise Failure(f"{name} changed while it was copied; take the backup again", exit_code=1)
        self._compressed.write(bytes(-size % tarfile.BLOCKSIZE))
        return digest.hexdigest()


def check_seal(path: Path, *, on_progress: Callable[[int], None] = lambda _: None) -> None:
    """Raises Failure if the file is no backup, is truncated, damaged or of a newer format; OSError on a read error."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(_ZSTD)) != _ZSTD:
            raise Failure(f"{path} is no backup of tiergate; give a file that `tiergate backup` wrote")
        file.seek(0)
        digest, left = hashlib.sha256(), size - _DIGEST_BYTES
        while left > 0 and (block := file.read(min(left, _BLOCK))):
            digest.update(block)
            left -= len(block)
            on_progress(size - left)
        expected = file.read()
        file.seek(max(0, size - _SEAL.size - _DIGEST_BYTES))
        magic, _, name, version = _SEAL.unpack(file.read(_SEAL.size).ljust(_SEAL.size))
    if (magic, name) != (_SKIPPABLE, _NAME):
        raise Failure(f"{path} has no end: it was cut short, or its end is damaged; copy it again or take another one")
    if digest.digest() != expected:
        raise Failure(
            f"{path} is damaged: its bytes are not those that were written; copy it again or take another one"
        )
    if version > FORMAT:
        raise Failure(f"{path} is from a newer version of tiergate; restore it with that version")


def read_members(path: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size and content of each member, the manifest last. Raises Failure.

    Read a member's content before asking for the next member.
    """
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file, closefd=False) as plain:
        try:
            with tarfile.open(fileobj=plain, mode="r|") as archive:
                for header in archive:
                    content = archive.extractfile(header)
                    if content is None:
                        raise Failure(f"{path}: {header.name} is no file; the backup was not written by tiergate")
                    yield header.name, header.size, content
        except (tarfile.TarError, zstandard.ZstdError) as error:
            raise Failure(f"{path} cannot be read ({error}); copy it again or take another one") from error


def verify(path: Path, *, on_progress: Callable[[int], None] = lambda _: None) -> Manifest:
    """Check the seal over all bytes, and that the members are exactly those of the manifest.

    Raises Failure or OSError.
    """
    check_seal(path, on_progress=on_progress)
    found: dict[str, Member] = {}
    manifest = None
    for name, size, content in read_members(path):
        if name == MANIFEST:
            manifest = _decode(path, content.read())
        else:
            found[name] = Member(size, hashlib.file_digest(content, "sha256").hexdigest())  # type: ignore[arg-type]
    if manifest is None:
        raise Failure(f"{path} has no manifest; it was not written by tiergate")
    for name in sorted(found.keys() | manifest.members.keys()):
        if found.get(name) != manifest.members.get(name):
            raise Failure(f"{path} is damaged: {name} is not what the manifest says; take another one")
    return manifest


def _decode(path: Path, encoded: bytes) -> Manifest:
    try:
        return msgspec.json.decode(encoded, type=Manifest)
    except msgspec.MsgspecError as error:
        raise Failure(f"{path}: its manifest cannot be read ({error})") from error


class _Through:
    """A file that also passes every block written to `see`."""

    def __init__(self, file: BinaryIO, see: Callable[[bytes], None]) -> None:
        self._file = file
        self._see = see

    def write(self, block: bytes) -> int:
        self._see(block)
        return self._file.write(block)

    def flush(self) -> None:
        self._file.flush()
