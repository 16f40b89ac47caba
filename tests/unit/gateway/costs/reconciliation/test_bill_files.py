"""Providers' files, as they write them."""

import csv
import io
import json
import re
from decimal import Decimal

import pytest

from gateway.costs.periods import iso
from gateway.costs.reconciliation import bill_files
from gateway.costs.reconciliation.bill_cells import BillError
from gateway.costs.reconciliation.bill_files import BillFormat, parse_bill
from gateway.units import HOUR

SIMPLE = {
    "start": "2026-11-01T00:00:00Z", "end": "2026-11-01T01:00:00Z", "resource": "a1", "gpu_type": "H100",
    "region": "eu", "purchase": "spot", "gpu_hours": "8", "cost": "19.99", "currency": "USD",
    "description": "p5, spot",
}  # fmt: skip  # one name a line says no more
FOCUS = {
    "ChargePeriodStart": "2026-11-01T00:00:00Z", "ChargePeriodEnd": "2026-11-01T01:00:00Z",
    "ResourceId": "i-0abc", "ResourceName": "a1", "ConsumedQuantity": "8", "ConsumedUnit": "GPU-Hours",
    "PricingQuantity": "1", "PricingUnit": "Hours", "BilledCost": "19.99", "EffectiveCost": "12.5",
    "BillingCurrency": "USD", "RegionId": "us-east-1", "PricingCategory": "Dynamic",
    "ChargeCategory": "Usage", "ChargeDescription": "p5", "SkuPriceDetails": '{"GpuType": "H100"}',
    "Tags": "{}",
}  # fmt: skip


def text_of(*rows, columns=None):
    out = io.StringIO()
    writer = csv.DictWriter(out, columns or list(rows[0]), extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def parse(text, **reading):
    return parse_bill(io.StringIO(text, newline=""), BillFormat(**reading))


def one(row, **reading):
    parsed = parse(text_of(row), **reading)
    assert parsed.bad == []
    [line] = parsed.lines
    return line


def reason(row, **reading):
    parsed = parse(text_of(row), **reading)
    assert (parsed.lines, parsed.ignored) == ([], 0)
    [bad] = parsed.bad
    assert bad.line == 2
    return bad.reason


def test_a_plain_line():
    line = one(SIMPLE)
    assert (line.line, line.end - line.start) == (2, HOUR)
    assert (line.resource, line.gpu_type, line.region, line.purchase) == ("a1", "H100", "eu", "spot")
    assert (line.nano_gpu_hours, line.cost, line.currency) == (8 * 10**9, "19.99", "USD")
    assert line.description == "p5, spot"


@pytest.mark.parametrize("missing", ["start", "end", "gpu_type", "gpu_hours", "cost", "currency"])
def test_a_heading_without_a_needed_column_is_refused(missing):
    with pytest.raises(BillError, match=missing):
        parse(text_of({n: v for n, v in SIMPLE.items() if n != missing}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"start": "yesterday"}, "start"),
        ({"end": "2026-11-01T00:00:00Z"}, "before it begins"),
        ({"gpu_hours": "many"}, "gpu_hours"),
        ({"gpu_hours": "NaN"}, "gpu_hours"),
        ({"gpu_hours": "1e999999999"}, "gpu_hours"),
        ({"gpu_hours": "10000001"}, "GPU-hours in one line"),
        ({"gpu_hours": ""}, "gpu_hours is empty"),
        ({"cost": "$5"}, "cost"),
        ({"currency": "dollars"}, "currency"),
        ({"purchase": "stolen"}, "purchase"),
        ({"gpu_type": ""}, "gpu_type is empty"),
        ({"resource": "a" * 301}, "resource"),
        ({"description": "a\0b"}, "NUL"),
        (FOCUS | {"ConsumedUnit": "Hours"}, "map gpu_count"),
        (FOCUS | {"ConsumedUnit": "Parsecs", "PricingUnit": ""}, "'Parsecs'"),
        (FOCUS | {"SkuPriceDetails": "{}"}, "map gpu_type"),
        (FOCUS | {"PricingCategory": "Other"}, "rename it"),
        (FOCUS | {"BilledCost": ""}, "BilledCost is empty"),
    ],
)
def test_a_bad_line_says_what_is_wrong(change, says):
    assert says in reason(change if "BilledCost" in change else {**SIMPLE, **change})


