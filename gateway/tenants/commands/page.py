"""What `florin tenant show` prints: one tenant at a glance, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.commands.output import clean, facts, label_pairs, note, say, show, table, when
from gateway.fleet.adapters.schemas.adapters import Adapter
from gateway.tenants.keys.commands import ago, key_table
from gateway.tenants.schemas.limit_dry_run import LimitDryRun
from gateway.tenants.schemas.tenants import LimitUse, Queue, RequestError, Tenant, TenantPage
from gateway.tenants.schemas.terms import in_words, section

_ERRORS_SHOWN = 10


def show_page(page: TenantPage) -> None:
    """The page, in sections. Those of what a tenant does not have are left out."""
    show_terms(page)
    _usage(page.usage or ())
    _queue(page.queue)
    _adapters(page.adapters)
    _section(f"Keys of {clean(page.name)}")
    show(key_table(page.keys))
    _errors(page.errors)
    _section("Next")
    for command, purpose in _next(page):
        say(f"  {command}  # {purpose}")


def show_terms(tenant: Tenant) -> None:
    suspended = f"suspended since {when(tenant.suspended)}" if tenant.suspended else "served"
    show(
        facts(
            [
                ("tenant", tenant.name),
                ("state", suspended),
                ("base access", tenant.base_access),
                ("requires", label_pairs(tenant.requires)),
                ("limits", in_words(tenant.limits, section("limits")) or "none"),
                ("budget", in_words(tenant.budget, section("budget")) or "none"),
                ("at the end of prepaid credits", "refused" if tenant.prepaid else "billed"),
                ("timezone", tenant.timezone),
                ("organization", tenant.organization),
                ("weight", f"{tenant.weight:g}"),
                ("quotas", in_words(tenant.quotas, section("quotas")) or "none"),
                ("requests", in_words(tenant.policy, section("policy")) or "as the settings say"),
                ("cache group", tenant.cache_group),
                ("cost centre", tenant.cost_centre),
                ("created", when(tenant.created)),
            ]
        )
    )


def _usage(uses: Sequence[LimitUse]) -> None:
    """What is used of each limit and budget."""
    if not uses:
        return
    rows: list[tuple[object, ...]] = [
        (
            use.level,
            use.limit.replace("_", " "),
            use.used,
            use.allowed,
            _percent(use.used, use.allowed),
            when(use.resets * 1_000_000) if use.resets else None,
            use.would_refuse,
        )
        for use in uses
    ]
    _section("Limits and budgets")
    columns: tuple[str, ...] = ("of", "limit", "used", "allowed", "%", "resets", "would have refused today")
    if all(use.would_refuse is None for use in uses):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    show(table(columns, rows, right=("used", "allowed", "%", "would have refused today")))


def _queue(queue: Queue) -> None:
    waited = f", the oldest for {queue.longest_wait:.1f} s" if queue.waiting else ""
    _section("Queue")
    say(
        f"  {queue.waiting:,} waiting{waited}; {queue.in_flight:,} on engines, through the worker that "
        f"answered; {queue.served_share:.0%} of the tokens served in the last minutes"
    )


def _percent(used: int | str | None, allowed: int | str) -> str | None:
    """The part that is used of counts, or of money as text."""
    if used is None or not float(allowed):
        return None
    return f"{100 * float(used) / float(allowed):.0f}"


def _adapters(adapters: Sequence[Adapter]) -> None:
    _section("Adapters")
    if not adapters:
        say("  None yet.")
        return
    rows = [
        (
            adapter.adapter,
            adapter.live,
            f"{adapter.canary.version}, {adapter.canary.weight} %" if adapter.canary else None,
            len(adapter.versions),
            list(dict.fromkeys(p.engine for p in adapter.placed or () if p.state == "resident")),
            [f"{problem.version} is {problem.state}" for problem in adapter.trouble],
        )
        for adapter in adapters
    ]
    columns = ("adapter", "live", "canary", "versions", "resident on", "problems")
    show(table(columns, rows, right=("versions",)))


def _errors(errors: Sequence[RequestError]) -> None:
    _section("Last errors")
    if not errors:
        say("  None in the last seven days.")
        return
    rows = [
        (ago(e.failed_at), e.status, e.code, e.adapter, e.key, e.request_id) for e in errors[:_ERRORS_SHOWN]
    ]
    show(table(("when", "status", "code", "adapter", "key", "request"), rows, right=("status",)))
    if len(errors) > _ERRORS_SHOWN:
        say(f"  and {len(errors) - _ERRORS_SHOWN} more: --json lists them.")


def _section(title: str) -> None:
    say(f"\n{title}:")


def _next(page: TenantPage) -> Iterator[tuple[str, str]]:
    """Commands for what is missing or wrong first, then those of every day."""
    name = clean(page.name)
    if page.suspended:
        yield f"florin tenant resume {name}", "serve it again"
    if not any(key.revoked is None for key in page.keys):
        yield f"florin key create --tenant {name}", "its first key"
    if not page.adapters:
        yield f"florin adapter add {name}/NAME --source DIR", "its first adapter"
    for adapter in page.adapters:
        if adapter.trouble:
            yield f"florin adapter show {clean(adapter.adapter)}", "why versions are not served"
    yield f"florin tenant update {name} --requests-per-minute 600", "change a limit"
    if not page.suspended:
        yield f"florin tenant suspend {name}", "refuse its requests"
    yield f"florin cost report --tenant {name}", "what it used and cost"


def show_dry_run(tried: LimitDryRun) -> None:
    if not tried.limits:
        say(f"{clean(tried.tenant)} has no limits: give some with --limit.")
        return
    columns = ("limit", "requests", "would refuse", "consumers", "refused", "most often")
    rows = [
        (
            limit.limit,
            f"{limit.requests:,}",
            f"{limit.would_refuse:,}",
            f"{limit.consumers:,}",
            f"{limit.consumers_refused:,}",
            ", ".join(f"{name.name or 'all'} ({name.would_refuse:,})" for name in limit.most_refused) or "-",
        )
        for limit in tried.limits
    ]
    show(table(columns, rows, right=columns[1:5]))
    for limit in tried.limits:
        if limit.until < tried.end:
            note(f"{clean(limit.limit)}: too many records; figures are until {when(limit.until)}.")
