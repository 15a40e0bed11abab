"""Reads the objects of Kubernetes files: from a file, standard input or an address."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import TYPE_CHECKING, Any

from kurma_core.errors import HostError, UsageError
from kurma_core.schema import ascii_text, writable
from kurma_core.value import field, frozen
from kurma_kube.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Json = Any

#: The kinds, with the versions of their APIs.
KINDS = {
    "Pod": "v1",
    "Deployment": "apps/v1",
    "ConfigMap": "v1",
    "Secret": "v1",
    "PersistentVolumeClaim": "v1",
    "Service": "v1",
}
_NO_SERVICES = "no counterpart, ignored; pods find each other by their own names, and hostPort publishes a port"
#: Fields of metadata that a cluster writes, or that mean nothing on one host.
CLUSTER = (
    *("creationTimestamp", "generation", "managedFields", "namespace", "ownerReferences", "resourceVersion"),
    *("selfLink", "uid"),
)
_TIMEOUT = 30
#: Names of objects: Kubernetes calls them DNS subdomains.
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
#: Keys of ConfigMaps and Secrets.
_KEY = re.compile(r"[A-Za-z0-9._-]+")
#: Most characters of the name of a secret of Kurma's, and most bytes of its value.
_LONGEST_NAME, LARGEST = 253, 512 << 10
#: More pods of a Deployment than this are a typing error.
_MOST_PODS = 1000


@frozen
class Workload:
    """A Pod or a Deployment. :param count: of its pods. :param pod: the Pod, or the Deployment's template."""

    kind: str
    name: str
    count: int
    pod: Mapping[str, Json]

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def project(self) -> str:
        """The name by which later commands find its pods."""
        return f"kube/{self.kind.lower()}/{self.name}"

    def pod_names(self) -> list[str]:
        if self.kind == "Pod":
            return [self.name]
        return [f"{self.name}-{number}" for number in range(1, self.count + 1)]


@frozen
class Claim:
    """A PersistentVolumeClaim. :param uid: of the volume's owner; ``gid``: its group."""

    name: str
    labels: Mapping[str, str]
    uid: int | None = None
    gid: int | None = None


@frozen
class Objects:
    """The objects of a file.

    :param configs: values by the names of ConfigMaps and by key; bytes: of ``binaryData``.
    :param secrets: values of Secrets, likewise.
    """

    workloads: list[Workload] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    configs: dict[str, dict[str, str | bytes]] = field(default_factory=dict)
    secrets: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def locks(self, configs: Iterable[str]) -> list[str]:
        """Names of the locks that a command for these objects holds: files may have objects of one name.

        :param configs: names of ConfigMaps whose values the command stores or removes.
        """
        return [
            *(one.project for one in self.workloads),
            *(f"kube/persistentvolumeclaim/{one.name}" for one in self.claims),
            *(f"kube/configmap/{name}" for name in configs),
            *(f"kube/secret/{name}" for name in self.secrets),
        ]


def is_name(name: str) -> bool:
    """Whether an object may have this name."""
    return _NAME.fullmatch(name) is not None


def secret_name(name: str, key: str) -> str:
    """The name of Kurma's secret for a key of a Secret. Names of Kubernetes objects have no ``_``."""
    return f"{secret_prefix(name)}{key}"


def secret_prefix(name: str) -> str:
    return f"kube_secret_{name}_"


def config_prefix(name: str) -> str:
    return f"kube_configmap_{name}_"


def config_name(name: str, key: str, value: bytes) -> str:
    """The name of Kurma's secret for a key of a ConfigMap. Another value has another name, so that pods that have
    the old value keep it."""
    return f"{config_prefix(name)}{key}_{hashlib.sha256(value).hexdigest()[:16]}"


def parsed_secret(secret: str) -> tuple[str, str, str] | None:
    """The kind, the name and the key of which a secret of Kurma's has the value; None: it is another secret."""
    name, _, key = secret.removeprefix("kube_secret_").removeprefix("kube_configmap_").partition("_")
    if secret == secret_name(name, key):
        return "Secret", name, key
    if secret.startswith(config_prefix(name)) and "_" in key:
        return "ConfigMap", name, key.rpartition("_")[0]
    return None


