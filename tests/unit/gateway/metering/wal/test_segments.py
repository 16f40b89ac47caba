import pytest

from gateway.metering.wal.segments import CHUNK, Cursor, WorkerDirectory, others
from tests.unit.gateway.metering.make import record


@pytest.fixture
def directory(tmp_path):
    made = WorkerDirectory.create(tmp_path / "usage", "w1")
    yield made
    made.release()


def lines(directory, cursor=None, *, dead):
    cursor = cursor or Cursor()
    return [line for batch in directory.batches(cursor, dead=dead) for line in batch.lines]


def test_a_living_worker_s_directory_cannot_be_adopted(directory):
    assert WorkerDirectory.adopt(directory.path) is None
    directory.release()
    adopted = WorkerDirectory.adopt(directory.path)
    assert adopted is not None
    adopted.release()


def test_a_directory_that_is_gone_cannot_be_adopted(directory):
    directory.remove()
    assert WorkerDirectory.adopt(directory.path) is None


def test_others_are_not_mine_nor_unfinished_ones(directory, tmp_path):
    second = WorkerDirectory.create(tmp_path / "usage", "w2")
    (tmp_path / "usage" / ".new-w3").mkdir()
    assert others(tmp_path / "usage", directory.path) == [second.path]
    assert others(tmp_path / "nowhere", directory.path) == []
    second.release()


def test_the_growing_segment_gives_whole_lines_only(directory):
    directory.segment(1).write_bytes(b"one\ntwo\nthr")
    assert lines(directory, dead=False) == [b"one", b"two"]
    assert lines(directory, dead=True) == [b"one", b"two", b"thr"]


def test_a_torn_end_does_not_hide_the_next_segment(directory):
    directory.segment(1).write_bytes(b"one\ntor")
    directory.segment(2).write_bytes(b"two\n")
    assert lines(directory, dead=False) == [b"one", b"tor", b"two"]


def test_reading_goes_on_at_the_cursor(directory):
    directory.segment(1).write_bytes(b"one\n")
    directory.segment(2).write_bytes(b"two\nthree\n")
    assert lines(directory, Cursor(2, 4), dead=False) == [b"three"]
    assert lines(directory, Cursor(1, 4), dead=False) == [b"two", b"three"]


def test_batches_are_bounded_and_miss_nothing(directory):
    line = record().line()
    count = 3 * CHUNK // len(line)
    directory.segment(1).write_bytes(line * count)
    batches = list(directory.batches(Cursor(), dead=False))
    assert len(batches) > 2
    assert max(len(b.lines) for b in batches) * len(line) <= CHUNK
    assert sum(len(b.lines) for b in batches) == count


def test_nor_does_a_damaged_stretch_in_the_segment_that_grows(directory):
    directory.segment(1).write_bytes(b"\0" * (CHUNK + 5) + b"\ntwo\n")
    assert lines(directory, dead=False)[-1] == b"two"


def test_the_cursor_is_kept_and_a_damaged_one_means_from_the_start(directory):
    assert directory.cursor() == Cursor()
    directory.save_cursor(Cursor(3, 99))
    assert directory.cursor() == Cursor(3, 99)
    (directory.path / "shipped").write_text("garbage")
    assert directory.cursor() == Cursor()
