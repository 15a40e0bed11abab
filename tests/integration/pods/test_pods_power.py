"""Power over the host, asked for at each level: refused without a grant, and there with one (X5, X6)."""

import os
import subprocess

import pytest

from kurma_core.api.pods import AppOverrides
from kurma_core.errors import ConfigError, IsolatorError, PowerError, StagerError
from kurma_core.linux import capabilities
from kurma_core.value import replace
from tests.kit.images import archive, busybox_root, image_id, shell
from tests.kit.keys import gnupg_home
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root

NAME = "example.com/tools/busybox"
PRIVILEGED, HOST, DEVICES = "os/linux/privileged", "host/privileged", "kurma.io/devices"
NAMESPACES = "os/linux/namespaces"
#: Every machine has it, and no app: the kernel's log.
KMSG = "/dev/kmsg"
#: By isolator: a value, the power that a grant names, and what shows from inside that it is had.
POWERS = {
    PRIVILEGED: (True, PRIVILEGED, "grep -q 'Seccomp:.0' /proc/self/status && head -c 1 /dev/kmsg | wc -c"),
    HOST: (True, HOST, "cat /host/root/etc/hostname /host/proc/1/comm && ls -d /host/pods/names"),
    DEVICES: (
        [{"path": "/dev/own/log", "hostPath": KMSG, "access": "r"}],
        f"{DEVICES}={KMSG}",
        "stat -c %t:%T /dev/own/log",
    ),
    NAMESPACES: ({"pid": "host"}, f"{NAMESPACES}=pid", "readlink /proc/self/ns/pid"),
}


def shown(isolator):
    """What an app that has the power prints."""
    if isolator == PRIVILEGED:
        return "1\n"
    if isolator == HOST:
        texts = []
        for path in ("/etc/hostname", "/proc/1/comm"):
            with open(path) as file:
                texts.append(file.read())
        return "".join(texts) + "/host/pods/names\n"
    if isolator == DEVICES:
        return "1:b\n"
    return os.readlink("/proc/self/ns/pid") + "\n"


class Workshop:
    """Images that somebody has signed, and houses that trust alice."""

    def __init__(self, directory, make_house, state, signers):
        self._directory, self._make_house, self._state, self._signers = directory, make_house, state, signers
        self.keys = directory / "keys"
        self.trust("alice")
        self._root = busybox_root(str(directory / "root"))

    def trust(self, name, data=None):
        place = self.keys / "root.d"
        place.mkdir(parents=True, exist_ok=True)
        (place / self._signers.fingerprints[name]).write_bytes(data or self._signers.public(name))

    def image(self, file="image", *, name=NAME, signer="alice", script="true", isolators=None, **manifest):
        """Path of an archive. :param signer: None: it is not signed."""
        listed = [{"name": key, "value": value} for key, value in (isolators or {}).items()]
        app = shell(script, isolators=listed)
        path = archive(self._root, str(self._directory / f"{file}.aci"), name, app=app, **manifest)
        if signer is not None:
            (self._directory / f"{file}.aci.asc").write_bytes(self._signers.sign(path, signer))
        return path

    def house(self, **grants):
        """:param grants: of ``kurma.yml``."""
        config = {"trustedkeys": [str(self.keys)], "grants": grants, "stop_timeout": 2}
        return self._make_house(config, state=self._state)

    def signed_by(self, name, **more):
        return {"images": ["example.com/tools"], "signers": [self._signers.fingerprints[name]], **more}


@pytest.fixture
def workshop(tmp_path, make_house, session_state, signers):
    return Workshop(tmp_path, make_house, session_state, signers)


def asking(workshop, level, isolator, value, **image):
    return asking_for(workshop, level, {isolator: value}, **image)


def asking_for(workshop, level, isolators, **image):
    """A template for a pod of one app of an image that shows the powers; asked for at that level."""
    script = "; ".join(POWERS[isolator][2] for isolator in isolators)
    listed = [{"name": isolator, "value": value} for isolator, value in isolators.items()]
    path = workshop.image(script=script, isolators=isolators if level == "image" else None, **image)
    app = {"name": "main", "image": path}
    if level == "app":
        app["app"] = shell(script, isolators=listed)
    pod = {"isolators": listed} if level == "pod" else {}
    return {"apps": [app], "networks": ["none"], **pod}


