"""Finds what to type instead of a word or an option that Kurma lacks: the nearest command, and the words of other
container engines.

No suggestion leads from a harmless word to a command that ends or removes something.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_BUILD = (
    "`kurma image build --from-rootfs DIR --name NAME` makes an image from a directory; for a Dockerfile use "
    "another program, such as buildah, and fetch its archive"
)
_IMPORT = "`kurma image build --from-rootfs DIR --name NAME` makes an image from a directory"
_LOAD = "`kurma image fetch SCHEME:FILE` takes an archive; `kurma plugins list` names the schemes of fetchers"
_CONTAINER = "Kurma runs pods, and its commands name no `container`: `kurma ps`, `kurma rm POD`"
_PAUSE = "Kurma cannot freeze pods; `kurma stop POD` ends a pod, and `kurma start POD` runs it again"
#: Words of other container engines that are not commands of Kurma: what to type instead.
ELSEWHERE = {
    "api-service": "kurmad serves the API: `kurma daemon run`",
    "build": _BUILD,
    "buildx": _BUILD,
    "checkpoint": "Kurma cannot save the state of a running pod",
    "container": _CONTAINER,
    "delete": "`kurma rm POD` for a pod, `kurma rmi IMAGE` for an image",
    "generate": "docs/howto/daemon.md describes the systemd units",
    "history": "`kurma image show IMAGE` lists the layers of an image",
    "import": _IMPORT,
    "load": _LOAD,
    "machine": "Kurma runs pods on this host, without a virtual machine",
    "manifest": "`kurma image cat-manifest IMAGE`, or `kurma cat-manifest POD`",
    "metadata-service": "each pod has a metadata service, which needs no command",
    "mount": "`kurma image render IMAGE` prints the directories of an image",
    "pause": _PAUSE,
    "play": "`kurma run --pod FILE` runs the apps of a pod file, which has its own format",
    "port": "`kurma show POD` lists the published ports",
    "prune": "`kurma system prune` removes ended pods and what nothing uses",
    "push": "`kurma image push IMAGE DESTINATION`",
    "remove": "`kurma rm POD` for a pod, `kurma rmi IMAGE` for an image",
    "rename": "the name of a pod cannot change; `kurma run --name NAME IMAGE` sets it",
    "save": "`kurma image save IMAGE -o FILE`",
    "search": "Kurma cannot search registries; `kurma pull LOCATOR` fetches an image by its address",
    "tag": "Kurma cannot rename images; it finds them by name, ID and fetched address",
    "unpause": _PAUSE,
    "unshare": "`kurma run --userns auto IMAGE` gives a pod a user namespace",
    "update": "set limits when you create a pod: `kurma run --memory 512Mi --cpus 0.5 IMAGE`",
    "app sandbox": "`kurma run --pod FILE`, then `kurma app add POD IMAGE`",
    "app status": "`kurma status POD`",
    "image import": _IMPORT,
    "image load": _LOAD,
    "image prune": "`kurma image gc`",
    "image tag": "Kurma cannot rename images; it finds them by name, ID and fetched address",
    "network connect": "a pod joins its networks at creation: `kurma run --net NAME IMAGE`",
    "network disconnect": "a pod joins its networks at creation: `kurma run --net NAME IMAGE`",
    "network prune": "`kurma network check --repair`",
    "pod create": "`kurma create`",
    "pod exec": "`kurma exec POD COMMAND`",
    "pod kill": "`kurma kill POD`",
    "pod list": "`kurma list`",
    "pod logs": "`kurma logs POD`",
    "pod ls": "`kurma list`",
    "pod prune": "`kurma gc`",
    "system check": "`kurma info --check`",
    "system events": "`kurma events`",
    "pod ps": "`kurma ps`",
    "pod restart": "`kurma restart POD`",
    "pod rm": "`kurma rm POD`",
    "pod show": "`kurma show POD`",
    "pod start": "`kurma start POD`",
    "pod stats": "`kurma stats POD`",
    "pod stop": "`kurma stop POD`",
    "pod top": "`kurma top POD`",
}

_THAT_RUN = ("run", "prepare", "create", "app add", "start", "restart", "run-prepared", "exec", "enter")
#: Options of other engines, and what to write instead, for commands that run something.
_OPTIONS = {
    "-d": "`kurma run -d` runs a pod in the background; so do run-prepared, start and restart",
    "--detach": "`kurma run -d` runs a pod in the background; so do run-prepared, start and restart",
    "-P": "-p HOST:POD names each port",
    "--add-host": "--hosts-entry IP=NAME",
    "--cap-add": "--caps-retain CAP,… lists all capabilities of the app",
    "--cap-drop": "--caps-remove CAP,…, or for all --isolator 'os/linux/capabilities-retain-set={\"set\": []}'",
    "--cpu-shares": "--isolator os/linux/cpu-shares=512",
    "--entrypoint": "--exec PROGRAM; its arguments follow the image",
    "--expose": "-p HOST:POD names each port",
    "--gpus": "--device HOST gives the app a device",
    "--health-cmd": "a health check is set when the pod is made: `kurma run`, or healthCheck in the pod file",
    "--init": "each pod has an init",
    "--ip": "--net NETWORK,ip=ADDRESS",
    "--mac-address": "--net NETWORK,mac=ADDRESS",
    "--oom-score-adj": "--isolator os/linux/oom-score-adj=500",
    "--pids-limit": "--isolator 'kurma.io/pids-limit={\"limit\": 100}'",
    "--platform": "images are for this machine alone",
    "--privileged": "--isolator os/linux/privileged=true",
    "--restart": "`kurma run --restart always` sets the policy of a pod; `kurma app add --annotation "
    "kurma.io/restart=on-failure` sets that of an app",
    "--publish-all": "-p HOST:POD names each port",
    "--security-opt": "use --isolator; see: kurma isolators list",
    "--shm-size": "--tmpfs /dev/shm:size=64Mi",
    "--sysctl": '--isolator \'os/unix/sysctl={"net.core.somaxconn": "1024"}\'',
    "--volumes-from": "apps of one pod share volumes: --pod FILE",
}
#: Values of options of other engines, and what to write instead.
_VALUES = {
    ("--restart", "no"): "never",
    ("--restart", "on-failure"): "on-failure: the number of restarts has no limit",
    ("--restart", "unless-stopped"): "always: a pod that was stopped stays so",
    ("--pull", "missing"): "new",
    ("--pull", "newer"): "always",
}
_OF_LOGIN = dict.fromkeys(
    ("-p", "--password"), "--password-stdin: other users can read the arguments of a command"
)
#: Options that end or remove something, or answer the question before it.
_HARMFUL_OPTIONS = frozenset(("--all", "--force", "--rm", "--stop-pods", "--yes"))


def of_option(command: str, option: str) -> str | None:
    """The hint for an option of another engine."""
    if command.endswith("login"):
        return _OF_LOGIN.get(option)
    return _OPTIONS.get(option) if command in _THAT_RUN else None


def of_value(option: str, value: str) -> str | None:
    """The hint for a value that another engine takes for this option."""
    found = _VALUES.get((option, value.partition(":")[0]))
    return None if found is None else f"write {option} {found}"


def nearest_command(word: str, names: Sequence[str], harmful: frozenset[str]) -> str | None:
    """The name to suggest for a mistyped word; None: no name is near.

    See :func:`_within_edits`. A harmful name is suggested only if no harmless name is as near, and no
    harmless word, of Kurma or of other engines, is one edit away.
    """
    found = _within_edits(word, sorted(names, key=lambda name: name in harmful))
    if found in harmful:
        harmless = [one for one in (*names, *ELSEWHERE) if one not in harmful]
        if any(abs(len(word) - len(one)) <= 1 and edits(word, one) <= 1 for one in harmless):
            return None
    return found


def nearest_option(option: str, flags: Iterable[str]) -> str | None:
    """The option to suggest for a mistyped one; None: no option is near. An option that removes something, or
    answers the question before, is never suggested."""
    names = [flag[2:] for flag in flags if flag.startswith("--") and flag not in _HARMFUL_OPTIONS]
    found = _within_edits(option[2:], names) if option.startswith("--") else None
    return None if found is None else f"--{found}"


def _within_edits(word: str, names: Iterable[str]) -> str | None:
    """A name within one edit (:func:`edits`), for words of more than four letters within two; None: there is none.
    Of equally near names the first is taken.

    This is stricter than :func:`kurma_core.schema.nearest`, which suggests names of things: that function also
    takes a name with many letters in common, as ``rm`` for ``rum``."""
    limit = 1 if len(word) <= 4 else 2
    found, best = None, limit + 1
    for name in names:
        if abs(len(word) - len(name)) < best and (distance := edits(word, name)) < best:
            found, best = name, distance
    return found


def edits(one: str, other: str) -> int:
    """How many letters must be inserted, removed, replaced or exchanged with their neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        earlier, before, row = before, row, [at]
        for to, second in enumerate(other, 1):
            best = min(before[to] + 1, row[to - 1] + 1, before[to - 1] + (letter != second))
            if at > 1 and to > 1 and letter == other[to - 2] and one[at - 2] == second:
                best = min(best, earlier[to - 2] + 1)
            row.append(best)
    return row[-1]
