"""An app's log as the stager writes it, on a real file system: lines, turning, readers, a disk that fails (H7)."""

import errno
import fcntl
import json
import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.pod import status_file
from kurma_stager_default.inside.streams import app_log, log_rotation, outside_log

from kurma_core.formats import cri_log

NOW = 1_500_000_000_000_000_001
STAMP = b"2017-07-14T02:40:00.000000001Z"
HEAD = len(STAMP) + len(b" stdout F ")


def read(path, app="a"):
    """Everything that a reader finds, as (stream, partial, line)."""
    file = cri_log.LogFile(str(path), app, cri_log.plain)
    found = []
    for _, _, stream, partial, text in file.read_all():
        found += [(stream, partial, line) for line in ([text] if partial else text.split(b"\n"))]
    file.close()
    return found


def text_of(found, stream="stdout"):
    return b"".join(text + (b"" if partial else b"\n") for at, partial, text in found if at == stream)


def files(directory):
    """Oldest first: name, content."""
    names = sorted(os.listdir(directory), key=lambda name: -int(name.partition("log.")[2] or 0))
    return [(name, (directory / name).read_bytes()) for name in names]


# --- lines -----------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_log_lines_say_what_was_written(chunks):
    """Every byte comes back, in any cutting: NUL, CR, what is no UTF-8, empty lines, no newline at the end."""
    made = b"".join(app_log.lines(chunk, b"stdout", NOW) for chunk in chunks)
    text = b""
    for line in made.split(b"\n")[:-1]:
        stamp, stream, kind, rest = line.split(b" ", 3)
        assert (stamp, stream) == (STAMP, b"stdout")
        text += rest + (b"\n" if kind == b"F" else b"")
    assert text == b"".join(chunks)


CHUNK = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"\n", b"\r\n", b"\0", b"\xff\xfe", b"x" * 400, b"F \n", b"T stdout F \n", b"\n\n\nlast"]),
)


@given(
    chunks=st.lists(st.tuples(st.sampled_from([app_log.STDOUT, app_log.STDERR]), CHUNK.filter(bool)), max_size=30),
    size=st.sampled_from([0, 1, 60, 200, 1000]),
)
def test_every_byte_comes_back_through_files_that_turn(tmp_path_factory, chunks, size):
    """Whatever is turned where: each stream apart, in order, byte for byte; parts are marked as such."""
    path = tmp_path_factory.mktemp("log") / "a.log"
    log = app_log.AppLog(str(path), size, 1000)
    for stream, chunk in chunks:
        log.write(stream, chunk)
    log.close()
    found = read(path)
    for stream in ("stdout", "stderr"):
        assert text_of(found, stream) == b"".join(chunk for at, chunk in chunks if at == stream.encode())


def test_times_do_not_go_back(tmp_path):
    log = app_log.AppLog(str(tmp_path / "a.log"), 0, 1)
    before = time.time_ns()
    for number in range(50):
        log.write(app_log.STDOUT, b"%d\n" % number)
    log.close()
    times = [line.split(b" ")[0] for line in (tmp_path / "a.log").read_bytes().splitlines()]
    assert times == sorted(times)
    assert app_log.stamp(before) <= times[0] <= times[-1] <= app_log.stamp(time.time_ns())
    assert {len(each) for each in times} == {len(STAMP)}


# --- turning ---------------------------------------------------------------------------------------------------


def test_no_file_is_larger_than_it_may_be(tmp_path):
    """One chunk of many lines fills as many files as it takes, each between two lines."""
    log = app_log.AppLog(str(tmp_path / "a.log"), 1000, 50)
    log.write(app_log.STDOUT, b"".join(b"line %d\n" % number for number in range(500)))
    log.close()
    found = files(tmp_path)
    assert len(found) > 20
    for name, content in found:
        assert len(content) <= 1000, name
        assert content.endswith(b"\n")
        assert len(content) > 900 or name == "a.log"
    assert text_of(read(tmp_path / "a.log")) == b"".join(b"line %d\n" % number for number in range(500))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_so_many_files_are_kept(tmp_path, count):
    log = app_log.AppLog(str(tmp_path / "a.log"), 300, count)
    for number in range(200):
        log.write(app_log.STDOUT, b"%d\n" % number)
        assert len(os.listdir(tmp_path)) <= count
    log.close()
    found = [int(line) for _, _, line in read(tmp_path / "a.log")]
    assert found == list(range(200 - len(found), 200))
    assert len(os.listdir(tmp_path)) == count
    assert len(found) > 6 * (count - 1)


