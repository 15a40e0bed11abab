"""The store of secrets: names, atomic writes, and who may read the files."""

import os
import threading

import pytest

from kurma_core.errors import SecretError, SecretExistsError, SecretNotFoundError, UsageError
from kurma_core.secret_store import LARGEST, SecretStore, check_name


@pytest.fixture
def store(tmp_path):
    return SecretStore(str(tmp_path))


def names(store):
    return [name for name, _ in store.scan()]


def test_a_value_is_any_bytes(store):
    value = bytes(range(256)) * (LARGEST // 256)
    store.write("key", value)
    assert store.value("key") == value
    assert names(store) == ["key"]


def test_files_are_the_owners_alone(store):
    umask = os.umask(0)
    try:
        store.write("key", b"v")
    finally:
        os.umask(umask)
    assert os.stat(store.path).st_mode & 0o7777 == 0o700
    assert os.stat(f"{store.path}/key").st_mode & 0o7777 == 0o600


@pytest.mark.parametrize("name", ["a", "db_password", "tls.key", "A-1", "0", "x" * 253])
def test_names(name):
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".new", "a/b", "../a", "-a", "_a", "a b", "a\n", "ä", "x" * 254])
def test_other_names(store, name):
    for use in (lambda: store.write(name, b"v"), lambda: store.value(name)):
        with pytest.raises(UsageError, match="is not a name of a secret"):
            use()
    with pytest.raises(SecretNotFoundError):
        store.remove(name)
    assert not os.path.exists(store.path)


def test_an_existing_one_is_replaced_only_on_demand(store):
    store.write("key", b"old")
    with pytest.raises(SecretExistsError) as refused:
        store.write("key", b"hunter2")
    assert "hunter2" not in f"{refused.value} {refused.value.hint} {refused.value.data}"
    assert store.value("key") == b"old"
    store.write("key", b"new", replace=True)
    assert store.value("key") == b"new"


@pytest.mark.parametrize("value", [b"", b"x" * (LARGEST + 1)])
def test_sizes(store, value):
    with pytest.raises(UsageError, match="its value is"):
        store.write("key", value)


def test_what_is_missing(store):
    for use in (store.value, store.remove, store.changed_at):
        with pytest.raises(SecretNotFoundError, match="no secret key"):
            use("key")
    store.write("key", b"v")
    store.remove("key")
    for use in (store.value, store.remove, store.changed_at):
        with pytest.raises(SecretNotFoundError, match="no secret key"):
            use("key")
    assert names(store) == []


def test_an_unfinished_write_is_not_a_secret(store):
    store.write("key", b"v")
    with open(f"{store.path}/.new", "wb") as file:
        file.write(b"half")
    assert names(store) == ["key"]
    store.remove("key")
    assert os.listdir(store.path) == []


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o702])
def test_a_directory_that_others_may_use(store, mode):
    store.write("key", b"v")
    os.chmod(store.path, mode)
    for use in (lambda: store.value("key"), lambda: names(store), lambda: store.write("more", b"v")):
        with pytest.raises(SecretError, match="is not root's alone"):
            use()


def test_links_and_other_files(store, tmp_path):
    store.write("key", b"v")
    (tmp_path / "elsewhere").write_bytes(b"hunter2")
    os.symlink(tmp_path / "elsewhere", f"{store.path}/link")
    os.mkfifo(f"{store.path}/pipe")
    assert names(store) == ["key"]
    for name in ("link", "pipe"):
        with pytest.raises(SecretError, match="not a regular file"):
            store.value(name)
    os.rename(store.path, tmp_path / "moved")
    os.symlink(tmp_path / "moved", store.path)
    with pytest.raises(SecretError, match="is not a directory"):
        store.value("key")


def test_one_of_many_writers_creates_it(store):
    made = []

    def write(number):
        try:
            store.write("key", b"%d" % number)
            made.append(b"%d" % number)
        except SecretExistsError:
            pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [store.value("key")]
