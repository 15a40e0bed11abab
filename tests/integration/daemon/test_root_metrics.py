"""What the daemon measures, as a server of Prometheus reads it; whether it is well; and its answers, held to its
own description."""

import json
import socket
import subprocess

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kurma_testing.graphs import examples
from prometheus_client.parser import text_string_to_metric_families
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

from kurma_core.client.remote.http import Connection
from tests.kit.waiting import until

pytestmark = pytest.mark.root


def get(daemon, path):
    with Connection.open(daemon.socket) as connection:
        answer = connection.request("GET", path)
        return answer.status, answer.headers, answer.read()


def figures(daemon):
    """Values by (name, labels)."""
    status, headers, body = get(daemon, "/metrics")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = text_string_to_metric_families(body.decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_figures_of_pods_and_of_the_daemon(kurmad, ask):
    daemon = kurmad()
    client = ask(daemon)
    record = client.prepare(daemon.house.request("x=$(head -c 16000000 /dev/zero | tr '\\0' a); sleep 1000"))
    client.launch(record.uuid)
    own = (("name", record.name), ("pod", record.uuid))
    until(lambda: figures(daemon)["kurma_pod_memory_bytes", own] > 8_000_000)
    found = figures(daemon)
    assert found["kurma_pods", (("state", "running"),)] == 1
    assert found["kurma_pod_pids", own] >= 2
    assert 0 < found["kurma_pod_cpu_seconds_total", own] < 60
    assert (
        found["kurma_pod_start_seconds_count", ()]
        == found["kurma_pod_start_seconds_bucket", (("le", "+Inf"),)]
        == 1
    )
    assert 0 < found["kurma_pod_start_seconds_sum", ()] < 60
    assert found["kurma_requests_total", (("operation", "pod_start"), ("status", "200"))] == 1
    assert found["kurma_connections", (("kind", "short"),)] >= 1
    assert found["process_resident_memory_bytes", ()] > 1e7
    get(daemon, "/v1/pods/none-such")
    client.stop(record.uuid, force=True)
    found = figures(daemon)
    assert found["kurma_requests_total", (("operation", "pod"), ("status", "404"))] == 1
    assert found["kurma_pods", (("state", "running"),)] == 0
    assert ("kurma_pod_memory_bytes", own) not in found


def test_health_is_looked_at(kurmad, tmp_path, make_house):
    daemon = kurmad()
    status, _, body = get(daemon, "/healthz")
    assert (status, json.loads(body)["status"], json.loads(body)["problems"]) == (200, "ok", [])
    state = daemon.house.state
    subprocess.run(["mount", "--bind", state, state], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", state], check=True)
        inside = ["nsenter", "-t", str(daemon.process.pid), "-m", "true"]
        subprocess.run(inside, check=True)
        status, _, body = get(daemon, "/healthz")
        (problem,) = json.loads(body)["problems"]
        assert (status, "Read-only file system" in problem) == (503, True)
    finally:
        subprocess.run(["umount", state], check=True)
    assert get(daemon, "/healthz")[0] == 200


class Unix(HTTPAdapter):
    """Requests over a unix socket."""

    def __init__(self, path):
        self.path = path
        super().__init__()

    def get_connection_with_tls_context(self, request, verify, proxies=None, cert=None):
        path = self.path

        class Through(HTTPConnection):
            def connect(self):
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.settimeout(10)
                self.sock.connect(path)

        class Pool(HTTPConnectionPool):
            ConnectionCls = Through

        return Pool("kurmad")


def test_answers_are_what_the_description_says(kurmad):
    """Right and wrong requests that schemathesis makes of it. Only such as look: one that changes something would
    be root's own word, and may mount or remove whatever it names."""
    daemon = kurmad()
    _, _, body = get(daemon, "/v1/openapi.json")
    schema = schemathesis.openapi.from_dict(json.loads(body))
    schema.config.update(base_url="http://kurmad")
    looking = [
        result.ok()
        for result in schema.get_all_operations()
        if result.ok().method == "get" and not result.ok().path.endswith(("/wait", "/events", "/archive", "/logs"))
    ]
    assert len(looking) >= 8
    asked = set()
    with requests.Session() as session:
        session.mount("http://kurmad", Unix(daemon.socket))

        @settings(
            max_examples=examples(20),
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.one_of([operation.as_strategy() for operation in looking]))
        def held(case):
            asked.add(case.operation.path)
            response = case.call(session=session, timeout=20)
            assert response.status_code < 500, (case.as_curl_command(), response.text)
            case.validate_response(response)

        held()
    assert len(asked) >= 6
    assert get(daemon, "/healthz")[0] == 200
