"""Where the logs of a pod's apps are, and what the annotations may say."""

import pytest

from kurma_core.appc.pod import PodManifest
from kurma_core.errors import StagerError, UsageError
from kurma_core.hookspecs.stager import StagerFeatures
from kurma_core.pods import log_places
from kurma_core.pods.log_places import OutsideLog

IMAGE = {"id": "sha512-" + "0" * 128}


def pod(directory=None, **paths):
    def notes(name, value):
        return {} if value is None else {"annotations": [{"name": name, "value": value}]}

    apps = [{"name": name, "image": IMAGE, **notes("kurma.io/log-path", path)} for name, path in paths.items()]
    document = {"acKind": "PodManifest", "acVersion": "0.8.11", "apps": apps}
    return PodManifest.parse({**document, **notes("kurma.io/log-dir", directory)})


def test_places():
    given = pod("/var/log/pod/", a=None, b="x/b.log", c="")
    assert [log_places.log_path(given, app) for app in given.apps] == ["a.log", "x/b.log", ""]
    found = log_places.outside_logs(given.to_json())
    root = "/var/log/pod"
    assert found == {"a": OutsideLog(root, "a.log"), "b": OutsideLog(root, "x/b.log"), "c": None}
    assert found["b"].whole == "/var/log/pod/x/b.log"
    assert log_places.outside_logs(pod(a=None, b="").to_json()) == {"b": None}


@pytest.mark.parametrize("path", ["/a", "../a", "a/../b", "a//b", "a/", ".", "a\nb", "x" * 1025])
def test_paths_that_are_refused(path):
    given = pod("/logs", a=path)
    with pytest.raises(UsageError, match="app a: its annotation"):
        log_places.check_path(given, given.apps[0])


def test_two_apps_with_one_log():
    given = pod("/logs", a=None, b="a.log")
    with pytest.raises(UsageError, match="same log"):
        log_places.check_path(given, given.apps[1])
    for other in (pod("/logs", a="", b=""), pod(a=None, b=None)):
        log_places.check_path(other, other.apps[1])


@pytest.mark.parametrize("directory", ["logs", "/", "/state", "/state/pods", "//"])
def test_directories_that_are_refused(directory):
    with pytest.raises(UsageError, match="log"):
        log_places.check_directory(pod(directory, a=None), "/state")


def test_stagers_that_cannot():
    class Driver:
        def __init__(self, able):
            self._able = able

        def features(self):
            return StagerFeatures(log_directories=self._able)

    for given in (pod("/logs", a=None), pod(a="")):
        with pytest.raises(StagerError, match="stager rkt does not write logs where"):
            log_places.check_stager(Driver(False), "rkt", given)
        log_places.check_stager(Driver(True), "default", given)
    log_places.check_stager(Driver(False), "rkt", pod(a=None))
