"""Networks that are images, by command: the examples, built and signed as their READMEs say (W1, W2, K5)."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kurma_testing.webserver import Page, web_server

from tests.kit.command import Kurma, one_line
from tests.kit.keys import Signers
from tests.kit.registry import OciDir, Registry
from tests.kit.waiting import until

pytestmark = pytest.mark.root
EXAMPLES = Path(__file__).parents[3] / "examples" / "networks"
Start = Callable[..., subprocess.Popen[str]]


def build(kurma: Kurma, example: str, image: Path) -> str:
    rootfs = f"{image}-rootfs"
    source = EXAMPLES / example
    subprocess.run([source / "build", rootfs], check=True)
    manifest = str(source / "manifest.json")
    kurma.out("image", "build", "--from-rootfs", rootfs, "--manifest", manifest, "-o", str(image))
    return str(image)


def entry(example: str, image: str, **changes: Any) -> dict[str, Any]:
    """The entry that the example's README has, with this image."""
    text = (EXAMPLES / example / "README.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    (found,) = yaml.safe_load(text)["container_networks"]
    return {**found, "aci": f"file://{image}", **changes}


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def links() -> set[str]:
    return {line.split(":")[1].strip().partition("@")[0] for line in output("ip", "-o", "link").splitlines()}


@pytest.fixture(scope="module")
def signed(shared: Kurma, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Both images, signed by this machine's key."""
    directory = tmp_path_factory.mktemp("networks")
    images = {name: build(shared, name, directory / f"{name}.aci") for name in ("shell", "cni")}
    for image in images.values():
        shared.out("image", "sign", image)
    return images


@pytest.fixture
def mine(kurma: Kurma, signed: dict[str, str], tmp_path: Path) -> Iterator[Kurma]:
    """Both networks, from a ``kurma.yml``; afterwards nothing of them is on the host."""
    before = links(), output("iptables-save")
    networks = [
        entry("shell", signed["shell"], bridge="kshell8", subnet="10.209.0.0/24"),
        entry("cni", signed["cni"], bridge="mynet8"),
    ]
    file = tmp_path / "kurma.yml"
    file.write_text(yaml.safe_dump({"container_networks": networks}))
    mine = Kurma(kurma.state, file, kurma.image)
    yield mine
    for pod in mine.json("list"):
        mine("rm", "--force", pod["uuid"])
    for name, bridge in (("shell", "kshell8"), ("mynet", "mynet8")):
        mine.out("network", "rm", name)
        subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)
    assert (links(), _rules(output("iptables-save"))) == (before[0], _rules(before[1]))
    assert list((kurma.state / "plugins").glob("*networks/aci/networks/*")) == []


def _rules(saved: str) -> list[str]:
    return [line for line in saved.splitlines() if line.startswith("-A")]


@pytest.mark.parametrize(
    ("network", "subnet"), [("shell", "10.209.0."), pytest.param("mynet", "10.10.0.", marks=pytest.mark.full)]
)
def test_a_pod_joins_and_leaves(mine: Kurma, background: Start, network: str, subnet: str) -> None:
    before = links()
    run = background("first", "trap 'exit 0' TERM; while :; do sleep 0.1; done", net=network, by=mine)
    (address,) = [one["addresses"][0] for one in mine.pod("first")["networks"] if one["network"] == network]
    assert address.startswith(subnet)
    done = mine.run(f"ip -o addr show eth0; ping -c 1 -W 2 {address.split('/')[0]}", net=network)
    assert done.returncode == 0, done.stdout + done.stderr
    assert subnet in done.stdout
    mine.out("stop", "first")
    run.communicate(timeout=20)
    mine.out("rm", "first")
    assert not {name for name in links() - before if name.startswith(("ks", "veth")) and name != "kshell8"}
    assert "10.10.0." not in output("iptables-save", "-t", "nat")


@pytest.mark.full
def test_the_command_is_killed_and_the_pod_still_leaves(mine: Kurma, background: Start) -> None:
    before = links()
    run = background("orphan", net="shell", by=mine)
    cables = {name for name in links() - before if name.startswith("ks")} - {"kshell8"}
    assert len(cables) == 1
    run.kill()
    run.communicate()
    mine.out("rm", "--force", "orphan")
    until(lambda: not (cables & links()), "the cable is gone")


def test_ports_and_addresses_are_refused(mine: Kurma) -> None:
    one_line(
        mine.run("true", "-p", "8080:80", net="shell"),
        "cannot publish ports: network shell: its plugin is an image",
    )
    one_line(mine.run("true", net="shell,ip=10.209.0.9"), "cannot be asked for an address")


def test_an_unsigned_image_is_refused_and_not_run(kurma: Kurma, tmp_path: Path) -> None:
    image = build(kurma, "shell", tmp_path / "plain.aci")
    file = tmp_path / "kurma.yml"
    file.write_text(yaml.safe_dump({"container_networks": [entry("shell", image, bridge="kshell9")]}))
    mine = Kurma(kurma.state, file, kurma.image)
    one_line(mine.run("true", net="shell"), 'network "shell"', "plain.aci")
    done = mine.run("true", "--insecure-options", "image", net="shell")
    assert done.returncode == 125
    assert "plain.aci: cannot run with host privilege: it is not signed" in done.stderr
    assert "kshell9" not in links()
    assert mine.json("list") == []


def test_a_key_that_is_not_listed_is_named(kurma: Kurma, signers: Signers, tmp_path: Path) -> None:
    image = build(kurma, "shell", tmp_path / "foreign.aci")
    signers.sign_beside(image, "mallory")
    fingerprint = signers.put("mallory", tmp_path / "trustedkeys", "host.d").name
    networks = [entry("shell", image, bridge="kshell9")]
    file = tmp_path / "kurma.yml"
    file.write_text(
        yaml.safe_dump({"container_networks": networks, "trustedkeys": [str(tmp_path / "trustedkeys")]})
    )
    mine = Kurma(kurma.state, file, kurma.image)
    one_line(mine.run("true", net="shell"), fingerprint, hint="trusted_host_keys")
    assert "kshell9" not in links()


def test_images_from_a_web_server_and_a_registry(
    kurma: Kurma, signed: dict[str, str], tmp_path: Path, registry: Registry
) -> None:
    """``http://`` and ``docker:///``, as the document has them: pinned, where nothing can be signed (W1, K5)."""
    rootfs = tmp_path / "rootfs"
    subprocess.run([EXAMPLES / "shell" / "build", rootfs], check=True)
    layer = tmp_path / "layer.tar"
    subprocess.run(["tar", "-C", rootfs, "-cf", layer, "."], check=True)
    (tmp_path / "layout").mkdir()
    layout = OciDir(tmp_path / "layout")
    digest = layout.image("1", [layer.read_bytes()], {})["digest"]
    registry.push(f"oci:{layout.path}:1", "example/network:1")
    with web_server() as server:
        archive = Path(signed["shell"]).read_bytes()
        server.pages["/network.aci"] = Page(archive)
        pins = {
            server.url("/network.aci"): f"sha256:{hashlib.sha256(archive).hexdigest()}",
            "docker:///example/network:1": digest,
        }
        networks = [
            entry(
                "shell",
                "",
                name=f"shell{number}",
                aci=aci,
                bridge=f"kshell{number}",
                subnet=f"10.21{number}.0.0/24",
                containerInterface="eth{{num}}",
            )
            for number, aci in enumerate(pins)
        ]
        values = {"container_networks": networks, "registries": {"mirrors": {"docker.io": [registry.host]}}}
        without = kurma.configured(tmp_path / "without.json", **values)
        one_line(without.run("true", net="shell0"), 'network "shell0"', "plain http is not allowed")
        refused = without.run("true", net="shell1")
        assert refused.returncode == 125
        assert 'network "shell1": docker:///example/network:1: cannot run with host privilege' in refused.stderr
        assert f"host_image_digests: {{docker:///example/network:1: {digest}}}" in refused.stderr
        mine = kurma.configured(tmp_path / "mine.json", **values, host_image_digests=pins)
        try:
            words = ("--net", "shell0", "--net", "shell1")
            done = mine("run", "--rm", *words, mine.image, "--", "-c", "ip -o -4 addr | awk '{print $2, $4}'")
            assert "10.210.0.2/24" in done.stdout, done.stderr
            assert "10.211.0.2/24" in done.stdout
        finally:
            for number in range(2):
                mine("network", "rm", f"shell{number}")
                subprocess.run(["ip", "link", "del", f"kshell{number}"], check=False, capture_output=True)
