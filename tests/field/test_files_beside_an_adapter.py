"""Files beside an adapter neither refuse it nor come along, whether it lies in a directory or in an archive.

Source: a survey of adapters in public repositories.
Sent: adapters with `metrics.json`, `inference.py`, `requirements.txt`, a notebook, a PDF, `runs/`, `checkpoint-300/`
and a pickled copy of the weights beside them; adapters in `train/` or `final_adapter/`; as a directory, a tar, a zip.
Right: the two files and the tokenizer's are taken and nothing else, the unknown files are named in a warning, the
digest is that of the two files; an adapter in the only folder that has one is found, and of several none is guessed.
Why: all 22 repositories looked at were refused for a file that no engine opens, and an archive for a folder that
passed in a directory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters import sources
from adapters.checks.findings import Findings
from adapters.errors import Finding
from adapters.registry.artifacts import digest_of
from adapters.sources.options import FetchOptions
from tests.support.archives import adapter_files, tar_bytes, zip_bytes

UNKNOWN = ("Report.pdf", "inference.py", "metrics.json", "requirements.txt", "train.ipynb")
BESIDE = {
    **dict.fromkeys(UNKNOWN, b"x"),
    "README.md": b"#",
    "adapter_model.bin": b"x",
    "training_args.bin": b"x",
    "runs/host/events.out.tfevents.1": b"x",
    "checkpoint-300/adapter_config.json": b"{}",
    "checkpoint-300/adapter_model.safetensors": b"x",
    "checkpoint-300/optimizer.pt": b"x",
}
FORMS = ("directory", "tar", "zip", "tar of a folder", "tar, deepest first")


@pytest.fixture
def fetch(tmp_path: Path) -> Callable[..., tuple[list[Finding], Path]]:
    """Takes an adapter's files from a directory or an archive of this form."""
    count = itertools.count()

    def run(files: dict[str, bytes], form: str) -> tuple[list[Finding], Path]:
        source, destination = tmp_path / f"source-{next(count)}", tmp_path / f"box-{next(count)}" / "files"
        destination.mkdir(parents=True)
        if form == "directory":
            for name, content in files.items():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                (source / name).write_bytes(content)
        elif form == "zip":
            source.write_bytes(zip_bytes(files))
        else:
            around = "out/" if "folder" in form else ""
            names = sorted(files, key=lambda name: -name.count("/")) if "deepest" in form else files
            source.write_bytes(tar_bytes({around + name: files[name] for name in names}))
        findings = Findings()
        options = FetchOptions(max_bytes=10_000_000)
        sources.fetch(str(source), destination, options=options, findings=findings)
        return list(findings.all()), destination

    return run


@pytest.mark.parametrize("form", FORMS)
def test_what_lies_beside_an_adapter_is_ignored_and_named(tmp_path, fetch, form):
    files = adapter_files(tmp_path) | {"tokenizer_config.json": b"{}"}
    findings, taken = fetch({**BESIDE, **files}, form)
    assert [(finding.code, finding.severity) for finding in findings] == [("files_ignored", "warning")]
    assert findings[0].found == ", ".join(map(repr, UNKNOWN))
    assert {path.name: path.read_bytes() for path in taken.iterdir()} == files
    assert digest_of(taken) == digest_of(tmp_path / "packed-0")


@pytest.mark.parametrize("form", FORMS)
def test_an_adapter_in_the_only_folder_that_has_one_is_found(tmp_path, fetch, form):
    files = adapter_files(tmp_path)
    findings, taken = fetch(
        {"tokenizer.json": b"{}", "eval/metrics.json": b"{}"}
        | {f"train/{name}": files[name] for name in files},
        form,
    )
    assert findings == []
    assert {path.name: path.read_bytes() for path in taken.iterdir()} == files


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("folders", "remedy"),
    [
        (("final_adapter", "train"), "'final_adapter', 'train'"),
        (("checkpoint-90", "checkpoint-300"), "checkpoint-300."),
    ],
)
def test_of_several_folders_none_is_guessed(tmp_path, fetch, form, folders, remedy):
    files = adapter_files(tmp_path)
    findings, _ = fetch({f"{folder}/{name}": files[name] for folder in folders for name in files}, form)
    assert {finding.code for finding in findings} == {"file_missing"}
    assert remedy in findings[0].remedy
