"""HTTP client of the command line for a running gateway's admin and finance APIs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:  # imported where a request is sent, to keep help texts fast
    import ssl

    import httpx2

    from gateway.schemas.base import Answer
    from gateway.schemas.progress import ProgressLine

Json = dict[str, Any]
T = TypeVar("T")
A = TypeVar("A", bound="Answer")

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 300.0  # a registration reads, checks and copies gigabytes before it responds


class UsageError(Exception):
    """An option or a variable is invalid; nothing was sent."""


class UnreachableError(Exception):
    """No gateway answered at the URL that the message names."""

    code = "gateway_unreachable"
    findings: tuple[Json, ...] = ()


class ApiError(Exception):
    """The gateway refused; the message is the gateway's, with advice where there is any."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str = "",
        findings: tuple[Json, ...] = (),
        *,
        gateway_message: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.findings = findings
        self.gateway_message = gateway_message or message
        """The gateway's message, without advice."""


@dataclass(frozen=True, slots=True)
class Api:
    """A gateway and the key to use with it."""

    url: str
    key: str

    @classmethod
    def to(cls, url: str, key: str) -> Self:
        """Raises UsageError if `url` or `key` is malformed."""
        try:
            parsed = urlsplit(url)
            good = (parsed.scheme in {"http", "https"} and parsed.hostname and parsed.port != 0) or (
                parsed.scheme == "unix" and parsed.path.startswith("/") and not parsed.netloc
            )
        except ValueError as error:
            raise UsageError(f"FLORIN_URL: {url!r} is not a URL ({error}).") from error
        if not good:
            raise UsageError(
                f"FLORIN_URL: {url!r} must look like http://127.0.0.1:8080 or unix:/run/florin/socket."
            )
        if not key:
            raise UsageError(
                "No key is set: export yours as FLORIN_KEY (operators: FLORIN_OPERATOR_KEY), name a file "
                "that contains it (--key-file), or sign in with `florin login`."
            )
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise UsageError("The key contains invalid characters: copy it again.")
        return cls(url.rstrip("/"), key)

    def get(self, path: str, answer: type[A], params: Json | None = None) -> A:
        return self._read(answer, self._call("GET", path, params=params))

    def post(self, path: str, body: Json | None, answer: type[A], params: Json | None = None) -> A:
        return self._read(answer, self._call("POST", path, body=body, params=params))

    def put(self, path: str, body: Json, answer: type[A]) -> A:
        return self._read(answer, self._call("PUT", path, body=body))

    def patch(self, path: str, body: Json, answer: type[A]) -> A:
        return self._read(answer, self._call("PATCH", path, body=body))

    def delete(self, path: str, answer: type[A], params: Json | None = None) -> A:
        return self._read(answer, self._call("DELETE", path, params=params))

    def _read(self, answer: type[A], body: Json) -> A:
        """Raises ApiError if the gateway's version answers in another form."""
        return read(answer, body, self.url)

    def work(
        self,
        path: str,
        answer: type[A],
        *,
        body: Json | None = None,
        params: Json | None = None,
        content: Iterator[bytes] | None = None,
        size: int = 0,
        show: Callable[[ProgressLine], None] = lambda _: None,
    ) -> A:
        """POST a long-running operation: `show` receives each progress line. `content` is sent unchanged,
        `size` bytes of it."""
        from httpx2 import TransportError

        headers = {"accept": "application/x-ndjson, application/json"}
        if content is not None:
            headers |= {"content-type": "application/octet-stream", "content-length": str(size)}
        with (
            self._client() as client,
            client.stream(
                "POST", self._base + path, params=_given(params), json=body, content=content, headers=headers
            ) as response,
        ):
            if not response.headers.get("content-type", "").startswith("application/x-ndjson"):
                response.read()
                return self._read(answer, _read(response, self.url))
            try:
                return self._read(answer, _outcome(response, self.url, show))
            except TransportError as error:
                raise _broken_off(self.url) from error

    def upload(self, path: str, file: BinaryIO, params: Json) -> Json:
        """POST a file unchanged, reading it while it is sent."""
        with self._client() as client:
            answer = client.post(self._base + path, params=_given(params), content=file)
        return _read(answer, self.url)

    def stream(self, path: str, params: Json, use: Callable[[httpx2.Response], T]) -> T:
        """GET a body that is not JSON: `use` reads it as it arrives."""
        with (
            self._client() as client,
            client.stream("GET", self._base + path, params=_given(params)) as answer,
        ):
            if answer.is_success:
                return use(answer)
            answer.read()
        _read(answer, self.url)
        raise AssertionError(answer)  # _read raised

    def _call(self, method: str, path: str, *, params: Json | None = None, body: Json | None = None) -> Json:
        with self._client() as client:
            answer = client.request(method, self._base + path, params=_given(params), json=body)
        return _read(answer, self.url)

    @property
    def _socket(self) -> str | None:
        """Path of the gateway's Unix socket."""
        return self.url.removeprefix("unix:") if self.url.startswith("unix:") else None

    @property
    def _base(self) -> str:
        return "http://localhost" if self._socket else self.url

    def _trust(self) -> ssl.SSLContext | bool:
        """Verifies the gateway's certificate; True: the HTTP client's default trust store."""
        import ssl

        from adapters.security.tls import TlsError
        from gateway.commands import gateway_tls

        try:
            trusted = gateway_tls.trust(self.url, gateway_tls.identity())
        except TlsError as error:
            raise UsageError(str(error)) from error
        if self.url.startswith("https://"):
            return trusted or True
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts no one, and loads no certificates

    @contextmanager
    def _client(self) -> Iterator[httpx2.Client]:
        """Raises UnreachableError if a request made within gets no answer."""
        import httpx2

        from gateway.commands import gateway_tls

        try:
            with httpx2.Client(
                headers={"authorization": f"Bearer {self.key}"},
                timeout=httpx2.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS),
                verify=self._trust(),
                transport=httpx2.HTTPTransport(uds=self._socket) if self._socket else None,
                # Never use a proxy from the environment for this host itself.
                trust_env=urlsplit(self.url).hostname not in {"127.0.0.1", "localhost", "::1"},
            ) as client:
                yield client
        except httpx2.TimeoutException as error:
            raise UnreachableError(f"The gateway at {self.url} did not answer in time.") from error
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            if words := gateway_tls.advice(error, self.url):
                raise UnreachableError(words) from error
            raise UnreachableError(
                f"No gateway answers at {self.url} ({error}): start one with `florin serve`, "
                "or set FLORIN_URL to its address."
            ) from error


