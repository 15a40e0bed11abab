"""Help for each isolator: the form of its value and an example, for ``kurma isolators list`` and the docs.

Running a pod does not load this. A new isolator gets a line here; then
``python tests/docs/test_docs_isolators.py`` writes the table of ``docs/reference/isolators.md``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Name → the form of its value in words, and an example.
ABOUT: dict[str, tuple[str, Any]] = {
    "os/linux/capabilities-remove-set": (
        "`set`: capabilities of the default that the app is to lack",
        {"set": ["CAP_MKNOD", "CAP_NET_RAW"]},
    ),
    "os/linux/capabilities-retain-set": (
        "`set`: all capabilities that there are to be",
        {"set": ["CAP_NET_BIND_SERVICE"]},
    ),
    "os/linux/cpu-shares": ("a whole number from 2 to 262144; 1024 is the default", 512),
    "host/api-access": ("true or false; `read`: read-only", True),
    "host/privileged": ("true or false", True),
    "kurma.io/devices": (
        "a list of devices or directories of them below /dev, or of {path, hostPath, access: letters of rwm}",
        [{"path": "/dev/seed", "hostPath": "/dev/urandom", "access": "r"}],
    ),
    "os/linux/namespaces": ("host or private by ipc, net, pid, user, uts", {"pid": "host", "net": "private"}),
    "os/linux/privileged": ("true or false", True),
    "os/linux/apparmor-profile": ("a profile that is loaded; its name alone does, too", {"profile": "my-profile"}),
    "os/linux/selinux-context": (
        "{user, role, type, level}: a context of SELinux",
        {"user": "system_u", "role": "system_r", "type": "container_t", "level": "s0:c1,c2"},
    ),
    "os/linux/no-new-privileges": ("true or false", True),
    "resource/cpu": (
        "{request, limit}: cores, thousandths of one by m; request is the limit where it is not given",
        {"request": "250m", "limit": "500m"},
    ),
    "resource/memory": (
        "{request, limit}: bytes; request is the limit where it is not given",
        {"request": "1G", "limit": "2G"},
    ),
    "kurma.io/pids-limit": ('{limit}: processes and threads at a time, or "unlimited"', {"limit": 100}),
    "kurma.io/ulimits": (
        "resource limits by name, as in setrlimit(2): [soft, hard], or a number for both; -1: unlimited",
        {"nofile": [1024, 4096], "core": 0},
    ),
    "kurma.io/linux-resources": (
        (
            "cpuPeriod, cpuQuota (microseconds), cpuShares, memoryLimit, memorySwapLimit (bytes, with swap), "
            "cpusetCpus, cpusetMems, hugepageLimits: [{pageSize, limit}], unified: {file of cgroup v2: text}, "
            "pidsLimit, oomScoreAdj; 0 or empty: unset; -1: unlimited"
        ),
        {"cpuQuota": 50000, "cpuPeriod": 100000, "memoryLimit": 67108864, "memorySwapLimit": 67108864},
    ),
    "resource/block-bandwidth": (
        "{default: true, limit}: bytes per second, each way, of each block device",
        {"default": True, "limit": "2M"},
    ),
    "resource/block-iops": (
        "{default: true, limit}: operations per second, each way, of each block device",
        {"default": True, "limit": "1000"},
    ),
    "kurma.io/block-read-bandwidth": (
        "{path, limit}: bytes per second, of the device below a path of the host",
        {"path": "/", "limit": "1Mi"},
    ),
    "kurma.io/block-write-bandwidth": (
        "{path, limit}: bytes per second, of the device below a path of the host",
        {"path": "/", "limit": "1Mi"},
    ),
    "resource/network-bandwidth": (
        "{default: true, limit}: bytes per second, each way, of each interface of the pod but lo",
        {"default": True, "limit": "1G"},
    ),
    "kurma.io/network-read-bandwidth": (
        "{device, limit}: bytes per second into the pod, of one interface of it",
        {"device": "eth0", "limit": "100Mi"},
    ),
    "kurma.io/network-write-bandwidth": (
        "{device, limit}: bytes per second out of the pod, of one interface of it",
        {"device": "eth0", "limit": "100Mi"},
    ),
    "os/linux/oom-score-adj": ("a whole number from -1000 to 1000", 500),
    "os/unix/sysctl": ("settings by name; net.*, fs.mqueue.* and some of kernel.*", {"net.ipv4.ip_forward": "1"}),
    "os/linux/seccomp-retain-set": (
        "the system calls that are allowed; an `errno` for all others, or none: SIGSYS",
        {"set": ["@rkt/default-whitelist", "mount"], "errno": "EPERM"},
    ),
    "os/linux/seccomp-remove-set": (
        "the system calls that are not allowed; an `errno` for them, or none: SIGSYS",
        {"set": ["ptrace", "@systemd/clock"]},
    ),
    "kurma.io/seccomp-profile": (
        "default, none, unconfined, or {path}: a seccomp profile of the OCI on the host",
        "default",
    ),
    "kurma.io/capabilities": (
        "{add, drop, ambient}: changes of the default set; or {bounding, ambient}: the whole sets",
        {"add": ["CAP_NET_ADMIN"], "drop": ["ALL"], "ambient": ["CAP_NET_BIND_SERVICE"]},
    ),
    "kurma.io/cdi": ("a list of devices of the Container Device Interface, such as vendor.com/gpu=0", []),
    "kurma.io/environment": (
        "environment variables; their names may have any printable ASCII characters except =",
        {"environment": [{"name": "my:variable", "value": "1"}]},
    ),
    "kurma.io/masked-paths": ("a list of the paths that are hidden from the app", ["/proc/kcore", "/secret"]),
    "kurma.io/read-only-paths": ("a list of the paths that the app cannot write to", ["/proc/sys", "/etc"]),
}
