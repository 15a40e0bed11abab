"""The images that Kurma and podman are compared on, and what is asked of each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field

from runtimes import program

_APPLETS = (
    *("awk", "cat", "cut", "echo", "env", "grep", "hostname", "id", "ip", "ls", "printf", "readlink", "sed"),
    *("sh", "sleep", "sort", "stat", "tr", "true", "wc"),
)

#: Prints facts, ``name<TAB>value``: what a program finds itself in.
PROBE = r"""#!/bin/sh
f() { printf '%s\t%s\n' "$1" "$2"; }
PATH=/bin
f argv "$(tr '\0' '|' </proc/$$/cmdline)"
f 'working directory' "$(readlink /proc/$$/cwd)"
f PID "$$"
f 'PID 1' "$([ $$ = 1 ] && echo the program itself || cat /proc/1/comm)"
f user "$(id -u)"
f group "$(id -g)"
f groups "$(id -G)"
tr '\0' '\n' </proc/$$/environ | sed 's/^\([^=]*\)=/environment \1\t/'
f 'host name' "$(hostname)"
f umask "$(umask)"
f 'open files' "$(ulimit -Sn):$(ulimit -Hn)"
f oom_score_adj "$(cat /proc/$$/oom_score_adj)"
awk '/^(CapInh|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp):/ {sub(":", "", $1); print $1 "\t" $2}' /proc/$$/status
f 'standard input' "$(readlink /proc/$$/fd/0)"
f 'standard output' "$(readlink /proc/$$/fd/1 | cut -d: -f1)"
f '/etc/hosts' "$(sort /etc/hosts | tr '\t\n' ' ;')"
f '/etc/hostname' "$(cat /etc/hostname 2>/dev/null)"
f '/etc/resolv.conf' "$([ -e /etc/resolv.conf ] && echo "$(grep -c nameserver /etc/resolv.conf) name servers")"
f '/dev' "$(ls /dev | tr '\n' ' ')"
f '/proc/sys writable' "$([ -w /proc/sys/kernel/hostname ] && echo mode says yes || echo mode says no)"
f '/proc/kcore' "$(stat -c %F /proc/kcore)"
f 'unprivileged ports from' "$(cat /proc/sys/net/ipv4/ip_unprivileged_port_start)"
f interfaces "$(ls /sys/class/net | tr '\n' ' ')"
awk '$5 !~ "^/sys/fs/cgroup/" {for (i=7; i<=NF; i++) if ($i == "-") print "mount " $5 "\t" $(i+1) " " $6}' \
    /proc/self/mountinfo
