"""The machine's file system: this host's own Debian, as far as the tests need it, and the project where it is.

Files are copied, not installed: what the packages list, what their scripts have made of it (alternatives,
certificates), compiled Python, and the virtual environment at its own path.
"""

import os
import subprocess
import sys

from tests.vm import packages
from tests.vm.failing import Failing

#: Nobody reads these there.
_UNREAD = tuple(f"/usr/share/{name}/" for name in ("doc", "man", "locale", "info", "lintian", "bash-completion"))
#: Made by the packages' scripts, or by whoever set this host up.
_MADE = (
    *("etc/alternatives", "etc/group", "etc/ld.so.cache", "etc/nsswitch.conf", "etc/passwd"),
    *("etc/ssl/certs", "etc/protocols", "etc/services"),
)
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
#: Of the project and its virtual environment: what no test in the machine uses, by name and by path.
_LEFT = (
    *("./.git", "./.dev", "./dist", ".mypy_cache", ".ruff_cache", ".hypothesis", ".pytest_cache"),
    *("mypy", "mypyc", "*__mypyc.*.so", "atheris", "*fuzzer*", "ruff"),
)
_EMPTY = (
    "dev",
    "proc",
    "sys",
    "run",
    "root",
    "tmp",
    "var/tmp",
    "var/lib",
    "var/log",
    "etc/kurma",
    "etc/cni/net.d",
    "mnt",
)


def build(tree, project, names):
    """Fill the directory ``tree``.

    :param project: the checkout, with its ``.venv``; it gets the same path there.
    :param names: packages of this host whose programs the tests use.
    """
    for directory in _EMPTY:
        os.makedirs(f"{tree}/{directory}", exist_ok=True)
    os.chmod(f"{tree}/tmp", 0o1777)
    _copy("/", tree, _files(packages.closure(names)), recursive=False)
    made = [name for name in _MADE if os.path.lexists(f"/{name}")]
    _copy("/", tree, [*made, *(name for name in _LINKS if os.path.islink(f"/{name}"))], recursive=True)
    base = sys.base_prefix
    if base not in ("/usr", "/usr/local"):
        _copy("/", tree, [base.lstrip("/")], recursive=True)  # an interpreter that no package brought
    os.makedirs(f"{tree}{project}")
    _copy(project, f"{tree}{project}", ["."], recursive=True, leave=_LEFT)
    with open(f"{tree}/etc/hosts", "w") as file:
        file.write("127.0.0.1 localhost\n::1 localhost\n")
    # Compiling there takes a minute, and here four seconds. Where it is compiled, nothing is done.
    libraries = [path for path in sys.path if path.startswith(base) and os.path.isdir(f"{tree}{path}")]
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "-j", "0", "-s", tree, f"{tree}{project}"]
        + [f"{tree}{path}" for path in libraries],
        stdout=subprocess.DEVNULL,  # some packages ship what is not for this Python
        env={key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"},
    )


def _files(names):
    """What the packages have put on this host, relative to its root, and compiled Python beside it."""
    listed = subprocess.run(["dpkg", "-L", *names], capture_output=True, text=True).stdout.split("\n")
    real = {}
    found = set()
    for path in set(listed):
        if not path.startswith("/") or path.startswith(_UNREAD) or path == "/.":
            continue
        directory, name = os.path.split(path)
        if directory not in real:
            real[directory] = os.path.realpath(directory).rstrip("/")  # /bin is a link to /usr/bin
        if os.path.lexists(f"{real[directory]}/{name}"):
            found.add(f"{real[directory]}/{name}")
    for directory in set(real.values()):
        cache = f"{directory}/__pycache__"
        if os.path.isdir(cache):
            found |= {cache, *(f"{cache}/{name}" for name in os.listdir(cache))}
    for directory in ("/usr/bin", "/usr/sbin"):
        with os.scandir(directory) as entries:
            found |= {e.path for e in entries if e.is_symlink() and os.readlink(e.path).startswith("/etc/altern")}
    # Links of the root are copied by themselves: an archive's directory of that name would replace them.
    return sorted(path.lstrip("/") for path in found if path.lstrip("/") not in _LINKS)


def _copy(source, target, names, *, recursive, leave=()):
    pack = ["tar", "-C", source, "--null", *([] if recursive else ["--no-recursion"])]
    pack += [*(f"--exclude={name}" for name in leave), "--verbatim-files-from", "-T", "-", "-cf", "-"]
    with subprocess.Popen(pack, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as packing:
        with subprocess.Popen(["tar", "-C", target, "-xpf", "-"], stdin=packing.stdout) as unpacking:
            packing.stdout.close()
            packing.stdin.write("\0".join(names).encode())
            packing.stdin.close()
    # 1: a file changed while it was read.
    if packing.returncode not in (0, 1) or unpacking.returncode:
        raise Failing(f"cannot copy files of {source} for the machine: tar failed (above)")
