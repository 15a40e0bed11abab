"""``kurma image convert`` and ``pod convert``: turn early App Container manifests (0.1.0) into the late form."""

from __future__ import annotations

import os

from kurma_core.api import pod_file
from kurma_core.cli import values
from kurma_core.cli.command_line import PASSPHRASE_FILE, Argument, command
from kurma_core.errors import HostError, ImageNotFoundError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.appc.image import ImageManifest
    from kurma_core.appc.template import PodTemplate
    from kurma_core.cli.session import Session


@command(
    Argument(
        "files",
        "FILE|IMAGE",
        "An app manifest, a fileset manifest, both, an archive, or a stored image.",
        many=True,
    ),
    PASSPHRASE_FILE,
    makes=True,
    example="kurma image convert early.aci",
)
def image(session: Session, *, files: tuple[str, ...]) -> None:
    """Convert an image manifest of App Container 0.1.0.

    Merges an app manifest and a fileset manifest that are given together. Prints a manifest of a later version in
    Kurma's form.
    """
    if len(files) == 1 and not _holds_json(files[0]):
        manifest = _of_image(session, files[0])
    elif len(files) == 1:
        manifest = _of_document(session, files[0])
    else:
        manifest = _of_both(session, files)
    session.json(manifest.to_json())


@command(
    Argument("file", "FILE", "The pod's manifest, JSON or YAML; - is standard input."),
    example="kurma pod convert early.json",
)
def pod(session: Session, *, file: str) -> None:
    """Convert a pod manifest of App Container 0.1.0.

    Values that the pod manifest lacks for an app come from the manifest of the app's image, if the store has it.
    kurma run --pod accepts the printed manifest.
    """
    from kurma_core.appc.early_image import is_early_image
    from kurma_core.appc.template import PodTemplate
    from kurma_core.named_files import naming

    document = pod_file.read_value(file)
    name = "standard input" if file == "-" else file
    if is_early_image(document) or (isinstance(document, dict) and document.get("acKind") == "ImageManifest"):
        raise UsageError(f"{name} is an image's manifest, and no pod's", hint=f"kurma image convert {file}")
    if not pod_file.is_early(document):
        document = pod_file.only_pod(document, file, "pod convert", session.note)
        with naming(name):
            template = PodTemplate.parse(document, warn=session.note)
        session.json(template.to_json())
        return
    from kurma_core.appc.early_pod import convert_pod

    with naming(name):
        template = convert_pod(document, warn=session.note)
    session.json(_completed(session, template).to_json())


# --- images ------------------------------------------------------------------------------------------------------


def _holds_json(file: str) -> bool:
    """Whether the file begins like JSON, not like an archive."""
    from kurma_core.named_files import opened

    try:
        with opened(file) as stream:
            head = stream.read(4096)
    except (HostError, OSError):
        return False
    begun = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return begun.startswith((b"{", b"[", b'"', b"null", b"true", b"false")) and head[257:262] != b"ustar"


def _of_image(session: Session, what: str) -> ImageManifest:
    from kurma_core.appc.image import ImageManifest

    client = session.client
    file = what if os.path.isfile(what) else client.archive_path(what)
    if file is not None:
        return client.here.images.files.inspect(file).contents.manifest
    return ImageManifest.parse(client.image_manifest(what))


def _of_document(session: Session, file: str) -> ImageManifest:
    from kurma_core.appc.early_image import convert_any
    from kurma_core.named_files import naming

    document = values.json_file(file)
    if pod_file.is_early(document) or (isinstance(document, dict) and document.get("acKind") == "PodManifest"):
        raise UsageError(f"{file} is a pod's manifest, and no image's", hint=f"kurma pod convert {file}")
    with naming(file):
        return convert_any(document, warn=session.note)


def _of_both(session: Session, files: tuple[str, ...]) -> ImageManifest:
    from kurma_core.appc.early_image import FILESET_MANIFEST, convert_image

    documents = [values.json_file(file) for file in files]
    kinds = [isinstance(one, dict) and one.get("acKind") == FILESET_MANIFEST for one in documents]
    if sorted(kinds) != [False, True]:
        raise UsageError(
            "only an app manifest and a fileset manifest become one", hint="give two files, one of each"
        )
    return convert_image(documents[kinds.index(False)], documents[kinds.index(True)], warn=session.note)


# --- pods --------------------------------------------------------------------------------------------------------


def _completed(session: Session, template: PodTemplate) -> PodTemplate:
    from kurma_core.appc.early_pod import with_images
    from kurma_core.appc.image import ImageManifest
    from kurma_core.appc.pod import RuntimeImage
    from kurma_core.value import replace

    client = session.client
    manifests: dict[str, ImageManifest] = {}
    apps = []
    for app in template.pod.apps:
        try:
            record = client.image(str(app.image.id)).record
        except ImageNotFoundError:
            session.note(
                f"app {app.name}: image {app.image.id} is not in the store; run --pod will look for it by its name"
            )
            apps.append(app)
            continue
        manifest = manifests[app.name] = ImageManifest.parse(client.image_manifest(record.id))
        apps.append(replace(app, image=RuntimeImage(record.id, manifest.name, manifest.labels)))
    return with_images(replace(template, pod=replace(template.pod, apps=tuple(apps))), manifests)
