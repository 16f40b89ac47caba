"""The ways in which an adapter can fail its checks: one table of what each means and how to fix it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class FindingCode:
    """What a code of the table says."""

    meaning: str
    """What is wrong, in a sentence."""
    remedy: str
    """What to do about it, in a sentence."""
    severity: Literal["error", "warning"] = "error"
    """A warning refuses nothing."""


_SAVE_ANEW = "Save the adapter anew with PEFT's `save_pretrained`."
_COMPLETE = "Copy the file again, and compare its hash with the original's."
_PACK = "Pack the adapter's files alone, in one directory or none."
_PLAIN = "Train it as plain LoRA, or convert it to that with PEFT."
_RIGHT_BASE = "Register it with the fleet of the base model that it was trained on."

CODES: dict[str, FindingCode] = {
    # where it comes from
    "source_unsupported": FindingCode(
        "The source is of no kind that Florin fetches from, or says more or less than such a source does.",
        "Name an absolute path, or a file://, http(s)://, s3:// or hf:// URL.",
    ),
    "directory_missing": FindingCode(
        "The source directory is not there, or is no directory.",
        "Name the directory that holds the adapter's files, as the gateway's host sees it.",
    ),
    "file_missing": FindingCode(
        "adapter_config.json or adapter_model.safetensors is not there.",
        "Put both files into the directory; PEFT's `save_pretrained` writes them.",
    ),
    "not_regular": FindingCode(
        "One of the two files is a directory, a pipe or a device.", "Put the file itself there."
    ),
    "symlink_escapes": FindingCode(
        "One of the two files is a link that leads out of the directory.", "Replace the link by the file."
    ),
    "unreadable": FindingCode(
        "The files cannot be read by Florin.", "Let the gateway's user read the directory and its files."
    ),
    "unsafe_file": FindingCode(
        "The directory holds pickled files, which run code when they are loaded.",
        "Remove them; weights belong into adapter_model.safetensors.",
    ),
    "other_weights": FindingCode(
        "There are weights besides adapter_model.safetensors, which engines would not serve.",
        "Remove them, or merge them into adapter_model.safetensors.",
    ),
    "too_large": FindingCode(
        "The two files together exceed the size limit, or adapter_config.json exceeds its own.",
        "Save the adapter without other weights and in 16 bits, or raise FLORIN_MAX_ADAPTER_BYTES.",
    ),
    "unknown_file": FindingCode(
        "There is a file that Florin does not know, so it cannot say what would be lost without it.",
        "Remove it from the source.",
    ),
    "source_not_public": FindingCode(
        "The URL leads, at once or by a redirect, to an address that is not public.",
        "If it is one of yours, allow its host or network with FLORIN_SOURCE_PRIVATE.",
    ),
    "source_redirect": FindingCode(
        "The server redirects more than 5 times, from https to http, or to another scheme.",
        "Name the URL where the files are.",
    ),
    "source_missing": FindingCode(
        "There is nothing at the source under this name, path or revision.",
        "Compare the name, the path and the revision with what is there.",
    ),
    "source_denied": FindingCode(
        "The source may not be read with the credentials of the gateway.",
        "Give it some that may (.netrc, AWS_*, HF_TOKEN), or accept the gated repository's terms.",
    ),
    "source_offline": FindingCode(
        "HF_HUB_OFFLINE is set, and the files are not in the local cache.",
        "Download the revision into HF_HUB_CACHE, or unset HF_HUB_OFFLINE.",
    ),
    "source_unavailable": FindingCode(
        "The source cannot be reached, or broke off, stalled or failed as often as was tried.",
        "Try again later.",
    ),
    "source_changed": FindingCode(
        "The source was replaced while it was being fetched.",
        "Try again when nobody writes there.",
    ),
    "hash_mismatch": FindingCode(
        "The bytes that came are not those of the hash that the source names.",
        "Compare the hash with the original's; try again.",
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
        "A name in the archive leads out of it by `..`.",
        _PACK,
    ),
    "archive_absolute": FindingCode(
        "A name in the archive is absolute.",
        _PACK,
    ),
    "archive_link": FindingCode(
        "The archive holds a symbolic or hard link.",
        "Pack the files that the links lead to (`tar --dereference`).",
    ),
    "archive_device": FindingCode(
        "The archive holds a device, a pipe, a sparse file or something else that is no plain file.",
        _PACK,
    ),
    "archive_encrypted": FindingCode(
        "The archive is encrypted.",
        "Pack it without a password.",
    ),
    "archive_duplicate": FindingCode(
        "The archive holds a file twice.",
        _PACK,
    ),
    "archive_nested": FindingCode(
        "The files are neither at the top of the archive nor in one directory at its top.",
        _PACK,
    ),
    "archive_entries": FindingCode(
        "The archive has more than 1000 entries.",
        _PACK,
    ),
    "archive_bomb": FindingCode(
        "What comes out of the archive exceeds the limits by far more than its size suggests.",
        _PACK,
    ),
    "digest_mismatch": FindingCode(
        "The files are not the ones whose digest was named.",
        "Look where the source, or the digest, comes from; nothing was registered.",
    ),
    # adapter_config.json
    "config_invalid": FindingCode(
        "adapter_config.json is not one JSON object, or repeats a key.", _SAVE_ANEW
    ),
    "not_lora": FindingCode(
        "`peft_type` is not LORA.", "Train the adapter with LoRA: engines serve no other method."
    ),
    "rank_invalid": FindingCode("`r` is no positive integer.", "Write the rank that it was trained with."),
    "rank_too_high": FindingCode(
        "`r`, or a rank in `rank_pattern`, exceeds what the fleet's engines take.",
        "Start an engine with a higher --max-lora-rank, or reduce the rank (by SVD, or by training anew).",
    ),
    "alpha_invalid": FindingCode(
        "`lora_alpha` is no finite number above zero.", "Write the alpha that it was trained with."
    ),
    "pattern_invalid": FindingCode(
        "`rank_pattern` or `alpha_pattern` is not a small map from module names to numbers.",
        "Write the modules' names out instead of expressions.",
    ),
    "target_modules_invalid": FindingCode(
        "`target_modules` is missing, empty, or neither a text nor a list of texts.",
        "List the modules that it was trained on.",
    ),
    "unsupported_feature": FindingCode(
        "The adapter uses a PEFT feature that engines refuse, or wrongly ignore.", _PLAIN
    ),
    # the base model
    "base_ambiguous": FindingCode(
        "No base model was named, and there is not exactly one.", "Name the base model (`--base-model`)."
    ),
    "base_unnamed": FindingCode(
        "`base_model_name_or_path` is missing, so nothing says what the adapter was trained on.",
        "Write it into adapter_config.json, or take responsibility with `--assume-base`.",
    ),
    "base_mismatch": FindingCode(
        "The adapter was trained on another base model.",
        f"{_RIGHT_BASE} If it is the same model under another name: `--assume-base`, or an engine's alias.",
    ),
    "base_config_missing": FindingCode(
        "Florin does not have the base model's config.json, so shapes cannot be checked.",
        "Register the engine with `--base-config`, the path of the model's config.json.",
    ),
    "base_config_invalid": FindingCode(
        "The base model's config.json lacks a dimension, or has an absurd one.",
        "Register the engine with the config.json that it serves.",
    ),
    "unknown_architecture": FindingCode(
        "Florin does not know the base model's architecture, so cannot check shapes.",
        "Serve a base model of a known architecture: the finding lists them.",
    ),
    # adapter_model.safetensors
    "header_invalid": FindingCode(
        "The safetensors header is corrupt, or does not fit the file's length.", _COMPLETE
    ),
    "no_tensors": FindingCode(
        "The file holds no LoRA weights.", "Save the adapter itself, not the model that it is merged into."
    ),
    "tensor_name_invalid": FindingCode("A tensor is not named as PEFT names LoRA weights.", _SAVE_ANEW),
    "tensor_unpaired": FindingCode("A lora_A has no lora_B, or the other way round.", _SAVE_ANEW),
    "dtype_unsupported": FindingCode(
        "A tensor is neither float16, bfloat16 nor float32.", "Save the weights in one of these types."
    ),
    "module_not_in_base": FindingCode(
        "A tensor belongs to a module that the base lacks, or that engines cannot adapt.",
        f"{_RIGHT_BASE} Or train it without that module: engines would pass over it silently.",
    ),
    "layer_out_of_range": FindingCode(
        "A tensor belongs to a layer that the base does not have.", _RIGHT_BASE
    ),
    "shape_mismatch": FindingCode(
        "A tensor's shape does not fit the base model and the rank.",
        f"{_RIGHT_BASE} Engines would fill up what is too small with zeros, silently.",
    ),
    "module_not_targeted": FindingCode(
        "A tensor belongs to a module that `target_modules` does not name.",
        "Put config and weights of one training run together.",
    ),
    "target_without_tensors": FindingCode(
        "`target_modules` names a module of the base for which there are no tensors.",
        "Put config and weights of one training run together.",
    ),
    "mixed_dtypes": FindingCode(
        "The weights are of several types; engines convert all of them to one.",
        "Save the weights in one type.",
        "warning",
    ),
    "weights_not_finite": FindingCode(
        "A weight is NaN or infinite: every answer would be noise, or empty.",
        "Train it anew from the last checkpoint whose weights are finite, at a lower learning rate.",
    ),
    "weights_overflow": FindingCode(
        "Weights, or weights times alpha / rank, exceed the range of the base model's type: in engines they "
        "become infinite.",
        "Correct `lora_alpha`; or serve the base model in bfloat16.",
    ),
    "no_effect": FindingCode(
        "All of lora_A or all of lora_B is zero in every module: the adapter answers as the base model.",
        "Save the adapter after training, not before.",
    ),
    "module_without_effect": FindingCode(
        "In some modules all of lora_A or all of lora_B is zero, so these change nothing.",
        "Look whether training reached them; a zero lora_B is how PEFT begins.",
        "warning",
    ),
    "scaling_extreme": FindingCode(
        "alpha / rank is far from what training uses, so the adapter drowns the base model or hardly counts.",
        "Compare `lora_alpha`, `r` and `use_rslora` with those of the training run.",
        "warning",
    ),
    # beside the two files
    "file_invalid": FindingCode(
        "A tokenizer file beside the adapter is no sound JSON, or too large: it could not be checked.",
        "Save it anew, or leave it out: engines use the base model's tokenizer.",
        "warning",
    ),
    "vocabulary_changed": FindingCode(
        "The adapter came with tokens that the base model does not have; engines use the base's tokenizer, "
        "so these tokens are never produced nor understood.",
        "Train without new tokens, or serve a base model that has them.",
    ),
    "chat_template_differs": FindingCode(
        "The adapter came with another chat template than the base model's. Engines render the base's, so "
        "chats reach the adapter in another form than it was trained on.",
        "Train with the base's template, or start the engines with `--chat-template`.",
        "warning",
    ),
    "chat_template_unknown": FindingCode(
        "The adapter came with a chat template, and Florin does not know the base model's to compare with, "
        "which is the one that engines render.",
        "Register the engine with `--base-config`, the path of the base model's directory.",
        "warning",
    ),
    "base_revision_unsure": FindingCode(
        "The adapter names a revision of its base model, and nothing says that engines serve this one.",
        "Compare the revision with the one that engines load.",
        "warning",
    ),
}
"""Code → what it means. Stable: people script against the codes. docs/reference/checks.md lists them."""
