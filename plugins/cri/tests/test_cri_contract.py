"""The service against the contract of all services (C1), and its options (C3)."""

import kurma_cri.plugin
import pytest
from kurma_cri.options import OPTIONS, Options
from kurma_testing.services import ServiceContract

from kurma_core.errors import ConfigError

DEFAULTS = {option.name: option.default for option in OPTIONS}


@pytest.mark.root
@pytest.mark.kurma_driver(kurma_cri.plugin)
class TestCri(ServiceContract):
    @pytest.fixture
    def options(self, tmp_path):
        return {"socket": f"{tmp_path}/cri.sock"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"socket": "cri.sock"}, "absolute"),
        ({"stream_port": 70000}, "65535"),
        ({"handlers": {"rkt": {"stagr": "rkt"}}}, "stagr"),
        ({"handlers": {"rkt": "rkt"}}, "object"),
        ({"handlers": {"rkt": {"stager": 7}}}, "text"),
        ({"handlers": {"own": {"userns": "maybe"}}}, "maybe"),
    ],
)
def test_wrong_options(changes, words):
    with pytest.raises(ConfigError, match=words):
        Options.read({**DEFAULTS, **changes})


def test_handlers():
    options = Options.read({**DEFAULTS, "handlers": {"rkt": {"stager": "rkt"}}})
    assert {name: one.stager for name, one in options.handlers.items()} == {"": None, "rkt": "rkt"}
