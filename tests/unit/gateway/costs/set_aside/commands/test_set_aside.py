"""florin cost set-aside and exclude, quarantine and dismiss: what they ask, print, and how they end."""

import pytest

from tests.support.command_cases import Case, check

PATH, QUARANTINE = "/finance/v1/set-aside", "/finance/v1/quarantine"
HOUR = {
    "hour": "2026-11-03T14:00:00Z", "engine": "gpu-a", "gpu_type": "H100", "gpu_count": 1,
    "since": "2026-11-03T14:05:00Z", "reason": "record r cannot be: completion_tokens 9\x1b[31m",
}  # fmt: skip
EXCLUDED = {"engine": "gpu-a", "hour": HOUR["hour"], "quarantined": 1234, "kept": 0, "set_aside": False}
RECORD = {
    "id": "r-1", "tenant": "acme", "engine": "gpu-a\x1b[31m", "ended": 1_793_000_000_000_000,
    "prompt_tokens": 1200, "completion_tokens": 34,
}  # fmt: skip
DIFFERS = {
    "id": "r-1", "reason": "differs", "recorded_at": "2026-11-03T14:00:00Z", "record": RECORD,
    "stored": {"completion_tokens": 35},
}  # fmt: skip
IMPOSSIBLE = {**DIFFERS, "reason": "excluded", "record": {**RECORD, "ended": 9 * 10**18}, "stored": None}
DISMISSED = {
    **DIFFERS,
    "dismissal": {"by": "key-1", "recorded_at": "2026-11-04T00:00:00Z", "reason": "Shipped twice"},
}
QUARANTINED = {"data": [DIFFERS, IMPOSSIBLE, DISMISSED], "total": 7, "next": "x"}
EXCLUDE = {"engine": "gpu-a", "hour": HOUR["hour"]}
CASES = (
    Case(
        "cost set-aside", {f"GET {PATH}": {"data": [HOUR]}}, ("gpu-a", "cannot be"), ("florin cost exclude",),
        document={"data": [HOUR]},
    ),
    Case("cost set-aside", {f"GET {PATH}": {"data": []}}, notes=("No engine-hour is set aside.",)),
    Case(
        f"cost exclude gpu-a {HOUR['hour']} --yes --everything", {f"POST {PATH}/exclude": EXCLUDED}, ("1,234 records quarantined.",),
        ("is rolled up again",), sends={**EXCLUDE, "everything": True},
    ),
    Case(
        f"cost exclude gpu-a {HOUR['hour']} --yes", {f"POST {PATH}/exclude": {**EXCLUDED, "kept": 2, "set_aside": True}},
        notes=("2 records belong to closed months and stay", "--everything"), sends={**EXCLUDE, "everything": False}, code=1,
    ),
    Case(
        "cost quarantine", {f"GET {QUARANTINE}?limit=100": QUARANTINED},
        ("the ledger has this record with other content: completion_tokens 35, not 34", "an operator excluded it",
         str(9 * 10**18), "dismissed: Shipped twice"),
        ("The newest 3 of 7; --limit shows more.",), document=QUARANTINED,
    ),
    Case(
        "cost quarantine", {f"GET {QUARANTINE}?limit=100": {"data": [], "total": 0, "next": None}},
        notes=("No record is in quarantine.",),
    ),
    Case(
        "cost dismiss r-1 r-2 --reason 'Shipped twice'",
        {f"POST {QUARANTINE}/dismiss": {"dismissed": ["r-1"], "reason": "Shipped twice"}}, ("Dismissed r-1.",),
        sends={"records": ["r-1", "r-2"], "reason": "Shipped twice"},
    ),
)  # fmt: skip  # a case each


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_command(fake, case):
    check(fake, case)


def test_what_a_record_says_does_not_reach_the_terminal(fake):
    fake.answer("GET", PATH, {"data": [HOUR]})
    fake.answer("GET", f"{QUARANTINE}?limit=100", QUARANTINED)
    for command in ("set-aside", "quarantine"):
        assert "\x1b[31m" not in fake.florin("cost", command).stdout
