"""What every pod begins with, gone through once by who waits for one.

A process that was forked shares its memory with who has forked it, until one of them writes to it: each first
write to a page takes two microseconds, and to read a manifest writes to some two hundred. Whoever waits has time
for that before there is a pod; the pod costs no more memory for it.
"""

from __future__ import annotations

from kurma_stager_default.inside import become, devicewall, manifest, rootmaker

_ID = "sha512-" + 64 * "0"
#: As the manifest of a pod with one app that is given nothing special.
_MANIFEST = (
    '{"kurmaVersion":"0.1.0","name":"none","pod":{"acKind":"PodManifest","acVersion":"0.8.11","apps":[{"name":"none",'
    '"image":{"id":"' + _ID + '","name":"example.com/none","labels":[{"name":"os","value":"linux"}]},'
    '"app":{"exec":["/bin/true"],"user":"0","group":"0","environment":[{"name":"A","value":"b"}]}}]},'
    '"images":{"' + _ID + '":{"acKind":"ImageManifest","acVersion":"0.8.11","name":"example.com/none",'
    '"labels":[{"name":"os","value":"linux"}],"app":{"exec":["/bin/true"],"user":"0","group":"0"}}},'
    '"appImageOrder":{"none":["' + _ID + '"]},"stagerConfig":{"kurma.io":{"version":1,'
    '"uuid":"00000000-0000-4000-8000-000000000000","hostname":"none",'
    '"dns":{"nameservers":["192.0.2.1"],"search":[],"options":[]},'
    '"hosts":[["127.0.0.1",["localhost"]],["::1",["localhost","ip6-localhost"]]],"names":null,'
    '"podPlan":{"version":1,"capabilities":null,"ambient":[],"noNewPrivileges":false,"oomScoreAdj":null,"rlimits":{},'
    '"cgroup":[],"sysctls":{}},"keep":false,"stopTimeout":10.0,"logs":{"size":1048576,"count":5},"userns":null,'
    '"apps":{"none":{"mounts":[{"volume":"none","path":"/none"}],"environment":[["A","b"]],"stdin":false,'
    '"stdinOpen":false,"terminal":false,"makeWorkingDirectory":false,"stopSignal":15,"plan":{"version":2,'
    '"capabilities":null,"ambient":[],"noNewPrivileges":false,"oomScoreAdj":null,"rlimits":{},'
    '"cgroup":[{"controller":"pids","file":"pids.max","value":"1"}],"sysctls":{},'
    '"seccomp":"' + 1600 * "0" + '"}}}}}}'
)


def of_root() -> None:
    """By who is to make a root. Changes nothing but memory."""
    rootmaker.wanted(manifest.parse(_MANIFEST.encode(), "the rehearsal's"))


def of_pod() -> None:
    """By who is to supervise the pod. Changes nothing but memory."""
    pod = manifest.parse(_MANIFEST.encode(), "the rehearsal's")
    devicewall.rules(app.plan for app in pod.apps)
    become.wall_notes(pod.apps)
    for app in pod.apps:
        become.power_note(app, pod.ids)
