"""Pod templates: pods as people write them, for ``kurma run --pod``.

A template is a pod manifest in which images need no ID; ``acKind`` and ``acVersion`` may be left out, ``image``
may be one string (a locator, a name such as ``example.com/app:1.0``, or a path), and ``networks`` may list
networks as ``--net`` takes them. A complete pod manifest is a template, too.
"""

from __future__ import annotations

from kurma_core.appc import types
from kurma_core.appc.image import AC_VERSION, decode, read_kind
from kurma_core.appc.manifest_reader import Reader, put, refuse_unknown
from kurma_core.appc.pod import PodManifest, RuntimeImage, read_pod
from kurma_core.errors import ManifestError
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.appc.manifest_reader import Json, Warn
    from kurma_core.appc.overrides import DnsRequest

_UUID = "kurma.io/uuid"


@frozen
class PodTemplate:
    """A pod whose images are not resolved yet.

    :param pod: its images may have no ``id``, and then have a ``locator`` or a ``name``.
    :param networks: None: not specified; empty: the pod joins no network.
    :param name: the pod's name; None: not specified.
    :param hostname: the pod's host name; None: not specified.
    :param dns: the contents of ``/etc/resolv.conf``; None: not specified.
    :param hosts: further lines of ``/etc/hosts``: an address and its names.
    :param uuid: the pod's UUID, from a converted early document. Written as ``kurma.io/uuid``. None: a new one.
    """

    pod: PodManifest
    networks: tuple[str, ...] | None = None
    uuid: str | None = None
    hostname: str | None = None
    dns: DnsRequest | None = None
    hosts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    name: str | None = None

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
        name, hostname = reader.optional("name", types.nonempty), reader.optional("hostname", types.host_name)
        dns, hosts = _read_dns(reader), _read_hosts(reader)
        return cls(read_pod(reader, version, template=True), networks, uuid, hostname, dns, hosts, name)

    @classmethod
    def of_file(cls, document: dict[str, Json], warn: Warn) -> PodTemplate:
        """As :meth:`parse`, for a pod that a person wrote: the App Container specification keeps unknown keys of a
        manifest, which has a kind; in another document an unknown key is an error."""
        return cls.parse(document, warn=warn if "acKind" in document else refuse_unknown)

    def to_json(self) -> dict[str, Json]:
        """Returns the template in the form that :meth:`parse` reads."""
        out = self.pod.to_json()
        for app, written in zip(self.pod.apps, out["apps"], strict=True):
            if app.image.locator is not None:
                written["image"] = app.image.locator
        if self.networks is not None:
            out["networks"] = list(self.networks)
        put(out, _UUID, self.uuid)
        put(out, "name", self.name)
        put(out, "hostname", self.hostname)
        put(out, "dns", None if self.dns is None else self.dns.to_json())
        put(out, "hosts", [{"address": address, "names": list(names)} for address, names in self.hosts], [])
        return out

    @property
    def unfinished(self) -> bool:
        """Whether :func:`kurma_core.appc.early_pod.with_images` must complete it."""
        return any(app.isolators for app in self.pod.apps) or any(volume.fulfills for volume in self.pod.volumes)

    def locators(self) -> dict[str, str]:
        """The locator of each app's image, by the app's name: the string as written, the image ID, or
        ``NAME[:VERSION][,label=value…]``."""
        return {app.name: locator_of(app.image) for app in self.pod.apps}


def _read_dns(reader: Reader) -> DnsRequest | None:
    dns = reader.nested("dns")
    if dns is None:
        return None
    from kurma_core.appc.overrides import DnsRequest  # few templates have DNS settings

    found = DnsRequest(
        nameservers=dns.strings("nameservers", types.ip_address),
        search=dns.strings("search", types.search_domain),
        options=dns.strings("options", types.resolv_word),
        exact=dns.boolean("exact", False),
    )
    dns.extra()
    return found


def _read_hosts(reader: Reader) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = []
    for line in reader.objects("hosts"):
        address = line.string("address", types.ip_address, "an IPv4 or IPv6 address")
        line.need("names", "a list of names")
        names = line.strings("names", types.hosts_name)
        if not names:
            raise ManifestError(line.at("names"), "one name at least", "an empty list")
        found.append((address, names))
        line.extra()
    return tuple(found)


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
