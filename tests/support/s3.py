"""A real server of the S3 protocol, and the environment of those who use it."""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of moto's own imports
    import boto3
    from moto.server import ThreadedMotoServer

SECRET = "wJalrXUtnFEMI-a-secret"
_names = itertools.count()


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Its URL."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def set_environment(monkeypatch: pytest.MonkeyPatch, home: Path, endpoint: str) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "aws-credentials"))


@contextlib.contextmanager
def new_bucket(endpoint: str) -> Iterator[Any]:
    """boto3's client of a bucket of its own, whose name is `name`."""
    client = boto3.client("s3", endpoint_url=endpoint)
    client.name = f"bucket-{next(_names)}"
    client.create_bucket(Bucket=client.name)
    yield client
    client.close()


def contents(bucket: Any) -> dict[str, bytes]:
    listing = bucket.list_objects_v2(Bucket=bucket.name).get("Contents", ())
    return {
        item["Key"]: bucket.get_object(Bucket=bucket.name, Key=item["Key"])["Body"].read() for item in listing
    }