def test_a_log_is_turned_between_lines(tmp_path):
    """Whatever the chunks are, a file ends with a whole line of the stream that fills it."""
    log = app_log.AppLog(str(tmp_path / "a.log"), 200, 500)
    for number in range(100):
        log.write(app_log.STDOUT, b"%d begins" % number)
        log.write(app_log.STDOUT, b" and ends\nnext\n" * (number % 4 + 1) + b"open")
        log.write(app_log.STDOUT, b"\n")
    log.close()
    found = files(tmp_path)
    assert len(found) > 50
    for name, content in found:
        assert content.splitlines()[-1].split(b" ")[2] == b"F", name


def test_a_line_of_the_other_stream_may_end_first(tmp_path):
    """A prompt is not parted from its line by what goes to the other stream, unless it stays for long."""
    log = app_log.AppLog(str(tmp_path / "a.log"), 1000, 50)
    log.write(app_log.STDERR, b"asked: ")
    log.write(app_log.STDOUT, b"x" * 900 + b"\n")
    log.write(app_log.STDOUT, b"y" * 80 + b"\n")
    log.write(app_log.STDERR, b"answered\n")
    assert len(os.listdir(tmp_path)) == 1
    log.write(app_log.STDERR, b"asked: ")
    for _ in range(40):
        log.write(app_log.STDOUT, b"z" * 80 + b"\n")
    log.close()
    assert len(os.listdir(tmp_path)) > 2
    assert text_of(read(tmp_path / "a.log"), "stderr") == b"asked: answered\nasked: "


def test_a_line_as_long_as_two_logs_is_torn(tmp_path):
    log = app_log.AppLog(str(tmp_path / "a.log"), 200, 3)
    for _ in range(100):
        log.write(app_log.STDOUT, b"x" * 50)
    log.close()
    assert sum(len(content) for _, content in files(tmp_path)) < 3 * 600


def test_files_that_cannot_be_renamed(tmp_path, monkeypatch):
    """The file grows on, nothing is lost; it is tried again, but not with each line."""
    log = app_log.AppLog(str(tmp_path / "a.log"), 300, 50)
    tries = []

    def refused(*names):
        tries.append(names)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    rename = os.rename
    monkeypatch.setattr(os, "rename", refused)
    for number in range(100):
        log.write(app_log.STDOUT, b"%d\n" % number)
    assert os.listdir(tmp_path) == ["a.log"]
    assert [int(line) for _, _, line in read(tmp_path / "a.log")] == list(range(100))
    assert 5 < len(tries) < 20
    monkeypatch.setattr(os, "rename", rename)
    for number in range(100, 120):
        log.write(app_log.STDOUT, b"%d\n" % number)
    log.close()
    assert len(os.listdir(tmp_path)) > 1
    assert [int(line) for _, _, line in read(tmp_path / "a.log")] == list(range(120))


def test_files_that_somebody_removes(tmp_path):
    log = app_log.AppLog(str(tmp_path / "a.log"), 300, 5)
    for number in range(200):
        if number == 100:
            for name in os.listdir(tmp_path):
                os.unlink(tmp_path / name)
        log.write(app_log.STDOUT, b"%d\n" % number)
    log.close()
    assert int(read(tmp_path / "a.log")[-1][2]) == 199


# --- readers ---------------------------------------------------------------------------------------------------


def numbered(log, first, last):
    for number in range(first, last):
        log.write(app_log.STDOUT, b"%d\n" % number)


def numbers(reader):
    return [int(line) for text in reader.read_all() for line in text[4].split(b"\n") if text[2] == "stdout"]


def test_what_a_reader_has_not_read_is_kept(tmp_path):
    """Beyond the number of files; and no longer than it takes."""
    log = app_log.AppLog(str(tmp_path / "a.log"), 300, 3)
    reader = cri_log.LogFile(str(tmp_path / "a.log"), "a", cri_log.plain)
    numbered(log, 0, 3)
    reader.chain.share()
    found = numbers(reader)
    numbered(log, 3, 1000)  # while it stands still
    found += numbers(reader)
    assert found == list(range(1000))
    for number in range(1000, 1100):
        numbered(log, number, number + 1)
        found += numbers(reader)
    assert len(os.listdir(tmp_path)) == 3
    reader.close()
    assert found == list(range(1100))
    log.close()