def test_bad_lines_have_the_number_of_the_line_at_which_they_begin():
    good = text_of(SIMPLE).splitlines()[1]
    text = text_of(SIMPLE).splitlines()[0] + f'\n{good[:-1]}\nand more"\n\nshort,line\n{good}\n'
    parsed = parse(text)
    assert [line.line for line in parsed.lines] == [2, 6]
    assert [(bad.line, "fields" in bad.reason) for bad in parsed.bad] == [(5, True)]


def test_a_focus_line():
    line = one(FOCUS)
    assert (line.resource, line.gpu_type, line.region, line.purchase) == ("a1", "H100", "us-east-1", "spot")
    assert (line.nano_gpu_hours, line.cost, line.currency) == (8 * 10**9, "19.99", "USD")
    assert one(FOCUS, effective=True).cost == "12.5"


@pytest.mark.parametrize(
    ("quantity", "unit", "count", "hours"),
    [
        ("3", "Hours", "8", "24"),
        ("0.5", "Hrs", "8", "4"),
        ("90", "Minutes", "2", "3"),
        ("90", "GPU-Minutes", "", "1.5"),
        ("3600", "GPU Seconds", "", "1"),
        ("0.333333333333", "GPU-Hour", "", "0.333333333"),
    ],
)
def test_units_of_focus(quantity, unit, count, hours):
    details = {"GpuType": "H100"} | ({"GpuCount": int(count)} if count else {})
    row = {
        **FOCUS,
        "ConsumedQuantity": quantity,
        "ConsumedUnit": unit,
        "SkuPriceDetails": json.dumps(details),
    }
    assert one(row).nano_gpu_hours == int(Decimal(hours) * 10**9)


def test_a_mapping_and_renames_say_where_fields_are_and_what_words_mean():
    row = {
        **FOCUS, "SkuPriceDetails": '{"InstanceType": "p5.48xlarge", "GpuCount": 8}', "ConsumedUnit": "Hours",
        "ConsumedQuantity": "1", "Tags": '{"engine": "a2"}', "PricingCategory": "Other",
    }  # fmt: skip
    line = one(
        row,
        columns={"gpu_type": "SkuPriceDetails.InstanceType", "resource": "Tags.engine"},
        renames={("gpu_type", "p5.48xlarge"): "H100", ("purchase", "Other"): "reserved"},
    )
    assert (line.gpu_type, line.resource, line.purchase) == ("H100", "a2", "reserved")
    assert line.nano_gpu_hours == 8 * 10**9


@pytest.mark.parametrize("separator", [";", "\t"])
def test_semicolons_and_tabs_separate_as_well(separator):
    """A semicolon's file "must name start, end, …"."""
    text = text_of({**SIMPLE, "description": "p5"}).replace(",", separator)
    [line] = parse(text).lines
    assert (line.resource, line.cost, line.description) == ("a1", "19.99", "p5")


def test_a_decimal_comma_is_never_guessed():
    """1,234 may be either."""
    row = {**SIMPLE, "cost": "1.234,56", "gpu_hours": "8,5"}
    assert "import with --decimal comma" in reason(row)
    line = one(row, decimal_comma=True)
    assert (line.cost, line.nano_gpu_hours) == ("1234.56", 8_500_000_000)
    assert one({**SIMPLE, "cost": "1234567"}, decimal_comma=True).cost == "1234567"
    assert "is not a decimal number with a comma" in reason(SIMPLE, decimal_comma=True)  # 19.99


@pytest.mark.parametrize(
    ("end", "read"),
    [
        ("2026-11-30", "2026-12-01T00:00:00Z"),
        ("2026-11-30T23:59:59Z", "2026-12-01T00:00:00Z"),
        ("2026-11-30T23:59:59.999999Z", "2026-12-01T00:00:00Z"),
        ("2026-12-01T00:00:00Z", "2026-12-01T00:00:00Z"),
    ],
)
def test_inclusive_ends(end, read):
    row = {**SIMPLE, "start": "2026-11-01", "end": end}
    assert iso(one(row, inclusive_ends=True).end) == read
    assert parse(text_of(row)).inclusive_looking == (end != "2026-12-01T00:00:00Z")
    assert parse(text_of(row), inclusive_ends=True).inclusive_looking == 0


