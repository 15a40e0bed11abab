"""The page's data, its actions and its streams, on real pods."""

import contextlib
import os
import signal
import socket
import time

import pytest

from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

HELLO = "trap 'exit 0' TERM; echo hello; echo sorry >&2; while :; do sleep 0.1; done"


def test_pods(board):
    uuid = board.run({"one": HELLO, "two": "exit 3"}, name="web")
    until(lambda: board.pod(uuid)["apps"][1]["exitCode"] == 3)
    pod = board.pod(uuid)
    assert (pod["name"], pod["state"], pod["manager"]) == ("web", "running", None)
    assert [app["name"] for app in pod["apps"]] == ["one", "two"]
    assert pod["apps"][0]["state"] == "running"
    assert pod["apps"][0]["image"] == board.house.image
    ended = board.client.prepare(board.house.request("exit 0"), start=False).uuid
    assert [one["uuid"] for one in board.get("/api/pods").json["pods"]] == [ended, uuid]


def test_images_and_networks(board):
    images = board.get("/api/images").json
    assert board.house.image in [image["id"] for image in images]
    assert all(image["size"] > 0 and image["trust"] for image in images)
    networks = {network["name"]: network for network in board.get("/api/networks").json}
    assert "config" not in networks["default"]
    assert networks["default"]["driver"] == "bridge"


def test_volumes_and_secrets(board):
    """Both with the names of the pods that use them; of a secret, nothing else."""
    client = board.client
    client.volume_create("board-data", uid=7, gid=8, mode="0750")
    client.volume_create("board-unused")
    client.secret_create("board-key", "dmFsdWU=")
    mount = {"volume": "data", "path": "/srv"}
    app = {"app": shell("sleep 1000"), "secrets": [{"name": "board-key"}], "mounts": [mount]}
    volume = {"name": "data", "kind": "named", "volume": "board-data"}
    uuid = board.run({"main": app}, name="web", volumes=[volume])
    volumes = {one["name"]: one for one in board.get("/api/volumes", role="viewer").json}
    created = volumes["board-data"].pop("createdAt")
    assert created.startswith("20")
    assert volumes["board-data"] == {"name": "board-data", "uid": 7, "gid": 8, "mode": "0750", "pods": ["web"]}
    assert volumes["board-unused"]["pods"] == []
    assert board.get("/api/secrets", role="viewer").json == [{"name": "board-key", "pods": ["web"]}]
    client.rm(uuid, force=True)
    assert [one["pods"] for one in board.get("/api/volumes").json] == [[], []]
    assert board.post("/api/volumes").status == board.post("/api/secrets").status == 404
    for name in ("board-data", "board-unused"):
        client.volume_rm(name)
    client.secret_rm("board-key")
    assert board.get("/api/secrets").json == board.get("/api/volumes").json == []


def test_stop_start_restart_a_pod(board):
    uuid = board.run(HELLO)
    assert board.post(f"/api/pods/{uuid}/stop").status == 200
    assert board.pod(uuid)["state"] == "stopped"
    assert board.post(f"/api/pods/{uuid}/start").status == 200
    first = board.pod(uuid)
    assert first["state"] == "running"
    assert board.post(f"/api/pods/{uuid}/restart").status == 200
    second = board.pod(uuid)
    assert second["state"] == "running"
    assert second["startedAt"] > first["startedAt"]
    assert f"dashboard: restart of pod {uuid}" in board.daemon.log.read_text()


def test_stop_start_restart_an_app(board):
    uuid = board.run({"one": HELLO, "two": HELLO})

    def state():
        return board.pod(uuid)["apps"][0]["state"]

    assert board.post(f"/api/pods/{uuid}/apps/one/stop").status == 200
    until(lambda: state() == "exited")
    assert board.post(f"/api/pods/{uuid}/apps/one/start").status == 200
    until(lambda: state() == "running")
    assert board.post(f"/api/pods/{uuid}/apps/one/restart").status == 200
    until(lambda: state() == "running")
    assert board.pod(uuid)["apps"][1]["state"] == "running"


def test_what_is_not_there(board):
    nothing = "00000000-0000-4000-8000-000000000000"
    for answer in (
        board.post(f"/api/pods/{nothing}/stop"),
        board.post(f"/api/pods/{nothing}/apps/main/stop"),
        board.get(f"/api/pods/{nothing}/logs"),
        board.post(f"/api/pods/{board.run()}/apps/none/stop"),
        board.post(f"/api/pods/{board.run()}/apps/..%2f..%2fx/stop"),
    ):
        assert answer.status in (400, 404), answer.body
        assert answer.message


def test_an_action_that_does_not_fit(board):
    uuid = board.run()
    answer = board.post(f"/api/pods/{uuid}/start")
    assert answer.status == 409
    assert "it is running" in answer.message


def test_a_managed_pod_needs_the_word(board):
    """As on the command line, where it is --force."""
    manager = [{"name": "kurma.io/manager", "value": "kubelet"}]
    uuid = board.run(HELLO, annotations=manager)
    assert board.pod(uuid)["manager"] == "kubelet"
    for body in (None, {"managed": False}, {"managed": "yes"}):
        answer = board.post(f"/api/pods/{uuid}/stop", body)
        assert answer.status == 409
        assert "kubelet manages it" in answer.message
    assert board.pod(uuid)["state"] == "running"
    assert board.post(f"/api/pods/{uuid}/stop", {"managed": True}).status == 200
    assert board.pod(uuid)["state"] == "stopped"


