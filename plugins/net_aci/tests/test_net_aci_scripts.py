"""What scripts of an image find, and what becomes of those that misbehave (Kurma Network Specification; W2)."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from kurma_net_aci.plugin import kurma_network
from kurma_testing.networks import context, pod_namespace

from kurma_core.errors import NetworkError, TrustError
from kurma_core.hookspecs.network import Leak
from kurma_core.linux.namespaces import unpin
from kurma_core.linux.process import boot_id
from tests.kit.waiting import until

pytestmark = pytest.mark.root

RESULT = '{"ip4": {"ip": "10.1.2.3/24"}}'
#: What a well-behaved image does: every call is written down in its root.
LOG = '#!/bin/sh\necho "${0##*/} $*" >>/calls\n'
FINE = {"setup": LOG, "add": f"{LOG}echo '{RESULT}'\n", "del": LOG}
CONFIG = {"name": "net", "aci": "file:///net.aci", "containerInterface": "eth{{num}}", "rate": 3}


@pytest.fixture
def state(tmp_path):
    return tmp_path / "aci/networks/net"


@pytest.fixture
def calls(state):
    """What the roots' logs say, by image, oldest first."""

    def read():
        files = sorted(state.glob("roots/sha*/rootfs/calls"), key=lambda file: file.stat().st_ctime_ns)
        return [line for file in files for line in file.read_text().splitlines()]

    return read


@pytest.fixture
def pod():
    ident = str(uuid.uuid4())
    with pod_namespace(ident):
        yield ident


def marked(mark):
    """PIDs of processes with that in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def session_of(pid):
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


@pytest.fixture
def mark():
    """A number of seconds that no other process sleeps for; such sleepers do not survive the test."""
    seconds = str(100000 + int.from_bytes(os.urandom(3), "big"))
    yield seconds
    for pid in marked(seconds):
        os.kill(pid, signal.SIGKILL)


# -- what they find --


def test_arguments_input_and_surroundings(images, new_driver, pod, state):
    script = r"""#!/bin/sh
