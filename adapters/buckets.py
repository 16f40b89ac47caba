"""Connects to buckets: S3 and what speaks its protocol (`s3`), Google Cloud Storage (`gs`), Azure (`az`).

Where they are, and with whose credentials, is up to each provider's own variables: `AWS_*` and its profiles,
`GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_*`, or the identity of the machine or the pod. `SSL_CERT_FILE` names
the CAs of a store whose own is private.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import botocore.session
import obstore
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

if TYPE_CHECKING:  # there only
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3Credential

Store: TypeAlias = AzureStore | GCSStore | S3Store

READABLE: Final = timedelta(minutes=10)
"""What of a signed URL is counted when a download begins, not while it runs."""
_CONNECT: Final = timedelta(seconds=5)
_REQUEST: Final = timedelta(hours=1)
"""For one request with its body. A request without data for `stall` fails long before."""
_CREDENTIALS_KEPT: Final = timedelta(minutes=5)
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_STATUS = re.compile(r"status(?: code)?: ([1-5][0-9]{2})\b")
_CAUSES: Final = {
    "Connection refused": "connection refused",
    "dns error": "its host name is unknown",
    "TimedOut": "no answer in time",
    "ertificate": "its certificate is not trusted",
    "credential provider": "the credentials of the environment cannot be read",
}
"""What obstore's message has of a call that got no answer, and what it means."""


class StoreSettingsError(Exception):
    """The environment does not say how to reach a bucket; the message says why."""


def connect(
    scheme: str, bucket: str, prefix: str | None = None, *, retries: int = 0, stall: float = 20.0
) -> Store:
    """A client of the bucket, below `prefix`. It sends nothing yet, but may ask for credentials, so it
    blocks. `retries`: of each request, within half a minute. Raises StoreSettingsError."""
    client: ClientConfig = {
        "allow_http": True,
        "connect_timeout": _CONNECT,
        "read_timeout": timedelta(seconds=stall),
        "timeout": _REQUEST,
        "user_agent": "florin",
    }
    retry: RetryConfig = {"max_retries": retries, "retry_timeout": timedelta(seconds=30)}
    try:
        if authorities := os.environ.get("SSL_CERT_FILE"):
            client["root_certificate"] = Path(authorities).read_bytes()
        return _STORES[scheme](bucket, prefix, client, retry)
    except (BaseError, BotoCoreError, ValueError, OSError) as error:
        raise StoreSettingsError(reason(error)) from None


def readable_url(store: Store, key: str) -> str:
    """A URL at which anyone may read the object for `READABLE`; of a bucket that is read without credentials,
    the plain one. Blocks where the provider has to be asked. Raises BaseError."""
    url = obstore.sign(store, "GET", key, READABLE)
    return url.partition("?")[0] if dict(store.config).get("skip_signature") else url


def reason(error: BaseException) -> str:
    """Why a call failed, for operators: the provider's code. The message itself may echo the request."""
    text = str(error)
    if code := _CODE.search(text):
        return code[1]
    if answer := status(error):
        return f"HTTP {answer}"
    return next((cause for sign, cause in _CAUSES.items() if sign in text), type(error).__name__)


def status(error: BaseException) -> int:
    """The HTTP status of the provider's answer; 0 if there was none."""
    answer = _STATUS.search(str(error))
    return int(answer[1]) if answer else 0


def _s3(bucket: str, prefix: str | None, client: ClientConfig, retry: RetryConfig) -> S3Store:
    logging.getLogger("botocore").setLevel(logging.WARNING)  # it logs where it found credentials
    session = botocore.session.get_session()
    profile = session.get_scoped_config()
    endpoint = (
        os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
        or profile.get("endpoint_url")
    )
    if endpoint and not re.match(r"https?://[^/]", endpoint):
        raise StoreSettingsError("AWS_ENDPOINT_URL is not an http(s) URL")
    credentials = session.get_credentials()
    config: S3Config = {} if credentials else _ANONYMOUS.copy()
    config["region"] = os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"
    if endpoint:
        config["endpoint"] = endpoint
    return S3Store(
        bucket,
        prefix=prefix,
        config=config,
        client_options=client,
        retry_config=retry,
        credential_provider=_provider(credentials) if credentials else None,
    )


def _provider(credentials: Credentials) -> Callable[[], S3Credential]:
    def provide() -> S3Credential:
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_KEPT,
        }

    return provide


def _gs(bucket: str, prefix: str | None, client: ClientConfig, retry: RetryConfig) -> GCSStore:
    return GCSStore(bucket, prefix=prefix, client_options=client, retry_config=retry)


def _az(container: str, prefix: str | None, client: ClientConfig, retry: RetryConfig) -> AzureStore:
    return AzureStore(container, prefix=prefix, client_options=client, retry_config=retry)


_ANONYMOUS: Final[S3Config] = {"skip_signature": True, "access_key_id": "none", "secret_access_key": "none"}
_STORES: Final[dict[str, Callable[[str, str | None, ClientConfig, RetryConfig], Store]]] = {
    "s3": _s3,
    "gs": _gs,
    "az": _az,
}
