"""CODES: every error that a caller can get, with its cause and its remedy.

`python -m tests.tools.docs` writes docs/reference/errors.md from it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    status: int
    type: str
    """OpenAI's error type. Clients map the status to their exceptions."""
    cause: str
    remedy: str


_INVALID, _SERVER = "invalid_request_error", "server_error"

CODES: dict[str, Code] = {
    # the caller's request
    "invalid_json": Code(400, _INVALID, "The body is not a JSON object in UTF-8.", "Send valid JSON."),
    "invalid_value": Code(
        400,
        _INVALID,
        "A field or parameter is missing, unknown, of the wrong type, or out of range; with status 415, it "
        "is the body's `content-type` or `content-encoding`.",
        "Correct the field or header named in `param`.",
    ),
    "unsupported_parameter": Code(
        400,
        _INVALID,
        "Florin does not support this field, and ignoring it would change the answer.",
        "Remove the field. The message gives the reason; docs/reference/parameters.md lists all fields.",
    ),
    "media_not_allowed": Code(
        400,
        _INVALID,
        "An image, audio or video URL points to a host that the operator has not allowed: "
        "FLORIN_MEDIA_HOSTS, or the tenant's request policy.",
        "Send a `data:` URL, or ask the operator to allow the host.",
    ),
    "invalid_name": Code(
        400,
        _INVALID,
        "A name is too long or contains invalid characters.",
        "Choose a name that follows the rule in the message.",
    ),
    "request_refused": Code(
        400, _INVALID, "The engine rejected the request.", "Correct it; the message and `param` say what."
    ),
    "feature_disabled": Code(
        400,
        _INVALID,
        "The engine of the model was started without what the request needs, for example tool calling.",
        "Leave the field named in `param` out. The operator can switch it on: `florin doctor` and the "
        "gateway's log name the engine and the flags.",
    ),
    "context_length_exceeded": Code(
        400,
        _INVALID,
        "The prompt, or the prompt and the requested output, exceed the model's context, or the limit of "
        "tokens per request of the tenant or key. For that limit, the prompt's tokens are estimated.",
        "Shorten the prompt, or ask for fewer tokens; the message gives both numbers.",
    ),
    "request_suspected": Code(
        422,
        _INVALID,
        "Engines died more than once while serving this request, so Florin blocks it for a while.",
        "Do not retry it unchanged. `retry-after` says when it is accepted again.",
    ),
    "body_too_large": Code(
        413,
        _INVALID,
        "The body exceeds the limit: FLORIN_MAX_BODY_BYTES on the data plane, 1 MiB on the admin and finance "
        "API, 16 MiB for `florin apply`, FLORIN_MAX_ADAPTER_BYTES for an upload, 64 MiB for a bill.",
        "Send less, or raise the setting.",
    ),
    "body_too_complex": Code(
        400,
        _INVALID,
        "The JSON body is nested too deeply or has too many values (FLORIN_MAX_BODY_VALUES, "
        "FLORIN_MAX_BODY_CONTAINERS; fixed limits on the admin API).",
        "Split the request, or raise the setting.",
    ),
    "invalid_http": Code(
        400,
        _INVALID,
        "The request is not valid HTTP/1.1 (conflicting lengths, for example, or a malformed chunk), or its "
        "method or transfer coding is unknown.",
        "Check what builds the request: the client's HTTP library, or a proxy.",
    ),
    "headers_too_large": Code(
        431,
        _INVALID,
        "The request has more than FLORIN_MAX_HEADERS headers, or more than FLORIN_MAX_HEADER_BYTES of them.",
        "Send fewer headers, or raise the setting.",
    ),
    "request_timeout": Code(
        408,
        _INVALID,
        "The request's headers did not arrive within FLORIN_HEADER_TIMEOUT, or its body arrived more slowly "
        "than FLORIN_MIN_CLIENT_RATE.",
        "Retry over a better connection, or raise the setting.",
    ),
    "method_not_allowed": Code(
        405, _INVALID, "The path does not support this method.", "Use a method listed in the `allow` header."
    ),
    "not_found": Code(404, _INVALID, "No such path or object.", "Check the URL or the name."),
    "model_not_found": Code(
        404,
        _INVALID,
        "No model of this name is available to this key.",
        "List the available models with `GET /v1/models`.",
    ),
    "unsupported_endpoint": Code(
        404,
        _INVALID,
        "No engine of the model serves this endpoint: it generates text and does not embed it, for example.",
        "Call another model, or ask the operator for an engine that does (`florin engine add --tasks`).",
    ),
    # authentication and permissions
    "missing_api_key": Code(
        401,
        "authentication_error",
        "The request has no `Authorization: Bearer` header. (Models can be called with `x-api-key`, too.)",
        "Send the API key in that header.",
    ),
    "invalid_api_key": Code(
        401,
        "authentication_error",
        "The API key does not exist, or `Authorization` and `x-api-key` hold different ones.",
        "Check the key, or ask for a new one.",
    ),
    "revoked_api_key": Code(401, "authentication_error", "The API key was revoked.", "Ask for a new key."),
    "expired_api_key": Code(
        401,
        "authentication_error",
        "The API key or enrolment token has expired.",
        "Ask for a new one.",
    ),
    "invalid_signature": Code(
        401,
        "authentication_error",
        "A webhook is not signed with FLORIN_TOP_UP_SECRET as FLORIN_TOP_UP_SCHEME says, or is older than "
        "five minutes.",
        "Compare the secret with the provider's, and the clocks. A provider signs each retry anew.",
    ),
    "invalid_token": Code(
        401,
        "authentication_error",
        "The token of a person who signed in is not valid here: another issuer's or audience's, not signed "
        "by the issuer's keys, or not for signing in.",
        "Sign in again: `florin login`. The message says what is wrong with the token.",
    ),
    "expired_token": Code(
        401,
        "authentication_error",
        "The sign-in of a person has expired.",
        "Sign in again: `florin login`.",
    ),
    "no_role": Code(
        403,
        "permission_error",
        "The person signed in, but FLORIN_OIDC_ROLES gives no role to any of their groups, or their tenant "
        "does not exist.",
        "Ask the operator to add one of the groups in the message, or ask for a group that has a role.",
    ),
    "issuer_unavailable": Code(
        503,
        _SERVER,
        "The issuer of sign-ins (FLORIN_OIDC_ISSUER) does not answer, and its keys were never fetched or are "
        "too old.",
        "Check the issuer; the log gives the reason. API keys keep working.",
    ),
    "insufficient_role": Code(
        403, "permission_error", "The key's role does not permit this.", "Use a key with the required role."
    ),
    "insufficient_scope": Code(
        403,
        "permission_error",
        "The key is read-only, or its scopes do not include this endpoint.",
        "Use another key, or ask for one with the scope. `florin key update ID` changes scopes.",
    ),
    "tenant_suspended": Code(
        403,
        "permission_error",
        "An operator has suspended the tenant. Its adapters, keys and usage are kept.",
        "Contact the operator, who resumes it with `florin tenant resume NAME`.",
    ),
    "engine_pinned": Code(
        403,
        "permission_error",
        "A GPU host reports a value that differs from the one pinned to its key, or fetches adapters from "
        "another address than its engine's.",
        "Restore the value, or enrol the host again with `florin engine token create`.",
    ),
    # limits
    "too_many_connections": Code(
        503,
        _SERVER,
        "The worker has FLORIN_MAX_CONNECTIONS connections, or FLORIN_MAX_CONNECTIONS_PER_ADDRESS from the "
        "client's address, or too much memory goes to headers that have not all arrived.",
        "Use fewer connections, or raise the setting; send all headers at once.",
    ),
    "too_many_requests": Code(
        429,
        "rate_limit_error",
        "A key or tenant has reached its limit of requests, or of body bytes, in flight "
        "(FLORIN_MAX_KEY_*, FLORIN_MAX_TENANT_*).",
        "Wait for `retry-after`, and send fewer requests at a time.",
    ),
    "too_many_failed_keys": Code(
        429,
        "rate_limit_error",
        "The key does not exist, and the client's address has sent too many such keys "
        "(FLORIN_FAILED_KEYS_PER_ADDRESS). Valid keys are still served.",
        "Check the key. Wait for `retry-after`.",
    ),
    "queue_full": Code(
        429,
        "rate_limit_error",
        "As many of the tenant's requests wait for an engine as its limits or FLORIN_MAX_TENANT_QUEUED "
        "allow.",
        "Wait for `retry-after`, and send fewer requests at a time.",
    ),
    "rate_limit_exceeded": Code(
        429,
        "rate_limit_exceeded",
        "A tenant, key, organization, adapter, end user or tag has reached its limit of requests or tokens "
        "per minute; the message says which.",
        "Wait for `retry-after`: the request then has a place (docs/limits.md).",
    ),
    "concurrency_limit_exceeded": Code(
        429,
        "rate_limit_exceeded",
        "A tenant, key, organization, adapter, end user or tag has reached its limit of concurrent requests.",
        "Wait for `retry-after`, and send fewer requests at a time.",
    ),
    "budget_exhausted": Code(
        429,
        "insufficient_quota",
        "A budget of requests, tokens or money for a period is used up; the message says whose, and which.",
        "Ask the operator to raise the budget, or wait for `retry-after`. A budget without an end has none.",
    ),
    "credits_exhausted": Code(
        429,
        "insufficient_quota",
        "The tenant pays in advance, and its prepaid credits are used up.",
        "Ask the operator for more credits: `florin credit grant`. Requests are served again within seconds.",
    ),
    "budget_reserved": Code(
        429,
        "insufficient_quota",
        "What is left of a budget is reserved by requests in flight, which may use less.",
        "Wait for `retry-after`. A smaller `max_tokens` reserves less.",
    ),
    "user_required": Code(
        400,
        _INVALID,
        "The operator requires each request to name its end user, and this one names none.",
        "Send `safety_identifier` (or `user`).",
    ),
    "max_output_exceeded": Code(
        400,
        _INVALID,
        "The request asks for more output tokens than the tenant's or key's limit, all choices together.",
        "Lower `max_tokens` or `n`.",
    ),
    "too_many_reports": Code(
        429,
        "rate_limit_error",
        "A tenant has more finance queries in progress than FLORIN_TENANT_REPORTS allows, or too many "
        "unread exports.",
        "Wait for `retry-after`, and send fewer queries at a time.",
    ),
    "worker_full": Code(
        503,
        _SERVER,
        "The worker has reached FLORIN_MAX_WORKER_*, or its limit of reports and exports.",
        "Retry. Add workers if it persists.",
    ),
    # the registry
    "conflict": Code(
        409,
        "conflict_error",
        "The object was changed concurrently, or the name is taken.",
        "Read the current state, then retry.",
    ),
    "confirmation_required": Code(
        409,
        "conflict_error",
        "A price or rate is at least five times, or at most a fifth of, the one before it.",
        "Correct it; or confirm it with `confirm=true`, in the command line with `--yes`.",
    ),
    "in_use": Code(
        409,
        "conflict_error",
        "Another object depends on it.",
        "First remove the object that the message names.",
    ),
    "canary_held": Code(
        409,
        "conflict_error",
        "The guard of the canary holds its weight, for the reason that the message gives.",
        "Roll the canary back, or raise its weight with `force`.",
    ),
    "adapter_rejected": Code(
        422,
        _INVALID,
        "The adapter failed a check. Each entry of `findings` says what was found and what was expected.",
        "Fix each finding.",
    ),
    "evaluation_required": Code(
        409,
        "conflict_error",
        "The promotion, or the adapter's policy, requires a passing evaluation of exactly this version, and "
        "its last one did not pass, or there is none.",
        "Evaluate the version with `florin adapter eval` and a criterion (`--threshold`, `--no-worse-than`). "
        "`florin adapter evals` shows why it did not pass (docs/evaluation.md).",
    ),
    "quota_exceeded": Code(
        403,
        "permission_error",
        "A tenant's own administrator would exceed a quota of the tenant: adapters, versions, bytes, rank or "
        "keys.",
        "Remove what the message names, or ask the operator for more. `florin whoami` shows the quotas.",
    ),
    "upload_quota_exceeded": Code(
        429,
        "rate_limit_error",
        "The tenant's uploads and fetches of this hour are used up.",
        "Wait for `retry-after`, or ask the operator for more.",
    ),
    "source_not_allowed": Code(
        403,
        "permission_error",
        "The source is of a kind that FLORIN_TENANT_SOURCES does not allow for keys of role `tenant-admin`.",
        "Upload the files, or use a URL of an allowed kind.",
    ),
    "upload_incomplete": Code(
        400,
        _INVALID,
        "The upload was interrupted, was too slow (408), or did not contain exactly one file.",
        "Upload again; the partial upload was discarded.",
    ),
    "too_many_uploads": Code(
        503,
        _SERVER,
        "The worker's limit of uploads at a time is reached, or the tenant's share of it.",
        "Wait for `retry-after`.",
    ),
    "bill_rejected": Code(
        422,
        _INVALID,
        "The bill cannot be parsed; `findings` lists the bad lines.",
        "Fix the lines, or map and rename columns as the message suggests.",
    ),
    "export_failed": Code(
        503,
        _SERVER,
        "The export cannot be written to FLORIN_EXPORT_DIR, or exceeds FLORIN_EXPORT_MAX_BYTES.",
        "Free disk space, export less, or raise the setting.",
    ),
    "engine_rejected": Code(
        422, _INVALID, "The engine cannot serve as registered.", "Correct what the message names."
    ),
    # the gateway and its engines
    "placement_timeout": Code(
        503,
        _SERVER,
        "No engine started to answer within FLORIN_PLACEMENT_TIMEOUT.",
        "Retry. `florin placement` shows why.",
    ),
    "overloaded": Code(
        503,
        _SERVER,
        "The request waited, or would wait, longer than FLORIN_QUEUE_TIMEOUT for an engine with room, or the "
        "worker is overloaded.",
        "Wait for `retry-after`, the time that the queue needs to drain. Add engines or workers if it "
        "persists.",
    ),
    "no_engine": Code(
        503,
        _SERVER,
        "No engine in the fleet can hold this adapter, or none is up and none has started within "
        "FLORIN_ENGINE_START_TIMEOUT.",
        "Register, uncordon or start an engine. If an autoscaler should have, find out why it has not.",
    ),
    "engine_hung": Code(
        503,
        _SERVER,
        "Every engine that could serve this request hangs (it passes health checks but does no work), or "
        "three engines hung while serving this request.",
        "Wait for `retry-after`. `florin engine list` shows the hanging engines; restart them.",
    ),
    "load_failed": Code(
        503, _SERVER, "An engine failed to load the adapter.", "Check the logs of the gateway and the engine."
    ),
    "version_quarantined": Code(
        503,
        _SERVER,
        "The loaded version answered like the base model, or inconsistently.",
        "`florin adapter show` shows the evidence. Roll back, or release the version.",
    ),
    "engine_failed": Code(
        502,
        _SERVER,
        "Engines failed to answer, and the request's attempts or the worker's retry budget are exhausted.",
        "Wait for `retry-after`, then retry.",
    ),
    "adapter_suspended": Code(
        503,
        _SERVER,
        "Several engines died while serving this tenant's requests to this adapter, so Florin suspends new "
        "ones.",
        "Find the request that kills engines; the gateway's log names the engines. The suspension ends "
        "automatically.",
    ),
    "stream_interrupted": Code(
        502,
        _SERVER,
        "The engine failed in the middle of the stream, and no other engine could resume it. Sent as the "
        "last event of the stream.",
        "Send the request again.",
    ),
    "store_unavailable": Code(
        503,
        _SERVER,
        "Redis is unavailable, and the request needs it: to load an adapter, to look up a new key, or to "
        "check limits while FLORIN_LIMITS_WHEN_STORE_AWAY is `closed`.",
        "Retry. Restore Redis.",
    ),
    "registry_regressed": Code(
        503,
        _SERVER,
        "Redis has lost registry data that this gateway knows, so the registry is read-only.",
        "Run `florin registry show`, then `florin registry rewrite` or `florin registry accept`.",
    ),
    "ledger_unavailable": Code(
        503,
        _SERVER,
        "The ledger's database is unavailable, or a closed month in it was changed past Florin; the message "
        "says which.",
        "Retry. No usage record is lost meanwhile. What was changed: `florin cost verify`.",
    ),
    "cannot_close": Code(
        409,
        "conflict_error",
        "The month cannot be closed yet, or was closed on different terms.",
        "Follow the message.",
    ),
    "second_person_required": Code(
        403,
        "permission_error",
        "FLORIN_TWO_PERSON_APPROVAL is set, and you requested this yourself.",
        "Ask another person to approve it, with a sign-in or a key of their own.",
    ),
    "missing_price": Code(
        409,
        "conflict_error",
        "The price book lacks prices that the cost depends on; the message names each.",
        "Add them with `florin price add`.",
    ),
    "metering_unavailable": Code(
        503,
        _SERVER,
        "The usage log cannot be written, and FLORIN_WAL_FULL is `refuse`.",
        "Free space on the disk of FLORIN_STATE_DIR.",
    ),
    "artifacts_unavailable": Code(
        503,
        _SERVER,
        "The version's files cannot be stored.",
        "Free space on the disk of FLORIN_ARTIFACT_DIR, where 64 MiB must stay free, or repair it; see that "
        "gateways reach FLORIN_ARTIFACT_BUCKET, if it is set.",
    ),
    "no_worker": Code(
        503,
        _SERVER,
        "All workers of the gateway have exited, and none has restarted yet.",
        "Retry. The gateway's log says why they exit (docs/incidents.md, FlorinWorkerCrashLoop).",
    ),
    "shutting_down": Code(
        503, _SERVER, "The gateway is shutting down.", "Retry: another worker or host will answer."
    ),
    "internal_error": Code(500, _SERVER, "A bug in Florin.", "Report it with the request id."),
}
