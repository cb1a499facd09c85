import hashlib

import pytest

from protocol.artifacts import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    ArtifactFile,
    BadManifest,
    Manifest,
    artifact_name,
    decode_manifest,
    digest_of,
    encode_manifest,
)

FILES = {name: ArtifactFile(hashlib.sha256(name.encode()).hexdigest(), 5) for name in (CONFIG_FILE, WEIGHTS_FILE)}


def test_a_manifest_has_one_form_and_its_digest_is_its_hash() -> None:
    digest, encoded = encode_manifest(Manifest(FILES))
    assert encode_manifest(Manifest(dict(reversed(FILES.items())))) == (digest, encoded)
    assert digest == hashlib.sha256(encoded).hexdigest()
    manifest = decode_manifest(encoded, digest=digest)
    assert (manifest.files, manifest.size) == (FILES, 10)


@pytest.mark.parametrize(
    "files",
    [
        {CONFIG_FILE: FILES[CONFIG_FILE]},
        {**FILES, "../../etc/passwd": FILES[CONFIG_FILE]},
        {**FILES, WEIGHTS_FILE: ArtifactFile("no hash", 5)},
    ],
)
def test_what_is_no_manifest_of_an_adapter_is_refused(files: dict[str, ArtifactFile]) -> None:
    digest, encoded = encode_manifest(Manifest(files))
    with pytest.raises(BadManifest):
        decode_manifest(encoded, digest=digest)


def test_another_content_than_the_digests_is_refused() -> None:
    digest, encoded = encode_manifest(Manifest(FILES))
    with pytest.raises(BadManifest):
        decode_manifest(encoded.replace(b'"size":5', b'"size":6'), digest=digest)


def test_only_an_artifacts_name_holds_a_digest() -> None:
    digest, _ = encode_manifest(Manifest(FILES))
    assert digest_of(artifact_name(digest)) == digest
    assert [digest_of(name) for name in (digest, "sha256:", f"sha256:{digest}0", f"sha256:{digest.upper()}")] == [
        None
    ] * 4
