"""The Debian package in a clean Debian root, without a network: installed, used, upgraded, removed and purged."""

import json
import shutil
from pathlib import Path

import pytest

from kurma_core import VERSION
from tests.kit.images import busybox_archive
from tests.kit.installed import EXAMPLES, build
from tests.kit.waiting import until
from tests.packaging.clean_root import CleanRoot
from tests.packaging.conftest import NEWER

#: What a use of the system changes besides: notes of apt, dpkg and systemd, backups of the table of groups.
ASIDE = tuple(
    f"/{name}"
    for names in (
        "proc sys dev run tmp root var/cache var/log var/lib/apt var/lib/dpkg var/lib/systemd",
        "etc/.pwd.lock etc/group- etc/gshadow-",
    )
    for name in names.split()
)

#: What TAB completes after `kurma logs w`, by the installed file.
COMPLETE = r"""
. /usr/share/bash-completion/completions/kurma
COMP_LINE="kurma logs w" COMP_POINT=12 COMP_CWORD=2 COMP_WORDS=(kurma logs w)
_kurma kurma
printf '%s\n' "${COMPREPLY[@]}"
"""

#: A pod that kurmad keeps running.
INITIAL = """
initial_pods:
  - name: initial
    networks: []
    apps:
      - name: sleep
        image: /root/busybox.aci
        app: {exec: [/bin/sleep, "99999"], user: "0", group: "0"}
"""

pytestmark = [pytest.mark.root, pytest.mark.full]


@pytest.fixture
def machine(tmp_path, packages):
    root = tmp_path / "debian"
    root.mkdir()
    machine = CleanRoot(root)
    for package, name in zip(packages, ("old.deb", "new.deb"), strict=True):
        machine.put(package, name)
    app = {"exec": ["/bin/sh"], "user": "0", "group": "0"}
    machine.put(Path(busybox_archive(str(tmp_path), app)), "busybox.aci")
    build(tmp_path / "wheels", EXAMPLES / "command")
    (plugin,) = (tmp_path / "wheels").iterdir()
    machine.put(plugin, plugin.name)
    yield machine
    machine.end()
    shutil.rmtree(root)  # pytest keeps the directories of its last runs


def files(machine):
    """The paths that belong to the system."""
    listed = machine.out("find", "/", "-xdev").splitlines()
    return {path for path in listed if not path.startswith(ASIDE) and "/__pycache__" not in path}


def states(machine, *options):
    """The states of the pods, by their names."""
    return {
        one["name"]: one["state"] for one in json.loads(machine.out("kurma", *options, "list", "--format", "json"))
    }


def runs_in_a_pod(machine, pid):
    return "kurma" in machine("cat", f"/proc/{pid}/cgroup").stdout


def links(machine):
    return {line.split(":")[0].strip() for line in machine.out("cat", "/proc/net/dev").splitlines()[2:]}