def test_a_writer_that_stands_still_as_it_looks_for_readers_is_waited_for(tmp_path):
    """It holds each file's lock for a moment, which on a busy machine may be a long one."""
    log = app_log.AppLog(str(tmp_path / "a.log"), 300, 3)
    reader = cri_log.LogFile(str(tmp_path / "a.log"), "a", cri_log.plain)
    numbered(log, 0, 3)
    looking = os.open(tmp_path / "a.log", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_EX)
    later = threading.Timer(0.2, os.close, (looking,))
    later.start()
    reader.chain.look()
    reader.chain.share()
    later.join()
    numbered(log, 3, 500)  # while the reader stands still
    assert numbers(reader) == list(range(500))
    reader.close()
    log.close()


def test_a_writer_that_keeps_a_lock_for_good_is_waited_for_once(tmp_path, monkeypatch):
    monkeypatch.setattr("kurma_core.formats.rotated_log._PATIENCE", 0.5)
    paths = [tmp_path / name for name in ("a.log.2", "a.log.1", "a.log")]
    for number, path in enumerate(paths):
        path.write_bytes(b"T stdout F %d\n" % number)
    held = [os.open(path, os.O_RDONLY) for path in paths]
    for fd in held:
        fcntl.flock(fd, fcntl.LOCK_EX)
    reader = cri_log.LogFile(str(tmp_path / "a.log"), "a", cri_log.plain)
    reader.chain.share()
    begun = time.monotonic()
    assert numbers(reader) == [0, 1, 2]
    assert 0.5 <= time.monotonic() - begun < 1.4
    reader.close()
    for fd in held:
        os.close(fd)


def test_files_kept_for_a_reader_stay_few(tmp_path):
    """They become longer: to rename a thousand at each turn would slow the app."""
    log = app_log.AppLog(str(tmp_path / "a.log"), 300, 2)
    reader = cri_log.LogFile(str(tmp_path / "a.log"), "a", cri_log.plain)
    log.write(app_log.STDOUT, b"0\n")
    reader.chain.share()
    found = numbers(reader)
    numbered(log, 1, 20_000)
    assert len(os.listdir(tmp_path)) < 130
    assert found + numbers(reader) == list(range(20_000))
    reader.close()
    log.close()


def test_what_is_kept_for_a_reader_is_bounded(tmp_path, monkeypatch):
    """The oldest of it goes, its space at once; the reader is told that something is missing."""
    monkeypatch.setattr(log_rotation, "KEPT_BYTES", 4000)
    log = app_log.AppLog(str(tmp_path / "a.log"), 300, 3)
    reader = cri_log.LogFile(str(tmp_path / "a.log"), "a", cri_log.plain)
    log.write(app_log.STDOUT, b"0\n")
    reader.chain.share()
    assert numbers(reader) == [0]
    for number in range(1, 1000):
        log.write(app_log.STDOUT, b"%d\n" % number)
        assert sum(len(content) for _, content in files(tmp_path)) < 4000 + 2500
        if number % 10 == 0:
            reader.chain.look()  # it holds what it has not read open
    texts = list(reader.read_all())
    assert any(b"output is missing here" in text[4] for text in texts)
    found = [int(line) for text in texts if text[2] == "stdout" for line in text[4].split(b"\n")]
    assert found == sorted(set(found))
    assert found[-1] == 999
    reader.close()
    log.close()


def test_nothing_is_kept_for_readers_on_a_disk_that_is_nearly_full(tmp_path, monkeypatch):
    real = os.statvfs(tmp_path)

    class Disk:
        f_blocks = real.f_blocks
        f_bavail = real.f_blocks // 11

    monkeypatch.setattr(os, "statvfs", lambda _: Disk)
    log = app_log.AppLog(str(tmp_path / "a.log"), 300, 3)
    reader = cri_log.LogFile(str(tmp_path / "a.log"), "a", cri_log.plain)
    log.write(app_log.STDOUT, b"0\n")
    reader.chain.share()
    assert numbers(reader) == [0]
    numbered(log, 1, 500)
    assert len(os.listdir(tmp_path)) <= 5
    reader.close()
    log.close()


