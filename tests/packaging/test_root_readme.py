"""A clean Debian root gets from README's first line to a running web server in five commands (19)."""

import json
import shutil
import subprocess

import pytest

from tests.docs.blocks import TYPED, blocks, needs, stand_in
from tests.kit.registry import running_registry
from tests.kit.waiting import until
from tests.packaging.clean_root import CleanRoot
from tests.packaging.conftest import ROOT

README = (ROOT / "README.md").read_text()

#: Ends the kurmad that a command started, and waits: it takes down the stager that waits for the next pod.
END_KURMAD = """
for process in /proc/[0-9]*; do
    if tr '\\0' ' ' <$process/cmdline | grep -q '[i]mport kurmad'; then
        kill ${process#/proc/}
        while [ -e $process ]; do sleep 0.1; done
    fi
done
"""

pytestmark = [pytest.mark.root, pytest.mark.full]


def commands():
    """Those of README up to the one that runs a web server."""
    for block in blocks(README):
        if block.kind in TYPED:
            for command in block.commands():
                yield command.words
                if command.words.startswith("kurma run -d"):
                    return


@pytest.fixture
def machine(tmp_path, dist):
    """The clean root, which has the built packages in ``/srv/dist``; a registry is the mirror of docker.io."""
    root = tmp_path / "debian"
    root.mkdir()
    machine = CleanRoot(root)
    shutil.copytree(dist, root / "srv/dist")
    apt = 'APT::Get::Assume-Yes "1";\nAPT::Install-Recommends "0";\n'
    (root / "etc/apt/apt.conf.d/99test").write_text(apt)
    with running_registry(tmp_path / "registry", machine.network) as registry:
        image = stand_in(tmp_path / "oci")
        for name in needs(README, "registry"):
            registry.push(f"oci:{image}:it", name)
        (root / "etc/kurma").mkdir()
        (root / "etc/kurma/kurma.yml").write_text(
            json.dumps({"registries": {"mirrors": {"docker.io": [registry.host]}}})
        )
        yield machine
        machine("/opt/kurma/bin/kurma", "rm", "--force", "web")
        machine("bash", "-c", END_KURMAD)
    machine.end()
    shutil.rmtree(root)


def test_five_commands_lead_to_a_web_server(machine):
    words = list(commands())
    # An index must not be asked: until the first release, anyone could publish a package of that name.
    assert "pip install --no-index --find-links dist kurma" in words
    assert len(words) <= 5
    machine.out("bash", "-ec", "\n".join(["cd /srv", *words]))

    def answer():
        ask = [*machine.network, "busybox", "wget", "-q", "-O", "-", "http://127.0.0.1:8080/"]
        return subprocess.run(ask, capture_output=True, text=True, check=False).stdout

    until(lambda: "Welcome" in answer(), "the web server answers")
