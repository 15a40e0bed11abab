"""The networks of pods under the exported stager (Z9; rkt's networking documentation), with Debian's CNI plugins.

On a host that has those, a packet filter and busybox; from inside of pods, from outside, and what is left of them.
"""

import contextlib
import http.server
import json
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from kurma_cni import orphans

from tests.integration.stage1.laid_out import BareHost
from tests.integration.stage1.test_root_stage1_exported import cgroups, processes, running, shell
from tests.kit.command import KURMA
from tests.kit.waiting import until

pytestmark = pytest.mark.root
PLUGINS = "/usr/lib/cni"
FAMILIES = ("iptables", "ip6tables")
FILTERS = [f"/usr/sbin/{family}{verb}" for family in FAMILIES for verb in ("", "-save", "-restore")]
#: rkt's own plugin directory has one that does as the usual one, and waits where it is told to.
WAITING = f"""#!/bin/sh
hold() {{
    if [ "$(cat /srv/hold 2>/dev/null)" = "$1 $CNI_COMMAND $CNI_IFNAME" ]; then
        echo "$1" > /srv/held
        while [ -e /srv/hold ]; do sleep 0.02; done
    fi
}}
hold before
{PLUGINS}/ptp
code=$?
hold after
exit $code
"""
BACK = {
    "cniVersion": "0.4.0",
    "name": "back",
    "type": "bridge",
    "bridge": "kback0",
    "isGateway": True,
    "ipam": {"type": "host-local", "subnet": "10.77.0.0/24"},
}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def links():
    words = [line.split() for line in output("ip", "-o", "link").splitlines()]
    return {each[1].rstrip(":").partition("@")[0] for each in words}


@pytest.fixture(scope="module", autouse=True)
def own_rules():
    """The plugin portmap leaves the chains that call those of pods; other tests look at all rules of the host."""
    tables, saved = tables_of_rules(), {family: output(f"{family}-save") for family in FAMILIES}
    yield
    for table in tables_of_rules() - tables:
        output("nft", "delete", *table.split())
    for family, text in saved.items():
        subprocess.run([f"{family}-restore"], input=text, text=True, check=True)


def tables_of_rules():
    return set(output("nft", "list", "tables").splitlines())


@pytest.fixture(scope="module")
def host(tmp_path_factory, exported):
    host = BareHost(tmp_path_factory.mktemp("networked"), exported)
    host.install(*FILTERS, *output("sh", "-c", "ls -d /usr/lib/*/xtables").split())
    host.install(*(f"{PLUGINS}/{name}" for name in ("ptp", "bridge", "host-local", "portmap")))
    (host.root / "etc/rkt/net.d").mkdir(parents=True)
    (host.root / "etc/rkt/net.d/10-back.conf").write_text(json.dumps(BACK))
    waiting = host.root / "usr/lib/rkt/plugins/net/ptp"
    waiting.parent.mkdir(parents=True)
    waiting.write_text(WAITING)
    waiting.chmod(0o755)
    yield host
    host.clear()
    subprocess.run(["ip", "link", "delete", "kback0"], check=False, capture_output=True)


@pytest.fixture
def clean(host):
    """What is there of pods, before and after: nothing more than a bridge."""
    before = left(host)
    yield
    (host.root / "srv/hold").unlink(missing_ok=True)
    assert left(host) == before


def left(host):
    leases = host.root / "var/lib/cni/networks"
    files = {str(each.relative_to(leases)) for each in leases.glob("*/[0-9]*")}
    # The directory of namespaces is made a mount once per host, by ip-netns(8), too.
    return links() - {"kback0"}, files, host.mounts - {"/run/netns"}, rules()


def rules(pod=None, *families):
    """Those of pods' own chains, and the jumps to them."""
    found = []
    for family in families or FAMILIES:
        found += [line for line in output(f"{family}-save", "-t", "nat").splitlines() if line[:3] == "-A "]
    return [line for line in found if (pod.uuid in line if pod else "id: " in line)]


