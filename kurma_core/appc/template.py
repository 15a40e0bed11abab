"""Pod templates: pods as people write them, for ``kurma run --pod``.

A template is a pod manifest in which images need no ID; ``acKind`` and ``acVersion`` may be left out, ``image``
may be one string (a locator, a name such as ``example.com/app:1.0``, or a path), and ``networks`` may list
networks as ``--net`` takes them. A complete pod manifest is a template, too.
"""

from __future__ import annotations

from kurma_core.appc import types
from kurma_core.appc.image import AC_VERSION, decode, read_kind
from kurma_core.appc.manifest_reader import Reader, put
from kurma_core.appc.pod import PodManifest, RuntimeImage, read_pod
from kurma_core.errors import ManifestError
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.appc.manifest_reader import Json, Warn

_UUID = "kurma.io/uuid"


@frozen
class PodTemplate:
    """A pod whose images are not resolved yet.

    :param pod: its images may have no ``id``, and then have a ``locator`` or a ``name``.
    :param networks: None: not specified; empty: the pod joins no network.
    :param uuid: the pod's UUID, from a converted early document. Written as ``kurma.io/uuid``. None: a new one.
    """

    pod: PodManifest
    networks: tuple[str, ...] | None = None
    uuid: str | None = None

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
        uuid = reader.optional(_UUID, types.pod_uuid)
        return cls(read_pod(reader, version, template=True), networks, uuid)

    def to_json(self) -> dict[str, Json]:
        """Returns the template in the form that :meth:`parse` reads."""
        out = self.pod.to_json()
        for app, written in zip(self.pod.apps, out["apps"], strict=True):
            if app.image.locator is not None:
                written["image"] = app.image.locator
        if self.networks is not None:
            out["networks"] = list(self.networks)
        put(out, _UUID, self.uuid)
        return out

    @property
    def unfinished(self) -> bool:
        """Whether :func:`kurma_core.appc.early_pod.with_images` must complete it."""
        return any(app.isolators for app in self.pod.apps) or any(volume.fulfills for volume in self.pod.volumes)

    def locators(self) -> dict[str, str]:
        """The locator of each app's image, by the app's name: the string as written, the image ID, or
        ``NAME[:VERSION][,label=value…]``."""
        return {app.name: locator_of(app.image) for app in self.pod.apps}


def locator_of(image: RuntimeImage) -> str:
    """Returns the locator of an image."""
    if image.locator is not None:
        return image.locator
    if image.id is not None:
        return image.id
    version = "".join(f":{label.value}" for label in image.labels if label.name == "version")
    others = "".join(f",{label.name}={label.value}" for label in image.labels if label.name != "version")
    return f"{image.name}{version}{others}"


def app_name(image: str) -> str:
    """Returns the name of the app of a one-app pod: the last part of the image's name, without version and
    suffix."""
    if image.startswith(("sha512-", "sha256-")):
        return "app"
    last = image.split("?")[0].split(",")[0].rstrip("/").split("/")[-1].split("@")[0]
    last = last.split(":")[0] or last.rpartition(":")[2]
    try:
        return types.sanitize_name(last.removesuffix(".aci"))[:40].rstrip("-")
    except ManifestError:
        return "app"


#: User and password before the host of an address, which may be part of another address. Text after an @ that is a
#: digest is not a host.
_CREDENTIALS = r"((?::|%3A)(?://|%2F%2F))(?:(?!%2F|%3F|%23)[^/?#\s])*(?:@|%40)(?!sha\d+(?::|%3A))"


def without_passwords(text: str) -> str:
    """Removes user and password from the addresses in the text."""
    if "@" not in text and "%40" not in text:
        return text
    import re  # imported here, since it takes long

    return re.sub(_CREDENTIALS, r"\1", text, flags=re.IGNORECASE)
