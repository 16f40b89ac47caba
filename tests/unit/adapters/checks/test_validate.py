"""Each way in which an adapter can be wrong has its code; sound adapters pass."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from adapters.checks.findings import CODES, Findings
from adapters.checks.safetensors_header import read_header
from adapters.checks.validate import AdapterFacts, validate
from adapters.errors import RejectedError
from adapters.model import BaseModel
from tests.broken.config_faults import UNSUPPORTED
from tests.support.lora import FAMILIES, LLAMA, lora_config, lora_tensors, safetensors_bytes, write_adapter

ROOT = Path(__file__).resolve().parents[4]
LIMIT = 10_000_000


def check(directory: Path, *, base: BaseModel = LLAMA.base, max_rank: int = 8, **more) -> AdapterFacts:
    return validate(directory, base=base, max_rank=max_rank, max_bytes=more.pop("max_bytes", LIMIT), **more)


def refusal(directory: Path, **more) -> dict[str, list]:
    """Code → its findings."""
    with pytest.raises(RejectedError) as caught:
        check(directory, **more)
    found: dict[str, list] = {}
    for finding in caught.value.findings:
        assert finding.message
        assert finding.found
        assert finding.expected
        found.setdefault(finding.code, []).append(finding)
    return found


def test_a_sound_adapter_passes_and_its_facts_are_told(tmp_path):
    directory = write_adapter(tmp_path / "a")
    facts = check(directory)
    size = sum(path.stat().st_size for path in directory.iterdir())
    assert facts == AdapterFacts(4, size, ("q_proj", "v_proj"), 8, ("float32",), "tiny/base")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_every_known_family_passes_with_all_its_modules_and_no_other_shape(tmp_path, family):
    kinds = tuple(module.rpartition(".")[2] for module in (*family.modules, *family.outside))
    tensors = lora_tensors(family, kinds=kinds)
    config = lora_config(kinds=kinds)
    facts = check(write_adapter(tmp_path / "a", config=config, tensors=tensors), base=family.base)
    assert facts.modules == tuple(sorted(kinds))
    for number, (name, (dtype, (rows, columns))) in enumerate(tensors.items()):
        shape = (rows + 1, columns) if number % 2 else (rows, columns - 1)
        wrong = {**tensors, name: (dtype, shape)}
        directory = write_adapter(tmp_path / "wrong", config=config, tensors=wrong)
        assert set(refusal(directory, base=family.base)) == {"shape_mismatch"}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"peft_type": "IA3"}, "not_lora"),
        ({"peft_type": None}, "not_lora"),
        ({"r": 0}, "rank_invalid"),
        ({"r": -4}, "rank_invalid"),
        ({"r": True}, "rank_invalid"),
        ({"r": "4"}, "rank_invalid"),
        ({"r": 4.0}, "rank_invalid"),
        ({"r": None}, "rank_invalid"),
        ({"rank_pattern": {"unused": 16}}, "rank_too_high"),
        ({"rank_pattern": {"q_proj": 0}}, "pattern_invalid"),
        ({"rank_pattern": ["q_proj"]}, "pattern_invalid"),
        ({"alpha_pattern": {"q_proj": "much"}}, "pattern_invalid"),
        ({"rank_pattern": {"|".join(["q_proj"] * 2000): 4}}, "pattern_invalid"),
        ({"alpha_pattern": {"q_proj|(v_proj": 1.0}}, "pattern_invalid"),
        ({"lora_alpha": 0}, "alpha_invalid"),
        ({"lora_alpha": -1.5}, "alpha_invalid"),
        ({"lora_alpha": "8"}, "alpha_invalid"),
        ({"lora_alpha": None}, "alpha_invalid"),
        ({"lora_alpha": 10**400}, "alpha_invalid"),
        ({"target_modules": None}, "target_modules_invalid"),
        ({"target_modules": []}, "target_modules_invalid"),
        ({"target_modules": ["q_proj", 3]}, "target_modules_invalid"),
        ({"target_modules": ["q_proj"]}, "module_not_targeted"),
        ({"target_modules": ["q_proj", "v_proj", "o_proj"]}, "target_without_tensors"),
        ({"target_parameters": "mlp.experts.gate_up_proj"}, "target_modules_invalid"),
        ({"target_modules": ["q_proj"], "target_parameters": ["k_proj.weight"]}, "module_not_targeted"),
        *((change, "unsupported_feature") for change in UNSUPPORTED),
        ({"base_model_name_or_path": None}, "base_unnamed"),
        ({"base_model_name_or_path": ""}, "base_unnamed"),
        ({"base_model_name_or_path": "tiny/other"}, "base_mismatch"),
    ],
)
def test_a_wrong_setting_is_refused(tmp_path, change, code):
    assert set(refusal(write_adapter(tmp_path / "a", config=lora_config(**change)))) == {code}


@pytest.mark.parametrize(
    "change",
    [
        {"use_rslora": True},
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": False},
        {"rank_pattern": None, "alpha_pattern": None, "modules_to_save": []},
        {"alpha_pattern": {"layers.0.self_attn.q_proj": 16}},
        {"lora_alpha": 0.5},
        {"alpha_pattern": {"q_proj|v_proj": 16, r".*\.layers\.\d+\.self_attn\.(q|v)_proj$": 4}},
        {"use_tomorrows_lora": None},
        {"target_modules": [], "target_parameters": ["q_proj.weight", "self_attn.v_proj.weight"]},
        {"target_modules": "all-linear"},
        {"target_modules": r".*(q|v)_proj"},
        {"target_modules": ["q_proj", "v_proj", "no_such_module"]},
        {"target_modules": ["self_attn.q_proj", "v_proj"]},
        {"base_model_name_or_path": "/models/tiny-base/"},
        {"base_model_name_or_path": "TINY/Base"},
        {"base_model_name_or_path": "/data/tiny-base"},
    ],
)
def test_a_sound_setting_passes(tmp_path, change):
    assert check(write_adapter(tmp_path / "a", config=lora_config(**change)))


def test_ranks_of_single_modules_are_those_of_the_pattern(tmp_path):
    config = lora_config(rank_pattern={"layers.1.self_attn.q_proj": 2, "^model.layers.0.self_attn.q_proj": 8})
    path = "base_model.model.model.layers"
    tensors = lora_tensors() | {
        f"{path}.1.self_attn.q_proj.lora_A.weight": ("F32", (2, 16)),
        f"{path}.1.self_attn.q_proj.lora_B.weight": ("F32", (16, 2)),
        f"{path}.0.self_attn.q_proj.lora_A.weight": ("F32", (8, 16)),
        f"{path}.0.self_attn.q_proj.lora_B.weight": ("F32", (16, 8)),
    }
    assert check(write_adapter(tmp_path / "a", config=config, tensors=tensors)).rank == 8
    assert set(refusal(write_adapter(tmp_path / "b", config=config))) == {"shape_mismatch"}


def test_a_rank_beyond_the_fleet_says_what_the_fleet_takes(tmp_path):
    directory = write_adapter(tmp_path / "a", config=lora_config(rank=16), tensors=lora_tensors(rank=16))
    (finding,) = refusal(directory, fleet_ranks=(8, 2))["rank_too_high"]
    assert finding.found == "rank 16"
    assert "at most 8" in finding.expected
    assert "2, 8" in finding.expected


@pytest.mark.parametrize(
    ("base_name", "aliases", "named", "fits"),
    [
        ("Qwen/Qwen3-8B", (), "qwen3-8b", True),
        ("Qwen/Qwen3-8B", (), "/hub/models--Qwen--Qwen3-8B/snapshots/0a1b2c", True),
        ("prod", ("/hub/models--Qwen--Qwen3-8B/snapshots/ffff",), "Qwen/Qwen3-8B", True),
        ("Qwen/Qwen3-8B", (), "/hub/models--Qwen--Qwen3-4B/snapshots/0a1b2c", False),
        ("Qwen/Qwen3-8B", (), "Qwen/Qwen3-8B-Instruct", False),
        ("/srv/acme/base", (), "bolt/base", False),
        ("/srv/acme/gemma/1", (), "/srv/acme/gemma", False),
        ("/srv/acme/base", (), "/srv/acme/base", True),
    ],
)
def test_one_base_model_goes_by_several_names(tmp_path, base_name, aliases, named, fits):
    directory = write_adapter(tmp_path / "a", config=lora_config(base_model_name_or_path=named))
    base = BaseModel(base_name, aliases, LLAMA.config)
    if fits:
        assert check(directory, base=base)
    else:
        assert set(refusal(directory, base=base)) == {"base_mismatch"}


def test_assume_base_waives_the_name_and_not_the_shapes(tmp_path):
    config = lora_config(base_model_name_or_path="tiny/other")
    assert check(write_adapter(tmp_path / "a", config=config), assume_base=True)
    tensors = lora_tensors(FAMILIES[2])
    directory = write_adapter(tmp_path / "b", config=config, tensors=tensors)
    assert set(refusal(directory, assume_base=True)) == {"shape_mismatch"}


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (None, "base_config_missing"),
        ({**LLAMA.config, "architectures": ["NoSuchForCausalLM"]}, "unknown_architecture"),
        ({**LLAMA.config, "architectures": [7]}, "unknown_architecture"),
        ({"model_type": "bert"}, "unknown_architecture"),
        ({}, "unknown_architecture"),
        ({"architectures": ["LlavaForConditionalGeneration"]}, "base_config_invalid"),
        ({**LLAMA.config, "hidden_size": None}, "base_config_invalid"),
        ({**LLAMA.config, "hidden_size": 18}, "base_config_invalid"),
        ({**LLAMA.config, "num_attention_heads": 0}, "base_config_invalid"),
        ({**LLAMA.config, "vocab_size": "64"}, "base_config_invalid"),
    ],
)
def test_a_base_whose_shapes_cannot_be_known_admits_no_adapter(tmp_path, config, code):
    base = BaseModel("tiny/base", (), config)
    assert set(refusal(write_adapter(tmp_path / "a"), base=base)) == {code}


TOMORROW = BaseModel("tiny/base", (), {**LLAMA.config, "architectures": ["TomorrowForCausalLM"]})


def test_unverified_shapes_waive_an_unknown_architecture_and_tell_of_it(tmp_path):
    tensors = {
        name.replace("model.layers", "decoder.blocks"): tensor for name, tensor in lora_tensors().items()
    }
    directory = write_adapter(tmp_path / "a", tensors=tensors)
    facts = check(directory, base=TOMORROW, unverified_shapes=True)
    assert facts.unverified_shapes
    assert facts.modules == ("q_proj", "v_proj")
    assert [(w.code, w.found) for w in facts.warnings] == [("shapes_unverified", "['TomorrowForCausalLM']")]
    assert "module_not_in_base" in refusal(directory, unverified_shapes=True)


def test_unverified_shapes_waive_nothing_of_a_known_architecture(tmp_path):
    facts = check(write_adapter(tmp_path / "a"), unverified_shapes=True)
    assert not facts.unverified_shapes
    assert facts.warnings == ()
    for config, code in (
        (None, "base_config_missing"),
        ({**LLAMA.config, "hidden_size": 0}, "base_config_invalid"),
    ):
        base = BaseModel("tiny/base", (), config)
        assert set(refusal(tmp_path / "a", base=base, unverified_shapes=True)) == {code}


Q = "base_model.model.model.layers.0.self_attn.q_proj"
ROWS = {**lora_tensors(), "base_model.model.lm_head.base_layer.weight": ("F32", (64, 16))}


@pytest.mark.parametrize(
    ("tensors", "config", "code"),
    [
        ({**lora_tensors(), f"{Q}.lora_A.weight": ("F32", (3, 16))}, {}, "shape_mismatch"),
        ({**lora_tensors(), f"{Q}.lora_B.weight": ("F32", (16, 3))}, {}, "shape_mismatch"),
        ({**lora_tensors(), f"{Q}.lora_B.weight": ("F32", (4, 4, 4))}, {}, "shape_mismatch"),
        (lora_tensors(), {"rank_pattern": {"q_proj": 2}}, "shape_mismatch"),
        ({**lora_tensors(), f"{Q}.weight": ("F32", (16, 16))}, {}, "tensor_name_invalid"),
        ({"base_model.model.lm_head.base_layer.weight": ("F32", (64, 16))}, {}, "no_tensors"),
        ({**ROWS, "base_model.model.lm_head.base_layer.weight": ("F32", (65, 16))}, {}, "vocabulary_changed"),
    ],
)
def test_all_but_the_bases_shapes_is_checked_of_unverified_ones(tmp_path, tensors, config, code):
    """As far as tests/property/test_validate.py does not show it."""
    directory = write_adapter(tmp_path / "a", config=lora_config() | config, tensors=tensors)
    assert code in refusal(directory, base=TOMORROW, unverified_shapes=True)


@pytest.mark.parametrize(("rows", "columns", "sound"), [(12, 12, True), (12, 8, False), (10, 10, False)])
def test_unverified_experts_have_whole_multiples_of_the_rank(tmp_path, rows, columns, sound):
    """PEFT's `target_parameters`: a layer's experts share two matrices."""
    path = "base_model.model.model.layers.0.mlp.experts"
    tensors = {}
    for name in (path, f"{path}.base_layer"):
        tensors |= {
            f"{name}.lora_A.weight": ("F32", (rows, 16)),
            f"{name}.lora_B.weight": ("F32", (24, columns)),
        }
    named = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    config = lora_config(target_modules=[], target_parameters=named)
    directory = write_adapter(tmp_path / "a", config=config, tensors=tensors)
    if sound:
        assert check(directory, base=TOMORROW, unverified_shapes=True).unverified_shapes
    else:
        assert set(refusal(directory, base=TOMORROW, unverified_shapes=True)) >= {"shape_mismatch"}


def test_base_embeddings_beside_unverified_ones_are_not_in_the_way(tmp_path):
    assert check(write_adapter(tmp_path / "a", tensors=ROWS), base=TOMORROW, unverified_shapes=True)
    nested = BaseModel("tiny/base", (), {"architectures": ["X"], "text_config": {"vocab_size": 65}})
    assert "vocabulary_changed" in refusal(tmp_path / "a", base=nested, unverified_shapes=True)
    unsaid = BaseModel("tiny/base", (), {"architectures": ["X"], "vocab_size": "64"})
    assert check(tmp_path / "a", base=unsaid, unverified_shapes=True)


LAYER = "base_model.model.model.layers.0"


@pytest.mark.parametrize(
    ("name", "shape", "code"),
    [
        (f"{LAYER}.self_attn.k_proj.lora_A.weight", (4, 16), "tensor_unpaired"),
        (f"{LAYER}.self_attn.k_proj.lora_C.weight", (4, 16), "tensor_name_invalid"),
        (f"{LAYER}.self_attn.k_proj.lora_A.default.weight", (4, 16), "tensor_name_invalid"),
        (f"{LAYER}.self_attn.k_proj.lora_magnitude_vector", (4, 16), "tensor_name_invalid"),
        (f"{LAYER}.self_attn.k_proj.lora_embedding_A", (4, 16), "tensor_name_invalid"),
        ("model.layers.0.self_attn.k_proj.lora_A.weight", (4, 16), "tensor_unpaired"),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", (4, 16), "tensor_name_invalid"),
        ("module.model.layers.0.self_attn.k_proj.lora_A.weight", (4, 16), "tensor_name_invalid"),
        (
            "base_model.model.base_model.model.model.layers.0.mlp.up_proj.lora_A.weight",
            (4, 16),
            "tensor_name_invalid",
        ),
        ("base_model.model.model.embed_tokens.weight", (64, 16), "tensor_name_invalid"),
        ("base_model.model.model.embed_tokens.lora_A.weight", (4, 64), "tensor_name_invalid"),
        ("base_model.model.model.embed_tokens.base_layer.weight", (65, 16), "vocabulary_changed"),
        ("base_model.model.model.embed_tokens.base_layer.weight", (64, 15), "shape_mismatch"),
        ("base_model.model.lm_head.weight", (66, 16), "vocabulary_changed"),
        ("base_model.model.lm_head.modules_to_save.weight", (66, 16), "vocabulary_changed"),
        (f"{LAYER}.self_attn.z_proj.lora_A.weight", (4, 16), "module_not_in_base"),
        (f"{LAYER}.q_proj.lora_A.weight", (4, 16), "module_not_in_base"),
        ("base_model.model.layers.0.self_attn.q_proj.lora_A.weight", (4, 16), "module_not_in_base"),
        ("base_model.model.model.layers.00.self_attn.q_proj.lora_A.weight", (4, 16), "module_not_in_base"),
        ("base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight", (4, 16), "layer_out_of_range"),
    ],
)
def test_a_stray_tensor_is_refused(tmp_path, name, shape, code):
    directory = write_adapter(tmp_path / "a", tensors={**lora_tensors(), name: ("F32", shape)})
    assert code in refusal(directory)


def test_the_base_embeddings_that_peft_saves_along_are_passed_over(tmp_path):
    saved = {"base_model.model.model.embed_tokens.base_layer.weight": ("F32", (64, 16))}
    assert check(write_adapter(tmp_path / "a", tensors=lora_tensors() | saved)).modules == (
        "q_proj",
        "v_proj",
    )
    alone = refusal(write_adapter(tmp_path / "b", tensors=saved))
    assert set(alone) == {"no_tensors"}


def test_one_adapter_does_not_name_the_layers_in_two_ways(tmp_path):
    new, old = FAMILIES[-2], FAMILIES[-1]
    directory = write_adapter(tmp_path / "a", tensors=lora_tensors(new) | lora_tensors(old))
    assert set(refusal(directory, base=new.base)) == {"tensor_name_invalid"}


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt"])
def test_pickled_weights_are_refused_where_an_engine_would_open_them(tmp_path, name):
    directory = write_adapter(tmp_path / "a")
    (directory / name).write_bytes(b"")
    assert check(directory).warnings == ()
    (directory / "adapter_model.safetensors").unlink()
    assert set(refusal(directory)) == {"unsafe_file", "file_missing"}


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_both_files_must_be_there_regular_and_inside(tmp_path, name):
    directory = write_adapter(tmp_path / "a")
    content = (directory / name).read_bytes()
    (directory / name).unlink()
    assert set(refusal(directory)) == {"file_missing"}

    (directory / name).mkdir()
    assert set(refusal(directory)) == {"not_regular"}
    (directory / name).rmdir()

    os.mkfifo(directory / name)
    assert set(refusal(directory)) == {"not_regular"}
    (directory / name).unlink()

    (tmp_path / "outside").write_bytes(content)
    (directory / name).symlink_to(tmp_path / "outside")
    assert set(refusal(directory)) == {"symlink_escapes"}
    (directory / name).unlink()

    (directory / name).symlink_to("nowhere")
    assert set(refusal(directory)) == {"file_missing"}
    (directory / name).unlink()

    (directory / "README.md").write_bytes(content)
    (directory / name).symlink_to("README.md")
    assert check(directory)


def test_a_snapshot_of_a_hub_cache_may_link_to_its_blobs(tmp_path):
    repository = tmp_path / "models--acme--support"
    directory = write_adapter(repository / "snapshots" / "0123")
    (repository / "blobs").mkdir()
    weights = directory / "adapter_model.safetensors"
    weights.rename(repository / "blobs" / "abcd")
    weights.symlink_to("../../blobs/abcd")
    assert check(directory)


def test_a_directory_that_is_none_is_refused(tmp_path):
    assert set(refusal(tmp_path / "missing")) == {"directory_missing"}
    (tmp_path / "file").write_text("")
    assert set(refusal(tmp_path / "file")) == {"directory_missing"}


def test_the_size_limit_holds_to_the_byte(tmp_path):
    directory = write_adapter(tmp_path / "a")
    size = sum(path.stat().st_size for path in directory.iterdir())
    assert check(directory, max_bytes=size)
    assert set(refusal(directory, max_bytes=size - 1)) == {"too_large"}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b'{"r": 4',
        b"\xff\xfe{\x00}\x00",
        b'{"r": NaN}',
        b'{"r": 4, "r": 8}',
        b"[" * 100_000,
    ],
)
def test_a_config_that_is_no_json_object_is_refused(tmp_path, raw):
    directory = write_adapter(tmp_path / "a")
    (directory / "adapter_config.json").write_bytes(raw)
    assert set(refusal(directory)) == {"config_invalid"}


def test_a_config_of_absurd_size_is_refused(tmp_path):
    directory = write_adapter(tmp_path / "a")
    (directory / "adapter_config.json").write_text(json.dumps(lora_config(task_type="x" * 2_000_000)))
    assert set(refusal(directory)) == {"too_large"}


def header(entries: str | bytes, data: int = 0) -> bytes:
    raw = entries.encode() if isinstance(entries, str) else entries
    return len(raw).to_bytes(8, "little") + raw + bytes(data)


SOUND = safetensors_bytes(lora_tensors())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"1234567",
        SOUND[:-1],
        SOUND + b"\0",
        SOUND[: len(SOUND) // 8],
        (2**63).to_bytes(8, "little") + SOUND[8:],
        (len(SOUND)).to_bytes(8, "little") + SOUND[8:],
        header("[]"),
        header("null"),
        header(b'{"a":"\xff"}'),
        header(" {}"),
        header('{"__metadata__": 3}'),
        header('{"__metadata__": {"a": 1}}'),
        header('{"a": 3}'),
        header('{"a": {"dtype": "F32", "shape": [1]}}', 4),
        header('{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}', 4),
        header('{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', 4),
        header('{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}}'),
        header('{"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}', 4),
        header('{"a": {"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}}', 4),
        header('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}', 8),
        header(
            '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
            ' "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
            4,
        ),
        header(
            '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
            ' "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
            4,
        ),
        header("[" * 100_000),
    ],
)
def test_a_corrupt_weight_file_is_refused(tmp_path, raw):
    directory = write_adapter(tmp_path / "a")
    (directory / "adapter_model.safetensors").write_bytes(raw)
    assert set(refusal(directory)) == {"header_invalid"}


@pytest.mark.parametrize(
    ("names", "code"),
    [
        ((str(i) for i in range(50_001)), "too_many_tensors"),
        (["base_model.model." + "a." * 250], "tensor_name_too_long"),
    ],
)
def test_the_names_of_tensors_are_bounded(tmp_path, names, code):
    directory = write_adapter(tmp_path / "a", tensors=dict.fromkeys(names, ("F16", (1, 1))))
    assert set(refusal(directory)) == {code}


def test_the_header_is_read_without_the_weights(tmp_path):
    path = tmp_path / "sparse"
    shape = (2**14, 2**14)
    path.write_bytes(
        header('{"a": {"dtype": "F32", "shape": [16384, 16384], "data_offsets": [0, 1073741824]}}')
    )
    os.truncate(path, path.stat().st_size + 2**30)
    assert read_header(path)["a"].shape == shape


def test_several_faults_are_told_at_once(tmp_path):
    config = lora_config(lora_alpha=0, use_dora=True, base_model_name_or_path="tiny/other")
    tensors = lora_tensors(dtype="F64")
    found = refusal(write_adapter(tmp_path / "a", config=config, tensors=tensors))
    assert set(found) == {"alpha_invalid", "unsupported_feature", "base_mismatch", "dtype_unsupported"}


def test_what_a_stranger_wrote_is_quoted_short_and_printable(tmp_path):
    directory = write_adapter(tmp_path / "a", config=lora_config(peft_type="\x1b[31m" + "x" * 10_000))
    (finding,) = refusal(directory)["not_lora"]
    assert "\x1b" not in finding.found
    assert len(finding.found) < 250


def test_a_code_that_is_not_in_the_table_cannot_be_used():
    with pytest.raises(KeyError):
        Findings().add("no_such_code", "x", found="x", expected="x")


def test_a_directory_that_cannot_be_looked_at_is_refused(tmp_path):
    assert set(refusal(tmp_path / ("x" * 300))) == {"unreadable"}


def test_every_code_of_the_table_is_used_tested_and_described():
    sources = "".join(
        p.read_text() for p in (ROOT / "adapters").rglob("*.py") if p.name != "finding_codes.py"
    )
    tests = "".join(p.read_text() for p in (ROOT / "tests").rglob("*.py"))
    for code, told in CODES.items():
        assert f'"{code}"' in sources, f"nothing finds {code}"
        assert f'"{code}"' in tests, f"{code} needs a row in tests/broken/table.py, or a test of its own"
        assert told.meaning.endswith(".")
        assert told.remedy.endswith(".")
