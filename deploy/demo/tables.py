"""The transcript's tables, built from the admin and finance APIs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from deploy.demo.stack import Customer

_PARTS = {"retry_waste": "retries", "startup": "start-up", "headroom": "spare while busy", "idle": "idle"}
"""GPU time not spent on answers."""


def customer_table(customers: Sequence[Customer]) -> Table:
    table = Table("customer", "API key", "adapter", "digest", "answers begin")
    for c in customers:
        table.add_row(c.name, f"{c.key[:12]}…", c.model, f"{c.digest[:19]}…", f"“{c.adapter.voice} …”")
    return table


def crowd_table(answered: Counter[tuple[str, str, str]]) -> Table:
    """`answered` counts (customer, kind, engine)."""
    engines = sorted({engine for _, _, engine in answered})
    table = Table("customer", "kind", *(f"on {engine or 'none'}" for engine in engines))
    for customer, kind in sorted({(c, k) for c, k, _ in answered}):
        counts = (answered[customer, kind, engine] for engine in engines)
        table.add_row(customer, kind, *(str(n or "") for n in counts))
    return table


def placement_table(engines: Sequence[dict[str, Any]]) -> Table:
    most = max((len(e["placements"]) for e in engines), default=0)
    slots = max([most, *(e["slots"] for e in engines)])
    table = Table("engine", "GPU type", "health", *(f"slot {i + 1}" for i in range(slots)))
    for engine in engines:
        lost = engine["health"] == "down"
        slot_texts = [
            f"{p['version']} ({'reloaded on return' if lost else p['state']})" for p in engine["placements"]
        ]
        slot_texts += ["—"] * (slots - len(slot_texts))
        style = "red" if lost else None
        table.add_row(engine["engine"], engine["gpu_type"], engine["health"], *slot_texts, style=style)
    return table


def cost_table(report: dict[str, Any]) -> Table:
    currency = report["currency"] or ""
    table = Table("customer", "adapter", "GPU type")
    for heading in ("requests", "input", "cached", "output", "GPU seconds", f"cost {currency}"):
        table.add_column(heading, justify="right")
    for row in report["rows"]:
        table.add_row(row["tenant"], row["adapter"] or "(base model)", row["gpu_type"], *_figures(row))
    table.add_section()
    table.add_row("all customers", "", "", *_figures(report["totals"]), style="bold")
    for part, label in _PARTS.items():
        if part in report and report[part]["totals"]["gpu_seconds"]:
            table.add_row(label, "", "", *_figures(report[part]["totals"]))
    if "provisioned" in report:
        table.add_section()
        table.add_row("total", "", "", *_figures(report["provisioned"]), style="bold")
    return table


def charged_lines(statement: dict[str, Any]) -> list[dict[str, Any]]:
    """The tokens that it charges."""
    return [line for line in statement["charges"]["lines"] if line.get("tokens")]


def charge_table(statements: Sequence[dict[str, Any]]) -> Table:
    currency = statements[0]["currency"]
    table = Table("customer", "SKU")
    for heading in ("tokens", f"{currency} per million", f"price {currency}"):
        table.add_column(heading, justify="right")
    for statement in statements:
        for line in charged_lines(statement):
            table.add_row(
                statement["tenant"], line["sku"], str(line["tokens"]), line["per_million"], line["exact"]
            )
    return table


def _figures(row: dict[str, Any]) -> tuple[str, ...]:
    counts = (
        row.get(name, "") for name in ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
    )
    seconds = row.get("gpu_seconds")
    cost = row.get("cost")
    return (
        *(str(count) for count in counts),
        "" if seconds is None else f"{float(seconds):.2f}",
        "no price" if cost is None else f"{float(cost):.6f}",
    )
