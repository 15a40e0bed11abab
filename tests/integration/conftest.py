"""What every test with real parts stands on: a "host" of its own, and the proof that nothing is left behind."""

import os
import time

import pytest

#: Seconds that what was ended may take to go.
_PATIENCE = 5.0


def _named(directory):
    try:
        return set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return set()


def _mounts():
    """Mount point and file system of every mount of this namespace."""
    found = set()
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            found.add(f"mount {fields[4]} ({fields[fields.index('-') + 1]})")
    # The directories of pinned namespaces are made mounts of their own once per host, as ip-netns(8) does.
    return {mount for mount in found if not mount.startswith(("mount /run/netns (", "mount /run/kurma/userns ("))}


def _of_another_run(path, ours):
    """Whether a pod lives in a cgroup that is none of this run's: hierarchies are shared by the whole machine, and
    what a pod has mounted tells where its state is kept."""
    for directory, _, _ in os.walk(path):
        try:
            with open(f"{directory}/cgroup.procs") as file:
                pids = file.read().split()
            for pid in pids:
                with open(f"/proc/{pid}/mountinfo") as file:
                    text = file.read()
                if "/pods/" in text:
                    return f"{ours}/" not in text
        except OSError:
            continue
    return False


def _cgroups(ours):
    """The pods' cgroups on every hierarchy."""
    found = set()
    base = "/sys/fs/cgroup"
    for hierarchy in [base, *[f"{base}/{name}" for name in _named(base)]]:
        for pod in _named(f"{hierarchy}/kurma"):
            path = f"{hierarchy}/kurma/{pod}"
            if os.path.isdir(path) and not _of_another_run(path, ours):
                found.add(f"cgroup {path}")
    return found


def _children():
    """Our own children, dead ones too."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return {f"child process {pid}" for pid in file.read().split()}


def _state(ours):
    """:param ours: this run's directory for temporary files."""
    return (
        _mounts()
        | _cgroups(ours)
        | {f"network namespace {name}" for name in _named("/run/netns")}
        | {f"link {name}" for name in _named("/proc/sys/net/ipv4/conf") if name.startswith("veth")}
        | _children()
    )


@pytest.fixture(scope="session", autouse=True)
def own_host(request):
    """Root tests make mounts, namespaces and networks: never on the machine itself."""
    if not any(item.get_closest_marker("root") for item in request.session.items):
        return
    if os.geteuid() != 0 or os.environ.get("KURMA_TEST_HOST") != "1":
        pytest.fail("these tests need root and a host of their own: ./dev test", pytrace=False)


@pytest.fixture(autouse=True)
def nothing_left(own_host, tmp_path_factory):
    """Mounts, namespaces, cgroups, links and processes are, after each test, as they were before it."""
    ours = str(tmp_path_factory.getbasetemp())
    before = _state(ours)
    yield
    deadline = time.monotonic() + _PATIENCE
    while (left := _state(ours) - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, f"the test left behind: {', '.join(sorted(left))}"