SAYS = {"image": "app main: its image", "app": "app main: the pod's manifest", "pod": "app main: the pod asks"}


@pytest.mark.parametrize("level", ["image", "app", "pod"])
def test_power_is_had_by_a_grant_alone(workshop, level):
    """Of several each by its own."""
    template = asking_for(workshop, level, {isolator: value for isolator, (value, _, _) in POWERS.items()})
    powers = [power for _, power, _ in POWERS.values()]
    for power in powers:
        others = [one for one in powers if one != power]
        other = {"images": ["example.com"], "isolators": ["host/api-access"]}
        without = workshop.house(tools=workshop.signed_by("alice", isolators=others), other=other)
        with pytest.raises(PowerError) as caught:
            without.run({}, template=template)
        message = caught.value.message
        assert message.startswith(SAYS[level]), message
        assert NAME in message
        assert power in message
        assert workshop.signed_by("alice")["signers"][0] in message
        assert f"images: [{NAME}], signers: [" in caught.value.hint
        assert caught.value.hint.endswith(f"isolators: [{power}]}}")
        assert without.uuids() == [], "a refused pod leaves nothing"

    house = workshop.house(tools=workshop.signed_by("alice", isolators=powers))
    record, output = house.run({}, template=template)
    assert (record.exit_code, output) == (0, "".join(map(shown, POWERS))), record
    for power in powers:
        assert f"app main: its image {NAME} has {power} by the grant tools of kurma.yml" in record.notes
    reports = {one.name: one for one in record.isolators if not one.default}
    assert reports.keys() == POWERS.keys()
    lacks = capabilities.bounding() != frozenset(range(capabilities.last_cap() + 1))
    for isolator, report in reports.items():
        assert report.outcome == ("modified" if isolator == PRIVILEGED and lacks else "enforced"), report.note


ONE = {"isolators": [PRIVILEGED]}


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ({"signer": "mallory"}, "is not signed|no signature|not trusted"),
        ({"signer": None}, "it carries no signature that was verified"),
        ({"name": "example.com/toolsmith"}, "asks for os/linux/privileged"),
        ({"name": "example.com"}, "asks for os/linux/privileged"),
    ],
)
def test_who_is_not_meant_is_refused(workshop, image, says):
    house = workshop.house(tools=workshop.signed_by("alice", **ONE))
    template = asking(workshop, "image", PRIVILEGED, True, **image)
    with pytest.raises(Exception, match=says):
        house.run({}, template=template)
    assert house.uuids() == []


def test_a_signer_that_is_trusted_is_not_yet_the_one_that_is_granted(workshop):
    workshop.trust("mallory")
    template = asking(workshop, "image", PRIVILEGED, True, signer="mallory")
    with pytest.raises(PowerError, match=f"signed by {workshop.signed_by('mallory')['signers'][0]}"):
        workshop.house(tools=workshop.signed_by("alice", **ONE)).run({}, template=template)
    anyone = {"images": ["example.com/tools"], **ONE}
    assert workshop.house(tools=anyone).run({}, template=template)[1] == "1\n"


def test_an_unsigned_image_is_granted_by_its_digest(workshop):
    template = asking(workshop, "image", PRIVILEGED, True, signer=None)
    digest = image_id(template["apps"][0]["image"])
    with pytest.raises(PowerError) as caught:
        workshop.house(tools={"images": ["example.com"], **ONE}).run({}, template=template)
    assert f"digests: [{digest}]" in caught.value.hint
    with pytest.raises(PowerError):
        workshop.house(tools={"digests": ["sha512-" + "0" * 128], **ONE}).run({}, template=template)
    assert workshop.house(tools={"digests": [digest], **ONE}).run({}, template=template)[1] == "1\n"


