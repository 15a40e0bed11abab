"""The default stager as a stage1 image, driven by nothing but what the implementor's guide says (Z9)."""

import pytest

from tests.integration.stage1.laid_out import BareHost

pytestmark = pytest.mark.root


def shell(name, script, **more):
    return {"name": name, "app": {"exec": ["/bin/sh", "-c", script], "user": "0", "group": "0", **more}}


@pytest.fixture(scope="module")
def host(tmp_path_factory, exported):
    return BareHost(tmp_path_factory.mktemp("bare"), exported)


def test_an_app_runs_and_its_code_is_kept(host):
    pod = host.pod(shell("web", "echo out; echo err >&2; exit 7"))
    assert pod.run("--net=host") == (7, "out\n", "err\n")
    assert pod.statuses == {"web": 7}
