"""Containers under their security contexts, seen from inside and by their statuses (C6, C8)."""

import json
import os

import grpc
import pytest
from kurma_cri.proto import runtime_pb2 as cri

from plugins.cri.tests.conftest import refused
from tests.kit.waiting import until

pytestmark = pytest.mark.root
CODES = grpc.StatusCode
PROFILE = cri.SecurityProfile
NET_ADMIN = 1 << 12
STATUS = "grep -e ^Cap -e ^Groups -e ^Seccomp: -e ^NoNewPrivs /proc/self/status | tr -s '\\t ' ' '"


def contained(node, sandbox, script, name, devices=(), **context):
    """Starts a container and waits for its script. :returns: its ID, and its output."""
    security = cri.LinuxContainerSecurityContext(**context)
    linux = cri.LinuxContainerConfig(security_context=security)
    container = node.started(
        sandbox,
        "sh",
        "-c",
        f"{{ {script}; }} 2>&1; echo up; exec sleep 1000",
        name=name,
        linux=linux,
        devices=devices,
    )

    def lines():
        return "\n".join(node.output(container)).splitlines()

    until(lambda: "up" in lines(), lambda: f"{name}: {lines()}")
    return container, lines()


def fields(lines):
    return dict(line.split(": ", 1) for line in lines if ": " in line)


def value(number):
    return cri.Int64Value(value=number)


def test_contexts_of_containers(node, tmp_path):
    profile = tmp_path / "p.json"
    rule = {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28}
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}))
    config = node.sandbox_config()
    config.linux.security_context.privileged = True
    sandbox = node.run(config)
    both = cri.Capability(add_capabilities=["NET_ADMIN"], drop_capabilities=["ALL"])
    container, lines = contained(
        node,
        sandbox,
        STATUS,
        "plain",
        run_as_user=value(1000),
        run_as_group=value(2000),
        supplemental_groups=[3000],
        supplemental_groups_policy=cri.Strict,
        capabilities=both,
        no_new_privs=True,
    )
    found = fields(lines)
    assert "CapBnd" in found, lines
    assert (int(found["CapBnd"], 16), int(found["CapEff"], 16)) == (NET_ADMIN, 0)
    assert (found["Groups"].split(), found["NoNewPrivs"], found["Seccomp"]) == (["3000"], "1", "0")
    user = node.status(container).user.linux
    assert (user.uid, user.gid, list(user.supplemental_groups)) == (1000, 2000, [2000, 3000])

    ambient = cri.Capability(add_ambient_capabilities=["NET_ADMIN"])
    _, lines = contained(node, sandbox, STATUS, "ambient", run_as_user=value(1000), capabilities=ambient)
    found = fields(lines)
    for name in ("CapAmb", "CapEff", "CapPrm", "CapInh"):
        assert int(found[name], 16) & NET_ADMIN, found

    local = PROFILE(profile_type=PROFILE.Localhost, localhost_ref=str(profile))
    _, lines = contained(
        node,
        sandbox,
        f"{STATUS}; mkdir /new; cat /etc/hostname; touch /etc/x",
        "profile",
        seccomp=local,
        masked_paths=["/etc/hostname"],
        readonly_paths=["/etc"],
    )
    assert "mkdir: can't create directory '/new': No space left on device" in lines
    assert "touch: /etc/x: Read-only file system" in lines
    assert fields(lines)["Seccomp"] == "2"

    _, lines = contained(node, sandbox, f"{STATUS}; mkdir /sys/kernel/x; ls /dev", "all", privileged=True)
    found = fields(lines)
    assert found["Seccomp"] == "0"
    assert int(found["CapEff"], 16) & NET_ADMIN
    assert not [line for line in lines if "Read-only" in line]
    devices = {name for name in os.listdir("/dev") if not os.path.isdir(f"/dev/{name}")}
    devices -= {name for name in devices if os.path.islink(f"/dev/{name}")} | {"console"}
    assert devices <= set(lines)


