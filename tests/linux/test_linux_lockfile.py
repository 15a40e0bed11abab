import fcntl
import os
import shutil
import threading

import pytest

from kurma_core.linux.files import is_at, lock_file, locked


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "of" / "network" / "lock")


def _waits(fd):
    """Whether somebody waits for the lock on what ``fd`` has open, as the kernel tells."""
    inode = str(os.fstat(fd).st_ino)
    with open("/proc/locks", encoding="ascii") as file:
        return any("->" in line and line.split()[6].endswith(f":{inode}") for line in file)


def test_it_and_its_directory_are_made_for_root_alone(path):
    os.close(lock_file(path))
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700


def test_one_alone_or_many_together(path):
    with locked(path, alone=False):
        os.close(lock_file(path, alone=False, wait=False))
        with pytest.raises(BlockingIOError):
            lock_file(path, wait=False)
    with locked(path):
        with pytest.raises(BlockingIOError):
            lock_file(path, alone=False, wait=False)
    os.close(lock_file(path, wait=False))


def test_a_copy_of_the_descriptor_goes_on_holding_it(path):
    with locked(path) as fd:
        copy = os.dup(fd)
    with pytest.raises(BlockingIOError):
        lock_file(path, wait=False)
    os.close(copy)
    os.close(lock_file(path, wait=False))


def test_what_is_removed_while_one_waits_is_locked_anew(path):
    """Else two would hold it: one the file that is gone, one a new one."""
    first = lock_file(path)
    found = []
    waiter = threading.Thread(target=lambda: found.append(lock_file(path)))
    waiter.start()
    while not _waits(first):
        assert waiter.is_alive()
    shutil.rmtree(os.path.dirname(os.path.dirname(path)))
    os.close(first)
    waiter.join(10)
    (fd,) = found
    assert is_at(fd, path)
    with pytest.raises(BlockingIOError):
        lock_file(path, wait=False)
    os.close(fd)


def test_a_directory_that_goes_again_and_again(path, tmp_path):
    """Others make and remove the network all the time; every lock that is got is on what is there."""
    end = threading.Event()

    def remove():
        while not end.is_set():
            shutil.rmtree(tmp_path / "of", ignore_errors=True)

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        for _ in range(40):
            os.close(lock_file(path))
    finally:
        end.set()
        remover.join()


def test_where_no_directory_can_be_made_it_is_an_error_and_no_waiting_for_ever():
    with pytest.raises(FileNotFoundError):
        lock_file("/proc/kurma/lock")


def test_a_link_is_not_followed(path, tmp_path):
    (tmp_path / "of" / "network").mkdir(parents=True)
    (tmp_path / "elsewhere").touch()
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(OSError, match="symbolic links"):
        lock_file(path)


def test_what_is_at_a_path(tmp_path):
    fd = os.open(tmp_path / "one", os.O_RDWR | os.O_CREAT)
    try:
        assert is_at(fd, str(tmp_path / "one"))
        os.symlink(tmp_path / "one", tmp_path / "link")
        assert not is_at(fd, str(tmp_path / "link"))
        os.replace(tmp_path / "link", tmp_path / "one")
        assert not is_at(fd, str(tmp_path / "one"))
        os.unlink(tmp_path / "one")
        assert not is_at(fd, str(tmp_path / "one"))
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(fd)
