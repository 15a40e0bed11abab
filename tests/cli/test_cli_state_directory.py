"""A state directory that cannot be believed is not used."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kurma_core.cli.main import main


@pytest.mark.parametrize("below", ["", "keys", "images"])
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o720])
def test_others_may_write_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], below: str, mode: int) -> None:
    place = tmp_path / "state" / below
    place.mkdir(parents=True)
    place.chmod(mode)
    assert main(["--dir", str(tmp_path / "state"), "image", "list"]) == 125
    said = capsys.readouterr().err
    assert "users other than root can write" in said
    assert f"chmod go-w {place}" in said
    place.chmod(0o755)
    assert main(["--dir", str(tmp_path / "state"), "image", "list"]) == 0


@pytest.mark.root
@pytest.mark.parametrize("words", [("image", "list"), ("list",), ("trust", "list")])
def test_it_is_somebody_elses(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    os.mkdir(tmp_path / "state", 0o700)
    os.chown(tmp_path / "state", 1000, 1000)
    assert main(["--dir", str(tmp_path / "state"), *words]) == 125
    assert "owner 1000" in capsys.readouterr().err
    assert os.listdir(tmp_path / "state") == []


@pytest.mark.parametrize(("name", "said"), [("file", "is not a directory"), ("file/below", "not a directory")])
def test_it_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str) -> None:
    (tmp_path / "file").write_text("")
    assert main(["--dir", str(tmp_path / name), "image", "list"]) == 125
    told = capsys.readouterr().err
    assert f"the state directory {tmp_path / name} cannot be used: {tmp_path}/" in told
    assert said in told
    assert "--dir, KURMA_DIR" in told


@pytest.mark.root
@pytest.mark.parametrize("umask", [0, 0o002, 0o077])
def test_whatever_the_umask_is_it_is_ours(tmp_path: Path, umask: int) -> None:
    archive = tmp_path / "x.aci"
    (tmp_path / "root").mkdir()
    words = [
        "image",
        "build",
        "--from-rootfs",
        str(tmp_path / "root"),
        "--name",
        "a.b/c",
        "--exec",
        "/x",
        "-o",
        str(archive),
    ]
    for command in (words, ["image", "fetch", str(archive)], ["image", "list", "-q"]):
        done = subprocess.run(
            [sys.executable, "-m", "kurma_core.cli.main", "--dir", str(tmp_path / "deep" / "state"), *command],
            capture_output=True,
            text=True,
            check=False,
            umask=umask,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sha512-")
    assert stat.S_IMODE((tmp_path / "deep" / "state").stat().st_mode) in (0o755, 0o700)


@pytest.mark.root
@pytest.mark.parametrize("by", ["--dir", "KURMA_DIR"])
@pytest.mark.parametrize(
    "words",
    [
        *("list", "image list", "trust list", "network list", "stager list", "events --no-follow", "gc", "info"),
        *("show x", "status x", "wait x", "logs x", "stop x", "rm x", "start x", "top", "app list x"),
        *(
            "image rm x",
            "image gc",
            "image export x y",
            "network show lo",
            "trust rm x --root",
            "enter x",
            "cp x:/ y",
        ),
    ],
)
def test_a_mistyped_state_directory_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, by: str, words: str
) -> None:
    typo = str(tmp_path / "typo")
    monkeypatch.setenv("KURMA_DIR", typo)
    named = ["--dir", typo] if by == "--dir" else []
    assert main([*named, *words.split()]) == 125
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"kurma: no state directory {typo}",
        f"  hint: {by} sets this path; run, prepare and image fetch create it",
    ]
    assert not os.path.exists(typo)


@pytest.mark.parametrize("words", ["version", "config show", "config check", "plugins list --no-load"])
def test_commands_that_need_none(tmp_path: Path, words: str) -> None:
    assert main(["--dir", str(tmp_path / "none"), *words.split()]) == 0
    assert not (tmp_path / "none").exists()


@pytest.mark.root
@pytest.mark.parametrize("words", ["list", "image list", "config show"])
def test_one_that_a_file_names_may_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    """A fresh machine has an empty list."""
    (tmp_path / "kurma.json").write_text(f'{{"state_dir": "{tmp_path}/state"}}')
    assert main(["--config", str(tmp_path / "kurma.json"), *words.split()]) == 0


@pytest.mark.parametrize("by", ["--config", "KURMA_CONFIG"])
@pytest.mark.parametrize(("name", "said"), [("gone", "no configuration file {}"), ("", "{} holds no kurma.yml")])
def test_a_mistyped_configuration(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    by: str,
    name: str,
    said: str,
) -> None:
    path = str(tmp_path / name) if name else str(tmp_path)
    monkeypatch.setenv("KURMA_CONFIG", path)
    assert main([*(["--config", path] if by == "--config" else []), "image", "list"]) == 125
    first, hint = capsys.readouterr().err.splitlines()
    assert first.startswith(f"kurma: {said.format(path)}")
    assert hint == "  hint: --config and KURMA_CONFIG name a file, or a directory like /etc/kurma"
