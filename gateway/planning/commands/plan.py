"""florin plan"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from adapters.placement.scheduling.figures import ENGINE_MODELS, MeasuredEngine
from adapters.wording import counted
from gateway.commands.client import Json, UsageError
from gateway.commands.output import clean, console, note, show, table
from gateway.commands.session import Session, command
from gateway.costs.prices.schemas import ListedPrice
from gateway.planning.commands.offers import Offer, current_offers, speed_of
from gateway.planning.schemas import MergedOption, Plan, PlanOption
from gateway.schemas.base import Listed

if TYPE_CHECKING:  # the simulator is loaded only when it is needed: help comes without it
    from gateway.planning.commands.month_of_use import MonthOfUse
    from gateway.planning.sizing import Size
    from gateway.planning.traffic import AdapterUse, Stated, Used

app = typer.Typer()

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)(ms|s)?")
_MILLION = 1_000_000
SLOTS, SEEDS = [8, 16, 32, 64], [11]
WORKLOADS = (
    "W1",
    "W1i",
    "W2",
    "hot",
    "drift",
    "noisy",
    "bursts",
    "shares",
    "flood",
    "diurnal",
    "flash",
    "mixed",
)
ENGINE_MODEL = "h100"
"""`--speed` and the price book's speedups are relative to an H100 unless stated otherwise."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kind of engine, to be simulated once for all its offers."""

    gpu_type: str
    speed: float
    kv_tokens: int | None
    slots: int


