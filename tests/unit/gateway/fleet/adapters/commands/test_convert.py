"""florin adapter convert, merge and compress: what they print, write and refuse, without a gateway."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

RECORDED = Path(__file__).parents[4] / "adapters" / "conversion" / "recorded"
DORA, BASE = str(RECORDED / "dora"), str(RECORDED / "base")


@pytest.fixture
def out(tmp_path):
    return str(tmp_path / "out")


def test_convert_writes_plain_lora_and_shows_the_error(florin, out):
    result = florin("adapter", "convert", DORA, "--base", BASE, "--out", out, "--rank", "2")
    assert result.exit_code == 0, result.stderr
    assert "output error" in result.stdout
    assert "rank 2, error" in result.stdout
    config = json.loads((Path(out) / "adapter_config.json").read_text())
    assert (config["use_dora"], config["r"]) == (False, 2)
    again = florin("adapter", "convert", DORA, "--base", BASE, "--out", out)
    assert (again.exit_code, "--force" in again.stderr) == (2, True)
    body = json.loads(
        florin("adapter", "convert", DORA, "--base", BASE, "--out", out, "--force", "--json").stdout
    )
    assert body["written"]
    assert {m["method"] for m in body["modules"]} == {"svd"}


def test_an_error_above_the_limit_writes_nothing_and_names_the_rank_that_would_do(florin, out):
    arguments = ("adapter", "convert", DORA, "--base", BASE, "--out", out, "--max-error", "0.001")
    refused = florin(*arguments, "--rank", "2")
    assert refused.exit_code == 1
    assert "--rank 8 would do" in refused.stderr
    assert not Path(out).exists()
    assert florin(*arguments, "--rank", "8").exit_code == 0


def test_merge_and_compress(florin, out, tmp_path):
    plain = str(tmp_path / "plain")
    assert florin("adapter", "convert", DORA, "--base", BASE, "--out", plain).exit_code == 0
    merged = florin("adapter", "merge", plain, f"{plain}:0.5", "--out", out, "--json")
    assert merged.exit_code == 0, merged.stderr
    assert json.loads(merged.stdout)["rank"] == 6
    small = florin("adapter", "compress", out, "--rank", "2", "--out", f"{out}2", "--json")
    assert json.loads(small.stdout)["rank"] == 2
    model = florin("adapter", "merge", DORA, "--into-base", BASE, "--out", f"{out}3")
    assert (model.exit_code, "3 changed weights" in model.stdout) == (0, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("compress", DORA),
        ("merge", f"{DORA}:much"),
        ("merge", DORA, DORA, "--into-base", BASE),
        ("merge", DORA, "--initial", DORA),
    ],
)
def test_wrong_usage(arguments, florin, out):
    assert florin("adapter", *arguments, "--out", out).exit_code == 2


def test_refusals_say_how_to_fix_it(florin, out):
    refused = florin("adapter", "compress", DORA, "--rank", "2", "--out", out)
    assert (refused.exit_code, "adapter convert" in refused.stderr) == (1, True)
    missing = florin("adapter", "convert", f"{DORA}-none", "--base", BASE, "--out", out)
    assert (missing.exit_code, "file_missing" in missing.stderr) == (1, True)


def test_an_input_or_anything_but_an_adapter_is_never_replaced(florin, tmp_path):
    copy = tmp_path / "home" / "dora"
    shutil.copytree(DORA, copy)
    for target in (copy, copy.parent):
        result = florin("adapter", "convert", str(copy), "--base", BASE, "--out", str(target), "--force")
        assert result.exit_code == 2
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work")
    result = florin(
        "adapter", "convert", str(copy), "--base", BASE, "--out", str(tmp_path / "other"), "--force"
    )
    assert result.exit_code == 2
    assert (tmp_path / "other" / "thesis.txt").exists()
