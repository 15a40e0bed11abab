"""Commands that go by way of a daemon: what is cancelled, asked for, refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kurma_core.errors import DecryptionError, HostError, StoreError
from plugins.fetch_docker.tests.docker_parts import BLOB, serve
from tests.kit.client import open_client
from tests.kit.command import KURMA
from tests.kit.host import small_file_system
from tests.kit.images import busybox_root, shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

SECRET = b"open \xff sesame"
NOBODY = 65534
#: Seconds that a server says nothing: longer than anybody waits here.
_WITHHELD = 60.0


def command(daemon, *words, **more):
    which = ["--dir", daemon.house.state, "--config", daemon.house.config_file]
    return subprocess.Popen(
        [*KURMA, *which, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


@pytest.mark.full
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_two_fetch_an_image_and_one_goes_away(kurmad, server, how):
    """The server withholds. The first, which reads it, is interrupted: the second reads it, and has it."""
    daemon = kurmad()
    locator = serve(server)
    server.pages[BLOB].delay = _WITHHELD
    first = command(daemon, "image", "fetch", locator)
    until(lambda: server.requests(BLOB), "the request")
    second = command(daemon, "image", "fetch", locator)
    partial = f"{daemon.house.state}/images/partial"
    until(lambda: os.listdir(partial), "the download")
    server.pages[BLOB].delay = 0.0
    assert second.poll() is None
    first.send_signal(how)
    err = first.communicate(timeout=20)[1]
    expected = {
        signal.SIGINT: (130, ""),
        signal.SIGKILL: (-9, ""),
        signal.SIGTERM: (143, "interrupted by SIGTERM"),
    }
    code, words = expected[how]
    assert first.returncode == code
    assert words in err
    out, err = second.communicate(timeout=20)
    assert second.returncode == 0, err
    assert out.startswith("sha512-")
    assert len(server.requests(BLOB)) == 2
    assert os.listdir(partial) == []
    with daemon.house.connect() as client:
        client.image_rm(out.strip())
    assert "mistake" not in daemon.log.read_text()


class Given:
    """:param said: passphrases, as somebody types them."""

    def __init__(self, *said, attempts=3):
        self.attempts = attempts
        self.said = list(said)
        self.asked = []

    def get(self, what, *, wrong):
        self.asked.append((what, wrong))
        return self.said.pop(0)


@pytest.fixture
def secret(kurmad, tmp_path):
    """A daemon, and the path of an archive that is encrypted."""
    daemon = kurmad()
    root = busybox_root(f"{tmp_path}/root", {"data/secret": "secret\n"})
    manifest = {
        "acKind": "ImageManifest",
        "acVersion": "0.8.11",
        "name": "example.com/secret",
        "app": shell("true"),
    }
    path = f"{tmp_path}/secret.aci"
    daemon.house.client.here.images.files.build(root, manifest, path, passphrase=SECRET)
    return daemon, path


def by(daemon, given, host=None):
    passphrases = None if given is None else lambda: given
    return open_client(daemon.house.config_file, daemon.house.state, host=host, passphrases=passphrases)


def test_passphrases_are_asked_of_the_caller(secret):
    """As often as a person may mistype one, and kept nowhere."""
    daemon, path = secret
    given = Given(b"wrong", SECRET)
    with by(daemon, given) as client:
        assert client.remote
        record = client.image_fetch(path)
        assert given.asked == [("secret.aci", False), ("secret.aci", True)]
        assert record.provenance[-1].encrypted
        client.image_rm(record.id)
        given.said.append(SECRET)
        uploaded = client.image_upload(path)
        assert uploaded.id == record.id
        assert uploaded.provenance[-1].encrypted
        client.image_rm(record.id)
        template = {"apps": [{"name": "main", "image": path}], "networks": ["none"]}
        given.said.append(SECRET)
        pod = client.prepare(daemon.house.request("", template=template))
        assert pod.images == {"main": record.id}
        client.rm(pod.uuid)
        client.image_rm(record.id)
    for place, _, names in os.walk(daemon.house.state):
        for name in names:
            file = os.path.join(place, name)
            if os.path.isfile(file) and not os.path.islink(file) and "/layers/" not in file:
                with open(file, "rb") as stream:
                    assert b"sesame" not in stream.read(), file


@pytest.mark.parametrize("given", [None, Given(None), Given(b"wrong", attempts=1), Given(b"a", b"b", b"c")])
def test_without_the_right_passphrase_it_is_as_in_process(secret, given):
    daemon, path = secret
    said = None if given is None else list(given.said)

    def tried(client):
        with client, pytest.raises(DecryptionError) as caught:
            client.image_fetch(path)
        return caught.value.message, caught.value.hint, caught.value.exit_code

    there = tried(by(daemon, given))
    if given is not None:
        given.said = said
    assert there == tried(by(daemon, given, host="local"))


def test_who_was_asked_and_goes_away_is_not_waited_for(secret):
    daemon, path = secret

    class Leaving(Given):
        def get(self, what, *, wrong):
            raise KeyboardInterrupt

    before = threads(daemon)
    with by(daemon, Leaving()) as client, pytest.raises(KeyboardInterrupt):
        client.image_fetch(path)
    until(lambda: threads(daemon) <= before, "the operation's end")


def threads(daemon):
    return len(os.listdir(f"/proc/{daemon.process.pid}/task"))


@pytest.mark.full
def test_a_daemon_that_is_killed_meanwhile_is_told_of(kurmad, server):
    daemon = kurmad()
    locator = serve(server)
    server.pages[BLOB].delay = _WITHHELD
    fetch = command(daemon, "image", "fetch", locator)
    until(lambda: server.requests(BLOB), "the request")
    daemon.end(signal.SIGKILL)
    out, err = fetch.communicate(timeout=20)
    assert (fetch.returncode, out) == (125, "")
    assert err.splitlines()[-2:] == [
        f"kurma: the daemon at {daemon.socket} has gone: it closed the connection",
        "  hint: pods run on without it; see: kurma list",
    ]
    server.pages[BLOB].delay = 0.0
    # What came by then is gone on with by who comes next, in process.
    with daemon.house.connect() as client:
        assert not client.remote
        client.image_rm(client.image_fetch(locator).id)


@pytest.fixture
def place():
    """A directory that everybody may look into."""
    directory = tempfile.mkdtemp(prefix="kc-", dir="/tmp")
    os.chmod(directory, 0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def group(tmp_path):
    """The ID of a group `kurma`, which this host has meanwhile."""
    file = tmp_path / "group"
    file.write_text(Path("/etc/group").read_text() + "kurma:x:64123:\n")
    subprocess.run(["mount", "--bind", file, "/etc/group"], check=True)
    yield 64123
    subprocess.run(["umount", "/etc/group"], check=True)


def test_who_may_not_use_the_socket_is_told_who_may(place, busybox_image, group):
    """Members of the group `kurma` need not be root; others do what needs no root in process."""
    shutil.copy(busybox_image, f"{place}/busybox.aci")
    Path(f"{place}/kurma.json").write_text("{}")
    program = [*KURMA, "--dir", f"{place}/state"]
    program += ["--config", f"{place}/kurma.json"]
    socket = f"{place}/state/run/kurmad.sock"
    log = Path(f"{place}/log")

    def run(*words, groups=()):
        who = {"user": NOBODY, "group": NOBODY, "extra_groups": groups}
        return subprocess.run(
            [*program, *words], capture_output=True, text=True, cwd=place, timeout=30, check=False, **who
        )

    alone = run("run", "--detach", "example.com/busybox")
    assert alone.stderr.startswith("kurma: only root can run kurma run\n")
    assert alone.stderr.endswith("or have root start kurmad, and be a member of the group kurma\n")
    with log.open("wb") as out:
        process = subprocess.Popen([*program, "daemon", "run"], stdout=out, stderr=out)
    try:
        until(lambda: "serves" in log.read_text(), "it")
        os.chmod(f"{place}/state", 0o755)
        status = os.stat(socket)
        assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o660, 0, group)
        # The kernel keeps out who is not a member; one clear line says so, and who can help.
        refused = run("image", "rm", "example.com/busybox")
        assert refused.returncode == 125
        assert refused.stderr == (
            "kurma: only root can run kurma image rm\n"
            "  hint: run it as root, with sudo for instance; or by way of the kurmad that runs, as a member of "
            "the group kurma\n"
        )
        assert "group kurma" in run("list").stderr
        assert run("version").returncode == 0
        assert run("stager", "list").returncode == 0
        wanted = run("--host", f"unix:{socket}", "list")
        assert wanted.returncode == 125
        assert wanted.stderr.startswith(f"kurma: cannot reach the daemon at {socket}: permission denied\n")
        assert "the group that the socket belongs to" in wanted.stderr
        told = run("daemon", "run").stderr
        assert told.startswith("kurma: only root can run kurmad\n")
        assert told.endswith("as a member of the group kurma\n")
        # Who is one may do all that root may, and is told of in the log.
        member = run("image", "fetch", "./busybox.aci", groups=[group])
        assert member.returncode == 0, member.stderr
        shown = run("image", "show", "example.com/busybox", "--format", "json", groups=[group])
        assert json.loads(shown.stdout)["id"] == member.stdout.strip()
        assert json.loads(shown.stdout)["manifest"]["name"] == "example.com/busybox"
        removed = run("image", "rm", "example.com/busybox", groups=[group])
        assert removed.returncode == 0, removed.stderr
        lines = [line for line in log.read_text().splitlines() if f"user {NOBODY}, process " in line]
        asked = [line.partition(" asks for ")[2] for line in lines]
        assert asked == ["POST /v1/images", "DELETE /v1/images/example.com%2Fbusybox"]
        for groups in ([], [group]):
            copied = run("cp", "./busybox.aci", "web:/", groups=groups)
            assert copied.returncode == 125
            assert copied.stderr == (
                "kurma: only root can run kurma cp: it reaches into the app's root and the host's files by "
                "itself, and no kurmad does it for others\n"
                "  hint: run it as root, with sudo for instance\n"
            )
        needless = run("daemon", "run", groups=[group])
        assert needless.returncode == 125
        assert needless.stderr == (
            "kurma: only root can run kurmad\n"
            f"  hint: there is no need to: one serves {place}/state already, and does what you ask\n"
        )
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_a_member_of_the_group_brings_in_no_image_that_runs_by_its_name(place, busybox_image, group):
    """The key of images built here is root's, and no operation signs with it (19.3)."""
    root = busybox_root(f"{place}/root")
    shutil.copy(busybox_image, f"{place}/busybox.aci")
    os.chmod(f"{place}/busybox.aci", 0o644)
    Path(f"{place}/kurma.json").write_text("{}")
    program = [*KURMA, "--dir", f"{place}/state", "--config", f"{place}/kurma.json"]

    def run(*words):
        return subprocess.run([*program, *words], capture_output=True, text=True, timeout=60, check=False)

    def member(*words):
        who = {"user": NOBODY, "group": NOBODY, "extra_groups": [group]}
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, **who)

    words = ("image", "build", "--from-rootfs", root, "--name", "web", "--exec", "/bin/echo built")
    assert run(*words).returncode == 0
    log = Path(f"{place}/log")
    with log.open("wb") as out:
        process = subprocess.Popen([*program, "daemon", "run"], stdout=out, stderr=out)
    try:
        until(lambda: "serves" in log.read_text(), "it")
        os.chmod(f"{place}/state", 0o755)
        assert member("ls", f"{place}/state/build_key").returncode != 0
        curl = ("curl", "--silent", "--fail", "--unix-socket", f"{place}/state/run/kurmad.sock")
        address = "http://kurma/v1/images/upload?name=web.aci"
        sent = member(
            *curl,
            "--header",
            "Content-Type: application/x-tar",
            "--data-binary",
            f"@{place}/busybox.aci",
            address,
        )
        assert sent.returncode == 0, sent
        refused = run("run", "--rm", "--net", "none", "example.com/busybox")
        assert refused.returncode == 125
        assert "from a local file, without a signature" in refused.stderr
        assert run("run", "--rm", "--net", "none", "web").stdout == "built\n"
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_an_address_where_nobody_listens(kurmad):
    daemon = kurmad()
    for host, why in (("unix:/nowhere/kurmad.sock", "no such file"), ("/etc/passwd", "connection refused")):
        with pytest.raises(HostError, match=f"cannot reach the daemon at .*: {why}"):
            daemon.house.connect(host=host)


