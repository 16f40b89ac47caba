"""What an engine's host may say of itself."""

from __future__ import annotations

import pytest

from gateway.tenants.directory import Pins
from gateway.tenants.engine_pins import contradiction, fetches_from, may_claim, settle

SAID = {
    "base": "llama", "gpu_type": "H100", "gpu_count": 2, "region": "", "purchase": "spot", "slots": 4,
    "labels": {"pool": "a"}, "serves": "",
}  # fmt: skip
SETTLED = Pins("llama", "H100", 2, "", "spot", labels={"pool": "a"}, serves="")


def test_what_was_open_is_settled_by_the_first_word_and_what_was_pinned_stays():
    assert settle(Pins(), SAID) == SETTLED
    assert settle(Pins(gpu_type="L4", address="x"), SAID) == Pins(
        "llama", "L4", 2, "", "spot", "x", {"pool": "a"}, ""
    )
    assert settle(SETTLED, {**SAID, "base": "other", "region": "eu"}) == SETTLED


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        (Pins(), ""),
        (SETTLED, ""),
        (Pins(gpu_type="H200"), "gpu_type 'H100', but 'H200' is pinned"),
        (Pins(gpu_count=1), "gpu_count 2, but 1 is pinned"),
        (Pins(region="eu"), "region '', but 'eu' is pinned"),
        (Pins(purchase="on_demand"), "purchase 'spot', but 'on_demand' is pinned"),
        (Pins(base="x"), "base 'llama', but 'x' is pinned"),
        (Pins(labels={}), "labels {'pool': 'a'}, but {} is pinned"),
        (
            Pins(labels={"pool": "a", "tier": "1"}),
            "labels {'pool': 'a'}, but {'pool': 'a', 'tier': '1'} is pinned",
        ),
    ],
)
def test_what_contradicts_is_named(pins, words):
    assert contradiction(pins, SAID) == words


def test_a_host_never_chooses_the_version_that_it_merges_since_it_gets_its_files():
    merged = {**SAID, "serves": "acme/support@v1"}
    assert contradiction(Pins(), merged) == "serves 'acme/support@v1', but '' is pinned"
    assert not contradiction(Pins(serves="acme/support@v1"), merged)


@pytest.mark.parametrize(
    ("address", "url", "peer", "may"),
    [
        (None, "http://10.0.0.7:8000", "10.0.0.7", True),
        (None, "http://10.0.0.7:8000", "::ffff:10.0.0.7", True),
        (None, "http://[fd00::7]:8000", "fd00:0::7", True),
        (None, "http://10.0.0.8:8000", "10.0.0.7", False),
        (None, "http://127.0.0.1:8000", "10.0.0.7", False),
        (None, "http://169.254.169.254", "10.0.0.7", False),
        (None, "http://gpu7:8000", "10.0.0.7", False),
        (None, "http://10.0.0.7.evil.example:8000", "10.0.0.7", False),
        (None, "http://10.0.0.7:8000", None, False),
        (None, "http://localhost:8000", "localhost", False),
        ("gpu7", "http://gpu7:8000", "10.0.0.7", True),
        ("GPU7", "http://gpu7:8000", None, True),
        ("gpu7", "http://10.0.0.7:8000", "10.0.0.7", False),
        ("203.0.113.7", "http://203.0.113.7", "10.0.0.7", True),
        ("fd00::7", "http://[fd00::7]:8000", "10.0.0.7", True),
    ],
)
def test_requests_go_only_where_the_host_connects_from_or_an_operator_says(address, url, peer, may):
    assert may_claim(Pins(address=address), url, peer) is may


@pytest.mark.parametrize(
    ("host", "addresses", "peer", "may"),
    [
        ("10.0.0.7", [], "10.0.0.7", True),
        ("10.0.0.7", [], "::ffff:10.0.0.7", True),
        ("10.0.0.7", ["10.0.0.7"], "10.0.0.8", False),
        ("gpu7", ["10.0.0.6", "fd00:0::7"], "fd00::7", True),
        ("gpu7", ["10.0.0.7"], "10.0.0.8", False),
        ("gpu7", [], "10.0.0.7", False),
        ("10.0.0.7", [], None, False),
    ],
)
def test_files_are_fetched_from_the_engine_s_address_alone(host, addresses, peer, may):
    assert fetches_from(host, addresses, peer) is may
