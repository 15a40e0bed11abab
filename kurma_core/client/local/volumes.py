"""Operations on named volumes, done in this process."""

from __future__ import annotations

import stat

from kurma_core.errors import UsageError, VolumeError, VolumeNotFoundError, VolumeStateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kurma_core.api.images import DiskUse, Removal
    from kurma_core.api.volumes import VolumeInfo
    from kurma_core.client.local.managers import Managers


class LocalVolumes:
    """The methods of :class:`kurma_core.api.operations.Api` that are about named volumes, by their names."""

    def __init__(self, managers: Managers) -> None:
        self._m = managers
        self._store = managers.services.volumes

    def volumes_list(self) -> list[VolumeInfo]:
        """A damaged volume is noted, and hides no other."""
        self._m.need_root("list volumes")
        users, found = self._users(), []
        for name in self._store.names():
            try:
                found.append(self._info(name, users))
            except VolumeNotFoundError:
                continue  # removed meanwhile
            except VolumeError as error:
                self._m.services.note_error(error)
        return found

    def volume(self, volume: str) -> VolumeInfo:
        """:raises VolumeNotFoundError: there is none of that name."""
        self._m.need_root("show a volume")
        return self._info(volume, self._users())

    def _users(self, without: Collection[str] = ()) -> dict[str, list[str]]:
        return self._m.pods.finder.volume_users(without=without)

    def _info(self, name: str, users: Mapping[str, list[str]]) -> VolumeInfo:
        from kurma_core.api.volumes import VolumeInfo

        found, status = self._store.get(name), self._store.directory_status(name)
        return VolumeInfo(
            name,
            self._store.path(name),
            found.created_at,
            status.st_uid,
            status.st_gid,
            f"{stat.S_IMODE(status.st_mode):04o}",
            found.labels,
            tuple(users.get(name, ())),
        )

    def volume_create(
        self, name: str, uid: int | None, gid: int | None, mode: str | None, labels: Mapping[str, str] | None
    ) -> VolumeInfo:
        """:raises VolumeStateError: it exists with another owner, mode or labels."""
        self._m.need_root("create a volume")
        if uid is None and gid is not None:
            raise UsageError(f"cannot create volume {name}: it has a group, and no owner")
        owner = None if uid is None else (uid, uid if gid is None else gid)
        if self._store.create(name, owner, None if mode is None else _mode(mode), labels):
            self._m.journal.tell("volume", "created", None, name)
        return self._info(name, {})

    def volume_rm(self, volume: str, force: bool) -> None:
        """:raises VolumeStateError: pods use it. :raises VolumeNotFoundError: there is none, and no ``force``."""
        self._m.need_root("remove a volume")
        try:
            self._store.remove(volume, lambda name: self._users().get(name, ()))
        except VolumeNotFoundError:
            if not force:
                raise
            return
        self._m.journal.tell("volume", "removed", None, volume)

    def volume_prune(self, only: Collection[str] | None, dry_run: bool) -> list[Removal]:
        self._m.need_root("prune volumes")
        return self.prune(only, dry_run=dry_run)

    def prune(
        self, only: Collection[str] | None, *, dry_run: bool, without: Collection[str] = ()
    ) -> list[Removal]:
        """:param without: UUIDs of pods that do not count as users."""
        from kurma_core.api.images import Removal
        from kurma_core.image_store.durable import Usage

        usage, removed, users = Usage(), [], self._users(without)
        for name in self._store.names():
            if name in users or (only is not None and name not in only):
                continue
            size = usage.add(self._store.path(name))
            if not dry_run:
                try:
                    self.volume_rm(name, force=True)
                except VolumeStateError:
                    continue  # a pod uses it since
            removed.append(Removal("volume", name, size))
        return removed

    def disk_use(self, without: Collection[str]) -> DiskUse:
        """:param without: UUIDs of pods that do not count as users."""
        from kurma_core.api.images import DiskUse
        from kurma_core.image_store.durable import Usage

        usage, users = Usage(), self._users(without)
        sizes = {name: usage.add(self._store.path(name)) for name in self._store.names()}
        unused = [name for name in sizes if name not in users]
        return DiskUse(
            "volume",
            len(sizes),
            len(sizes) - len(unused),
            sum(sizes.values()),
            sum([sizes[name] for name in unused]),
        )


def _mode(text: str) -> int:
    """:raises UsageError: it is not a mode in octal digits."""
    if not (0 < len(text) <= 5 and set(text) <= set("01234567") and int(text, 8) <= 0o7777):
        raise UsageError(f"{text[:20]!r} is not a mode", hint="write octal digits, such as 0750")
    return int(text, 8)
