"""FlorinError: an error response, as the OpenAI API renders it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import orjson

from adapters.errors import Finding
from gateway.errors.codes import CODES


class FlorinError(Exception):
    """An error response. `code` is a key of CODES; the message is shown to the caller."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
        findings: tuple[Finding, ...] = (),
        status: int | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`headers`: besides `retry-after` and `www-authenticate`."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.findings = findings
        self.status = status or CODES[code].status
        self._headers = headers

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return {**headers, **self._headers}

    def body(self) -> bytes:
        """The OpenAI error object."""
        error: dict[str, object] = {
            "message": self.message,
            "type": CODES[self.code].type,
            "param": self.param,
            "code": self.code,
        }
        if self.findings:
            error["findings"] = self.findings
        return orjson.dumps({"error": error})


def method_not_allowed(path: str, *allowed: str) -> FlorinError:
    """`allowed`: the methods that the path supports."""
    methods = ", ".join(allowed)
    return FlorinError(
        "method_not_allowed", f"{path[:200]} only supports {methods}.", headers={"allow": methods}
    )


def too_deep() -> FlorinError:
    return FlorinError("body_too_complex", "The body is nested too deeply.")


def unsupported_endpoint(path: str = "this endpoint") -> FlorinError:
    return FlorinError("unsupported_endpoint", f"This model does not support {path}.", param="model")