@command(app, "plan")
def plan(
    session: Session,
    *,
    slo_ttft: Annotated[str, typer.Option(help="Time to the first token, for example 2s or 500ms.")] = "2s",
    slo_itl: Annotated[str, typer.Option(help="Mean time between tokens.")] = "100ms",
    attainment: Annotated[
        float, typer.Option(min=0.5, max=0.999, help="Share of requests that must meet both objectives.")
    ] = 0.95,
    rate: Annotated[
        float | None, typer.Option(min=0.01, help="Requests per second.", show_default=False)
    ] = None,
    adapters: Annotated[
        int | None,
        typer.Option(min=2, help="Distinct adapters. Default: the workload's.", show_default=False),
    ] = None,
    prompt_tokens: Annotated[float, typer.Option(min=1, help="Mean per request.")] = 1155,
    output_tokens: Annotated[float, typer.Option(min=1, help="Mean per request.")] = 211,
    workload: Annotated[
        str, typer.Option(help=f"How requests choose adapters: {', '.join(WORKLOADS)}.")
    ] = "W1",
    cv: Annotated[
        float | None,
        typer.Option(
            min=0.1, max=8, help="Variation of the gaps between arrivals; 1: Poisson.", show_default=False
        ),
    ] = None,
    from_usage: Annotated[
        bool, typer.Option("--from-usage", help="Plan for the busiest hour of a month's real traffic.")
    ] = False,
    month: Annotated[
        str | None, typer.Option(help="With --from-usage: month in UTC, 2026-07. Default: the last full one.")
    ] = None,
    base_model: Annotated[
        str | None, typer.Option(help="With --from-usage: base model, if there are several.")
    ] = None,
    rank: Annotated[int, typer.Option(min=1, help="With --from-usage: rank of the adapters.")] = 16,
    gpu_type: Annotated[
        list[str] | None, typer.Option(help="GPU type; repeatable. Default: all in the price book.")
    ] = None,
    slots: Annotated[list[int], typer.Option(min=1, max=512, help="--max-loras to try; repeatable.")] = SLOTS,
    cpu_slots: Annotated[int, typer.Option(min=1, help="--max-cpu-loras of each engine.")] = 128,
    speed: Annotated[
        list[str] | None,
        typer.Option(help="TYPE=FACTOR: speed relative to the engine model's GPU, L4=0.2; repeatable."),
    ] = None,
    engine_model: Annotated[
        str,
        typer.Option(help="; ".join(f"{name}: {model.what}" for name, model in ENGINE_MODELS.items()) + "."),
    ] = ENGINE_MODEL,
    kv_tokens: Annotated[
        list[str] | None,
        typer.Option(
            help="TYPE=TOKENS of KV cache without adapters; repeatable. Default: the engine model's."
        ),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(help="TYPE=RATE per GPU-hour instead of the price book; repeatable."),
    ] = None,
    currency: Annotated[str, typer.Option(help="Of --price.")] = "USD",
    duration: Annotated[float, typer.Option(min=30, max=86_400, help="Simulated seconds of arrivals.")] = 300,
    seed: Annotated[list[int], typer.Option(help="The plan holds for each; repeatable.")] = SEEDS,
) -> None:
    """Say how many engines of which GPU type a workload needs, with how many slots, and what they cost.

    Simulates the gateway's own scheduler over a model of the engines, with more and more of them until enough
    requests meet the objectives. The answer is for engines of one GPU each. Prices come from the price book
    (florin price list), or from --price, which needs no gateway.

    Example: florin plan --slo-ttft 2s --rate 40 --adapters 500 --speed L4=0.2
    """
    from gateway.planning.commands.month_of_use import last_month, month_of_use
    from gateway.planning.simulator.gateway_model import Site
    from gateway.planning.sizing import Goal, hardware_of, size
    from gateway.planning.traffic import Stated, Used, uses_of

    goal = Goal(_seconds("--slo-ttft", slo_ttft), _seconds("--slo-itl", slo_itl), attainment)
    speeds = {name.lower(): _positive("--speed", name, text) for name, text in _pairs("--speed", speed)}
    tokens = {
        name.lower(): int(_positive("--kv-tokens", name, text))
        for name, text in _pairs("--kv-tokens", kv_tokens)
    }
    if from_usage == (rate is not None):
        raise UsageError("Say which traffic to plan for: either --rate or --from-usage.")
    if not from_usage and (month or base_model):
        raise UsageError("--month and --base-model require --from-usage.")
    if workload not in WORKLOADS:
        raise UsageError(f"--workload: there is no {workload!r}; choose from {', '.join(WORKLOADS)}.")
    if engine_model not in ENGINE_MODELS:
        raise UsageError(
            f"--engine-model: there is no {engine_model!r}; choose from {', '.join(ENGINE_MODELS)}."
        )
    model = ENGINE_MODELS[engine_model]
    offers, left_out = _offers(session, gpu_type, price, currency, speeds, model.gpu)
    used: MonthOfUse | None = None
    traffic: Stated | Used
    if rate is None:
        used = month_of_use(session.api, month or last_month(datetime.now(UTC)), base_model)
        traffic = Used(used.uses, rank, cv or 1.0)
    else:
        traffic = Stated(workload, rate, adapters, prompt_tokens, output_tokens, cv)
    candidates = list(
        dict.fromkeys(
            Candidate(offer.gpu_type, factor, tokens.get(offer.gpu_type.lower()), count)
            for (offer, factor), count in itertools.product(offers, slots)
        )
    )
    workloads = [traffic.made(duration, each) for each in seed]
    if len(workloads[0]) < 20:
        raise UsageError("Fewer than 20 requests would be simulated: use a longer --duration.")
    sizes: dict[Candidate, Size | None] = {}
    with _bar() as bar:
        task = bar.add_task("", total=len(candidates))
        for each in candidates:
            bar.update(task, description=f"{clean(each.gpu_type)}, {counted(each.slots, 'slot')}")
            site = Site(
                slots=each.slots,
                cpu_slots=cpu_slots,
                slo_ttft=goal.slo_ttft,
                slo_itl=goal.slo_itl,
                hardware=hardware_of(engine_model, each.speed, each.kv_tokens),
            )
            sizes[each] = size(site, workloads, goal)
            bar.advance(task)
    if used is not None:
        per_hour = Decimal(used.tokens) / used.hours
    else:
        first = workloads[0]
        per_request = float(first.prompt.mean() + first.output.mean())
        per_hour = Decimal(per_request * traffic.rate * 3600)
    options = [
        _option(offer, each, sizes[each], per_hour)
        for offer, factor in offers
        for each in candidates
        if (each.gpu_type, each.speed) == (offer.gpu_type, factor)
    ]
    options.sort(key=lambda o: (o.engines is None, Decimal(o.cost_per_hour or 0), o.slots))
    cheapest = next((option for option in options if option.engines), None)
    uses = uses_of(workloads[0]) if used is None else used.uses
    sized = Plan(
        objectives=asdict(goal),
        traffic=_described(traffic, used),
        approximations=tuple(_approximations(model, used, tokens, candidates)),
        options=tuple(options),
        merged=() if cheapest is None else tuple(_merged(uses, cheapest, engine_model)),
        unknown_speed=tuple(left_out),
    )
    session.result(sized, _people)


