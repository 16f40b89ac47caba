"""What every source has in common: which schemes there are, what may be shown, where URLs may lead, and how
files land."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adapters import sources
from adapters.checks.file_kinds import FILES, KNOWN, FileKind, kind_of
from adapters.checks.findings import CODES, Findings
from adapters.progress import ProgressMeter
from adapters.sources.options import FetchOptions
from adapters.sources.public_uri import led_to, public
from adapters.sources.staging_area import SourceRefusedError, StagingArea, check_space
from adapters.sources.url_policy import Allowed
from tests.support.archives import CONFIG, WEIGHTS, adapter_files, tar_bytes

FOLDER = Path(__file__).parents[4] / "adapters" / "sources"
FETCH = "\ndef fetch("
HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("/srv/adapters/support", "/srv/adapters/support"),
        ("/srv/a@b?c", "/srv/a@b?c"),
        ("support", "support"),
        ("file:///srv/x", "file:///srv/x"),
        ("file://me:secret@host/x", "file://host/x"),
        ("https://h/a/b.tar.gz", "https://h/a/b.tar.gz"),
        ("HTTPS://me:secret@h:8443/a?sig=secret#secret", "https://h:8443/a"),
        (f"https://h/a?sig=secret#sha256={HEX}", f"https://h/a#sha256={HEX}"),
        ("https://me:secret@secret@h/a", "https://h/a"),
        ("https://h@secret", "https://secret"),
        ("http:secret", "http:…"),
        ("http:/me:secret@h/", "http:…"),
        ("s3://bucket/a b/c", "s3://bucket/a b/c"),
        ("s3://KEY:secret@bucket/a", "s3://bucket/a"),
        ("s3://KEY:secret/secret@bucket/a", "s3://…"),
        ("https://me:secret/secret@h/a", "https://…"),
        ("https://me:secret#secret@h/a", "https://…"),
        ("https://me:secret?secret@h/a", "https://…"),
        ("https:///me:secret@h/a", "https://…"),
        ("http://[::1]:8080/a@b", "http://[::1]:8080/a@b"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("az://KEY:secret@container/a", "az://container/a"),
        ("oci://me:secret@h:5000/a/b:v1", "oci://h:5000/a/b:v1"),
        (f"oci://h/a@sha256:{HEX}", f"oci://h/a@sha256:{HEX}"),
        ("oci://me:secret/secret@h/a", "oci://…"),
        ("models:/a b@champion", "models:/a b@champion"),
        ("models:/me:secret@h", "models:…"),
        ("hf://acme/support@main/x", "hf://acme/support@main/x"),
        ("hf://hf_secret@acme/support", "hf://acme/support"),
        ("ftp://me:secret@h/x", "ftp:…"),
        ("me:secret@h/x", "me:…"),
        ("1me:secret@h/x", "…"),
        ("//me:secret@h/x", "…"),
        ("http://[secret", "?:…"),
        (" https://me:secret@h/", "https:…"),
        ("ht\ntps://me:secret@h/", "https:…"),
        ("x?token=secret", "…"),
    ],
)
def test_what_may_be_shown(uri, shown):
    assert public(uri) == shown


COMMIT, OTHER = "0123456789" * 4, "f" * 40


@pytest.mark.parametrize(
    ("uri", "found", "same"),
    [
        ("hf://acme/x", f"hf://acme/x@{COMMIT}", True),
        ("hf://acme/x@main", f"hf://acme/x@{COMMIT}", True),
        ("hf://acme/x@refs/pr/1/a/b/", f"hf://acme/x@{COMMIT}/a/b", True),
        (f"hf://acme/x@{COMMIT}", f"hf://acme/x@{COMMIT}", True),
        (f"hf://acme/x@{OTHER}", f"hf://acme/x@{COMMIT}", False),
        ("hf://acme/x", f"hf://acme/y@{COMMIT}", False),
        ("hf://acme/x/a", f"hf://acme/x@{COMMIT}/b", False),
        ("hf://acme/x@v2", "hf://acme/x@v1", False),
        ("/c/models--acme--x", f"/c/models--acme--x/snapshots/{COMMIT}", True),
        ("file:///c/models--acme--x/", f"/c/models--acme--x/snapshots/{COMMIT}", True),
        ("/c/models--acme--x", f"/c/models--acme--y/snapshots/{COMMIT}", False),
        ("/c/x", "/c/x/snapshots/v1", False),
        ("oci://h/a:v1", f"oci://h/a@sha256:{HEX}", True),
        ("oci://h/a", f"oci://h/a@sha256:{HEX}", True),
        ("oci://h/b:v1", f"oci://h/a@sha256:{HEX}", False),
        (f"oci://h/a@sha256:{HEX[::-1]}", f"oci://h/a@sha256:{HEX}", False),
        ("models:/a@champion", "models:/a/3", True),
        ("models:/a/2", "models:/a/3", False),
        ("https://h/a?sig=1", "https://h/a", True),
        ("https://h/a", "https://h/b", False),
        ("hf://acme/x" + "/" * 4000 + "\n", f"hf://acme/x@{COMMIT}", False),
    ],
)
def test_where_a_source_has_led(uri, found, same):
    assert led_to(uri, found) is same


@pytest.mark.parametrize(
    "uri", ["ftp://me:secret@h/x", "swift://b/x", "data:secret", "http://[secret", "../x", ""]
)
def test_other_schemes(tmp_path, uri):
    findings = Findings()
    shown = sources.fetch(uri, tmp_path, options=FetchOptions(max_bytes=1), findings=findings)
    assert [finding.code for finding in findings.all()] == ["source_unsupported"]
    assert "secret" not in shown + str(findings.all())


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.255.255.254", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "192.88.99.1", "198.18.0.1",
        "203.0.113.5", "224.0.0.1", "240.0.0.1", "255.255.255.255",
        "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
        "2002:7f00:1::", "2002:808:808::1", "3fff::1", "2001:0:808:808::f5ff:fffe", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1",
        "ff02::1", "2001:db8::1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address):
    with pytest.raises(SourceRefusedError) as refusal:
        Allowed().check("h.example", address)
    assert refusal.value.code == "source_not_public"


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"],
)
def test_addresses_that_are(address):
    Allowed().check("h.example", address)


def test_what_is_allowed_besides():
    allowed = Allowed.parse(["10.0.0.0/8", "192.168.1.1", "fd00::/8", "Models.internal", "127.0.0.0/8"])
    for host, address in [
        ("x", "10.1.2.3"),
        ("x", "::ffff:10.1.2.3"),
        ("x", "192.168.1.1"),
        ("x", "fd00::1"),
        ("models.INTERNAL.", "172.16.0.1"),
        ("x", "8.8.8.8"),
    ]:
        allowed.check(host, address)
    for host, address in [("x", "192.168.1.2"), ("a.models.internal", "172.16.0.1"), ("x", "fe80::1")]:
        with pytest.raises(SourceRefusedError):
            allowed.check(host, address)


@pytest.mark.parametrize("entry", ["", "10.0.0.0/33", "10.0.0.1/8", "http://h", "a b", "h:80", "[::1]"])
def test_entries_that_are_no_hosts(entry):
    with pytest.raises(ValueError, match="neither"):
        Allowed.parse([entry])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, FileKind.KNOWN) for name in KNOWN),
        *((name, FileKind.PASSED_OVER) for name in ("README.md", "LICENSE", "NOTICE.txt", ".gitattributes")),
        *((name, FileKind.PASSED_OVER) for name in ("trainer_state.json", "tokenizer.model", "card.MD")),
        *((name, FileKind.PASSED_OVER) for name in ("optimizer.pt", "rng_state_3.pth", "training_args.bin")),
        *((name, FileKind.PASSED_OVER) for name in ("adapter_model.bin", "adapter_model.pt")),
        *((name, FileKind.WEIGHTS) for name in ("optimizer.pt.bin", "rng_state_.pth", "my_optimizer.pt")),
        *((name, FileKind.WEIGHTS) for name in ("adapter_0.pt", "x.PT", "a.pkl", "README.pkl")),
        *((name, FileKind.WEIGHTS) for name in ("model.safetensors", "Adapter_Model.SafeTensors", "x.gguf")),
        *((name, FileKind.UNKNOWN) for name in ("x", "run.py", "", "adapter_config.json.bak", "readme.sh")),
    ],
)
def test_the_table_of_files(name, kind):
    assert kind_of(name) is kind


@pytest.fixture
def fetch(tmp_path):
    def run(source: Path | str, limit: int = 10_000_000, progress=lambda *_: None):
        destination = tmp_path / "box" / "files"
        destination.mkdir(parents=True, exist_ok=True)
        findings = Findings()
        options = FetchOptions(max_bytes=limit, progress=progress)
        shown = sources.fetch(str(source), destination, options=options, findings=findings)
        landed = {path.name: path.read_bytes() for path in destination.iterdir()}
        for path in destination.iterdir():
            path.unlink()
        return [finding.code for finding in findings.all()], landed, shown

    return run


def test_a_directory(fetch, tmp_path):
    files = adapter_files(tmp_path)
    directory = tmp_path / "packed-0"
    (directory / "tokenizer_config.json").write_text("{}")
    (directory / "README.md").write_text("#")
    (directory / "checkpoint-1").mkdir()
    (directory / "checkpoint-1" / "optimizer.pt").write_text("x")
    told = []
    for source in (str(directory), f"file://{directory}", f"FILE:{directory}"):
        codes, landed, _ = fetch(source, progress=lambda *step: told.append(step))
        assert (codes, landed) == ([], {**files, "tokenizer_config.json": b"{}"})
    total = sum(map(len, files.values())) + 2
    assert told[-1] == ("fetch", total, total)


def test_what_may_not_be_copied_of_a_directory(fetch, tmp_path):
    adapter_files(tmp_path)
    directory = tmp_path / "packed-0"
    secret = tmp_path / "secret"
    secret.write_text("{}")
    template = directory / "chat_template.jinja"
    template.symlink_to(secret)
    assert fetch(directory)[:2] == (["symlink_escapes"], {})
    template.unlink()
    os.mkfifo(template)
    assert fetch(directory)[:2] == (["not_regular"], {})
    template.unlink()
    template.write_bytes(bytes(2 * 1024 * 1024))
    assert fetch(directory)[0] == ["too_large"]
    template.unlink()
    os.truncate(directory / WEIGHTS, 1 << 40)  # a hole, which takes no room here but would there
    assert fetch(directory, limit=1 << 30)[0] == ["too_large"]


def test_an_archive_of_this_host(fetch, tmp_path):
    files = adapter_files(tmp_path)
    packed = tmp_path / "support.tar.gz"
    packed.write_bytes(tar_bytes(files))
    assert fetch(packed)[:2] == ([], files)
    assert fetch(f"file://{packed}")[:2] == ([], files)
    assert fetch(tmp_path / "nothing.tar")[0] == ["directory_missing"]
    os.mkfifo(tmp_path / "pipe")
    assert fetch(tmp_path / "pipe")[0] == ["directory_missing"]


def test_landing_counts_what_it_writes(tmp_path):
    staging = StagingArea(tmp_path, 100)
    assert staging.write(CONFIG, [b"x" * 40]) == 40
    assert staging.limit(WEIGHTS) == 60
    with pytest.raises(SourceRefusedError) as refusal:
        staging.write(WEIGHTS, iter([b"x" * 60, b"x"]))
    assert refusal.value.code == "too_large"
    with pytest.raises(SourceRefusedError) as refusal:
        staging.write("chat_template.jinja", iter([bytes(1 << 20), b"x"]), packed=100)
    assert refusal.value.code == "archive_bomb"


def test_a_disk_without_room_is_an_error_of_this_side(tmp_path, monkeypatch):
    check_space(tmp_path, 0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1 << 30}))
    check_space(tmp_path, (1 << 30) - (64 << 20))
    with pytest.raises(OSError, match="No space left"):
        check_space(tmp_path, (1 << 30) - (64 << 20) + 1)


def test_progress_is_neither_flooded_nor_starved(monkeypatch):
    now, told = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    meter = ProgressMeter("fetch", lambda *step: told.append(step), 1 << 20)
    for _ in range(1024):
        meter.add(1024)
    assert told == [("fetch", n << 18, 1 << 20) for n in (1, 2, 3, 4)]
    now[0] = 0.1
    meter.tick()
    assert told[-1] == told[-2]
    meter.tick()
    assert len(told) == 5


def test_every_module_that_fetches_has_its_scheme():
    found = {f"adapters.sources.{path.stem}" for path in FOLDER.glob("[!_]*.py") if FETCH in path.read_text()}
    assert found == set(sources.SCHEMES.values())


def test_every_code_of_the_sources_has_its_row():
    text = "".join(path.read_text() for path in FOLDER.glob("*.py"))
    mine = [code for code in CODES if code.startswith(("source_", "archive_", "hash_"))]
    assert len(mine) == 19
    assert not [code for code in mine if f'"{code}"' not in text]
    assert set(FILES) < set(KNOWN)