cat >/config
env >/env
{ pwd; id -u; ls /; for kind in net pid ipc uts; do readlink /proc/self/ns/$kind; done; } >/found
readlink /proc/self/ns/mnt >/mnt
{ umask; id -G; sed -n 's/^SigIgn:\t//p' /proc/$$/status; cut -d ' ' -f 6 /proc/$$/stat; echo $$; } >/self
grep CapEff /proc/self/status >/caps
ls /proc/self/fd | wc -l >/fds
[ ! -e "$1" ] || nsenter --net="$1" true || exit 1
[ -c /dev/null ] && [ -d /sys/class/net/lo ] || exit 1
"""
    images.add("file:///net.aci", {**FINE, "add": f"{script}echo '{RESULT}'", "setup": LOG}, [("COLOUR", "blue")])
    driver = new_driver()
    one = context(pod, CONFIG, "eth7")
    result = driver.add(one)
    assert [address.address for address in result.addresses] == ["10.1.2.3/24"]
    root = next(state.glob("roots/*/rootfs"))
    assert json.loads((root / "config").read_text()) == CONFIG
    environment = dict(line.split("=", 1) for line in (root / "env").read_text().splitlines())
    assert environment["COLOUR"] == "blue"
    assert environment["PATH"].endswith("/usr/sbin:/usr/bin:/sbin:/bin")
    assert set(environment) <= {"COLOUR", "PATH", "PWD", "SHLVL", "OLDPWD"}
    found = (root / "found").read_text().split()
    assert found[:2] == ["/", "0"]
    assert "images" not in found
    assert found[-4:] == [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid", "ipc", "uts")]
    assert (root / "mnt").read_text().strip() != os.readlink("/proc/self/ns/mnt")
    own = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd"))
    assert (root / "caps").read_text().split()[1] == own.split()[1]
    assert int((root / "fds").read_text()) == 4  # three, and the one of ls
    mask, groups, ignored, session, pid = (root / "self").read_text().splitlines()
    assert (mask, groups, session) == ("0022", "0", pid)
    assert int(ignored, 16) == 1 << signal.SIGQUIT - 1  # which busybox's shell ignores itself
    driver.delete(one)
    assert (root / "calls").read_text() == f"setup \ndel /run/netns/kurma-{pod} {pod} eth7\n"


def test_a_ctrl_c_and_what_kurma_ignores_are_not_the_scripts(images, new_driver, pod, state):
    """What runs a script is in a session of its own, and hears the signals that end it."""
    script = f"""#!/bin/sh
{{ cut -d ' ' -f 6 /proc/$PPID/stat; sed -n 's/^SigIgn:\t//p' /proc/$PPID/status; }} >/parent
echo '{RESULT}'
"""
    images.add("file:///net.aci", {**FINE, "add": script})
    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in ours]
    try:
        new_driver().add(context(pod, CONFIG))
    finally:
        for number, handler in zip(ours, before, strict=True):
            signal.signal(number, handler)
    (found,) = state.glob("roots/*/rootfs/parent")
    session, ignored = found.read_text().split()
    assert int(session) not in (0, os.getsid(0))
    assert [number for number in ours if int(ignored, 16) >> number - 1 & 1] == []


def test_a_pod_that_is_half_left_is_not_joined(images, new_driver, pod):
    images.add("file:///net.aci", {**FINE, "del": "#!/bin/sh\nexit 9\n"})
    one = context(pod, {**CONFIG, "containerInterface": ""}, "")
    driver = new_driver()
    driver.add(one)
    driver.check(one)
    with pytest.raises(NetworkError, match="status 9"):
        driver.delete(one)
    with pytest.raises(NetworkError, match="is not joined"):
        driver.check(one)


def test_a_minute_each():
    assert [(option.name, option.default) for option in kurma_network().options] == [("timeout", 60.0)]


def test_a_state_directory_where_nothing_may_be_executed(images, new_driver, pod, tmp_path, calls):
    (tmp_path / "aci").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,nodev,nosuid", "none", tmp_path / "aci"], check=True)
    try:
        images.add("file:///net.aci", FINE)
        assert new_driver().add(context(pod, CONFIG)).addresses
        assert len(calls()) == 2
    finally:
        subprocess.run(["umount", tmp_path / "aci"], check=True)


def test_no_interface_argument_where_none_is_configured(images, new_driver, pod, calls):
    images.add("file:///net.aci", FINE)
    one = context(pod, {"name": "net", "aci": "file:///net.aci"}, "")
    driver = new_driver()
    driver.add(one)
    driver.check(one)
    driver.delete(one)
    assert calls()[1:] == [f"add /run/netns/kurma-{pod} {pod}", f"del /run/netns/kurma-{pod} {pod}"]


def test_nothing_that_is_mounted_inside_gets_out(images, new_driver, pod):
    images.add("file:///net.aci", {**FINE, "add": f"#!/bin/sh\nmount -t tmpfs x /proc && mount -t tmpfs x /sys\n"
                                                  f"mount -t tmpfs x /run/netns\necho '{RESULT}'"})  # fmt: skip
    before = Path("/proc/self/mountinfo").read_text()
    new_driver().add(context(pod, CONFIG))
    assert Path("/proc/self/mountinfo").read_text() == before


def test_links_of_the_image_do_not_lead_out(images, new_driver, pod, tmp_path):
    root = images.add("file:///net.aci", FINE)
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "run").symlink_to(outside)
    (root / "sys").symlink_to("/var/sys")
    (root / "var/sys").mkdir(parents=True)
    driver = new_driver()
    with pytest.raises(NetworkError, match=r"setup of file:///net.aci has no root to run in: .*/run"):
        driver.setup(CONFIG)
    assert list(outside.iterdir()) == []


# -- setup --


def test_setup_once_for_all_processes_at_once(images, new_driver, calls):
    images.add("file:///net.aci", {**FINE, "setup": f"{LOG}sleep 0.3\n"})
    threads = [threading.Thread(target=new_driver().setup, args=(CONFIG,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls() == ["setup "]


def test_setup_again_after_a_boot_a_new_configuration_and_a_daemons_start(images, new_driver, calls, state):
    images.add("file:///net.aci", FINE)
    new_driver().setup(CONFIG)
    new_driver().setup(CONFIG)
    assert len(calls()) == 1
    daemon = new_driver(daemon=True)
    daemon.setup(CONFIG)
    daemon.setup(CONFIG)
    assert len(calls()) == 2
    new_driver().setup({**CONFIG, "rate": 4})
    assert len(calls()) == 3
    (file,) = state.glob("**/setup.json")
    done = json.loads(file.read_text())
    assert done["boot"] == boot_id()
    file.write_text(json.dumps({**done, "boot": "an earlier one"}))
    new_driver().setup({**CONFIG, "rate": 4})
    assert len(calls()) == 4
    assert len(list(state.glob("roots/*"))) == 1


def test_a_failing_setup_disables_the_network_until_the_next_start(images, new_driver, pod, calls):
    fails = f"{LOG}[ -e /good ] && exit 0; echo 'no \x1b[31mmodem' >&2; echo 'line two'; exit 7\n"
    images.add("file:///net.aci", {**FINE, "setup": fails})
    driver = new_driver()
    for _ in range(2):
        with pytest.raises(
            NetworkError, match=r'set up network "net": .*failed with status 7: no \[31mmodem line two'
        ):
            driver.setup(CONFIG)
    with pytest.raises(NetworkError, match="status 7"):
        driver.add(context(pod, CONFIG))
    with pytest.raises(NetworkError, match="status 7"):
        driver.status(CONFIG)
    assert calls() == ["setup "]
    with pytest.raises(NetworkError, match="status 7"):
        new_driver().setup(CONFIG)
    assert calls() == ["setup ", "setup "]


def test_what_setup_leaves_stays_sees_new_pods_and_goes_with_the_network(images, new_driver, mark):
    enter = 'for one in /run/netns/kurma-*; do nsenter --net="$one" true && echo "$one"; done >/seen'
    loop = f"while :; do {enter}; sleep 0.05; done; : {mark}"
    double = f"( setsid sh -c '{loop}' >/dev/null 2>&1 & ) &\n"
    images.add("file:///net.aci", {**FINE, "setup": f"#!/bin/sh\n{double}"})
    driver = new_driver()
    # As after a boot: nobody has made a place for namespaces yet.
    subprocess.run(["umount", "--lazy", "/run/netns"], check=False, capture_output=True)
    driver.setup(CONFIG)
    # Its children have its words until they are something else.
    (helper,) = until(lambda: [pid for pid in marked(mark) if session_of(pid) == pid])
    late = str(uuid.uuid4())
    with pod_namespace(late):
        one = context(late, CONFIG)
        driver.add(one)
        seen = Path(f"/proc/{helper}/root/seen")
        until(lambda: seen.exists() and f"kurma-{late}" in seen.read_text())
        driver.delete(one)
    assert helper in marked(mark)
    homes = {line.split(":", 2)[2] for line in Path(f"/proc/{helper}/cgroup").read_text().splitlines()}
    (home,) = {home.rpartition("/")[2] for home in homes if "/kurma-networks/" in home}
    assert not homes & {line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines()}
    driver.remove(CONFIG)
    assert marked(mark) == []
    assert list(Path("/sys/fs/cgroup").glob(f"**/kurma-networks/{home}")) == []


@pytest.mark.full
def test_what_a_failed_setup_and_add_and_del_leave_is_ended(images, new_driver, pod, mark):
    """Double-forked, in sessions of their own, deaf to SIGTERM; and some that fork on and on."""
    deaf = f"( setsid sh -c 'trap \"\" TERM; sleep {mark}' & ) &"
    leave = f"{deaf}\nsh -c 'while :; do ( setsid sleep {mark} & ) ; sleep 0.01; done' {mark} &\nsleep 0.1\n"
    failing = {**FINE, "setup": f"#!/bin/sh\n{leave}exit 1"}
    images.add("file:///net.aci", failing)
    with pytest.raises(NetworkError, match="failed with status 1, and said nothing"):
        new_driver().setup(CONFIG)
    assert marked(mark) == []
    scripts = {"setup": LOG, "add": f"#!/bin/sh\n{leave}echo '{RESULT}'", "del": f"#!/bin/sh\n{leave}"}
    images.add("file:///net.aci", scripts)
    driver = new_driver()
    one = context(pod, CONFIG)
    driver.add(one)
    assert marked(mark) == []
    driver.delete(one)
    assert marked(mark) == []


# -- those that misbehave --


@pytest.mark.full
@pytest.mark.parametrize("script", ["setup", "add", "del"])
def test_a_script_that_takes_too_long(images, new_driver, pod, mark, script):
    slow = (f"#!/bin/sh\ntrap '' TERM\necho still here\n( setsid sh -c 'trap \"\" TERM; sleep {mark}' & ) &\n"
            f"sleep {mark}\n")  # fmt: skip
    images.add("file:///net.aci", {**FINE, script: slow})
    one = context(pod, CONFIG)
    driver = new_driver()
    if script != "setup":
        driver.setup(CONFIG)
    if script == "del":
        driver.add(one)
    driver = new_driver(timeout=0.5)
    act = {
        "setup": lambda: driver.setup(CONFIG),
        "add": lambda: driver.add(one),
        "del": lambda: driver.delete(one),
    }
    began = time.monotonic()
    with pytest.raises(NetworkError, match=rf"/{script} .*killed: it took longer than 0.5 seconds: still here"):
        act[script]()
    assert time.monotonic() - began < 5
    assert marked(mark) == []


def test_failures_of_add_and_del_disable_nothing(images, new_driver, pod, calls):
    flaky = f"{LOG}[ -e /ok-${{0##*/}} ] || {{ touch /ok-${{0##*/}}; kill -9 $$; }}\n"
    images.add("file:///net.aci", {"setup": LOG, "add": f"{flaky}echo '{RESULT}'", "del": flaky})
    driver, one = new_driver(), context(pod, CONFIG)
    with pytest.raises(NetworkError, match=r'join network "net": .*add .*failed with signal 9, and said nothing'):
        driver.add(one)
    with pytest.raises(NetworkError, match=r'leave network "net": .*del .*failed with signal 9'):
        driver.delete(one)
    driver.delete(one)
    driver.delete(one)  # nothing is left to be left
    driver.add(one)
    driver.delete(one)
    arguments = f"/run/netns/kurma-{pod} {pod} eth0"
    assert calls() == ["setup ", *(f"{verb} {arguments}" for verb in ("add", "del", "del", "add", "del"))]


@pytest.mark.full
@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("echo 'garbage \x1b]0;x\x07'", "printed no result but garbage ]0;x"),
        ("true", "printed no result but nothing"),
        ("yes | head -c 3000000", "printed more than 1048576 bytes instead of a result"),
        ("echo '[1]'", "returned a wrong result"),
        ('echo \'{"ip4": {"ip": "10.0.0.300/8"}}\'', "wrong result: .*ip4.ip"),
        ("yes '[' | head -c 1000000", "printed no result but"),
    ],
)
def test_what_is_no_result(images, new_driver, pod, printed, said):
    images.add("file:///net.aci", {**FINE, "add": f"#!/bin/sh\n{printed}\n"})
    driver, one = new_driver(), context(pod, CONFIG)
    with pytest.raises(NetworkError, match=said) as failed:
        driver.add(one)
    assert failed.value.message.isprintable()
    with pytest.raises(NetworkError, match="not joined"):
        driver.check(one)
    driver.delete(one)


@pytest.mark.parametrize(
    "result",
    [
        {"cniVersion": "0.3.1", "ips": [{"version": "4", "address": "10.1.2.3/24"}]},
        {"cniVersion": "1.1.0", "ips": [{"address": "10.1.2.3/24"}], "interfaces": [{"name": "eth0"}]},
        {"ip4": {"ip": "10.1.2.3/24", "gateway": "10.1.2.1", "routes": [{"dst": "0.0.0.0/0"}]}, "ip6": None},
    ],
)
def test_results_of_every_shape(images, new_driver, pod, result):
    images.add("file:///net.aci", {**FINE, "add": f"#!/bin/sh\necho '{json.dumps(result)}'\n"})
    found = new_driver().add(context(pod, CONFIG))
    assert [address.address for address in found.addresses] == ["10.1.2.3/24"]
    assert found.raw == result


def test_megabytes_of_complaints_are_bounded(images, new_driver, pod):
    noisy = "#!/bin/sh\necho first; yes complaint | head -c 5000000 >&2; echo 'at last' >&2; exit 4\n"
    images.add("file:///net.aci", {**FINE, "add": noisy})
    with pytest.raises(NetworkError, match=r"status 4: .*complaint.*") as failed:
        new_driver().add(context(pod, CONFIG))
    assert len(failed.value.message) < 1000
    assert failed.value.message.endswith("at last first")


def test_megabytes_beside_a_result_do_not_matter(images, new_driver, pod):
    noisy = f"#!/bin/sh\nyes complaint | head -c 5000000 >&2; echo '{RESULT}'\n"
    images.add("file:///net.aci", {**FINE, "add": noisy})
    assert new_driver().add(context(pod, CONFIG)).addresses


def test_standard_input_need_not_be_read(images, new_driver, pod):
    """A configuration beyond what any pipe holds."""
    config = {**CONFIG, "filler": "x" * 3_000_000}
    images.add("file:///net.aci", {**FINE, "add": f"#!/bin/sh\nexec <&-\necho '{RESULT}'\n",
                                   "del": "#!/bin/sh\nwc -c >/size\n"})  # fmt: skip
    driver, one = new_driver(), context(pod, config)
    driver.add(one)
    driver.delete(one)


def test_scripts_that_are_missing_or_cannot_be_executed(images, new_driver):
    def refused(change):
        root = images.add("file:///net.aci", FINE)
        change(root / "opt/network")
        with pytest.raises(NetworkError) as failed:
            new_driver().setup(CONFIG)
        return failed.value.message

    assert refused(lambda at: (at / "add").unlink()) == (
        'network "net": no such file or directory: /opt/network/add of file:///net.aci'
    )
    assert "is not executable: /opt/network/del" in refused(lambda at: (at / "del").chmod(0o644))
    assert "is not a regular file: /opt/network/setup" in refused(
        lambda at: ((at / "setup").unlink(), (at / "setup").mkdir())
    )
    assert "cannot be executed: " in refused(lambda at: (at / "setup").write_text("#!/no/such/shell\n"))
    assert "/no/such/shell" in refused(lambda at: (at / "setup").write_text("#!/no/such/shell\n"))


def test_a_network_that_names_no_image(new_driver):
    with pytest.raises(NetworkError, match='network "net" names no image'):
        new_driver().setup({"name": "net"})


def test_publishes_no_ports(new_driver):
    assert new_driver().publishes(CONFIG) == "its plugin is an image, which is not told of ports"


# -- roots, restarts, crashes --


def test_a_new_image_gets_a_new_root_and_old_pods_leave_by_the_old_one(images, new_driver, pod, state, mark):
    helper = f"( setsid sleep {mark} >/dev/null 2>&1 & ) &\n"
    old = images.add("file:///net.aci", {**FINE, "setup": f"{LOG}{helper}"})
    one = context(pod, CONFIG)
    new_driver().add(one)
    until(lambda: len(marked(mark)) == 1)
    images.add("file:///net.aci", {**FINE, "del": "#!/bin/sh\nexit 9\n"})
    subprocess.run(["rm", "-r", old], check=True)  # the store has lost it
    driver = new_driver()
    driver.setup(CONFIG)
    assert len(list(state.glob("roots/*"))) == 2
    assert len(marked(mark)) == 1
    with pod_namespace(other := str(uuid.uuid4())):
        two = context(other, CONFIG)
        driver.add(two)
        driver.delete(one)
        assert len(list(state.glob("roots/*"))) == 1
        assert marked(mark) == []
        with pytest.raises(NetworkError, match="status 9"):
            driver.delete(two)


def test_a_root_that_was_lost_is_made_anew(images, new_driver, pod, state, calls):
    images.add("file:///net.aci", FINE)
    one = context(pod, CONFIG)
    new_driver().add(one)
    subprocess.run(["rm", "-r", state / "roots"], check=True)
    new_driver().delete(one)
    assert calls() == ["setup ", f"del /run/netns/kurma-{pod} {pod} eth0"]


def test_a_pod_leaves_also_if_its_root_was_lost_and_its_image_is_refused(images, new_driver, pod, state):
    """Nothing may be run then, and nobody keeps the pod for it."""
    images.add("file:///net.aci", FINE)
    one = context(pod, CONFIG)
    new_driver().add(one)
    subprocess.run(["rm", "-r", state / "roots"], check=True)
    images.refused = TrustError("nothing vouches for it")
    notes = []
    driver = new_driver(note=notes.append)
    driver.delete(one)
    driver.delete(one)
    left = f"pod {pod}: what /opt/network/add has made on the host stays: its root was lost, and "
    assert notes == [left + 'network "net": nothing vouches for it']
    assert list(state.glob("joined/*")) == []
    assert list(state.glob("roots/*")) == []


def test_a_torn_record_keeps_nothing_from_leaving(images, new_driver, pod, state, calls):
    images.add("file:///net.aci", FINE)
    one = context(pod, CONFIG)
    new_driver().add(one)
    (record,) = state.glob("joined/*.json")
    assert record.stat().st_mode & 0o777 == 0o600
    record.write_text("{")
    new_driver().delete(one)
    assert calls()[-1] == f"del /run/netns/kurma-{pod} {pod} eth0"
    assert list(state.glob("joined/*")) == []


@pytest.mark.full
def test_an_add_that_outlives_its_kurma_is_waited_for(images, new_driver, pod, tmp_path, state, calls):
    """kill -9 in the middle: the script goes on under its time limit, and del comes after it."""
    slow = "#!/bin/sh\ntouch /began; sleep 1; echo added >>/calls\n"
    images.add("file:///net.aci", {**FINE, "add": slow})
    driver = new_driver()
    driver.setup(CONFIG)
    child = os.fork()
    if child == 0:
        try:
            new_driver().add(context(pod, CONFIG))
        finally:
            os._exit(0)
    until(lambda: list(state.glob("roots/*/rootfs/began")))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    driver.delete(context(pod, CONFIG))
    assert calls() == ["setup ", "added", f"del /run/netns/kurma-{pod} {pod} eth0"]
    assert list(state.glob("joined/*")) == []


def test_an_add_whose_program_is_killed_too(images, new_driver, pod, state, mark):
    images.add("file:///net.aci", {**FINE, "add": f"#!/bin/sh\ntouch /began; exec sleep {mark}\n"})
    driver, one = new_driver(), context(pod, CONFIG)
    driver.setup(CONFIG)

    def strike():
        until(lambda: list(state.glob("roots/*/rootfs/began")))
        for pid in marked("kurma_net_aci/inside/program.py"):
            if pod.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)

    striker = threading.Thread(target=strike)
    striker.start()
    with pytest.raises(NetworkError, match="the program that runs it was killed"):
        driver.add(one)
    striker.join()
    until(lambda: marked(mark) == [])
    driver.delete(one)


@pytest.mark.full
def test_an_interrupt_ends_the_script(images, new_driver, pod, tmp_path, mark):
    images.add("file:///net.aci", {**FINE, "add": f"#!/bin/sh\ntrap '' TERM INT\nsleep {mark}; sleep {mark}\n"})
    program = f"""