def test_devices_of_one_container(node):
    """Each container has its own; the numbers and the access are those that were given."""
    sandbox = node.run()
    given = [
        cri.Device(host_path="/dev/zero", container_path="/dev/nothing", permissions="r"),
        cri.Device(host_path="/dev/null", container_path="/dev/null", permissions="rw"),
    ]
    script = "head -c 3 /dev/nothing | wc -c; echo x > /dev/null && echo usual"
    _, lines = contained(node, sandbox, script, "given", devices=given)
    assert lines == ["3", "usual", "up"]
    _, lines = contained(node, sandbox, "test -e /dev/nothing || echo none", "other")
    assert lines == ["none", "up"]
    with refused(CODES.INVALID_ARGUMENT, "/dev/kurma-none"):
        node.create(
            sandbox,
            node.container_config("true", name="missing", devices=[cri.Device(host_path="/dev/kurma-none")]),
        )
    with refused(CODES.INVALID_ARGUMENT, "there is no device vendor.com/gpu=7"):
        names = [cri.CDIDevice(name="vendor.com/gpu=7")]
        node.create(sandbox, node.container_config("true", name="cdi", CDI_devices=names))


@pytest.fixture
def vendor(tmp_path):
    """A device that a vendor describes. :returns: its name."""
    kind = f"test-{os.getpid()}.example.com/x"
    (tmp_path / "lib").write_text("library\n")
    edits = {
        "env": ["DEVICE=given"],
        "deviceNodes": [{"path": "/dev/seed", "hostPath": "/dev/urandom"}],
        "mounts": [{"hostPath": f"{tmp_path}/lib", "containerPath": "/lib/of-device", "options": ["ro", "bind"]}],
    }
    made = not os.path.isdir("/run/cdi")
    os.makedirs("/run/cdi", exist_ok=True)
    file = f"/run/cdi/{kind.replace('/', '-')}.json"
    with open(file, "w") as stream:
        devices = [{"name": "0", "containerEdits": edits}]
        json.dump({"cdiVersion": "0.6.0", "kind": kind, "devices": devices}, stream)
    yield f"{kind}=0"
    os.unlink(file)
    if made:
        os.rmdir("/run/cdi")


def test_a_device_of_a_vendor(node, vendor):
    script = "echo $DEVICE; head -c 4 /dev/seed | wc -c; cat /lib/of-device"
    config = node.container_config("sh", "-c", script, CDI_devices=[cri.CDIDevice(name=vendor)])
    container = node.create(node.run(), config)
    node.start(container)
    assert node.wait_exited(container).exit_code == 0
    assert node.output(container) == ["given", "4", "library"]


def test_contexts_that_cannot_be(node, tmp_path):
    """Each is refused when the container is created, and leaves nothing behind."""
    sandbox = node.run()

    def create(**context):
        linux = cri.LinuxContainerConfig(security_context=cri.LinuxContainerSecurityContext(**context))
        return node.create(sandbox, node.container_config("true", linux=linux))

    with refused(CODES.INVALID_ARGUMENT, "sandbox of a privileged container must be privileged"):
        create(privileged=True)
    missing = PROFILE(profile_type=PROFILE.Localhost, localhost_ref="/no/such.json")
    with refused(CODES.INVALID_ARGUMENT, "cannot read the seccomp profile /no/such.json"):
        create(seccomp=missing)
    with refused(CODES.INVALID_ARGUMENT, "apparmor"):
        create(apparmor=PROFILE(profile_type=PROFILE.Localhost, localhost_ref="kurma-no-such-profile"))
    with refused(CODES.INVALID_ARGUMENT, "no such capability"):
        create(capabilities=cri.Capability(add_capabilities=["NET_ADMINN"]))
    listed = cri.ListContainersRequest(filter=cri.ContainerFilter(pod_sandbox_id=sandbox))
    assert not node.runtime.ListContainers(listed).containers
