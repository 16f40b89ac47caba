"""What `florin tenant show` prints: one tenant at a glance, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.commands.client import Json
from gateway.commands.keys import ago, key_table
from gateway.commands.labels import shown
from gateway.commands.output import clean, facts, note, say, show, table, when
from gateway.commands.terms import in_words, policy_in_words

_ERRORS_SHOWN = 10


def show_page(body: Json) -> None:
    """The page, in sections. Those of what a tenant does not have are left out."""
    show_terms(body)
    _usage(body)
    _queue(body["queue"])
    _adapters(body)
    _section(f"Keys of {clean(body['name'])}")
    show(key_table(body["keys"]))
    _errors(body)
    _section("Next")
    for command, purpose in _next(body):
        say(f"  {command}  # {purpose}")


def show_terms(body: Json) -> None:
    show(
        facts(
            [
                ("tenant", body["name"]),
                ("state", f"suspended since {when(body['suspended'])}" if body["suspended"] else "served"),
                ("base access", body["base_access"]),
                ("requires", shown(body["requires"])),
                ("limits", in_words(body["limits"]) or "none"),
                ("budget", in_words(body["budget"]) or "none"),
                ("weight", f"{body['weight']:g}"),
                ("quotas", in_words(body["quotas"]) or "none"),
                ("requests", list(policy_in_words(body["policy"])) or "as the settings say"),
                ("cache group", body["cache_group"]),
                ("cost centre", body["cost_centre"]),
                ("created", when(body["created"])),
            ]
        )
    )
    for warning in body.get("warnings", ()):
        note(f"Warning: {clean(warning)}.")


def _usage(body: Json) -> None:
    """What is used of each limit and budget."""
    if not body.get("usage"):
        return
    rows = [
        (
            row["limit"].replace("_", " "),
            row["used"],
            row["allowed"],
            _percent(row["used"], row["allowed"]),
            when(row["resets"] * 1_000_000) if row["resets"] else None,
        )
        for row in body["usage"]
    ]
    _section("Limits and budgets")
    columns = ("limit", "used", "allowed", "%", "resets")
    show(table(columns, rows, right=("used", "allowed", "%")))


def _queue(queue: Json) -> None:
    waited = f", the oldest for {queue['longest_wait']:.1f} s" if queue["waiting"] else ""
    _section("Queue")
    say(
        f"  {queue['waiting']:,} waiting{waited}; {queue['in_flight']:,} on engines, through the worker that "
        f"answered; {queue['served_share']:.0%} of the tokens served in the last minutes"
    )


def _percent(used: object, allowed: object) -> str | None:
    """Of counts, or of money as text."""
    if used is None or not float(str(allowed)):
        return None
    return f"{100 * float(str(used)) / float(str(allowed)):.0f}"


def _adapters(body: Json) -> None:
    _section("Adapters")
    if not body["adapters"]:
        say("  None yet.")
        return
    rows = [
        (
            a["adapter"],
            a["live"],
            f"{a['canary']['version']}, {a['canary']['weight']} %" if a["canary"] else None,
            len(a["versions"]),
            list(dict.fromkeys(p["engine"] for p in a["placed"] if p["state"] == "resident")),
            [f"{t['version']} is {t['state']}" for t in a["trouble"]],
        )
        for a in body["adapters"]
    ]
    columns = ("adapter", "live", "canary", "versions", "resident on", "problems")
    show(table(columns, rows, right=("versions",)))


def _errors(body: Json) -> None:
    errors = body["errors"]
    _section("Last errors")
    if not errors:
        say("  None in the last seven days.")
        return
    rows = [
        (ago(e["at"]), e["status"], e["code"], e["adapter"], e["key"], e["request_id"])
        for e in errors[:_ERRORS_SHOWN]
    ]
    show(table(("when", "status", "code", "adapter", "key", "request"), rows, right=("status",)))
    if len(errors) > _ERRORS_SHOWN:
        say(f"  and {len(errors) - _ERRORS_SHOWN} more: --json lists them.")


def _section(title: str) -> None:
    say(f"\n{title}:")


def _next(body: Json) -> Iterator[tuple[str, str]]:
    """Commands for what is missing or wrong first, then those of every day."""
    name = clean(body["name"])
    if body["suspended"]:
        yield f"florin tenant resume {name}", "serve it again"
    if not any(key["revoked"] is None for key in body["keys"]):
        yield f"florin key create --tenant {name}", "its first key"
    if not body["adapters"]:
        yield f"florin adapter add {name}/NAME --source DIR", "its first adapter"
    for adapter in body["adapters"]:
        if adapter["trouble"]:
            yield f"florin adapter show {clean(adapter['adapter'])}", "why versions are not served"
    yield f"florin tenant update {name} --requests-per-minute 600", "change a limit"
    if not body["suspended"]:
        yield f"florin tenant suspend {name}", "refuse its requests"
    yield f"florin cost report --tenant {name}", "what it used and cost"
