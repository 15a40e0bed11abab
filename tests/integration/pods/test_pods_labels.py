"""AppArmor profiles and SELinux contexts of pods: they bite where the kernel has them, else they are told (X4).

What the kernel has is the machine's business: the virtual machine's has AppArmor, as a stock Debian does.
"""

import os
import signal
import subprocess

import pytest

from kurma_core.errors import IsolatorError, PodError
from tests.integration.machine import has_apparmor
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.vm]

APPARMOR, SELINUX = "os/linux/apparmor-profile", "os/linux/selinux-context"
CONTEXT = {"user": "system_u", "role": "system_r", "type": "container_t", "level": "s0"}
#: All is allowed but the image's file; the one that is deaf hears no signal from outside.
PROFILES = """\
profile kurma-test flags=(attach_disconnected,mediate_deleted) {
  file, capability, network, mount, signal, ptrace, unix,
  deny /data/from-image r,
}
profile kurma-test-other flags=(attach_disconnected,mediate_deleted) {
  file, capability, network, mount, signal, ptrace, unix,
}
profile kurma-test-deaf flags=(attach_disconnected,mediate_deleted) {
  file, capability, network, mount, ptrace, unix,
}
profile kurma-test-draft flags=(attach_disconnected,mediate_deleted,complain) {
  file,
}
"""
POLITE = "trap 'exit 4' TERM; echo ready; while :; do sleep 0.1; done"
LOOK = "cat /proc/self/attr/current; cat /data/from-image || echo denied"


def parser(option, file):
    command = ["apparmor_parser", "--config-file=/dev/null", "--skip-cache", option, file]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def profiles(tmp_path_factory):
    """Loaded where the kernel has AppArmor. :returns: whether it has."""
    if not has_apparmor():
        assert not os.environ.get("KURMA_TEST_VM"), "the virtual machine's kernel has AppArmor"
        yield False
        return
    file = tmp_path_factory.mktemp("profiles") / "profiles"
    file.write_text(PROFILES)
    parser("--replace", str(file))
    yield True
    parser("--remove", str(file))


def isolators(*pairs):
    return [{"name": name, "value": value} for name, value in pairs]


def handler(name, script):
    return {"name": name, "exec": ["/bin/sh", "-c", f"echo {name}; {script}"]}


def report(record, name, app="main"):
    (found,) = [each for each in record.isolators if (each.name, each.scope) == (name, app)]
    return found


def test_a_profile_bites_where_the_kernel_has_apparmor(house, profiles):
    """In main and both handlers, for root and for a plain user without new privileges; elsewhere it is told."""
    profile = (APPARMOR, "kurma-test")
    handlers = [handler("pre-start", LOOK), handler("post-stop", LOOK)]
    apps = {
        "main": shell(LOOK, isolators=isolators(profile), eventHandlers=handlers),
        "plain": {
            **shell(LOOK, isolators=isolators(profile, ("os/linux/no-new-privileges", True))),
            "user": "1000",
            "group": "100",
        },
        "free": shell(LOOK),
    }
    record, _ = house.run(apps)
    confined = "kurma-test (enforce)\ndenied\n"
    if not profiles:
        told = report(record, APPARMOR)
        assert (told.outcome, told.note) == ("ignored", "this kernel has no AppArmor")
        assert "seed\n" in house.log(record, "main")
        with pytest.raises(
            IsolatorError, match=f"{APPARMOR} of app main would be ignored: this kernel has no App"
        ):
            house.run(apps, strict_isolators=True)
        return
    assert report(record, APPARMOR).outcome == "enforced"
    main = house.log(record, "main").replace("cat: can't open '/data/from-image': Permission denied\n", "")
    assert main == f"pre-start\n{confined}{confined}post-stop\n{confined}"
    assert confined.splitlines()[0] in house.log(record, "plain").splitlines()
    assert "denied" in house.log(record, "plain").splitlines()
    assert house.log(record, "free") == "unconfined\nseed\n"
    house.run({"main": apps["main"]}, strict_isolators=True)


