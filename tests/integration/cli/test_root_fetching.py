"""Fetching as people do it: discovered keys, pulling, two at once, kills, Ctrl-C (D6, K2, S5, S6)."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kurma_testing.webserver import Page

from tests.integration.cli.person import Person
from tests.integration.cli.shop import Shop, one_line, open_shop
from tests.kit.command import KURMA, Kurma
from tests.kit.keys import Signers
from tests.kit.waiting import until

pytestmark = pytest.mark.root
APP = "example.com/app:1.0"
PLACE = "/images/example.com/app-1.0.aci"


@pytest.fixture
def shop(kurma_command: Kurma, signers: Signers, tmp_path: Path) -> Iterator[Shop]:
    with open_shop(kurma_command, signers, tmp_path) as made:
        made.owner.page()
        yield made


def large() -> str:
    return os.urandom(1_500_000).hex()


def at_a_terminal(shop: Shop, answer: str, *words: str) -> tuple[int, str]:
    """Exit code, and what is shown on standard error."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*KURMA, *words], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=shop.environment
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # its other end is closed
            break
        if shown.endswith(b"[y/N] "):
            os.write(ours, answer.encode())
    os.close(ours)
    process.communicate()
    return process.returncode, shown.decode()


# --- keys ---


def test_a_key_is_discovered_shown_and_asked_for(shop: Shop, signers: Signers) -> None:
    """The whole story (K2)."""
    ident = shop.owner.publish("example.com/app", "1.0")
    shop.owner.server.pages["/pubkeys.asc"] = Page(signers.public("alice"))
    words = ("trust", "add", "--prefix", "example.com/app")
    fingerprint = signers.fingerprints["alice"]

    refused = shop("image", "fetch", APP)
    one_line(refused, "is not trusted for it")
    assert "kurma trust add --prefix example.com/app" in refused.stderr
    assert shop.clean()

    nobody = shop(*words)
    assert nobody.returncode == 2
    assert f"--fingerprint {fingerprint}, or --yes" in nobody.stderr
    assert not shop.keys.exists()

    code, shown = at_a_terminal(shop, "n\n", *words)
    assert code == 125
    assert " ".join(fingerprint[at : at + 4] for at in range(0, 40, 4)) in shown
    assert f"trust {fingerprint} for example.com/app? [y/N]" in shown
    assert "no key was added" in shown
    assert not shop.keys.exists()
    one_line(shop("image", "fetch", APP), "is not trusted for it")

    assert at_a_terminal(shop, "y\n", *words)[0] == 0
    assert os.listdir(shop.keys / "prefix.d" / "example.com" / "app") == [fingerprint]
    assert shop.out("image", "fetch", APP) == f"{ident}\n"
    assert [seen.path for seen in shop.owner.server.seen if "pubkeys" in seen.path] == ["/pubkeys.asc"] * 3


# --- pulling ---


def test_pull_words(shop: Shop) -> None:
    shop.trust()
    fetch = ("image", "fetch", "--pull")
    first = shop.owner.publish("example.com/app", "1.0", content="one")
    one_line(shop(*fetch, "never", APP), "--pull never forbids fetching")
    assert not shop.owner.server.seen
    assert shop.out(*fetch, "new", APP) == f"{first}\n"
    asked = len(shop.owner.server.seen)
    assert shop.out(*fetch, "new", APP) == shop.out(*fetch, "never", APP) == f"{first}\n"
    assert len(shop.owner.server.seen) == asked, "what is in the store was asked for"
    second = shop.owner.publish("example.com/app", "1.0", content="two")
    assert shop.out(*fetch, "new", APP) == f"{first}\n"
    assert shop.out(*fetch, "always", APP) == f"{second}\n"
    wrong = shop(*fetch, "sometimes", APP)
    assert wrong.returncode == 2
    assert "'sometimes' is not one of 'new', 'always', 'never'" in wrong.stderr


