"""Images by name, as people and manifests write them: ``NAME[:VERSION][,label=value…]`` (D1)."""

from __future__ import annotations

from collections.abc import Mapping

from kurma_core.appc.types import ac_identifier
from kurma_core.errors import ManifestError, UsageError
from kurma_core.value import field, frozen

_HINT = "an image is a path, an address (https://…, docker://…), or NAME[:VERSION][,label=value…]"


@frozen
class ImageName:
    """What an image is asked for by.

    :param version: None: not asked for; discovery then looks for ``latest``.
    :param labels: those asked for, without ``version``.
    """

    name: str
    version: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def bare(self) -> bool:
        """Neither a version nor labels are asked for."""
        return self.version is None and not self.labels

    @property
    def text(self) -> str:
        """As it is written; the labels in the order of their names, so that what means the same looks the same.

        :raises UsageError: a label holds a comma, which cannot be written.
        """
        for label, value in [("version", self.version or ""), *self.labels.items()]:
            if "," in value or not value.isprintable():
                raise UsageError(f"{self.name}: the label {label} cannot be asked for by name: {value!r}")
        return self.shown

    @property
    def shown(self) -> str:
        """As :attr:`text`, for people to read, whatever the labels hold."""
        version = "" if self.version is None else f":{self.version}"
        labels = "".join(f",{label}={value}" for label, value in sorted(self.labels.items()))
        text = f"{self.name}{version}{labels}"
        return text if text.isprintable() else repr(text)

    @classmethod
    def of(cls, name: str, labels: Mapping[str, str], image_id: str | None = None) -> ImageName:
        """Of a name and labels, ``version`` among them, as a manifest refers to an image.

        :param image_id: given with it. With one of the early draft (``sha256-…``) the name is what the draft's
            document has, the version at its end: by that it is discovered (D4, E3).
        """
        others = {label: value for label, value in labels.items() if label != "version"}
        version = labels.get("version") or None
        if version is not None and not others and image_id is not None and image_id.startswith("sha256-"):
            from kurma_core.appc.early_reader import split_name

            if split_name(f"{name}-{version}") == (name, version):
                return cls(f"{name}-{version}")
        return cls(name, version, others)

    def is_met_by(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether an image of that name and with these labels is the one asked for (K3).

        ``latest`` may be of any version. A name of the early draft may hold the version: ``x-1.0.0`` asks for the
        image ``x`` with the version ``1.0.0``.
        """
        wanted = dict(self.labels)
        if self.version is not None and self.version != "latest":
            wanted["version"] = self.version
        early = self.version is None and self.name == f"{name}-{labels.get('version', '')}"
        return (name == self.name or early) and wanted.items() <= labels.items()


def parse_image_name(text: str) -> ImageName:
    """:raises UsageError: it is no name."""
    if not text.isprintable():
        raise UsageError(f"{text!r}: not an image")
    head, *pairs = text.split(",")
    name, colon, version = head.partition(":")
    labels: dict[str, str] = {}
    try:
        ac_identifier(name, "$")
        for pair in pairs:
            label, equals, value = pair.partition("=")
            ac_identifier(label, "$")
            if not equals or label in labels or label == "name":
                raise UsageError(f"{text}: labels are written label=value, each once", hint=_HINT)
            labels[label] = value
    except ManifestError as error:
        raise UsageError(f"{text}: not an image: {error.data['found']} is no name", hint=_HINT) from None
    if colon and not version:
        raise UsageError(f"{text}: the version is empty", hint=_HINT)
    if "version" in labels:
        if colon:
            raise UsageError(f"{text}: the version is given twice", hint=_HINT)
        version = labels.pop("version")
    return ImageName(name, version or None, labels)