def _offers(
    session: Session,
    gpu_types: list[str] | None,
    prices: list[str] | None,
    currency: str,
    speeds: dict[str, float],
    reference: str,
) -> tuple[list[tuple[Offer, float]], list[str]]:
    """What to plan with, each with its speed, and the GPU types whose speed is unknown. Raises UsageError."""
    if prices:
        offers = [
            Offer(name, "on_demand", "", Decimal(str(_positive("--price", name, text))), currency)
            for name, text in _pairs("--price", prices)
        ]
    else:
        offers = current_offers(
            session.api.get("/admin/v1/prices", Listed[ListedPrice]).data, datetime.now(UTC)
        )
    if not offers:
        raise UsageError("The price book has no price in force: florin price add, or use --price.")
    if gpu_types:
        chosen = {name.lower() for name in gpu_types}
        if missing := chosen - {offer.gpu_type.lower() for offer in offers}:
            raise UsageError(f"No price in force for {', '.join(sorted(missing))}: see florin price list.")
        offers = [offer for offer in offers if offer.gpu_type.lower() in chosen]
    known = [
        (offer, factor) for offer in offers if (factor := speed_of(offer, speeds, reference)) is not None
    ]
    unknown = sorted({offer.gpu_type for offer in offers} - {offer.gpu_type for offer, _ in known})
    if not known:
        raise UsageError(
            f"The speed of {', '.join(unknown)} is unknown: state it with --speed {unknown[0]}=FACTOR, "
            f"relative to one {reference}."
        )
    return known, unknown


def _option(offer: Offer, each: Candidate, fleet: Size | None, tokens_per_hour: Decimal) -> PlanOption:
    hourly = None if fleet is None else offer.rate * fleet.engines
    million = None if hourly is None else hourly * _MILLION / tokens_per_hour
    return PlanOption.of(
        offer,
        speed=each.speed,
        kv_tokens=each.kv_tokens,
        slots=each.slots,
        engines=None if fleet is None else fleet.engines,
        attainment=None if fleet is None else round(fleet.attainment, 4),
        ttft_p50=None if fleet is None else round(fleet.ttft_p50, 4),
        ttft_p99=None if fleet is None else round(fleet.ttft_p99, 4),
        rate_per_gpu_hour=f"{offer.rate:f}",
        cost_per_hour=None if hourly is None else f"{hourly:f}",
        cost_per_million_tokens=None if million is None else f"{million:.4f}",
    )


def _merged(uses: Iterable[AdapterUse], option: PlanOption, engine_model: str) -> Iterator[MergedOption]:
    """The adapters that are worth merged engines of this kind, the most worthwhile first."""
    from gateway.planning import merging
    from gateway.planning.sizing import hardware_of

    hardware, gains = hardware_of(engine_model, option.speed, option.kv_tokens), []
    for use in uses:
        if not use.name:
            continue
        tokens = use.prompt_tokens / use.requests, use.output_tokens / use.requests
        busy = merging.request_seconds(hardware, *tokens, merged=False) * use.requests / 3600
        if gained := merging.gain(busy, merging.speedup(hardware, *tokens)):
            gains.append((gained, use))
    for gained, use in sorted(gains, key=lambda pair: -pair[0].saved):
        yield MergedOption(
            adapter=use.name,
            requests_per_second=round(use.requests / 3600, 2),
            busy_engines=round(gained.busy, 2),
            merged_engines=gained.engines,
            saved_engines=round(gained.saved, 2),
            saved_per_hour=f"{Decimal(option.rate_per_gpu_hour) * Decimal(f'{gained.saved:.2f}'):f}",
            currency=option.currency,
            token_ms=round(merging.token_ms(hardware, merged=False), 2),
            merged_token_ms=round(merging.token_ms(hardware, merged=True), 2),
        )