def test_what_an_image_is_made_of_is_judged_with_it(workshop, signers):
    """Nobody comes by power on the back of an image that is granted it, nor below one."""
    workshop.trust("mallory")
    house = workshop.house(tools=workshop.signed_by("alice", **ONE))
    granted = workshop.image("granted")
    below = workshop.image("below", name="example.net/below", signer="mallory")
    for path in (granted, below):
        house.client.here.images.fetch(path)

    def asks(name, signer, **dependency):
        return asking(workshop, "image", PRIVILEGED, True, name=name, signer=signer, dependencies=[dependency])

    back = asks("example.net/back", "mallory", imageName=NAME, imageID=image_id(granted))
    with pytest.raises(PowerError, match=r"example.net/back asks .*[(]signed by"):
        house.run({}, template=back)
    by_id = asks("example.com/tools/app", "alice", imageName="example.net/below", imageID=image_id(below))
    house.client.here.images.fetch(by_id["apps"][0]["image"])
    assert house.run({}, template=by_id)[1] == "1\n"
    by_name = asks("example.com/tools/app", "alice", imageName="example.net/below")
    assert house.run({}, template=by_name)[1] == "1\n"
    (workshop.keys / "root.d" / signers.fingerprints["mallory"]).unlink()
    with pytest.raises(PowerError, match=r"it depends on example.net/below, which is not signed"):
        house.run({}, template=by_name, insecure=frozenset({"image"}))


def test_a_pod_that_was_prepared_is_judged_again_when_it_starts(workshop, signers):
    template = asking(workshop, "image", PRIVILEGED, True)
    house = workshop.house(tools=workshop.signed_by("alice", **ONE))
    record = house.client.prepare(house.request({}, template=template))
    try:
        for other in (workshop.house(), workshop.house(tools=workshop.signed_by("mallory", **ONE))):
            with pytest.raises(PowerError, match="app main: its image"):
                other.start(record.uuid)
        assert house.state_of(record)["state"] == "prepared"
        assert house.start(record.uuid)[1] == "1\n"
        (workshop.keys / "root.d" / signers.fingerprints["alice"]).unlink()
        with pytest.raises(PowerError, match="is not trusted for that name any more"):
            house.start(record.uuid)
    finally:
        house.client.rm(record.uuid)


def test_who_may_not_be_started_again_is_not_stopped_first(workshop, signers):
    value, _, _ = POWERS[DEVICES]
    path = workshop.image(script="sleep 1000", isolators={DEVICES: value})
    house = workshop.house(tools=workshop.signed_by("alice", isolators=[DEVICES]))
    template = {"apps": [{"name": "main", "image": path}], "networks": ["none"]}
    with house.running({}, template=template) as pod:
        withdrawn = workshop.house()
        with pytest.raises(PowerError, match=r"no grant of kurma\.yml gives"):
            withdrawn.client.stop(pod.uuid, again=True)
        assert pod.stager.alive()
        state = house.state_of(pod)
        assert (state["state"], state["cause"]) == ("running", None)


def test_a_revoked_key_gives_nothing(workshop, signers):
    if "revoked" not in signers.fingerprints:
        signers.make("revoked")
    workshop.trust("revoked")
    template = asking(workshop, "image", PRIVILEGED, True, signer="revoked")
    house = workshop.house(tools=workshop.signed_by("revoked", **ONE))
    record = house.client.prepare(house.request({}, template=template))
    try:
        with gnupg_home() as own:
            own.fingerprints["revoked"] = signers.fingerprints["revoked"]
            own.gpg("--import", stdin=signers.public("revoked"))
            own.gpg("--import", stdin=signers.revocation_of("revoked"))
            workshop.trust("revoked", own.public("revoked"))
        with pytest.raises(PowerError, match="was revoked"):
            house.start(record.uuid)
    finally:
        house.client.rm(record.uuid)


def test_what_root_types_passes(workshop):
    house = workshop.house()
    plain = workshop.image("plain", signer=None, script=POWERS[NAMESPACES][2])
    template = {"apps": [{"name": "main", "image": plain}], "networks": ["none"]}
    typed = replace(house.request({}, template=template), isolators=((NAMESPACES, {"pid": "host"}),))
    assert run(house, typed) == shown(NAMESPACES)
    script = f"{POWERS[DEVICES][2]}; {POWERS[PRIVILEGED][2]}"
    overrides = AppOverrides(
        exec=("/bin/sh", "-c", script), isolators=((DEVICES, POWERS[DEVICES][0]), (PRIVILEGED, True))
    )
    assert run(house, house.request({}, template=template, overrides={"main": overrides})) == "1:b\n1\n"
    # It is his word for that, and not for what the image asks for besides.
    asks = asking(workshop, "image", NAMESPACES, {"pid": "host", "ipc": "host"})
    with pytest.raises(PowerError, match="os/linux/namespaces=ipc"):
        run(house, replace(house.request({}, template=asks), isolators=typed.isolators))