def test_the_package_from_its_installation_to_its_purge(machine):
    machine.install_dependencies("/root/old.deb")
    before = files(machine)

    # Installed.
    machine.install("/root/old.deb")
    assert machine.out("dpkg", "--audit") == ""
    assert machine.out("dpkg", "--verify", "kurma") == ""
    assert VERSION in machine.out("kurma", "version")
    assert machine.out("getent", "group", "kurma")
    assert machine.out("stat", "-c", "%a %U", "/var/lib/kurma", "/etc/kurma/auth.d").split() == ["700", "root"] * 2
    completion = {
        "bash": "bash-completion/completions/kurma",
        "fish": "fish/vendor_completions.d/kurma.fish",
        "zsh": "zsh/vendor-completions/_kurma",
    }
    for shell, path in completion.items():
        assert machine.out("cat", f"/usr/share/{path}") == machine.out("kurma", "completion", shell)
    for page in (
        "man1/kurma.1",
        "man1/kurma-image-fetch.1",
        "man5/kurma.yml.5",
        "man5/kurma-pod.5",
        "man8/kurmad.8",
    ):
        assert machine.out("zcat", f"/usr/share/man/{page}.gz").startswith(".TH ")
    machine.out("kurma", "config", "check")

    # Used: in the foreground, and by a kurmad that the command starts.
    run = ("kurma", "run", "--net", "none")
    assert machine.out(*run, "--rm", "/root/busybox.aci", "--", "-c", "echo hello") == "hello\n"
    count = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done"
    machine.out(*run, "--detach", "--name", "web", "/root/busybox.aci", "--", "-c", count)
    until(lambda: machine.out("kurma", "logs", "web"))
    assert machine.out("bash", "-c", COMPLETE) == "web\n"
    machine.out("sh", "-c", "/opt/kurma/bin/pip install --quiet --no-index /root/*.whl")
    assert "web" in machine.out("kurma", "uptime")

    # Upgraded: the pod runs on, the administrator's configuration stays.
    with (machine.root / "etc/kurma/kurma.yml").open("a") as file:
        file.write(f"stop_timeout: 7s\n{INITIAL}")
    machine.install("/root/new.deb")
    assert NEWER in machine.out("kurma", "version")
    assert json.loads(machine.out("kurma", "config", "show", "--format", "json"))["stop_timeout"] == 7
    lines = [int(line.split()[-1]) for line in machine.out("kurma", "logs", "web").splitlines()]
    assert lines == list(range(1, len(lines) + 1))
    until(lambda: len(machine.out("kurma", "logs", "web").splitlines()) > len(lines))
    assert machine.out("kurma", "enter", "web", "--", "/bin/sh", "-c", "echo in the pod") == "in the pod\n"
    assert "web" in machine.out("kurma", "uptime")
    own = (machine.root / "opt/kurma").rglob(f"kurma*-{VERSION}.dist-info")
    assert [path.name for path in own if "example" not in path.name] == []

    # Removed, with pods that run and pods that do not: pods end, and nothing is deleted but the programs.
    machine.out("kurma", "prepare", "--name", "later", "--net", "none", "/root/busybox.aci")
    machine.out(*run, "--detach", "--name", "again", "--restart", "always", "/root/busybox.aci", "--", "-c", count)
    machine.out("kurma", "network", "create", "mine")
    volume = ("--volume", "name=data,kind=empty", "--mount", "volume=data,target=/data")
    over = ("--name", "over", "--net", "mine", *volume, "/root/busybox.aci", "--", "-c", "touch /data/kept")
    machine.out("kurma", "run", "--detach", *over)
    until(lambda: states(machine).get("over") == "stopped")
    until(lambda: states(machine).get("initial") == "running")
    assert len(links(machine)) > 1
    machine.out("apt-get", "remove", "--yes", "kurma")
    assert " /var/lib/kurma" not in machine.out("cat", "/proc/self/mountinfo")
    assert [
        pid for pid in machine.out("ls", "/proc").split() if pid.isdigit() and runs_in_a_pod(machine, pid)
    ] == []
    assert links(machine) == {"lo"}
    assert "kurma" not in machine.out("ls", "/usr/bin")
    assert (machine.root / "etc/kurma/kurma.yml").exists()
    assert machine.out("find", "/var/lib/kurma/pods", "-name", "kept", "-type", "f")

    # Installed again: each pod is there with its logs.
    machine.install("/root/new.deb")
    ended = dict.fromkeys(("web", "again", "over", "initial"), "stopped")
    assert states(machine, "--host", "local") == {**ended, "later": "prepared"}
    assert len(machine.out("kurma", "logs", "web").splitlines()) > len(lines)
    machine.out("kurma", "uptime")

    # Purged.
    machine.out("apt-get", "purge", "--yes", "kurma")
    # The plugin was below /opt until then; dpkg removes the directories of the package that are empty afterwards.
    assert files(machine) == before - {"/opt"}
