"""`florin engine run`, as far as it gets without starting anything."""

from __future__ import annotations

import json

import pytest

from gateway.commands.client import UsageError
from gateway.fleet.engines.commands.host import begin_log, size

RUN = ("engine", "run", "--name", "a1", "--gpu-type", "L4", "--dry-run")
SERVE = ("--", "vllm", "serve", "/models/base", "--max-loras", "4")


def test_dry_run_shows_the_command_without_a_call(fake):
    result = fake.florin(*RUN, *SERVE)
    assert (result.exit_code, fake.asked) == (0, [])
    assert result.stdout == (
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 VLLM_MEDIA_URL_ALLOW_REDIRECTS=0 VLLM_USE_RUST_FRONTEND=0 "
        "VLLM_REQUEST_BODY_LOG_LEVEL=NOTSET VLLM_HTTP_TIMEOUT_KEEP_ALIVE=75 VLLM_MAX_STOP_STRINGS=16 vllm serve /models/base --max-loras 4 --enable-lora --api-server-count 1 --max-cpu-loras 4 --max-lora-rank 16 "
        "--enable-prompt-tokens-details --allowed-media-domains media.invalid --host 127.0.0.1 --port 8000\n"
    )
    assert "adds --enable-lora: the engine serves adapters" in result.stderr
    assert "/models/base on 1 x L4, 4 slots" in result.stderr


def test_a_dry_run_for_scripts(fake):
    body = json.loads(fake.florin(*RUN, "--json", *SERVE).stdout)
    assert body["command"][:3] == ["vllm", "serve", "/models/base"]
    assert (body["slots"], body["cpu_slots"], body["gpu_type"], body["gpu_count"]) == (4, 4, "L4", 1)


def test_the_engine_listens_where_it_is_advertised(fake):
    there = fake.florin(*RUN, "--advertise", "http://127.0.0.1:8123", *SERVE).stdout
    assert "--host 127.0.0.1 --port 8123" in there
    behind = fake.florin(*RUN, "--advertise", "http://203.0.113.7:8123", *SERVE).stdout
    assert "--host 0.0.0.0 --port 8123" in behind


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((*RUN, "--", "vllm", "serve", "/m", "--uds", "/x"), "--uds is refused"),
        ((*RUN, "--", "sh", "-c", "vllm serve /m"), "vllm serve MODEL"),
        ((*RUN[:2], "--name", "A 1", *RUN[4:], *SERVE), "'A 1' is not valid"),
        ((*RUN, "--advertise", "ftp://x", *SERVE), "--advertise"),
        ((*RUN, "--advertise", "10.0.0.7:80", *SERVE), "--advertise"),
        ((*RUN, "--cache-size", "much", *SERVE), "--cache-size"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(fake, args, said):
    result = fake.florin(*args)
    assert (result.exit_code, result.stdout, fake.asked) == (2, "", [])
    assert said in result.stderr


def test_a_gateway_that_no_route_leads_to_is_a_usage_error(florin):
    result = florin(*RUN, *SERVE, FLORIN_URL="http://no.such.host.invalid:1", FLORIN_OPERATOR_KEY="k")
    assert result.exit_code == 2
    assert "FLORIN_URL" in result.stderr


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("20GB", 20_000_000_000), ("500 mb", 500_000_000), ("1.5TB", 1_500_000_000_000), ("1GiB", 1 << 30),
     ("4k", 4000), ("123", 123), ("7B", 7)],
)  # fmt: skip
def test_sizes(text, bytes_):
    assert size(text) == bytes_


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1PB", "1 2"])
def test_what_is_no_size(text):
    with pytest.raises(UsageError):
        size(text)


def test_a_log_format_that_there_is_not_is_a_usage_error(monkeypatch):
    monkeypatch.setenv("FLORIN_LOG_FORMAT", "xml")
    with pytest.raises(UsageError, match="FLORIN_LOG_FORMAT must be one of text, json; it is 'xml'"):
        begin_log()
