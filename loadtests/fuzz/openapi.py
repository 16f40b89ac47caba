"""Every operation of the OpenAPI description with what fits it and what does not, made by Schemathesis."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis.core.result import Err
from schemathesis.generation import GenerationMode

from gateway.app import create_app
from gateway.config import Settings
from loadtests.fuzz.judge import Answer, BrokenPromiseError

PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Request:
    """One call of one operation, by one role."""

    case: Any
    role: str
    key: str

    def __repr__(self) -> str:
        return f"<as {self.role}: {self.case.as_curl_command()}>"


class Api:
    def __init__(self, url: str, session: requests.Session, keys: dict[str, str]) -> None:
        """`keys`: by role."""
        self._url = url
        self._keys = keys
        self._session = session
        schema = schemathesis.openapi.from_dict(description())
        self.operations = [_sound(found) for found in schema.get_all_operations()]

    def requests(self) -> st.SearchStrategy[Request]:
        cases = [
            operation.as_strategy(generation_mode=mode)
            for operation in self.operations
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        ]
        roles = st.sampled_from(sorted(self._keys.items()))
        return st.tuples(st.sampled_from(cases).flatmap(lambda strategy: strategy), roles).map(
            lambda drawn: Request(drawn[0], *drawn[1])
        )

    def send(self, request: Request) -> Answer:
        headers = {"authorization": f"Bearer {request.key}"} if request.key else {}
        headers["connection"] = "close"  # a kept one may be closed for its age just now
        try:
            answer = request.case.call(
                base_url=self._url, session=self._session, headers=headers, timeout=PATIENCE
            )
        except (requests.RequestException, OSError) as error:
            raise BrokenPromiseError(f"no answer: {error!r}") from error
        kind = (answer.headers.get("content-type") or [""])[0]
        return Answer(answer.status_code, answer.content, kind)


def _sound(found: Any) -> Any:
    """The operation. Raises what is wrong with its description."""
    if isinstance(found, Err):
        raise found.err()
    return found.ok()


def description() -> dict[str, Any]:
    """As `GET /openapi.json` gives it, where that is switched on."""
    with tempfile.TemporaryDirectory() as directory:
        described: dict[str, Any] = create_app(Settings(state_dir=Path(directory))).api.openapi()
    return described
