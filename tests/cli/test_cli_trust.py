"""``kurma trust``: what is asked, what is added, what is told (K1, K2)."""

from __future__ import annotations

import errno
import json
import os
import pty
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import trustme
from kurma_testing import bound
from kurma_testing.webserver import Page, web_server

from kurma_core.appc.image import ImageManifest
from kurma_core.cli.main import main
from kurma_core.errors import FetchError, FetchRefusedError, PluginError, TrustError, UsageError
from kurma_core.fetching import Fetching
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.fetcher import FetcherHooks, PublicKey, RemoteArchive, RemoteBlobHooks, RemoteLayers
from kurma_core.images.keys import KeyManager
from kurma_core.trust import Trust
from tests.kit.keys import Signers, gnupg_home

NAME = "example.com/app"
KURMA = (sys.executable, "-c", "import sys; from kurma_core.cli.main import main; sys.exit(main(sys.argv[1:]))")


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The local keystore; the system's is ``system`` beside it."""
    (tmp_path / "kurma.json").write_text(
        json.dumps({"trustedkeys": [str(tmp_path / "system"), str(tmp_path / "keys")]})
    )
    monkeypatch.setenv("KURMA_CONFIG", str(tmp_path / "kurma.json"))
    (tmp_path / "state").mkdir()
    monkeypatch.setenv("KURMA_DIR", str(tmp_path / "state"))
    return tmp_path / "keys"


@pytest.fixture
def file(tmp_path: Path, signers: Signers) -> str:
    path = tmp_path / "alice.asc"
    path.write_bytes(signers.public("alice"))
    return str(path)


def program(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """A process of its own, whose standard streams are no terminal."""
    return subprocess.run([*KURMA, *words], capture_output=True, text=True, check=False, timeout=60, **more)


def at_a_terminal(answer: str, *words: str) -> tuple[int, str]:
    """Exit code, and all that the terminal shows."""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.execv(sys.executable, [*KURMA, *words])
        finally:
            os._exit(99)
    shown = b""
    answered = False
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # its other end is closed
            break
        if not data:
            break
        shown += data
        if not answered and b"[y/N] " in shown:
            os.write(terminal, answer.encode())
            answered = True
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


# --- add ---


def test_it_is_shown_and_asked_for_at_a_terminal(keys: Path, file: str, signers: Signers) -> None:
    fingerprint = signers.fingerprints["alice"]
    code, shown = at_a_terminal("n\n", "trust", "add", "--prefix", NAME, file)
    assert code == 125
    assert "alice <alice@example.com>" in shown
    assert " ".join(fingerprint[at : at + 4] for at in range(0, 40, 4)) in shown
    assert f"trust {fingerprint} for {NAME}? [y/N]" in shown
    assert "no key was added" in shown
    assert not keys.exists()
    code, shown = at_a_terminal("y\n", "trust", "add", "--prefix", NAME, file)
    assert code == 0
    assert (keys / "prefix.d" / NAME / fingerprint).exists()


def test_nobody_to_ask_is_a_refusal_that_says_so(keys: Path, file: str, signers: Signers) -> None:
    done = program("trust", "add", "--prefix", NAME, file, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert "cannot ask whether to trust the key: no terminal" in done.stderr
    assert f"--fingerprint {signers.fingerprints['alice']}, or --yes" in done.stderr
    assert not keys.exists()


def test_several_keys_are_told_and_picked(
    keys: Path, tmp_path: Path, signers: Signers, capsys: pytest.CaptureFixture[str]
) -> None:
    both = tmp_path / "both.asc"
    both.write_bytes(signers.public("alice", "bob"))
    bob = signers.fingerprints["bob"]
    spaced = f"{bob[:20]} {bob[20:].lower()}"
    assert main(["trust", "add", "--root", "--fingerprint", spaced, str(both)]) == 0
    out, err = capsys.readouterr()
    assert "2 keys were found" in err
    assert out == f"{bob}: trusted for all images ({keys}/root.d/{bob})\n"
    assert os.listdir(keys / "root.d") == [bob]
    assert main(["trust", "add", "--root", "--fingerprint", "A" * 40, str(both)]) == 125
    assert f"holds no key {'A' * 40}" in capsys.readouterr().err
    assert main(["trust", "add", "--prefix", "a", "--yes", str(both)]) == 0
    assert sorted(os.listdir(keys / "prefix.d" / "a")) == sorted(
        signers.fingerprints[name] for name in ("alice", "bob")
    )


def test_a_key_from_a_pipe(keys: Path, signers: Signers) -> None:
    fingerprint = signers.fingerprints["alice"]
    done = subprocess.run(
        [*KURMA, "trust", "add", "--root", "--fingerprint", fingerprint, "-"],
        input=signers.public("alice"),
        check=False,
    )
    assert done.returncode == 0
    assert (keys / "root.d" / fingerprint).exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "FILE"], "either --prefix NAME or --root"),
        (["add", "--root", "--prefix", NAME, "FILE"], "either --prefix NAME or --root"),
        (["add", "--root", "--yes"], "cannot look for a key"),
        (["add", "--prefix", "UPPER", "--yes", "FILE"], "is not the start of an image's name"),
        (["add", "--root", "--fingerprint", "12345678", "FILE"], "is not a fingerprint"),
        (["rm", "A" * 40], "either --prefix NAME or --root"),
    ],
)
def test_wrong_words(
    keys: Path, file: str, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["trust", *(file if word == "FILE" else word for word in words)]) == 2
    assert said in capsys.readouterr().err
    assert not keys.exists()


