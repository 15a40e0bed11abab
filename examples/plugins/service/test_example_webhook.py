"""The example service, against the contract of all services."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import MappingProxyType

import kurma_example_webhook
import pytest
from kurma_testing import driver_context, load_driver
from kurma_testing.services import ServiceContract

from kurma_core.api.host import Event
from kurma_core.errors import ConfigError
from kurma_core.hookspecs.driver import HostCheck

EVENTS = [Event(number, "2024-02-29T12:00:00Z", "pod", "running", "146d7cef", "web", {}) for number in (7, 8, 9)]


def events(before):
    """The client's ``events``.

    :param before: events that have happened before the first start; the others of ``EVENTS`` happen later.
    """

    def find(since=None, *, follow=False, **_):
        return iter([event for event in EVENTS if event.seq > (since or 0)] if follow else before)

    return find


@pytest.fixture
def posted() -> Iterator[tuple[str, list[object]]]:
    """The address of a server, and what was posted to it. It refuses the name ``refused``."""
    bodies: list[object] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if self.path == "/refused" else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", bodies
        server.shutdown()


@pytest.mark.kurma_driver(kurma_example_webhook)
class TestWebhook(ServiceContract):
    config = MappingProxyType({"url": "http://127.0.0.1:1/"})

    @pytest.fixture
    def options(self, posted):
        return {"url": posted[0]}

    def test_each_event_is_posted_once(self, driver, posted, tmp_path):
        """Of those since the first start."""
        for _ in range(2):
            with self.serving(driver, {"events": events(EVENTS[:1])}) as serving:
                self.wait_ready(serving)
                assert serving.wait()
        assert [event["seq"] for event in posted[1]] == [8, 9]

    def test_a_refused_event_comes_again(self, driver, posted):
        driver.reload({"url": f"{posted[0]}refused"})
        for _ in range(2):
            with self.serving(driver, {"events": events([])}) as one:
                self.wait_ready(one)
                one._thread.join(self.patience)
                assert "500" in str(one.error)
        assert [event["seq"] for event in posted[1]] == [7, 7]


def test_its_checks(tmp_path, posted):
    def check(url):
        (found,) = kurma_example_webhook.kurma_checks(driver_context(tmp_path, {"url": url}))
        return found

    assert check(posted[0]) == HostCheck("address", True, "127.0.0.1 can be reached")
    assert not check("http://127.0.0.1:1/").ok
    assert not check("").ok


def test_an_address_is_needed(tmp_path):
    with pytest.raises(ConfigError, match="url"):
        load_driver(kurma_example_webhook, tmp_path)
