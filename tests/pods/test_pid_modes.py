"""The annotation for an app's PID namespace, and stagers that give apps only the pod's (C8)."""

import pytest

from kurma_core.appc.pod import PodManifest
from kurma_core.errors import ManifestError, StagerError
from kurma_core.hookspecs.stager import StagerFeatures
from kurma_core.pods.prepare.pid_modes import check_stager, pid_mode


class Driver:
    """A stager with these features."""

    def __init__(self, **features):
        self._features = StagerFeatures(**features)

    def features(self):
        return self._features


def apps(word):
    notes = [] if word is None else [{"name": "kurma.io/pid", "value": word}]
    app = {"name": "main", "image": {"id": f"sha512-{'0' * 128}"}, "annotations": notes}
    return PodManifest.parse({"acKind": "PodManifest", "acVersion": "0.8.11", "apps": [app], "volumes": []}).apps


@pytest.mark.parametrize("word", ["pod", "own", "host", "app:other"])
def test_the_words(word):
    assert pid_mode(apps(word)[0]) == word
    check_stager(Driver(pid_namespaces=True), "s", apps(word))
    if word == "pod":
        check_stager(Driver(), "s", apps(word))
        return
    with pytest.raises(StagerError, match=f"stager s cannot give app main the PID namespace {word}"):
        check_stager(Driver(), "s", apps(word))


def test_others():
    assert pid_mode(apps(None)[0]) == "pod"
    check_stager(Driver(), "s", apps(None))
    for word in ("", "private", "app", "APP:x"):
        with pytest.raises(ManifestError, match=r"annotation kurma\.io/pid: expected pod, own, host or app:NAME"):
            pid_mode(apps(word)[0])