def info(pod):
    return json.loads((pod.place / "net-info.json").read_text())


def gone(pod):
    """After ``gc``, which may be repeated."""
    for _ in range(2):
        assert pod.call("gc", pod.uuid) == (0, "", "")
    assert not cgroups(pod)
    assert not [each for each in ("netns", "net-info.json") if (pod.place / each).exists()]


def inside(pod, script, app="web"):
    words = (f"--pid={pod.pid()}", f"--appname={app}", "--", "/bin/sh", "-c", script)
    code, out, err = pod.call("enter", *words)
    assert (code, err) == (0, ""), err
    return out


@contextlib.contextmanager
def serving(address, port):
    """Who asks there is told its path, and what address it has."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            text = f"{self.path} {self.client_address[0]}\n".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer((address, port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


ANSWER = "while :; do echo from $(hostname) | nc -l -p 80; done"


def answer(address, port):
    """What a server there says, once it is there."""

    def ask():
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=20) as sock:
            return sock.makefile().read()
        return None

    return until(ask, f"an answer of {address}:{port}")


@pytest.mark.full
@pytest.mark.usefixtures("clean")
def test_the_default_one(host):
    """The way to the host, and beyond it masqueraded; also its metadata service, where that would be."""
    before = links()
    pod = host.pod(shell("web", f"wget -q -O - $AC_METADATA_URL/x; {ANSWER}"))
    with serving("0.0.0.0", 18112), running(pod, "--net=default", "--mds-token=token") as process:
        (joined,) = info(pod)
        address = joined["ip"]
        assert joined == {
            "netName": "default",
            "netConf": "",
            "ifName": "eth0",
            "ip": address,
            "mask": "255.255.255.0",
            "args": "",
        }
        assert address.startswith("172.16.28.")
        assert f"inet {address}/24 " in inside(pod, "ip addr show eth0")
        assert "default via 172.16.28.1 dev eth0" in inside(pod, "ip route")
        assert inside(pod, "ls /sys/class/net").split() == ["eth0", "lo"]
        assert process.stdout.readline().decode() == f"/token/x {address}\n"
        assert answer(address, 80) == f"from rkt-{pod.uuid}\n"
        (veth,) = links() - before
        assert veth.startswith("veth")
        assert [rule for rule in rules(pod, "iptables") if f"-s {address}/32 " in rule and "POSTROUTING" in rule]
        lease = host.root / "var/lib/cni/networks/default" / address
        assert lease.read_text().split() == [pod.uuid, "eth0"]
        assert f"/run/netns/rkt-{pod.uuid}" in host.mounts
        assert pod.call("stop", pod.uuid)[0] == 0
        assert process.wait(30) == 143
    gone(pod)


@pytest.mark.full
@pytest.mark.usefixtures("clean")
def test_the_restricted_one(host):
    """The host, and nothing beyond it: neither a way nor a rule."""
    pod = host.pod(shell("web", "exec sleep 1000"))
    with running(pod, "--net=default-restricted"):
        (joined,) = info(pod)
        assert (joined["netName"], joined["ifName"]) == ("default-restricted", "eth0")
        routes = inside(pod, "ip route")
        assert "default" not in routes
        assert joined["mask"] == "255.255.0.0"
        with serving("172.31.0.1", 0) as port:
            assert inside(pod, f"wget -q -O - http://172.31.0.1:{port}/") == f"/ {joined['ip']}\n"
        assert rules(pod) == []
        assert pod.call("stop", "--force", pod.uuid)[0] == 0
    gone(pod)
    for name, address in (("default", "172.16.28.77"), ("default-restricted", "172.31.7.7")):
        pod = host.pod(shell("web", "ip addr show eth0"))
        code, out, err = pod.run(f"--net={name}:IP={address}")
        assert (code, f"inet {address}/" in out, err) == (0, True, "")
        gone(pod)


@pytest.mark.usefixtures("clean")
def test_names_that_a_network_tells(host):
    """They are the pod's, over its image's own, unless stage0 has said otherwise."""
    told = {"nameservers": ["192.0.2.9"], "search": ["example.com"]}
    config = host.root / "etc/rkt/net.d/20-named.conf"
    config.write_text(json.dumps({**BACK, "name": "named", "dns": told}))
    for words, said in (([], "nameserver 192.0.2.9\nsearch example.com\n"), (["none"], "the image's\n")):
        pod = host.pod(shell("web", "cat /etc/resolv.conf"))
        (pod.rootfs / "opt/stage2/web/rootfs/etc/resolv.conf").write_text("the image's\n")
        mode = [f"--dns-conf-mode=resolv={each},hosts=default" for each in words]
        assert pod.run("--net=named", *mode) == (0, said, "")
        gone(pod)
    config.unlink()


@pytest.mark.full
@pytest.mark.usefixtures("clean")
def test_several(host):
    """One of the user's by name, with arguments; without default, the restricted one comes with it."""
    pod = host.pod(shell("web", "exec sleep 1000"))
    with running(pod, "--net=back:IP=10.77.0.99", "--debug") as process:
        assert [(each["netName"], each["ifName"]) for each in info(pod)] == [
            ("back", "eth0"),
            ("default-restricted", "eth1"),
        ]
        assert info(pod)[0]["args"] == "IP=10.77.0.99"
        assert info(pod)[0]["netConf"] == "/etc/rkt/net.d/10-back.conf"
        assert "inet 10.77.0.99/24 " in inside(pod, "ip addr show eth0")
        with serving("10.77.0.1", 0) as port:
            assert inside(pod, f"wget -q -O - http://10.77.0.1:{port}/") == "/ 10.77.0.99\n"
        other = host.pod(shell("web", "exec sleep 1000"))
        with running(other, "--net=all"):
            assert [each["netName"] for each in info(other)] == ["back", "default"]
            inside(other, "ping -c 1 -W 10 10.77.0.99")
            assert other.call("stop", other.uuid)[0] == 0
        gone(other)
        inside(pod, "ping -c 1 -W 10 10.77.0.1")
        assert pod.call("stop", pod.uuid)[0] == 0
        _, err = process.communicate(timeout=30)
        assert b"stage1: network back: eth0, 10.77.0.99/24\n" in err
    gone(pod)