def run(house, request):
    return house.foreground(lambda stdio, out: house.client.run(request, stdio, out))[1]


def test_the_hosts_network_by_a_grant(workshop):
    template = asking(workshop, "image", NAMESPACES, {"net": "host"})
    del template["networks"]
    ours = os.readlink("/proc/self/ns/net")
    template["apps"][0]["image"] = workshop.image(
        script="readlink /proc/self/ns/net", isolators={NAMESPACES: {"net": "host"}}
    )
    with pytest.raises(PowerError, match="os/linux/namespaces=net"):
        workshop.house().run({}, template=template)
    house = workshop.house(net=workshop.signed_by("alice", isolators=[NAMESPACES]))
    assert house.run({}, template=template)[1] == f"{ours}\n"
    # Root has said what networks it has: there is nothing to ask for.
    record, output = workshop.house().run({}, template={**template, "networks": ["none"]})
    assert output != f"{ours}\n"
    (report,) = [one for one in record.isolators if one.name == NAMESPACES]
    assert (report.outcome, report.note) == (
        "ignored",
        "the pod's net namespace is its own: that was decided for the pod",
    )


def test_a_user_namespace_by_an_isolator(workshop):
    path = workshop.image(script="cat /proc/self/uid_map", isolators={NAMESPACES: {"user": "private"}})
    template = {"apps": [{"name": "main", "image": path}], "networks": ["none"]}
    record, output = workshop.house().run({}, template=template)
    assert record.userns is not None
    assert output.split() == ["0", str(record.userns.first), str(record.userns.count)]


def test_an_app_that_is_added_is_judged_too(workshop):
    """By what it asks for, and by what its pod gives every app."""
    value, power, script = POWERS[DEVICES]
    plain = workshop.image("plain", script="sleep 1000")
    asks = workshop.image("asks", script=script, isolators={DEVICES: value})
    stranger = workshop.image("stranger", name="example.net/x", script=script)
    pid = ((NAMESPACES, {"pid": "host"}),)
    grants = {"tools": workshop.signed_by("alice", isolators=[NAMESPACES])}
    house = workshop.house(**grants)

    def adding(of, path):
        template = {"apps": [{"name": "late", "image": path}]}
        return of.client.app_add(pod.uuid, of.request({}, template=template), start=True)

    template = {"apps": [{"name": "main", "image": plain}], "networks": ["none"]}
    with_pid = {**template, "isolators": [{"name": name, "value": one} for name, one in pid]}
    with house.running({}, template=with_pid) as pod:
        with pytest.raises(PowerError, match=f"its image {NAME} asks for {power}"):
            adding(house, asks)
        with pytest.raises(
            PowerError, match=r"the pod asks for os/linux/namespaces=pid, which its image example.net"
        ):
            adding(house, stranger)
        assert [app.name for app in house.client.pod(pod.uuid).apps] == ["main"]
        both = workshop.house(devices=workshop.signed_by("alice", isolators=[power]), **grants)
        record = adding(both, asks)
        assert f"app late: its image {NAME} has {power} by the grant devices of kurma.yml" in record.notes
        assert until(lambda: both.log(record, "late"), "what the app says") == "1:b\n"
        until(lambda: both.client.pod(pod.uuid).apps[-1].exited, "its end")
        with pytest.raises(PowerError, match=power):
            house.client.app_start(pod.uuid, "late")
        both.client.app_rm(pod.uuid, "late", force=True)
        assert not [note for note in both.client.pod(pod.uuid).notes if note.startswith("app late")]


