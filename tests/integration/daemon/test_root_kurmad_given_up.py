"""A client that goes away cancels what it asked for, and nothing that others did."""

import os
import subprocess

import pytest

from plugins.fetch_docker.tests.docker_parts import BLOB, serve
from tests.kit.command import KURMA
from tests.kit.waiting import until

pytestmark = pytest.mark.root


def test_a_client_that_goes_away_cancels_its_fetch_and_nobody_elses(kurmad, server):
    """Two wait for one image. The one that reads it is killed: its pod is undone at once, though the server says
    nothing; the other reads the image, and has its pod."""
    daemon = kurmad()
    locator = serve(server)
    server.pages[BLOB].delay = 60.0  # longer than anybody waits here
    pods = f"{daemon.house.state}/pods"

    def there():
        return [name for name in os.listdir(pods) if len(name) == 36] if os.path.isdir(pods) else []

    def prepare():
        words = ["--dir", daemon.house.state, "--config", daemon.house.config_file, "prepare", "--net", "none"]
        command = [*KURMA, *words, locator]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    first = prepare()
    until(lambda: server.requests(BLOB))
    (given_up,) = there()
    second = prepare()
    until(lambda: len(there()) == 2)
    server.pages[BLOB].delay = 0.0
    assert second.poll() is None
    first.kill()
    first.communicate()
    until(lambda: given_up not in there())
    out, err = second.communicate(timeout=20)
    assert second.returncode == 0, err
    assert there() == [out.strip()]
    assert len(server.requests(BLOB)) == 2
    assert daemon.process.poll() is None
    assert "mistake" not in daemon.log.read_text()
