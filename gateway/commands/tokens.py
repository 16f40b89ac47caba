"""florin engine token …"""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError
from gateway.commands.labels import labels
from gateway.commands.output import clean, note, when
from gateway.commands.prices import Purchase
from gateway.commands.session import Session, command

_tokens = typer.Typer(
    no_args_is_help=True, help="Enrolment tokens, which GPU hosts exchange for their own keys."
)
app = typer.Typer()
app.add_typer(_tokens, name="token")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@command(_tokens, "create")
def create(
    session: Session,
    *,
    name: Annotated[str, typer.Option(help="The engine that the token is for.")],
    expires: Annotated[str, typer.Option(help="How long the token is valid: 30m, 1h, 7d.")] = "1h",
    base: Annotated[str | None, typer.Option(help="Pin the base model.")] = None,
    gpu_type: Annotated[
        str | None, typer.Option(help="Pin the GPU type, as named in the price book.")
    ] = None,
    gpu_count: Annotated[int | None, typer.Option(min=1, help="Pin the number of GPUs.")] = None,
    region: Annotated[str | None, typer.Option(help="Pin the region.")] = None,
    purchase: Annotated[Purchase | None, typer.Option(help="Pin the purchase model.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL=VALUE", help="Pin the engine's labels: it has these. Repeatable."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Host name or IP address in the engine's URLs, if it differs from the address that the "
            "gateway sees (proxies, NAT, names)."
        ),
    ] = None,
) -> None:
    """Create a single-use token that enrols one GPU host as one engine. What is not pinned here is fixed by
    the host's first registration. If the host is already enrolled, using the token replaces its key.

    Example: florin engine token create --name gpu1 --gpu-type H100 > token
    """
    body: Json = {
        "engine": name,
        "expires_in": seconds(expires),
        "base": base,
        "gpu_type": gpu_type,
        "gpu_count": gpu_count,
        "region": region,
        "purchase": purchase.value if purchase else None,
        "labels": labels("--label", label) if label else None,
        "address": address,
    }
    session.result(session.api.post("/admin/v1/enrolment-tokens", body), _people)


def _people(body: Json) -> None:
    sys.stdout.write(f"{body['token']}\n")
    engine = clean(body["engine"])
    note(
        f"Token {clean(body['id'])} for engine {engine}: single use, valid until {when(body['expires'])}. On "
        f"the host: florin engine run --name {engine} --token-file FILE -- vllm serve …"
    )


def seconds(text: str, option: str = "--expires") -> int:
    """Parses `90s`, `30m`, `1h`, `7d`. Raises UsageError."""
    match = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", text.strip(), re.ASCII)
    if match is None:
        raise UsageError(f"{option}: {text!r} is not a time like 30m, 1h or 7d.")
    return int(match[1]) * _UNITS[match[2]]
