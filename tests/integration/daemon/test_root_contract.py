"""The client says the same both ways: values, notes and errors, in process and by way of a daemon."""

from __future__ import annotations

import json
import os
import uuid
from io import BytesIO
from types import SimpleNamespace

import pytest

from kurma_core.api.operations import OPERATIONS
from kurma_core.client.remote.http import Connection
from kurma_core.errors import ImageNotFoundError, KurmaError
from kurma_core.models.image import FetchCredentials
from tests.kit.client import open_client
from tests.kit.house import House
from tests.kit.images import archive, busybox_root, shell
from tests.kit.kurmad import Kurmad
from tests.kit.waiting import until

pytestmark = pytest.mark.root


class Said:
    """What became of a call."""

    def __init__(self, client, notes, call):
        notes.clear()
        try:
            self.value, self.error = call(client), None
        except KurmaError as error:
            self.value, self.error = None, (type(error).__name__, error.message, error.hint, error.exit_code)
        self.notes = list(notes)


class Both:
    """A state directory, a daemon that serves it, and a client of each way."""

    def __init__(self, state, image, directory):
        self.directory = str(directory)
        file = directory / "kurma.json"
        # No pods to come: they would outlast the test that has them made.
        config = {"stop_timeout": 3, "trustedkeys": [f"{directory}/keys"], "daemon": {"prestarted_stagers": 0}}
        file.write_text(json.dumps(config))
        self.house = House(str(file), state, image, self.directory)
        self.daemon = Kurmad(self.house)
        self.notes = []
        note = self.notes.append
        self.here = open_client(str(file), state, host="local", note=note)
        self.there = open_client(str(file), state, host=f"unix:{self.daemon.socket}", note=note)
        self.here.here.warm()  # what it starts for itself is there before the first test
        assert not self.here.remote
        assert self.there.remote

    def say(self, way, call):
        return Said(getattr(self, way), self.notes, call)

    def same(self, call):
        """What both say, which is the same."""
        here, there = self.say("here", call), self.say("there", call)
        assert there.error == here.error
        assert there.value == here.value
        assert there.notes == here.notes
        return here

    def started(self, apps="sleep 1000", **options):
        """UUID of a pod that the daemon owns."""
        record = self.here.prepare(self.house.request(apps, **options))
        with Connection.open(self.daemon.socket) as connection:
            answer = connection.request("POST", f"/v1/pods/{record.uuid}/start", b"")
            assert answer.status == 200, answer.read()
        return record.uuid

    def close(self):
        self.here.close()
        self.there.close()
        assert self.daemon.end() == 0
        self.house.close()


