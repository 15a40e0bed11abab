"""Root filesystems and image archives that tests run: busybox of Debian's, and stagers written in shell."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from kurma_core.image_store.builder import build_archive

BUSYBOX = "/bin/busybox"


@functools.cache
def _applets() -> list[str]:
    return subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split()


def busybox_root(path: str, files: Mapping[str, str] | None = None) -> str:
    """Makes a root filesystem of busybox and its applets.

    :param files: texts by name, in addition or instead. One that begins with ``#!`` is made executable.
    """
    for directory in ("bin", "etc", "root", "tmp", "data"):
        os.makedirs(f"{path}/{directory}", exist_ok=True)
    os.chmod(path, 0o755)
    os.chmod(f"{path}/tmp", 0o1777)
    shutil.copy(BUSYBOX, f"{path}/bin/busybox")
    for name in _applets():
        if not os.path.lexists(f"{path}/bin/{name}"):
            os.symlink("busybox", f"{path}/bin/{name}")
    contents = {
        "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:100:Alice:/:/bin/sh\n",
        "etc/group": "root:x:0:\nusers:x:100:\n",
        "data/from-image": "seed\n",
        **(files or {}),
    }
    for name, text in contents.items():
        os.makedirs(os.path.dirname(f"{path}/{name}"), exist_ok=True)
        with open(f"{path}/{name}", "w") as file:
            file.write(text)
        if text.startswith("#!"):
            os.chmod(f"{path}/{name}", 0o755)
    return path


def archive(root: str, path: str, name: str, **manifest: Any) -> str:
    """Builds an image archive of a root filesystem, and returns its path."""
    value = {
        "acKind": "ImageManifest",
        "acVersion": "0.8.11",
        "name": name,
        "labels": [{"name": "version", "value": "1"}],
        **manifest,
    }
    with open(path, "wb") as out:
        build_archive(root, value, out)
    return path


def busybox_archive(
    directory: str, app: Mapping[str, Any] | None = None, files: Mapping[str, str] | None = None
) -> str:
    """Builds the image ``example.com/busybox`` in a directory. Its app is ``true``, unless another is given."""
    root = busybox_root(f"{directory}/root", files)
    return archive(root, f"{directory}/busybox.aci", "example.com/busybox", app=app or shell("true"))


def foreign_stager(
    directory: str,
    name: str,
    init: str,
    call_ins: Mapping[str, str] | None = None,
    *,
    linked: bool = False,
    **manifest: Any,
) -> str:
    """Builds an image archive of a stager written in shell: ``/init``, and call-ins by verb.

    :param linked: ``/opt`` is a link.
    """
    files = {f"opt/stager/{verb}": f"#!/bin/sh\n{text}\n" for verb, text in (call_ins or {}).items()}
    root = busybox_root(f"{directory}/{name}", {"init": f"#!/bin/sh\n{init}\n", **files})
    if linked:
        os.rename(f"{root}/opt", f"{root}/elsewhere")
        os.symlink("/elsewhere", f"{root}/opt")
    app = {"exec": ["/init", "an argument"], "user": "0", "group": "0"}
    app["environment"] = [{"name": "OWN", "value": "of the image"}]
    return archive(root, f"{directory}/{name}.aci", f"example.com/{name}", **{"app": app, **manifest})


def image_id(path: str) -> str:
    """The ID of an uncompressed image archive."""
    with open(path, "rb") as file:
        return f"sha512-{hashlib.file_digest(file, 'sha512').hexdigest()}"


def shell(script: str, **fields: Any) -> dict[str, Any]:
    """An App Container ``app`` that runs a shell script as root."""
    return {"exec": ["/bin/sh", "-c", script], "user": "0", "group": "0", **fields}