def test_readers_at_full_speed(tmp_path):
    """Four follow a log of tiny files, two of them from the middle on: each line once, in order."""
    count = 60_000
    log = app_log.AppLog(str(tmp_path / "a.log"), 4096, 2)
    done = threading.Event()
    found = [[] for _ in range(4)]

    def follow(place):
        if place > 1:
            time.sleep(0.05 * place)
        reader = cri_log.LogFile(str(tmp_path / "a.log"), "a", cri_log.plain)
        reader.chain.share()
        over = False
        while not over:
            over = done.is_set()
            found[place] += numbers(reader)
            time.sleep(0.001 * place)
        reader.close()

    threads = [threading.Thread(target=follow, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    for number in range(0, count, 20):
        log.write(app_log.STDOUT, b"".join(b"%d\n" % each for each in range(number, number + 20)))
    done.set()
    for thread in threads:
        thread.join()
    log.close()
    for place in range(4):
        missing = set(range(found[place][0], count)).difference(found[place])
        assert (found[place] == sorted(set(found[place])), sorted(missing)[:5]) == (True, []), place
    assert found[0][0] == found[1][0] == 0
    assert len(os.listdir(tmp_path)) < 100


# --- a disk that fails -----------------------------------------------------------------------------------------


def test_a_log_that_cannot_be_written_drops_and_says_so(tmp_path):
    """A full disk loses lines, nothing else."""
    directory = tmp_path / "logs"
    log = app_log.AppLog(str(directory / "a.log"), 0, 1)
    log.write(app_log.STDOUT, b"lost\n")
    log.write(app_log.STDOUT, b"lost too\n")
    assert (log.dropped, log.dropped_in_all, log.changed) == (14, 14, True)
    log.changed = False
    directory.mkdir()
    log.write(app_log.STDOUT, b"kept\n")
    log.close()
    first, second = (directory / "a.log").read_bytes().splitlines()
    assert first.endswith(b"stderr F [kurma: 14 bytes of output were dropped, the log could not be written]")
    assert second.endswith(b"stdout F kept")
    assert (log.dropped, log.dropped_in_all, log.changed) == (0, 14, True)


def test_what_was_dropped_last_is_said_at_the_end(tmp_path):
    directory = tmp_path / "logs"
    log = app_log.AppLog(str(directory / "a.log"), 0, 1)
    log.write(app_log.STDOUT, b"lost\n")
    directory.mkdir()
    log.close()
    assert b"5 bytes of output were dropped" in (directory / "a.log").read_bytes()


class Disk:
    """Writes, cuts and opens that fail from outside: as a full disk, or one that is no more."""

    def __init__(self, monkeypatch):
        self.room = None
        self.cuts = True
        self.write, self.ftruncate = os.write, os.ftruncate
        monkeypatch.setattr(os, "write", self._write)
        monkeypatch.setattr(os, "ftruncate", self._ftruncate)

    def _write(self, fd, data):
        if self.room is None:
            return self.write(fd, data)
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = self.write(fd, bytes(data)[: self.room])
        self.room -= done
        return done

    def _ftruncate(self, fd, size):
        if not self.cuts:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        self.ftruncate(fd, size)
        if self.room is not None:
            self.room = 10


@pytest.mark.parametrize("cuts", [True, False])
def test_a_full_disk_cuts_no_line(monkeypatch, tmp_path, cuts):
    """A write that comes to its end half way leaves nothing of the chunk, in the end."""
    disk = Disk(monkeypatch)
    log = app_log.AppLog(str(tmp_path / "a.log"), 0, 1)
    log.write(app_log.STDOUT, b"one\n")
    disk.room, disk.cuts = 10, cuts
    log.write(app_log.STDOUT, b"two\n")
    log.write(app_log.STDOUT, b"two and a half\n")
    disk.room, disk.cuts = None, True
    log.write(app_log.STDOUT, b"three\n")
    log.close()
    kept = [line.split(b" ", 3)[3] for line in (tmp_path / "a.log").read_bytes().splitlines()]
    assert kept == [b"one", b"[kurma: 19 bytes of output were dropped, the log could not be written]", b"three"]


def test_what_is_missing_joins_no_lines(monkeypatch, tmp_path):
    """The beginning of a line, of either stream, is not taken together with the end of another one."""
    disk = Disk(monkeypatch)
    log = app_log.AppLog(str(tmp_path / "a.log"), 0, 1)
    log.write(app_log.STDOUT, b"begun, ")
    log.write(app_log.STDERR, b"begun, too, ")
    disk.room = 0
    log.write(app_log.STDOUT, b"ended\nanother ")
    disk.room = None
    log.write(app_log.STDOUT, b"one\n")
    log.write(app_log.STDERR, b"error\n")
    log.close()
    found = read(tmp_path / "a.log")
    assert text_of(found) == b"begun, \none\n"
    assert text_of(found, "stderr") == (
        b"begun, too, \n[kurma: 14 bytes of output were dropped, the log could not be written]\nerror\n"
    )


def test_only_what_is_lost_is_counted(monkeypatch, tmp_path):
    """A chunk that goes to several files, of which the last cannot be written."""
    disk = Disk(monkeypatch)
    log = app_log.AppLog(str(tmp_path / "a.log"), 1000, 5)
    disk.room = 2500
    disk.cuts = False  # so that no room is made
    text = b"".join(b"%03d\n" % number for number in range(100)) + b"open"
    log.write(app_log.STDOUT, text)
    disk.room, disk.cuts = None, True
    log.close()
    kept = text_of(read(tmp_path / "a.log"))
    assert text.startswith(kept)
    assert len(kept) > 100
    assert log.dropped_in_all == len(text) - len(kept)


def test_what_is_kept_for_readers_goes_before_anything_is_dropped(monkeypatch, tmp_path):
    disk = Disk(monkeypatch)
    log = app_log.AppLog(str(tmp_path / "a.log"), 300, 2)
    reader = cri_log.LogFile(str(tmp_path / "a.log"), "a", cri_log.plain)
    log.write(app_log.STDOUT, b"0\n")
    reader.chain.share()
    assert numbers(reader) == [0]
    numbered(log, 1, 100)
    assert len(os.listdir(tmp_path)) > 5
    truncate = os.truncate

    def freed(path, size):
        truncate(path, size)
        disk.room = None

    monkeypatch.setattr(os, "truncate", freed)
    disk.room = 0
    log.write(app_log.STDOUT, b"100\n")
    assert log.dropped_in_all == 0
    assert len(os.listdir(tmp_path)) <= 3
    texts = list(reader.read_all())
    assert any(b"output is missing here" in text[4] for text in texts)
    assert texts[-1][4].endswith(b"100")
    reader.close()
    log.close()


def test_names_of_logs():
    assert [app_log.file_name("a", number) for number in (0, 1, 12)] == ["a.log", "a.1.log", "a.12.log"]
    assert [app_log.app_of(name) for name in ("a.log", "a.12.log", "a.1.log.3", "a-b.log")] == [
        "a",
        "a",
        "a",
        "a-b",
    ]


def test_a_log_goes_with_its_older_parts(tmp_path):
    for name in ("a.log", "a.log.1", "a.log.2", "a.log.4", "a.1.log"):
        (tmp_path / name).touch()
    app_log.remove(f"{tmp_path}/a.log")
    # What is behind a gap was none of its parts.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.1.log", "a.log.4"]
    app_log.remove(f"{tmp_path}/a.log")


def test_a_log_holds_one_descriptor(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    log = app_log.AppLog(str(tmp_path / "a.log"), 300, 3)
    numbered(log, 0, 100)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    log.close()
    log.close()
    assert len(os.listdir("/proc/self/fd")) == before


# --- status.json -----------------------------------------------------------------------------------------------


def test_status_is_replaced_whole(tmp_path):
    path = str(tmp_path / "status.json")
    seen = set()
    done = threading.Event()

    def look():
        while not done.is_set():
            try:
                with open(path) as file:
                    seen.add(len(json.load(file)["apps"]))
            except FileNotFoundError:
                continue

    thread = threading.Thread(target=look)
    thread.start()
    for number in range(300):
        count = number % 60
        status_file.write({"apps": {f"app{each}": {"exited": False} for each in range(count)}}, path)
    done.set()
    thread.join()
    assert seen <= set(range(60))
    assert len(status_file.apps(path)) == 299 % 60


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("", "is damaged"),
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ('{"apps": []}', "is damaged"),
        ('{"apps": {"a": {}}}', "is damaged"),
        ('{"apps": {"a": 1}}', "is damaged"),
        ("\udcff", "is damaged"),
    ],
)
def test_a_damaged_status_is_told(tmp_path, text, said):
    path = tmp_path / "status.json"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(SetupError, match=said):
        status_file.apps(str(path))


def test_locks_of_readers_are_no_hindrance_to_one_another(tmp_path):
    (tmp_path / "a.log").write_bytes(b"")
    readers = [cri_log.LogFile(str(tmp_path / "a.log"), "a", cri_log.plain) for _ in range(3)]
    for reader in readers:
        reader.chain.share()
        list(reader.read_all())
    fd = os.open(tmp_path / "a.log", os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for reader in readers:
        reader.close()
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)


@given(st.lists(st.tuples(st.integers(0, 3 * app_log.LONGEST), st.booleans()), max_size=6))
def test_long_lines_are_written_in_parts(pieces):
    """No line of the log holds more than 16 KiB; the parts of a line come together again."""
    data = b"".join(b"x" * size + (b"\n" if ends else b"") for size, ends in pieces)
    texts = [line.split(b" ", 3) for line in app_log.lines(data, app_log.STDOUT, NOW).splitlines()]
    assert all(len(text) <= app_log.LONGEST for _, _, _, text in texts)
    assert b"".join(text + (b"\n" if tag == b"F" else b"") for _, _, tag, text in texts) == data


# --- logs that another program rotates --------------------------------------------------------------------------


@pytest.fixture
def rotated(tmp_path):
    """A log whose file was renamed to ``old`` while a line was open, and the answers to the request for a new
    one."""
    log = outside_log.outside_log(str(tmp_path), "new")
    log.write(app_log.STDOUT, b"one\ntw")
    (tmp_path / "new").rename(tmp_path / "old")
    answers = []
    assert log.ask(answers.append) is False
    yield log, answers
    log.close()


def of(path):
    return [tuple(line.split(b" ", 3)[1:]) for line in path.read_bytes().splitlines()]


OPEN = [(b"stdout", b"F", b"one"), (b"stdout", b"P", b"tw")]


def test_a_rotated_log_ends_with_whole_lines(rotated, tmp_path):
    log, answers = rotated
    log.write(app_log.STDERR, b"wrong\n")
    assert (answers, (tmp_path / "new").exists()) == ([], False)
    log.write(app_log.STDOUT, b"o\nthree\nfo")
    assert answers == [""]
    assert of(tmp_path / "old") == [*OPEN, (b"stdout", b"F", b"o")]
    new = [(b"stderr", b"F", b"wrong"), (b"stdout", b"F", b"three"), (b"stdout", b"P", b"fo")]
    assert of(tmp_path / "new") == new
    log.turn_over()
    assert answers == [""]


def test_a_line_that_does_not_end_is_divided(rotated, tmp_path):
    log, answers = rotated
    log.write(app_log.STDERR, b"wrong\n")
    log.turn_over()
    log.write(app_log.STDOUT, b"o\n")
    assert (answers, of(tmp_path / "old")) == ([""], OPEN)
    assert of(tmp_path / "new") == [(b"stderr", b"F", b"wrong"), (b"stdout", b"F", b"o")]


def test_much_output_does_not_wait_for_a_line(rotated, tmp_path):
    log, answers = rotated
    for _ in range(100):
        log.write(app_log.STDERR, b"x" * 60_000 + b"\n")
    assert answers == [""]
    assert (tmp_path / "new").stat().st_size > 6_000_000
    assert of(tmp_path / "old") == OPEN


def test_the_end_of_an_app_makes_no_new_file(rotated, tmp_path):
    log, answers = rotated
    log.write(app_log.STDERR, b"wrong\n")
    log.close()
    assert (answers, (tmp_path / "new").exists()) == (["the app has ended"], False)
    assert of(tmp_path / "old") == [*OPEN, (b"stderr", b"F", b"wrong")]


def test_a_new_file_that_cannot_be_made(rotated, tmp_path):
    log, answers = rotated
    (tmp_path / "new").symlink_to("elsewhere")
    log.write(app_log.STDOUT, b"o\nthree\n")
    assert len(answers) == 1
    assert answers[0].startswith("log new: ")
    assert of(tmp_path / "old") == [*OPEN, (b"stdout", b"F", b"o"), (b"stdout", b"F", b"three")]
