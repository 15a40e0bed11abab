"""oom_score_adj, processor shares and sysctls: set, and read back from inside and from outside (X4)."""

import os
import subprocess

import pytest

from kurma_core.errors import IsolatorError, KurmaError
from kurma_core.linux.cgroups import Layout
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

OOM, SHARES, SYSCTL = "os/linux/oom-score-adj", "os/linux/cpu-shares", "os/unix/sysctl"
CAP_SYS_RESOURCE = 24


def isolators(*pairs):
    return [{"name": name, "value": value} for name, value in pairs]


def may_lower():
    with open("/proc/self/status") as file:
        held = next(int(line.split()[1], 16) for line in file if line.startswith("CapPrm"))
    return bool(held >> CAP_SYS_RESOURCE & 1)


def own_score():
    with open("/proc/self/oom_score_adj") as file:
        return int(file.read())


@pytest.mark.vm
@pytest.mark.parametrize("userns", ["none", "auto"])
def test_the_score_is_that_of_all_that_runs_in_the_app(house, userns):
    read = "cat /proc/self/oom_score_adj"
    handlers = [{"name": "pre-start", "exec": ["/bin/sh", "-c", read]}]
    apps = {
        "worse": shell(
            f"{read}; exec sleep 1000", isolators=isolators((OOM, 700)), user="1000", eventHandlers=handlers
        ),
        "usual": shell(f"{read}; exec sleep 1000"),
    }
    with house.running(apps, userns=userns) as pod:
        until(lambda: house.log(pod, "worse") == "700\n700\n", "the score")
        until(lambda: house.log(pod, "usual") == f"{own_score()}\n", "the usual score")
        assert house.enter(pod.uuid, "cat", "/proc/self/oom_score_adj", app="worse")[1] == "700\n"
        reports = house.client.pod(pod.uuid).isolators
        assert [(one.name, one.outcome) for one in reports if one.name == OOM] == [(OOM, "enforced")]


@pytest.mark.vm
def test_a_score_that_cannot_be_given_is_told(house):
    """Where Kurma may not lower it, without CAP_SYS_RESOURCE, the app gets Kurma's own, and it is told."""
    app = shell("cat /proc/self/oom_score_adj", isolators=isolators((OOM, -900)))
    record, output = house.run({"main": app}, grants=(OOM,))
    (report,) = [one for one in record.isolators if one.name == OOM]
    if may_lower():
        assert (output, report.outcome) == ("-900\n", "enforced")
        return
    assert (output, report.outcome) == (f"{own_score()}\n", "modified")
    assert report.note.startswith(f"{own_score()} instead of -900")
    before = house.uuids()
    with pytest.raises(IsolatorError, match="of app main would be modified"):
        house.run({"main": app}, grants=(OOM,), strict_isolators=True)
    assert house.uuids() == before


def cgroup_of(pod, controller, app=""):
    """Directory of a pod's cgroup, or an app's, from outside."""
    hierarchy = Layout.detect().of(controller)
    return f"{hierarchy.directory}/kurma/{pod.uuid}" + (f"/app-{app}" if app else ""), hierarchy.version


@pytest.mark.vm
def test_shares_of_apps_and_of_the_pod(house):
    apps = {
        "less": shell("exec sleep 1000", isolators=isolators((SHARES, 512))),
        "usual": shell("exec sleep 1000"),
    }
    with house.running(apps, isolators=isolators((SHARES, 2048)), grants=(SHARES,)) as pod:
        for app, shares, weight in (("less", 512, 50), ("usual", 1024, 100), ("", 2048, 200)):
            directory, version = cgroup_of(pod, "cpu", app)
            with open(f"{directory}/{'cpu.shares' if version == 1 else 'cpu.weight'}") as file:
                assert int(file.read()) == (shares if version == 1 else weight), app


WANTED = {
    "net.ipv4.ip_forward": "1",
    "net/ipv4/conf/lo/forwarding": "0",
    "net.ipv4.ip_local_port_range": "20000 30000",
    "net.core.somaxconn": "77",
    "kernel.shmmni": "55",
    "kernel.sem": "250 32000 32 99",
    "kernel.domainname": "pods.example",
    "fs.mqueue.queues_max": "33",
}


def _file(name):
    return f"/proc/sys/{name.replace('.', '/')}"


