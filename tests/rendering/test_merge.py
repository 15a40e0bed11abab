"""Laying trees over one another, where the file system is of no help or of ill will."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from kurma_testing import trees
from kurma_testing.trees import directory, file

from kurma_core.appc.layering import Step
from kurma_core.trees import copying, merging


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "target").mkdir()
    return str(tmp_path / "target")


def layer(tmp_path: Path, name: str, whole: trees.Tree) -> Step:
    (tmp_path / name).mkdir()
    trees.write_tree(whole, str(tmp_path / name))
    return Step(str(tmp_path / name))


def test_links_that_cannot_be_made_become_copies(target: str) -> None:
    """A store on another file system: links among its files stay links."""
    with_links = trees.tree({"f": file(b"1", identity=1), "d/g": file(b"1", identity=1), "l": trees.link("f")})
    source = Path("/dev/shm") / f"kurma-test-{os.getpid()}"
    source.mkdir()
    try:
        assert os.stat(source).st_dev != os.stat(target).st_dev
        trees.write_tree(with_links, str(source))
        merging.merge(target, [Step(str(source))])
    finally:
        for path in sorted(with_links, reverse=True):
            (os.rmdir if with_links[path].kind == "d" else os.unlink)(source / path if path else source)
    found = trees.read_tree(target)
    assert found == with_links
    assert trees.shared_names(found) == {frozenset({"f", "d/g"})}


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_a_file_system_without_links(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch, number: int, *, copy: bool
) -> None:
    """As the kernels and drivers say it: every name becomes a file of its own, and nothing else differs."""
    whole = trees.tree({"f": file(b"1", identity=1), "d/g": file(b"1", identity=1), "p": trees.Entry("p")})
    step = layer(tmp_path, "source", whole)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", refuse)
        merging.merge(target, [step], copy=copy)
    found = trees.read_tree(target)
    assert found == whole
    assert trees.shared_names(found) == set()


def test_a_link_that_fails_otherwise_fails(tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is told, not filled with copies."""
    step = layer(tmp_path, "source", trees.tree({"d/f": file(b"1")}))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", refuse)
        with pytest.raises(OSError, match="No space left") as caught:
            merging.merge(target, [step])
    assert caught.value.filename == "d/f"


def test_read_and_write_where_the_kernel_cannot_copy(tmp_path: Path, target: str) -> None:
    content = os.urandom(3 << 20)
    step = layer(tmp_path, "source", trees.tree({"f": file(content)}))
    source_fd, target_fd = os.open(step.path, os.O_RDONLY), os.open(target, os.O_RDONLY)
    try:
        copies = copying.Copies(target_fd)
        copies.clone = copies.splice = False
        copies.make(source_fd, target_fd, (), "f")
    finally:
        os.close(source_fd)
        os.close(target_fd)
    assert trees.read_tree(target)["f"] == file(content)


@pytest.mark.parametrize("copy", [False, True])
def test_errors_name_the_path(tmp_path: Path, target: str, *, copy: bool) -> None:
    step = Step(layer(tmp_path, "source", trees.tree({"d/e": directory()})).path, removed=("d/../../x",))
    with pytest.raises(OSError, match="leads upwards") as caught:
        merging.merge(target, [step], copy=copy)
    assert caught.value.filename == "d/../../x"
    with pytest.raises(FileNotFoundError) as missing:
        merging.merge(target, [Step(str(tmp_path / "none"))], copy=copy)
    assert missing.value.filename == str(tmp_path / "none")


def test_an_error_deep_inside_names_the_way_and_leaves_no_half_a_file(tmp_path: Path, target: str) -> None:
    step = layer(tmp_path, "source", trees.tree({"a/b/f": file(b"1")}))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            merging.merge(target, [step], copy=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == "a/b/f"
    assert os.listdir(f"{target}/a/b") == []


def test_no_descriptor_is_left(tmp_path: Path, target: str) -> None:
    before = os.listdir("/proc/self/fd")
    step = layer(tmp_path, "source", trees.tree({"a/b/f": file(b"1"), "c": trees.link("a")}))
    for copy in (False, True):
        merging.merge(target, [step, Step(step.path, root="x/y")], copy=copy)
        with pytest.raises(OSError, match="none"):
            merging.merge(target, [step, Step(str(tmp_path / "none"))], copy=copy)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_it_is_light() -> None:
    """It may ship inside a stager image."""
    heavy = {"re", "enum", "typing", "dataclasses", "contextlib", "subprocess"}
    program = (
        "import sys; before = set(sys.modules); import kurma_core.trees.merging; print(*set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True, cwd="."
    )
    assert heavy.isdisjoint(done.stdout.split())
