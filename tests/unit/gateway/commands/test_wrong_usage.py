"""Wrong usage: exit code 2, something on stderr that tells what is wrong, and nothing asked of the gateway."""

import shlex

import pytest

LINES = """
nonsense
key create --role king
key update k1
key create --tenant acme --requests-per-minute many
key create --tenant acme --adapter none --adapter support
tenant add
tenant remove acme
tenant update acme --concurrent -1
tenant update acme --concurrent 1.5
tenant update acme --tokens-per-minute 1T
tenant update acme --max-bytes 10iB
tenant update acme --budget-money-day 1e3
tenant update acme --budget-money-day 0.1234567
tenant update acme --weight heavy
tenant update acme --default-policy --no-chat-templates
adapter show acme/
adapter add /x --source /x
adapter add acme/x --source ''
adapter add acme/x
adapter add acme/x --source /x --upload /x
adapter add acme/x --upload /nowhere/at/all
adapter promote acme/support v2 --weight 0
adapter promote acme/support v2 --weight 101
adapter promote acme/support v2 --weight -1
adapter promote acme/support v2 --weight ten
adapter promote acme/support v2 --weight 1.5
engine add --name a1 --url http://10.0.0.7:8000 --base base --gpu-type H200 --max-rank 16 --slots 0
placement --watch --json
placement --watch --changes
price add --gpu-type a --rate cheap
price add --gpu-type a --rate nan
price add --gpu-type a --rate -1
rate-card assign --card x
rate-card assign acme --default --card x
rate-card add x --input cheap --output 1
rate-card add x --input 1 --output -1
cost accept --reason so
cost accept --month 2026-11 --reason so
cost accept --kind rate --reason so
cost close 2026-11 --share acme
cost close 2026-11 --share acme=x
cost close 2026-11 --share =3
cost close 2026-11 --share acme=1.5
cost events --kind cost
cost events --month 2026-10
cost events --kind cost --month 2026-10 --format stripe
cost events --url ftp://x
cost events --url http://x --output y
cost events --customer acme
cost policy set default
cost policy set fair
cost policy set fixed --share acme=1% --share bolt=2
cost reconcile --tolerance=-1
cost reconcile --tolerance=101
cost reconcile --tolerance=some
cost reconcile --tolerance=NaN
cost report --format parquet
cost report --output x.json
cost report --format xml
cost report --policy mine
cost report --unit-prices --format csv
cost report --month 2026-07 --from 2026-07-02
cost statement --tenant acme --month 2026-10 --format pdf
"""
NAMED = """
--yes: adapter remove acme/support
--yes: adapter release acme/support v2
--yes: engine trust a1
--require: tenant update acme --require region
--require: tenant update acme --require =eu
--require: tenant update acme --require region=
--require: tenant update acme --require region=eu --require region=us
--require: tenant update acme --require region=eu --no-require
AMOUNT: cost budget set -- much
AMOUNT: cost budget set -- -5
AMOUNT: cost budget set -- NaN
is not one of: cost export --month 2026-07 -o o.csv --format xls
is not one of: cost export --month 2026-07 -o o.csv --dataset all
"""
"""Lines, and before each what is said of it."""


def wrong(fake, line):
    result = fake.florin(*shlex.split(line))
    assert (result.exit_code, fake.asked, result.stdout) == (2, [], "")
    assert "Traceback" not in result.stderr
    assert "Value error" not in result.stderr
    return result.stderr


@pytest.mark.parametrize("line", LINES.strip().splitlines())
def test_wrong_usage_asks_nothing(fake, line):
    assert wrong(fake, line)


@pytest.mark.parametrize("line", NAMED.strip().splitlines())
def test_what_is_wrong_is_named(fake, line):
    said, line = line.split(": ", 1)
    assert said in wrong(fake, line)
