"""Values of images, keys, networks and stagers from the JSON in which the daemon says them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kurma_core.client.image_values import ImageFacts, ListedImage, Rendered
    from kurma_core.image_store import GcReport
    from kurma_core.images import HostImage
    from kurma_core.images.signing import Verified
    from kurma_core.isolator_list import IsolatorInfo
    from kurma_core.models.image import ImageRecord
    from kurma_core.networking import NetworkInfo
    from kurma_core.networking.care import Finding
    from kurma_core.pods.manager import Collected
    from kurma_core.stager_check.lines import Line
    from kurma_core.trust.enrolment import Change
    from kurma_core.trust.keyfile import Key
    from kurma_core.trust.listing import TrustedKey

    Json = Any
    Value = Mapping[str, Json]


def image(value: Value) -> ImageRecord:
    from kurma_core.models.image import ImageRecord, Provenance

    return ImageRecord(
        id=value["id"],
        name=value["name"],
        version=value["version"],
        labels=value["labels"],
        size=value["size"],
        layers=tuple(value["layers"]),
        provenance=tuple(Provenance.from_json(one) for one in value["provenance"]),
        last_used=value["lastUsed"],
        early_id=value["earlyId"],
    )


def listed_image(value: Value) -> ListedImage:
    from kurma_core.client.image_values import ListedImage

    return ListedImage(image(value), value["trust"])


def image_facts(value: Value) -> ImageFacts:
    from kurma_core.appc.image import ImageManifest
    from kurma_core.client.image_values import ImageFacts

    return ImageFacts(image(value), value["trust"], value["lapse"], ImageManifest.parse(value["manifest"]))


def rendered(value: Value) -> Rendered:
    from kurma_core.client.image_values import Rendered
    from kurma_core.models.image import RenderedLayer

    return Rendered(value["id"], tuple(RenderedLayer(one["id"], one["path"]) for one in value["layers"]))


def verified(value: Value) -> Verified:
    from kurma_core.images.signing import Verified

    return Verified(image(value["image"]), value["trust"], value["trees"], value["lapse"])


def gc_report(value: Value) -> GcReport:
    from kurma_core.image_store.sweeping import GcReport, Removal

    removed = tuple(Removal(one["kind"], one["name"], one["size"]) for one in value["removed"])
    return GcReport(removed, value["dryRun"])


def collected(value: Value) -> Collected:
    from kurma_core.pods.ending import Collected

    return Collected(value["lines"], failed=value["failed"])


def trusted_key(value: Value) -> TrustedKey:
    from kurma_core.trust.listing import TrustedKey

    return TrustedKey(
        scope=value["scope"],
        prefix=value["prefix"],
        fingerprint=value["fingerprint"],
        state=value["state"],
        path=value["path"],
        users=tuple(value["users"]),
        created=value["created"],
        expires=value["expires"],
        problem=value["problem"],
    )


def key(value: Value) -> Key:
    from kurma_core.trust.keyfile import Key

    return Key(
        fingerprint=value["fingerprint"],
        users=tuple(value["users"]),
        created=value["created"],
        expires=value["expires"],
        state=value["state"],
        material=value["key"].encode("utf-8", "surrogateescape"),
        source=value["source"],
    )


def change(value: Value) -> Change:
    from kurma_core.trust.enrolment import Change

    still = tuple((one["prefix"], one["path"]) for one in value["still"])
    return Change(value["action"], value["fingerprint"], value["path"], still)


def network(value: Value) -> NetworkInfo:
    from kurma_core.networking.catalog import NetworkInfo

    return NetworkInfo(**{name: value[name] for name in (*_OF_NETWORKS, "problem")})


_OF_NETWORKS = ("name", "driver", "source", "interface", "default", "optional", "names", "config")


def finding(value: Value) -> Finding:
    from kurma_core.hookspecs.network import Leak
    from kurma_core.networking.care import Finding

    leak = Leak(value["kind"], value["what"], value["why"], value["network"] or "", value["pod"] or "")
    return Finding(leak, value["mended"])


def host_image(value: Value) -> HostImage:
    from kurma_core.appc.image import ImageManifest
    from kurma_core.images.host import HostImage

    return HostImage(value["id"], value["path"], ImageManifest.parse(value["manifest"]), value["fingerprint"])


def check_line(value: Value) -> Line:
    from kurma_core.stager_check.lines import Line

    return Line(value["name"], value["about"], value["outcome"], value["detail"] or "")


def isolator(value: Value) -> IsolatorInfo:
    from kurma_core.isolator_list import IsolatorInfo
    from kurma_core.value import fields

    given = {each.name: value[each.name] for each in fields(IsolatorInfo)}
    return IsolatorInfo(**{**given, "scopes": tuple(value["scopes"])})


__all__ = [
    "change",
    "check_line",
    "collected",
    "finding",
    "gc_report",
    "host_image",
    "image",
    "image_facts",
    "isolator",
    "key",
    "listed_image",
    "network",
    "rendered",
    "trusted_key",
    "verified",
]