def test_what_has_not_changed_is_not_sent_again(shop: Shop) -> None:
    """By ETag; and for as long as max-age says nobody is asked at all."""
    shop.trust()
    ident = shop.owner.publish("example.com/app", "1.0")
    page = shop.owner.server.pages[PLACE]
    shop.out("image", "fetch", APP)
    assert (shop.bodies(PLACE), page.sent) == (1, 1)
    assert shop.out("image", "fetch", "--pull", "always", APP) == f"{ident}\n"
    assert (shop.bodies(PLACE), page.sent) == (2, 1), "asked once more, and not sent"
    page.headers = {"Cache-Control": "max-age=600"}
    shop.out("image", "fetch", "--pull", "always", APP)
    asked = len(shop.owner.server.seen)
    assert shop.out("image", "fetch", "--pull", "always", APP) == f"{ident}\n"
    assert len(shop.owner.server.seen) == asked


def test_two_processes_read_it_once(shop: Shop) -> None:
    shop.trust()
    ident = shop.owner.publish("example.com/app", "1.0", content=large())
    # While one waits for the signature, the other comes.
    gate = shop.owner.server.pages[f"{PLACE}.asc"].gate = threading.Event()
    first = shop.popen("image", "fetch", APP)
    until(lambda: shop.bodies(f"{PLACE}.asc"))
    second = shop.popen("image", "fetch", APP)
    assert second.stderr is not None
    said = ""
    while "waiting for another fetch of the same" not in said:
        said += (line := second.stderr.readline())
        assert line, said
    gate.set()
    ends = [one.communicate(timeout=60) for one in (first, second)]
    assert [out for out, _ in ends] == [f"{ident}\n"] * 2, ends
    assert shop.bodies(f"{PLACE}.asc") == 1, "one of them verified it, and the other found it"
    assert not shop.leftovers()