@pytest.mark.full
@pytest.mark.usefixtures("clean")
def test_user_namespace(host):
    """The network namespace is the user namespace's: its root may change it."""
    first, count = 200_000, 65536
    pod = host.pod(shell("web", "exec sleep 1000", isolators=[
        {"name": "os/linux/capabilities-retain-set", "value": {"set": ["CAP_NET_ADMIN"]}}
    ]))  # fmt: skip
    root = pod.rootfs / "opt/stage2/web/rootfs"
    for directory, names, files in os.walk(root):
        for name in (".", *names, *files):
            os.chown(os.path.join(directory, name), first, first, follow_symlinks=False)
    with running(pod, f"--private-users={first}:{count}", "--net=default"):
        inside(pod, "ip link set eth0 mtu 1400 && ip link show eth0 | grep -q 'mtu 1400'")
        assert pod.call("stop", "--force", pod.uuid)[0] == 0
    gone(pod)


@pytest.mark.usefixtures("clean")
def test_ports(host):
    """Of the host, to one of an app by name, and to one that the pod says itself; by the plugin portmap."""
    named = [{"name": "http", "port": 80, "protocol": "tcp"}]
    own = {"name": "other", "protocol": "tcp", "port": 80, "count": 1, "socketActivated": False}
    ports = [{"name": "http", "hostPort": 18080}, {"name": "other", "hostPort": 18081, "podPort": own}]
    pod = host.pod(shell("web", ANSWER, ports=named), ports=ports)
    with running(pod, "--net=back,default"):
        assert [each["netName"] for each in info(pod)] == ["back", "default"]
        for port in (18080, 18081):
            assert answer("127.0.0.1", port) == f"from rkt-{pod.uuid}\n"
        assert pod.call("stop", "--force", pod.uuid)[0] == 0
    # The next pod has them at once, though the rules of the one that has ended are still there.
    other = host.pod(shell("web", ANSWER, ports=named), ports=ports)
    with running(other, "--net=default"):
        assert rules(pod, "iptables")
        for port in (18080, 18081):
            assert answer("127.0.0.1", port) == f"from rkt-{other.uuid}\n"
        assert other.call("stop", "--force", other.uuid)[0] == 0
    gone(other)
    gone(pod)
    pod = host.pod(shell("web", "true", ports=named), ports=ports)
    assert pod.run("--net=host") == (0, "", "")
    gone(pod)
    pod = host.pod(shell("web", "true", ports=named), ports=ports)
    code, _, err = pod.run("--net=none")
    assert code == 0
    assert err.splitlines() == [
        f"stage1: port {name} is not led to the pod, which is on no network" for name in ("http", "other")
    ]
    gone(pod)
    pod = host.pod(shell("web", "true"), ports=ports)
    code, _, err = pod.run("--net=default")
    assert (code, err) == (125, "stage1: port http: no app has one of that name\n")
    gone(pod)


