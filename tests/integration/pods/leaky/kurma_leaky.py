"""The network kind ``leaky``: a cable from the pod to the host, an address from a file, and a chain of rules.

Its process kills itself (SIGKILL) at the step of its work that ``KURMA_LEAKY_DIES`` names: ``add:2``. It
runs ip(8) and nft(8), which is for tests only.
"""

import fcntl
import json
import os
import signal
import subprocess
from contextlib import contextmanager, suppress

from kurma_core.errors import NetworkError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver
from kurma_core.hookspecs.network import Leak
from kurma_core.models.network import AddressResult, NetworkResult


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Forgetful:
    """What a plugin was before it could be asked for leaks."""

    kind = "forgetful"

    def __init__(self, context):
        self.directory = context.state_dir

    @hookimpl
    def setup(self, config):
        os.makedirs(f"{self.directory}/addresses", 0o700, exist_ok=True)
        own = f"{self.directory}/{os.getpid()}"
        with open(own, "w") as file:
            file.write(os.urandom(4).hex())
        with suppress(FileExistsError):
            os.link(own, f"{self.directory}/id")
        os.unlink(own)

    @property
    def id(self):
        """Of this state directory, wherever it is moved to."""
        with suppress(FileNotFoundError), open(f"{self.directory}/id") as file:
            return file.read()
        return "none"

    @property
    def chain(self):
        return f"{self.kind}-{self.id}-"

    @hookimpl
    def add(self, context):
        self.setup({})
        self.die("add", 0)
        with self.lock():
            address = self.take(context.pod)
        self.die("add", 1)
        name, inside = f"{self.kind[:2]}{context.pod[:8]}", os.path.basename(context.namespace)
        run("ip", "link", "add", name, "type", "veth", "peer", "name", context.interface, "netns", inside)
        run("ip", "link", "set", name, "alias", f"{context.pod} of {self.kind} {self.id}")
        self.die("add", 2)
        run("ip", "-n", inside, "address", "add", address, "dev", context.interface)
        run("ip", "-n", inside, "link", "set", context.interface, "up")
        run("nft", "add", "table", "inet", "leaky")
        run("nft", "add", "chain", "inet", "leaky", f"{self.chain}{context.pod}")
        self.die("add", 3)
        return NetworkResult((AddressResult(address, None),))

    @hookimpl
    def delete(self, context):
        self.die("delete", 0)
        self.free(context.pod)

    def free(self, uuid):
        for name, owner in self.cables():
            if owner == uuid:
                run("ip", "link", "delete", name)
        self.die("delete", 1)
        for chain in self.chains():
            if chain == f"{self.chain}{uuid}":
                run("nft", "delete", "chain", "inet", "leaky", chain)
        self.die("delete", 2)
        for address, owner in self.addresses().items():
            if owner == uuid:
                os.unlink(f"{self.directory}/addresses/{address}")
        self.die("delete", 3)

    @hookimpl
    def check(self, context):
        if f"{self.kind[:2]}{context.pod[:8]}" not in dict(self.cables()):
            raise NetworkError("its cable is gone", network=context.attachment.network)

    @hookimpl
    def remove(self, config):
        with suppress(NetworkError):
            run("nft", "delete", "table", "inet", "leaky")

    @contextmanager
    def lock(self):
        fd = os.open(f"{self.directory}/lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def take(self, uuid):
        for last in range(2, 255):
            with suppress(FileExistsError), open(f"{self.directory}/addresses/10.77.0.{last}", "x") as file:
                file.write(uuid)
                return f"10.77.0.{last}/24"
        raise NetworkError("all addresses are taken")

    def addresses(self):
        found = {}
        with suppress(FileNotFoundError):
            for name in os.listdir(f"{self.directory}/addresses"):
                with suppress(FileNotFoundError), open(f"{self.directory}/addresses/{name}") as file:
                    found[name] = file.read()
        return found

    def cables(self):
        found = []
        for link in json.loads(run("ip", "-j", "link")):
            uuid, _, directory = link.get("ifalias", "").partition(" of ")
            if directory == f"{self.kind} {self.id}":
                found.append((link["ifname"], uuid))
        return found

    def chains(self):
        found = json.loads(run("nft", "-j", "list", "chains", "inet"))["nftables"]
        names = [one["chain"]["name"] for one in found if one.get("chain", {}).get("table") == "leaky"]
        return [name for name in names if name.startswith(self.chain)]

    @staticmethod
    def die(verb, step):
        if os.environ.get("KURMA_LEAKY_DIES") == f"{verb}:{step}":
            os.kill(os.getpid(), signal.SIGKILL)


class Leaky(Forgetful):
    kind = "leaky"

    @hookimpl
    def status(self, config):
        if config.get("broken"):
            raise NetworkError("it is broken on purpose", network=config["name"])

    @hookimpl
    def leaks(self, configs, pods):
        found = [("interface", f"interface {name}", owner) for name, owner in self.cables()]
        found += [("chain", f"chain {name}", name.removeprefix(self.chain)) for name in self.chains()]
        found += [("address", f"address {address}", uuid) for address, uuid in self.addresses().items()]
        return [Leak(*one, f"its pod {uuid} is gone", "leaky", uuid) for *one, uuid in found if uuid not in pods]

    @hookimpl
    def repair(self, configs, pods):
        for leak in self.leaks(configs, pods):
            with self.lock():
                if leak.pod not in pods:
                    self.free(leak.pod)
        return self.leaks(configs, pods)


@hookimpl
def kurma_network():
    return Driver(Leaky)