PROGRAM = """
import sys
from kurma_core.cli.main import main
code = main(sys.argv[1:])
print("MODULES", *sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""


def test_a_list_by_way_of_the_daemon_imports_next_to_nothing(kurmad):
    """What a command needs in process it leaves alone."""
    daemon = kurmad()
    which = ["--dir", daemon.house.state, "--config", daemon.house.config_file]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *which, "list"], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.startswith("UUID")
    found = set(done.stderr.split("MODULES ")[1].split())
    assert "kurma_core.client.remote" in found
    heavy = {
        "socket",
        "urllib",
        "urllib.parse",
        "http",
        "selectors",
        "select",
        "subprocess",
        "threading",
        "logging",
    }
    heavy |= {"yaml", "pluggy", "stevedore", "dataclasses", "pathlib", "ipaddress", "h11", "kurma_core.daemon"}
    heavy |= {"kurma_core.plugins.registry", "kurma_core.images", "kurma_core.pods", "kurma_core.fetching"}
    assert not heavy & found


def test_a_pod_is_run_by_way_of_the_daemon_without_what_runs_it(kurmad):
    """Much of such a command is what it imports: nothing that brings json, typing or threads is among it."""
    daemon = kurmad()
    which = ["--dir", daemon.house.state, "--config", daemon.house.config_file]
    words = ["run", "--rm", "--net", "none", daemon.house.image, "--exec", "/bin/echo", "--", "hello"]
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM, *which, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout == "hello\n"
    found = set(done.stderr.split("MODULES ")[1].split())
    assert "kurma_core.client.remote.streams" in found
    heavy = {"json", "re", "enum", "functools", "collections", "contextlib", "typing", "signal", "threading"}
    heavy |= {"_ctypes", "struct", "socket", "subprocess", "logging", "yaml", "pluggy", "kurma_core.hookspecs"}
    heavy |= {
        "kurma_core.pods.inside.logs",
        "kurma_core.pods.manager",
        "kurma_core.plugins.registry",
        "kurma_core.images",
    }
    assert not heavy & found


def test_an_archive_for_which_there_is_no_room(kurmad, make_house, ask, busybox_image, tmp_path):
    house = make_house(state=str(tmp_path / "full"))
    (tmp_path / "full").mkdir()
    with small_file_system(tmp_path / "full/images", "size=1m"):
        daemon = kurmad(house=house)
        with pytest.raises(StoreError, match=r"^cannot put an image into the store: no space left on device$"):
            ask(daemon).image_upload(busybox_image, insecure={"image"})
        assert "Traceback" not in daemon.log.read_text()
        daemon.end()
