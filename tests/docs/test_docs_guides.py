"""The guides name every command and option of the other program, and commands and options that Kurma has."""

import contextlib
import functools
import io
import re
from importlib.metadata import entry_points

import pytest

from kurma_core.cli.commands import Group, find
from kurma_core.cli.main import main
from tests.docs.pages import ROOT, find_page

TEXTS = {name: find_page(f"from_{name}.md").read_text(encoding="utf-8") for name in ("rkt", "podman", "compose")}
#: Of rkt 1.30.
RKT = (
    *(
        "fetch",
        "run",
        "prepare",
        "run-prepared",
        "enter",
        "attach",
        "list",
        "status",
        "stop",
        "rm",
        "gc",
        "config",
    ),
    *("cat-manifest", "export", "trust", "metadata-service", "api-service", "version", "completion", "help"),
    *(f"image {word}" for word in ("list", "rm", "export", "render", "extract", "cat-manifest", "verify", "gc")),
    *(f"app {word}" for word in ("sandbox", "add", "start", "stop", "rm", "list", "status")),
)
#: Its options of run, each of which somebody has in a script.
RUN = """
caps-remove caps-retain cpu dns dns-domain dns-opt dns-search environment exec group hosts-entry hostname
inherit-env interactive ipc mds-register memory mount name net no-overlay oom-score-adjust pod-manifest port
private-users pull-policy readonly-rootfs seccomp set-env set-env-file signature stage1-from-dir stage1-hash
stage1-name stage1-path stage1-url stdin stdout stderr supplementary-gids user user-annotation user-label
uuid-file-save volume working-dir
"""


#: Options that `podman run` and `docker run` both have.
PODMAN_RUN = """
add-host annotation attach blkio-weight blkio-weight-device cap-add cap-drop cgroup-parent cgroupns cidfile
cpu-period cpu-quota cpu-rt-period cpu-rt-runtime cpu-shares cpus cpuset-cpus cpuset-mems detach detach-keys
device device-cgroup-rule device-read-bps device-read-iops device-write-bps device-write-iops
disable-content-trust dns dns-option dns-search entrypoint env env-file expose group-add health-cmd hostname
init interactive ip ip6 ipc label label-file log-driver log-opt mac-address memory memory-reservation
memory-swap memory-swappiness mount name network network-alias no-healthcheck oom-kill-disable oom-score-adj pid
pids-limit platform privileged publish publish-all pull quiet read-only restart rm security-opt shm-size
sig-proxy stop-signal stop-timeout sysctl tmpfs tty ulimit user userns uts volume volumes-from workdir
"""
#: Their commands that a user types.
PODMAN = """
attach build commit compose cp create diff events exec export history images info inspect kill load login logout
logs pause port ps pull push rename restart rm rmi run save search start stats stop tag top unpause update
version wait
"""
#: Keys of a service in a compose file.
COMPOSE = """
annotations attach blkio_config build cap_add cap_drop cgroup cgroup_parent command configs container_name
cpu_count cpu_percent cpu_period cpu_quota cpu_rt_period cpu_rt_runtime cpu_shares cpus cpuset credential_spec
depends_on deploy develop device_cgroup_rules devices dns dns_opt dns_search domainname driver_opts entrypoint
env_file environment expose extends external_links extra_hosts gpus group_add healthcheck hostname image init
ipc isolation label_file labels links logging mac_address mem_limit mem_reservation mem_swappiness memswap_limit
models network_mode networks oom_kill_disable oom_score_adj pid pids_limit platform ports post_start pre_stop
privileged profiles provider pull_policy read_only restart runtime scale secrets security_opt shm_size
stdin_open stop_grace_period stop_signal storage_opt sysctls tmpfs tty ulimits use_api_socket user userns_mode
uts volumes volumes_from working_dir
"""


def tables(guide):
    """The head and the rows of each, cell by cell."""
    for block in re.findall(r"(?:^\|.*\n)+", TEXTS[guide], re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        yield head, rows


def spans(cell):
    return re.findall(r"`([^`]+)`", cell)


ROWS = [(guide, head, row) for guide in TEXTS for head, rows in tables(guide) for row in rows]


@functools.cache
def options(command):
    """What ``--help`` of that command lists."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*command.split()[1:], "--help"]) == 0
    return set(re.findall(r"(?<!\S)(-{1,2}[a-z][a-z-]*)", out.getvalue().partition("Options:")[2]))


#: Commands of the plugins that come with Kurma.
OF_PLUGINS = {entry.name for entry in entry_points(group="kurma.commands")}


def is_command(words):
    return (
        not words
        or words[0] in OF_PLUGINS
        or (find(tuple(words)) is not None and not isinstance(find(tuple(words)), Group))
    )


def named(guide):
    """What the first column of a guide's tables names."""
    return {span for of, head, row in ROWS for cell in (head[0], row[0]) for span in spans(cell) if of == guide}


@pytest.mark.parametrize(
    ("guide", "head", "row"), ROWS, ids=lambda cells: cells if isinstance(cells, str) else cells[0]
)
def test_there_is_what_is_named(guide, head, row):
    assert len(row) == 3, row
    own = [span for span in spans(row[1]) if span.startswith("kurma")]
    of = own or [span for span in spans(head[1]) if span.startswith("kurma")]
    for command in of:
        assert is_command(command.split()[1:]), f"there is no {command}"
    for span in set(spans(row[1])) - set(own):
        assert span.startswith("-"), span
        assert of, f"{span}: of which command?"
        assert all(span in options(command) for command in of), f"{of} have no {span}"
    assert not [span for span in spans(row[2]) if span.startswith("-")], "whose option is that?"


def test_every_command_of_rkts_is_there():
    assert [command for command in RKT if f"rkt {command}" not in named("rkt")] == []


def test_every_option_of_rkt_run_is_there():
    (rows,) = [rows for head, rows in tables("rkt") if "`rkt run`" in head[0]]
    found = {span.split()[0] for row in rows for span in spans(row[0])}
    assert [option for option in RUN.split() if f"--{option}" not in found] == []


def test_every_command_and_option_of_podmans_is_there():
    assert [option for option in PODMAN_RUN.split() if f"--{option}" not in named("podman")] == []
    assert [command for command in PODMAN.split() if command not in named("podman")] == []


def test_every_key_of_a_compose_service_is_there():
    assert [key for key in COMPOSE.split() if key not in named("compose")] == []


def test_a_wrong_option_would_be_found():
    assert "--workdir" in options("kurma run")
    assert "--working-dir" not in options("kurma run")
    assert not is_command(["image", "verfy"])


def test_messages_of_troubleshooting_are_in_the_code():
    """Its blocks are run; these are messages that its text quotes."""
    text = find_page("troubleshooting.md").read_text()
    source = "".join(
        file.read_text() for place in ("kurma_core", "plugins") for file in (ROOT / place).rglob("*.py")
    )
    quoted = re.findall(r'"([^"\n]{10,})"', re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    assert len(quoted) >= 5
    assert [
        words
        for words in quoted
        if words not in {"Read-only file system", "Permission denied"} and words not in source
    ] == []