def test_a_day_that_ends_on_itself_says_what_to_do():
    """It "ends before it begins"."""
    row = {**SIMPLE, "start": "2026-11-01", "end": "2026-11-01"}
    assert "--end inclusive" in reason(row)
    assert one(row, inclusive_ends=True).end - one(row, inclusive_ends=True).start == 24 * HOUR
    assert "--end" not in reason({**row, "end": "2026-10-31"})


@pytest.mark.parametrize("category", ["Tax", "Credit", "Purchase", "Adjustment"])
def test_charges_of_an_invoice_need_no_gpu(category):
    """They were left out, so that no sum could be the invoice's."""
    row = {**FOCUS, "SkuPriceDetails": "", "ConsumedUnit": "", "PricingUnit": "", "ChargeCategory": category}
    line = one({**row, "BilledCost": "-3.50"})
    assert (line.category, line.gpu_type, line.nano_gpu_hours, line.cost) == (
        category.lower(),
        "",
        0,
        "-3.50",
    )
    left_out = parse(text_of(FOCUS, row), gpus_only=True)
    assert (len(left_out.lines), left_out.ignored) == (1, 1)
    plain = {**SIMPLE, "gpu_type": "", "gpu_hours": "", "category": category.lower()}
    assert (one(plain).category, one(plain).nano_gpu_hours) == (category.lower(), 0)
    assert "is not one of usage, tax" in reason({**plain, "category": "gift"})


AWS = {
    "identity/LineItemId": "x", "lineItem/UsageStartDate": "2026-11-01T00:00:00Z",
    "lineItem/UsageEndDate": "2026-11-01T01:00:00Z", "lineItem/LineItemType": "Usage",
    "lineItem/ProductCode": "AmazonEC2", "lineItem/UsageType": "USE1-BoxUsage:p5.48xlarge",
    "lineItem/ResourceId": "i-0abc", "lineItem/UsageAmount": "1.0", "lineItem/CurrencyCode": "USD",
    "lineItem/UnblendedCost": "5.504E1", "lineItem/LineItemDescription": "$55.04 per hour",
    "product/instanceType": "p5.48xlarge", "product/regionCode": "us-east-1", "pricing/unit": "Hrs",
    "resourceTags/user:engine": "gpu-a",
}  # fmt: skip
OTHER = {
    "product/instanceType": "",
    "lineItem/ResourceId": "",
    "lineItem/UsageAmount": "3",
    "pricing/unit": "",
}
MONTH_END = {"lineItem/UsageEndDate": "2026-11-30T23:59:59Z"}
AWS_FILE = (
    AWS,
    {**AWS, "lineItem/UsageType": "SpotUsage:g6e.12xlarge", "product/instanceType": "g6e.12xlarge"},
    {**AWS, "lineItem/LineItemType": "SavingsPlanCoveredUsage"},
    {**AWS, "lineItem/LineItemType": "SavingsPlanNegation", "lineItem/UnblendedCost": "-55.04"},
    {**AWS, **OTHER, "lineItem/LineItemType": "Tax", "lineItem/UnblendedCost": "9.5", **MONTH_END},
    {**AWS, "lineItem/LineItemType": "Credit", "lineItem/UnblendedCost": "-20"},
    {**AWS, **OTHER, "lineItem/UsageType": "TimedStorage-ByteHrs", "lineItem/UnblendedCost": "0.25"},
    {**AWS, "lineItem/UsageType": "EBSOptimized:p5.48xlarge", "lineItem/UnblendedCost": "0.5"},
    {
        **AWS, "lineItem/UsageType": "BoxUsage:m7i.large", "product/instanceType": "m7i.large",
        "lineItem/UnblendedCost": "1",
    },
)  # fmt: skip