def test_in_a_user_namespace_the_nodes_are_its_roots_and_power_ends_with_it(workshop):
    house = workshop.house()
    seed = {"path": "/dev/own/seed", "hostPath": "/dev/urandom", "access": "r"}
    script = "stat -c %u:%g:%a /dev/own/seed; head -c 3 /dev/own/seed | wc -c; readlink /proc/self/ns/pid"
    plain = workshop.image("plain", script=script)
    template = {"apps": [{"name": "main", "image": plain}], "networks": ["none"]}
    overrides = {"main": AppOverrides(isolators=((DEVICES, [seed]), (PRIVILEGED, True)))}
    request = house.request({}, template=template, userns="auto", overrides=overrides)
    request = replace(request, isolators=((NAMESPACES, {"pid": "host"}),))
    record, output = house.foreground(lambda stdio, out: house.client.run(request, stdio, out))
    mode = f"{os.stat('/dev/urandom').st_mode & 0o777:o}"
    assert output.splitlines() == [f"0:0:{mode}", "3", os.readlink("/proc/self/ns/pid")]
    (report,) = [one for one in record.isolators if one.name == PRIVILEGED]
    assert (report.outcome, "ends with the pod's user namespace" in report.note) == ("modified", True)
    assert any("as far as its pod's user namespace goes" in note for note in record.notes)


def test_the_hosts_shared_memory_comes_with_its_ipc(workshop):
    house = workshop.house()
    plain = workshop.image("plain", script="cat /dev/shm/kurma-power-test; readlink /proc/self/ns/ipc")
    template = {"apps": [{"name": "main", "image": plain}], "networks": ["none"]}
    place = "/dev/shm/kurma-power-test"
    with open(place, "w") as file:
        file.write("shared\n")
    try:
        typed = replace(house.request({}, template=template), isolators=((NAMESPACES, {"ipc": "host"}),))
        assert run(house, typed) == f"shared\n{os.readlink('/proc/self/ns/ipc')}\n"
        assert "shared" not in run(house, replace(typed, isolators=()))
    finally:
        os.unlink(place)


def test_a_stager_that_knows_nothing_of_it_is_refused(foreign):
    house = foreign("exit 0")
    pid, everything = ((NAMESPACES, {"pid": "host"}),), ((PRIVILEGED, True),)
    typed = house.request("true", overrides={"main": AppOverrides(isolators=everything)})
    for request, error, said in (
        (replace(house.request("true"), isolators=pid), StagerError, r"annotation kurma.io/stager/powers"),
        (typed, IsolatorError, "stager shell does not say that it applies isolators"),
    ):
        with pytest.raises(error, match=said):
            run(house, request)


def test_no_daemon_no_api_and_gated_all_the_same(workshop):
    script = "ls -A /run/kurma; touch /run/kurma/mine || ls -ld /run/kurma | cut -c 1-10"
    path = workshop.image(script=script, isolators={"host/api-access": True})
    template = {"apps": [{"name": "main", "image": path}], "networks": ["none"]}
    with pytest.raises(PowerError, match="host/api-access"):
        workshop.house().run({}, template=template)
    house = workshop.house(api=workshop.signed_by("alice", isolators=["host/api-access"]))
    record, output = house.run({}, template=template)
    assert "drwxr-xr-x" in output.splitlines()
    (report,) = [one for one in record.isolators if one.name == "host/api-access"]
    told = "no kurmad serves the state directory: connections are refused until one does"
    assert (report.outcome, report.note) == ("modified", told)


def test_with_the_hosts_processes_stop_ends_the_pods_alone(workshop):
    house = workshop.house(pid=workshop.signed_by("alice", isolators=[f"{NAMESPACES}=pid"]))
    path = workshop.image(script="(setsid sleep 888 &); sleep 1000", isolators={NAMESPACES: {"pid": "host"}})
    bystander = subprocess.Popen(["sleep", "1000"])
    try:
        template = {"apps": [{"name": "main", "image": path}], "networks": ["none"]}
        with house.running({}, template=template) as pod:
            assert house.enter(pod.uuid, "cat", f"/proc/{bystander.pid}/comm")[1] == "sleep\n"
            members = left(pod.uuid)
            assert len(members) >= 2
            house.client.kill(pod.uuid, 15)
            pod.finish()
        assert bystander.poll() is None
        assert not [pid for pid in members if alive(pid)]
    finally:
        bystander.kill()
        bystander.wait()


def left(uuid):
    from kurma_core.linux.cgroups import CgroupTree

    return CgroupTree(f"kurma/{uuid}").pids()


def test_the_gate_is_configured_rightly_or_not_at_all(workshop):
    with pytest.raises(ConfigError, match=r"grants\.tools"):
        workshop.house(tools={"images": ["example.com"]})