def read(file: str, note: Callable[[str], None]) -> Objects:
    """Reads a file of objects.

    :param file: its path, its address, or ``-`` for standard input.
    :param note: called with one line for each field without a counterpart.
    :raises KurmaError: it cannot be read, or an object is malformed or of an unknown kind.
    """
    objects = Objects()
    seen: set[tuple[str, str]] = set()
    place = "standard input" if file == "-" else file
    for index, value in enumerate(_documents(_bytes(file), place)):
        fields = Fields(value, f"{place}: object {index + 1}", note)
        kind, version = fields.required("kind"), fields.required("apiVersion")
        if kind not in KINDS:
            raise UsageError(f"{place}: the kind {kind} has no counterpart", hint=f"kinds: {', '.join(KINDS)}")
        if version != KINDS[kind]:
            raise UsageError(f"{place}: {kind}: expected apiVersion {KINDS[kind]}, found {version}")
        metadata = fields.child("metadata")
        if metadata is None:
            raise UsageError(f"{place}: {kind} has no metadata")
        name = metadata.required("name")
        if not is_name(name):
            raise metadata.error(
                "name",
                f"{name[:40]!r} cannot be the name of an object",
                hint="write up to 253 of a-z, 0-9, - and ., with a letter or digit at both ends",
            )
        if (kind, name) in seen:
            raise UsageError(f"{place}: there are two of {kind} {name}", hint="give each a name of its own")
        seen.add((kind, name))
        if kind == "Service":
            note(f"{kind} {name}: {_NO_SERVICES}")
            continue
        fields.place = f"{kind} {name}"
        metadata.place = f"{kind} {name}: metadata"
        fields.skip("status")
        _READERS[kind](objects, name, fields, metadata)
    if not seen:
        raise UsageError(f"{place} has no objects", hint=f"kinds: {', '.join(KINDS)}")
    _check_pods(objects)
    return objects


def _check_pods(objects: Objects) -> None:
    """:raises UsageError: a Pod has the name of a pod of a Deployment."""
    taken: dict[str, str] = {}
    for workload in objects.workloads:
        for name in workload.pod_names():
            if name in taken:
                raise UsageError(
                    f"{taken[name]} and {workload.title} would both be the pod {name}", hint="rename one of them"
                )
            taken[name] = workload.title


def _pod(objects: Objects, name: str, fields: Fields, metadata: Fields) -> None:
    pod = {"metadata": _labelled(metadata), "spec": fields.take("spec")}
    fields.done()
    objects.workloads.append(Workload("Pod", name, 1, pod))


def _labelled(metadata: Fields) -> dict[str, Json]:
    """Labels and annotations, as they are."""
    metadata.skip(*CLUSTER, "name")
    found = {"labels": metadata.text_by_name("labels"), "annotations": metadata.text_by_name("annotations")}
    metadata.done()
    return found


def _deployment(objects: Objects, name: str, fields: Fields, metadata: Fields) -> None:
    spec = fields.child("spec")
    if spec is None:
        raise UsageError(f"Deployment {name} has no spec")
    count = spec.number("replicas")
    if count is not None and count > _MOST_PODS:
        raise spec.error("replicas", f"{count} is not a number of pods from 0 to {_MOST_PODS}")
    template = spec.child("template")
    if template is None:
        raise UsageError(f"Deployment {name} has no spec.template")
    inner = template.child("metadata")
    pod = {"metadata": {} if inner is None else _labelled(inner), "spec": template.take("spec")}
    metadata.skip("labels", "annotations", *CLUSTER)  # of the Deployment, which no record shows
    spec.skip("selector")  # the pods of the template are always those of the Deployment
    for one in (template, spec, metadata, fields):
        one.done()
    objects.workloads.append(Workload("Deployment", name, 1 if count is None else count, pod))


def _config_map(objects: Objects, name: str, fields: Fields, metadata: Fields) -> None:
    found: dict[str, str | bytes] = {**fields.text_by_name("data"), **_decoded(fields, "binaryData")}
    _check_keys(fields, found)
    fields.skip("immutable")
    fields.done()
    metadata.skip("labels", "annotations", *CLUSTER)
    metadata.done()
    objects.configs[name] = found


