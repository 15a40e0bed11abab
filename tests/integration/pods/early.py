"""Images of the early draft (0.1.0), made here."""

import hashlib
import json
import tarfile
from io import BytesIO


def archive(path, rootfs, app=None, fileset=None):
    """Path and early ID of an archive of the early layout (E1)."""
    with tarfile.open(path, "w") as tar:
        for name, document in (("app", app), ("fileset", fileset)):
            if document is not None:
                text = json.dumps(document).encode()
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(text), 0o644
                tar.addfile(info, BytesIO(text))
        tar.add(rootfs, "rootfs")
    with open(path, "rb") as file:
        return str(path), "sha256-" + hashlib.file_digest(file, "sha256").hexdigest()


def app_manifest(name, script, **fields):
    return {
        "acVersion": "0.1.0",
        "acKind": "AppManifest",
        "name": name,
        "os": "linux",
        "arch": "amd64",
        "exec": ["/bin/sh", "-c", script],
        "user": "0",
        "group": "0",
        **fields,
    }


def fileset_manifest(name, *dependencies, files=()):
    return {
        "acVersion": "0.1.0",
        "acKind": "FilesetManifest",
        "name": name,
        "dependencies": list(dependencies),
        "files": list(files),
    }


def tree(path, **files):
    for name, text in files.items():
        path.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        path.joinpath(name).write_text(text)
    return path