@pytest.fixture(scope="module")
def both(session_state, busybox_id, tmp_path_factory):
    made = Both(session_state, busybox_id, tmp_path_factory.mktemp("contract"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def ended(both):
    """A pod that has ended, and what it was."""
    pod = both.started("echo out; echo err >&2; printf '\\377 no utf-8'; exit 7", ephemeral=False)
    until(lambda: both.here.pod(pod).state == "stopped", "its end")
    return pod


CREDENTIALS = FetchCredentials("user", "hunter22")
#: By name: what is asked, of both on the same state; and whether it is an error.
ALIKE = {
    "pods": (lambda c, x: c.pods(), False),
    "pods_json": (lambda c, x: c.pods_json(), False),
    "summaries": (lambda c, x: c.summaries(), False),
    "pod": (lambda c, x: c.pod(x.pod), False),
    "pod: no such": (lambda c, x: c.pod("nobody"), True),
    "pod: a strange name": (lambda c, x: c.pod("a/b?c=d e%20\u00e9"), True),
    "wait": (lambda c, x: c.wait(x.pod), False),
    "wait: no such": (lambda c, x: c.wait("nobody"), True),
    "logs": (lambda c, x: list(c.logs(x.pod)), False),
    "logs, some": (lambda c, x: list(c.logs(x.pod, "main", tail=1, stream="stdout")), False),
    "logs: no such app": (lambda c, x: list(c.logs(x.pod, "other")), True),
    "logs: no such execution": (lambda c, x: list(c.logs(x.pod, instance=9)), True),
    "usage": (lambda c, x: [one.uuid for one in c.usage()], False),
    "usage: it has ended": (lambda c, x: c.usage([x.pod]), True),
    "usage: no such": (lambda c, x: c.usage([x.pod, "nobody"]), True),
    "processes: it has ended": (lambda c, x: c.processes(x.pod), True),
    "processes: no such": (lambda c, x: c.processes("nobody", "main"), True),
    "stop: it has ended": (lambda c, x: c.stop(x.pod), False),
    "healthcheck: it has ended": (lambda c, x: c.healthcheck(x.pod), True),
    "kill: it has ended": (lambda c, x: c.kill(x.pod, 15), True),
    "rm: no such": (lambda c, x: c.rm("nobody", force=True), True),
    "gc, only said": (lambda c, x: c.gc(grace=0.0, dry_run=True), False),
    "app_add: it has ended": (lambda c, x: c.app_add(x.pod, x.request), True),
    "app_start: it has ended": (lambda c, x: c.app_start(x.pod, "main"), True),
    "app_stop: no such": (lambda c, x: c.app_stop("nobody", "main", timeout=1.0), True),
    "app_rm: it has none": (lambda c, x: c.app_rm(x.pod, "other"), True),
    "app_update: no such": (lambda c, x: c.app_update("nobody", "main", {"os/linux/oom-score-adj": 5}), True),
    "app_reopen_log: it has ended": (lambda c, x: c.app_reopen_log(x.pod, "main"), True),
    "pod_annotate: Kurma acts on it": (lambda c, x: c.pod_annotate(x.pod, set={"kurma.io/pid": "host"}), True),
    "prepare: no such image": (lambda c, x: c.prepare(x.unknown), True),
    "prepare: no such stager": (lambda c, x: c.prepare(x.no_stager), True),
    "image_fetch": (lambda c, x: c.image_fetch(x.archive), False),
    "image_fetch: relaxed": (lambda c, x: c.image_fetch(x.archive, insecure=frozenset({"image"})), False),
    "image_fetch: not built here": (lambda c, x: c.image_fetch(x.archive, built=True), True),
    "image_fetch: no such file": (lambda c, x: c.image_fetch("/nowhere/x.aci"), True),
    "image_fetch: never": (lambda c, x: c.image_fetch("example.com/none", pull="never"), True),
    "image_fetch: no way to pull": (lambda c, x: c.image_fetch(x.archive, pull="sometimes"), True),
    "image_fetch: no locator": (lambda c, x: c.image_fetch("::"), True),
    "image_fetch: no image": (lambda c, x: c.image_fetch(x.broken), True),
    "image_upload: no such file": (lambda c, x: c.image_upload("/nowhere/x.aci"), True),
    "image_upload: no image": (lambda c, x: c.image_upload(x.broken), True),
    "images_list": (lambda c, x: [(one.record, one.trust) for one in c.images_list().images], False),
    "image": (lambda c, x: c.image(x.image), False),
    "image, by name": (lambda c, x: c.image("example.com/busybox"), False),
    "image: no such": (lambda c, x: c.image("example.com/none"), True),
    "image: empty": (lambda c, x: c.image(""), True),
    "image_manifest": (lambda c, x: c.image_manifest(x.image), False),
    "image_manifest: no such": (lambda c, x: c.image_manifest("sha512-" + "0" * 128), True),
    "image_archive: no such": (lambda c, x: c.image_archive("example.com/none", BytesIO()), True),
    "image_export: no such": (lambda c, x: c.image_export("example.com/none", f"{x.directory}/none.aci"), True),
    "image_export: no such directory": (lambda c, x: c.image_export(x.image, "/nowhere/x.aci"), True),
    "image_push": (lambda c, x: c.image_push(x.image, f"docker-archive:{x.directory}/pushed.tar"), False),
    "image_push: no such": (lambda c, x: c.image_push("example.com/none", f"oci:{x.directory}/pushed"), True),
    "image_push: nowhere": (lambda c, x: c.image_push(x.image, "oci:/nowhere/at/all"), True),
    "image_push: it came from no registry": (lambda c, x: c.image_push(x.image), True),
    "image_push: a name without a host": (lambda c, x: c.image_push(x.image, "busybox"), True),
    "image_push: only fetched from": (lambda c, x: c.image_push(x.image, "https://127.0.0.1:1/x.aci"), True),
    "image_push: credentials for a file": (
        lambda c, x: c.image_push(x.image, f"oci:{x.directory}/pushed", credentials=CREDENTIALS),
        True,
    ),
    "image_render": (lambda c, x: c.image_render(x.image), False),
    "image_render: no such renderer": (lambda c, x: c.image_render(x.image, "cubist"), True),
    "image_verify": (lambda c, x: c.image_verify(x.image), False),
    "image_verify: no such": (lambda c, x: c.image_verify("example.com/none"), True),
    "image_extract: not empty": (lambda c, x: c.image_extract(x.image, "/usr"), True),
    "image_extract: a file": (lambda c, x: c.image_extract(x.broken, f"{x.directory}/never"), True),
    "extract: a file": (lambda c, x: c.extract(x.broken, f"{x.directory}/never"), True),
    "image_rm, only said": (lambda c, x: c.image_rm(x.odd_name, dry_run=True), False),
    "image_rm: a pod uses it": (lambda c, x: c.image_rm(x.image), True),
    "image_release: a pod uses it": (lambda c, x: c.image_release(x.image, "conductor"), True),
    "image_release: no such": (lambda c, x: c.image_release("example.com/none", "conductor"), True),
    "image_fetch: credentials for a file": (lambda c, x: c.image_fetch(x.archive, credentials=CREDENTIALS), True),
    "image_store_use": (lambda c, x: c.image_store_use(), False),
    "image_gc, only said": (lambda c, x: c.image_gc(grace=0.0, dry_run=True), False),
    "disk_use": (lambda c, x: c.disk_use(), False),
    "prune, only said": (lambda c, x: c.prune(all=True, dry_run=True), False),
    "prune, nothing chosen": (lambda c, x: c.prune(all=True, only=[], dry_run=True), False),
    "prune, many chosen": (lambda c, x: c.prune(all=True, only=x.keys, dry_run=True), False),
    "trust_list": (lambda c, x: c.trust_list(), False),
    "trust_read: a file": (lambda c, x: c.trust_read(x.key), False),
    "trust_read: no such file": (lambda c, x: c.trust_read("/nowhere/key.asc"), True),
    "trust_read: nobody answers": (lambda c, x: c.trust_read("https://127.0.0.1:1/key.asc"), True),
    "trust_find: a relaxation that is none": (lambda c, x: c.trust_find(name="a.example", insecure=["x"]), True),
    "trust_find: neither": (lambda c, x: c.trust_find(), True),
    "trust_add: no key": (lambda c, x: c.trust_add("nonsense"), True),
    "trust_rm: no such": (lambda c, x: c.trust_rm("0" * 40, "example.com/none"), True),
    "networks_list": (lambda c, x: c.networks_list(), False),
    "network": (lambda c, x: c.network("default"), False),
    "network: no such": (lambda c, x: c.network("nowhere"), True),
    "network_rm: no such": (lambda c, x: c.network_rm("nowhere"), True),
    "network_check": (lambda c, x: c.network_check(), False),
    "network_check: no such": (lambda c, x: c.network_check(["nowhere"]), True),
    "secret_create: not base64": (lambda c, x: c.secret_create("wrong", "hunter2!"), True),
    "secret_create: a path": (lambda c, x: c.secret_create("../wrong", "aHVudGVyMg=="), True),
    "secret_create, replaced": (lambda c, x: c.secret_create("pass", "aHVudGVyMg==", replace=True).name, False),
    "secret_create: it exists": (lambda c, x: c.secret_create("pass", "aHVudGVyMg=="), True),
    "secrets_list": (lambda c, x: c.secrets_list(), False),
    "secret": (lambda c, x: c.secret("pass"), False),
    "secret: no such": (lambda c, x: c.secret("nothing"), True),
    "secret_rm: no such": (lambda c, x: c.secret_rm("nothing"), True),
    "volumes_list": (lambda c, x: c.volumes_list(), False),
    "volume": (lambda c, x: c.volume(x.volume), False),
    "volume: no such": (lambda c, x: c.volume("nothing"), True),
    "volume: no name": (lambda c, x: c.volume("../x"), True),
    "volume_create": (lambda c, x: c.volume_create(x.volume), False),
    "volume_create: another": (lambda c, x: c.volume_create(x.volume, mode="0700"), True),
    "volume_create: no mode": (lambda c, x: c.volume_create("other", mode="x"), True),
    "volume_create: no name": (lambda c, x: c.volume_create("a/b"), True),
    "volume_rm: no such": (lambda c, x: c.volume_rm("nothing"), True),
    "volume_rm: no such, forced": (lambda c, x: c.volume_rm("nothing", force=True), False),
    "volume_prune, only said": (lambda c, x: c.volume_prune(dry_run=True), False),
    "volume_prune, nothing chosen": (lambda c, x: c.volume_prune(only=["nothing"]), False),
    "prune with volumes, only said": (lambda c, x: c.prune(volumes=True, dry_run=True), False),
    "stagers": (lambda c, x: c.stagers(), False),
    "stager_build": (lambda c, x: c.stager_build("default"), False),
    "stager_build: no such": (lambda c, x: c.stager_build("nobody"), True),
    "stager_check: no such": (lambda c, x: c.stager_check("/nowhere/x.aci", print), True),
    "plugins": (lambda c, x: [{**one.to_json(), "process": "either"} for one in c.plugins()], False),
    "version": (lambda c, x: c.version(), False),
    "isolators": (lambda c, x: c.isolators(), False),
    "info": (lambda c, x: {**c.info().to_json(), "daemon": None}, False),
    "host_checks": (lambda c, x: c.host_checks(), False),
}


@pytest.fixture(scope="module")
def things(both, ended, signers, busybox_image, tmp_path_factory):
    """What is asked about."""
    directory = tmp_path_factory.mktemp("things")
    root = busybox_root(f"{directory}/root")
    odd = archive(root, f"{directory}/odd.aci", "example.com/odd", app=shell("true"), strange=1)
    (directory / "broken.aci").write_bytes(b"no archive at all")
    (directory / "alice.asc").write_bytes(signers.public("alice"))
    both.here.image_fetch(odd)
    both.here.secret_create("pass", "aHVudGVyMg==")
    request = both.house.request
    both.here.volume_create("data")
    return SimpleNamespace(
        volume="data",
        pod=ended,
        directory=str(directory),
        image=both.house.image,
        archive=busybox_image,
        broken=f"{directory}/broken.aci",
        odd_name="example.com/odd",
        key=f"{directory}/alice.asc",
        keys=[*(f"image/sha512-{number:0128x}" for number in range(1000)), f"image/{both.house.image}"],
        request=request({"more": "true"}),
        unknown=request("", template=both.house.template({"a": {"image": {"id": "sha512-" + "1" * 128}}})),
        no_stager=request("true", stager="nobody"),
    )


@pytest.mark.parametrize("name", ALIKE)
def test_both_say_the_same(both, things, name):
    call, wrong = ALIKE[name]
    said = both.same(lambda client: call(client, things))
    assert (said.error is not None) == wrong, said.error


#: Operations that are compared in the tests beside this one, or that only kurmad has.
ELSEWHERE = {"run", "start", "enter", "attach", "launch", "events", "log_lines", "prepare"}
OF_KURMAD = {"answer", "healthz", "metrics", "openapi", "reload"}


def test_damaged_images_hide_nothing(both, things, tmp_path):
    """What is wrong with them is told beside the list, the same both ways."""
    root = busybox_root(f"{tmp_path}/root", {"data/x": "x"})
    path = archive(root, f"{tmp_path}/damaged.aci", "example.com/damaged", app=shell("true"))
    record = both.here.image_fetch(path)
    document = f"{both.house.state}/images/images/{record.id}/image.json"
    with open(document, "w") as file:
        file.write("{")

    def said(client):
        listing = client.images_list()
        damaged = [(type(error).__name__, error.message, error.hint) for error in listing.damaged]
        return listing.images, damaged

    images, damaged = both.same(said).value
    assert things.image in [one.record.id for one in images]
    assert [kind for kind, message, _ in damaged if document in message] == ["StoreError"]
    both.there.image_rm(record.id)
    assert both.same(said).value[1] == []


def test_bytes_that_are_no_archive_are_the_callers_mistake(both, tmp_path):
    """And no failure of the daemon; and so is a name that nobody can look for."""
    (tmp_path / "junk.aci").write_bytes(b"nonsense" * 100)
    said = both.same(lambda client: client.image_upload(str(tmp_path / "junk.aci")))
    assert said.error[0] == "ArchiveError"
    told = []
    with Connection.open(both.daemon.socket) as connection:
        for path, body in (("/upload?name=junk.aci", b"nonsense" * 100), ("", b'{"locator": "nowhere"}')):
            answer = connection.request("POST", f"/v1/images{path}", body)
            told.append((answer.status, json.loads(answer.read())["error"]["kind"]))
    assert told == [(400, "ArchiveError"), (404, "FetchNotFoundError")]


def test_nothing_is_left_out():
    asked = {name.split(":")[0].split(",")[0] for name in ALIKE}
    methods = {operation.method for operation in OPERATIONS.values()}
    assert methods - ELSEWHERE - OF_KURMAD - asked == set()


@pytest.mark.parametrize("way", ["here", "there"])
def test_an_archive_out_and_in_again(both, things, signers, way, tmp_path):
    """Written to a file, extracted, handed over with its signature; what it leaves is told."""
    client = getattr(both, way)
    moved = []
    bar = SimpleNamespace(
        start=lambda what, total, unit="bytes": moved.append((what, total)),
        skip=None,
        advance=lambda count: moved.append(count),
        finish=lambda: moved.append("end"),
    )
    # By its ID: another test of the same store may have a newer image of that name.
    client.image_export(things.image, str(tmp_path / "x.aci"), bar)
    with open(things.archive, "rb") as file:
        assert (tmp_path / "x.aci").read_bytes() == file.read()
    assert (moved[0], moved[-1]) == ((things.image, None), "end")
    assert sum(moved[1:-1]) == os.path.getsize(things.archive)
    assert len(moved) > 5, "as it comes"
    with pytest.raises(ImageNotFoundError):
        client.image_export("example.com/none", str(tmp_path / "none.aci"))
    assert not (tmp_path / "none.aci").exists()
    assert client.image_extract(things.image, str(tmp_path / "root")).id == things.image
    assert (tmp_path / "root/data/from-image").read_text() == "seed\n"
    (key,) = client.trust_read(things.key)
    for action in ("added", "refreshed"):
        change = client.trust_add(key.material.decode(), source=key.source, prefix="example.com")
        assert (change.action, change.fingerprint) == (action, signers.fingerprints["alice"])
    assert [(one.prefix, one.state) for one in client.trust_list()] == [("example.com", "trusted")]
    root = busybox_root(f"{tmp_path}/other", {"data/way": way})
    path = archive(root, f"{tmp_path}/up load.aci", "example.com/up", app=shell("true"), odd=1)
    (tmp_path / "good.asc").write_bytes(signers.sign(tmp_path / "up load.aci", "alice"))
    (tmp_path / "bad.asc").write_bytes(signers.sign(tmp_path / "x.aci", "alice"))
    moved.clear()
    with pytest.raises(KurmaError, match=r"upload:up%20load\.aci"):
        client.image_upload(path, signature=str(tmp_path / "bad.asc"))
    both.notes.clear()
    record = client.image_upload(path, signature=str(tmp_path / "good.asc"), progress=bar)
    assert both.notes == ["upload:up%20load.aci: unknown key $.odd is kept and means nothing to Kurma"]
    assert [one.trust for one in record.provenance] == ["signed"]
    assert [one.locator for one in record.provenance] == ["upload:up%20load.aci"]
    size = os.path.getsize(path)
    assert (moved[0][1], sum(moved[1:-1]), moved[-1]) == (size, size, "end")
    change = client.trust_rm(signers.fingerprints["alice"], "example.com")
    assert change.action == "removed"
    assert both.same(lambda c: c.image("example.com/up").lapse).value == "unknown"
    assert client.image_rm("example.com/up").removed[0].kind == "image"
    assert os.listdir(f"{both.house.state}/images/partial") == []


@pytest.mark.parametrize("way", ["here", "there"])
def test_a_pod_that_changes(both, things, way, monkeypatch, tmp_path):
    """Prepared, its apps added, started, stopped, removed; signalled, stopped, collected."""
    client = getattr(both, way)
    monkeypatch.chdir(os.path.dirname(things.archive))
    template = {"apps": [{"name": "main", "image": "./busybox.aci"}], "networks": ["none"]}
    record = client.prepare(both.house.request("", template=template, uuid=str(uuid.uuid4()), name=f"by-{way}"))
    assert (record.state, record.name, record.images) == ("prepared", f"by-{way}", {"main": things.image})
    with pytest.raises(KurmaError, match=f"by-{way}"):
        client.prepare(both.house.request("true", name=f"by-{way}"))
    client.rm(record.uuid)
    pod = both.started("trap 'exit 9' USR1; echo up; while :; do sleep 0.05; done")
    until(lambda: "up" in both.house.log(client.pod(pod)), "the trap")
    added = client.app_add(pod, both.house.request({"more": "sleep 1000"}, net=None))
    assert [app.name for app in added.apps] == ["main", "more"]
    assert client.app_start(pod, "more").apps[1].pid
    assert client.app_stop(pod, "more", force=True).apps[1].exited
    client.app_rm(pod, "more")
    assert [app.name for app in client.pod(pod).apps] == ["main"]
    client.kill(pod, 10, "main")
    assert client.wait(pod).exit_code == 9
    assert pod in [one.name for one in client.gc(grace=0.0).removed] or client.pods() == []
    with pytest.raises(KurmaError, match="no pod"):
        client.pod(pod)


def test_logs_do_not_get_in_the_way_of_what_is_asked_meanwhile(both):
    pod = both.started("echo one; echo two; sleep 1000")
    until(lambda: list(both.there.logs(pod)), "its output")
    lines = both.there.logs(pod, follow=True)
    assert next(lines).text.startswith(b"one")
    assert both.there.pod(pod).state == "running"
    lines.close()
    both.there.stop(pod, force=True)
    both.there.rm(pod)