@pytest.mark.full
def test_a_killed_fetch_goes_on_by_range(shop: Shop) -> None:
    shop.trust()
    ident = shop.owner.publish("example.com/app", "1.0", content=large())
    page = shop.owner.server.pages[PLACE]
    whole = len(page.content)
    page.stalls = [whole // 2]
    process = shop.popen("image", "fetch", APP)
    until(lambda: sum(path.stat().st_size for path in partials(shop)) > whole // 3)
    process.kill()
    process.communicate()
    assert not shop.new()
    kept = sum(path.stat().st_size for path in partials(shop))
    assert whole // 3 < kept <= whole // 2
    assert shop.out("image", "fetch", APP) == f"{ident}\n"
    ranges = [seen.headers.get("Range") for seen in shop.owner.server.requests(PLACE)]
    assert ranges == [None, None, f"bytes={kept}-"]
    assert not partials(shop)


def partials(shop: Shop) -> list[Path]:
    return [path for path in shop.leftovers() if path.parent.name == "partial"]


# --- Ctrl-C, and servers that do not answer ---


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Takes no connection: those that are made wait."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        waiting = []
        for _ in range(3):  # the queue is full by then
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
            waiting.append(one)
        yield listener
        for one in waiting:
            one.close()


def interrupt(process: subprocess.Popen[str]) -> None:
    """Ctrl-C ends it, long before any time-out does."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert "Traceback" not in err


@pytest.mark.full
@pytest.mark.parametrize("words", [("image", "fetch"), ("run", "--net", "none")], ids=["fetch", "run"])
def test_ctrl_c_while_nobody_answers(shop: Shop, silent: socket.socket, words: tuple[str, ...]) -> None:
    url = f"http://127.0.0.1:{silent.getsockname()[1]}/x.aci"
    process = shop.popen(*words, "--insecure-options=http,image", url)
    assert process.stderr is not None
    assert "not verified" in process.stderr.readline() + process.stderr.readline()  # it has begun
    time.sleep(0.5)
    assert process.poll() is None
    interrupt(process)
    assert shop.clean()
    assert shop.out("list", "--no-legend") == ""


def test_ctrl_c_in_the_wait_that_a_server_asks_for(shop: Shop) -> None:
    shop.trust()
    shop.owner.publish("example.com/app", "1.0")
    page = shop.owner.server.pages[PLACE]
    page.statuses, page.headers = [429] * 5, {"Retry-After": "50"}
    process = shop.popen("image", "fetch", APP)
    assert process.stderr is not None
    assert "too many requests: trying again in 50 s" in process.stderr.readline()
    interrupt(process)
    assert shop.clean()


@pytest.mark.full
def test_ctrl_c_in_the_middle_keeps_what_came(shop: Shop) -> None:
    """And no more than that: the next fetch goes on from there."""
    shop.trust()
    ident = shop.owner.publish("example.com/app", "1.0", content=large())
    page = shop.owner.server.pages[PLACE]
    page.stalls = [1_000_000]
    process = shop.popen("image", "fetch", APP)
    until(lambda: sum(path.stat().st_size for path in partials(shop)) > 500_000)
    interrupt(process)
    assert not shop.new()
    assert [path.parent.name for path in shop.leftovers()] == ["partial"]
    assert shop.out("image", "fetch", APP) == f"{ident}\n"
    assert "Range" in shop.owner.server.requests(PLACE)[-1].headers


@pytest.mark.parametrize("by_kurmad", [False, True])
def test_ctrl_c_says_what_is_kept(shop: Shop, by_kurmad: bool) -> None:
    """At a terminal, and only where something is kept (19.3)."""
    shop.trust()
    shop.owner.publish("example.com/app", "1.0", content=large())
    page = shop.owner.server.pages[PLACE]
    with kurmad_of(shop) if by_kurmad else contextlib.nullcontext():
        page.stalls = [1_000_000]
        fetch = Person((*KURMA, "image", "fetch", APP), shop.environment)
        fetch.expect("MB")  # the bar
        until(lambda: sum(path.stat().st_size for path in partials(shop)) > 500_000)
        fetch.type("\x03")
        fetch.expect("kurma: stopped; what was downloaded is kept: the same command goes on from there")
        assert fetch.wait() == 130
        fetch.close()
        page.stalls = []
        shop.out("image", "fetch", APP)
        assert "Range" in shop.owner.server.requests(PLACE)[-1].headers
        # Before the first byte there is nothing to keep.
        shop.owner.publish("example.com/app", "2.0", content=large())
        late = "/images/example.com/app-2.0.aci"
        shop.owner.server.pages[late].gate = threading.Event()
        fetch = Person((*KURMA, "image", "fetch", "example.com/app:2.0"), shop.environment)
        until(lambda: shop.owner.server.requests(late), "the request")
        fetch.type("\x03")
        assert fetch.wait() == 130
        assert b"kept" not in fetch.screen
        fetch.close()
        shop.owner.server.pages[late].gate.set()


@contextlib.contextmanager
def kurmad_of(shop: Shop) -> Iterator[None]:
    daemon = shop.popen("daemon", "run")
    until((shop.command.state / "run/kurmad.sock").exists, "kurmad's socket")
    try:
        yield
    finally:
        daemon.terminate()
        daemon.communicate(timeout=20)


def test_long_work_on_files_has_a_bar(shop: Shop, tmp_path: Path) -> None:
    """Merging and removing, at a terminal; nothing of it comes into a pipe (19.3)."""
    root = tmp_path / "tree"

    def shown(*words: str) -> str:
        person = Person((*KURMA, *words), shop.environment)
        try:
            assert person.wait() == 0, bytes(person.screen)
            return person.screen.decode()
        finally:
            person.close()

    # Short work has no bar, and how many files are long work depends on the machine.
    for count in (400, 1600, 6400):
        for number in range(20):
            directory = root / str(number)
            directory.mkdir(parents=True, exist_ok=True)
            for name in range(count):
                (directory / str(name)).touch()
        shop.out("image", "build", "--from-rootfs", str(root), "--name", "many")
        merging = shown("image", "render", "--renderer", "copy", "many")
        removing = shown("image", "rm", "many")
        if "merging layers  [" in merging and "removing files  [" in removing:
            break
    else:
        pytest.fail(f"no bar for 128,000 files: {merging!r}, {removing!r}")
    done = shop("image", "build", "--from-rootfs", str(root), "--name", "many")
    assert done.stderr == ""
    assert shop("image", "render", "--renderer", "copy", "many").stderr == ""
    done = shop("image", "rm", "many")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_connection_that_is_not_taken_ends_by_time(shop: Shop, silent: socket.socket) -> None:
    config = Path(shop.environment["KURMA_CONFIG"])
    config.write_text('{"plugins": {"fetchers": {"http": {"config": {"timeout": 0.5}}}}}')
    began = time.monotonic()
    url = f"http://127.0.0.1:{silent.getsockname()[1]}/x.aci"
    done = shop("image", "fetch", "--insecure-options=http,image", url)
    assert time.monotonic() - began < 20, "the time-out is 30 by itself"
    assert done.returncode == 125
    assert "no answer in time" in done.stderr
    assert shop.clean()


@pytest.mark.full
def test_a_head_that_drips_ends_by_time(shop: Shop) -> None:
    """One byte five times a second, and the time-out is one: all of it is not waited for."""
    config = Path(shop.environment["KURMA_CONFIG"])
    config.write_text('{"plugins": {"fetchers": {"http": {"config": {"timeout": 1.0}}}}}')
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                try:
                    for byte in b"HTTP/1.1 200 OK\r\nServer: " + b"slow" * 100:
                        connection.sendall(bytes((byte,)))
                        time.sleep(0.2)
                except OSError:
                    pass

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        began = time.monotonic()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.aci"
        done = shop("image", "fetch", "--insecure-options=http,image", url)
        assert 1 < time.monotonic() - began < 40
        thread.join(10)
    assert done.returncode == 125
    assert "no answer in time" in done.stderr
    assert shop.clean()


# --- one archive, several ways ---


def test_two_locators_of_one_archive(shop: Shop, tmp_path: Path) -> None:
    """One image, whose ways in are all kept; taking it away takes all."""
    shop.trust()
    path, ident = shop.owner.archive("example.com/app", "1.0")
    shop.owner.put(PLACE, path)
    by_path = tmp_path / "copy.aci"
    by_path.write_bytes(path.read_bytes())
    ways = (APP, f"https://example.com{PLACE}", str(by_path))
    for way in ways:
        assert shop.out("image", "fetch", way) == f"{ident}\n"
    assert shop.new() == {ident}
    shown = shop.out("image", "show", ident)
    for way in ways:
        assert way in shown
    assert len(list((shop.images / "archives").glob(f"{ident}*"))) == 1
    shop.out("image", "rm", ident)
    assert shop.clean()
    for way in ways[:2]:
        one_line(shop("image", "fetch", "--pull", "never", way), "--pull never forbids fetching")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"acKind": "ContainerRuntimeManifest",\n "acVersion": "0.1.0"\n "apps": []}', "line 3, column 2"),
        ('{"acKind": "ContainerRuntimeManifest",\n "apps": [}', "line 2, column 11"),
        ('{"acKind": "ContainerRuntimeManifest", "apps": [', "line 1, column 4"),
    ],
)
def test_broken_json_in_an_early_pod(shop: Shop, tmp_path: Path, text: str, where: str) -> None:
    file = tmp_path / "pod.json"
    file.write_text(text)
    for words in (("run", "--pod"), ("pod", "convert")):
        done = shop(*words, str(file))
        assert done.returncode in (2, 125)
        line = done.stderr.splitlines()[0]
        assert str(file) in line, line
        assert where in line, line
        assert len([line for line in done.stderr.splitlines() if line.startswith("kurma: ")]) == 1
