"""Security settings of single apps, seen from inside: exact capabilities, paths, profiles, groups (C8)."""

from __future__ import annotations

import contextlib
import json
import os

import pytest

from kurma_core.api.pods import AppOverrides
from kurma_core.errors import IsolatorError, PowerError
from tests.kit.images import archive, busybox_root, shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

CAPABILITIES, PROFILE = "kurma.io/capabilities", "kurma.io/seccomp-profile"
MASKED, READ_ONLY = "kurma.io/masked-paths", "kurma.io/read-only-paths"
FOURTEEN = 0xA80425FB
KILL, NET_BIND_SERVICE, NET_ADMIN = (1 << bit for bit in (5, 10, 12))
STATUS = "grep -e ^Cap -e ^Groups -e ^Seccomp: /proc/self/status | tr -s '\\t ' ' '"
#: A profile that refuses mkdir, and allows everything else.
NO_MKDIR = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28}],
}
FILES = {
    "etc/passwd": "root::0:0:root:/root:/bin/sh\nalice:x:1000:100:Alice:/:/bin/sh\n",
    "etc/group": "root:x:0:\nusers:x:100:\nextra:x:50:alice,root\n",
    "secret/key": "s",
    "etc/secret": "s",
    "data/inner": "d",
}


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    at = tmp_path_factory.mktemp("security")
    root = busybox_root(str(at / "root"), FILES)
    return archive(root, str(at / "security.aci"), "example.com/security", app=shell("true"))


def template(image, **apps):
    """:param apps: by name: script and annotations."""
    entries = [
        {
            "name": name,
            "image": image,
            "app": shell(script),
            "annotations": [{"name": key, "value": value} for key, value in notes.items()],
        }
        for name, (script, notes) in apps.items()
    ]
    return {"apps": entries, "networks": ["none"]}


def status(text):
    lines = [line.split(": ", 1) for line in text.splitlines()]
    return {line[0]: line[-1] for line in lines if line[0].startswith(("Cap", "Groups", "Seccomp"))}


