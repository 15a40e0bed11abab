"""Requests that change something, right ones and wrong ones as schemathesis makes them of the API's description:
none is a mistake in kurmad, each answer is as described, and nothing is left of what they have made."""

import json
import os
import random

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import positive_data_acceptance

from kurma_core.client.remote.http import Connection
from tests.integration.daemon.soak_remains import Remains
from tests.integration.daemon.test_root_adoption import started
from tests.integration.daemon.test_root_metrics import Unix, get
from tests.kit.kurmad import Kurmad, ended
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.full]

#: Requests of each operation.
_EACH = 4
#: What runs every test of a stager, and what takes no JSON.
_LEFT = ("/stagers/check", "/images/upload")
#: The daemon's own view: of the host it may change its state directory alone, whatever it is asked for.
_SAFE = 'mount --bind "$0" "$0" && mount -t tmpfs tmpfs /var/tmp && mount -o remount,bind,ro / && exec "$@"'


@pytest.fixture
def safe(make_house):
    house = make_house({"stop_timeout": 1})
    wrapped = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", _SAFE, house.state]
    daemon = Kurmad(house, wrap=wrapped)
    try:
        yield daemon
    finally:
        remove_all(house)
        ended(daemon)


def remove_all(house):
    for record in house.client.pods():
        house.client.rm(record.uuid, force=True)


def mounts(daemon):
    """In its own view."""
    with open(f"/proc/{daemon.process.pid}/mountinfo") as file:
        # Stagers that wait have namespaces.
        return {line.split()[4] for line in file if not line.split()[4].startswith("/run/netns")}


def changing(daemon):
    schema = schemathesis.openapi.from_dict(json.loads(get(daemon, "/v1/openapi.json")[2]))
    schema.config.update(base_url="http://kurmad")
    found = [result.ok() for result in schema.get_all_operations()]
    found = [one for one in found if one.method != "get" and not one.path.endswith(_LEFT)]
    # Pods are made before anything is asked of them, and removed in the end.
    return sorted(found, key=lambda one: (one.path != "/v1/pods", one.method == "delete"))


class Asked:
    """Requests of which some name what there is."""

    def __init__(self, daemon, session):
        self.daemon = daemon
        self.session = session
        self.house = daemon.house
        self.statuses = {}
        self.wrong = []
        self._random = random.Random(1)
        self._body = self._pod()

    def _pod(self):
        return self.house.request("sleep 1000", ephemeral=False).to_json()

    def __call__(self, case):
        draw = self._random
        known = [record.uuid for record in self.house.client.pods()]
        if "pod" in case.path_parameters and known and draw.random() < 0.8:
            case.path_parameters["pod"] = draw.choice(known)
            if "app" in case.path_parameters:
                case.path_parameters["app"] = "main"
        if "image" in case.path_parameters and draw.random() < 0.5:
            case.path_parameters["image"] = "example.com/busybox"
        where = f"{case.operation.method.upper()} {case.operation.path}"
        if where == "POST /v1/pods" and draw.random() < 0.7:
            case.body = {**self._body, **({"name": "no Name"} if draw.random() < 0.2 else {})}
        response = case.call(session=self.session, timeout=20)
        self.statuses.setdefault(where, set()).add(response.status_code)
        if response.status_code >= 500:
            self.wrong.append((case.as_curl_command(), response.text))
            return
        try:
            # What its schema allows may be wrong all the same.
            case.validate_response(response, excluded_checks=[positive_data_acceptance])
        except FailureGroup as failed:
            self.wrong.append((case.as_curl_command(), *map(str, failed.exceptions)))


def _some_of(operation, asked):
    @seed(int(os.environ.get("KURMA_TEST_SEED", "1")))
    @settings(
        max_examples=_EACH,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy())
    def held(case):
        asked(case)

    held()


def test_no_request_is_a_mistake(safe):
    daemon = safe
    house = daemon.house
    remains = Remains(house, daemon)
    before, mounted = remains.there(), mounts(daemon)
    for script in ("sleep 1000", "exit 3"):
        started(daemon, script)
    operations = changing(daemon)
    assert len(operations) > 20
    with requests.Session() as session:
        session.mount("http://kurmad", Unix(daemon.socket))
        asked = Asked(daemon, session)
        for operation in operations:
            _some_of(operation, asked)
    assert asked.wrong == []
    assert len(asked.statuses) == len(operations)
    assert {200, 400} <= asked.statuses["POST /v1/pods"]
    assert 200 in asked.statuses["POST /v1/pods/{pod}/stop"]
    assert 200 in asked.statuses["DELETE /v1/pods/{pod}"]
    _stopped_in_years(daemon)
    assert get(daemon, "/healthz")[0] == 200
    remove_all(house)
    log = daemon.log.read_text()
    assert "Traceback" not in log, log
    until(lambda: set(mounts(daemon)) <= mounted, "its mounts as they were")
    ended(daemon)
    assert _more(remains, before) == []
    remains.names.close()


def _stopped_in_years(daemon):
    """Whoever waits may be ready to wait for longer than poll(2) can count; so may the stager."""
    uuid = started(daemon, "trap 'exit 3' TERM; echo up; while :; do sleep 0.1; done")
    house = daemon.house
    until(lambda: "up" in house.log(house.client.pod(uuid)), "the trap")
    with Connection.open(daemon.socket) as connection:
        for what in ("apps/main/stop", "stop"):
            answer = connection.request("POST", f"/v1/pods/{uuid}/{what}?timeout=900000000")
            said = json.loads(answer.read())
            assert answer.status == 200, said
    assert (said["state"], said["exitCode"]) == ("stopped", 3)


def _more(remains, before):
    """But for files that are not of pods: places are made when they are needed first."""
    new = set(remains.there()) - set(before)
    return sorted(line for line in new if not line.startswith(("file ", "directory ")) or "/pods/" in line)
