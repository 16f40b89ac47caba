"""florin adapter add: what is sent, what is shown on the way, how it ends."""

from __future__ import annotations

import io
import json
import socket
import tarfile
import threading
import tracemalloc
from contextlib import suppress

import pytest

from gateway.commands.client import ApiError, UsageError
from gateway.fleet.adapters.commands.packing import PIECE, parcel
from tests.support.lora import write_adapter
from tests.support.trained import write_recorded

ADDED = {
    "adapter": "acme/support", "version": "v1", "digest": "sha256:00", "live": "v1", "created": True,
    "warnings": [],
}  # fmt: skip
WARNING = {
    "code": "scaling_extreme", "message": "Much.", "found": "64", "expected": "2", "remedy": "Less.",
    "severity": "warning",
}  # fmt: skip


def sent(upload) -> bytes:
    whole = b"".join(upload.pieces())
    assert len(whole) == upload.size
    return whole


# -- packing


def test_a_directory_is_a_tar_of_its_known_files(tmp_path):
    directory = write_adapter(tmp_path / "run-3")
    (directory / "README.md").write_text("about")
    (directory / "tokenizer_config.json").write_text("{}")
    upload = parcel(directory)
    assert upload.name == "run-3"
    with tarfile.open(fileobj=io.BytesIO(sent(upload))) as tar:
        held = {m.name: tar.extractfile(m).read() for m in tar.getmembers()}
    assert held == {p.name: p.read_bytes() for p in directory.iterdir() if p.name != "README.md"}


def test_a_file_beyond_tars_old_limit_is_packed(tmp_path, monkeypatch):
    """8 GiB and more; the file is one of holes."""
    directory = write_adapter(tmp_path / "big")
    with (directory / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(9 * 1024**3)
    upload = parcel(directory)
    assert upload.size > 9 * 1024**3
    pieces = upload.pieces()
    next(pieces), next(pieces), next(pieces)
    with tarfile.open(fileobj=io.BytesIO(next(pieces) + bytes(512))) as tar:
        assert tar.next().size == 9 * 1024**3
    pieces.close()


def test_packing_needs_no_memory(tmp_path):
    directory = write_adapter(tmp_path / "big")
    with (directory / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(60 * 1024**2)
    tracemalloc.start()
    try:
        count = sum(len(piece) for piece in parcel(directory).pieces())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count > 60 * 1024**2
    assert peak < 20 * PIECE


def test_what_a_run_resumes_from_is_not_sent(tmp_path):
    directory = write_recorded(tmp_path / "checkpoint-2", "trl checkpoint")
    assert (directory / "optimizer.pt").exists()
    assert {path.name for path, _ in parcel(directory).files} == {
        "adapter_config.json", "adapter_model.safetensors",
        "chat_template.jinja", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip


def test_what_would_be_refused_is_not_sent(tmp_path):
    directory = write_adapter(tmp_path / "a")
    (directory / "adapter_model.safetensors").rename(directory / "adapter_model.bin")
    with pytest.raises(ApiError) as refused:
        parcel(directory)
    assert [f["code"] for f in refused.value.findings] == ["unsafe_file", "file_missing"]


@pytest.mark.parametrize("change", [b"", b"longer than it was" * 1000])
def test_a_file_that_changes_while_it_is_sent(tmp_path, change):
    archive = tmp_path / "a.tar"
    archive.write_bytes(b"x" * 1000)
    upload = parcel(archive)
    archive.write_bytes(change)
    with pytest.raises(UsageError, match="during the upload"):
        list(upload.pieces())


# -- the command


def test_an_adapter_in_a_folder_is_sent_and_what_lies_beside_it_is_named(fake, tmp_path):
    directory = write_adapter(tmp_path / "run-3" / "train")
    (directory / "metrics.json").write_text("{}")
    fake.answer("POST", "/admin/v1/adapters/upload?adapter=acme%2Fsupport&file_name=run-3", ADDED)
    result = fake.florin("adapter", "add", "acme/support", "--upload", str(tmp_path / "run-3"))
    assert result.exit_code == 0, result.output
    assert "registered and live" in result.stdout
    [(_, _, body)] = fake.asked
    assert body == sent(parcel(directory))
    assert "files_ignored (warning)" in result.stderr


def test_warnings_are_shown_beside_the_result(fake):
    fake.answer("POST", "/admin/v1/adapters", ADDED | {"warnings": [WARNING]})
    result = fake.florin("adapter", "add", "acme/support", "--source", "/x")
    assert "registered and live" in result.stdout
    assert "scaling_extreme (warning)" in result.stderr
    result = fake.florin("adapter", "add", "acme/support", "--source", "/x", "--json")
    assert json.loads(result.stdout)["warnings"] == [WARNING]
    assert result.stderr == ""


@pytest.fixture
def speaks():
    """A function that makes a gateway which answers the next request with these lines, then hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads = []

    def speak(*lines):
        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n"
                    b"transfer-encoding: chunked\r\n\r\n"
                )
                for line in lines:
                    data = line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
                    connection.sendall(b"%x\r\n%s\r\n" % (len(data), data))
                connection.sendall(b"0\r\n\r\n" if lines and lines[-1] != b"" else b"")
                with suppress(OSError):  # who has read enough may be gone
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):  # closed with bytes unread, it would reset what was sent
                        pass

        threads.append(threading.Thread(target=answer))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield speak
    listener.close()
    for thread in threads:
        thread.join()


STEP = {"step": "fetch", "done": 5, "total": 10}


def add(florin, url, *more):
    return florin(
        "adapter", "add", "acme/support", "--source", "/x", *more, FLORIN_URL=url, FLORIN_OPERATOR_KEY="k"
    )


def test_steps_then_the_result(florin, speaks):
    result = add(florin, speaks(STEP, {**STEP, "done": 10}, {"result": ADDED}))
    assert result.exit_code == 0, result.output
    assert "registered and live" in result.stdout
    assert result.stderr == ""  # nobody watches


def test_steps_then_a_refusal(florin, speaks):
    refusal = {"error": {"message": "No.", "type": "", "code": "adapter_rejected", "findings": [WARNING]}}
    result = add(florin, speaks(STEP, refusal), "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["code"] == "adapter_rejected"


@pytest.mark.parametrize("lines", [(STEP,), (STEP, b""), (STEP, b"rubb"), ()])
def test_a_gateway_that_dies_before_it_has_answered(florin, speaks, lines):
    result = add(florin, speaks(*lines))
    assert result.exit_code == 3
    assert "Run the command again" in result.stderr