@pytest.mark.parametrize("userns", ["none", "auto"])
def test_a_pods_profile_is_its_apps_own_unless_they_have_one(house, profiles, userns):
    """What is entered has it, too, and what is added later."""
    apps = {
        "main": shell("sleep 1000"),
        "other": shell("sleep 1000", isolators=isolators((APPARMOR, "kurma-test-other"))),
    }
    with house.running(apps, isolators=isolators((APPARMOR, {"profile": "kurma-test"})), userns=userns) as pod:
        house.client.app_add(pod.uuid, house.request({"late": "sleep 1000"}), start=True)
        record = house.client.pod(pod.uuid)
        seen = {name: house.enter(pod.uuid, "sh", "-c", LOOK, app=name)[1] for name in ("main", "other", "late")}
    if not profiles:
        assert {report(record, APPARMOR, name).outcome for name in (None, *seen)} == {"ignored"}
        assert all(text.endswith("seed\n") for text in seen.values())
        return
    assert {report(record, APPARMOR, name).outcome for name in (None, *seen)} == {"enforced"}
    assert [report(record, APPARMOR, name).default for name in seen] == [True, False, True]
    assert seen == {
        "main": "kurma-test (enforce)\ndenied\n",
        "other": "kurma-test-other (enforce)\nseed\n",
        "late": "kurma-test (enforce)\ndenied\n",
    }


def test_a_profile_that_is_not_there_is_refused(house, profiles):
    """Where the kernel has AppArmor; and a draft, which denies nothing, is told."""
    pods = house.uuids()
    missing = {"main": shell("true", isolators=isolators((APPARMOR, "kurma-none")))}
    draft = {"main": shell(LOOK, isolators=isolators((APPARMOR, "kurma-test-draft")))}
    if not profiles:
        assert report(house.run(missing)[0], APPARMOR).outcome == "ignored"
        return
    with pytest.raises(IsolatorError, match='the AppArmor profile "kurma-none" is not loaded') as caught:
        house.run(missing)
    assert "apparmor_parser -r" in caught.value.hint
    assert house.uuids() == pods
    record, output = house.run(draft)
    assert report(record, APPARMOR).outcome == "modified"
    assert "kurma-test-draft (complain)\nseed\n" in output.replace("main: ", "")
    with pytest.raises(IsolatorError, match="complain mode"):
        house.run(draft, strict_isolators=True)


def test_an_app_that_hears_no_signal_ends_all_the_same(house, profiles):
    """A profile without a rule for signals keeps the stop signal from it, not the end, and nobody else."""
    deaf = shell(POLITE, isolators=isolators((APPARMOR, "kurma-test-deaf")))
    run = house.launch({"deaf": deaf, "polite": POLITE})
    until(lambda: run.output.count("ready") == 2, f"both; {run.errors}")
    if profiles:
        with pytest.raises(PodError, match=r"app deaf cannot be signalled \(10\): permission denied"):
            house.client.kill(run.uuid, signal.SIGUSR1, "deaf")
    record = house.client.stop(run.uuid, timeout=3)
    assert record.state == "stopped"
    assert {app.name: (app.exit_code, app.reason) for app in record.apps} == {
        "deaf": (137, "killed") if profiles else (4, "exited"),
        "polite": (4, "exited"),
    }


def test_a_selinux_context_is_told_to_be_ignored_without_selinux(house):
    """None of this suite's machines has SELinux switched on."""
    apps = {"main": shell("echo ran", isolators=isolators((SELINUX, CONTEXT)))}
    record, _ = house.run(apps, isolators=isolators((SELINUX, CONTEXT)))
    for scope in (None, "main"):
        told = report(record, SELINUX, scope)
        assert (told.outcome, told.note) == ("ignored", "this kernel has no SELinux, or it is switched off")
    with pytest.raises(IsolatorError, match=f"{SELINUX} of app main would be ignored"):
        house.run(apps, strict_isolators=True)
