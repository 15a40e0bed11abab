"""Builds the probe's image from the running interpreter: two layers, without a network or a busybox.

The lower layer holds the interpreter, the probe and marks, the upper one only marks. The marks that an app sees
show how the stager stacked the layers.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.util import MAGIC_NUMBER
from typing import Any

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import StagerError
from kurma_core.formats import elf
from kurma_core.formats.small_json import decode
from kurma_core.models.image import RenderedLayer
from kurma_core.stager_check import probe
from kurma_core.value import frozen

PREFIX = "check"
#: The app's program, which takes the probe's arguments.
PROGRAM = f"/{PREFIX}/probe"
USER, USER_ID, GROUP, GROUP_ID = "tester", 1234, "testers", 2345
#: A further group of :data:`USER` in the image's ``/etc/group``.
FURTHER_GROUP_ID = 3456
#: A file whose path is used as user and group, and its owner.
OWNED, OWNER_ID, OWNER_GROUP_ID = "/marks/owned", 4567, 5678
_MODULES = ("os", "_socket", "encodings.utf_8", "encodings.ascii", "encodings.latin_1")
_LIST = """
import json, sys
for name in sys.argv[1:]:
    __import__(name)
print(json.dumps({name: [getattr(module.__spec__, "origin", None), hasattr(module, "__path__")]
    for name, module in sorted(sys.modules.items())
    if name.split(".")[0] in ("os", "_socket", "encodings") and getattr(module, "__spec__", None)}))
"""


@frozen
class ProbeImage:
    """The built image.

    :param id: the image's ID. :param layers: top first. :param manifests: by ID, as JSON values.
    """

    id: str
    manifest: ImageManifest
    layers: tuple[RenderedLayer, ...]
    manifests: dict[str, Any]


def build(directory: str) -> ProbeImage:
    """Makes the layers in the empty directory.

    :raises StagerError: the running interpreter cannot be copied.
    """
    top, base = f"{directory}/top", f"{directory}/base"
    _marks(base, {"both": "base", "base": "base"})
    _marks(top, {"both": "top", "top": "top"})
    try:
        _interpreter(base)
    except OSError as error:
        raise StagerError(f"the check's app cannot be made: {error.filename}: {error.strerror}") from None
    for name in ("tmp", "work", "volume", "dev", "proc", "sys"):
        os.makedirs(f"{base}/{name}", exist_ok=True)
    os.chmod(f"{base}/tmp", 0o1777)  # noqa: S103, S108 - as it is everywhere
    _write(f"{base}/etc/passwd", f"root:x:0:0:root:/:/bin/sh\n{USER}:x:{USER_ID}:{GROUP_ID}::/:/bin/sh\n")
    _write(f"{base}/etc/group", f"root:x:0:\n{GROUP}:x:{GROUP_ID}:\nfurther:x:{FURTHER_GROUP_ID}:{USER}\n")
    os.chown(f"{base}{OWNED}", OWNER_ID, OWNER_GROUP_ID)
    ids = [
        "sha512-" + hashlib.sha512(f"kurma stager check {name}".encode()).hexdigest() for name in ("top", "base")
    ]
    manifests = {
        ident: {
            "acKind": "ImageManifest",
            "acVersion": "0.8.11",
            "name": f"kurma.io/stager/check/{name}",
            "app": {"exec": [PROGRAM, "main", "serve"], "user": "0", "group": "0"},
        }
        for ident, name in zip(ids, ("top", "base"), strict=True)
    }
    layers = tuple(RenderedLayer(ident, path) for ident, path in zip(ids, (top, base), strict=True))
    return ProbeImage(ids[0], ImageManifest.parse(manifests[ids[0]]), layers, manifests)


def _marks(layer: str, marks: dict[str, str]) -> None:
    os.makedirs(layer, 0o755)
    for name, text in marks.items():
        _write(f"{layer}/marks/{name}", text)
    if "base" in marks:
        _write(f"{layer}{OWNED}", "")


def _write(path: str, text: str, mode: int = 0o644) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, mode)


def _interpreter(layer: str) -> None:
    """Copies the interpreter, its shared libraries, the few modules that are not built in, and the probe."""
    program = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    loader = elf.loader_of(program)
    if loader is None:
        raise StagerError(f"{program} is linked statically: the check needs a dynamic interpreter for its app")
    library = f"{layer}/{PREFIX}/lib/python{sys.version_info.major}.{sys.version_info.minor}"
    os.makedirs(f"{library}/lib-dynload")
    _copy(program, f"{layer}/{PREFIX}/bin/python3")
    objects = [program]
    for name, (origin, package) in decode(_output([program, "-ISB", "-c", _LIST, *_MODULES])).items():
        if origin and origin.endswith(".so"):
            objects.append(origin)
            _copy(origin, f"{library}/lib-dynload/{os.path.basename(origin)}")
        path = name.replace(".", "/") + ("/__init__" if package else "")
        source = f"{os.path.dirname(os.path.realpath(os.__file__))}/{path}.py"
        if os.path.exists(source):
            _compile(source, f"{library}/{path}.pyc")
    _copy(loader, f"{layer}{loader}")
    for place, path in elf.libraries(loader, objects, _output).items():
        _copy(path, f"{layer}{place}")
    with open(probe.__file__, encoding="utf-8") as file:
        # -I -S: the interpreter ignores the environment and the current directory.
        _write(f"{layer}{PROGRAM}", f"#!/{PREFIX}/bin/python3 -IS\n{file.read()}", 0o755)


def _copy(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(source, target)
    os.chmod(target, 0o755)  # noqa: S103 - programs and libraries


def _compile(source: str, target: str) -> None:
    import marshal

    with open(source, "rb") as file:
        code = compile(file.read(), source, "exec", dont_inherit=True, optimize=2)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as out:
        # A hash-based .pyc that is never checked: the interpreter does not look for the source.
        out.write(MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code))


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"LC_ALL": "C"})
    if done.returncode != 0:
        raise StagerError(f"the check's app cannot be made: {command[0]}: {done.stderr.strip()[-300:]}")
    return done.stdout
