"""Everything that a caller can be told went wrong: one table, rendered in one place.

CODES is the whole vocabulary. docs/reference/errors.md is made from it: `python -m deploy.docs`.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from adapters import errors as adapters_errors
from adapters.errors import AdaptersError, Finding


@dataclass(frozen=True, slots=True)
class Code:
    status: int
    type: str
    """What OpenAI calls it; the client maps the status to its exceptions."""
    cause: str
    cure: str


_INVALID, _SERVER = "invalid_request_error", "server_error"

CODES: dict[str, Code] = {
    # the caller's request
    "invalid_json": Code(400, _INVALID, "The body is not a JSON object in UTF-8.", "Send valid JSON."),
    "invalid_value": Code(
        400, _INVALID, "A field is missing, of a wrong type or out of range.", "See `param`."
    ),
    "unsupported_parameter": Code(
        400,
        _INVALID,
        "A field asks for what is not served here, and leaving it out would give another answer.",
        "Leave it out; the message has the reason, docs/reference/parameters.md the whole list.",
    ),
    "media_not_allowed": Code(
        400,
        _INVALID,
        "A URL of a picture, sound or film leads to a host that FLORIN_MEDIA_HOSTS does not name.",
        "Send a `data:` URL, or ask the operator to allow the host.",
    ),
    "invalid_name": Code(
        400, _INVALID, "A name has characters or a length that names cannot have.", "See the message."
    ),
    "request_refused": Code(
        400, _INVALID, "The engine refused the request.", "See the message, which is the engine's."
    ),
    "request_suspected": Code(
        422,
        _INVALID,
        "Engines died more than once while they had this request; it is not sent to another for a while.",
        "Do not retry it as it is. `retry-after` says when it is taken again.",
    ),
    "body_too_large": Code(
        413,
        _INVALID,
        "The body exceeds FLORIN_MAX_BODY_BYTES; on the admin and finance API 1 MiB, of `florin apply` 16 "
        "MiB, an upload FLORIN_MAX_ADAPTER_BYTES, a bill 64 MiB.",
        "Send less, or raise the setting.",
    ),
    "body_too_complex": Code(
        400,
        _INVALID,
        "The JSON of the body has too many values (FLORIN_MAX_BODY_VALUES, FLORIN_MAX_BODY_CONTAINERS; fixed "
        "limits on the admin API), or is nested too deeply.",
        "Send less at once, or raise the setting.",
    ),
    "method_not_allowed": Code(
        405, _INVALID, "The path exists, but not for this method.", "Use the method that `allow` names."
    ),
    "not_found": Code(404, _INVALID, "No such path or object.", "Check the URL or the name."),
    "model_not_found": Code(
        404,
        _INVALID,
        "The name resolves to nothing that this key may call.",
        "`GET /v1/models` lists what it may.",
    ),
    # who is asking
    "missing_api_key": Code(
        401, "authentication_error", "No `Authorization: Bearer` header.", "Send the key."
    ),
    "invalid_api_key": Code(401, "authentication_error", "No such key.", "Check it, or ask for a new one."),
    "revoked_api_key": Code(401, "authentication_error", "The key was revoked.", "Ask for a new one."),
    "expired_api_key": Code(
        401,
        "authentication_error",
        "The key, or the enrolment token, was valid for a limited time.",
        "Ask for a new one.",
    ),
    "insufficient_role": Code(
        403, "permission_error", "The key's role does not cover this.", "Use a key with the role."
    ),
    "engine_pinned": Code(
        403,
        "permission_error",
        "An engine's host says something of itself that its key has settled otherwise.",
        "Change it back, or enrol the host anew: `florin engine token create`.",
    ),
    # too much at once
    "too_many_requests": Code(
        429,
        "rate_limit_error",
        "More requests, or bytes of their bodies, are in flight for one key or tenant than "
        "FLORIN_MAX_KEY_* and FLORIN_MAX_TENANT_* allow.",
        "Wait for `retry-after`, with fewer at once.",
    ),
    "too_many_reports": Code(
        429,
        "rate_limit_error",
        "A tenant asks the finance API for more at once than FLORIN_TENANT_REPORTS allows, or lets too many "
        "exports lie unread.",
        "Wait for `retry-after`, with fewer at once.",
    ),
    "worker_full": Code(
        503,
        _SERVER,
        "This worker has as much in flight as FLORIN_MAX_WORKER_* allow, or too many reports and exports.",
        "Retry; add workers.",
    ),
    # the registry
    "conflict": Code(
        409, "conflict_error", "Another change came first, or the name is taken.", "Look again, then retry."
    ),
    "in_use": Code(409, "conflict_error", "Something depends on it.", "Remove what the message names first."),
    "adapter_rejected": Code(
        422,
        _INVALID,
        "The adapter failed a check; `findings` lists each with what was found and expected.",
        "Fix what each finding names.",
    ),
    "upload_incomplete": Code(
        400,
        _INVALID,
        "An upload broke off, came too slowly (then 408), or is not one file.",
        "Send it again; nothing was kept.",
    ),
    "too_many_uploads": Code(
        503, _SERVER, "This worker takes in as many uploads as it may already.", "Retry."
    ),
    "bill_rejected": Code(
        422,
        _INVALID,
        "A bill's file cannot be read; `findings` lists the bad lines.",
        "Correct, map or rename what the message names.",
    ),
    "export_failed": Code(
        503,
        _SERVER,
        "The file of an export cannot be written to FLORIN_EXPORT_DIR, or exceeds FLORIN_EXPORT_MAX_BYTES.",
        "Free the disk, ask for less, or raise the setting.",
    ),
    "engine_rejected": Code(422, _INVALID, "The engine cannot serve as registered.", "See the message."),
    # our side
    "placement_timeout": Code(
        503,
        _SERVER,
        "No engine began to answer within FLORIN_PLACEMENT_TIMEOUT.",
        "Retry; `florin placement` shows why.",
    ),
    "overloaded": Code(
        503,
        _SERVER,
        "The engines that serve this model have more waiting than FLORIN_MAX_QUEUE_SECONDS allows, or this "
        "worker has more to do than it can.",
        "Wait for `retry-after`, which is when what waits now will be done. Add engines if it lasts.",
    ),
    "no_engine": Code(
        503, _SERVER, "No engine of the fleet can hold this adapter.", "Register or uncordon an engine."
    ),
    "engine_hung": Code(
        503,
        _SERVER,
        "Every engine that could serve this hangs (it says that it is healthy, but does no work), or three "
        "hung while they had this request.",
        "Retry after `retry-after`; `florin engine list` shows which, restart them.",
    ),
    "load_failed": Code(
        503, _SERVER, "An engine refused to load the adapter.", "See the gateway's log and the engine's."
    ),
    "version_quarantined": Code(
        503,
        _SERVER,
        "The version was loaded, but answered like the base model, or unlike itself.",
        "`florin adapter show` shows the evidence; roll back, or release it.",
    ),
    "engine_failed": Code(
        502,
        _SERVER,
        "Engines failed while answering, and the request's attempts or the worker's retries are used up.",
        "Retry after `retry-after`.",
    ),
    "adapter_suspended": Code(
        503,
        _SERVER,
        "Several engines died while they had this tenant's requests to this adapter; new ones are held back.",
        "Find the request that kills engines; the gateway's log names the engines. It ends by itself.",
    ),
    "stream_interrupted": Code(
        502,
        _SERVER,
        "The engine failed after the answer had begun, and none could go on with it (sent as an event of the "
        "stream).",
        "Ask again.",
    ),
    "store_unavailable": Code(
        503,
        _SERVER,
        "Redis is away, and this needs a decision (a cold adapter, a new key).",
        "Retry; restore Redis.",
    ),
    "registry_regressed": Code(
        503,
        _SERVER,
        "Redis has lost what this gateway knows of the registry, so nothing is changed there.",
        "`florin registry show`, then `florin registry restore` or `florin registry accept`.",
    ),
    "ledger_unavailable": Code(
        503, _SERVER, "The ledger's database is away.", "Retry; nothing metered is lost meanwhile."
    ),
    "cannot_close": Code(
        409,
        "conflict_error",
        "The month cannot be closed now, or was closed on other terms.",
        "The message says what to do first.",
    ),
    "missing_price": Code(
        409,
        "conflict_error",
        "A cost is asked for that the price book cannot tell; the message names each price that is missing.",
        "`florin price add`.",
    ),
    "metering_unavailable": Code(
        503, _SERVER, "The usage log cannot be written, and FLORIN_WAL_FULL is `refuse`.", "Free disk space."
    ),
    "artifacts_unavailable": Code(
        503,
        _SERVER,
        "The files of a version cannot be stored.",
        "Repair or free the disk of FLORIN_ARTIFACT_DIR.",
    ),
    "no_worker": Code(
        503,
        _SERVER,
        "All workers of the gateway have ended, and none has started again yet.",
        "Retry; see the gateway's log for why they end (docs/incidents.md, FlorinWorkerCrashLoop).",
    ),
    "shutting_down": Code(503, _SERVER, "The gateway is stopping.", "Retry: another worker or host answers."),
    "internal_error": Code(500, _SERVER, "A defect in Florin.", "Report it with the request id."),
}


class FlorinError(Exception):
    """An error for the caller. `code` is a key of CODES."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
        findings: tuple[Finding, ...] = (),
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.findings = findings
        self.status = status or CODES[code].status

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}

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


