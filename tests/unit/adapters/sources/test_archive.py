"""Archives from anybody: what is sound comes out whole, and each kind of trick has its own refusal."""

from __future__ import annotations

import gzip
import io
import itertools
import lzma
import struct
import tarfile
import tracemalloc
import zipfile

import pytest

from adapters.checks.findings import Findings
from adapters.sources import archive
from tests.support.archives import CONFIG, WEIGHTS, adapter_files, add, tar_bytes, zip_bytes

LIMIT = 10_000_000
MEBIBYTE = bytes(1 << 20)


@pytest.fixture
def files(tmp_path):
    return adapter_files(tmp_path)


@pytest.fixture
def unpack(tmp_path):
    """Unpacks bytes; the codes found, and what then lies in the destination."""
    count = iter(range(1000))

    def run(data: bytes, *, limit: int = LIMIT, progress=None) -> tuple[list[str], dict[str, bytes]]:
        box = tmp_path / f"box-{next(count)}"
        destination = box / "files"
        destination.mkdir(parents=True)
        (box / "archive").write_bytes(data)
        findings = Findings()
        more = {} if progress is None else {"progress": progress}
        archive.unpack(box / "archive", destination, max_bytes=limit, findings=findings, **more)
        assert {path.name for path in box.iterdir()} == {"archive", "files"}
        return [f.code for f in findings.all()], {p.name: p.read_bytes() for p in destination.iterdir()}

    return run


def tar_with(*members, mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as packed:
        for name, content, fields in members:
            add(packed, name, content, **fields)
    return buffer.getvalue()


@pytest.mark.parametrize("top", ["", "./", "support/", "./support/"])
@pytest.mark.parametrize("kind", ["w", "w:gz", "w:xz", "zip", "stored", "gnu", "ustar"])
def test_what_honest_packers_write_comes_out_whole(files, unpack, kind, top):
    packed = {f"{top}{name}": content for name, content in files.items()}
    packed[f"{top}README.md"] = b"# support\n"
    packed[f"{top}tokenizer_config.json"] = b"{}"
    if kind in ("zip", "stored"):
        data = zip_bytes(packed, method=zipfile.ZIP_STORED if kind == "stored" else zipfile.ZIP_DEFLATED)
    elif kind in ("gnu", "ustar"):
        form = tarfile.GNU_FORMAT if kind == "gnu" else tarfile.USTAR_FORMAT
        data = tar_bytes(packed, mode="w:gz", pax=form)
    else:
        data = tar_bytes(packed, mode=kind)
    assert unpack(data) == ([], {**files, "tokenizer_config.json": b"{}"})


def test_directories_and_the_attributes_of_a_desktop_are_passed_over(files, unpack):
    inside = [(f"a/{name}", content, {}) for name, content in files.items()]
    data = tar_with(("a", b"", {"type": tarfile.DIRTYPE}), ("._a", b"x", {}), ("a/._b", b"x", {}), *inside)
    assert unpack(data) == ([], files)
    packed = {f"a/{name}": content for name, content in files.items()}
    assert unpack(zip_bytes({"__MACOSX/a/._b": b"x", **packed})) == ([], files)


def test_several_streams_and_padding_after_the_last_are_part_of_gzip_and_xz(files, unpack):
    plain = tar_bytes(files, mode="w")
    half = len(plain) // 2
    for pack in (gzip.compress, lzma.compress):
        data = pack(plain[:half]) + bytes(8) + pack(plain[half:])
        assert unpack(data + bytes(512)) == ([], files)
        assert unpack(data + b"rubbish")[0] == ["archive_corrupt"]


SLIPS = ["../{}", "a/../../{}", "a/..", "..\\{}", "./../{}"]
ABSOLUTES = ["/{}", "/etc/{}", "\\{}", "C:\\{}", "c:{}", "//host/{}"]


@pytest.mark.parametrize(
    ("name", "code"),
    [*((name, "archive_traversal") for name in SLIPS), *((name, "archive_absolute") for name in ABSOLUTES)],
)
def test_names_that_lead_elsewhere(files, unpack, name, code):
    packed = {name.format(WEIGHTS): files[WEIGHTS], CONFIG: files[CONFIG]}
    assert unpack(tar_bytes(packed))[0] == [code]
    assert unpack(zip_bytes(packed))[0] == [code]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (tarfile.SYMTYPE, "archive_link"),
        (tarfile.LNKTYPE, "archive_link"),
        (tarfile.CHRTYPE, "archive_device"),
        (tarfile.BLKTYPE, "archive_device"),
        (tarfile.FIFOTYPE, "archive_device"),
        (tarfile.CONTTYPE, "archive_device"),
        (b"V", "archive_device"),
    ],
)
def test_what_is_no_plain_file_in_a_tar(files, unpack, kind, code):
    data = tar_with((WEIGHTS, b"", {"type": kind, "linkname": "/etc/passwd"}), (CONFIG, files[CONFIG], {}))
    assert unpack(data)[0] == [code]