[ -d /data ] && f '/data' "$(stat -c '%u:%g %a' /data), holds: $(ls /data | tr '\n' ' ')"
exit 0
"""

_TRAP = (
    "trap 'echo got USR1; exit 7' USR1; trap 'echo got TERM; exit 8' TERM; echo up; while :; do sleep 0.1; done"
)


@dataclass(frozen=True, slots=True)
class Variant:
    """One image, run once by each.

    :param config: of the image.
    :param arguments: after the image's name.
    :param kurma: further options; ``podman`` likewise. Both have no network unless ``network`` is set.
    :param stop: it is stopped once it has printed ``up``.
    """

    name: str
    config: Mapping[str, object]
    arguments: tuple[str, ...] = ()
    kurma: tuple[str, ...] = ()
    podman: tuple[str, ...] = ()
    network: bool = False
    stop: bool = field(default=False)


def _sh(name: str, script: str, **config: object) -> Variant:
    return Variant(name, {"Cmd": ["/bin/sh", "-c", script], **config})


#: The first is what the others are compared with.
VARIANTS = (
    Variant("Cmd only", {"Cmd": ["/probe", "c"]}),
    Variant("Cmd only, with arguments", {"Cmd": ["/probe", "c"]}, ("/probe", "a", "b c")),
    Variant("Entrypoint only", {"Entrypoint": ["/probe", "e"]}),
    Variant("Entrypoint only, with arguments", {"Entrypoint": ["/probe", "e"]}, ("a", "b c")),
    Variant("Entrypoint and Cmd", {"Entrypoint": ["/probe", "e"], "Cmd": ["c"]}),
    Variant("Entrypoint and Cmd, with arguments", {"Entrypoint": ["/probe", "e"], "Cmd": ["c"]}, ("a",)),
    Variant("neither, with arguments", {}, ("/probe", "a")),
    Variant("neither, without arguments", {}),
    Variant("Entrypoint in shell form", {"Entrypoint": ["/bin/sh", "-c", "/probe $0"]}, ("a",)),
    Variant("Entrypoint by name, found in the image's PATH", {"Entrypoint": ["tool"], "Env": ["PATH=/opt:/bin"]}),
    Variant("Entrypoint relative to WorkingDir", {"Entrypoint": ["./tool"], "WorkingDir": "/opt"}),
    Variant(
        "--entrypoint",
        {"Entrypoint": ["/bin/false"], "Cmd": ["c"]},
        ("a",),
        ("--exec", "/probe"),
        ("--entrypoint", "/probe"),
    ),
    Variant("User by number, unknown", {"Cmd": ["/probe"], "User": "1234"}),
    Variant("User by number, known", {"Cmd": ["/probe"], "User": "1000"}),
    Variant("User and group by number", {"Cmd": ["/probe"], "User": "1234:5678"}),
    Variant("User by name", {"Cmd": ["/probe"], "User": "www"}),
    Variant("User and group by name", {"Cmd": ["/probe"], "User": "www:audio"}),
    Variant("User by name, unknown", {"Cmd": ["/probe"], "User": "nobody9"}),
    Variant("--user", {"Cmd": ["/probe"]}, (), ("--user", "1000"), ("--user", "1000")),
    Variant("WorkingDir that is missing", {"Cmd": ["/probe"], "WorkingDir": "/not/there"}),
    Variant(
        "WorkingDir that is missing, as a user", {"Cmd": ["/probe"], "WorkingDir": "/not/there", "User": "www"}
    ),
    Variant("WorkingDir that is relative", {"Cmd": ["/probe"], "WorkingDir": "opt"}),
    Variant("WorkingDir that is a file", {"Cmd": ["/probe"], "WorkingDir": "/probe"}),
    Variant(
        "Env",
        {
            "Cmd": ["/probe"],
            "Env": [
                "PATH=/bin",
                "A=1",
                "A=2",
                "EMPTY=",
                "a.b=c",
                "HOME=/elsewhere",
                "TERM=vt100",
                "HOSTNAME=mine",
            ],
        },
    ),
    Variant("--env", {"Cmd": ["/probe"], "Env": ["A=1"]}, (), ("-e", "A=2"), ("-e", "A=2")),
    Variant("Volumes, with content in the image", {"Cmd": ["/probe"], "Volumes": {"/data": {}}}),
    Variant("Volumes, missing in the image", {"Cmd": ["/probe"], "Volumes": {"/new/place": {}}}),
    Variant(
        "ExposedPorts, on the bridge",
        {"Cmd": ["/probe"], "ExposedPorts": {"80/tcp": {}, "53/udp": {}}},
        network=True,
    ),
    Variant(
        "Healthcheck", {"Cmd": ["/probe"], "Healthcheck": {"Test": ["CMD", "/bin/false"], "Interval": 1000000000}}
    ),
    Variant("Labels", {"Cmd": ["/probe"], "Labels": {"org.example/a": "b"}}),
    Variant("--read-only", {"Cmd": ["/probe"]}, (), ("--read-only",), ("--read-only",)),
    Variant("--hostname", {"Cmd": ["/probe"]}, (), ("--hostname", "mine"), ("--hostname", "mine")),
    _sh("exit 42", "exit 42"),
    _sh("the program ends itself by SIGTERM", "kill -TERM $$; sleep 2; echo and lives"),
    _sh("the program ends itself by SIGKILL", "kill -KILL $$; sleep 2; echo and lives"),
    _sh("its last child ends by SIGSEGV", "sh -c 'kill -SEGV $$'; exit $?"),
    Variant("command that is missing", {"Cmd": ["/not/there"]}),
    Variant("command that is missing in PATH", {"Cmd": ["notthere"]}),
    Variant("command that is a directory", {"Cmd": ["/opt"]}),
    Variant("command without the execute bit", {"Cmd": ["/plain"]}),
    Variant("script without #!", {"Cmd": ["/bare"]}),
    Variant("script whose interpreter is missing", {"Cmd": ["/orphan"]}),
    Variant("stop", {"Cmd": ["/bin/sh", "-c", _TRAP]}, stop=True),
    Variant("StopSignal, and stop", {"Cmd": ["/bin/sh", "-c", _TRAP], "StopSignal": "SIGUSR1"}, stop=True),
    _sh("output without a newline, on both streams", "printf out; printf err >&2"),
    _sh("standard input", "wc -c"),
)


def root(work: str) -> str:
    """The root filesystem of all variants."""
    top = f"{work}/compared"
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "opt", "data"):
        os.makedirs(f"{top}/{name}")
    os.chmod(f"{top}/tmp", 0o1777)
    shutil.copy(program("busybox"), f"{top}/bin/busybox")
    for applet in _APPLETS:
        os.symlink("busybox", f"{top}/bin/{applet}")
    files = {
        "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nwww:x:1000:1000:www:/srv/www:/bin/sh\n",
        "etc/group": "root:x:0:\nwww:x:1000:\naudio:x:29:www\n",
        "probe": PROBE,
        "opt/tool": PROBE,
        "plain": "#!/bin/sh\n",
        "bare": "echo bare\n",
        "orphan": "#!/not/there\n",
        "data/seed": "seed\n",
    }
    for name, text in files.items():
        with open(f"{top}/{name}", "w") as file:
            file.write(text)
    for name in ("probe", "opt/tool", "bare", "orphan"):
        os.chmod(f"{top}/{name}", 0o755)
    os.chown(f"{top}/data", 1000, 1000)
    os.chmod(f"{top}/data", 0o750)
    return top
