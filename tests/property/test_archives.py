"""Whatever an archive holds: only known files land, under their own names, whole and within their limits."""

from __future__ import annotations

import io
import tarfile
import tempfile
import zipfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from adapters.checks.file_kinds import FILES, KNOWN, limit_of
from adapters.checks.findings import Findings
from adapters.sources import archive
from tests.support.search import examples

LIMIT = 20_000
TAR_KINDS = (
    tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE,
    tarfile.FIFOTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, b"Z",
)  # fmt: skip

parts = st.sampled_from(["..", ".", "", "a", "b", "/", "C:", "\\", "._x", "__MACOSX", "é", "\x01"])
bases = st.sampled_from([*KNOWN, *FILES, *FILES, "README.md", "x.bin", "x.safetensors", "run.sh", "", ".."])
names = st.one_of(
    bases,
    st.builds(lambda before, base: "/".join([*before, base]), st.lists(parts, max_size=3), bases),
    st.text(max_size=20).filter(lambda text: "\0" not in text and text.isprintable()),
)
contents = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), st.integers(0, 100_000)),
)
members = st.lists(
    st.tuples(names, contents, st.sampled_from([tarfile.REGTYPE] * 8 + list(TAR_KINDS))), max_size=8
)
honest = st.tuples(
    st.sampled_from(["", "a/", "./"]),
    st.dictionaries(bases.filter(bool), st.binary(max_size=300), max_size=4),
)


def check(data: bytes, meant: dict[str, set[bytes]]) -> list[str]:
    """Unpacks, and holds it to the promises. `meant`: by base name, the contents that the archive has."""
    with tempfile.TemporaryDirectory() as folder:
        box = Path(folder)
        (box / "archive").write_bytes(data)
        (box / "files").mkdir()
        findings = Findings()
        archive.unpack(box / "archive", box / "files", max_bytes=LIMIT, findings=findings)
        assert {path.name for path in box.iterdir()} == {"archive", "files"}
        for path in (box / "files").iterdir():
            assert path.is_file()
            assert not path.is_symlink()
            assert path.stat().st_size <= limit_of(path.name, LIMIT) or findings
            assert findings or path.read_bytes() in meant[path.name]
        if not findings:
            landed = [box / "files" / name for name in FILES]
            assert sum(path.stat().st_size for path in landed) <= LIMIT
        return [finding.code for finding in findings.all()]


def meant(packed) -> dict[str, set[bytes]]:
    found: dict[str, set[bytes]] = {}
    for name, content, _ in packed:
        found.setdefault(name.replace("\\", "/").rpartition("/")[2], set()).add(content)
    return found


def tarred(packed, mode: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as out:
        for name, content, kind in packed:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            member.size = len(content)
            out.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@examples(40)
@given(members, st.sampled_from(["w", "w:gz", "w:xz"]))
def test_tars(packed, mode):
    check(tarred(packed, mode), meant(packed))


@examples(40)
@given(members, st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
def test_zips(packed, method):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as out:
        for name, content, kind in packed:
            info = zipfile.ZipInfo(name or "x")
            if kind == tarfile.SYMTYPE:
                info.external_attr = 0o120777 << 16
            if f"{info.filename}" not in out.namelist():
                out.writestr(info, content)
    check(buffer.getvalue(), meant(packed))


@given(members, st.sampled_from(["w", "w:gz", "w:xz"]), st.data())
@examples(60)
def test_damaged_tars(packed, mode, data):
    """A plain tar has checksums over its headers only; what lies in a compressed one is all under one."""
    whole = bytearray(tarred(packed, mode))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "files").mkdir()
        (Path(folder) / "archive").write_bytes(whole[:cut])
        archive.unpack(Path(folder) / "archive", Path(folder) / "files", max_bytes=LIMIT, findings=Findings())
        assert {path.name for path in Path(folder).iterdir()} == {"archive", "files"}
        assert {path.name for path in (Path(folder) / "files").iterdir()} <= set(KNOWN)


@examples(40)
@given(
    st.binary(max_size=3000),
    st.sampled_from([b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b\x08", b"\xfd7zXZ\x00"]),
)
def test_rubbish_that_begins_well(rubbish, magic):
    assert check(magic + rubbish, {})


@examples(40)
@given(honest, st.sampled_from(["w", "w:gz", "w:xz"]))
def test_sound_ones_are_taken_and_what_lies_beside_them_is_named(content, mode):
    top, files = content
    files = {**dict.fromkeys(FILES, b"{}"), **{name: data for name, data in files.items() if name != ".."}}
    packed = [(top + name, data, tarfile.REGTYPE) for name, data in files.items()]
    codes = set(check(tarred(packed, mode), meant(packed)))
    strays = {"x.bin": "other_weights", "x.safetensors": "other_weights", "run.sh": "files_ignored"}
    assert codes == {strays[name] for name in files if name in strays}