def of_the_host():
    found = {}
    for name in WANTED:
        with open(_file(name)) as file:
            found[name] = file.read()
    return found


@pytest.mark.vm
@pytest.mark.parametrize("userns", ["none", "auto"])
def test_sysctls_are_the_pods_and_not_the_hosts(house, userns):
    before = of_the_host()
    wanted = dict(WANTED)
    if userns == "auto" and not _shown_in_a_user_namespace("net.core.somaxconn"):
        kept = isolators((SYSCTL, {"net.core.somaxconn": wanted.pop("net.core.somaxconn")}))
        with pytest.raises(KurmaError, match=r"net\.core\.somaxconn: .*: No such file or directory"):
            house.run("true", isolators=kept, userns=userns)
    read = "; ".join(f"cat {_file(name)}" for name in wanted)
    apps = {"main": shell(read), "plain": shell(read, user="1000")}
    record, _ = house.run(apps, isolators=isolators((SYSCTL, wanted)), userns=userns)
    assert record.exit_code == 0, record.reason
    for app in apps:
        shown = [line.split() for line in house.log(record, app).splitlines()]
        assert shown == [str(value).split() for value in wanted.values()]
    assert of_the_host() == before


def test_limits_of_a_user_namespace_are_the_pods(house):
    """18: where the pod has one; the host's root has others."""

    def host():
        with open(_file("user.max_net_namespaces")) as file:
            return file.read()

    before, own = host(), isolators((SYSCTL, {"user.max_net_namespaces": "11"}))
    read = f"cat {_file('user.max_net_namespaces')}"
    record, output = house.run(read, isolators=own, userns="auto")
    assert (record.exit_code, output, host()) == (0, "11\n", before)
    with pytest.raises(IsolatorError, match="would be the host's: the pod is in the host's user namespace"):
        house.run(read, isolators=own)


def _shown_in_a_user_namespace(name):
    """Older kernels keep net.core from networks that belong to a user namespace."""
    return not subprocess.run(["unshare", "--user", "--net", "test", "-e", _file(name)], check=False).returncode


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("net.ipv4.no_such_thing", "1", "No such file or directory"),
        ("net.ipv4.ip_local_port_range", "lots", "Invalid argument"),
    ],
)
def test_what_the_kernel_refuses_fails_the_start(house, key, value, reason):
    with pytest.raises(KurmaError) as caught:
        house.run("echo here", isolators=isolators((SYSCTL, {key: value})))
    assert f"sysctl {key}: cannot be set to {value!r}: {reason}" in str(caught.value)
    assert not os.path.exists(f"/proc/sys/{key.replace('.', '/')}") or value not in of_the_host()[key]


def test_the_hosts_network_is_the_hosts(house):
    before = house.uuids(), of_the_host()
    for key in ("net.ipv4.ip_forward", "net/core/somaxconn"):
        with pytest.raises(IsolatorError, match="would be the host's: the pod is in the host's network"):
            house.run("true", net="host", isolators=isolators((SYSCTL, {key: "1"})))
    record, output = house.run(
        "cat /proc/sys/kernel/shmmni", net="host", isolators=isolators((SYSCTL, {"kernel.shmmni": "9"}))
    )
    assert (record.exit_code, output) == (0, "9\n")
    assert of_the_host() == before[1]


def test_under_a_stager_that_does_not_apply_them_it_is_told(foreign):
    """X1: what is said to be enforced is. A stager says so by an annotation of its image."""
    app = shell("true", isolators=isolators((OOM, 700)))
    silent = foreign("exit 0")
    record = silent.client.prepare(silent.request({"main": app}))
    told = {one.name: (one.outcome, one.note) for one in record.isolators}
    assert told[OOM] == ("ignored", "stager shell does not say that it applies isolators")
    assert told["kurma.io/pids-limit"][0] == "ignored"
    with pytest.raises(IsolatorError, match="would be ignored: stager shell does not say"):
        silent.client.prepare(silent.request({"main": app}, strict_isolators=True))


def test_a_stager_may_say_that_it_applies_them(foreign):
    notes = [{"name": "kurma.io/stager/isolators", "value": "true"}]
    told = foreign("exit 0", annotations=notes)
    record = told.client.prepare(told.request({"main": shell("true", isolators=isolators((OOM, 700)))}))
    assert {one.outcome for one in record.isolators} == {"enforced"}
