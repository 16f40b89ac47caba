"""Who within a tenant used what: the parts of the roll-ups, and that they sum to the whole."""

from __future__ import annotations

import random

import pytest
from sqlalchemy import func, select, update

from gateway.costs.closing.closing import GRACE, close
from gateway.costs.cost_lines import SUMS
from gateway.costs.merkle import record_leaf
from gateway.costs.periods import month_of
from gateway.costs.rollups.part_sources import SeveralDimensionsError
from gateway.costs.rollups.parts import DIMENSIONS, MOST_NAMES, parts_of
from gateway.costs.rollups.posting import FIGURES, RowKey
from gateway.costs.rollups.rollup import roll
from gateway.costs.verification.verify import verify
from gateway.metering.ledger.engine_hours import mark_dirty
from gateway.metering.ledger.schema import rollup_parts
from gateway.units import HOUR
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.month import DECEMBER, NOVEMBER, OCTOBER, span
from tests.unit.gateway.costs.month import records as some_records
from tests.unit.gateway.costs.rolled import lines
from tests.unit.gateway.metering.make import record

LATE = 10**17
OF = {"key": "key_id", **{name: name for name in DIMENSIONS if name != "key"}}


def labelled(seed, start, count=80):
    """Records of three tenants, some of which have labels."""
    rng = random.Random(seed)
    return [
        record(
            **{
                **{k: v for k, v in made._asdict().items() if k != "id"},
                "key_id": f"key-{rng.randrange(3)}",
                "end_user": rng.choice((None, "ann", "bob", "€ú", "sha256:12")),
                "tag": rng.choice((None, None, "batch")),
                "cost_centre": rng.choice((None, "R&D", "sales")),
                "service_tier": "batch" if rng.randrange(4) == 0 and made.engine else "",
            }
        )
        for made in some_records(seed, start, count)
    ]


def filled(ledger):
    price(ledger, "H100", "2.49")
    price(ledger, "L40", "0.7")
    price(ledger, "H100", "2.191919", NOVEMBER + 2 * HOUR + 77_777_777)
    made = {}
    for seed, start in enumerate((OCTOBER, NOVEMBER)):
        made[start] = labelled(seed, start)
        ledger.insert(made[start])
        span(ledger, start)
    roll(ledger, LATE)
    return made


def sums(ledger, of, by):
    """By the keys that are not of parts: all sums and the cost."""
    at = {}
    for line in lines(ledger, month_of(of), by):
        key = (line.bucket, line.rate_micros, line.correction, *line.keys[: len(by) - 1])
        held = at.setdefault(key, [0] * (len(SUMS) + 1))
        for place, figure in enumerate([*(getattr(line, name) for name in SUMS), line.cost or 0]):
            held[place] += figure
    return at


def undivided(ledger, of, by):
    return sums(ledger, of, (*by, "tenant"))


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_parts_sum_to_the_whole_in_every_figure_and_in_cost(ledger, dimension):
    filled(ledger)
    for of in ("2026-10", "2026-11"):
        for by in ((), ("tenant", "adapter"), ("gpu_type", "hour")):
            assert sums(ledger, of, (*by, dimension)) == undivided(ledger, of, by)


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_each_name_has_its_own_records_and_the_rest_has_none(ledger, dimension):
    made = filled(ledger)[OCTOBER]
    expected, found = {}, {}
    for one in made:
        if one.ended < OCTOBER + 24 * HOUR:
            name = getattr(one, OF[dimension]) or ""
            held = expected.setdefault((one.tenant, name), [0, 0, 0])
            for place, figure in enumerate((1, one.prompt_tokens, one.completion_tokens)):
                held[place] += figure
    for line in lines(ledger, month_of("2026-10"), ("tenant", dimension)):
        if line.bucket in {"usage", "retry_waste", "rejected"}:
            held = found.setdefault(line.keys, [0, 0, 0])
            for place, figure in enumerate((line.requests, line.prompt_tokens, line.completion_tokens)):
                held[place] += figure
            assert min(line.requests, line.nano_gpu_hours, line.prompt_tokens) >= 0
        else:
            assert line.keys == ("", "")
    assert found == expected


def detail(name, nano=1, requests=1, tenant="acme", piece=0, bucket="usage"):
    figures = [0] * len(FIGURES)
    figures[FIGURES.index("nano_gpu_hours")], figures[0] = nano, requests
    key = RowKey(piece, bucket, tenant, "acme/x", "v1", "base", "", "spot", 0)
    return key, (None, name, *(None for _ in DIMENSIONS[2:])), figures