@pytest.mark.full
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("namespace", ["there", "gone"])
def test_killed(host, namespace):
    """All of it at once. Without the namespace, as after a unit that had mounts of its own, plugins do not find
    their rules."""
    pod = host.pod(shell("web", "exec sleep 1000"))
    with running(pod, "--net=back,default") as process:
        ours = processes(pod)
        process.kill()
        process.communicate(timeout=30)
        until(lambda: not processes(pod))
    assert ours
    assert rules(pod)
    assert left(host)[1]
    if namespace == "gone":
        unpin = ["/bin/umount", f"/run/netns/rkt-{pod.uuid}"]
        subprocess.run(unpin, preexec_fn=host.enter, check=True)
    gone(pod)


@pytest.mark.full
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("moment", ["before ADD eth0", "after ADD eth0", "before ADD eth1", "after ADD eth1"])
def test_killed_while_it_joins(host, moment):
    """And the plugin goes on, unless somebody ends it."""
    (host.root / "etc/rkt/net.d/20-second.conf").write_text(
        json.dumps({"name": "second", "type": "ptp", "ipam": {"type": "host-local", "subnet": "10.78.0.0/24"}})
    )
    (host.root / "srv/hold").write_text(moment)
    held = host.root / "srv/held"
    pod = host.pod(shell("web", "exec sleep 1000"))
    process = pod.begin("run", "--net=second,default", pod.uuid)
    try:
        until(lambda: held.exists() or process.poll() is not None, "the plugin to wait")
        assert process.poll() is None, process.communicate()
    finally:
        process.kill()
        process.communicate()
        (host.root / "etc/rkt/net.d/20-second.conf").unlink()
        held.unlink(missing_ok=True)
    assert pod.pid() == 0
    assert orphans.running(pod.uuid)
    gone(pod)
    assert orphans.running(pod.uuid) == []


