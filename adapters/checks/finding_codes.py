"""All findings of the adapter checks: what each code means and how to fix it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class FindingCode:
    """The meaning of one code."""

    meaning: str
    """What is wrong, in a sentence."""
    remedy: str
    """How to fix it, in a sentence."""
    severity: Literal["error", "warning"] = "error"
    """Only errors reject an adapter."""


_SAVE_ANEW = "Save the adapter again with PEFT's `save_pretrained`."
_COMPLETE = "Copy the file again and compare its hash with the original's."
_PACK = "Pack only the adapter's files, at the top of the archive or in one directory."
_PLAIN = "Train it as plain LoRA, or convert it to plain LoRA with PEFT."
CONVERT = (
    "Run `florin adapter convert DIR --base BASE_DIR --out OUT` with the directories of the adapter and of "
    "the base model, and register OUT."
)
"""Remedy for what a conversion to plain LoRA under PEFT's names makes servable."""
GATHER = (
    "Gather the weights before saving: with DeepSpeed ZeRO-3 by "
    "`stage3_gather_16bit_weights_on_model_save: true`, with FSDP by `fsdp_state_dict_type: FULL_STATE_DICT`."
)
_RIGHT_BASE = "Register it for the base model that it was trained on."


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


CODES: dict[str, FindingCode] = {
    # the source
    "source_unsupported": FindingCode(
        "The source is malformed or of an unsupported kind.",
        "Use an absolute path, a URL of file, http(s), s3, gs, az, hf or oci, or models:/NAME/VERSION.",
    ),
    "directory_missing": FindingCode(
        "The source directory does not exist, or is not a directory.",
        "Use the path of the directory with the adapter's files on the gateway's host.",
    ),
    "file_missing": FindingCode(
        "adapter_config.json or adapter_model.safetensors is missing.",
        "Put both files into the directory; PEFT's `save_pretrained` writes them.",
    ),
    "not_regular": FindingCode(
        "One of the two files is a directory, a pipe or a device.", "Replace it with a regular file."
    ),
    "symlink_escapes": FindingCode(
        "One of the two files is a link to outside the directory.", "Replace the link with the file."
    ),
    "unreadable": FindingCode(
        "Florin cannot read the files.", "Give the gateway's user read access to the directory and its files."
    ),
    "unsafe_file": FindingCode(
        "The weights are in a pickle, adapter_model.bin or adapter_model.pt, which can run code when it is "
        "loaded.",
        "Save them as adapter_model.safetensors.",
    ),
    "other_weights": FindingCode(
        "There are weights outside adapter_model.safetensors, which neither Florin nor engines read.",
        "If the adapter needs them, merge them into adapter_model.safetensors.",
        "warning",
    ),
    "files_ignored": FindingCode(
        "There are files beside the adapter that neither Florin nor engines read. They are not stored.",
        "Nothing is to be done, unless the adapter needs them.",
        "warning",
    ),
    "too_large": FindingCode(
        "The two files together exceed the size limit, or adapter_config.json exceeds its own.",
        "Save only the adapter's weights, in 16-bit precision, or raise FLORIN_MAX_ADAPTER_BYTES.",
    ),
    "source_not_public": FindingCode(
        "The URL, or a redirect from it, leads to an address that is not public.",
        "If the address is yours, allow its host or network in FLORIN_SOURCE_PRIVATE.",
    ),
    "source_redirect": FindingCode(
        "The server redirects more than 5 times, from https to http, or to another scheme.",
        "Use the final URL of the files.",
    ),
    "source_missing": FindingCode(
        "The source does not have this name, path or revision.",
        "Check the name, the path and the revision.",
    ),
    "source_denied": FindingCode(
        "The source refuses access with the gateway's credentials.",
        "Give the gateway credentials (AWS_*, HF_TOKEN, …: Adapters has a table), or accept the gated "
        "repository's terms.",
    ),
    "source_offline": FindingCode(
        "HF_HUB_OFFLINE is set and the files are not in the local cache.",
        "Download the revision into HF_HUB_CACHE, or unset HF_HUB_OFFLINE.",
    ),
    "source_unavailable": FindingCode(
        "The source cannot be reached, or the download failed or stalled on every attempt.",
        "Try again later.",
    ),
    "source_changed": FindingCode(
        "The source changed during the download.",
        "Try again once nothing writes to the source.",
    ),
    "hash_mismatch": FindingCode(
        "The downloaded bytes do not match the hash in the source.",
        "Check the hash against the original's, and try again.",
    ),
    "archive_unsupported": FindingCode(
        "The archive is neither tar (plain, gzip, xz) nor zip (stored, deflated).",
        "Pack the files as .tar.gz or .zip.",
    ),
    "archive_corrupt": FindingCode(
        "The archive is truncated or damaged.",
        _COMPLETE,
    ),
    "archive_traversal": FindingCode(
        "A name in the archive uses `..` to leave the archive.",
        _PACK,
    ),
    "archive_absolute": FindingCode(
        "A name in the archive is absolute.",
        _PACK,
    ),
    "archive_link": FindingCode(
        "The archive contains a symbolic or hard link.",
        "Pack the linked files instead (`tar --dereference`).",
    ),
    "archive_device": FindingCode(
        "The archive contains a device, a pipe, a sparse file or another entry that is not a regular file.",
        _PACK,
    ),
    "archive_encrypted": FindingCode(
        "The archive is encrypted.",
        "Pack it without a password.",
    ),
    "archive_duplicate": FindingCode(
        "The archive contains a file twice.",
        _PACK,
    ),
    "archive_entries": FindingCode(
        "The archive has more than 1000 entries.",
        _PACK,
    ),
    "archive_bomb": FindingCode(
        "The archive expands far beyond the limits (a decompression bomb).",
        _PACK,
    ),
    "digest_mismatch": FindingCode(
        "The files do not match the given digest.",
        "Check where the source and the digest come from. Nothing was registered.",
    ),
    # adapter_config.json
    "config_invalid": FindingCode("adapter_config.json is not a JSON object, or repeats a key.", _SAVE_ANEW),
    "not_lora": FindingCode(
        "`peft_type` is not LORA.", "Train the adapter with LoRA, the only method that engines serve."
    ),
    "rank_invalid": FindingCode("`r` is not a positive integer.", "Set it to the rank used in training."),
    "rank_too_high": FindingCode(
        "`r`, or a rank in `rank_pattern`, exceeds the maximum rank of the fleet's engines.",
        "Start an engine with a higher --max-lora-rank, or reduce the rank by SVD or retraining.",
    ),
    "alpha_invalid": FindingCode(
        "`lora_alpha` is not a finite number above zero.", "Set it to the alpha used in training."
    ),
    "pattern_invalid": FindingCode(
        "`rank_pattern` or `alpha_pattern` is not a small mapping of module names to numbers.",
        "Write out the module names; of regular expressions, only `\\d+`, a few `.*` and one `(a|b)` are "
        "accepted.",
    ),
    "target_modules_invalid": FindingCode(
        "`target_modules` is missing, empty, or neither a string nor a list of strings.",
        "List the modules that the adapter was trained on.",
    ),
    "unsupported_feature": FindingCode(
        "The adapter uses a PEFT feature that engines refuse or silently ignore.", _PLAIN
    ),
    # the base model
    "base_ambiguous": FindingCode(
        "No base model was given, and the installation does not have exactly one.",
        "Give the base model (`--base-model`).",
    ),
    "base_unnamed": FindingCode(
        "`base_model_name_or_path` is missing, so the adapter's base model is unknown.",
        "Add it to adapter_config.json, or skip the check with `--assume-base`.",
    ),
    "base_mismatch": FindingCode(
        "The adapter was trained on a different base model.",
        f"{_RIGHT_BASE} If it is the same model by another name, or a quantized copy of it, use "
        "`--assume-base`, or register that name once as an alias (`--base-alias` of `florin engine add`).",
    ),
    "base_unsure": FindingCode(
        "The adapter's name for its base model, such as `/data/default/1`, does not say which model it is.",
        "Compare its answers with those of training, or train with the model's name on the Hub. Florin has "
        "compared only the shapes.",
        "warning",
    ),
    "base_quantized": FindingCode(
        "The adapter was trained on the base model at another precision, such as 4-bit QLoRA.",
        "Compare its answers with those of training; or serve the base model at that precision.",
        "warning",
    ),
    "base_config_missing": FindingCode(
        "Florin does not have the base model's config.json, so shapes cannot be checked.",
        "Register the engine with `--base-config` and the path of the model's config.json.",
    ),
    "base_config_invalid": FindingCode(
        "The base model's config.json lacks a dimension or has an implausible one.",
        "Register the engine with the config.json of the model that it serves.",
    ),
    "unknown_architecture": FindingCode(
        "Florin does not know the base model's architecture, so shapes cannot be checked.",
        "Serve a base model of a known architecture, or ask an operator to vouch for the adapter's shapes "
        "with `--unverified-shapes`.",
    ),
    "shapes_unverified": FindingCode(
        "Florin does not know the base model's architecture, and an operator has vouched for the adapter's "
        "shapes. Engines may silently ignore what does not fit.",
        "Compare its answers with those of the training run.",
        "warning",
    ),
    # adapter_model.safetensors
    "header_invalid": FindingCode(
        "The safetensors header is corrupt or does not match the file's length.", _COMPLETE
    ),
    "too_many_tensors": FindingCode(
        "The safetensors file has more than 50,000 tensors.",
        "Train fewer modules; of an adapter's experts, `target_parameters` stores those of a layer together.",
    ),
    "tensor_name_too_long": FindingCode("A tensor's name has more than 512 characters.", _SAVE_ANEW),
    "checks_unfinished": FindingCode(
        "The checks ran into their limit of time or of memory. They normally take seconds.",
        "Leave out what is unusual, such as very many tensors or patterns. If the gateway's host is "
        "overloaded or its artifact disk slow, try again later.",
    ),
    "no_tensors": FindingCode(
        "The file contains no LoRA weights.",
        "Save the adapter itself, not the merged model.",
    ),
    "weights_not_gathered": FindingCode(
        "The file names tensors and has no weights for them, as DeepSpeed ZeRO-3 and FSDP leave it.", GATHER
    ),
    "tensor_name_invalid": FindingCode(
        "A tensor's name does not follow PEFT's naming of LoRA weights.",
        f"{_SAVE_ANEW} Or: {_lower(CONVERT)}",
    ),
    "tensor_unpaired": FindingCode("A lora_A has no lora_B, or vice versa.", _SAVE_ANEW),
    "dtype_unsupported": FindingCode(
        "A tensor is neither float16, bfloat16 nor float32.", "Save the weights in one of these types."
    ),
    "text_names": FindingCode(
        "The adapter was trained on the language model of a multimodal base model alone. Only vLLM 0.33 and "
        "later finds its modules, so other engines do not get it.",
        f"To have it on all engines: {_lower(CONVERT)}",
        "warning",
    ),
    "module_not_in_base": FindingCode(
        "A tensor belongs to a module that the base model lacks or that engines cannot adapt.",
        f"{_RIGHT_BASE} Or train it without that module; engines would silently ignore it.",
    ),
    "layer_out_of_range": FindingCode(
        "A tensor belongs to a layer that the base model does not have.", _RIGHT_BASE
    ),
    "shape_mismatch": FindingCode(
        "A tensor's shape does not match the base model and the rank.",
        f"{_RIGHT_BASE} Engines would silently pad a tensor that is too small with zeros.",
    ),
    "module_not_targeted": FindingCode(
        "A tensor belongs to a module that `target_modules` does not name.",
        "Put config and weights of one training run together.",
    ),
    "target_without_tensors": FindingCode(
        "`target_modules` names a module of the base model for which there are no tensors.",
        "Put config and weights of one training run together.",
    ),
    "mixed_dtypes": FindingCode(
        "The weights have several types; engines convert all of them to one.",
        "Save the weights in one type.",
        "warning",
    ),
    "weights_not_finite": FindingCode(
        "A weight is NaN or infinite, so every answer would be noise or empty.",
        "Resume training from the last checkpoint with finite weights, at a lower learning rate.",
    ),
    "weights_overflow": FindingCode(
        "Weights, or weights times alpha / rank, exceed the range of the base model's type and become "
        "infinite in engines.",
        "Correct `lora_alpha`, or serve the base model in bfloat16.",
    ),
    "no_effect": FindingCode(
        "In every module, lora_A or lora_B is all zeros, so the adapter answers like the base model.",
        "Save the adapter after training, not before.",
    ),
    "module_without_effect": FindingCode(
        "In some modules, lora_A or lora_B is all zeros, so these modules have no effect.",
        "Check whether they were trained; PEFT initializes lora_B with zeros.",
        "warning",
    ),
    "scaling_extreme": FindingCode(
        "alpha / rank is unusual, so the adapter overwhelms the base model or has hardly any effect.",
        "Compare `lora_alpha`, `r` and `use_rslora` with the training run's.",
        "warning",
    ),
    # files beside the two
    "file_invalid": FindingCode(
        "A tokenizer file beside the adapter is invalid JSON or too large, so it was not checked.",
        "Save it again, or leave it out; engines use the base model's tokenizer.",
        "warning",
    ),
    "vocabulary_changed": FindingCode(
        "The adapter adds tokens that the base model does not have. Engines use the base model's tokenizer, "
        "so these tokens are never generated or recognized.",
        "Train without new tokens, or serve a base model that has them.",
    ),
    "chat_template_differs": FindingCode(
        "The adapter's chat template differs from the base model's. Engines use the base model's, so "
        "chats are formatted differently than in training.",
        "Train with the base model's template, or start the engines with `--chat-template`.",
        "warning",
    ),
    "chat_template_unknown": FindingCode(
        "The adapter has a chat template, but Florin does not know the base model's, which engines use, "
        "so it cannot compare them.",
        "Register the engine with `--base-config` and the path of the base model's directory.",
        "warning",
    ),
    "base_revision_unsure": FindingCode(
        "The adapter names a revision of its base model, and Florin cannot tell whether engines serve it.",
        "Compare the revision with the one that engines load.",
        "warning",
    ),
}
"""Code → meaning. The codes are stable, because scripts rely on them. docs/reference/checks.md lists them."""