_FROM_ADAPTERS: dict[type[AdaptersError], str] = {
    adapters_errors.InvalidNameError: "invalid_name",
    adapters_errors.NotFoundError: "not_found",
    adapters_errors.ConflictError: "conflict",
    adapters_errors.InUseError: "in_use",
    adapters_errors.RejectedError: "adapter_rejected",
    adapters_errors.StoreUnavailableError: "store_unavailable",
    adapters_errors.RegistryRegressedError: "registry_regressed",
    adapters_errors.EngineError: "engine_rejected",
    adapters_errors.EngineUnreachableError: "engine_rejected",
    adapters_errors.EngineSuspectError: "engine_rejected",
    adapters_errors.NoEngineError: "no_engine",
    adapters_errors.LoadFailedError: "load_failed",
    adapters_errors.QuarantinedError: "version_quarantined",
    adapters_errors.FencedError: "conflict",
    adapters_errors.PlacementError: "placement_timeout",
    adapters_errors.AdaptersError: "internal_error",
}


def translate(error: AdaptersError) -> FlorinError:
    """An error of the adapter side in the operator's vocabulary, with every detail."""
    code = _FROM_ADAPTERS[type(error)]
    findings = error.findings if isinstance(error, adapters_errors.RejectedError) else ()
    retry = 1 if CODES[code].status == 503 else None
    return FlorinError(code, str(error), findings=findings, retry_after=retry)


def for_tenant(error: AdaptersError) -> FlorinError:
    """The same for a tenant, who is told nothing of what is behind the gateway."""
    if isinstance(error, adapters_errors.StoreUnavailableError):
        text = "Florin cannot decide this at the moment: what it needs for it is unavailable. Try again soon."
        return FlorinError("store_unavailable", text, retry_after=1)
    return translate(error)