@pytest.mark.parametrize(("mode", "code"), [(0o120777, "archive_link"), (0o010644, "archive_device")])
def test_what_is_no_plain_file_in_a_zip(files, unpack, mode, code):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        info = zipfile.ZipInfo(WEIGHTS)
        info.external_attr = mode << 16
        packed.writestr(info, "/etc/passwd")
    assert unpack(buffer.getvalue())[0] == [code]


def test_a_name_that_is_empty(unpack):
    buffer = io.BytesIO()
    info = zipfile.ZipInfo("x")
    info.filename = ""
    with zipfile.ZipFile(buffer, "w") as packed, packed.open(info, "w") as entry:
        entry.write(b"1")
    assert unpack(buffer.getvalue())[0] == ["archive_corrupt"]


def test_sparse_files(files, unpack):
    fields = {"pax_headers": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": WEIGHTS}}
    sparse = tar_with((WEIGHTS, b"1\n0\n9\n".ljust(512, b"\0") + b"x" * 9, fields))
    assert unpack(sparse)[0] == ["archive_device"]


def test_an_endless_sparse_map_is_no_work(unpack):
    fields = {"pax_headers": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": WEIGHTS}}
    assert unpack(tar_with((WEIGHTS, b"9" * 4_000_000, fields)))[0] == ["archive_corrupt"]


def encrypted(data: bytes, bit: int) -> bytes:
    """The zip with that bit in the flags of its last entry's central record."""
    at = data.rindex(b"PK\x01\x02") + 8
    return data[:at] + struct.pack("<H", struct.unpack_from("<H", data, at)[0] | bit) + data[at + 2 :]


def test_encrypted_zips(files, unpack):
    for bit in (0x1, 0x40, 0x2000):
        assert unpack(encrypted(zip_bytes(files), bit))[0] == ["archive_encrypted"]


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_methods_with_unbounded_memory(files, unpack, method):
    assert unpack(zip_bytes(files, method=method))[0] == ["archive_unsupported"]


@pytest.mark.parametrize("data", [b"", b"BZh9", b"7z\xbc\xaf\x27\x1c", b"Rar!", b"{}", b"\x28\xb5\x2f\xfd"])
def test_other_kinds_of_files(unpack, data):
    assert unpack(data)[0] == ["archive_unsupported"]


def test_files_that_come_twice(files, unpack):
    again = (f"./{CONFIG}", b"{}", {})
    data = tar_with(*((name, content, {}) for name, content in files.items()), again)
    assert unpack(data)[0] == ["archive_duplicate"]
    assert unpack(zip_bytes({**files, f"./{CONFIG}": b"{}"}))[0] == ["archive_duplicate"]


@pytest.mark.parametrize(
    "names", [("a/{}", "b/{}"), ("{}", "a/{}"), ("a/b/c/{}", "a/b/c/{}"), ("a/{}", "a/b/{}")]
)
def test_the_two_files_in_different_places_are_no_adapter(files, unpack, names):
    packed = {name.format(part): files[part] for name, part in zip(names, files, strict=True)}
    for data in (tar_bytes(packed), zip_bytes(packed)):
        assert set(unpack(data)[0]) == {"file_missing"}


def test_too_many_entries(files, unpack):
    packed = {**files, **{f"README-{i}.md": b"" for i in range(archive.MAX_ENTRIES)}}
    assert unpack(tar_bytes(packed))[0] == ["archive_entries"]
    assert unpack(zip_bytes(packed))[0] == ["archive_entries"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("pytorch_model.bin", "other_weights"),
        ("model.safetensors", "other_weights"),
        ("run.sh", "files_ignored"),
        ("Adapter_config.json", "files_ignored"),
        ("adapter_config.json ", "files_ignored"),
        ("\u0430dapter_config.json", "files_ignored"),
    ],
)
def test_anything_but_the_known_files_is_left_in_the_archive(files, unpack, name, code):
    for data in (tar_bytes({**files, name: b"x"}), zip_bytes({**files, name: b"x"})):
        assert unpack(data) == ([code], files)


def test_an_archive_without_the_files(files, unpack):
    assert unpack(tar_bytes({CONFIG: files[CONFIG]}))[0] == ["file_missing"]
    assert unpack(zip_bytes({"README.md": b""}))[0] == ["file_missing"] * 2
    assert unpack(zip_bytes({CONFIG: b"{}", "adapter_model.bin": b""}))[0] == ["unsafe_file", "file_missing"]


def test_bombs_are_refused_before_they_have_grown(files, unpack):
    zeros = bytes(LIMIT + 1)
    assert unpack(tar_bytes({**files, WEIGHTS: zeros}))[0] == ["archive_bomb"]
    assert unpack(zip_bytes({**files, WEIGHTS: zeros}))[0] == ["archive_bomb"]
    assert unpack(zip_bytes({**files, "README.md": zeros})) == ([], files)  # it never comes out
    for name in (CONFIG, "chat_template.jinja"):
        assert unpack(zip_bytes({**files, name: zeros}))[0] == ["archive_bomb"]
        assert unpack(tar_bytes({**files, name: zeros}))[0] == ["archive_bomb"]
    readme = lzma.compress(raw_header("README.md", 112 << 20, b"0")) + lzma.compress(MEBIBYTE) * 112
    assert unpack(readme + lzma.compress(tar_bytes(files, mode="w")))[0] == ["archive_bomb"]


def test_a_trailing_flood_is_counted_too(files, unpack):
    flood = gzip.compress(tar_bytes(files, mode="w")) + gzip.compress(MEBIBYTE) * 112
    assert unpack(flood)[0] == ["archive_bomb"]


def test_honest_size_is_another_reason(files, unpack):
    for data in (tar_bytes(files, mode="w"), zip_bytes(files, method=zipfile.ZIP_STORED)):
        codes, _ = unpack(data, limit=1000)
        assert codes == ["too_large"]
        total = sum(map(len, files.values()))
        assert unpack(data, limit=total) == ([], files)
        assert unpack(data, limit=total - 1)[0] == ["too_large"]


def test_a_zip_that_lies_about_its_sizes(files, unpack):
    """The first file says it is short; what follows would come out as well, were its word taken."""
    data = zip_bytes({WEIGHTS: files[WEIGHTS] + b"x" * 5000, CONFIG: files[CONFIG]})
    at = data.index(b"PK\x01\x02") + 24
    lie = data[:at] + struct.pack("<I", len(files[WEIGHTS])) + data[at + 4 :]
    assert unpack(lie)[0] == ["archive_corrupt"]
    lie = data[:at] + struct.pack("<I", 0x7FFFFFFF) + data[at + 4 :]
    assert unpack(lie, limit=2**33)[0] == ["archive_corrupt"]


@pytest.mark.parametrize("kind", ["w", "w:gz", "w:xz", "zip"])
def test_wherever_it_is_cut_it_is_refused(files, unpack, kind):
    data = zip_bytes(files) if kind == "zip" else tar_bytes(files, mode=kind)
    end = len(data.rstrip(b"\0")) if kind == "w" else len(data)  # zeros at the end of a tar are padding
    for cut in {0, 1, 100, 511, 512, 513, 1024, end // 2, end - 12, end - 1, *range(0, end, 311)}:
        assert cut >= end or unpack(data[:cut])[0], cut


def test_wherever_a_compressed_one_is_damaged_nothing_false_is_taken(files, unpack):
    for data in (tar_bytes(files), tar_bytes(files, mode="w:xz"), zip_bytes(files)):
        for at in range(0, len(data), max(1, len(data) // 97)):
            damaged = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
            codes, landed = unpack(damaged)
            assert codes or landed == files, at


def test_a_damaged_tar_header_is_no_end(files, unpack):
    data = tar_bytes({**files, "README.md": b"x"}, mode="w", pax=tarfile.USTAR_FORMAT)
    at = data.index(b"README.md")
    assert unpack(data[:at] + b"X" + data[at + 1 :])[0] == ["archive_corrupt"]


def pax_record(key: str, value: str) -> bytes:
    tail = f" {key}={value}\n"
    size = len(tail) + 2
    while len(f"{size}{tail}") != size:
        size = len(f"{size}{tail}")
    return f"{size}{tail}".encode()


def raw_header(name: str, size: int, kind: bytes) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.USTAR_FORMAT)


def padded(content: bytes) -> bytes:
    return content.ljust(-(-len(content) // 512) * 512, b"\0")


@pytest.mark.parametrize("size", ["-1", "-512", "-1000000", str(2**70), "9" * 4000, "x"])
def test_impossible_sizes_end_it(files, unpack, size):
    record = pax_record("size", size)
    data = raw_header("p", len(record), b"x") + padded(record)
    data += raw_header("README.md", 0, b"0") + bytes(1024)
    assert unpack(data)[0]


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_headers_of_any_length_are_not_read_into_memory(unpack, kind):
    data = raw_header("p", 1 << 30, kind) + bytes(1 << 23)
    tracemalloc.start()
    try:
        assert unpack(data, limit=1 << 31)[0] == ["archive_corrupt"]
        assert tracemalloc.get_traced_memory()[1] < 2 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_chains_of_headers_are_not_followed_for_ever(unpack):
    link = raw_header("p", 6, b"x") + padded(b"6 a=b\n")
    assert unpack(link * 5000)[0] == ["archive_corrupt"]


def test_a_zip_whose_directory_is_huge(files, unpack):
    """Thousands of names of 60 kB each: nobody needs to read them to refuse them."""
    packed = {**files, **{f"{i}{'x' * 60_000}": b"" for i in range(40)}}
    assert unpack(zip_bytes(packed))[0] == ["archive_corrupt"]


def test_xz_that_wants_gigabytes_of_memory(files, unpack):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    data = lzma.compress(tar_bytes(files, mode="w"), filters=filters)
    assert unpack(data)[0] == ["archive_corrupt"]


def test_progress_is_told_often_and_to_the_end(files, unpack):
    files[WEIGHTS] += bytes(3_000_000)
    for data in (tar_bytes(files, mode="w"), zip_bytes(files, method=zipfile.ZIP_STORED)):
        told: list[tuple] = []
        unpack(data, progress=lambda *step, told=told: told.append(step))
        assert told[0] == ("unpack", 0, len(data))
        assert all(step == "unpack" for step, _, _ in told)
        done = [done for _, done, _ in told]
        assert done == sorted(done)
        assert max(b - a for a, b in itertools.pairwise(done)) <= 2 * 256 * 1024
        assert done[-1] >= 0.9 * len(data)


def test_what_progress_raises_ends_it(files, unpack):
    class CancelledError(Exception):
        pass

    def cancel(step, done, total):
        if done:
            raise CancelledError

    files[WEIGHTS] += bytes(3_000_000)
    with pytest.raises(CancelledError):
        unpack(tar_bytes(files, mode="w"), progress=cancel)
