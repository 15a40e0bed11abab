"""Apps that may use kurmad's API (``host/api-access``): who gets it, with which rights, while whom it is there."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

import kurma_core
from kurma_core.api.pods import AppOverrides, EnterRequest
from kurma_core.errors import IsolatorError, PowerError, PrivilegeError
from kurma_core.models.streams import Stdio
from kurma_core.value import replace
from tests.kit.command import KURMA
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

API = "host/api-access"
NOBODY = 65534


def programs():
    """This installation, as an app sees it: the volumes and the mounts."""
    ours = os.path.dirname(os.path.dirname(kurma_core.__file__))
    places = {"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64", sys.prefix: sys.prefix, ours: ours}
    whole = {path: source for path, source in places.items() if not any(_is_in(path, other) for other in places)}
    named = {f"v{number}": pair for number, pair in enumerate(whole.items())}
    return (
        [
            {"name": name, "kind": "host", "source": os.path.realpath(source), "readOnly": True}
            for name, (_, source) in named.items()
        ],
        [{"volume": name, "path": path} for name, (path, _) in named.items()],
    )


def _is_in(path, other):
    return path.startswith(f"{other}/")


def asking(house, value=True, *, user="0", apps=(), level="app"):
    """A template of a pod whose app ``main`` asks for the API, and has ``kurma``."""
    volumes, mounts = programs()
    wish = [{"name": API, "value": value}]
    app = shell("echo up; sleep 1000", user=user, isolators=wish if level == "app" else [])
    main = {"name": "main", "image": house.image, "app": app, "mounts": mounts}
    others = [{"name": name, "image": house.image, "app": shell("sleep 1000")} for name in apps]
    pod = {"isolators": wish} if level == "pod" else {}
    return {"apps": [main, *others], "volumes": volumes, "networks": ["none"], **pod}


def configuration(image, *powers):
    """One that grants the image these."""
    return {
        "grants": {"some": {"digests": [image], "isolators": list(powers)}} if powers else {},
        "stop_timeout": 2,
        # No pods to come: each has sockets, and those of this daemon are counted.
        "daemon": {"prestarted_stagers": 0},
    }


@pytest.fixture
def granting(make_house, busybox_id):
    """``granting(power, …)``: a house whose configuration grants the busybox image these."""
    return lambda *powers: make_house(configuration(busybox_id, *powers))


def configured(house, *powers):
    """For the daemons that read it from here on."""
    with open(house.config_file, "w") as file:
        json.dump(configuration(house.image, *powers), file)


def reloaded(daemon, *powers):
    configured(daemon.house, *powers)
    before = daemon.log.read_text().count("the configuration was read again")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: daemon.log.read_text().count("the configuration was read again") > before, "the reload")


def detached(client, house, template, **options):
    """A pod that the daemon owns."""
    record = client.prepare(house.request({}, template=template, **options))
    return client.launch(record.uuid)


class Inside:
    """``kurma`` in the app."""

    def __init__(self, house, uuid):
        self._house, self._uuid = house, uuid

    def __call__(self, *words):
        """Exit code, standard output, standard error."""
        return self._house.enter(self._uuid, *KURMA, *words, app="main")

    def shell(self, script, app="main"):
        return self._house.enter(self._uuid, "sh", "-c", script, app=app)[1]


#: Asks on a connection that a process has made which is gone before it is accepted, or soon after.
ORPHANED = """
import os, socket
held = socket.socket(socket.AF_UNIX)
pid = os.fork()
if not pid:
    held.connect("/stolen/kurmad.sock")
    os._exit(0)
os.waitpid(pid, 0)
try:
    held.sendall(b"GET /v1/pods HTTP/1.1\\r\\nHost: kurmad\\r\\n\\r\\n")
except OSError:
    pass
