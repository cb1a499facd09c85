"""Multipart uploads that nobody will complete: S3 keeps their parts, and charges for them, until they are aborted.

The object store's library neither lists nor aborts uploads of another process.
"""

import os
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from protocol.ids import made_at_s
from protocol.object_store import CONNECT_S, RETRIES

_READ_S = 10.0
_DEFAULT_REGION = "us-east-1"


class UnfinishedUploads:
    """Unfinished uploads of a bucket, below a folder.

    `url`: `s3://BUCKET/PREFIX`. Keys, region and endpoint come from the same sources as the store's.
    """

    def __init__(self, url: str, folder: str) -> None:
        parts = urlsplit(url)
        self._bucket = parts.netloc
        self._below = f"{parts.path.strip('/')}/{folder}/".lstrip("/")

    def abort_older(self, limit: datetime) -> None:
        """Abort uploads that began before `limit`, by the time in their name or else by S3's. Blocks. Raises
        OSError."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            pages = self._client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._below):
                for upload in page.get("Uploads", ()):
                    if _began_at_s(upload) < limit.timestamp():
                        self._abort(upload)
        except (BotoCoreError, ClientError) as error:
            raise OSError(f"uploads that were cut cannot be aborted: {error}") from error

    def _abort(self, upload: dict[str, Any]) -> None:
        try:
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        except self._client.exceptions.NoSuchUpload:
            # Completed or aborted meanwhile.
            return

    @cached_property
    def _client(self) -> Any:
        # Imported here, so that only gateways that keep adapters in S3 wait for the library.
        from botocore.config import Config
        from botocore.session import get_session

        session = get_session()
        region = os.environ.get("AWS_REGION") or session.get_config_variable("region") or _DEFAULT_REGION
        config = Config(
            connect_timeout=CONNECT_S,
            read_timeout=_READ_S,
            retries={"max_attempts": RETRIES},
            s3={"addressing_style": "path"},
        )
        return session.create_client("s3", region_name=region, config=config)


def _began_at_s(upload: dict[str, Any]) -> float:
    named = made_at_s(upload["Key"].rpartition("/")[2])
    return upload["Initiated"].timestamp() if named is None else named
