"""``kurma info --check``: a host lacks something, the hint is run as it is printed, and then the check passes.

The hosts that are broken are namespaces of the test. Nothing is installed: ``apt-get`` there uncovers the files of
a package that the test has covered, by what dpkg knows of the package.
"""

import contextlib
import errno
import json
import os
import shlex
import signal
import subprocess
import sys

import pytest

from tests.kit.command import PROGRAM
from tests.kit.waiting import until

pytestmark = pytest.mark.root

APT_GET = """#!/bin/sh
[ "$1" = install ] || exit 1
shift
for package; do
	dpkg -L "$package" | grep -Fxf COVERED | while read -r file; do umount "$file"; done || exit 1
done
"""

#: What writes the kernel's command line on a host with GRUB, in few words.
UPDATE_GRUB = """#!/bin/sh
. /etc/default/grub
for file in /etc/default/grub.d/*.cfg; do [ ! -e "$file" ] || . "$file"; done
echo "$GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT" > BOOTED
"""
#: Executes a program for which a system call fails: NUMBER ERRNO PROGRAM ARGUMENT…
FILTERED = """
import ctypes, os, struct, sys
number, error = int(sys.argv[1]), int(sys.argv[2])
words = (0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50000 | error), (6, 0, 0, 0x7FFF0000)
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *word) for word in words))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(words), ctypes.addressof(code)))
assert ctypes.CDLL(None).prctl(22, 2, program) == 0
os.execv(sys.argv[3], sys.argv[3:])
"""
CLONE3, LANDLOCK_CREATE_RULESET = 435, 444