def test_an_aws_report_is_read_as_it_is():
    """GPU types and numbers follow from the instance types; taxes and credits need none; disks and other
    instances are counted as left out."""
    parsed = parse(text_of(*AWS_FILE), columns={"resource": "resourceTags/user:engine"})
    assert (parsed.format, parsed.bad, parsed.inclusive_looking) == ("aws", [], 0)
    assert [
        (line.category, line.purchase, line.gpu_type, line.nano_gpu_hours // 10**9, line.cost)
        for line in parsed.lines
    ] == [
        ("usage", "on_demand", "H100", 8, "55.04"),
        ("usage", "spot", "L40S", 4, "55.04"),
        ("usage", "reserved", "H100", 8, "55.04"),
        ("adjustment", "on_demand", "H100", 0, "-55.04"),
        ("tax", "on_demand", "", 0, "9.5"),
        ("credit", "on_demand", "H100", 0, "-20"),
    ]
    assert (parsed.ignored, parsed.ignored_cost) == (3, {"USD": Decimal("1.75")})
    assert iso(parsed.lines[4].end) == "2026-12-01T00:00:00Z"
    assert {(line.resource, line.region) for line in parsed.lines} == {("gpu-a", "us-east-1")}


def test_the_second_version_of_the_aws_report():
    names = {
        name: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.replace("/", "_")).lower()
        for name in AWS if not name.startswith("resourceTags")
    }  # fmt: skip
    row = {names[name]: value for name, value in AWS.items() if name in names} | {"product": '{"gpu": "8"}'}
    line = one(row)
    assert (line.gpu_type, line.nano_gpu_hours, line.region) == ("H100", 8 * 10**9, "us-east-1")


def test_an_instance_type_that_is_not_known_is_named():
    row = {**AWS, "product/instanceType": "p9.48xlarge", "product/gpu": "8"}
    assert "rename gpu_type:p9.48xlarge" in reason(row)
    line = one(row, renames={("gpu_type", "p9.48xlarge"): "X100"})
    assert (line.gpu_type, line.nano_gpu_hours) == ("X100", 8 * 10**9)
    assert one(AWS, renames={("gpu_type", "H100"): "H100-80GB"}).gpu_type == "H100-80GB"


def test_a_column_twice_and_no_column_at_all():
    with pytest.raises(BillError, match="twice"):
        parse("start,start\n")
    with pytest.raises(BillError, match="must name start"):
        parse("")


def test_too_many_lines(monkeypatch):
    monkeypatch.setattr(bill_files, "MAX_LINES", 2)
    assert len(parse(text_of(SIMPLE, SIMPLE)).lines) == 2
    with pytest.raises(BillError, match="split"):
        parse(text_of(SIMPLE, SIMPLE, SIMPLE))


def test_an_unknown_field_cannot_be_mapped():
    with pytest.raises(BillError, match="colour"):
        parse(text_of(SIMPLE), columns={"colour": "x"})


def test_null_as_some_providers_write_it_is_empty():
    assert one({**FOCUS, "ResourceName": "NULL", "PricingCategory": "null"}).resource == "i-0abc"


def test_an_aws_report_has_no_effective_cost():
    with pytest.raises(BillError, match="export it as FOCUS"):
        parse(text_of(AWS), effective=True)


def test_the_pricing_quantity_stands_in_where_the_consumed_one_is_of_something_else():
    row = {**FOCUS, "ConsumedUnit": "Requests", "PricingQuantity": "2", "PricingUnit": "GPU-Hours"}
    assert one(row).nano_gpu_hours == 2 * 10**9


def test_a_format_that_is_named_wins_over_the_heading():
    with pytest.raises(BillError, match="csv bill"):
        parse(text_of(FOCUS), format="csv")


def test_what_is_not_about_gpus_is_left_out_and_added_up():
    other = {**FOCUS, "SkuPriceDetails": "", "ConsumedUnit": "GB", "PricingUnit": "GB"}
    parsed = parse(text_of(FOCUS, {**other, "BilledCost": "0.10"}, {**other, "BilledCost": "0.20"}))
    assert (len(parsed.lines), parsed.bad, parsed.ignored) == (1, [], 2)
    assert parsed.ignored_cost == {"USD": Decimal("0.30")}


def test_a_mapping_of_hours_needs_no_quantity_columns():
    row = {n: v for n, v in FOCUS.items() if not n.startswith(("Consumed", "Pricing"))} | {"Hours": "3"}
    assert one(row, columns={"gpu_hours": "Hours"}).nano_gpu_hours == 3 * 10**9
    with pytest.raises(BillError, match="ConsumedQuantity"):
        parse(text_of(row))