def read(answer: type[A], body: Json, url: str) -> A:
    """What the gateway at `url` sent. Raises ApiError if it lacks fields that this version knows."""
    from pydantic import ValidationError

    try:
        return answer.read(body)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise ApiError(
            200,
            f"The gateway at {url} answers in a form that this florin does not know ({place}: "
            f"{error.errors()[0]['msg']}): use the same version on both sides (`florin version`).",
        ) from error


def segment(text: str) -> str:
    """Escapes text as one path segment; the gateway validates it."""
    return quote(text, safe="") if text not in {".", "..", ""} else f"%2E{text}"


def full_name(text: str) -> str:
    """Escapes `acme/support` as two path segments. Raises UsageError if it is not TENANT/NAME."""
    tenant, slash, name = text.partition("/")
    if not slash or not tenant or not name:
        raise UsageError(f"{text!r} is not TENANT/NAME, like acme/support.")
    return f"{segment(tenant)}/{segment(name)}"


def _given(params: Json | None) -> Json:
    return {name: value for name, value in (params or {}).items() if value is not None}


def _outcome(response: httpx2.Response, url: str, show: Callable[[ProgressLine], None]) -> Json:
    """The result at the end of a progress stream. Raises ApiError, UnreachableError."""
    from gateway.schemas.progress import ProgressLine

    for line in response.iter_lines():
        try:
            progress = json.loads(line)
        except ValueError:
            break
        if "result" in progress:
            result: Json = progress["result"]
            return result
        if "error" in progress:
            raise _refusal(response.status_code, progress["error"], url)
        show(read(ProgressLine, progress, url))
    raise _broken_off(url)


def _broken_off(url: str) -> UnreachableError:
    return UnreachableError(
        f"The gateway at {url} closed the connection before it answered. Run the command again: nothing is "
        "done twice."
    )


def _read(answer: httpx2.Response, url: str) -> Json:
    try:
        body = answer.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ApiError(
            answer.status_code,
            f"The server at {url} is not a Florin gateway (HTTP {answer.status_code}): check FLORIN_URL.",
        )
    if answer.is_success:
        return body
    raise _refusal(answer.status_code, body.get("error"), url)


def _refusal(status: int, error: Any, url: str) -> ApiError:
    if not isinstance(error, dict):
        error = {"message": f"The gateway at {url} answered HTTP {status}."}
    message = str(error.get("message", ""))
    if error.get("code") == "invalid_api_key":
        message = f"The gateway at {url} does not know this key."
    if status == 404 and message.startswith("There is no /"):  # a path, not an object
        message = f"The gateway at {url} has no such API. If it has an admin port, FLORIN_URL must name it."
    return ApiError(
        status,
        f"{message}{_advice(status, str(error.get('code')), url)}",
        str(error.get("code") or ""),
        tuple(f for f in error.get("findings") or () if isinstance(f, dict)),
        gateway_message=str(error.get("message", "")),
    )


def _advice(status: int, code: str, url: str) -> str:
    if code == "invalid_api_key":
        return (
            " If it is a new bootstrap key: a changed FLORIN_OPERATOR_KEY_FILE takes effect within seconds "
            "(if not, see the gateway's log), a changed FLORIN_OPERATOR_KEY when the gateway restarts. "
            "Otherwise, set FLORIN_KEY or FLORIN_OPERATOR_KEY to a valid key of this gateway."
        )
    if status == 401 and code not in {"invalid_token", "expired_token"}:
        return f" Set FLORIN_KEY or FLORIN_OPERATOR_KEY to a valid key of the gateway at {url}."
    if code == "insufficient_role":
        return f" This key's role does not allow it: ask the operator of the gateway at {url}."
    return ""
