"""The two example images, against the contract of all networks, in real network namespaces."""

import os
import subprocess

import kurma_net_aci.plugin
import pytest
from kurma_testing.networks import NetworkContract, interfaces_in

pytestmark = [pytest.mark.root, pytest.mark.full, pytest.mark.kurma_driver(kurma_net_aci.plugin)]


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def host_links():
    return [line.split(":")[1].strip().partition("@")[0] for line in output("ip", "-o", "link").splitlines()]


class ImageContract(NetworkContract):
    example: str
    bridge: str

    @pytest.fixture
    def context_parts(self, images):
        return {"host_image": images}

    @pytest.fixture(autouse=True)
    def _image(self, images, built, state_dir):
        images.use("file:///example.aci", *built(self.example))
        self.state = state_dir / "networks"
        before = host_links()
        yield
        subprocess.run(["ip", "link", "del", self.bridge], check=False, capture_output=True)
        assert host_links() == before
        assert not self.state.exists() or os.listdir(self.state) == []

    def assert_nothing_left(self, pod, config):
        assert self.reserved(self.state / config["name"] / "roots", pod) == []
        joined = self.state / config["name"] / "joined"
        others = os.listdir(joined) if joined.exists() else []
        assert not [name for name in others if pod in name]
        show = ["ip", "-o", "link", "show", "master", self.bridge]  # fails where nobody has made the bridge
        assert others or subprocess.run(show, capture_output=True, check=False).stdout == b""


class TestShell(ImageContract):
    example = "shell"
    bridge = "kshell7"
    settings = ("subnet", "unknown")  # not "bridge": the image has no script that removes one

    @pytest.fixture
    def config(self):
        return {
            "name": "shell",
            "aci": "file:///example.aci",
            "containerInterface": "eth0",
            "bridge": self.bridge,
            "subnet": "10.207.1.0/24",
        }

    def reserved(self, roots, pod):
        return [link for link in roots.glob("*/rootfs/var/lib/network/addresses/*") if os.readlink(link) == pod]

    def test_pods_reach_each_other_and_the_host(self, driver, config, make_pod):
        one, two = self.context(make_pod(), config), self.context(make_pod(), config)
        driver.add(one)
        (address,) = driver.add(two).addresses
        assert address.address == "10.207.1.3/24"
        for target in ("10.207.1.1", "10.207.1.3"):
            output("ip", "netns", "exec", f"kurma-{one.pod}", "busybox", "ping", "-c", "1", "-W", "2", target)
        driver.delete(one)
        driver.delete(two)

    def test_an_interface_that_is_there_is_nobody_elses_to_take(self, driver, config, make_pod):
        one = self.context(make_pod(), config)
        output("ip", "-n", f"kurma-{one.pod}", "link", "add", "eth0", "type", "veth")
        with pytest.raises(Exception, match="the pod has an interface eth0 already"):
            driver.add(one)
        driver.delete(one)
        assert "eth0" in interfaces_in(one.namespace)

    def test_check_sees_a_missing_interface(self, driver, config, make_pod):
        one = self.context(make_pod(), config)
        driver.add(one)
        output("ip", "-n", f"kurma-{one.pod}", "link", "del", "eth0")
        with pytest.raises(Exception, match=f"the interface eth0 is gone from pod {one.pod}"):
            driver.check(one)
        driver.delete(one)


class TestCniInAnImage(ImageContract):
    """The configuration of the Kurma Network Specification, as it describes its plugin."""

    example = "cni"
    bridge = "mynet7"
    settings = ("type", "ipam", "unknown")

    @pytest.fixture
    def config(self):
        return {
            "name": "mynet",
            "aci": "file:///example.aci",
            "containerInterface": "eth0",
            "type": "bridge",
            "bridge": self.bridge,
            "isGateway": True,
            "ipMasq": True,
            "ipam": {"type": "host-local", "subnet": "10.208.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]},
        }

    def reserved(self, roots, pod):
        files = roots.glob("*/rootfs/var/lib/cni/networks/mynet/10.*")
        return [file for file in files if file.read_text().startswith(pod)]

    def assert_nothing_left(self, pod, config):
        super().assert_nothing_left(pod, config)
        assert pod not in output("iptables-save", "-t", "nat")

    def test_the_result_has_the_documents_shape(self, driver, config, make_pod):
        one = self.context(make_pod(), config)
        result = driver.add(one)
        assert result.raw["ip4"]["gateway"] == "10.208.0.1"
        assert "10.208." in output("iptables-save", "-t", "nat")
        driver.delete(one)
        assert "10.208." not in output("iptables-save", "-t", "nat")