@pytest.mark.parametrize("userns", ["none", "auto"])
def test_each_app_has_its_own_settings(make_house, image, tmp_path, userns):
    """Main and what is entered are alike; nothing of one app changes another."""
    (tmp_path / "p.json").write_text(json.dumps(NO_MKDIR))
    script = f"{STATUS}; echo up; exec sleep 1000"
    # In a user namespace the setting is not the pod's to write.
    ttl = "echo 65 > /proc/sys/net/ipv4/ip_default_ttl" if userns == "none" else "true"
    paths = f"cat /secret/key /etc/secret /proc/interrupts; touch /data/x /etc/x; ls -A /secret; {ttl}"
    apps = {
        "exact": (script, {}),
        "plain": (script, {"kurma.io/group-policy": "merge"}),
        "strict": (script, {"kurma.io/group-policy": "strict"}),
        "paths": (f"{{ {paths}; }} 2>&1; {script}", {}),
        "unmasked": (f"wc -c /proc/interrupts; {ttl} 2>&1 && {script}", {}),
        "profile": (f"mkdir /new 2>&1; {script}", {}),
    }
    overrides = {
        "exact": AppOverrides(
            isolators=((CAPABILITIES, {"add": ["NET_ADMIN"], "drop": ["ALL"]}), (PROFILE, "unconfined"))
        ),
        "plain": AppOverrides(
            user="alice",
            group="7",
            supplementary_gids=(70,),
            isolators=((CAPABILITIES, {"drop": ["ALL"], "add": ["KILL"], "ambient": ["NET_BIND_SERVICE"]}),),
        ),
        "strict": AppOverrides(user="1000", supplementary_gids=(70,)),
        "paths": AppOverrides(
            isolators=(
                (MASKED, ["/secret", "/etc/secret", "/proc/interrupts", "/not/there"]),
                (READ_ONLY, ["/data", "/proc/sys"]),
            )
        ),
        "unmasked": AppOverrides(isolators=((MASKED, []), (READ_ONLY, []))),
        "profile": AppOverrides(isolators=((PROFILE, {"path": str(tmp_path / "p.json")}),)),
    }
    house = make_house({"stop_timeout": 2})
    with house.running({}, template=template(image, **apps), overrides=overrides, userns=userns) as pod:
        for app in apps:
            until(lambda app=app: "up\n" in house.log(pod, app), f"app {app}")
        logs = {app: house.log(pod, app) for app in apps}
        entered = {app: house.enter(pod.uuid, "sh", "-c", STATUS, app=app) for app in apps}
        made = house.enter(pod.uuid, "sh", "-c", "mkdir /new 2>&1", app="profile")
        pod.stop(force=False)
    for app in apps:
        assert status(logs[app]) == status(entered[app][1]), logs[app]
    found = {app: status(log) for app, log in logs.items()}
    masks = {app: {key: int(one[key], 16) for key in one if key[:3] == "Cap"} for app, one in found.items()}
    assert masks["exact"]["CapBnd"] == masks["exact"]["CapEff"] == NET_ADMIN
    assert found["exact"]["Seccomp"] == "0"
    plain = masks["plain"]
    assert plain["CapBnd"] == KILL | NET_BIND_SERVICE
    assert {plain[key] for key in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {NET_BIND_SERVICE}
    assert found["plain"]["Groups"].split() == ["50", "70"]
    assert found["strict"]["Groups"].split() == ["70"]
    assert masks["strict"]["CapBnd"] == FOURTEEN
    assert masks["strict"]["CapEff"] == 0
    lines = logs["paths"].splitlines()
    before = lines[: next(at for at, line in enumerate(lines) if line.startswith("Groups"))]
    assert len(before) == (3 if userns == "none" else 2), "what is masked is empty"
    assert "cat: can't open '/secret/key': No such file or directory" in lines
    assert "touch: /data/x: Read-only file system" in lines
    assert "touch: /etc/x: Read-only file system" not in lines
    assert userns != "none" or [line for line in lines if "ip_default_ttl: Read-only file system" in line]
    assert int(logs["unmasked"].split()[0]) > 0
    assert "mkdir: can't create directory '/new': No space left on device" in logs["profile"]
    assert "No space left" in made[1]


def test_the_caller_is_told_of_files_and_powers(make_house, image, tmp_path):
    """Neither leaves a pod behind."""
    house = make_house({"stop_timeout": 2})
    own = template(image, main=("true", {}))

    def run(isolator, value, *, typed):
        if typed:
            return house.run({}, template=own, overrides={"main": AppOverrides(isolators=((isolator, value),))})
        asked = template(image, main=("true", {}))
        asked["apps"][0]["app"]["isolators"] = [{"name": isolator, "value": value}]
        return house.run({}, template=asked)

    with pytest.raises(IsolatorError, match="cannot read the seccomp profile /no/such/file: no such file"):
        run(PROFILE, {"path": "/no/such/file"}, typed=True)
    powers = [
        (PROFILE, "unconfined", f"{PROFILE}=unconfined"),
        (PROFILE, {"path": "/no/such/file"}, f"{PROFILE}=path"),
        (CAPABILITIES, {"add": ["NET_ADMIN"]}, f"{CAPABILITIES}=CAP_NET_ADMIN"),
        (MASKED, [], MASKED),
        (READ_ONLY, ["/proc/sys"], READ_ONLY),
    ]
    for isolator, value, power in powers:
        with pytest.raises(PowerError, match=power):
            run(isolator, value, typed=False)
    assert house.uuids() == []


def test_a_device_by_its_name(make_house, image, tmp_path):
    """Node, mount and variable of a description; an image needs a grant for it."""
    place = "/run/cdi"
    name = f"test-{os.getpid()}"
    (tmp_path / "Lib.so.1").write_text("library\n")
    edits = {
        "env": ["DEVICE=given"],
        "deviceNodes": [{"path": "/dev/seed", "hostPath": "/dev/urandom"}],
        "mounts": [
            {"hostPath": f"{tmp_path}/Lib.so.1", "containerPath": "/usr/lib/Lib.so.1", "options": ["ro", "bind"]}
        ],
    }
    os.makedirs(place, exist_ok=True)
    file = f"{place}/{name}.json"
    with open(file, "w") as stream:
        json.dump(
            {"cdiVersion": "0.6.0", "kind": f"{name}/x", "devices": [{"name": "0", "containerEdits": edits}]},
            stream,
        )
    script = "echo $DEVICE; head -c 4 /dev/seed | wc -c; cat /usr/lib/Lib.so.1"
    overrides = AppOverrides(isolators=(("kurma.io/cdi", [f"{name}/x=0"]),))
    try:
        house = make_house({"stop_timeout": 2})
        own = template(image, main=(script, {}))
        _, output = house.run({}, template=own, overrides={"main": overrides})
        assert output == "given\n4\nlibrary\n"
        asked = template(image, main=("true", {}))
        asked["apps"][0]["app"]["isolators"] = [{"name": "kurma.io/cdi", "value": [f"{name}/x=0"]}]
        with pytest.raises(PowerError, match=f"kurma.io/cdi={name}/x=0"):
            house.run({}, template=asked)
    finally:
        os.unlink(file)
        with contextlib.suppress(OSError):
            os.rmdir(place)
