"""Pods that a program manages: others see them by their display name, and change them by force alone (C4)."""

import pytest

from kurma_core.errors import AmbiguousReferenceError, PodManagedError, UsageError
from tests.kit.house import both_ways

pytestmark = pytest.mark.root

NAME = "shop/web"
ANNOTATIONS = [
    {"name": "kurma.io/manager", "value": "conductor"},
    {"name": "kurma.io/display-name", "value": NAME},
]


@both_ways
def test_a_managed_pod_is_changed_by_its_manager_or_by_force(house):
    client = house.client
    record = client.prepare(house.request("sleep 1000", annotations=ANNOTATIONS))
    assert (record.manager, record.display_name) == ("conductor", NAME)
    assert [pod.display_name for pod in client.summaries() if pod.uuid == record.uuid] == [NAME]
    assert client.pod(NAME).uuid == record.uuid
    refused = (
        lambda: client.rm(NAME, force=True),
        lambda: client.stop(NAME),
        lambda: client.kill(NAME),
        lambda: client.kill(NAME, 10, "main"),
        lambda: house.start(NAME),
        lambda: client.app_add(NAME, house.request("true")),
        lambda: client.app_start(NAME, "main"),
        lambda: client.app_stop(NAME, "main", force=True),
        lambda: client.app_rm(NAME, "main", force=True),
        lambda: client.app_reopen_log(NAME, "main"),
        lambda: client.app_update(NAME, "main", {"os/linux/oom-score-adj": 5}),
        lambda: client.pod_annotate(NAME, set={"example.com/owner": "lab"}),
    )
    for change in refused:
        with pytest.raises(PodManagedError, match=rf"pod {NAME}: conductor manages it$") as caught:
            change()
        assert caught.value.data["manager"] == "conductor"
    client.managing().rm(NAME)
    assert record.uuid not in {pod.uuid for pod in client.summaries()}


def test_the_command_line_names_the_manager(house):
    """By its display name the pod is shown, entered, measured, and told of by its logs."""
    kurma = house.kurma
    run = house.launch("echo started; sleep 1000", annotations=ANNOTATIONS)
    assert NAME in kurma.out("list")
    shown = kurma.out("show", NAME)
    assert "conductor" in shown
    assert run.uuid in shown
    assert kurma.out("logs", NAME) == kurma.out("logs", f"{NAME}/main") == "started\n"
    assert kurma.out("enter", NAME, "echo", "inside") == "inside\n"
    assert NAME in kurma.out("stats", "--no-stream", NAME)
    done = kurma("stop", NAME)
    assert done.returncode == 125
    assert f"kurma: cannot stop pod {NAME}: conductor manages it" in done.stderr
    assert "--force" in done.stderr
    assert kurma("stop", "--all").returncode == 0
    assert kurma.pod(NAME)["state"] == "running"
    kurma.out("stop", "--force", NAME)
    run.process.wait()
    # Not by the command, which starts a kurmad for it.
    with pytest.raises(PodManagedError, match=f"cannot restart pod {NAME}: conductor manages it"):
        house.client.stop(NAME, again=True)
    # The end of a managed pod is its manager's business, however old it is.
    assert "1 ended pod of conductor: left for conductor to remove" in kurma.out("gc", "--grace-period", "0s")
    assert "would be removed" not in kurma.out("gc", "--grace-period", "0s", "--dry-run")
    assert kurma.pod(NAME)["state"] in ("stopped", "errored")
    kurma.out("rm", "--force", NAME)


def test_a_display_name_of_several_pods_is_the_live_ones(house):
    first = house.client.prepare(house.request("sleep 1000", annotations=ANNOTATIONS))
    with house.running(annotations=ANNOTATIONS) as second:
        assert house.client.pod(NAME).uuid == second.uuid
    with pytest.raises(AmbiguousReferenceError, match="2 pods have this display name"):
        house.client.pod(NAME)
    for uuid in (first.uuid, second.uuid):
        house.client.managing().rm(uuid)


def test_a_display_name_is_one_line(house):
    annotations = [{"name": "kurma.io/display-name", "value": "two\nlines"}]
    with pytest.raises(UsageError, match=r"kurma\.io/display-name: 'two.*nlines' is not a name"):
        house.client.prepare(house.request("true", annotations=annotations))