def test_the_command(board):
    kurma = board.house.kurma
    for words, role in (((), "admin"), (("--viewer",), "viewer")):
        assert kurma.out("dashboard", *words) == f"{board.address}login?token={board.token(role)}\n"
    row = next(one for one in board.client.plugins() if (one.kind, one.name) == ("services", "dashboard"))
    assert row.status == "running"


def test_the_command_without_the_service(house):
    done = house.kurma("dashboard")
    assert done.returncode == 125
    assert "the dashboard does not run" in done.stderr
    assert "kurma.yml" in done.stderr


def test_a_port_that_is_taken(board):
    """The service says why it does not run, and kurmad goes on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = board.house.config_file
        with open(config) as file:
            before = file.read()
        try:
            with open(config, "w") as file:
                file.write(before.replace("127.0.0.1:0", f"127.0.0.1:{port}"))
            board.client.reload()
            board.daemon.wait_said(f"cannot listen on 127.0.0.1 port {port}: Address already in use")
        finally:
            with open(config, "w") as file:
                file.write(before)
            board.client.reload()
            until(lambda: os.path.exists(f"{board.directory}/address"), "the page again")
            board.__init__(board.house, board.daemon)
    assert board.get("/api/session").status == 200


# -- streams --


def test_events_come(board):
    with board.stream("/api/live", role="viewer") as events:
        uuid = board.run("exit 0", name="short")
        kinds = []
        for kind, value in events:
            if kind == "event" and value["id"] == uuid and value["subject"] == "pod":
                kinds.append(value["kind"])
                if value["kind"] == "stopped":
                    break
    assert kinds[-2:] == ["running", "stopped"]
    past = [event["kind"] for event in board.get("/api/events").json if event["id"] == uuid]
    assert "prepared" in past


def test_usage_comes(board):
    uuid = board.run("while :; do :; done")
    with board.stream("/api/live") as events:
        found = (value[uuid] for kind, value in events if kind == "usage" and uuid in value)
        seen = [next(found), next(found)]
    assert seen[1]["cpu"] > seen[0]["cpu"]
    assert seen[1]["clock"] > seen[0]["clock"]
    assert seen[1]["memory"] > 0


def test_a_log_follows(board):
    script = "echo first; echo wrong >&2; printf '<b>no newline'; read line < /tmp/gate; echo last"
    uuid = board.run({"main": f"mkfifo /tmp/gate; {script}"})
    lines = []
    with board.stream(f"/api/pods/{uuid}/logs?app=main") as events:
        for kind, value in events:
            if kind == "end":
                break
            assert kind == "lines"
            lines += [(stream, text) for _, _, stream, _, text in value]
            if len(lines) == 3:
                board.house.enter(uuid, "/bin/sh", "-c", "echo > /tmp/gate", app="main")
    assert [text for stream, text in lines if stream == "stderr"] == ["wrong"]
    assert "".join(text for stream, text in lines if stream == "stdout") == "first<b>no newlinelast"


def test_a_reader_that_does_not_read_stops_nobody(board):
    """A log of megabytes waits for its reader; events and other logs go on."""
    loud = board.run({"main": "yes 0123456789012345678901234567890123456789 | head -c 30000000; sleep 1000"})
    with board.stream(f"/api/pods/{loud}/logs") as events:
        next(events)
        with board.stream(f"/api/pods/{loud}/logs") as others:
            assert next(others)[0] == "lines"
        assert board.post(f"/api/pods/{loud}/stop").status == 200
        assert board.pod(loud)["state"] == "stopped"


def test_too_many_streams(board):
    with contextlib.ExitStack() as stack:
        for _ in range(24):
            stack.enter_context(board.stream("/api/live"))
        answer = board.get("/api/live")
        assert (answer.status, answer.message) == (503, "too many pages are open")
        assert board.get("/api/pods").status == 200

    def works():
        with contextlib.suppress(AssertionError), board.stream("/api/live"):
            return True

    until(works, "a place once the others have gone")


# -- its life in kurmad --


def test_it_ends_with_kurmad_though_pages_are_open(make_board):
    board = make_board()
    uuid = board.run()
    with board.stream("/api/live"), board.stream(f"/api/pods/{uuid}/logs"):
        board.client.rm(uuid, force=True)
        begun = time.monotonic()
        assert board.daemon.end() == 0
    assert time.monotonic() - begun < 15
    assert not os.path.exists(f"{board.directory}/address")


def test_a_killed_kurmad_comes_back_with_the_same_token(make_board):
    board = make_board()
    cookie = board.cookie("admin")
    uuid = board.run()
    board.daemon.end(signal.SIGKILL)
    os.unlink(f"{board.directory}/address")
    board.daemon.__init__(board.house)
    board.house.reopen()
    board.__init__(board.house, board.daemon)
    name, _, value = cookie.partition("=")
    answer = board.get("/api/pods", role=None, headers={"Cookie": f"kurma-{board.port}={value}"})
    assert answer.status == 200
    assert name.startswith("kurma-")
    assert board.pod(uuid)["state"] == "running"