print(held.recv(4096).decode())
"""


def doors(daemon):
    """How many sockets of apps the daemon listens at."""
    pid = daemon.process.pid
    mine = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            mine.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    with open(f"/proc/{pid}/net/unix") as file:
        bound = [line.split() for line in file if line.endswith("/.kurmad.sock\n")]
    return sum(f"socket:[{words[6]}]" in mine for words in bound if words[3] == "00010000")


def test_an_app_may_do_what_is_granted_and_no_more(kurmad, ask, granting):
    house = granting(f"{API}=read")
    daemon = kurmad(house=house)
    client = ask(daemon)
    record = detached(client, house, asking(house, apps=("other",)))
    assert doors(daemon) == 1
    uuid, kurma = record.uuid, Inside(house, record.uuid)
    assert f"app main: its image example.com/busybox has {API}=read by the grant some of kurma.yml" in record.notes
    (report,) = [one for one in record.isolators if one.name == API]
    assert (report.outcome, report.note) == ("enforced", "")
    # It looks, and sees no secrets.
    code, out, err = kurma("list", "--format", "json")
    assert (code, err) == (0, "")
    assert [one["uuid"] for one in json.loads(out)] == [uuid]
    shown = json.loads(kurma("show", uuid, "--format", "json")[1])
    assert (shown["name"], shown["manifest"]) == (record.name, {})
    # It changes nothing, and reads no logs.
    code, out, err = kurma("stop", uuid)
    assert (code, out) == (125, "")
    assert err.startswith("kurma: POST /v1/pods/{pod}/stop needs more than read access\n  hint: set host/api")
    assert f"pod {uuid}, app main, user 0, process " in daemon.log.read_text()
    place, true = f"{house.path(record)}/volumes/kurma-api-main", EnterRequest(("true",), "main")
    with house.connect(host=f"unix:{place}/kurmad.sock") as app:
        for tried, asked in (
            (lambda: app.kill(uuid, signal.SIGKILL), f"POST /v1/pods/{uuid}/kill"),
            (lambda: list(app.logs(uuid)), f"POST /v1/pods/{uuid}/logs"),
            (lambda: app.prepare(house.request("true")), "POST /v1/pods"),
            (
                lambda: app.enter(uuid, true, Stdio(0, 1, 2)),
                f"POST /v1/pods/{uuid}/enter",
            ),
            (lambda: app.image_manifest(house.image), f"GET /v1/images/{house.image}/manifest"),
        ):
            with pytest.raises(PrivilegeError, match="needs more than read access"):
                tried()
            assert f" is refused {asked}\n" in daemon.log.read_text()
    # The other app has none of it; nor can this one put another socket there.
    assert kurma.shell("ls -d /run/kurma; echo $KURMA_HOST", "other") == "\n"
    assert kurma.shell("ls -A /run/kurma; touch /run/kurma/mine; echo $KURMA_HOST") == (
        "kurmad.sock\nunix:/run/kurma/kurmad.sock\n"
    )
    assert os.listdir(place) == ["kurmad.sock"]
    # Nobody else on the host comes by.
    reach = (
        f"import os, socket; place = os.open({place!r}, os.O_PATH); "
        "socket.socket(socket.AF_UNIX).connect(f'/proc/self/fd/{place}/kurmad.sock')"
    )
    done = subprocess.run([sys.executable, "-c", reach], user=NOBODY, group=NOBODY, capture_output=True, text=True)
    assert "PermissionError" in done.stderr
    # Nor does another pod, by whatever volume: not by who connects and ends, either.
    volumes, mounts = programs()
    thief = {"name": "main", "image": house.image, "app": shell("exec sleep 1000"), "mounts": mounts}
    thief["mounts"] = [*mounts, {"volume": "stolen", "path": "/stolen"}]
    stolen = {"name": "stolen", "kind": "host", "source": place}
    with house.running(
        {}, template={"apps": [thief], "volumes": [*volumes, stolen], "networks": ["none"]}
    ) as other:
        strange = Inside(house, other.uuid)
        code, out, err = strange("--host", "unix:/stolen/kurmad.sock", "list")
        assert (code, out) == (125, "")
        assert err.startswith("kurma: this API is for another pod's app\n")
        code, out, err = house.enter(other.uuid, sys.executable, "-c", ORPHANED, app="main")
        assert (code, out.split("\r\n")[0], err) == (0, "HTTP/1.1 403 Forbidden", "")
        assert (
            f", by the socket of {uuid} is refused: this API is for another pod's app\n" in daemon.log.read_text()
        )
    # The daemon dies, and another one comes: with more rights, by the same path.
    daemon.process.kill()
    daemon.process.wait()
    code, _, err = kurma("list")
    assert code == 125
    assert err.startswith("kurma: cannot reach the daemon at /run/kurma/kurmad.sock: connection refused\n")
    configured(house, API)
    daemon = kurmad(house=house)
    until(lambda: kurma("list")[0] == 0, "the API, again")
    code, out, err = kurma("prepare", house.image, "--name", "made-inside")
    assert (code, err) == (0, "")
    assert f"pod {uuid}, app main, user 0, process " in daemon.log.read_text()
    assert " asks for POST /v1/pods\n" in daemon.log.read_text()
    assert house.client.pod("made-inside").state == "prepared"
    code, out, _ = kurma("run", house.image, "--exec", "/bin/busybox", "--", "echo", "from the host")
    assert (code, out.count("from the host")) == (0, 1)
    # What is granted no longer ends at once, with who is connected; and comes back.
    reloaded(daemon)
    until(lambda: not os.listdir(place), "the end of it")
    assert (
        f"app main of pod {uuid} has no API: app main: the pod's manifest asks for {API} "
        in daemon.log.read_text()
    )
    assert kurma("list")[0] == 125
    reloaded(daemon, f"{API}=full")
    until(lambda: kurma("rm", "made-inside")[0] == 0, "its rights")
    # Its end is the pod's.
    client = ask(daemon)
    client.stop(uuid)
    until(lambda: not os.listdir(place), "the end of its path")
    until(lambda: doors(daemon) == 0, "the end of its socket")
    client.rm(uuid)
    reloaded(daemon)
    with pytest.raises(PowerError, match=API):
        detached(client, house, asking(house))


def test_root_says_so_and_any_user_of_a_namespace(kurmad, granting):
    """Typed by root, it needs no grant. A pod of another owner has it, too; its user is anybody."""
    house = granting()
    daemon = kurmad(house=house)
    template = asking(house, user="1000", level="none")
    typed = {"main": AppOverrides(isolators=((API, "read"),))}
    with house.running({}, template=template, userns="auto", overrides=typed) as pod:
        kurma = Inside(house, pod.uuid)
        until(lambda: kurma("list")[0] == 0, "the API")
        first = house.client.pod(pod.uuid)
        user = 1000 + house.client.here.services.store.directory(pod.uuid).read_document().ids.first
        assert [one.outcome for one in first.isolators if one.name == API] == ["enforced"]
        # A clean end takes the socket along, and the next daemon brings it back.
        assert daemon.end() == 0
        place = house.path(pod.uuid, "volumes/kurma-api-main")
        assert os.listdir(place) == []
        daemon = kurmad("--log-format", "json", house=house)
        until(lambda: os.listdir(place), "the API, again")
        code, _, err = kurma("stop", pod.uuid)
        assert (code, "needs more than read access" in err) == (125, True)
        # In the log stands who asked, as the host knows it.
        said = [json.loads(line) for line in daemon.log.read_text().splitlines() if line.startswith("{")]
        (line,) = [one for one in said if " is refused " in one["message"]]
        assert line["by"].startswith(f"pod {pod.uuid}, app main, user {user}, process ")
        assert line["request"] == f"POST /v1/pods/{pod.uuid}/stop"
    until(lambda: not os.listdir(place), "its end")


def test_without_a_daemon_it_is_told(granting):
    house = granting(API)
    request = house.request({}, template=asking(house, level="pod"))
    record = house.client.prepare(request)
    (report,) = [one for one in record.isolators if one.name == API]
    told = "no kurmad serves the state directory: connections are refused until one does"
    assert (report.outcome, report.note) == ("modified", told)
    with pytest.raises(IsolatorError, match="connections are refused until one does"):
        house.client.prepare(replace(request, strict_isolators=True))
    taken = asking(house)
    taken["apps"][0]["mounts"] = [{"volume": "v0", "path": "/run/kurma"}]
    with pytest.raises(IsolatorError, match="mounts something at /run/kurma"):
        house.client.prepare(house.request({}, template=taken))


def test_an_app_that_comes_and_goes(kurmad, ask, granting):
    house = granting(API)
    daemon = kurmad(house=house)
    client = ask(daemon)
    (listed,) = [one for one in client.isolators() if one.name == API]
    assert (listed.outcome, listed.note) == ("enforced", "")
    volumes, _ = programs()
    record = detached(client, house, {**house.template({"first": "sleep 1000"}), "volumes": volumes})
    assert doors(daemon) == 0
    client.app_add(record.uuid, house.request({}, template={"apps": asking(house)["apps"]}), start=True)
    kurma = Inside(house, record.uuid)
    assert doors(daemon) == 1
    code, out, err = kurma("app", "list", record.uuid, "--format", "json")
    assert (code, err) == (0, "")
    assert sorted(one["name"] for one in json.loads(out)) == ["first", "main"]
    # What becomes of the host's socket is none of the app's business.
    os.unlink(daemon.socket)
    daemon.wait_up()
    # Who is connected when its app goes is connected no more.
    place = house.path(record, "volumes/kurma-api-main")
    with socket.socket(socket.AF_UNIX) as held:
        directory = os.open(place, os.O_PATH)  # its path is too long for an address
        held.connect(f"/proc/self/fd/{directory}/kurmad.sock")
        os.close(directory)
        client.app_rm(record.uuid, "main", force=True)
        held.settimeout(10)
        assert held.recv(1) == b""
    assert not os.path.exists(place)
    until(lambda: doors(daemon) == 0, "the end of its socket")
    client.rm(record.uuid, force=True)