def test_what_is_no_key(keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "junk").write_text("junk")
    assert main(["trust", "add", "--root", "--yes", str(tmp_path / "junk")]) == 125
    assert "holds no OpenPGP public key" in capsys.readouterr().err
    assert main(["trust", "add", "--root", "--yes", str(tmp_path / "gone")]) == 125
    assert "no such file" in capsys.readouterr().err


def test_a_strangers_user_id_moves_no_cursor(
    keys: Path, tmp_path: Path, signers: Signers, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = tmp_path / "evil.asc"
    with gnupg_home() as own:
        own.gpg("--quick-generate-key", "evil \x1b]0;x\x07 <e@example.com>", "ed25519", "sign", "never")
        evil.write_bytes(own.gpg("--armor", "--export", "e@example.com"))
    assert main(["trust", "add", "--root", "--yes", str(evil)]) == 0
    assert main(["trust", "list"]) == 0
    out, err = capsys.readouterr()
    assert "e@example.com" in out
    assert "\x1b" not in out + err


# --- list and rm ---


def test_listed_and_removed(
    keys: Path, tmp_path: Path, file: str, signers: Signers, capsys: pytest.CaptureFixture[str]
) -> None:
    fingerprint = signers.fingerprints["alice"]
    assert main(["trust", "add", "--prefix", NAME, "--yes", file]) == 0
    system = tmp_path / "system" / "root.d"
    system.mkdir(parents=True)
    (system / fingerprint).write_bytes(signers.public("alice"))
    capsys.readouterr()
    assert main(["trust", "list"]) == 0
    head, everything, prefix = capsys.readouterr().out.splitlines()
    assert head.split() == ["PREFIX", "FINGERPRINT", "USER", "CREATED", "EXPIRES", "STATE", "SOURCE"]
    assert everything.split()[:4] == ["(all", "images)", fingerprint, "alice"]
    assert prefix.split()[-3:] == ["never", "trusted", f"{keys}/prefix.d/{NAME}/{fingerprint}"]
    assert main(["trust", "rm", fingerprint[:8], "--root", "--dry-run"]) == 0
    assert "would be masked" in capsys.readouterr().out
    assert not (keys / "root.d").exists()
    assert main(["trust", "rm", fingerprint, "--root"]) == 0
    assert capsys.readouterr().err == (
        f"kurma: {fingerprint}: still trusted for {NAME} ({keys}/prefix.d/{NAME}/{fingerprint})\n"
    )
    assert main(["trust", "rm", fingerprint, "--prefix", NAME]) == 0
    assert capsys.readouterr().err == ""
    assert main(["trust", "list", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["scope"], one["state"], one["path"]) for one in found] == [
        ("root", "masked", str(system / fingerprint)),
        ("root", "mask", f"{keys}/root.d/{fingerprint}"),
    ]
    assert main(["trust", "rm", fingerprint, "--root"]) == 125
    assert "no such key is trusted for all images" in capsys.readouterr().err


# --- from the web ---


def manager(tmp_path: Path, driver: Any, notes: list[str], *schemes: str) -> KeyManager:
    trust = Trust((), (str(tmp_path / "keys"),), str(tmp_path / "state"))
    fetching = Fetching(
        lambda scheme: driver, str(tmp_path / "partial"), kind=dict.fromkeys(schemes, "address").get, names="appc"
    )
    return KeyManager(trust, fetching, notes.append)


@pytest.fixture
def web(tmp_path: Path) -> Any:
    import kurma_fetch_http.plugin
    from kurma_testing import load_driver

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    driver = load_driver(kurma_fetch_http.plugin, tmp_path, {"ca_file": str(tmp_path / "ca.pem")})
    return driver, context


def test_a_key_from_an_https_address(tmp_path: Path, signers: Signers, web: Any) -> None:
    driver, context = web
    with web_server(context) as server:
        server.pages["/key.asc"] = Page(signers.public("alice"))
        server.pages["/huge"] = Page(b"x" * (2 << 20))
        url = server.url("/key.asc").replace("127.0.0.1", "localhost")
        notes: list[str] = []
        images = manager(tmp_path, driver, notes, "https")
        (key,) = images.read(url)
        assert (key.fingerprint, key.source) == (signers.fingerprints["alice"], url)
        assert notes == []
        with pytest.raises(FetchError, match="larger than a file of keys may be"):
            images.read(url.replace("key.asc", "huge"))


def test_the_error_of_a_key_file_that_cannot_be_read(tmp_path: Path) -> None:
    """The error names the plugin, or what cannot be read."""

    class Blob(RemoteBlobHooks):
        key, size, digest = None, None, None

        def __init__(self, error: Exception) -> None:
            self._error = error

        @hookimpl
        def open(self) -> BinaryIO:
            raise self._error

    class Host:
        def __init__(self, error: Exception) -> None:
            self._error = error

        @hookimpl
        def resolve(self, locator: str) -> RemoteArchive:
            return RemoteArchive(locator, locator, "https", Blob(self._error))

    driver = bound(FetcherHooks, Host(OSError(errno.EIO, "Input/output error")), "kurma.fetchers", "x")
    with pytest.raises(FetchError, match=r"^x://key: cannot be read: Input/output error$"):
        manager(tmp_path, driver, [], "x").read("x://key")
    driver = bound(FetcherHooks, Host(KeyError("host")), "kurma.fetchers", "x")
    with pytest.raises(PluginError, match=r"^x://key: fetcher plugin 'x' of .* failed in open: KeyError: 'host'$"):
        manager(tmp_path, driver, [], "x").read("x://key")


def test_an_address_of_an_image_is_no_address_of_a_key(tmp_path: Path) -> None:
    class Registry:
        def resolve(self, locator: str, request: object) -> RemoteLayers:
            manifest = ImageManifest(name="example.com/app")
            return RemoteLayers(locator, locator, "https", manifest, (), "sha256:00")

    with pytest.raises(UsageError, match="an image, not the file of a key"):
        manager(tmp_path, Registry(), [], "x").read("x://example.com/app")


@pytest.mark.parametrize("address", ["/etc/passwd", "./key", "file:///etc/passwd", "key", "x:/etc/passwd"])
def test_kurmad_reads_no_file_for_a_client(tmp_path: Path, address: str) -> None:
    fetching = Fetching(lambda scheme: object(), str(tmp_path), kind={"file": "path"}.get, paths="file")  # type: ignore[arg-type,return-value]
    keys = KeyManager(Trust((), (str(tmp_path / "keys"),), str(tmp_path / "state")), fetching, print)
    with pytest.raises(UsageError, match="is not the address of a key"):
        keys.fetch(address)


def test_plain_http_only_where_it_is_allowed(tmp_path: Path, signers: Signers, web: Any) -> None:
    driver, _ = web
    with web_server() as server:
        server.pages["/key.asc"] = Page(signers.public("alice"))
        notes: list[str] = []
        images = manager(tmp_path, driver, notes, "http")
        with pytest.raises(FetchRefusedError):
            images.read(server.url("/key.asc"))
        for word in ("pubkey", "http"):
            (key,) = images.read(server.url("/key.asc"), frozenset({word}))
            assert key.fingerprint == signers.fingerprints["alice"]
            assert f"--insecure-options={word}" in notes.pop()


class Finder:
    """A fetcher of names that has found these keys."""

    def __init__(self, *found: PublicKey) -> None:
        self.found = found
        self.asked: list[tuple[str, frozenset[str]]] = []

    def public_keys(self, name: str, request: Any) -> tuple[PublicKey, ...]:
        self.asked.append((name, request.insecure))
        return self.found


def test_keys_that_a_names_owner_publishes(tmp_path: Path, signers: Signers) -> None:
    notes: list[str] = []
    finder = Finder(
        PublicKey(b"<html>", "https://example.com/junk"),
        PublicKey(signers.public("alice", "bob"), "https://example.com/keys"),
        PublicKey(signers.public("alice"), "https://example.com/again"),
    )
    found = manager(tmp_path, finder, notes, "appc").discover(NAME, frozenset({"pubkey"}))
    assert [(key.fingerprint, key.source) for key in found] == [
        (signers.fingerprints["alice"], "https://example.com/keys"),
        (signers.fingerprints["bob"], "https://example.com/keys"),
    ]
    assert finder.asked == [(NAME, frozenset({"pubkey", "http"}))]
    assert any("https://example.com/junk: holds no OpenPGP public key" in note for note in notes)


def test_no_published_keys(tmp_path: Path) -> None:
    with pytest.raises(TrustError, match="no keys are published for it"):
        manager(tmp_path, Finder(), [], "appc").discover(NAME)
    with pytest.raises(TrustError, match="holds no OpenPGP public key"):
        manager(tmp_path, Finder(PublicKey(b"junk", "https://x")), [], "appc").discover(NAME)
    with pytest.raises(FetchError):
        manager(tmp_path, FetcherHooks(), [], "appc").discover(NAME)
    with pytest.raises(FetchError):
        manager(tmp_path, Finder(), []).discover(NAME)