import signal, sys, threading, os, time
from pathlib import Path
from kurma_net_aci import scripts
class Stop(BaseException): pass
def stop(*_): raise Stop
signal.signal(signal.SIGINT, stop)
threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    root = {str(images("file:///net.aci").path)!r}
    scripts.run(root, ["/opt/network/add"], stdin=b"", environment={{"PATH": "/bin"}}, timeout=50)
except Stop:
    print("stopped")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout == "stopped\n", done.stderr
    assert marked(mark) == []


# -- looking after it --


def test_leaks_are_told_and_repaired(images, new_driver, pod, state, calls):
    images.add("file:///net.aci", FINE)
    driver = new_driver()
    driver.add(context(pod, CONFIG))
    assert driver.leaks([CONFIG], {pod}) == ()
    assert driver.repair([CONFIG], {pod}) == ()
    what = f"interface eth0 of pod {pod}, which joined by /opt/network/add"
    assert driver.leaks([CONFIG], set()) == (Leak("attachment", what, "its pod is gone", "net", pod),)
    assert len(calls()) == 2
    unpin(f"/run/netns/kurma-{pod}")
    assert new_driver().repair([CONFIG], set()) == ()
    assert calls()[-1] == f"del /run/netns/kurma-{pod} {pod} eth0"
    (leak,) = driver.leaks([], set())
    assert (leak.kind, leak.why) == ("root", "its network is not configured any more")
    assert driver.repair([], set()) == ()
    assert not state.exists()


