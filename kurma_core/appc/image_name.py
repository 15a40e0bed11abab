"""Names of images with version and labels, as people and manifests write them:
``NAME[:VERSION][,label=value…]``."""

from __future__ import annotations

from collections.abc import Mapping

from kurma_core.appc.types import ac_identifier
from kurma_core.errors import ManifestError, UsageError
from kurma_core.value import field, frozen

#: Most characters of the name of an image that is made here, as registries have it. Names of other images may be
#: longer.
LONGEST_NAME = 255
_HINT = "an image is a path, an address (SCHEME://…), or NAME[:VERSION][,label=value…]"


@frozen
class ImageName:
    """A request for an image by name.

    :param version: the requested version; None: any; discovery then looks for ``latest``.
    :param labels: the requested labels, without ``version``.
    """

    name: str
    version: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def bare(self) -> bool:
        """Whether the request has neither a version nor labels."""
        return self.version is None and not self.labels

    @property
    def text(self) -> str:
        """The canonical text, with the labels in the order of their names.

        :raises UsageError: a label holds a comma, which cannot be written.
        """
        for label, value in [("version", self.version or ""), *self.labels.items()]:
            if "," in value or not value.isprintable():
                raise UsageError(f"{self.name}: the label {label} cannot be asked for by name: {value!r}")
        return self.shown

    @property
    def shown(self) -> str:
        """Like :attr:`text`, for messages: also if the labels cannot be written."""
        version = "" if self.version is None else f":{self.version}"
        labels = "".join(f",{label}={value}" for label, value in sorted(self.labels.items()))
        text = f"{self.name}{version}{labels}"
        return text if text.isprintable() else repr(text)

    @classmethod
    def of(cls, name: str, labels: Mapping[str, str], image_id: str | None = None) -> ImageName:
        """Makes a request from a manifest's reference to an image: its name and labels, ``version`` among them.

        :param image_id: the reference's image ID. If it is one of the early draft (``sha256-…``), the result has
            the draft's form of the name, with the version at its end, by which such images are discovered.
        """
        others = {label: value for label, value in labels.items() if label != "version"}
        version = labels.get("version") or None
        if version is not None and not others and image_id is not None and image_id.startswith("sha256-"):
            from kurma_core.appc.early_parts import split_name

            if split_name(f"{name}-{version}") == (name, version):
                return cls(f"{name}-{version}")
        return cls(name, version, others)

    def is_met_by(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether an image with that name and these labels satisfies the request.

        Every version satisfies ``latest``. A name of the early draft may contain the version: ``x-1.0.0`` requests
        the image ``x`` with the version ``1.0.0``.
        """
        wanted = dict(self.labels)
        if self.version is not None and self.version != "latest":
            wanted["version"] = self.version
        early = self.version is None and self.name == f"{name}-{labels.get('version', '')}"
        return (name == self.name or early) and wanted.items() <= labels.items()


def parse_image_name(text: str) -> ImageName:
    """Parses ``NAME[:VERSION][,label=value…]``. :raises UsageError: the text is malformed."""
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
        raise UsageError(f"{text}: not an image: {error.data['found']} is not a name", hint=_HINT) from None
    if colon and not version:
        raise UsageError(f"{text}: the version is empty", hint=_HINT)
    if "version" in labels:
        if colon:
            raise UsageError(f"{text}: the version is given twice", hint=_HINT)
        version = labels.pop("version")
    return ImageName(name, version or None, labels)
