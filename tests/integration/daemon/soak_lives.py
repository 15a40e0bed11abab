"""The lives of pods under a daemon that is killed all the time. Each knows beforehand how its app ends and what it
writes, and looks for that."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import time
import uuid as uuids

from kurma_core.api.pods import EnterRequest
from kurma_core.errors import KurmaError, PodNotFoundError, PodStateError
from kurma_core.models.network import NetworkRequest
from kurma_core.models.streams import Stdio
from kurma_core.value import replace
from tests.kit.command import KURMA

_LINES = "i=0; while [ $i -lt {} ]; do i=$((i+1)); echo line $i; {} done; "
_WAITS = "echo up; while :; do sleep 0.1; done"


class Life:
    """One pod.

    :param caller: see soak_caller. :param seed: of all that is random about it.
    """

    #: By how much it is more frequent than others.
    weight = 1

    def __init__(self, caller, seed):
        self.caller = caller
        self.random = random.Random(seed)
        self.uuid = str(uuids.UUID(int=self.random.getrandbits(128), version=4))
        self.net = self.random.choice(["default", "none"])
        self.code = self.random.choice([0, self.random.randint(1, 255)])
        self.count = self.random.randint(0, 40)
        #: How the record says that it has ended, and what its log says.
        self.state = "stopped"
        self.log = [f"line {number + 1}" for number in range(self.count)]

    def request(self, app, **options):
        return self.caller.house.request(
            {"main": app}, net=None, networks=(NetworkRequest(self.net),), uuid=self.uuid, **options
        )

    def written(self, pause=""):
        return _LINES.format(self.count, pause)

    def up(self, app):
        """Made and started."""
        record = self.caller.make(self.request(app))
        assert (record.uuid, record.state) == (self.uuid, "prepared"), record
        self.caller.start(self.uuid)

    def app_code(self):
        return self.code

    def live(self):
        raise NotImplementedError

    def check(self):
        """That it is on record as it was."""
        record = self.caller.pod(self.uuid)
        told = (record.state, record.exit_code, [app.exit_code for app in record.apps])
        assert told == (self.state, self.code, [self.app_code()]), f"{told}, {record.reason}"
        lines = self.caller.lines(self.uuid)
        assert lines == self.log, f"{len(lines)} lines, and not {len(self.log)}: {lines[:3]}…{lines[-3:]}"


class Short(Life):
    weight = 30

    def live(self):
        self.up(f"{self.written()} exit {self.code}")
        record = self.caller.wait(self.uuid)
        assert record.exit_code == self.code, f"{record.state}, {record.exit_code}, {record.reason}"


class Long(Life):
    weight = 15

    def live(self):
        self.up(f"{self.written('sleep 0.1;')} exit {self.code}")
        self.caller.wait(self.uuid)


class Begun(Life):
    """Made and started by one request: of a stager that waits, if there is one."""

    weight = 30

    def live(self):
        app = f"{self.written(self.random.choice(['', 'sleep 0.02;']))} exit {self.code}"
        self.uuid = self.caller.begin(replace(self.request(app), uuid=None, name=f"begun-{self.uuid[:13]}"))
        self.caller.wait(self.uuid)


class Held(Life):
    """As that; it is stopped."""

    weight = 5

    def live(self):
        self.log += ["up", "bye"]
        app = f"trap 'echo bye; exit {self.code}' TERM; {self.written()}{_WAITS}"
        self.uuid = self.caller.begin(replace(self.request(app), uuid=None, name=f"held-{self.uuid[:13]}"))
        self.caller.follow(self.uuid, until="up")
        self.caller.stop(self.uuid)


class Unseen(Life):
    """Nobody waits for it."""

    weight = 8

    def live(self):
        self.up(f"{self.written('sleep 0.02;')} exit {self.code}")
        while self.caller.pod(self.uuid).state in ("starting", "running", "stopping"):
            time.sleep(0.2)


class Failing(Life):
    """There is no such program."""

    weight = 8

    def live(self):
        self.code, self.log = 127, []
        self.up({"exec": ["/nowhere/program"], "user": "0", "group": "0"})
        self.caller.wait(self.uuid)

    def check(self):
        super().check()
        assert self.caller.pod(self.uuid).apps[0].message == "/nowhere/program: not found"


class Stopped(Life):
    weight = 12

    def live(self):
        how = self.random.choice(["trapped", "plain", "stubborn", "force"])
        # By force, the stager is killed: nobody is there to see the app's end.
        self.state = "errored" if how == "force" else "stopped"
        traps = {"trapped": f"trap 'echo bye; exit {self.code}' TERM; ", "stubborn": "trap '' TERM; "}
        self.log += ["up", "bye"] if how == "trapped" else ["up"]
        if how != "trapped":
            self.code = 143 if how == "plain" else 137
        waits = "echo up; exec sleep 1000" if how == "plain" else _WAITS
        self.up(traps.get(how, "") + self.written() + waits)
        self.caller.follow(self.uuid, until="up")
        self.caller.stop(self.uuid, force=how == "force")

    def app_code(self):
        return None if self.state == "errored" else self.code


class Killed(Life):
    weight = 8

    def live(self):
        number = self.random.choice([signal.SIGUSR1, signal.SIGKILL])
        self.log.append("up")
        self.up(f"trap 'exit {self.code}' USR1; {self.written()}{_WAITS}")
        self.caller.follow(self.uuid, until="up")
        # The answer may be lost: what was killed is known by its end.
        with contextlib.suppress(PodStateError, PodNotFoundError, KurmaError):
            self.caller.ask(lambda client: client.kill(self.uuid, int(number)))
        if number == signal.SIGKILL:
            self.code = 137
        self.caller.wait(self.uuid)


class Followed(Life):
    weight = 8

    def live(self):
        self.up(f"{self.written('sleep 0.05;')} exit {self.code}")
        seen = self.caller.follow(self.uuid).splitlines()
        assert seen == self.log, f"followed: {len(seen)} lines, and not {len(self.log)}"
        self.caller.wait(self.uuid)


class Entered(Life):
    weight = 6

    def live(self):
        self.log.append("up")
        self.up(f"trap 'exit {self.code}' TERM; {self.written()}{_WAITS}")
        self.caller.follow(self.uuid, until="up")
        for _ in range(2):
            code = self.random.randint(0, 100)
            fd = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            try:
                request = EnterRequest(exec=("/bin/sh", "-c", f"exit {code}"))
                got = self.caller.ask(
                    lambda client, request=request, fd=fd: client.enter(self.uuid, request, Stdio(fd, fd, fd))
                )
            finally:
                os.close(fd)
            assert got == code, f"entered: {got}, and not {code}"
        self.caller.stop(self.uuid)


class Commanded(Life):
    """Run by `kurma run`. If the daemon dies that says so; the pod goes on, or is undone."""

    def run(self, *words):
        """:returns: what the command has become; None: the daemon has died, and the pod runs, or has."""
        house, name = self.caller.house, f"{type(self).__name__.lower()}-{self.uuid[:8]}"
        which = ["--dir", house.state, "--config", house.config_file, "--host", f"unix:{self.caller.socket}"]
        script = f"{self.written('sleep 0.03;')} exit {self.code}"
        template = json.dumps(house.template({"main": script}, net=self.net)).encode()
        command = [
            *KURMA,
            *which,
            "run",
            "--pod",
            "-",
            "--name",
            name,
            *words,
        ]
        while True:
            done = subprocess.run(command, input=template, capture_output=True, check=False)
            lost = re.search(rb"the daemon at|cannot reach the daemon", done.stderr)
            try:
                self.uuid = self.caller.pod(name).uuid
            except PodNotFoundError:
                if lost is None:
                    raise AssertionError(f"there is no pod: {done}") from None
                continue  # it came to nothing
            if lost is None:
                return done
            try:
                self.caller.start(self.uuid)
            except PodNotFoundError:
                continue  # as well
            shown = done.stdout.decode().splitlines()
            assert words or shown == self.log[: len(shown)], f"shown: {shown[:3]}…{shown[-3:]}"
            return None


class Attached(Commanded):
    weight = 8

    def live(self):
        done = self.run()
        if done is not None:
            shown = done.stdout.decode().splitlines()
            assert (done.returncode, shown) == (self.code, self.log), done
        self.caller.wait(self.uuid)


class Detached(Commanded):
    weight = 5

    def live(self):
        done = self.run("--detach")
        if done is not None:
            assert (done.returncode, done.stdout.decode()) == (0, f"{self.uuid}\n"), done
        self.caller.wait(self.uuid)


class Ephemeral(Life):
    """Its end is told to who waits for it, and kept by nobody."""

    weight = 5

    def live(self):
        app = f"{self.written('sleep 0.05;')} exit {self.code}"
        record = None
        while record is None:
            try:
                self.caller.make(self.request(app, ephemeral=True))
                self.caller.start(self.uuid)
                record = self.caller.wait(self.uuid)
            except PodNotFoundError:
                break  # removed by a daemon that we did not ask
        if record is not None:
            assert record.exit_code == self.code or record.reason == "its owner died while it started", record

    def check(self):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                self.caller.pod(self.uuid)
            except PodNotFoundError:
                return
            time.sleep(0.05)
        raise AssertionError("an ephemeral pod is still there")


class Again(Life):
    """Started a second time after its end."""

    weight = 5

    def live(self):
        self.up(f"{self.written()} exit {self.code}")
        self.caller.wait(self.uuid)
        self.check()
        self.caller.start(self.uuid, self.caller.pod(self.uuid).started_at)
        self.caller.wait(self.uuid)


class Unstarted(Life):
    weight = 3

    def live(self):
        self.caller.make(self.request("true"))

    def check(self):
        record = self.caller.pod(self.uuid)
        assert (record.state, record.exit_code) == ("prepared", None)


KINDS = (
    Short,
    Long,
    Begun,
    Held,
    Unseen,
    Failing,
    Stopped,
    Killed,
    Followed,
    Entered,
    Attached,
    Detached,
    Ephemeral,
    Again,
    Unstarted,
)


def any_kind(generator):
    return generator.choices(KINDS, [kind.weight for kind in KINDS])[0]
