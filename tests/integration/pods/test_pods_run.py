"""A pod from its request to its removal: exit codes, records, logs."""

import os

import pytest

from kurma_core.api.pods import DnsRequest
from kurma_core.errors import AppNotFoundError, ImageError, PodExistsError, PodNotFoundError
from tests.kit.images import archive, busybox_root, shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root


def test_exit_codes_logs_and_records_until_rm(house):
    record, output = house.run({"one": "echo out of one", "two": "echo out of two; echo err >&2; exit 42"})
    assert (record.state, record.exit_code, record.reason) == ("stopped", 42, None)
    assert {app.name: (app.exited, app.exit_code, app.reason) for app in record.apps} == {
        "one": (True, 0, "exited"),
        "two": (True, 42, "exited"),
    }
    assert sorted(output.splitlines()) == ["err", "out of one", "out of two"]
    assert [listed.uuid for listed in house.client.pods()] == [record.uuid]
    assert house.client.pod(record.name) == house.client.pod(record.uuid) == house.client.pod(record.uuid[:8])
    assert house.client.pod(record.uuid).exit_code == 42
    assert house.log(record, "one") == "out of one\n"
    assert sorted(house.log(record).splitlines()) == ["err", "out of one", "out of two"]
    assert [line.text for line in house.client.logs(record.uuid, "two", stream="stderr")] == [b"err"]
    house.client.rm(record.uuid)
    assert house.uuids() == []
    assert house.kept() == ["names"]
    assert os.listdir(f"{house.state}/pods/names") == []
    with pytest.raises(PodNotFoundError):
        house.client.pod(record.uuid)


def test_the_first_failure_in_manifest_order_is_the_exit_code(house):
    record, _ = house.run({"slow": "sleep 0.3; exit 3", "quick": "exit 4", "good": "true"})
    assert record.exit_code == 3


def test_an_ephemeral_pod_leaves_no_trace(house):
    record, output = house.run("echo here", ephemeral=True)
    assert (record.exit_code, output) == (0, "here\n")
    assert house.uuids() == []


def test_a_taken_uuid_and_a_taken_name_are_refused(house):
    first = house.client.prepare(house.request("true", name="mine"))
    with pytest.raises(PodExistsError, match="a pod with this UUID exists"):
        house.client.prepare(house.request("true", uuid=first.uuid))
    with pytest.raises(PodExistsError, match=f"cannot name the pod mine: pod {first.uuid} has that name"):
        house.client.prepare(house.request("true", name="mine"))
    assert house.uuids() == [first.uuid]
    assert house.client.pod("mine").state == "prepared"
    house.client.rm("mine")
    house.client.rm(house.client.prepare(house.request("true", name="mine")).uuid)


def test_what_an_app_calls_itself_and_others(house):
    """H10: hostname, /etc/hosts and /etc/resolv.conf as the core decided, each line once."""
    record, output = house.run(
        "hostname; cat /etc/hostname /etc/hosts; echo --; cat /etc/resolv.conf",
        hostname="myself",
        hosts=(("10.1.2.3", ("friend", "friend.example")),),
        dns=DnsRequest(("10.9.9.9",), ("example.com",), ("ndots:2",)),
    )
    assert record.exit_code == 0
    hosts, resolver = output.split("--\n")
    assert hosts.splitlines() == [
        "myself",
        "myself",
        "127.0.0.1\tlocalhost",
        "::1\tlocalhost ip6-localhost ip6-loopback",
        "127.0.0.1\tmyself",
        "10.1.2.3\tfriend friend.example",
    ]
    assert resolver.splitlines() == ["nameserver 10.9.9.9", "search example.com", "options ndots:2"]


def test_the_pods_name_leads_to_its_address(house):
    """On a bridge, its own name is the address at which others reach it."""
    record, output = house.run(
        "cat /etc/hosts; ping -c 1 -W 1 $(hostname) > /dev/null && echo reached", net="default", name="me"
    )
    address = record.attachments[-1].result.addresses[0].address.split("/")[0]
    assert f"{address}\tme" in output
    assert "reached" in output
    house.client.network_rm("default")


