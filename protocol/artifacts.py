"""Adapters in the object store: their names and the paths of their files.

An artifact is an immutable folder. Its manifest has the SHA-256 and size of each file, and the manifest's own SHA-256
is the artifact's digest. So the digest alone is enough to verify every byte of the artifact.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

ARTIFACT_PREFIX = "sha256:"
"""At workers, adapters of the store are named `sha256:<digest>`; a worker fetches those that it does not have."""
CONFIG_FILE, WEIGHTS_FILE, MANIFEST_FILE = "adapter_config.json", "adapter_model.safetensors", "manifest.json"
MAX_MANIFEST_BYTES = 65536
MAX_RANK = 256
"""Maximum rank of a LoRA adapter."""
_DIGEST = re.compile(r"[0-9a-f]{64}")

Sha256 = Annotated[str, msgspec.Meta(pattern=f"^{_DIGEST.pattern}$")]


class ArtifactFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: Sha256
    size: Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    files: Mapping[str, ArtifactFile]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())


class BadManifest(Exception):
    """Bytes that are not the manifest of this digest."""


def encode_manifest(manifest: Manifest) -> tuple[str, bytes]:
    """The digest and the bytes. The encoding is deterministic."""
    encoded = msgspec.json.encode(manifest, order="deterministic")
    return hashlib.sha256(encoded).hexdigest(), encoded


def decode_manifest(encoded: bytes, *, digest: str) -> Manifest:
    """Raises BadManifest."""
    if hashlib.sha256(encoded).hexdigest() != digest:
        raise BadManifest(f"the manifest of {digest} has another content than its name says")
    try:
        manifest = msgspec.json.decode(encoded, type=Manifest)
    except msgspec.MsgspecError as error:
        raise BadManifest(f"the manifest of {digest} cannot be read: {error}") from error
    if manifest.files.keys() != {CONFIG_FILE, WEIGHTS_FILE}:
        raise BadManifest(f"the manifest of {digest} names other files than an adapter has")
    return manifest


def artifact_name(digest: str) -> str:
    return ARTIFACT_PREFIX + digest


def digest_of(name: str) -> str | None:
    """The digest in an artifact's name; None for any other name."""
    digest = name.removeprefix(ARTIFACT_PREFIX)
    return digest if name.startswith(ARTIFACT_PREFIX) and _DIGEST.fullmatch(digest) else None


def object_path(digest: str, file: str) -> str:
    return f"adapters/{digest[:2]}/{digest}/{file}"
