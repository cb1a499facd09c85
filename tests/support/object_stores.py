"""An S3 server in this process: moto's, over real HTTP."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import boto3
from moto.server import ThreadedMotoServer

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@dataclass
class S3Server:
    """environment: the variables with which a process finds the server."""

    server: ThreadedMotoServer
    environment: dict[str, str]
    client: Any

    def make_bucket(self) -> str:
        """Create a bucket; returns its name."""
        name = f"bucket-{uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=name)
        return name

    def keys(self, bucket: str) -> list[str]:
        """The keys of all objects, including those whose upload is not finished."""
        listed = self.client.list_objects_v2(Bucket=bucket).get("Contents", [])
        begun = self.client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        return sorted(each["Key"] for each in [*listed, *begun])


@contextmanager
def running_s3() -> Iterator[S3Server]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id="tests",
        aws_secret_access_key="tests",
        region_name="us-east-1",
    )
    try:
        yield S3Server(server, {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}, client)
    finally:
        client.close()
        server.stop()
