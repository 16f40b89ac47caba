"""The pages that are one table each: settings, errors, checks, conditions, audit actions, metrics."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import SecretStr

from adapters.checks.findings import CODES as CHECKS
from adapters.engine_agent.engine_flags import EXCEPT, ONLY, PASSED, REFUSED, REFUSED_ENVIRONMENT
from adapters.placement.fingerprint import TOP
from gateway.config import RELOADABLE, Settings
from gateway.config.secret_files import SECRETS
from gateway.config.secret_files import variable as secret_variable
from gateway.errors import CODES
from gateway.metering.ledger.audit_log import ACTIONS
from gateway.observability.conditions import CONDITIONS
from gateway.observability.metric_names import METRICS
from gateway.runtime.unknown_variables import CLIENTS
from tests.tools.docs.markdown import code, document, table

_SETTINGS = """
`florin serve` reads environment variables and `florin.yaml` in the working directory (without the prefix, in
lower case). The environment overrides the file. If a setting is invalid, it exits with an error that names
the setting; unknown `FLORIN_` variables cause a warning.

On SIGHUP, a running gateway reads `florin.yaml` again. Changes to settings marked **reload** take effect for
new requests; changes to others are logged as waiting for a restart.
[Upgrading](../upgrading.md#settings-that-need-no-restart) has the details.
"""

_CLIENT_SETTINGS = """
## Variables of the command line

`florin engine run` and the commands that call a gateway read these. `florin engine run` also reads
`FLORIN_TLS_*`, `FLORIN_ENGINE_*` and `FLORIN_LOG_*` from the table above.
"""

_ERRORS = """
Errors have OpenAI's format, `{"error": {"message", "type", "param", "code"}}`, and the status that the
OpenAI client maps to its exceptions. A stream that has begun ends with an error event in the same format.
"""

_CHECKS = """
`florin adapter add`, `florin adapter check` and `florin apply` check an adapter before it reaches a GPU. An
**error** refuses the adapter; a **warning** does not. Each finding also has the found and the expected value.
[Adapters](../adapters.md#what-is-checked) explains the checks.
"""

_CONDITIONS = """
A condition is a problem that a worker detects in itself. `/readyz`, `florin doctor`, the metric
`florin_condition` and the [alerts](../incidents.md) report it. `/readyz` returns 503 only for conditions
under which requests fail.
"""

_AUDIT = """
Each change writes one audit entry, in the same transaction. `florin audit list` and `GET
/admin/v1/audit` show them.
"""

_METRICS = """
`GET /metrics` requires a key of role `metrics` or `operator`, since the labels name customers. Names that the
registry does not know never become labels, and names beyond the first thousand share the label `__other__`.
Metrics are for dashboards; bills come from the ledger. [Observability](../observability.md#metrics) explains
how to use them.
"""

_FLAGS = """
`florin engine run` adds the flags that Florin needs and refuses those that would break it; `florin engine run
--dry-run` shows the resulting command. [Engines](../engines.md) says how to start an engine.

It also refuses incomplete TLS: a certificate without its key, and `--ssl-ca-certs` without `--ssl-cert-reqs
2`, with which clients without a certificate would still be accepted. `--max-logprobs` must be at least {top},
since versions are verified by the log probabilities of their {top} most likely tokens. `--enable-log-requests`
is refused with `VLLM_LOGGING_LEVEL=DEBUG`, because the engine's log would contain prompts.
"""
_PASSED = """
## Passed to the engine

Flags that one might expect to be refused.
"""

_ENVIRONMENT = """
## Environment variables

Refused in the engine's environment, unless the value is harmless.
"""


def settings() -> str:
    rows = (
        (
            code(variable(name)),
            shown(name),
            "yes" if name in RELOADABLE else "",
            meaning(name),
        )
        for name in Settings.model_fields
    )
    clients = ((code(name), text) for name, text in CLIENTS.items() if text)
    return document(
        "Settings",
        _SETTINGS,
        table(("setting", "default", "reload", "meaning"), rows),
        _CLIENT_SETTINGS,
        table(("variable", "meaning"), clients),
    )


def meaning(setting: str) -> str:
    description = Settings.model_fields[setting].description or ""
    if setting not in SECRETS:
        return description
    return f"{description} Can be read from a file: {code(secret_variable(setting))}."


def variable(setting: str) -> str:
    return f"FLORIN_{setting.upper()}"


def shown(setting: str) -> str:
    """Its default."""
    default = Settings.model_fields[setting].default
    if isinstance(default, SecretStr):
        default = default.get_secret_value()
    if isinstance(default, bool):
        return code(str(default).lower())
    return "none" if default in {"", None} else code(default)


def errors() -> str:
    rows = ((code(name), str(c.status), code(c.type), c.cause, c.remedy) for name, c in CODES.items())
    return document("Errors", _ERRORS, table(("code", "status", "type", "cause", "remedy"), rows))


def checks() -> str:
    rows = ((code(name), c.severity, c.meaning, c.remedy) for name, c in CHECKS.items())
    return document("Checks", _CHECKS, table(("check", "severity", "meaning", "remedy"), rows))


def conditions() -> str:
    rows = (
        (code(name), c.severity, "served" if c.serves else "refused", c.summary, c.remedy)
        for name, c in CONDITIONS.items()
    )
    return document(
        "Conditions", _CONDITIONS, table(("condition", "severity", "requests are", "meaning", "remedy"), rows)
    )


def audit() -> str:
    return document("Audit actions", _AUDIT, _described("action", ACTIONS))


def metrics() -> str:
    return document("Metrics", _METRICS, _described("metric", METRICS))


def engine_flags() -> str:
    refused = ((code(f"--{name}"), "", reason) for name, reason in REFUSED.items())
    only = ((code(f"--{n}"), ", ".join(map(code, allowed)), reason) for n, (allowed, reason) in ONLY.items())
    others = (
        (code(f"--{n}"), f"all but {', '.join(map(code, values))}", reason)
        for n, (values, reason) in EXCEPT.items()
    )
    passed = ((code(f"--{name}"), reason) for name, reason in PASSED.items())
    variables = ((code(name), reason) for name, (_, reason) in REFUSED_ENVIRONMENT.items())
    return document(
        "Refused engine flags",
        _FLAGS.format(top=TOP),
        table(("flag", "allowed values", "reason"), (*refused, *only, *others)),
        _PASSED,
        table(("flag", "reason"), passed),
        _ENVIRONMENT,
        table(("variable", "reason"), variables),
    )


def _described(what: str, texts: Mapping[str, str]) -> str:
    return table((what, "meaning"), ((code(name), text) for name, text in texts.items()))
