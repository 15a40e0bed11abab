"""The contract suite for network plugins (:class:`kurma_core.hookspecs.network.NetworkHooks`), to be subclassed.

The tests make network namespaces under ``/run/netns``: run them as root, in a "host" of their own (network and
mount namespaces), by ``pytest --kurma-host``, and mark the subclass ``kurma_root``::

    @pytest.mark.kurma_root
    @pytest.mark.kurma_driver(my_module)
    class TestMyNetwork(NetworkContract):
        @pytest.fixture
        def config(self):
            return {"name": "mine", ...}
"""

from __future__ import annotations

import functools
import json
import os
import socket
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from kurma_core.errors import ConfigError, NetworkError
from kurma_core.hookspecs.network import AttachmentContext, NetworkHooks
from kurma_core.linux import namespaces
from kurma_core.linux.namespaces import in_network_namespace
from kurma_core.models.isolator import TrafficLimit
from kurma_core.models.network import Attachment, NetworkRequest, NetworkResult, PortMapping
from kurma_core.value import replace
from kurma_testing.contract import (
    STRANGE,
    DriverContract,
    MakeDriver,
    cancelled_midway,
    nothing_left_open,
    refusing,
)

MakePod = Callable[[], str]
#: Texts in the place of an IP address, and of a MAC address: in turn.
_HOSTILE_ADDRESSES = ("\0", "a\nb", "\ud800", "../../etc", "-rf", "$(id)", "é" * 10_000, "9" * 400)
_OF_THE_CORE = frozenset(("name", "plugin", "aci", "containerInterface", "default", "optional", "names"))


@contextmanager
def pod_namespace(pod: str) -> Iterator[str]:
    """Makes a network namespace, pinned like a pod's, and removes it at the end; yields its path."""
    path = f"/run/netns/kurma-{pod}"
    with ThreadPoolExecutor(1) as thread:  # of its own: it stays in the new namespace
        thread.submit(namespaces.make_netns, path).result()
    try:
        yield path
    finally:
        namespaces.unpin(path)


def interfaces_in(namespace: str) -> list[str]:
    """Returns the names of the interfaces in a network namespace, sorted."""
    return sorted(name for _, name in in_network_namespace(namespace, socket.if_nameindex))


