"""Pod templates: what a person writes and ``kurma run --pod`` accepts (P6).

A template is a pod manifest in which images need no ID; ``acKind`` and ``acVersion`` may be left out, ``image``
may be one string (``docker://…``, ``https://…``, ``example.com/app:1.0``, a path), and ``networks`` may list
networks as ``--net`` takes them. A complete pod manifest is a template, too.
"""

from __future__ import annotations

from kurma_core.appc import types
from kurma_core.appc._reader import Reader
from kurma_core.appc.image import AC_VERSION, decode, read_kind
from kurma_core.appc.pod import PodManifest, RuntimeImage, read_pod
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.appc._reader import Warn


@frozen
class PodTemplate:
    """A pod whose images are still to be found.

    :param pod: its images may have no ``id``, and then have a ``locator`` or a ``name``.
    :param networks: None: nothing is said of networks; empty: none is wanted.
    """

    pod: PodManifest
    networks: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, document: object, *, warn: Warn | None = None) -> PodTemplate:
        """Read a template.

        :param document: the object decoded from JSON or YAML, or JSON text (bytes or str).
        :param warn: called with one line for each unknown key.
        :raises ManifestError: it is malformed, or breaks the specification.
        """
        reader = Reader(decode(document, "the pod template"), "$", warn)
        if reader.take("acKind") is not None:
            read_kind(reader, "PodManifest")
        version = reader.optional("acVersion", types.ac_version) or AC_VERSION
        networks = reader.strings("networks", types.nonempty) if reader.take("networks") is not None else None
        return cls(read_pod(reader, version, template=True), networks)

    def locators(self) -> dict[str, str]:
        """What to fetch for each app, by its name: the string as written, the image ID, or
        ``NAME[:VERSION][,label=value…]``."""
        return {app.name: locator_of(app.image) for app in self.pod.apps}


def locator_of(image: RuntimeImage) -> str:
    """The one string that says which image is meant."""
    if image.locator is not None:
        return image.locator
    if image.id is not None:
        return image.id
    version = "".join(f":{label.value}" for label in image.labels if label.name == "version")
    others = "".join(f",{label.name}={label.value}" for label in image.labels if label.name != "version")
    return f"{image.name}{version}{others}"