def test_what_cannot_be_repaired_is_told_with_its_reason(images, new_driver, pod):
    images.add("file:///net.aci", {**FINE, "del": "#!/bin/sh\necho stuck; exit 1\n"})
    driver = new_driver()
    driver.add(context(pod, CONFIG))
    (leak,) = driver.repair([], set())
    assert leak.pod == pod
    assert leak.why.startswith("its pod is gone: cannot leave")
    assert leak.why.endswith("stuck")


def test_remove_refuses_while_a_pod_is_joined(images, new_driver, pod, state):
    images.add("file:///net.aci", FINE)
    driver, one = new_driver(), context(pod, CONFIG)
    driver.add(one)
    with pytest.raises(NetworkError, match=f"is in use by {pod}"):
        driver.remove(CONFIG)
    driver.delete(one)
    driver.remove(CONFIG)
    assert not state.exists()
    driver.remove(CONFIG)


def test_a_call_costs_little(images, new_driver, pod):
    """Most of it is the start of the program. Generous: other tests may run beside."""
    images.add("file:///net.aci", FINE)
    driver, one = new_driver(), context(pod, CONFIG)
    driver.setup(CONFIG)
    took = []
    for _ in range(5):
        began = time.perf_counter()
        driver.add(one)
        took.append(time.perf_counter() - began)
    assert min(took) < 0.4
