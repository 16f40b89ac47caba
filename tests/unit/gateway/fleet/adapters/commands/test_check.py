"""florin adapter check: against a base on this machine, and against the gateway's."""

from __future__ import annotations

import json
import tarfile
import zipfile

import pytest

from adapters.registry.artifacts import digest_of
from gateway.fleet.engines.schemas.engines import ServedBase
from tests.support.lora import LLAMA, lora_config, lora_tensors, write_adapter
from tests.support.samples import sample

SOUND = lora_config(base_model_name_or_path="tiny/base")


@pytest.fixture
def base(tmp_path):
    """The base's directory; its name is that by which adapters know it."""
    directory = tmp_path / "tiny-base"
    directory.mkdir()
    config = {**LLAMA.config, "_name_or_path": "tiny/base"}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    return str(directory)


def test_a_sound_adapter_passes_without_a_gateway(fake, tmp_path, base):
    adapter = write_adapter(tmp_path / "a", config=SOUND)
    result = fake.florin("adapter", "check", str(adapter), "--base", base)
    assert result.exit_code == 0, result.stderr
    assert "passes" in result.stdout
    assert digest_of(adapter) in result.stdout
    assert fake.florin("adapter", "check", str(adapter), "--base", f"{base}/config.json").exit_code == 0
    body = json.loads(fake.florin("adapter", "check", str(adapter), "--base", base, "--json").stdout)
    assert (body["passed"], body["findings"], body["facts"]["rank"]) == (True, [], 4)
    assert fake.asked == []


def test_a_broken_one_is_refused_with_each_finding_and_its_remedy(fake, tmp_path, base):
    adapter = write_adapter(tmp_path / "a", config={**SOUND, "use_dora": True, "lora_alpha": 0})
    result = fake.florin("adapter", "check", str(adapter), "--base", base)
    assert result.exit_code == 1
    assert "2 checks failed" in result.stderr
    for text in ("unsupported_feature", "alpha_invalid", "florin adapter convert", "remedy"):
        assert text in result.stderr
    refused = fake.florin("adapter", "check", str(adapter), "--base", base, "--json")
    assert refused.exit_code == 1
    body = json.loads(refused.stdout)
    assert (body["passed"], body["facts"]) == (False, None)
    assert {f["code"] for f in body["findings"]} == {"unsupported_feature", "alpha_invalid"}
    assert all(f["remedy"] and f["severity"] == "error" for f in body["findings"])


def test_a_warning_is_shown_and_refuses_nothing(fake, tmp_path, base):
    adapter = write_adapter(tmp_path / "a", config=SOUND)
    (adapter / "chat_template.jinja").write_text("another")
    result = fake.florin("adapter", "check", str(adapter), "--base", base)
    assert result.exit_code == 0
    assert "chat_template_differs (warning)" in result.stdout
    assert "passes" in result.stdout


def test_the_rank_is_held_to_what_is_named(fake, tmp_path, base):
    config = {**SOUND, "r": 64}
    adapter = write_adapter(tmp_path / "a", config=config, tensors=lora_tensors(rank=64))
    arguments = ("adapter", "check", str(adapter), "--base", base)
    assert fake.florin(*arguments).exit_code == 0
    assert fake.florin(*arguments, "--max-rank", "64").exit_code == 0
    refused = fake.florin(*arguments, "--max-rank", "32")
    assert (refused.exit_code, "rank_too_high" in refused.stderr) == (1, True)


def test_another_base_is_refused_unless_it_is_assumed(fake, tmp_path, base):
    adapter = write_adapter(tmp_path / "a", config={**SOUND, "base_model_name_or_path": "tiny/other"})
    assert "base_mismatch" in fake.florin("adapter", "check", str(adapter), "--base", base).stderr
    assert fake.florin("adapter", "check", str(adapter), "--base", base, "--assume-base").exit_code == 0


def test_unverified_shapes_can_be_tried_before_an_operator_vouches_for_them(fake, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**LLAMA.config, "architectures": ["TomorrowForCausalLM"]}))
    adapter = write_adapter(tmp_path / "a", config=SOUND)
    arguments = ("adapter", "check", str(adapter), "--base", str(config), "--assume-base")
    assert "--unverified-shapes" in fake.florin(*arguments).stderr
    passed = fake.florin(*arguments, "--unverified-shapes")
    assert passed.exit_code == 0
    assert "shapes_unverified (warning)" in passed.stdout
    assert json.loads(fake.florin(*arguments, "--unverified-shapes", "--json").stdout)["facts"][
        "unverified_shapes"
    ]


@pytest.mark.parametrize("kind", ["tar", "tgz", "zip"])
def test_an_archive_is_checked_as_it_is(fake, tmp_path, base, kind):
    adapter = write_adapter(tmp_path / "a", config=SOUND)
    packed = tmp_path / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(packed, "w") as archive:
            for path in adapter.iterdir():
                archive.write(path, path.name)
    else:
        with tarfile.open(packed, "w:gz" if kind == "tgz" else "w") as archive:
            for path in adapter.iterdir():
                archive.add(path, path.name)
    body = json.loads(fake.florin("adapter", "check", str(packed), "--base", base, "--json").stdout)
    assert (body["passed"], body["facts"]["digest"]) == (True, f"sha256:{digest_of(adapter)}")


def served(name: str, ranks: list[int], **changes) -> dict:
    return sample(ServedBase, base_model=name, config=LLAMA.config, ranks=ranks, **changes)


def test_without_a_base_the_gateways_only_one_counts_and_its_engines_ranks(fake, tmp_path):
    adapter = write_adapter(tmp_path / "a", config=SOUND)
    fake.answer("GET", "/admin/v1/bases", {"data": [served("tiny/base", [2, 8])]})
    assert fake.florin("adapter", "check", str(adapter)).exit_code == 0
    fake.answer("GET", "/admin/v1/bases", {"data": [served("tiny/base", [1, 2])]})
    refused = fake.florin("adapter", "check", str(adapter))
    assert refused.exit_code == 1
    assert "the fleet's engines accept: 1, 2" in refused.stderr
    fake.answer("GET", "/admin/v1/bases", {"data": [served("x", [2], aliases=["tiny/base"])]})
    assert fake.florin("adapter", "check", str(adapter), "--max-rank", "4").exit_code == 0


def test_a_name_is_asked_of_the_gateway(fake, tmp_path):
    adapter = write_adapter(tmp_path / "a", config=SOUND)
    fake.answer("GET", "/admin/v1/bases", {"data": [served("tiny/base", [8]), served("other", [8])]})
    assert fake.florin("adapter", "check", str(adapter), "--base", "tiny/base").exit_code == 0
    refused = fake.florin("adapter", "check", str(adapter), "--base", "other")
    assert (refused.exit_code, "base_mismatch" in refused.stderr) == (1, True)
    for arguments in ((), ("--base", "third")):
        result = fake.florin("adapter", "check", str(adapter), *arguments)
        assert result.exit_code == 2
        assert "other, tiny/base" in result.stderr


def test_what_is_not_there_is_said(fake, tmp_path, base):
    assert fake.florin("adapter", "check", str(tmp_path / "none"), "--base", base).exit_code == 2
    adapter = write_adapter(tmp_path / "a")
    result = fake.florin("adapter", "check", str(adapter), "--base", str(tmp_path / "nowhere"))
    assert (result.exit_code, "no model config.json" in result.stderr) == (2, True)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text("[")
    assert fake.florin("adapter", "check", str(adapter), "--base", str(tmp_path / "bad")).exit_code == 2