def test_the_cap_is_the_same_whatever_the_order_and_counts_all_pieces_of_the_hour():
    many = [detail(f"u{n:03}", nano=n % 3, requests=n % 5) for n in range(300)]
    many += [detail(f"u{n:03}", nano=50, piece=7) for n in range(250, 300)]
    made = parts_of(many)
    random.Random(3).shuffle(many)
    assert parts_of(many) == made
    assert {f"u{n:03}" for n in range(250, 300)} < {key.name for key in made}
    assert len({key.name for key in made}) == MOST_NAMES + 1


def test_a_flood_of_end_users_stays_within_bounds_and_adds_up(ledger):
    price(ledger, "H100", "2.49")
    start = OCTOBER
    ledger.insert(
        [
            record(f"f{n}", dispatched=start + n, ended=start + 2_000_000 + n, end_user=f"user-{n}")
            for n in range(400)
        ]
    )
    roll(ledger, LATE)
    assert sums(ledger, "2026-10", ("end_user",)) == undivided(ledger, "2026-10", ())
    with ledger.read() as connection:
        c = rollup_parts.c
        query = select(func.count(c.name.distinct())).where(c.dimension == "end_user")
        assert connection.execute(query).scalar() == MOST_NAMES + 1


def test_closed_parts_stay_and_late_records_correct_them(ledger):
    filled(ledger)
    now = DECEMBER + GRACE
    close(ledger, "2026-10", now=now, by="key", policy="proportional")
    before = sums(ledger, "2026-10", ("end_user",))
    late = [
        record(f"late-{n}", dispatched=OCTOBER + n, ended=OCTOBER + HOUR + n, engine="a", gpu_type="H100",
               gpu_count=2, end_user="zoe", tag="late")
        for n in range(3)
    ]  # fmt: skip
    ledger.insert(late)
    price(ledger, "L40", "0.9", OCTOBER + HOUR + 5)
    with ledger.write() as connection:
        mark_dirty(connection, [(OCTOBER + n * HOUR, "b", "L40", 1) for n in range(5)])
    roll(ledger, LATE)
    assert sums(ledger, "2026-10", ("end_user",)) == before
    for dimension in DIMENSIONS:
        assert sums(ledger, "2026-11", (dimension,)) == undivided(ledger, "2026-11", ())
    corrected = [
        line for line in lines(ledger, month_of("2026-11"), ("end_user",))
        if line.correction and line.keys == ("zoe",)
    ]  # fmt: skip
    assert sum(line.requests for line in corrected) == 3
    close(ledger, "2026-11", now=now, by="key")
    with ledger.read() as connection:
        unfrozen = select(rollup_parts.c.id).where(rollup_parts.c.rate_micros.is_(None))
        assert connection.execute(unfrozen).first() is None
    assert [c for v in verify(ledger) for c in v.checks if not c.ok] == []


def test_whoever_tampers_with_a_part_breaks_the_seal(ledger):
    filled(ledger)
    close(ledger, "2026-10", now=DECEMBER + GRACE, by="key")
    with ledger.write() as connection:
        part = connection.execute(
            select(rollup_parts)
            .where(rollup_parts.c.posted == "2026-10", rollup_parts.c.dimension == "end_user")
            .where(rollup_parts.c.name == "ann")
        ).first()
        connection.execute(update(rollup_parts).where(rollup_parts.c.id == part.id).values(name="bob"))
    wrong = {c.name: c.detail for v in verify(ledger, "2026-10") for c in v.checks if c.ok is False}
    assert wrong.keys() == {"roll-ups", "attribution"}
    assert "end user" in wrong["attribution"]


def test_the_leaf_of_a_record_covers_its_labels_and_none_is_as_if_there_were_no_such_field():
    bare, tagged = record("bare"), record("tagged", tag="batch")
    fields = bare._asdict()
    later = {"end_user", "tag", "cost_centre", "service_tier", "task"}
    before = {k: v for k, v in fields.items() if k not in {"seq", "seen", *later}}
    assert record_leaf(fields) == record_leaf(before)
    assert record_leaf(tagged._asdict()) != record_leaf({**tagged._asdict(), "tag": None})
    assert record_leaf({**fields, "service_tier": "batch"}) != record_leaf(fields)
    assert record_leaf({**fields, "tag": "x"}) != record_leaf({**fields, "end_user": "x"})


def test_two_dimensions_of_parts_are_refused(ledger):
    with pytest.raises(SeveralDimensionsError, match="key and tag cannot be combined"):
        list(lines(ledger, month_of("2026-10"), ("key", "tag")))