@pytest.mark.full
@pytest.mark.usefixtures("clean")
def test_killed_at_any_moment(host):
    for delay in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3):
        pod = host.pod(shell("web", "exec sleep 1000"))
        process = pod.begin("run", "--net=back,default", pod.uuid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(delay)
        process.kill()
        process.communicate(timeout=30)
        until(lambda pod=pod: not processes(pod))
        gone(pod)


@pytest.mark.usefixtures("clean")
def test_run_again(host):
    """After one that was killed while it joined, without ``gc`` in between: what that has joined is left."""
    pod = host.pod(shell("web", "exec sleep 1000"))
    (host.root / "srv/hold").write_text("after ADD eth0")
    process = pod.begin("run", "--net=default", pod.uuid)
    until((host.root / "srv/held").exists)
    process.kill()
    process.communicate()
    (host.root / "srv/held").unlink()
    (host.root / "srv/hold").unlink()
    assert rules(pod)
    pod.lock_again()
    with running(pod, "--net=back"):
        assert [each["netName"] for each in info(pod)] == ["back", "default-restricted"]
        assert not rules(pod)
        assert pod.call("stop", "--force", pod.uuid)[0] == 0
    gone(pod)


@pytest.mark.usefixtures("clean")
def test_gc_that_is_killed(host):
    """The next one does what it has left."""
    pod = host.pod(shell("web", "true"))
    assert pod.run("--net=default") == (0, "", "")
    for moment in ("before DEL eth0", "after DEL eth0"):
        (host.root / "srv/hold").write_text(moment)
        process = pod.begin("gc", pod.uuid)
        until((host.root / "srv/held").exists)
        process.kill()
        process.communicate()
        (host.root / "srv/held").unlink()
    (host.root / "srv/hold").unlink()
    gone(pod)


@pytest.mark.usefixtures("clean")
def test_one_that_cannot_be_joined(host):
    """Then the pod is in none, and does not run."""
    wrong = {"name": "wrong", "type": "ptp", "ipam": {"type": "host-local", "subnet": "nonsense"}}
    (host.root / "etc/rkt/net.d/20-wrong.conf").write_text(json.dumps(wrong))
    before = rules()
    pod = host.pod(shell("web", "echo ran"))
    code, out, err = pod.run("--net=back,wrong")
    (host.root / "etc/rkt/net.d/20-wrong.conf").unlink()
    assert (code, out) == (125, "")
    assert err.startswith('stage1: cannot join network "wrong": CNI plugin ptp failed: '), err
    assert "nonsense" in err
    assert err.count("\n") == 1
    assert not (pod.place / "netns").exists()
    assert rules() == before
    assert not left(host)[1]
    gone(pod)


@pytest.mark.usefixtures("clean")
def test_what_fails_once_it_has_joined(host):
    """A volume that is not there: the networks are left again."""
    points = [{"name": "v", "path": "/v"}]
    volumes = [{"name": "v", "kind": "host", "source": "/no"}]
    pod = host.pod(shell("a", "", mountPoints=points), volumes=volumes)
    assert pod.run("--net=back,default") == (125, "", "stage1: volume v: /no: no such file or directory\n")
    assert not cgroups(pod)
    assert not left(host)[1]
    assert not (pod.place / "netns").exists()
    gone(pod)


@pytest.mark.full
@pytest.mark.usefixtures("clean")
def test_a_plugin_that_is_missing(host):
    """Nothing is begun; where it was looked for is told. In gc, it can be repeated."""
    portmap = host.root / "usr/lib/cni/portmap"
    ports = [{"name": "http", "hostPort": 18080}]
    app = shell("web", "exec sleep 1000", ports=[{"name": "http", "port": 80, "protocol": "tcp"}])
    pod = host.pod(app, ports=ports)
    portmap.rename(f"{portmap}.away")
    code, _, err = pod.run("--net=default")
    assert (code, err.count("\n")) == (125, 1)
    of_image = f"{pod.inside}/stage1/rootfs/usr/lib/rkt/plugins/net"
    looked = f"/etc/rkt/net.d, /usr/lib/rkt/plugins/net, {of_image}, /opt/cni/bin, /usr/lib/cni, /usr/libexec/cni"
    assert (
        f'network "default" needs the CNI plugin "portmap", which is in none of {looked}: Debian\'s package' in err
    )
    assert "--net=host" in err
    gone(pod)
    # In the image, which is looked into as well.
    pod = host.pod(app, ports=ports)
    of_pod = Path(f"{host.root}{pod.inside}/stage1/rootfs/usr/lib/rkt/plugins/net")
    of_pod.mkdir(parents=True)
    Path(f"{portmap}.away").rename(of_pod / "portmap")
    with running(pod, "--net=default"):
        assert pod.call("stop", "--force", pod.uuid)[0] == 0
    (of_pod / "portmap").rename(f"{portmap}.away")
    code, _, err = pod.call("gc", pod.uuid)
    assert (code, err.count("\n")) == (125, 1)
    assert 'CNI plugin "portmap"' in err
    assert not cgroups(pod)
    Path(f"{portmap}.away").rename(portmap)
    gone(pod)


def holds_nothing_of(pod, host, process):
    """The plugin that ``process`` has started, and that waits, has no descriptor of the pod's directory."""
    until((host.root / "srv/held").exists)
    (host.root / "srv/held").unlink()
    plugins = orphans.running(pod.uuid)
    found = {os.readlink(fd) for pid in plugins for fd in Path(f"/proc/{pid}/fd").iterdir()}
    (host.root / "srv/hold").unlink()
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert plugins
    assert not [each for each in found if pod.uuid in each]


@pytest.mark.usefixtures("clean")
def test_no_plugin_has_the_pods_lock(host):
    """One that goes on by itself would hold it for good."""
    (host.root / "srv/hold").write_text("before ADD eth0")
    pod = host.pod(shell("web", "true"))
    process = pod.begin("run", "--net=default", pod.uuid)
    holds_nothing_of(pod, host, process)
    gone(pod)


@pytest.mark.usefixtures("clean")
def test_gc_gives_plugins_nothing_of_its_callers(host):
    pod = host.pod(shell("web", "true"))
    assert pod.run("--net=default") == (0, "", "")
    (host.root / "srv/hold").write_text("before DEL eth0")
    theirs = os.open(pod.place, os.O_RDONLY)
    try:
        os.set_inheritable(theirs, True)
        process = pod.begin("gc", pod.uuid)
    finally:
        os.close(theirs)
    holds_nothing_of(pod, host, process)
    gone(pod)


@pytest.mark.full
@pytest.mark.usefixtures("clean")
def test_gc_that_cannot_remove_cgroups(host):
    """It leaves the networks all the same: whoever has called it removes the pod, and does not ask again."""
    pod = host.pod(shell("web", "true"))
    assert pod.run("--net=default") == (0, "", "")
    assert left(host)[1]
    mounted = cgroups(pod)[0]
    while mounted not in host.mounts:
        mounted = os.path.dirname(mounted)
    remount = ["/bin/mount", "-o", "remount,bind,ro", mounted]
    subprocess.run(remount, preexec_fn=host.enter, check=True)
    try:
        code, _, err = pod.call("gc", pod.uuid)
    finally:
        remount[2] = "remount,bind,rw"
        subprocess.run(remount, preexec_fn=host.enter, check=True)
    assert (code, err.count("\n")) == (125, 1), err
    assert "read-only file system" in err
    assert not left(host)[1]
    assert not (pod.place / "netns").exists()
    gone(pod)


@pytest.mark.usefixtures("clean")
def test_interrupted_while_it_joins(host):
    """By a Ctrl-C, of somebody who has a slow plugin: it ends at once, silently, and has left all."""
    pod = host.pod(shell("web", "true"))
    (host.root / "srv/hold").write_text("after ADD eth1")
    process = pod.begin("run", "--net=back,default", pod.uuid)
    until(lambda: (host.root / "srv/held").exists() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == (b"", b"")
    (host.root / "srv/held").unlink()
    assert process.returncode == 130
    assert orphans.running(pod.uuid) == []
    assert not left(host)[1]
    assert not cgroups(pod)
    gone(pod)


#: A plugin that finds its disk full from the second network on.
FULL = f"""#!/bin/sh
[ "$CNI_COMMAND $CNI_IFNAME" = "ADD eth1" ] && touch /srv/full
if [ -e /srv/full ]; then echo '{{"code": 5, "msg": "no space left on device"}}'; exit 1; fi
exec {PLUGINS}/ptp
"""


@pytest.mark.usefixtures("clean")
def test_what_fails_to_be_joined_and_to_be_left_for_one_reason(host):
    """Of the network that was refused there is nothing to leave; of the one before there is, once that works."""
    local = host.root / "etc/rkt/net.d"
    for name, subnet in (("20-one", "10.81.0.0/24"), ("21-two", "10.82.0.0/24")):
        config = {"cniVersion": "0.4.0", "name": name[3:], "type": "full", "ipMasq": True}
        config["ipam"] = {"type": "host-local", "subnet": subnet}
        (local / f"{name}.conf").write_text(json.dumps(config))
    (local / "full").write_text(FULL)
    (local / "full").chmod(0o755)
    pod = host.pod(shell("web", "true"))
    code, _, err = pod.run("--net=one,two")
    (local / "20-one.conf").unlink()
    (local / "21-two.conf").unlink()
    assert code == 125
    assert sorted(err.splitlines()) == [
        'stage1: cannot join network "two": CNI plugin full failed: no space left on device',
        'stage1: cannot leave network "one": CNI plugin full failed: no space left on device',
    ]
    assert pod.call("gc", pod.uuid)[0] == 125
    (host.root / "srv/full").unlink()
    gone(pod)
    (local / "full").unlink()


@pytest.mark.full
@pytest.mark.usefixtures("clean")
def test_a_result_that_makes_no_sense(host):
    """Is told in a line; what was joined before is left."""
    local = host.root / "etc/rkt/net.d"
    (local / "odd").write_text("#!/bin/sh\n[ $CNI_COMMAND = DEL ] || cat /srv/result\n")
    (local / "odd").chmod(0o755)
    (local / "20-odd.conf").write_text(json.dumps({"name": "odd", "type": "odd"}))
    for result in ({"ips": 5}, {"ips": [{"address": "nonsense"}]}, {"ip4": {"ip": "10.1.1.1/99"}}):
        (host.root / "srv/result").write_text(json.dumps(result))
        pod = host.pod(shell("web", "true"))
        code, _, err = pod.run("--net=back,odd")
        assert (code, err.count("\n")) == (125, 1), err
        assert err.startswith(
            'stage1: cannot join network "odd": CNI plugin odd printed a result that makes no sense: '
        )
        assert not left(host)[1]
        gone(pod)
    (local / "20-odd.conf").unlink()
    (local / "odd").unlink()


@pytest.fixture
def stage0(stage1s, exported):
    """``kurma`` as stage0, with a network of CNI's; nothing is left once its pods are removed."""
    addresses = {"type": "host-local", "subnet": "10.79.0.0/24"}
    bridge = {"type": "bridge", "bridge": "kback1", "isGateway": True, "ipMasq": True, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}
    network = {"name": "back", "plugin": "cni", "cniVersion": "1.0.0", "plugins": [bridge, ports]}
    stage1s.configure(container_networks=[network])
    stage1s.pin(exported)
    before = links(), set(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else set()
    yield stage1s
    stage1s.configure(container_networks=[])
    subprocess.run(["ip", "link", "delete", "kback1"], check=False, capture_output=True)
    left = [str(each) for each in Path("/var/lib/cni/networks").glob("*/[0-9]*")]
    here = links(), set(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else set()
    assert (here, left, rules()) == (before, [], [])


@contextlib.contextmanager
def in_front(kurma, *words):
    """A pod of ``kurma run`` whose app answers at port 80: the UUID, and what calls a command in it."""
    name = f"net-{os.getpid()}-{len(words)}"
    command = [*KURMA, "run", "--name", name, *words, "--exec", "/bin/sh", kurma.image, "--", "-c", ANSWER]
    process = subprocess.Popen(
        command, env=kurma.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )

    def enter(script):
        done = kurma("enter", name, "--", "/bin/sh", "-c", script)
        return done.stdout if done.returncode == 0 else ""

    try:
        until(lambda: enter("echo up") or process.poll() is not None, "the pod", 60)
        assert process.poll() is None, process.communicate()
        yield kurma.show(name)["uuid"], enter
        kurma.out("stop", name)
    finally:
        kurma("stop", "--force", name)  # the pod's processes have the pipes, too
        process.kill()
        process.communicate()
        kurma("rm", "--force", name)


@pytest.mark.full
def test_under_our_own_stage0(stage0, exported):
    """A network of Kurma's, by name, and a port of the host's."""
    stager = f"rkt:{exported}"
    with in_front(stage0, "--stager", stager, "--net", "back", "-p", "18090:80") as (uuid, inside):
        assert "inet 10.79.0." in inside("ip addr show eth0")
        assert "inet 172.31.0." in inside("ip addr show eth1")
        assert inside("ping -c 1 -W 10 10.79.0.1")
        assert answer("127.0.0.1", 18090) == f"from rkt-{uuid}\n"
        assert f"rkt-{uuid}" in os.listdir("/run/netns")


@pytest.mark.full
def test_a_port_of_a_pod_that_has_ended(stage0, exported):
    """Its rules lead to it until gc: the next one would come up, and nobody would reach it."""
    words = ("--stager", f"rkt:{exported}", "--net", "back", "-p", "18090:80")
    last = stage0.out("run", "--name", "last", *words, "--exec", "/bin/true", stage0.image)
    assert (last, stage0.show("last")["state"]) == ("", "stopped")
    with_it = "port 18090/tcp of the host leads to pod last still, which has ended"
    for options in (words, ("-p", "18090:80")):
        done = stage0("run", "--rm", *options, "--exec", "/bin/true", stage0.image)
        assert (done.returncode, with_it in done.stderr) == (125, True), done.stderr
        assert f"kurma rm {stage0.show('last')['uuid'][:8]}" in done.stderr
    other = stage0.directory / "other"
    done = stage0("--dir", str(other), "run", "--rm", "-p", "18090:80", "--exec", "/bin/true", stage0.image)
    assert (done.returncode, with_it in done.stderr) == (125, True), done.stderr
    stage0.out("start", "last")
    uuid = stage0.show("last")["uuid"]
    assert [name for name in os.listdir("/run/kurma/ports") if uuid in name]
    stage0.out("rm", "last")
    assert not [name for name in os.listdir("/run/kurma/ports") if uuid in name]
    with in_front(stage0, *words) as (uuid, _):
        assert answer("127.0.0.1", 18090) == f"from rkt-{uuid}\n"


@pytest.mark.full
def test_the_default_one_under_our_own_stage0(stage0, exported):
    """What it is, is for stage1 to know."""
    with in_front(stage0, "--stager", f"rkt:{exported}") as (uuid, inside):
        assert "default via 172.16.28.1 dev eth0" in inside("ip route")
        assert [rule for rule in rules() if uuid in rule]


def test_one_that_our_own_stage0_cannot_tell(stage0, exported):
    """A network of another plugin than CNI's has no configuration that a stage1 could read."""
    own = {"name": "mine", "plugin": "bridge", "bridge": "kmine0", "subnets": ["10.80.0.0/24"]}
    stage0.configure(container_networks=[own])
    done = stage0("run", "--rm", "--stager", f"rkt:{exported}", "--net", "mine", stage0.image)
    assert done.returncode == 125
    assert "--net: there is no network mine: " in done.stderr


def test_one_that_keeps_its_pods_from_each_other(stage0, exported):
    """By that name stage1 has one without that wall: the pod is not run."""
    own = {"name": "default", "plugin": "bridge", "bridge": "kmine0", "subnets": ["10.80.0.0/24"]}
    stage0.configure(container_networks=[{**own, "isolated": True}])
    done = stage0("run", "--rm", "--stager", f"rkt:{exported}", "--net", "default", stage0.image)
    assert (done.returncode, done.stdout) == (125, "")
    assert "network default keeps its pods from each other (`isolated`)" in done.stderr
