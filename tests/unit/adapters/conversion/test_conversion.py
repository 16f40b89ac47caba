"""Conversion of whole adapters: against PEFT's own numbers, and against dense numpy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from adapters.conversion import changes
from adapters.conversion.adapter_files import plain_name, read_adapter
from adapters.conversion.base_weights import read_base_weights
from adapters.conversion.convert import convert
from adapters.conversion.merge import compress, merge
from adapters.conversion.output import write_adapter, write_merged_model
from adapters.conversion.weight_files import StoredTensor
from adapters.errors import RejectedError
from tests.support.lora import lora_config
from tests.support.search import examples

RECORDED = Path(__file__).with_name("recorded")
RECORD = {"command": "test"}


@pytest.fixture
def base(tmp_path):
    """Input embeddings, a linear layer, a norm and lm_head."""
    numbers = np.random.default_rng(3)
    weights = {
        "model.embed_tokens.weight": numbers.standard_normal((20, 8), np.float32),
        "model.layers.0.mlp.up_proj.weight": numbers.standard_normal((12, 8), np.float32),
        "model.norm.weight": numbers.standard_normal(8, np.float32),
        "lm_head.weight": numbers.standard_normal((20, 8), np.float32),
    }
    return write_base(tmp_path / "base", weights)


def write_base(directory, weights, **config):
    directory.mkdir(exist_ok=True)
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return directory


def write(directory, tensors, **config):
    directory.mkdir(exist_ok=True)
    save_file(
        {f"base_model.model.{k}": np.ascontiguousarray(v) for k, v in tensors.items()},
        directory / "adapter_model.safetensors",
    )
    made = lora_config(**{"kinds": ("up_proj",), **config})
    (directory / "adapter_config.json").write_text(json.dumps(made))
    return directory


UP = "model.layers.0.mlp.up_proj"


def lora(rank=4, seed=0, path=UP, shape=(12, 8)):
    numbers = np.random.default_rng(seed)
    return {
        f"{path}.lora_A.weight": numbers.standard_normal((rank, shape[1]), np.float32),
        f"{path}.lora_B.weight": numbers.standard_normal((shape[0], rank), np.float32),
    }


def dense(directory) -> dict[str, np.ndarray]:
    """What an engine would add to each weight, as the files say."""
    source = read_adapter(directory)
    assert source.is_plain
    found = {}
    for path, module in source.modules.items():
        delta = module.factors().dense()
        found[path] = delta.T if module.embedding or source.transposed else delta
    return found


def converted(directory, base, out, **options):
    source = read_adapter(directory)
    result = convert(source, read_base_weights(base), **options)
    write_adapter(out, result, source, RECORD, replace=False)
    return result


@pytest.mark.parametrize("name", ["dora", "rslora", "conv1d"])
def test_dora_is_what_peft_makes_of_it(name, tmp_path):
    """At full rank nothing is lost; embeddings and Conv1D layers have their norms along the other dimension."""
    result = converted(RECORDED / name, RECORDED / "base", tmp_path / "out", rank=9)
    old = load_file(RECORDED / "base" / "model.safetensors")
    merged = load_file(RECORDED / f"{name}-merged.safetensors")
    changed = {path for path in merged if not np.array_equal(merged[path], old[path])}
    deltas = dense(tmp_path / "out")
    assert {f"{path}.weight" for path in deltas} == changed
    for path, delta in deltas.items():
        assert np.allclose(old[f"{path}.weight"] + delta, merged[f"{path}.weight"], atol=2e-6), path
    assert result.error < 1e-5


@pytest.mark.parametrize("name", ["dora", "rslora", "conv1d"])
def test_a_merged_model_is_pefts(name, tmp_path):
    write_merged_model(
        tmp_path / "out",
        read_adapter(RECORDED / name),
        read_base_weights(RECORDED / "base"),
        None,
        replace=False,
    )
    merged = load_file(RECORDED / f"{name}-merged.safetensors")
    for path, weight in load_file(tmp_path / "out" / "model.safetensors").items():
        assert np.allclose(weight, merged[path], atol=2e-6), path


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_the_error_that_is_told_is_the_one_that_is_made(rank, tmp_path):
    result = converted(RECORDED / "dora", RECORDED / "base", tmp_path / "out", rank=rank)
    old = load_file(RECORDED / "base" / "model.safetensors")
    merged = load_file(RECORDED / "dora-merged.safetensors")
    deltas = dense(tmp_path / "out")
    for module in result.modules:
        weight = merged[f"{module.path}.weight"]
        wanted = weight - old[f"{module.path}.weight"]
        lost = np.linalg.norm(wanted - deltas[module.path])
        assert module.error == pytest.approx(lost / np.linalg.norm(wanted), rel=1e-3, abs=1e-5)
        assert module.output_error == pytest.approx(lost / np.linalg.norm(weight), rel=1e-3, abs=1e-5)
        assert module.factors.rank <= rank


def test_blocks_change_nothing(tmp_path, monkeypatch):
    """Large matrices are computed again for each product, block by block, and by the randomised method."""
    whole = converted(RECORDED / "dora", RECORDED / "base", tmp_path / "a", rank=3)
    monkeypatch.setattr(changes, "_BLOCK_ELEMENTS", 17)
    monkeypatch.setattr(changes, "_KEPT_ELEMENTS", 0)
    blocks = converted(RECORDED / "dora", RECORDED / "base", tmp_path / "b", rank=3)
    assert blocks.error == pytest.approx(whole.error, rel=1e-4)


def test_the_randomised_method_is_nearly_the_best(tmp_path):
    numbers = np.random.default_rng(0)
    decaying = (numbers.standard_normal((600, 600)) * np.arange(1, 601) ** -0.7) @ numbers.standard_normal(
        (600, 700)
    )
    save_file(
        {"zero": np.zeros((600, 700), np.float32), "full": decaying.astype(np.float32)},
        tmp_path / "w.safetensors",
    )
    zero, full = (changes_stored(tmp_path / "w.safetensors", name) for name in ("zero", "full"))
    matrix = changes.Matrix(changes.Saved(zero, full))
    values = np.linalg.svd(decaying, compute_uv=False)
    cut = changes.leading(matrix, 32).truncated(32)
    best = np.sqrt((values[32:] ** 2).sum())
    assert best <= np.sqrt(matrix.residual_squared(cut.b, cut.a)) * (1 + 1e-4) <= 1.02 * best


def changes_stored(path, name) -> StoredTensor:
    from adapters.conversion.weight_files import stored_tensors

    return stored_tensors(path)[name]


def test_full_modules_of_low_rank_are_exact(base, tmp_path):
    old = load_file(base / "model.safetensors")
    numbers = np.random.default_rng(9)
    delta = (numbers.standard_normal((20, 2)) @ numbers.standard_normal((2, 8))).astype(np.float32)
    tensors = lora() | {
        "lm_head.modules_to_save.default.weight": old["lm_head.weight"] + delta,
        "model.norm.weight": old["model.norm.weight"],  # as it was
    }
    source = write(tmp_path / "a", tensors, modules_to_save=["lm_head", "norm"])
    result = converted(source, base, tmp_path / "out")
    assert {m.path: (m.method, m.factors.rank) for m in result.modules} == {
        UP: ("unchanged", 4),
        "lm_head": ("exact", 2),
    }
    assert np.allclose(dense(tmp_path / "out")["lm_head"], delta, atol=1e-5)
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (config["modules_to_save"], config["target_modules"]) == (None, ["lm_head", "up_proj"])


def test_what_is_not_linear_is_refused_with_the_way_out(base, tmp_path):
    tensors = lora() | {"model.norm.weight": np.zeros(8, np.float32)}
    source = write(tmp_path / "a", tensors, modules_to_save=["norm"])
    with pytest.raises(RejectedError) as refusal:
        converted(source, base, tmp_path / "out")
    assert [f.code for f in refusal.value.findings] == ["not_linear"]
    assert "--into-base" in refusal.value.findings[0].remedy
    assert not (tmp_path / "out").exists()
    write_merged_model(tmp_path / "m", read_adapter(source), read_base_weights(base), None, replace=False)
    assert not load_file(tmp_path / "m" / "model.safetensors")["model.norm.weight"].any()


@pytest.mark.parametrize("tied", [False, True])
def test_trained_tokens_are_exact_and_reach_a_tied_lm_head(tied, tmp_path):
    weights = {
        "model.embed_tokens.weight": np.random.default_rng(1).standard_normal((20, 8), np.float32),
        f"{UP}.weight": np.ones((12, 8), np.float32),
    }
    base = write_base(tmp_path / "base", weights, tie_word_embeddings=tied)
    rows = np.random.default_rng(2).standard_normal((3, 8), np.float32)
    tensors = lora() | {"model.embed_tokens.token_adapter.trainable_tokens_delta": rows}
    source = write(tmp_path / "a", tensors, trainable_token_indices=[5, 19, 0])
    converted(source, base, tmp_path / "out")
    expected = weights["model.embed_tokens.weight"].copy()
    expected[[5, 19, 0]] = rows
    deltas = dense(tmp_path / "out")
    assert set(deltas) == {UP, "model.embed_tokens"} | ({"lm_head"} if tied else set())
    for path in set(deltas) - {UP}:
        assert np.allclose(weights["model.embed_tokens.weight"] + deltas[path], expected, atol=1e-6)
    source = write(tmp_path / "a", tensors, trainable_token_indices=[5, 20, 0])
    with pytest.raises(RejectedError, match="does not have"):
        converted(source, base, tmp_path / "out2")


def test_pissa_is_exact_with_the_initial_adapter(base, tmp_path):
    source = write(tmp_path / "a", lora(seed=1), init_lora_weights="pissa")
    with pytest.raises(RejectedError) as refusal:
        converted(source, base, tmp_path / "out")
    assert "--initial" in refusal.value.findings[0].remedy
    initial = write(tmp_path / "i", lora(seed=2))
    converted(source, base, tmp_path / "out", initial=read_adapter(initial))
    plain = write(tmp_path / "p", lora(seed=1))
    expected = dense(plain)[UP] - dense(initial)[UP]
    assert np.allclose(dense(tmp_path / "out")[UP], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("tensors", "config", "code"),
    [
        ({}, {"use_dora": True}, "dora_inconsistent"),
        ({}, {"bias": "all"}, "unsupported_feature"),
        ({}, {"r": 8}, "rank_mismatch"),
        ({}, {"peft_type": "LOHA"}, "not_lora"),
        ({f"{UP}.lora_B.bias": np.zeros(12, np.float32)}, {}, "tensor_name_invalid"),
        ({f"{UP}.lora_A.other.weight": np.zeros((4, 8), np.float32)}, {}, "tensor_name_invalid"),  # twice
        ({"rubbish": np.zeros(1, np.float32)}, {}, "tensor_name_invalid"),
        ({"model.layers.0.mlp.down_proj.lora_A.weight": np.zeros((4, 8), np.float32)}, {}, "factors_invalid"),
        ({"lm_head.weight": np.zeros((20, 8), np.int8)}, {}, "dtype_unsupported"),
        (lora(path="model.layers.1.mlp.up_proj"), {}, "module_not_in_base"),
        (lora(shape=(12, 9)), {}, "shape_mismatch"),
        ({"lm_head.weight": np.zeros((21, 8), np.float32)}, {}, "shape_mismatch"),
        ({k: v * np.nan for k, v in lora().items()}, {}, "weights_not_finite"),
    ],
)
def test_what_contradicts_itself_or_the_base_is_refused(tensors, config, code, base, tmp_path):
    source = write(tmp_path / "a", lora() | tensors, **config)
    with pytest.raises(RejectedError) as refusal:
        converted(source, base, tmp_path / "out")
    assert code in {f.code for f in refusal.value.findings}


def test_a_base_that_cannot_be_used_is_refused_with_the_remedy(base, tmp_path):
    quantized = write_base(
        tmp_path / "q", {"a": np.zeros(1, np.float32)}, quantization_config={"quant_method": "awq"}
    )
    unsaid = write_base(tmp_path / "u", {f"{UP}.weight.absmax": np.zeros(1, np.float32)})
    nested = write_base(
        tmp_path / "n",
        {"a": np.zeros(1, np.float32)},
        text_config={"quantization_config": {"quant_method": "fp8"}},
    )
    beside = write_base(tmp_path / "b", {"a": np.zeros(1, np.float32)})
    (beside / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    for directory, code in (
        *((one, "base_quantized") for one in (quantized, unsaid, nested, beside)),
        (tmp_path, "base_config_missing"),
    ):
        with pytest.raises(RejectedError) as refusal:
            read_base_weights(directory)
        assert refusal.value.findings[0].code == code
    (base / "model.safetensors").unlink()
    with pytest.raises(RejectedError, match="missing"):
        read_base_weights(base)
    for index in (
        "[",
        '{"weight_map": {"a": "../x.safetensors"}}',
        '{"weight_map": {"a": "none.safetensors"}}',
    ):
        (base / "model.safetensors.index.json").write_text(index)
        with pytest.raises(RejectedError):
            read_base_weights(base)


def test_shards_are_read_and_written_as_they_are(base, tmp_path):
    weights = load_file(base / "model.safetensors")
    (base / "model.safetensors").unlink()
    names = {name: f"model-{number}.safetensors" for number, name in enumerate(weights)}
    for name, file in names.items():
        save_file({name: weights[name]}, base / file)
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (base / "pytorch_model.bin").write_bytes(b"the same in another format")
    source = write(tmp_path / "a", lora())
    assert write_merged_model(
        tmp_path / "m", read_adapter(source), read_base_weights(base), None, replace=False
    ) == [UP]
    assert not (tmp_path / "m" / "pytorch_model.bin").exists()
    for name, file in names.items():
        expected = weights[name] + (dense(source)[UP] if name.startswith(UP) else 0)
        assert np.allclose(load_file(tmp_path / "m" / file)[name], expected, atol=1e-5)


def test_merging_is_exact_and_weighted(tmp_path):
    one = write(tmp_path / "1", lora(seed=1))
    two = write(
        tmp_path / "2",
        lora(rank=2, seed=2) | lora(rank=2, seed=3, path="lm_head"),
        rank=2,
        kinds=("up_proj", "lm_head"),
    )
    parts = [(read_adapter(one), 1.0), (read_adapter(two), -0.5)]
    result = merge(parts)
    write_adapter(tmp_path / "out", result, parts[0][0], RECORD, replace=False)
    deltas = dense(tmp_path / "out")
    assert np.allclose(deltas[UP], dense(one)[UP] - 0.5 * dense(two)[UP], atol=1e-4)
    assert np.allclose(deltas["lm_head"], -0.5 * dense(two)["lm_head"], atol=1e-4)
    assert (result.rank, result.error) == (6, pytest.approx(0, abs=1e-6))
    assert merge(parts, rank=3).rank == 3


def test_merging_refuses_what_does_not_go_together(tmp_path):
    one = read_adapter(write(tmp_path / "1", lora()))
    other_base = read_adapter(write(tmp_path / "2", lora(), base_model_name_or_path="another"))
    other_shape = read_adapter(write(tmp_path / "3", lora(shape=(13, 8))))
    not_plain = read_adapter(RECORDED / "dora")
    for other, weight in ((other_base, 1.0), (other_shape, 1.0), (not_plain, 1.0)):
        with pytest.raises(RejectedError):
            merge([(one, weight), (other, weight)])
    with pytest.raises(RejectedError):
        merge([(one, 0.0)])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_compression_loses_what_it_says_and_no_more_the_second_time(dtype, tmp_path):
    source = write(
        tmp_path / "a", {k: v.astype(dtype) for k, v in lora(rank=64, shape=(96, 80)).items()}, rank=64
    )
    result = compress(read_adapter(source), rank=16)
    write_adapter(tmp_path / "b", result, read_adapter(source), RECORD, replace=False)
    before, after = dense(source)[UP], dense(tmp_path / "b")[UP]
    assert result.error == pytest.approx(np.linalg.norm(before - after) / np.linalg.norm(before), rel=1e-4)
    assert dict(result.choices())[16] == pytest.approx(result.error, rel=1e-2)
    assert read_adapter(tmp_path / "b").rank == 16
    again = compress(read_adapter(tmp_path / "b"), rank=16)
    assert [(m.method, m.error) for m in again.modules] == [("unchanged", 0.0)]
    write_adapter(tmp_path / "c", again, read_adapter(tmp_path / "b"), RECORD, replace=False)
    one, two = ((tmp_path / name / "adapter_model.safetensors").read_bytes() for name in "bc")
    assert one == two


def test_compression_by_energy_gives_each_module_its_rank(tmp_path):
    low = lora(rank=2, path="model.layers.1.mlp.up_proj")
    padded = {k: np.pad(v, ((0, 6), (0, 0)) if "_A" in k else ((0, 0), (0, 6))) for k, v in low.items()}
    source = write(tmp_path / "a", lora(rank=8) | padded, rank=8)
    result = compress(read_adapter(source), energy=0.999999)
    ranks = {m.path: m.factors.rank for m in result.modules}
    assert ranks["model.layers.1.mlp.up_proj"] == 2 < ranks[UP]
    write_adapter(tmp_path / "out", result, read_adapter(source), RECORD, replace=False)
    for path, delta in dense(tmp_path / "out").items():
        assert np.allclose(delta, dense(source)[path], atol=1e-2 * np.abs(delta).max())


@examples(30)
@given(
    st.lists(
        st.sampled_from(("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")), max_size=3
    ),
    st.booleans(),
    st.integers(0, 2),
)
def test_wrappers_and_prefixes_are_taken_off(wrappers, module, prefixes):
    wrapped = UP
    for wrapper in wrappers:
        wrapped = wrapped.replace("layers.0.", f"layers.0.{wrapper}")
    name = ("module." if module else "") + "".join(wrappers[:1]) + "base_model.model." * prefixes + wrapped
    assert plain_name(name) == UP


def test_an_infix_is_taken_off(base, tmp_path):
    tensors = {k.replace(".weight", ".default.weight"): v for k, v in lora().items()}
    source = write(tmp_path / "a", tensors)
    converted(source, base, tmp_path / "out")
    assert set(load_file(tmp_path / "out" / "adapter_model.safetensors")) == {
        f"base_model.model.{k}" for k in lora()
    }


def test_what_is_written_is_there_whole_or_not_at_all(base, tmp_path):
    source = read_adapter(write(tmp_path / "a", lora()))
    result = convert(source, read_base_weights(base))
    write_adapter(tmp_path / "out", result, source, RECORD, replace=False)
    with pytest.raises(FileExistsError):
        write_adapter(tmp_path / "out", result, source, RECORD, replace=False)
    kept = (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(TypeError):
        write_adapter(tmp_path / "out", result, source, {"command": object(), "x": object()}, replace=True)
    assert (tmp_path / "out" / "README.md").read_text() == kept
    write_adapter(tmp_path / "out", result, source, RECORD | {"x": 1}, replace=True)
    assert (tmp_path / "out" / "README.md").read_text() != kept
    shutil.rmtree(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "base"], "no temporary directory is left"
