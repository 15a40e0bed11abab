"""Finds the driver of a stager by its name: a section of ``stagers`` in ``kurma.yml``, or a plugin."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from kurma_core import VERSION
from kurma_core.errors import (
    ConfigError,
    PluginError,
    PluginNotFoundError,
    StagerError,
    StagerNotFoundError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.api.images import HostImage
    from kurma_core.config import Config
    from kurma_core.hookspecs.driver import Json
    from kurma_core.hookspecs.stager import AnyStagerHooks, StagerFeatures, StagerHooks
    from kurma_core.images.manager import ImageManager
    from kurma_core.plugins.registry import PluginRegistry
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.spawner.client import Spawner
    from kurma_core.staging.aci_stager import AciStager
    from kurma_core.staging.stager_process import StagerImage

_GROUP: Final = "kurma.stagers"


class Stagers:
    """Makes the drivers of stagers, each once. A stager's image is looked up and verified at every start."""

    def __init__(
        self,
        config: Config,
        registry: PluginRegistry,
        images: Callable[[], ImageManager],
        spawner: Callable[[], Spawner],
    ) -> None:
        self._config = config
        self._registry = registry
        self._images = images
        self._spawner = spawner
        self._made: dict[str, StagerHooks] = {}

    def names(self) -> list[str]:
        """All names that ``--stager`` accepts."""
        return sorted({*self._config.stagers, *self._registry.names(_GROUP)})

    def check(self, name: str) -> None:
        """:raises StagerNotFoundError: there is no such stager."""
        driver, _ = self._meant(name)
        if driver is not None and driver not in self._registry.names(_GROUP):
            install = self._config.install_hint(_GROUP, driver)
            if install is not None and ("stagers", driver) not in self._registry.installed():
                raise StagerNotFoundError(f"stager {name} is not installed", hint=install)
            known = ", ".join(self.names()) or "none is installed"
            raise StagerNotFoundError(f"no stager {name}", hint=f"known ones: {known}")

    def config(self, name: str) -> Mapping[str, Json]:
        """The admin's configuration of that stager, for ``stagerConfig``: its section of ``stagers``; for a stager
        of a plugin, the options of the plugin's section as well, unless the stager's section sets them."""
        section = self._config.stagers.get(name)
        driver, _ = self._meant(name)
        if driver is None:
            return {} if section is None else section.config
        options = self._config.plugin(_GROUP, driver).config
        return {**options, **({} if section is None else section.config)}

    def get(self, name: str) -> StagerHooks:
        """:raises StagerNotFoundError: there is no such stager.
        :raises PluginError: its plugin is broken.
        """
        if name not in self._made:
            self._made[name] = self._make(name, *self._meant(name))
        return self._made[name]

    def engine(self, name: str) -> AciStager | None:
        """As :meth:`get`, if the core's own engine runs that stager; None: a plugin runs its pods."""
        from kurma_core.staging.aci_stager import AciStager

        driver = self.get(name)
        return driver if isinstance(driver, AciStager) else None

    def plugin(self, name: str) -> str:
        """The plugin of a section of ``stagers``, to record with its pods: ``PLUGIN`` or ``PLUGIN:IMAGE``. Empty:
        it names none, or there is no such section."""
        section = self._config.stagers.get(name)
        if section is None or section.driver is None:
            return ""
        return section.driver if section.image is None else f"{section.driver}:{section.image}"

    def of_pod(self, document: PodDocument) -> StagerHooks:
        """The driver for an existing pod, to query it, stop it and take it down: see :meth:`named`."""
        return self.named(document.stager, document.stager_plugin)

    def named(self, name: str, plugin: str) -> StagerHooks:
        """The driver for a stager that pods have. Its plugin may be disabled, or its options wrong. If the plugin
        is missing or broken, the driver for stager images is used instead: a pod can always be ended.

        :param plugin: what :meth:`plugin` answered for the pod; it counts if the section has been removed, or
            names another plugin now.
        """
        driver, _, image = plugin.partition(":")
        meant = self._meant(name)
        if driver in ("", meant[0]):
            try:
                return self.get(name)
            except (StagerError, PluginError, ConfigError):
                pass
        else:
            meant = driver, image or None
        try:
            return self._make(name, *meant, teardown=True)
        except (StagerError, PluginError, ConfigError):
            return self._make_engine(name)

    def collectors(self) -> Iterator[AnyStagerHooks]:
        """Drivers of plugins that may keep something of pods that are gone. A plugin without a directory in the
        state directory keeps nothing, and is not loaded.

        :raises PluginError: a plugin with such a directory is broken.
        """
        from kurma_core.hookspecs import implements
        from kurma_core.hookspecs.stager import AnyStagerHooks

        installed = {name for kind, name in self._registry.installed() if kind == "stagers"}
        try:
            places = sorted(os.listdir(os.path.join(self._config.state_dir, "plugins", _GROUP)))
        except FileNotFoundError:
            return
        for name in places:
            if name in installed:
                driver = self._registry.driver(_GROUP, name, teardown=True)
                if implements(driver, AnyStagerHooks.discard_gone):
                    yield driver

    def unapplied(self, name: str) -> str:
        """Why isolators of a pod under this stager would be ignored: the stager does not declare that it applies
        them. Empty: it does.

        :raises KurmaError: its plugin or its image is not available.
        """
        why = f"stager {name} does not say that it applies isolators"
        if self._meant(name)[0] is not None:
            return "" if self._load(name).features().applies_isolators else why
        from kurma_core.staging.aci_stager import ISOLATORS_ANNOTATION

        return "" if self.image(name).manifest.annotation(ISOLATORS_ANNOTATION) == "true" else why

    def applied_in_part(self, name: str) -> Mapping[str, str]:
        """Isolators that the stager applies in part although it applies no plans, each with what it applies."""
        from kurma_core.errors import KurmaError

        if self._meant(name)[0] is None:
            return {}
        try:
            return self._load(name).features().isolators_in_part
        except KurmaError:
            return {}

    def joins_networks(self, name: str) -> bool:
        """Whether that stager joins its pods to networks itself."""
        found = self._features(name)
        return found is not None and found.joins_networks

    def hostname(self, name: str, uuid: str) -> str:
        """The host name of its pods that have none of their own; empty: the pod's name."""
        found = self._features(name)
        return "" if found is None else found.default_hostname.replace("{uuid}", uuid)

    def _features(self, name: str) -> StagerFeatures | None:
        """The features of a plugin's stager; None: it is an image, or its driver cannot be loaded, which the start
        then reports."""
        if self._meant(name)[0] is None:
            return None
        try:
            return self.get(name).features()
        except (StagerError, PluginError):
            return None

    def feature_names(self, name: str) -> tuple[str, ...]:
        """The names of the features that the stager has; empty: its driver cannot be loaded."""
        from kurma_core.value import fields

        try:
            found = self.get(name).features()
        except (StagerError, PluginError):
            return ()
        return tuple(one.name for one in fields(found) if getattr(found, one.name) is True)

    def follows_ours(self, name: str) -> bool:
        """Whether that stager is an image that follows the Kurma Stager Specification."""
        driver, locator = self._meant(name)
        return driver is None or locator is None

    def image(self, name: str, *, rebuild: bool = False, files: bool = True) -> HostImage:
        """The image of a stager: built or fetched if needed, and verified.

        :param rebuild: build or fetch it anew.
        :param files: verify its files, too.
        :raises StagerError: this stager is not an image.
        """
        _, locator = self._meant(name)
        if locator is not None:
            from kurma_core.errors import FetchError

            try:
                return self._images().host_image(locator, pull="always" if rebuild else "new", files=files)
            except FetchError as error:
                error.message = f"stager {name}: its image: {error.message}"
                raise
        from kurma_core.hookspecs.stager import StagerImageHooks

        driver = self._load(name)
        if not isinstance(driver, StagerImageHooks):
            raise StagerError(f"stager {name} is not an image: its plugin runs pods by itself")
        return self._images().host_image_from_source(name, driver, rebuild=rebuild, files=files)

    def export(self, name: str, format: str | None, rootfs: str) -> Mapping[str, Json]:
        """Exports that stager as an image for other runtimes, into an empty directory. :returns: the image
        manifest.

        :param format: None: the only one that the stager exports.
        :raises StagerError: it cannot be exported, or not in that format.
        :raises UsageError: it has several formats, and none is named.
        """
        from kurma_core.hookspecs.stager import StagerImageHooks

        driver = self._load(name) if self._meant(name) == (name, None) else None
        known = sorted(driver.export_formats()) if isinstance(driver, StagerImageHooks) else []
        hint = f"--format takes {', '.join(known)}" if known else "stagers of plugins may be: --stager NAME"
        if format is None and len(known) > 1:
            raise UsageError(f"stager {name} can be exported in several formats", hint=hint)
        format = known[0] if format is None and known else format
        if not isinstance(driver, StagerImageHooks) or format is None or format not in known:
            wanted = "" if format is None else f" as {format}"
            raise StagerError(f"stager {name} cannot be exported{wanted}", hint=hint)
        return driver.export(format, rootfs)

    def _meant(self, name: str) -> tuple[str | None, str | None]:
        """The plugin that drives the stager (None: the driver of the Kurma Stager Specification), and the locator
        of its image (None: it has none, or the plugin brings it)."""
        section = self._config.stagers.get(name)
        if section is not None:
            return section.driver or (name if section.image is None else None), section.image
        driver, colon, locator = name.partition(":")
        return (driver, locator) if colon and locator else (name, None)

    def _load(self, name: str) -> AnyStagerHooks:
        driver, _ = self._meant(name)
        try:
            return self._registry.driver(_GROUP, driver or name)
        except PluginNotFoundError:
            self.check(name)
            raise

    def _make(self, name: str, plugin: str | None, locator: str | None, *, teardown: bool = False) -> StagerHooks:
        """:param plugin: and ``locator``: see :meth:`_meant`."""
        if plugin is None:
            return self._make_engine(name)
        from kurma_core.hookspecs.stager import StagerHooks, StagerOfImagesHooks

        if teardown:
            driver: AnyStagerHooks = self._registry.driver(_GROUP, plugin, teardown=True)
        else:
            driver = self._load(name)
        if isinstance(driver, StagerOfImagesHooks):
            if locator is None:
                raise StagerError(
                    f"stager {name}: {plugin} needs an image",
                    hint=f"--stager {plugin}:IMAGE, or `image` in a section of `stagers`",
                )
            return driver.of_image(name, locator)
        if locator is not None:
            raise StagerError(f"stager {name}: {plugin} runs no images", hint=f"--stager {plugin}")
        return driver if isinstance(driver, StagerHooks) else self._make_engine(name)

    def _make_engine(self, name: str) -> AciStager:
        from kurma_core.staging.aci_stager import AciStager
        from kurma_core.staging.callin import StagerTimes
        from kurma_core.staging.stager_process import StagerImage

        def verified(*, files: bool = True) -> StagerImage:
            image = self.image(name, files=files)
            return StagerImage(image.id, image.path, image.manifest)

        times = StagerTimes(self._config.stop_timeout, self._config.log.size, self._config.log.count)
        return AciStager(name, verified, self._spawner(), VERSION, times)
