"""florin whoami: what a key is, what it may do, and what is used of it."""

from __future__ import annotations

import typer

from gateway.commands.output import facts, show, table, when
from gateway.commands.session import Session, command
from gateway.schemas.options import OptionField
from gateway.schemas.typed_text import written
from gateway.tenants.people.schemas import Me
from gateway.tenants.schemas.tenants import QuotaUse
from gateway.tenants.schemas.terms import KeyTerms, in_words, section

app = typer.Typer()


@command(app, "whoami")
def whoami(session: Session) -> None:
    """Show the key in use: its role, scopes and limits, and a customer's quotas.

    Example: FLORIN_KEY=fl_… florin whoami
    """
    session.result(session.api.get("/admin/v1/me", Me), _people)


def _people(me: Me) -> None:
    show(
        facts(
            [
                ("signed in as" if me.id.startswith("oidc") else "key", me.id),
                ("label", me.label),
                ("role", me.role),
                ("tenant", me.tenant),
                *([("engine", me.engine)] if me.engine else []),
                ("expires", when(me.expires) or "never"),
                ("scopes", in_words(me.scopes, section("scopes", KeyTerms)) or "all"),
                ("priority", me.priority),
                ("limits of the key", in_words(me.limits, section("limits")) or "none"),
                ("budget of the key", in_words(me.budget, section("budget")) or "none"),
            ]
        )
    )
    if terms := me.tenant_terms:
        show(
            facts(
                [
                    ("base access", terms.base_access),
                    ("limits", in_words(terms.limits, section("limits")) or "none"),
                    ("budget", in_words(terms.budget, section("budget")) or "none"),
                ]
            )
        )
        rows = [
            _quota(field, terms.quotas[field.path[-1]])
            for field in section("quotas")
            if field.path[-1] in terms.quotas
        ]
        show(table(("quota", "used", "limit"), rows, right=("used", "limit")))


def _quota(field: OptionField, quota: QuotaUse) -> tuple[str, str, str]:
    used = "" if quota.used is None else written(field.kind, quota.used)
    return field.label, used, "none" if quota.limit is None else written(field.kind, quota.limit)