def _secret(objects: Objects, name: str, fields: Fields, metadata: Fields) -> None:
    found = _decoded(fields, "data")
    found |= {key: text.encode() for key, text in fields.text_by_name("stringData").items()}
    for key, value in found.items():
        if not value:
            fields.note("data", f"{key} is empty, and is left out")
    found = {key: value for key, value in found.items() if value}
    _check_keys(fields, found)
    for key, value in found.items():
        if len(secret_name(name, key)) > _LONGEST_NAME:
            raise fields.error("data", f"{key[:40]!r} is too long for a key of the Secret {name[:40]}")
        if len(value) > LARGEST:
            raise fields.error("data", f"{key} is larger than {LARGEST >> 10} KiB")
    fields.skip("immutable", "type")
    fields.done()
    metadata.skip("labels", "annotations", *CLUSTER)
    metadata.done()
    objects.secrets[name] = found


def _check_keys(fields: Fields, values: Iterable[str]) -> None:
    """:raises UsageError: one of these keys is not a key of Kubernetes."""
    for key in values:
        if not _KEY.fullmatch(key):
            raise fields.error(
                "data", f"{key[:40]!r} cannot be a key", hint="write letters, digits, '-', '_' and '.'"
            )


def _decoded(fields: Fields, key: str) -> dict[str, bytes]:
    found = {}
    for name, text in fields.text_by_name(key).items():
        try:
            found[name] = base64.b64decode("".join(text.split()), validate=True)
        except ValueError:
            raise fields.error(key, f"{name}: the value must be base64-encoded") from None
    return found


def _claim(objects: Objects, name: str, fields: Fields, metadata: Fields) -> None:
    annotations = metadata.text_by_name("annotations")
    owner = {}
    for key in ("uid", "gid"):
        text = annotations.get(f"volume.podman.io/{key}")
        if text is not None and not (text.isascii() and text.isdigit() and len(text) < 11):
            raise metadata.error("annotations", f"volume.podman.io/{key}: expected a number, found {text!r}")
        owner[key] = None if text is None else int(text)
    labels = metadata.text_by_name("labels")
    metadata.skip(*CLUSTER)
    metadata.done()
    spec = fields.child("spec")
    if spec is not None:
        # A volume has all the space of its disk.
        spec.skip("accessModes", "resources", "volumeMode", "volumeName")
        spec.done()
    fields.done()
    objects.claims.append(Claim(name, labels, owner["uid"], owner["gid"]))


_READERS = {
    "Pod": _pod,
    "Deployment": _deployment,
    "ConfigMap": _config_map,
    "Secret": _secret,
    "PersistentVolumeClaim": _claim,
}


# --- text --------------------------------------------------------------------------------------------------------


def _documents(data: bytes, place: str) -> Iterator[Json]:
    """The objects of YAML documents; those of lists, too. :raises UsageError: they are not YAML."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Keeps dates as texts, as Kubernetes does."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in some if tag != "tag:yaml.org,2002:timestamp"]
        for first, some in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        documents = [one for one in yaml.load_all(data, Loader) if one is not None]
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise UsageError(f"{place}{where}: not YAML: {getattr(error, 'problem', None) or error}") from None
    for one in documents:
        if isinstance(one, dict) and one.get("kind") == "List" and isinstance(one.get("items"), list):
            yield from one["items"]
        else:
            yield one


def _bytes(file: str) -> bytes:
    from kurma_core.named_files import content

    if "\0" in file or not writable(file):
        raise UsageError(f"{ascii_text(file)}: no file can have this path")
    if file.startswith(("http://", "https://")):
        return _fetched(file)
    return content("/dev/stdin" if file == "-" else file, endless=True)


def _fetched(address: str) -> bytes:
    import http.client
    import urllib.error
    import urllib.request

    from kurma_core.named_files import LARGEST

    class Redirects(urllib.request.HTTPRedirectHandler):
        """Follows an address only to a safe one."""

        def redirect_request(self, request: Any, answer: Any, *more: Any) -> Any:
            try:
                _check_address(more[-1])
            except UsageError:
                answer.close()
                raise
            return super().redirect_request(request, answer, *more)

    _check_address(address)
    try:
        with urllib.request.build_opener(Redirects).open(address, timeout=_TIMEOUT) as answer:
            data: bytes = answer.read(LARGEST + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise HostError(f"cannot fetch {address}: {getattr(error, 'reason', None) or error}") from None
    if len(data) > LARGEST:
        raise UsageError(f"{address}: larger than {LARGEST >> 20} MiB")
    return data


def _check_address(address: str) -> None:
    """:raises UsageError: others on the network could change the file on its way."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise UsageError(f"{address}: not an address: {error}") from None
    if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        raise UsageError(f"{address}: plain HTTP is only for this host", hint="use https://")