@pytest.mark.parametrize("userns", ["none", "auto"])
def test_an_image_with_its_own_files(house, tmp_path, userns):
    """H10: it keeps them, with the pod's own name, unless it is from a registry, or the user says something of
    them; also when it is started again, with a read-only root, and as an app that comes later."""
    files = {"etc/hosts": "1.2.3.4 own\n", "etc/resolv.conf": "nameserver 1.2.3.4\n", "etc/hostname": "own\n"}
    root = busybox_root(str(tmp_path / "root"), files)
    from_docker = [{"name": "appc.io/docker/registryurl", "value": "registry.example.com"}]
    images = [
        house.client.here.images.fetch(
            archive(root, str(tmp_path / f"{name}.aci"), f"example.com/{name}", app=shell("true"), **more)
        ).id
        for name, more in (("aci", {}), ("docker", {"annotations": from_docker}))
    ]
    script = "cat /etc/hosts /etc/resolv.conf /etc/hostname"
    apps = {
        "aci": {"image": images[0], "app": shell(script), "readOnlyRootFS": True},
        "docker": {"image": images[1], "app": shell(script)},
    }
    local = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
    kept = "1.2.3.4 own\n127.0.0.1\tme\nnameserver 1.2.3.4\nown\n"
    own = {"hosts": "image+name", "hostname": "image", "resolv.conf": "image"}
    ours = dict.fromkeys(own, "kurma")
    record, _ = house.run(apps, hostname="me", userns=userns)
    record, _ = house.start(record.uuid)
    assert house.log(record, "aci") == kept
    assert house.log(record, "docker") == f"{local}127.0.0.1\tme\nme\n"
    assert [app.files for app in record.apps] == [own, ours]
    house.client.rm(record.uuid)
    said = {"dns": DnsRequest(("10.9.9.9",))}
    said["hosts"] = (("10.1.2.3", ("friend",)),)
    with house.running(
        {"aci": {**apps["aci"], "app": shell(script + "; sleep 1000")}}, userns=userns, **said
    ) as pod:
        house.client.app_add(pod.uuid, house.request({"late": apps["docker"]}), start=True)
        until(lambda: house.client.pod(pod.uuid).apps[1].exited, "the end of the app that came later")
        record = house.client.pod(pod.uuid)
        shared = f"{local}127.0.0.1\t{record.name}\n10.1.2.3\tfriend\nnameserver 10.9.9.9\n"
        until(lambda: house.log(record, "aci").endswith("own\n"), "its log")
        assert house.log(record, "aci") == f"{shared}own\n"
        assert house.log(record, "late") == f"{shared}{record.name}\n"
        assert [app.files for app in record.apps] == [{**ours, "hostname": "image"}, ours]
    house.client.rm(record.uuid)
    for image in images:
        house.client.here.images.remove(image)


def test_apps_of_a_pod_share_localhost(house):
    apps = {
        "server": "echo hello > /tmp/index.html; httpd -f -p 127.0.0.1:8080 -h /tmp & sleep 1000",
        "client": "for n in $(seq 99); do wget -q -O - http://127.0.0.1:8080/ && exit 0; sleep 0.05; done; exit 1",
    }
    with house.running(apps) as pod:
        until(lambda: house.client.pod(pod.uuid).apps[1].exited, "the client's end")
        assert house.client.pod(pod.uuid).apps[1].exit_code == 0
        assert "hello" in house.log(pod, "client")


def test_gc_goes_by_age(house):
    record, _ = house.run("true")
    prepared = house.client.prepare(house.request("true"))
    assert house.client.gc(grace=3600).lines == ()
    assert [one.name for one in house.client.gc(grace=0, dry_run=True).removed] == [record.uuid]
    assert len(house.uuids()) == 2
    assert [one.name for one in house.client.gc(grace=0).removed] == [record.uuid]
    assert house.uuids() == [prepared.uuid], "what was never run is not garbage"


def test_images_of_pods_are_kept(house):
    record = house.client.prepare(house.request("true"))
    house.client.image_gc(grace=0)
    with pytest.raises(ImageError, match="a pod uses it"):
        house.client.image_rm(house.image)
    assert house.start(record.uuid)[0].exit_code == 0


def test_logs_chosen_and_followed(house):
    run = house.launch("echo one; echo err >&2; echo two; sleep 0.4; echo three")
    run.wait_output("two")
    followed = [line.text for line in house.client.logs(run.uuid, follow=True)]
    assert sorted(b"\n".join(followed).split(b"\n")) == [b"err", b"one", b"three", b"two"]
    assert run.wait() == 0
    assert [line.text for line in house.client.logs(run.uuid, tail=1)] == [b"three"]
    assert [line.text for line in house.client.logs(run.uuid, stream="stderr")] == [b"err"]
    with pytest.raises(AppNotFoundError, match="has no app other"):
        list(house.client.logs(run.uuid, "other"))