def _described(traffic: Stated | Used, used: MonthOfUse | None) -> Json:
    if used is None:
        return asdict(traffic)
    return {
        "month": used.month,
        "base_model": used.base_model,
        "busiest_hour": used.busiest_hour,
        "rate": round(traffic.rate, 4),
        "adapters": sum(bool(use.name) for use in used.uses),
        "month_tokens": used.tokens,
    }


def _approximations(
    model: MeasuredEngine, used: MonthOfUse | None, tokens: dict[str, int], candidates: list[Candidate]
) -> list[str]:
    approximation = (
        f"The engine model is {model.what}. Other GPU types are that model with its compute times divided "
        f"by their speed relative to one {model.gpu}. Measure with your model before you buy."
    )
    notes = [approximation]
    if assumed := sorted(
        {c.gpu_type for c in candidates if c.speed != 1 and c.gpu_type.lower() not in tokens}
    ):
        notes.append(
            f"The KV cache of {', '.join(map(clean, assumed))} is assumed to be as large as that of one "
            f"{model.gpu}: state it with --kv-tokens."
        )
    if used is not None:
        notes.append(
            f"The fleet is sized for the busiest hour, {used.busiest_hour}; the cost per million tokens is "
            f"that of running it for all of {used.month}."
        )
        notes.append(
            "Arrivals are resampled at that hour's mean rate (bursts: --cv), adapters independently by their "
            "share of its requests, lengths around each adapter's mean. Prefix cache hits are not counted."
        )
    return notes


def _people(sized: Plan) -> None:
    columns = ("gpu", "slots", "engines", "met", "ttft p99", "per hour", "per 1M tokens", "")
    rows = []
    for number, option in enumerate(sized.options):
        region = f" in {option.region}" if option.region else ""
        gpu = f"{option.gpu_type} {option.purchase.replace('_', ' ')}{region}"
        if option.engines is None:
            rows.append((gpu, option.slots, "none", *[Text("")] * 4, "misses the objectives"))
            continue
        rows.append(
            (
                gpu,
                option.slots,
                option.engines,
                f"{option.attainment:.1%}",
                f"{option.ttft_p99:.2f} s",
                f"{Decimal(option.cost_per_hour or 0):,.2f} {option.currency}",
                f"{Decimal(option.cost_per_million_tokens or 0):,.4f} {option.currency}",
                Text("cheapest" if number == 0 else "", "bold"),
            )
        )
    show(table(columns, rows, right=columns[1:7]))
    for gained in sized.merged:
        saved = f"{Decimal(gained.saved_per_hour):,.2f} {gained.currency}"
        note(
            f"{clean(gained.adapter)}: its {gained.requests_per_second:g} requests/s keep "
            f"{gained.busy_engines:g} engines busy. {gained.merged_engines} with it merged into their "
            f"weights save {gained.saved_engines:g} engines, {saved} an hour: at batch 128, a token takes "
            f"{gained.merged_token_ms:g} ms there instead of {gained.token_ms:g}."
        )
    for text in sized.approximations:
        note(text)
    for name in sized.unknown_speed:
        note(f"{clean(name)} is left out, since its speed is unknown: --speed {clean(name)}=FACTOR.")


def _seconds(option: str, text: str) -> float:
    match = _SECONDS.fullmatch(text)
    seconds = float(match[1]) / (1000 if match[2] == "ms" else 1) if match else 0.0
    if seconds <= 0:
        raise UsageError(f"{option}: {text!r} is not a time like 2s or 500ms.")
    return seconds


def _pairs(option: str, texts: list[str] | None) -> list[tuple[str, str]]:
    pairs = []
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{option}: {text!r} is not TYPE=VALUE.")
        pairs.append((name, value))
    return pairs


def _positive(option: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise UsageError(f"{option}: {text!r} for {name} is not a positive number.")
    return value


def _bar() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console(stderr=True), transient=True)