def _listen(address: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind((address, 0))
        server.listen()


def context(
    pod: str,
    config: Mapping[str, Any],
    interface: str = "eth0",
    *,
    request: NetworkRequest | None = None,
    ports: tuple[PortMapping, ...] = (),
    driver: str = "tested",
    limits: tuple[TrafficLimit, ...] = (),
    dns: Mapping[str, tuple[str, ...]] | None = None,
) -> AttachmentContext:
    """Makes the arguments of one ``add``, in the core's form."""
    attachment = Attachment(
        network=config["name"],
        driver=driver,
        interface=interface,
        config=config,
        request=request or NetworkRequest(config["name"]),
        ports=ports,
        limits=limits,
        dns=dns or {},
    )
    return AttachmentContext(pod, "test", f"/run/netns/kurma-{pod}", interface, attachment)


class NetworkContract(DriverContract):
    """Subclasses have the mark ``kurma_driver`` and define ``config``. Resources that pods share may stay until
    ``remove``."""

    #: The interface's name in the pod.
    interface = "eth0"
    #: Whether ``add`` makes an interface that gives the pod an address. Only loopback does not.
    gives_address = True
    #: For a driver with ``complete``: a configuration that leaves something open.
    open_config: Mapping[str, Any] | None = None
    #: Keys of the network's configuration whose wrong values are tried; None: all but the core's own.
    settings: Collection[str] | None = None

    @pytest.fixture
    def config(self) -> Mapping[str, Any]:
        """The network's configuration for the driver, ``name`` included."""
        raise NotImplementedError("give a fixture config")

    @pytest.fixture
    def driver(self, make_driver: MakeDriver, config: Mapping[str, Any]) -> Iterator[NetworkHooks]:
        driver = make_driver()
        driver.setup(config)
        yield driver
        driver.remove(config)

    @pytest.fixture
    def make_pod(self) -> Iterator[MakePod]:
        """Makes pods that consist of a network namespace only."""
        with ExitStack() as stack:

            def make() -> str:
                pod = str(uuid.uuid4())
                stack.enter_context(pod_namespace(pod))
                return pod

            yield make

    def context(self, pod: str, config: Mapping[str, Any]) -> AttachmentContext:
        return context(pod, config, self.interface)

    def assert_nothing_left(self, pod: str, config: Mapping[str, Any]) -> None:
        """Fails if the host has resources of the pod; networks with resources on the host override it."""

    # -- the contract --

    def test_a_choice_outlives_its_process(self, make_driver: MakeDriver) -> None:
        if self.open_config is None:
            pytest.skip("the driver's configurations leave nothing open")

        def complete(config: Mapping[str, Any], choose: bool) -> Any:
            driver: Any = make_driver()
            return driver.complete(config, choose)

        assert complete(self.open_config, False) is None
        chosen = complete(self.open_config, True)
        assert self.open_config.items() <= chosen.items()
        assert complete(self.open_config, False) == complete(self.open_config, True) == chosen
        assert complete(chosen, False) == chosen
        make_driver().remove(chosen)
        assert complete(self.open_config, False) is None

    def test_setup_may_be_called_again(self, driver: NetworkHooks, config: Mapping[str, Any]) -> None:
        driver.setup(config)

    def test_add_joins_the_pod(self, driver: NetworkHooks, config: Mapping[str, Any], make_pod: MakePod) -> None:
        pod = make_pod()
        one = self.context(pod, config)
        result = driver.add(one)
        try:
            assert self.interface in interfaces_in(one.namespace)
            if self.gives_address:
                assert isinstance(result, NetworkResult)
                assert result.addresses
            else:
                assert result is None
            driver.check(one)
        finally:
            driver.delete(one)

    def test_the_pod_has_the_address_at_once(
        self, driver: NetworkHooks, config: Mapping[str, Any], make_pod: MakePod
    ) -> None:
        """An app can listen on the addresses of the result as soon as ``add`` has returned."""
        one = self.context(make_pod(), config)
        result = driver.add(one)
        try:
            for found in result.addresses if result is not None else ():
                address = found.address.partition("/")[0]
                in_network_namespace(one.namespace, functools.partial(_listen, address))
                with pytest.raises(OSError, match="assign requested address"):
                    _listen(address)  # the host does not have the address
        finally:
            driver.delete(one)

    def test_delete_leaves_nothing(
        self, driver: NetworkHooks, config: Mapping[str, Any], make_pod: MakePod
    ) -> None:
        one = self.context(make_pod(), config)
        driver.add(one)
        driver.delete(one)
        assert interfaces_in(one.namespace) == ["lo"]
        self.assert_nothing_left(one.pod, config)

    def test_delete_is_repeatable(
        self, driver: NetworkHooks, config: Mapping[str, Any], make_pod: MakePod
    ) -> None:
        one = self.context(make_pod(), config)
        driver.add(one)
        driver.delete(one)
        driver.delete(one)
        self.assert_nothing_left(one.pod, config)

    def test_delete_without_add(self, driver: NetworkHooks, config: Mapping[str, Any], make_pod: MakePod) -> None:
        one = self.context(make_pod(), config)
        driver.delete(one)
        self.assert_nothing_left(one.pod, config)

    def test_delete_by_another_process(
        self, driver: NetworkHooks, make_driver: MakeDriver, config: Mapping[str, Any], make_pod: MakePod
    ) -> None:
        one = self.context(make_pod(), config)
        driver.add(one)
        make_driver().delete(one)
        assert interfaces_in(one.namespace) == ["lo"]
        self.assert_nothing_left(one.pod, config)

    def test_delete_when_the_namespace_is_gone(
        self, driver: NetworkHooks, config: Mapping[str, Any], make_pod: MakePod
    ) -> None:
        one = self.context(make_pod(), config)
        driver.add(one)
        namespaces.unpin(one.namespace)
        assert not os.path.exists(one.namespace)
        driver.delete(one)
        self.assert_nothing_left(one.pod, config)

    def test_add_without_a_namespace_fails(self, driver: NetworkHooks, config: Mapping[str, Any]) -> None:
        one = self.context(str(uuid.uuid4()), config)
        with pytest.raises(NetworkError):
            driver.add(one)
        driver.delete(one)
        self.assert_nothing_left(one.pod, config)

    def test_add_after_delete(self, driver: NetworkHooks, config: Mapping[str, Any], make_pod: MakePod) -> None:
        one = self.context(make_pod(), config)
        driver.add(one)
        driver.delete(one)
        driver.add(one)
        assert self.interface in interfaces_in(one.namespace)
        driver.delete(one)

    def test_check_fails_before_add(
        self, driver: NetworkHooks, config: Mapping[str, Any], make_pod: MakePod
    ) -> None:
        with pytest.raises(NetworkError):
            driver.check(self.context(make_pod(), config))

    def test_pods_at_once(self, driver: NetworkHooks, config: Mapping[str, Any], make_pod: MakePod) -> None:
        contexts = [self.context(make_pod(), config) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(driver.add, contexts))
        addresses = [a.address for result in results if result is not None for a in result.addresses]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(driver.delete, contexts))
        if self.gives_address:
            assert len(set(addresses)) == len(addresses) >= len(contexts)
        for one in contexts:
            self.assert_nothing_left(one.pod, config)

    def test_attachment_survives_its_record(
        self, driver: NetworkHooks, config: Mapping[str, Any], make_pod: MakePod
    ) -> None:
        """``delete`` gets the attachment that was read from its JSON record on disk."""
        one = self.context(make_pod(), config)
        result = driver.add(one)
        record = json.dumps(replace(one.attachment, result=result).to_json())
        again = replace(one, attachment=Attachment.from_json(json.loads(record)))
        assert again.attachment.result == result
        driver.check(again)
        driver.delete(again)
        self.assert_nothing_left(one.pod, config)

    def test_remove_is_repeatable(
        self, driver: NetworkHooks, config: Mapping[str, Any], make_pod: MakePod
    ) -> None:
        one = self.context(make_pod(), config)
        driver.add(one)
        driver.delete(one)
        driver.remove(config)
        driver.remove(config)
        driver.add(one)
        driver.delete(one)

    def test_wrong_settings_are_refused(self, driver: NetworkHooks, config: Mapping[str, Any]) -> None:
        """A setting of the network works, or is refused by its error, whatever it is."""
        for key in config.keys() - _OF_THE_CORE if self.settings is None else self.settings:
            for value in STRANGE:
                wrong = {**config, "name": f"{config['name']}-wrong", key: value}
                with refusing(NetworkError, ConfigError, given=value):
                    driver.setup(wrong)
                with refusing(NetworkError, ConfigError, given=value):
                    driver.remove(wrong)

    def test_a_cancelled_add_leaves_nothing_after_delete(
        self, driver: NetworkHooks, config: Mapping[str, Any], make_pod: MakePod
    ) -> None:
        """Wherever it is cancelled."""
        one = self.context(make_pod(), config)

        def undone() -> None:
            driver.delete(one)
            assert interfaces_in(one.namespace) == ["lo"]
            self.assert_nothing_left(one.pod, config)

        cancelled_midway(lambda: driver.add(one), undone)

    def test_hostile_requests_are_refused(
        self, driver: NetworkHooks, config: Mapping[str, Any], make_pod: MakePod
    ) -> None:
        """Addresses come from command lines and pod files. They are refused, or ignored."""
        pod = make_pod()
        for number, text in enumerate(_HOSTILE_ADDRESSES):
            wanted = {"mac": text} if number % 2 else {"ips": (text,)}
            one = context(pod, config, self.interface, request=NetworkRequest(config["name"], **wanted))
            with refusing(NetworkError, ConfigError, given=text):
                driver.add(one)
            driver.delete(one)
        assert interfaces_in(one.namespace) == ["lo"]
        self.assert_nothing_left(pod, config)

    def test_it_keeps_nothing_open(
        self, driver: NetworkHooks, config: Mapping[str, Any], make_pod: MakePod
    ) -> None:
        """A daemon joins thousands of pods."""
        one = self.context(make_pod(), config)
        driver.add(one)
        driver.delete(one)
        with nothing_left_open():
            driver.add(one)
            driver.delete(one)
