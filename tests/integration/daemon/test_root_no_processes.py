"""A cgroup's ``pids.max`` is reached: one clear line, nothing is lost, and kurmad goes on (E8)."""

import os
import signal
import subprocess

import pytest

from tests.kit.command import KURMA
from tests.kit.images import shell
from tests.kit.waiting import alive, until

pytestmark = [pytest.mark.root, pytest.mark.full]

LIMIT = "the limit of processes and threads is reached"


class Group:
    """A cgroup whose processes and threads are limited."""

    def __init__(self):
        base = "/sys/fs/cgroup/pids" if os.path.isdir("/sys/fs/cgroup/pids") else "/sys/fs/cgroup"
        self._path = f"{base}/kurma-test-{os.getpid()}"
        os.mkdir(self._path)

    def limit(self, count):
        with open(f"{self._path}/pids.max", "w") as file:
            file.write(str(count))

    def current(self):
        with open(f"{self._path}/pids.current") as file:
            return int(file.read())

    def enter(self):
        with open(f"{self._path}/cgroup.procs", "w") as file:
            file.write("0")

    def wrap(self):
        """A program that executes its arguments inside."""
        return ["/bin/sh", "-c", f'echo $$ > {self._path}/cgroup.procs; exec "$@"', "sh"]

    def remove(self):
        until(lambda: self.current() == 0, "an empty cgroup")
        os.rmdir(self._path)


@pytest.fixture
def group():
    made = Group()
    yield made
    made.remove()


def kurma(house, *words, group=None):
    """The command: its exit code, and what it says, without notes on unverified images."""
    command = [*KURMA, "--dir", house.state, "--config", house.config_file]
    done = subprocess.run(
        [*(group.wrap() if group else ()), *command, *words],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    return done.returncode, [line for line in done.stderr.splitlines() if "are not verified" not in line]


def says_so(answer):
    code, said = answer
    assert (code, len(said)) == (125, 2), said
    line, hint = said
    assert line.startswith("kurma: ")
    assert LIMIT in line or "kurmad cannot start a thread: the host's limit is reached" in line
    assert hint.startswith("  hint: ")
    assert "TasksMax=" in hint


def run(house):
    return ("run", "--insecure-options=image", house.image, "--exec", "/bin/true")


def nothing_left(house, keep=()):
    for uuid in set(house.uuids()) - set(keep):
        house.client.rm(uuid)
        assert not os.path.exists(f"/run/netns/kurma-{uuid}")
        assert not os.path.exists(f"/sys/fs/cgroup/kurma/{uuid}")


def test_a_daemon_that_a_command_starts(group, make_house):
    house = make_house()
    for limit in range(1, 5):
        group.limit(limit)
        command, *words = run(house)
        says_so(kurma(house, command, "-d", *words, group=group))
        nothing_left(house)


def test_kurmad(group, make_house, kurmad, ask):
    house = make_house({"daemon": {"prestarted_stagers": 0}})
    group.limit("max")
    daemon = kurmad(house=house, wrap=group.wrap())
    client = ask(daemon)
    pod = client.prepare(house.request("while :; do sleep 0.02; done"), start=True)
    # With room for that many more.
    for more in range(6):
        group.limit(group.current() + more)
        for words in (("list",), ("enter", pod.uuid, "--", "true"), run(house)):
            answer = kurma(house, *words)
            if answer[0]:
                says_so(answer)
    group.limit(1)

    def refused():
        answer = kurma(house, "list")
        return answer if answer[0] else None

    # A thread that kurmad has from earlier requests may answer this one, until it ends.
    says_so(until(refused, "a request that is refused"))
    # A pod that ends is taken down all the same.
    pid = house.state_of(pod.uuid)["stager"]["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "its end")
    until(lambda: house.state_of(pod.uuid)["state"] == "errored", "its record")
    group.limit("max")
    assert client.pod(pod.uuid).state == "errored"
    nothing_left(house)
    said = daemon.log.read_text()
    assert "Traceback" not in said
    assert "internal error" not in said


@pytest.mark.parametrize(
    ("of_app", "of_pod", "said"),
    [
        (5, None, (2, "sh: can't fork: Resource temporarily unavailable\n")),
        (None, 9, (125, "kurma: cannot start a process: the pod has as many as its limit allows\n")),
    ],
)
def test_a_command_in_a_pod_at_its_limit(make_house, of_app, of_pod, said):
    house = make_house()
    greedy = "(while :; do sleep 1000 & done) 2> /dev/null; sleep 1000 & echo ready; wait"
    with house.running({"main": shell(greedy, **_limited(of_app))}, **_limited(of_pod)) as pod:
        until(lambda: "ready" in house.log(pod), "its processes")
        code, out, errors = house.enter(pod.uuid, "sh", "-c", "true | true")
        assert (code, errors, out) == (*said, "")


def _limited(count):
    return {} if count is None else {"isolators": [{"name": "kurma.io/pids-limit", "value": {"limit": count}}]}
