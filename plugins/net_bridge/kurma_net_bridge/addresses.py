"""Keeps the addresses of one network: gives each pod one, and takes it back.

Each is a symbolic link in a directory: its name is the address, and what it points at is its owner. Such a link is
made whole or not at all, and never over another, so that a crash leaves nothing torn, and no two pods share one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kurma_core.errors import NetworkError
from kurma_core.linux.files import lock_file
from kurma_net_bridge.subnets import Subnet, parse_address, text_of

#: In the directory, beside addresses: the lock, and per family the address that was given last.
_LOCK = "lock"
_LAST = "last."


def owner_name(pod: str, interface: str) -> str:
    """The owner of an address: an interface of a pod."""
    return f"{pod}:{interface}"


class Addresses:
    """May be used by many processes and threads at once.

    :param directory: made when it is first written to. :param network: its name, for errors.
    """

    def __init__(self, directory: str, network: str) -> None:
        self._directory = directory
        self._network = network

    def take(self, subnets: Sequence[Subnet], owner: str, wanted: Sequence[str] = ()) -> list[tuple[Subnet, int]]:
        """One address of each subnet. What is given back is given out again as late as can be.

        :param wanted: addresses that it must be, in any form, with or without the prefix length.
        :returns: subnet and address, in order of the subnets.
        :raises NetworkError: one that is wanted is no pod's to have, or another's; a subnet has none left. What
            was taken stays the owner's, until :meth:`free`.
        """
        chosen = self._chosen(subnets, wanted)
        with self._locked():
            return [(one, self._take(one, owner, chosen.get(one.family))) for one in subnets]

    def free(self, owner: str, but: Sequence[tuple[Subnet, int]] = ()) -> None:
        """Gives back what the owner has, ``but`` for these. Nothing to give back is success.

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
        """Owners by family and address; "" where the owner cannot be told.

        :raises NetworkError: the directory cannot be read.
        """
        return {address: owner for _, address, owner in self._entries()}

    def of(self, owner: str) -> list[tuple[int, int]]:
        """Family and number of each address that it has."""
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
                    hint="remove pods; `kurma gc` gives back what pods have left",
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
        """False: the address is taken."""
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
                raise self._unfit(text, f"a pod has one address of {subnet}, and another is wanted already")
        return chosen

    # -- files --

    def _entries(self) -> Iterator[tuple[str, tuple[int, int], str]]:
        """Name, address and owner of everything here that is named as an address; the rest is not ours."""
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
                continue  # given back just now
            except OSError:
                owner = ""  # not a symbolic link: the address is kept for another use
            yield name, address, owner if _is_owner(owner) else ""

    def _last(self, subnet: Subnet) -> int:
        """The address that was given last; 0: none was, or it is not known any more."""
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
            except FileExistsError:  # of a process that was killed here; we have the lock
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
        path = error.filename2 or error.filename or self._directory  # the second is a new link's own
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
    """The first free one from ``after`` on, and then from the beginning; -1: none."""
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
    """Family and number, for people."""
    return text_of(*address)