class Host:
    """Namespaces in which commands run.

    :param kinds: options of unshare.
    """

    def __init__(self, directory, kinds):
        self.directory = directory
        self.state = directory / "state"
        self.covered = directory / "covered"
        self.covered.touch()
        tools = directory / "tools"
        tools.mkdir()
        self.booted = directory / "booted"
        programs = {
            "apt-get": APT_GET.replace("COVERED", str(self.covered)),
            "update-grub": UPDATE_GRUB.replace("BOOTED", str(self.booted)),
            "sudo": '#!/bin/sh\nexec "$@"\n',
        }
        for name, text in programs.items():
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        (directory / "kurma.json").write_text("{}")
        self.environment = {
            **os.environ,
            "PATH": f"{tools}:{os.path.dirname(PROGRAM)}:{os.environ['PATH']}",
            "KURMA_DIR": str(self.state),
            "KURMA_CONFIG": str(directory / "kurma.json"),
        }
        words = ["unshare", *kinds, "sh", "-c", "echo up; exec sleep 1000"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "up\n"
        enter = {"-m": "-m", "-n": "-n", "-U": "-U", "-r": "--preserve-credentials"}
        self.words = ["nsenter", "-t", str(self.process.pid), *(enter[kind] for kind in kinds)]

    def close(self):
        self.process.kill()
        self.process.communicate()

    def __call__(self, script):
        done = subprocess.run(
            [*self.words, "sh", "-ec", script],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def cover(self, *paths):
        """Hides programs, and what is in directories."""
        for path in map(os.path.realpath, paths):
            if os.path.isdir(path):
                self(f"mount -t tmpfs none {path}")
            else:
                self(f"mount --bind /dev/null {path}")
            with self.covered.open("a") as file:
                file.write(f"{path}\n")

    def scratch(self, path):
        """Makes a directory writable, without a change of the host's: the host has what is there."""
        upper, work = (f"{self.directory}/{kind}{path.replace('/', '-')}" for kind in ("upper", "work"))
        self(
            f"mkdir {upper} {work} && "
            f"mount -t overlay none -o lowerdir={path},upperdir={upper},workdir={work} {path}"
        )

    def check(self, before=":", through=""):
        """The checks by plugin and name.

        :param before: a command that runs before, in the same shell. :param through: words that execute kurma.
        """
        said = self(f"{before}\n{through} {PROGRAM} info --check --format json || [ $? = 1 ]")
        return {(one["by"], one["name"]): one for one in json.loads(said[said.index("[") :])}


@pytest.fixture
def host(tmp_path):
    """``host(KIND…)``: a host with namespaces of these kinds of its own."""
    with contextlib.ExitStack() as stack:
        yield lambda *kinds: stack.enter_context(contextlib.closing(Host(tmp_path, kinds)))


def mended(host, by, name, command, through=""):
    """Asserts that the check fails, that its hint is that command, and that the check passes after it."""
    found = host.check(through=through)[by, name]
    assert (found["ok"], found["hint"]) == (False, command), found
    assert found["detail"]
    after = host.check(command, through)[by, name]
    assert after["ok"], after


def filtered(number, error):
    """Words that execute a program for which that system call fails."""
    return shlex.join([sys.executable, "-c", FILTERED, str(number), str(error)])


def test_programs(host):
    host = host("-m")
    host.cover("/usr/bin/gpg", "/usr/bin/gpg-agent", "/usr/sbin/nft")
    shown = host(f"{PROGRAM} info --check || [ $? = 1 ]")
    assert shown.startswith("BY "), shown
    assert "\n\nkurma programs:\n  apt-get install gpg gpg-agent\n" in shown
    mended(host, "kurma", "programs", "apt-get install gpg gpg-agent")
    mended(host, "networks/bridge", "nft", "apt-get install nftables")


def test_plugins_of_cni(host):
    host = host("-m")
    host.cover("/usr/lib/cni", *filter(os.path.isdir, ("/opt/cni/bin", "/usr/libexec/cni")))
    config = host.directory / "kurma.json"
    directory = host.directory / "net.d"
    directory.mkdir()
    config.write_text(
        json.dumps({"plugins": {"networks": {"cni": {"config": {"config_dirs": [str(directory)]}}}}})
    )
    found = host.check()["networks/cni", "CNI plugins"]
    assert found["ok"], "nothing needs them"
    (directory / "10-net.conflist").write_text("{}")
    mended(host, "networks/cni", "CNI plugins", "apt-get install containernetworking-plugins")


def test_certificates(host):
    host = host("-m")
    host.cover("/etc/ssl/certs")
    mended(host, "fetchers/docker", "certificates", "apt-get install ca-certificates")


def test_cgroups_that_are_read_only(host):
    host = host("-m")
    (directory, *_) = host("awk '$3 ~ /^cgroup/ {print $2}' /proc/self/mounts").split()
    host(f"mount -o remount,bind,ro {directory}")
    mended(host, "kurma", "cgroups", f"mount -o remount,bind,rw {directory}")


def test_a_hierarchy_that_is_not_mounted(host):
    host = host("-m")
    lines = host("awk '$3 == \"cgroup\" {print $2, $4}' /proc/self/mounts").splitlines()
    for directory in [line.split()[0] for line in lines if "pids" in line.split()[1].split(",")]:
        host(f"umount {directory}")
    at = "/sys/fs/cgroup/pids"
    mended(host, "kurma", "cgroups", f"mkdir -p {at} && mount -t cgroup -o pids cgroup {at}")


def test_user_namespaces(host):
    host = host("-m", "-U", "-r")
    host("mount -t tmpfs none /etc/sysctl.d; echo 0 > /proc/sys/user/max_user_namespaces")
    file = "/etc/sysctl.d/50-kurma-user.max_user_namespaces.conf"
    setting = "user.max_user_namespaces=15000"
    hint = f"mkdir -p /etc/sysctl.d && echo {setting} > {file} && sysctl -p {file}"
    mended(host, "kurma", "user namespaces", hint)
    assert host(f"{hint} && cat {file}").splitlines()[-1] == setting, "a second paste changes nothing"
    assert host(f"wc -l < {file}").strip() == "1"


def test_a_filter_of_a_container(host):
    """The kernel has the call: another kernel would not help."""
    host = host("-m")
    found = host.check(through=filtered(CLONE3, errno.ENOSYS))["kurma", "kernel"]
    assert not found["ok"]
    assert found["detail"] == "it has no clone3 here: the filter of this container refuses it"
    assert found["hint"] == (
        "update the engine of the container, or start it with a seccomp profile that allows clone3"
    ), "the other calls stay filtered"
    assert host.check()["kurma", "kernel"]["ok"]


def test_landlock_that_the_command_line_leaves_off(host):
    """The parameter replaces the list of security modules: each that is active must stay in it."""
    host = host("-m")
    host.scratch("/etc")
    host("mount -t tmpfs none /sys/kernel/security")
    host("echo 'GRUB_CMDLINE_LINUX_DEFAULT=\"quiet lsm=yama\"' > /etc/default/grub")
    off = filtered(LANDLOCK_CREATE_RULESET, errno.EOPNOTSUPP)
    by = "stagers/default", "Landlock"
    found = host.check(through=off)[by]
    assert (found["ok"], found["hint"]) == (False, "mount -t securityfs securityfs /sys/kernel/security")
    found = host.check(found["hint"], through=off)[by]
    modules = host("cat /sys/kernel/security/lsm").strip()
    assert found["detail"].endswith("the hint takes effect after a reboot")
    host(found["hint"])
    assert host.booted.read_text().split() == ["quiet", "lsm=yama", f"lsm=landlock,{modules}"]
    assert host.check()[by]["ok"], "the next kernel has it"


def test_a_kernel_without_landlock(host):
    found = host("-m").check(through=filtered(LANDLOCK_CREATE_RULESET, errno.ENOSYS))[
        "stagers/default", "Landlock"
    ]
    assert not found["ok"]
    assert found["hint"].startswith("apt-get install linux-image-")
    assert found["detail"].endswith("a new kernel takes effect after a reboot")


def test_no_hint_restarts_the_host(host):
    """People paste hints."""
    host = host("-m")
    host.cover("/usr/bin/gpg", "/usr/sbin/nft", "/etc/ssl/certs")
    host("mount -t tmpfs none /sys/fs/cgroup")
    found = host.check(through=filtered(LANDLOCK_CREATE_RULESET, errno.ENOSYS)).values()
    assert len([one for one in found if not one["ok"]]) >= 5
    assert [one for one in found if "reboot" in one["hint"]] == []


def test_a_file_system_without_overlays(host):
    """The directory of the hint is the configuration's, so that kurmad and units find it, too."""
    host = host("-m")
    host.scratch("/etc")
    host("mkdir -p /etc/kurma")
    place = host.directory
    # The checkout may be below /srv: all that is there stays.
    host(f"mkdir {place}/srv && mount --rbind /srv {place}/srv && mount -t tmpfs none /srv")
    host(f'cd {place}/srv && for one in */; do [ ! -d "$one" ] || mkdir "/srv/$one"; done')
    host(f'cd {place}/srv && for one in */; do [ ! -d "$one" ] || mount --rbind "$one" "/srv/$one"; done')
    for name in ("KURMA_DIR", "KURMA_CONFIG"):
        del host.environment[name]
    host(f'echo \'{{"state_dir": "{host.state}"}}\' > /etc/kurma/kurma.yml')
    found = host.check()["renderers/overlay", "file system"]
    assert (found["ok"], found["detail"]) == (True, f"not checked: {host.state} does not exist yet")
    assert ".overlay-check" not in " ".join(os.listdir(place))
    for name in ("lower", "upper", "work", "state"):
        (place / name).mkdir()
    host(
        f"mount -t overlay none -o lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work {host.state}"
    )
    found = host.check()["renderers/overlay", "file system"]
    assert found["detail"].startswith(f"layers cannot be stacked in {host.state}: ")
    assert found["detail"].endswith(
        "without the present pods and images, unless --dir, KURMA_DIR, --config or KURMA_CONFIG does; restart "
        "kurmad after it"
    )
    file = "/etc/kurma/kurma.d/50-state_dir.yml"
    mended(
        host,
        "renderers/overlay",
        "file system",
        f"mkdir -p /srv/kurma /etc/kurma/kurma.d && echo 'state_dir: /srv/kurma' > {file}",
    )
    assert host("kurma config show --format json | grep state_dir").strip() == '"state_dir": "/srv/kurma",'
    assert set(os.listdir(place / "upper")) <= {"plugins.json"}, "the check leaves nothing"


def test_a_state_directory_that_is_read_only(host):
    host = host("-m")
    host.state.mkdir(mode=0o700)
    host(f"mount --bind {host.state} {host.state} && mount -o remount,bind,ro {host.state}")
    found = host.check()["renderers/overlay", "file system"]
    assert not found["ok"]
    assert found["detail"].startswith(f"layers cannot be stacked in {host.state}: Read-only file system. ")


def test_a_check_that_is_killed_leaves_nothing(host):
    """The killed process cannot remove the directories: the program that stacks them does."""
    host = host("-m")
    host.state.mkdir(mode=0o700)
    begun, go = host.directory / "begun", host.directory / "go"
    tool = host.directory / "tools/mount"
    tool.write_text(f'#!/bin/sh\n: > {begun}\nwhile [ ! -e {go} ]; do sleep 0.05; done\nexec /bin/mount "$@"\n')
    tool.chmod(0o755)
    check = subprocess.Popen(
        [*host.words, PROGRAM, "info", "--check"], env=host.environment, stdout=subprocess.DEVNULL
    )
    until(begun.exists, "the program mounts")
    assert [name for name in os.listdir(host.state) if "check" in name]
    check.send_signal(signal.SIGKILL)
    check.wait()
    go.touch()
    until(lambda: not [name for name in os.listdir(host.state) if "check" in name], "they are removed")


def test_a_user_who_may_not_use_kurmad(host, kurmad):
    """A group's members may, and can become root: so the hint is for people who accept that."""
    daemon = kurmad()
    host = host("-m")
    host.scratch("/etc")
    host.environment["KURMA_DIR"] = daemon.house.state
    host.environment["KURMA_CONFIG"] = daemon.house.config_file
    # The right to read is for a checkout below /root. A socket needs the right to write.
    user = "setpriv --reuid nobody --regid nogroup --init-groups --inh-caps +dac_read_search --ambient-caps"
    through = f"{user} +dac_read_search --"
    found = host.check(through=through)["kurma", "kurmad"]
    assert (found["ok"], found["detail"], found["hint"]) == (
        False,
        "only root may use it",
        "run Kurma as root: sudo kurma list",
    )
    assert host.check(through="sudo")["kurma", "kurmad"]["ok"]
    os.chown(daemon.socket, 0, 100)
    os.chmod(daemon.socket, 0o660)
    found = host.check(through=through)["kurma", "kurmad"]
    assert found["detail"] == (
        "nobody may not use it; members of the group users may, from their next login, and can become root"
    )
    mended(host, "kurma", "kurmad", "sudo usermod -aG users nobody", through)


def test_a_user_without_kurmad(host):
    host = host("-m")
    user = "setpriv --reuid nobody --regid nogroup --clear-groups --inh-caps +dac_read_search"
    found = host.check(through=f"{user} --ambient-caps +dac_read_search --")
    assert found["kurma", "kurmad"]["hint"] == "run Kurma as root: sudo kurma list", "no unit serves it"
    assert host.check(through="sudo")["kurma", "kurmad"]["ok"]


def test_forwarding_and_rules_of_others(kurma, host):
    """On the tests' own host: a network of Kurma's has a bridge there."""
    host = host("-m")
    host.environment = {**kurma.environment, "PATH": host.environment["PATH"]}
    kurma.run("true", net="default")
    links = subprocess.run(["ip", "-j", "link", "show", "type", "bridge"], capture_output=True, check=True).stdout
    (bridge,) = [link["ifname"] for link in json.loads(links) if link["ifname"].startswith("kurma")]
    try:
        # A host without the package procps has no such directory.
        host.scratch("/etc")
        host("sysctl -w net.ipv4.ip_forward=0; rm -rf /etc/sysctl.d")
        file = "/etc/sysctl.d/50-kurma-net.ipv4.ip_forward.conf"
        kept = f"mkdir -p /etc/sysctl.d && echo net.ipv4.ip_forward=1 > {file} && sysctl -p {file}"
        mended(host, "networks/bridge", "forwarding", kept)
        host(
            "nft add table inet others; "
            "nft add chain inet others forward '{ type filter hook forward priority 0; policy drop; }'"
        )
        rule = "nft insert rule inet others forward {} " + bridge + " accept"
        mended(host, "networks/bridge", "rules", f"{rule.format('iifname')} && {rule.format('oifname')}")
    finally:
        subprocess.run(["nft", "delete", "table", "inet", "others"], check=False)
        subprocess.run(["sysctl", "-qw", "net.ipv4.ip_forward=1"], check=False)
        kurma.out("network", "rm", "default")


def test_a_state_directory_that_does_not_exist(host):
    """It lacks nothing for that: the first pod makes it."""
    host = host("-m")
    found = host.check()
    assert found["kurma", "spawner"]["ok"]
    assert found["kurma", "programs"]["ok"]
    assert found["kurma", "space"]["detail"] == f"{host.state} does not exist yet"
    assert not host.state.exists()


def test_a_host_that_lacks_nothing(kurma):
    done = kurma("info", "--check", "--format", "json")
    assert [one for one in json.loads(done.stdout) if not one["ok"]] == []
    assert done.returncode == 0
