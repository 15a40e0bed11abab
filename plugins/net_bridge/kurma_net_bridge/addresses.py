"""Allocates the addresses of one network to pods, and frees them.

Each allocation is a symbolic link in a directory: its name is the address, its target is the owner. symlink(2) is
atomic and replaces no existing link, so that a crash leaves no partial allocation, and no two pods share an
address.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kurma_core.errors import NetworkError
from kurma_core.linux.files import lock_file
from kurma_net_bridge.subnets import Subnet, parse_address, text_of

#: Other files of the directory: the lock, and for each family the last allocated address.
_LOCK = "lock"
_LAST = "last."


def owner_name(pod: str, interface: str) -> str:
    """The owner of an address: an interface of a pod."""
    return f"{pod}:{interface}"


class Addresses:
    """The addresses of one network. Many processes and threads may use it at once.

    :param directory: made when it is first written to. :param network: its name, for errors.
    """

    def __init__(self, directory: str, network: str) -> None:
        self._directory = directory
        self._network = network

    def take(self, subnets: Sequence[Subnet], owner: str, wanted: Sequence[str] = ()) -> list[tuple[Subnet, int]]:
        """Allocates one address of each subnet. Freed addresses are reused last.

        :param wanted: required addresses, in any form, with or without the prefix length.
        :returns: subnet and address, in order of the subnets.
        :raises NetworkError: a wanted address is not for pods, or is another's; or a subnet has no free one.
            Addresses that were allocated stay the owner's, until :meth:`free`.
        """
        chosen = self._chosen(subnets, wanted)
        with self._locked():
            return [(one, self._take(one, owner, chosen.get(one.family))) for one in subnets]

    def free(self, owner: str, but: Sequence[tuple[Subnet, int]] = ()) -> None:
        """Frees the owner's addresses, except those in ``but``; succeeds if there are none.

        :raises NetworkError: the directory cannot be changed.
        """
        if not os.path.isdir(self._directory):
            return
        kept = {(subnet.family, address) for subnet, address in but}
        with self._locked():
            for name, address, other in self._entries():
                if other == owner and address not in kept:
                    try:
                        os.unlink(os.path.join(self._directory, name))
                    except OSError as error:
                        raise self._error("write", error) from error

    def taken(self) -> dict[tuple[int, int], str]:
        """Owners by family and address; "": the owner is unknown.

        :raises NetworkError: the directory cannot be read.
        """
        return {address: owner for _, address, owner in self._entries()}

    def of(self, owner: str) -> list[tuple[int, int]]:
        """Family and number of each address of the owner."""
        return sorted(address for address, other in self.taken().items() if other == owner)

    # -- one address --

    def _take(self, subnet: Subnet, owner: str, wanted: int | None) -> int:
        if wanted is not None:
            self._claim(subnet, owner, wanted)
            return wanted
        first, last = subnet.usable
        after = self._last(subnet) + 1
        if not first <= after <= last:
            after = first
        if not self._link(subnet, after, owner):
            there = {number for family, number in self.taken() if family == subnet.family}
            after = _free(first, last, after, there)
            if after < 0 or not self._link(subnet, after, owner):
                raise NetworkError(
                    f'network "{self._network}": no address of {subnet} is free',
                    hint="remove pods; `kurma gc` frees addresses of missing pods",
                    network=self._network,
                )
        self._remember(subnet, after)
        return after

    def _claim(self, subnet: Subnet, owner: str, wanted: int) -> None:
        if not self._link(subnet, wanted, owner):
            other = self.taken().get((subnet.family, wanted), "")
            if other != owner:
                whose = f"pod {other.partition(':')[0]}" if other else "somebody else"
                raise NetworkError(
                    f'network "{self._network}": the address {subnet.text(wanted)} is in use by {whose}',
                    network=self._network,
                )

    def _link(self, subnet: Subnet, address: int, owner: str) -> bool:
        """Records an allocation. :returns: False: the address is taken."""
        path = os.path.join(self._directory, subnet.text(address))
        try:
            os.symlink(owner, path)
        except FileExistsError:
            return False
        except OSError as error:
            raise self._error("write", error) from error
        return True

    def _chosen(self, subnets: Sequence[Subnet], wanted: Sequence[str]) -> dict[int, int]:
        chosen: dict[int, int] = {}
        for text in wanted:
            alone, slash, length = text.partition("/")
            parsed = parse_address(alone)
            homes = [one for one in subnets if parsed and one.family == parsed[0] and one.contains(parsed[1])]
            if parsed is None or not homes:
                have = ", ".join([str(one) for one in subnets])
                raise self._unfit(text, f"it is not in {have}")
            (subnet,) = homes
            first, last = subnet.usable
            if slash and length != str(subnet.length):
                raise self._unfit(text, f"the subnet is {subnet}")
            if parsed[1] == subnet.gateway:
                raise self._unfit(text, f"it is the bridge's own, the gateway of {subnet}")
            if not first <= parsed[1] <= last:
                raise self._unfit(text, f"it is an address of {subnet} that no pod may have")
            if chosen.setdefault(subnet.family, parsed[1]) != parsed[1]:
                raise self._unfit(text, f"a pod gets one address of {subnet}, and two are requested")
        return chosen

    # -- files --

    def _entries(self) -> Iterator[tuple[str, tuple[int, int], str]]:
        """Name, address and owner of each allocation. Entries whose name is not an address are ignored."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._error("read", error) from error
        for name in names:
            address = parse_address(name)
            if address is None:
                continue
            try:
                owner = os.readlink(os.path.join(self._directory, name))
            except FileNotFoundError:
                continue  # freed meanwhile
            except OSError:
                owner = ""  # not a symbolic link: the address is kept for another use
            yield name, address, owner if _is_owner(owner) else ""

    def _last(self, subnet: Subnet) -> int:
        """The last allocated address; 0: there is none, or it is unknown."""
        try:
            found = parse_address(os.readlink(os.path.join(self._directory, f"{_LAST}{subnet.family}")))
        except OSError:
            return 0
        return found[1] if found is not None and found[0] == subnet.family else 0

    def _remember(self, subnet: Subnet, address: int) -> None:
        path = os.path.join(self._directory, f"{_LAST}{subnet.family}")
        fresh = path + ".new"
        try:
            try:
                os.symlink(subnet.text(address), fresh)
            except FileExistsError:  # left by a process that was killed here: we hold the lock
                os.unlink(fresh)
                os.symlink(subnet.text(address), fresh)
            os.rename(fresh, path)
        except OSError as error:
            raise self._error("write", error) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            fd = lock_file(os.path.join(self._directory, _LOCK))
        except OSError as error:
            raise self._error("write", error) from error
        try:
            yield
        finally:
            os.close(fd)

    def _error(self, verb: str, error: OSError) -> NetworkError:
        path = error.filename2 or error.filename or self._directory  # filename2 is the path of a new link
        return NetworkError(
            f'network "{self._network}": cannot {verb} {path}: {error.strerror}',
            network=self._network,
            path=path,
            errno=error.errno,
        )

    def _unfit(self, text: str, why: str) -> NetworkError:
        return NetworkError(
            f'network "{self._network}" cannot give a pod the address {text}: {why}', network=self._network
        )


def _free(first: int, last: int, after: int, taken: set[int]) -> int:
    """The first free address after ``after``, and then from the beginning; -1: there is none."""
    for begin, end in ((after, last), (first, after - 1)):
        number = begin
        while number <= end and number in taken:
            number += 1
        if number <= end:
            return number
    return -1


def _is_owner(text: str) -> bool:
    pod, colon, interface = text.partition(":")
    return bool(pod and colon and interface) and "/" not in text


def describe(address: tuple[int, int]) -> str:
    """An address, given by family and number, as text."""
    return text_of(*address)
