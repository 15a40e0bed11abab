"""The service and the command against the contracts of their kinds; the service's options."""

import kurma_dashboard.command
import kurma_dashboard.plugin
import pytest
from kurma_dashboard.options import OPTIONS, Options
from kurma_testing.commands import CommandContract
from kurma_testing.services import ServiceContract

from kurma_core.errors import ConfigError

DEFAULTS = {option.name: option.default for option in OPTIONS}


@pytest.mark.kurma_driver(kurma_dashboard.plugin)
class TestService(ServiceContract):
    @pytest.fixture
    def options(self):
        return {"listen": "127.0.0.1:0"}


@pytest.mark.kurma_driver(kurma_dashboard.command)
class TestCommand(CommandContract):
    pass


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"listen": "8910"}, "IP address"),
        ({"listen": "example.com:8910"}, "IP address"),
        ({"listen": "127.0.0.1:http"}, "port"),
        ({"listen": "127.0.0.1:70000"}, "65535"),
        ({"listen": "0.0.0.0:8910"}, "other hosts may reach"),
        ({"listen": "[::]:8910"}, "other hosts may reach"),
        ({"hosts": ["https://proxy"]}, "not a host name"),
        ({"hosts": [7]}, "not a host name"),
    ],
)
def test_wrong_options(changes, words):
    with pytest.raises(ConfigError, match=words):
        Options.read({**DEFAULTS, **changes})


@pytest.mark.parametrize(
    ("listen", "address", "port"),
    [("localhost:1", "127.0.0.1", 1), ("[::1]:8910", "::1", 8910), ("127.0.0.2:0", "127.0.0.2", 0)],
)
def test_addresses(listen, address, port):
    options = Options.read({**DEFAULTS, "listen": listen})
    assert (options.address, options.port, options.remote) == (address, port, False)


def test_other_hosts_when_allowed():
    assert Options.read({**DEFAULTS, "listen": "0.0.0.0:8910", "allow_remote": True}).remote
