"""The client: Kurma's operations, done in this process or by kurmad, with the same methods, values and errors."""

from __future__ import annotations

import os

from kurma_core.api.operations import OPERATIONS, Api
from kurma_core.errors import KurmaError, StagerError, UsageError
from kurma_core.value import kept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, BinaryIO, Self

    from kurma_core.api.images import Key
    from kurma_core.api.operations import Progress, Transport
    from kurma_core.api.pods import RootChange
    from kurma_core.client import Settings
    from kurma_core.client.local.managers import Managers
    from kurma_core.config import Config
    from kurma_core.models.image import ImageRecord
    from kurma_core.models.pod import PodRecord

    Json = Any

#: Key in an error's data: the UUID of the pod that was prepared but failed to start.
_UNSTARTED_POD = "left"


class Client(Api):
    """A client, as a context manager: leaving it ends its own helpers, never a pod.

    The operations are those of :class:`Api`. The further methods are combinations of them, or work in this process
    on the caller's files, with either transport.

    :param transport: does the operations.
    :param here: gives the managers of this process; raises :class:`ConfigError` if the configuration is wrong.
    """

    def __init__(self, settings: Settings, transport: Transport, here: Callable[[], Managers]) -> None:
        super().__init__(transport)
        self.settings = settings
        self._make_here = here

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.transport.close()
        if self.remote and "here" in self.__dict__:
            self.here.close()

    @property
    def remote(self) -> bool:
        """Whether kurmad does the operations, with powers that this process may lack."""
        return self.transport.remote

    @kept
    def here(self) -> Managers:
        """The managers of this process: for files of the caller's, and for the configuration.

        :raises ConfigError: the configuration is wrong.
        """
        return self._make_here()

    @property
    def config(self) -> Config:
        """:raises ConfigError: the configuration is wrong."""
        return self.here.config

    # -- pods --

    def pods_json(self) -> list[Json]:
        """:meth:`pods` as JSON. kurmad's answer is passed on without being parsed."""
        if not self.remote:
            return [record.to_json() for record in self.pods()]
        from kurma_core.client.remote.transport import Remote

        assert isinstance(self.transport, Remote)
        found: list[Json] = self.transport.ask(OPERATIONS["pods"], {})
        return found

    def copy_out(
        self,
        pod: str,
        app: str | None,
        path: str,
        target: str | BinaryIO,
        *,
        whole: bool = False,
        follow: bool = False,
    ) -> None:
        """Copies from an app that runs, or from the kept root of one that has ended; see
        :func:`kurma_core.pods.inside.copy_files.copy_out`."""
        self._need_root("copy from a pod")
        from kurma_core.models.pod import ENDED_STATES
        from kurma_core.pods.inside.copy_files import copy_out
        from kurma_core.pods.inside.copy_source import AppRoot, Place

        record = self.pod(pod)
        inside: Place
        if record.state in ENDED_STATES and record.keeps_root:
            from kurma_core.pods.inside.kept_root import KeptRoot

            inside = KeptRoot(self.here.services, record, app)
        else:
            inside = AppRoot(record, app)
        copy_out(inside, path, target, self.settings.note, whole=whole, follow=follow)

    def copy_in(
        self,
        pod: str,
        app: str | None,
        source: str | BinaryIO,
        path: str,
        *,
        whole: bool = False,
        follow: bool = False,
    ) -> None:
        """Copies to an app that runs; see :func:`kurma_core.pods.inside.copy_files.copy_in`."""
        self._need_root("copy to a pod")
        from kurma_core.pods.inside.copy_files import copy_in

        copy_in(self.pod(pod), app, source, path, self.settings.note, whole=whole, follow=follow)

    def root_changes(self, pod: str, app: str | None) -> list[RootChange]:
        """Lists the changes of an app to its root; see :func:`kurma_core.pods.inside.kept_root.changes`."""
        self._need_root("compare the root of a pod's app")
        from kurma_core.pods.inside.kept_root import changes

        return changes(self.here.services, self.pod(pod), app)

    def commit(self, pod: str, app: str | None, change: Callable[[Json], Json]) -> ImageRecord:
        """Makes an image of the kept root of an app; see :func:`kurma_core.pods.inside.kept_root.commit`."""
        self._need_root("make an image of the root of a pod's app")
        from kurma_core.pods.inside.kept_root import commit

        return commit(self.here.services, self.pod(pod), app, change)

    def _need_root(self, what: str) -> None:
        """As :meth:`Managers.need_root`; root needs no configuration for it."""
        if os.geteuid() != 0:
            self.here.need_root(what)

    # -- images, keys and stagers: files of the caller's --

    def archive_path(self, reference: str) -> str | None:
        """The path, if the reference is an archive file of the caller's, and not an image of the store."""
        from kurma_core.fetching import parse_locator

        try:
            paths = self.config.fetchers.paths
            locator = parse_locator(reference, lambda scheme: self.here.registry.locator_kind(scheme), paths)
        except UsageError:
            return None  # the store reports it
        return locator.path

    def image_export(self, image: str, path: str, progress: Progress | None = None) -> None:
        """Writes the image's archive, uncompressed, to a file of the caller's. A failure leaves no file.

        :param progress: gets the number of bytes written; the total is not known before the end.
        :raises ImageNotFoundError: :raises StoreError: :raises HostError: the file cannot be written.
        """
        from kurma_core.named_files import written

        with written(path) as out:
            if progress is None:
                self.image_archive(image, out)
                return
            counted: Any = _Counted(out, progress)
            progress.start(image, None)
            try:
                self.image_archive(image, counted)
            finally:
                progress.finish()

    def extract(self, reference: str, directory: str) -> str:
        """Extracts the root filesystem of an image of the store, or of an archive file of the caller's.

        :returns: the image's ID.
        """
        if self.archive_path(reference) is not None:
            return self.here.images.extract(reference, directory)
        return self.image_extract(reference, directory).id

    def trust_read(self, source: str, insecure: frozenset[str] = frozenset()) -> tuple[Key, ...]:
        """The keys in a file of the caller's, or at an address.

        :raises TrustError: there is none.
        """
        if "://" in source and self.archive_path(source) is None:
            return tuple(self.trust_find(address=source, insecure=insecure))
        return self.here.images.keys.read(source, insecure)

    def stager_export(self, path: str, *, format: str | None = None, name: str | None = None) -> str:
        """Exports a stager as an image for other runtimes. The store is not changed.

        :param path: the archive; a failure leaves no file.
        :param format: one that the stager exports; None: the only one.
        :param name: of the stager; None: the configured one.
        :returns: the image's ID.
        :raises StagerError: it cannot be exported in that format.
        :raises UsageError: it has several formats, and none is named.
        :raises HostError: the file cannot be written.
        """
        import tempfile

        from kurma_core.image_store.durable import guard

        name = name or self.config.stager
        with (
            guard(f"cannot export stager {name}"),
            tempfile.TemporaryDirectory(prefix="kurma-export-") as directory,
        ):
            rootfs = f"{directory}/rootfs"
            os.mkdir(rootfs)
            manifest = self.here.services.stagers.export(name, format, rootfs)
            # The image runs as root wherever it is used.
            return self.here.images.files.build(rootfs, manifest, path, owner=lambda _path, _status: (0, 0))


class _Counted:
    """A file of which each byte moves the progress bar."""

    def __init__(self, out: BinaryIO, progress: Progress) -> None:
        self._out, self._progress = out, progress

    def write(self, data: bytes) -> int:
        count = self._out.write(data)
        self._progress.advance(count)
        return count


def add_unstarted_pod(error: KurmaError, uuid: str, pod: Callable[[str], PodRecord]) -> None:
    """Adds to the error that the pod which failed to start still exists.

    :param pod: gets the pod's record.
    """
    try:
        state = pod(uuid).state
    except KurmaError:
        return  # it was removed, or is damaged, which its own record reports
    if state in ("prepared", "errored"):
        error.data[_UNSTARTED_POD] = uuid


def unstarted_pod_hint(error: KurmaError) -> str | None:
    uuid = error.data.get(_UNSTARTED_POD)
    if not isinstance(uuid, str):
        return None
    # Only a stager writes logs.
    verb, pod = "logs" if isinstance(error, StagerError) else "start", uuid[:8]
    return f"the pod is still there: kurma {verb} {pod}, kurma rm {pod}"
