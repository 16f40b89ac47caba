"""What is judged of an IP address is the same on every Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adapters.security.ip_addresses import is_loopback, is_public, parse_address, untranslated

ROOT = Path(__file__).parents[4]
JUDGED_BY_PYTHON = re.compile(
    r"\.(is_(loopback|private|global|multicast|reserved|link_local|site_local|unspecified)|sixtofour|teredo)\b(?!\()"
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.1", "192.0.2.1"), ("::ffff:192.0.2.1", "192.0.2.1"), ("[::ffff:c000:201]", "192.0.2.1"),
        ("[2001:db8::1]", "2001:db8::1"), ("2130706433", "None"), ("127.0.0.01", "None"), ("", "None"), ("h", "None"),
    ],
)  # fmt: skip
def test_one_address_has_one_form(text, address):
    assert str(parse_address(text)) == address


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("127.0.0.1", True), ("127.255.255.255", True), ("::1", True), ("::ffff:127.0.0.1", True),
        ("128.0.0.1", False), ("0.0.0.0", False), ("::", False), ("::7f00:1", False), ("::ffff:10.0.0.1", False),
        ("localhost", False),
    ],
)  # fmt: skip
def test_only_this_machine_reaches_its_loopback(text, loopback):
    assert is_loopback(parse_address(text)) is loopback


@pytest.mark.parametrize(
    ("network_edge", "public"),
    [
        ("9.255.255.255", True), ("10.0.0.0", False), ("172.15.255.255", True), ("172.31.255.255", False),
        ("100.63.255.255", True), ("100.127.255.255", False), ("223.255.255.255", True), ("224.0.0.0", False),
        ("1fff:ffff::1", False), ("2000::1", True), ("3ffe::1", True), ("3fff:fff::1", False), ("3fff:1000::1", True),
        ("4000::1", False), ("2001:1ff:ffff::1", False), ("2001:200::1", True), ("5f00::1", False),
    ],
)  # fmt: skip
def test_public_addresses_end_where_iana_says(network_edge, public):
    address = parse_address(network_edge)
    assert address is not None
    assert is_public(address) is public


def test_a_translated_address_is_the_one_that_is_reached():
    address = parse_address("64:ff9b::a9fe:a9fe")
    assert address is not None
    assert str(untranslated(address)) == "169.254.169.254"


def test_no_judgement_is_left_to_the_interpreter():
    files = [file for folder in ("adapters", "gateway") for file in (ROOT / folder).rglob("*.py")]
    assert files
    assert [str(file) for file in files if JUDGED_BY_PYTHON.search(file.read_text())] == []
