"""Reification: P5, and with it V3, V4, P2, P4 and R4 as far as names and paths go."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kurma_core.appc.image import ImageManifest
from kurma_core.appc.pod import PodManifest
from kurma_core.appc.reify import (
    AppMount,
    PublishedPort,
    effective_app,
    idle_volumes,
    mounts_of,
    normal_path,
    reify,
)
from kurma_core.appc.template import PodTemplate
from kurma_core.errors import ImageError, ImageNotFoundError, KurmaError, ManifestError, VolumeError

ID = "sha512-" + "0" * 128
OTHER_ID = "sha512-" + "1" * 128


def image(*points: dict, name: str = "example.com/app", **app: object) -> ImageManifest:
    return ImageManifest.parse(
        {
            "acKind": "ImageManifest",
            "acVersion": "0.8.11",
            "name": name,
            "labels": [{"name": "version", "value": "1"}],
            "app": {"exec": ["sh"], "user": "0", "group": "0", "mountPoints": list(points), **app},
        }
    )


def point(name: str, path: str, **more: object) -> dict:
    return {"name": name, "path": path, **more}


def template(*apps: dict, **pod: object) -> PodTemplate:
    return PodTemplate.parse({"apps": [{"image": "docker:///x", **app} for app in apps], **pod})


HOST = {"name": "work", "kind": "host", "source": "/srv/work"}
EMPTY = {"name": "work", "kind": "empty"}


def test_images_are_identified():
    """P5: id, name and labels, and a manifest that reads back."""
    done = reify(template({"name": "a"}), {"a": (ID, image())})
    runtime = done.pod.app("a").image
    assert (runtime.id, runtime.name, runtime.labels[0].value) == (ID, "example.com/app", "1")
    assert runtime.locator is None
    assert PodManifest.parse(json.dumps(done.pod.to_json())) == done.pod
    assert done.notes == ()


def test_image_must_be_the_one_named():
    """P5"""
    pod = template({"name": "a", "image": {"id": ID}})
    with pytest.raises(ManifestError) as caught:
        reify(pod, {"a": (OTHER_ID, image())})
    assert caught.value.data["path"] == "$.apps[0].image.id"
    assert caught.value.data["found"] == ID
    with pytest.raises(ImageNotFoundError, match="app a"):
        reify(pod, {})


def test_mount_point_finds_the_volume_of_its_name():
    """P5"""
    done = reify(template({"name": "a"}, volumes=[HOST]), {"a": (ID, image(point("work", "/w/./x//")))})
    assert done.mounts == {"a": (AppMount("work", "/w/x", False),)}
    assert [(mount.volume, mount.path) for mount in done.pod.app("a").mounts] == [("work", "/w/./x//")]
    assert done.notes == ()


def test_mount_point_without_volume_gets_a_seeded_one():
    """P5: one for each app, so that two images do not meet in one directory; told once."""
    images = {name: (ID, image(point("data", "/data"))) for name in ("a", "b")}
    done = reify(template({"name": "a"}, {"name": "b"}), images)
    assert [(v.name, v.kind, v.seed) for v in done.pod.volumes] == [
        ("a-data", "empty", ("a", "/data")),
        ("b-data", "empty", ("b", "/data")),
    ]
    assert done.mounts["b"] == (AppMount("b-data", "/data", False),)
    assert len(done.notes) == 2
    assert "data (/data)" in done.notes[0]
    warnings: list[str] = []
    read = PodManifest.parse(done.pod.to_json(), warn=warnings.append)
    assert read == done.pod
    assert warnings == []


def test_reified_pod_stays_as_it_is():
    """P5: a second time adds nothing."""
    own = {"volume": "x", "path": "/own", "appVolume": {"name": "x", "kind": "empty"}}
    source = template({"name": "a", "mounts": [own]}, ports=[{"name": "web", "hostPort": 80}])
    images = {"a": (ID, image(point("data", "/data"), ports=[{"name": "web", "protocol": "tcp", "port": 8080}]))}
    once = reify(source, images)
    twice = reify(once.pod, images)
    assert twice.pod == once.pod
    assert twice.mounts == once.mounts
    assert twice.notes == ()


def test_volumes_that_stand_nowhere_are_told():
    source = template(
        {"name": "a", "mounts": [{"volume": "extra", "path": "/e"}]},
        volumes=[HOST, {"name": "extra", "kind": "empty"}, {"name": "wrok", "kind": "empty"}],
    )
    images = {"a": (ID, image(point("work", "/w")))}
    (note,) = idle_volumes(source, reify(source, images), images)
    assert note.startswith("volume wrok: stands nowhere: ")
    # Those of a pod that has no apps yet wait for some.
    empty = template(volumes=[HOST])
    assert idle_volumes(empty, reify(empty, {}), {}) == ()


def test_names_of_added_volumes_are_free():
    """P5"""
    taken = {"name": "a-data", "kind": "empty"}
    done = reify(template({"name": "a"}, volumes=[taken]), {"a": (ID, image(point("data", "/data")))})
    assert [volume.name for volume in done.pod.volumes] == ["a-data", "a-data-2"]
    assert done.mounts["a"][0].volume_name == "a-data-2"


def test_strict_volumes():
    """P5"""
    with pytest.raises(VolumeError) as caught:
        reify(template({"name": "a"}), {"a": (ID, image(point("data", "/data")))}, strict_volumes=True)
    assert "app a" in str(caught.value)
    assert "mount point data (/data)" in str(caught.value)
    assert caught.value.hint


def test_explicit_mount_decides_on_its_mount_point():
    """V4: by path, whatever the names; further mounts come after."""
    source = template(
        {"name": "a", "mounts": [{"volume": "extra", "path": "/e"}, {"volume": "work", "path": "/data/"}]},
        volumes=[HOST, {"name": "extra", "kind": "empty"}, {"name": "data", "kind": "empty"}],
    )
    done = reify(source, {"a": (ID, image(point("data", "/data")))}, strict_volumes=True)
    assert done.mounts["a"] == (AppMount("work", "/data", False), AppMount("extra", "/e", False))


@pytest.mark.parametrize("by_point", [False, True])
@pytest.mark.parametrize("by_volume", [False, True])
@pytest.mark.parametrize("explicit", [False, True])
def test_read_only_adds_up(by_point, by_volume, explicit):
    """V4"""
    mounts = [{"volume": "work", "path": "/w"}] if explicit else []
    source = template({"name": "a", "mounts": mounts}, volumes=[{**HOST, "readOnly": by_volume}])
    done = reify(source, {"a": (ID, image(point("work", "/w", readOnly=by_point)))})
    assert done.mounts["a"] == (AppMount("work", "/w", by_point or by_volume),)
    if explicit:
        # Where the app has no mount point either.
        assert reify(source, {"a": (ID, image())}).mounts["a"] == (AppMount("work", "/w", by_volume),)


def test_volume_of_the_apps_own_overrides():
    """V4: it becomes one of the pod's, so that every stager finds it by name; no other app gets it."""
    own = {"name": "work", "kind": "host", "source": "/srv/own", "readOnly": True}
    source = template(
        {"name": "a", "mounts": [{"volume": "work", "path": "/w", "appVolume": own}]},
        {"name": "b"},
        volumes=[HOST],
    )
    found = image(point("work", "/w"))
    assert mounts_of(source.pod, source.pod.app("a"), found) == (AppMount("work", "/w", True),)
    done = reify(source, {"a": (ID, found), "b": (ID, found)})
    assert done.mounts == {"a": (AppMount("a-work", "/w", True),), "b": (AppMount("work", "/w", False),)}
    assert done.pod.volume("a-work").source == "/srv/own"
    assert done.pod.volume("work").source == "/srv/work"
    assert len(done.notes) == 1


def test_empty_volume_of_the_apps_own_is_not_shared():
    """V4: two apps that bring an empty volume of one name have two; a mount point elsewhere has a third."""
    own = {"volume": "t", "path": "/t", "appVolume": {"name": "t", "kind": "empty"}}
    source = template({"name": "a", "mounts": [own]}, {"name": "b", "mounts": [own]}, {"name": "c"})
    done = reify(source, {"a": (ID, image()), "b": (ID, image()), "c": (ID, image(point("t", "/t")))})
    names = [done.mounts[app][0].volume_name for app in "abc"]
    assert len(set(names)) == 3
    assert {volume.name for volume in done.pod.volumes} == set(names)


@pytest.mark.parametrize(
    ("target", "path", "said"),
    [
        ("/v", "/v", "cannot be mounted at /v: /v is the file of secret pw"),
        ("/v", "/v/x", "cannot be mounted at /v/x: /v is the file of secret pw"),
        ("/proc/x", "/v", "secret pw cannot be mounted at /proc/x: kurma reserves this path"),
        ("/sys/x", "/v", "secret pw cannot be mounted at /sys/x: kurma reserves this path"),
    ],
)
def test_no_volume_hides_the_file_of_a_secret(target, path, said):
    secrets = [{"name": "pw", "target": target}]
    source = template(
        {"name": "a", "mounts": [{"volume": "work", "path": path}], "secrets": secrets}, volumes=[HOST]
    )
    with pytest.raises(KurmaError, match=said):
        reify(source, {"a": (ID, image())})


def test_the_file_of_a_secret_may_be_in_a_volume():
    secrets = [{"name": "pw", "target": "/v/x"}]
    source = template(
        {"name": "a", "mounts": [{"volume": "work", "path": "/v"}], "secrets": secrets}, volumes=[HOST]
    )
    assert [mount.path for mount in reify(source, {"a": (ID, image())}).mounts["a"]] == ["/v"]


def test_mount_of_no_volume():
    """P5"""
    source = template({"name": "a", "mounts": [{"volume": "nope", "path": "/n"}]})
    with pytest.raises(VolumeError, match="has no volume nope to be mounted at /n"):
        reify(source, {"a": (ID, image())})
    with pytest.raises(VolumeError, match="has no volume nope"):
        mounts_of(source.pod, source.pod.app("a"), image(point("data", "/n")))


@pytest.mark.parametrize(("one", "other"), [("/a", "/a"), ("/a//b/", "/a/b"), ("/a/./b", "/a/b")])
def test_overlap(one, other):
    """V3: equal targets, however they are spelled."""
    source = template(
        {"name": "a", "mounts": [{"volume": "work", "path": one}, {"volume": "work", "path": "/a-b"}]},
        volumes=[EMPTY],
    )
    with pytest.raises(VolumeError, match="overlap") as caught:
        reify(source, {"a": (ID, image(point("p", "/z"), point("work", other), point("q", other)))})
    assert caught.value.data["app"] == "a"


def test_one_target_of_two_mounts():
    """V3: naming one place twice is an overlap, with a mount point there and without."""
    twice = [{"volume": "work", "path": "/w"}, {"volume": "work", "path": "/w/"}]
    for found in (image(), image(point("work", "/w"))):
        with pytest.raises(VolumeError, match="overlap"):
            reify(template({"name": "a", "mounts": twice}, volumes=[EMPTY]), {"a": (ID, found)})


def test_neighbours_do_not_overlap():
    """V3: /a and /a-b share letters, no directory."""
    points = [point("p", "/a"), point("q", "/a-b"), point("r", "/a.b/c"), point("s", "/ab")]
    assert len(reify(template({"name": "a"}), {"a": (ID, image(*points))}).mounts["a"]) == 4


@pytest.mark.parametrize("path", ["//", "/./", "/proc", "/proc/self/attr", "/sys/fs/cgroup", "/dev/"])
def test_the_systems_places_are_no_targets(path):
    """V3"""
    with pytest.raises(VolumeError, match=f"volume a-all cannot be mounted over {normal_path(path)}: ") as caught:
        reify(template({"name": "a"}), {"a": (ID, image(point("all", path), point("some", "/x")))})
    assert caught.value.data["path"] == normal_path(path)


@pytest.mark.parametrize(
    "path", ["/dev/shm", "/dev/x", "/process", "/system/proc", "/etc/hosts", "/etc/resolv.conf"]
)
def test_other_places_are(path):
    """V3"""
    assert reify(template({"name": "a"}), {"a": (ID, image(point("all", path)))}).mounts["a"][0].path == path


@pytest.mark.parametrize("path", ["/proc/cpuinfo", "/sys", "/sys/fs/bpf", "/dev"])
def test_places_for_volumes_of_the_host_alone(path):
    """C8: an image cannot ask for them."""
    volume = {"name": "v", "kind": "host", "source": "/x"}
    for kind, fits in ((volume, True), ({"name": "v", "kind": "empty"}, False)):
        source = template({"name": "a", "mounts": [{"volume": "v", "path": path}]}, volumes=[kind])
        if fits:
            assert reify(source, {"a": (ID, image())}).mounts["a"][0].path == path
        else:
            with pytest.raises(VolumeError, match="kurma reserves this path"):
                reify(source, {"a": (ID, image())})


PATHS = st.lists(st.sampled_from(["a", "b", "a-b", "."]), min_size=1, max_size=4).filter(
    lambda names: set(names) != {"."}
)


@given(st.lists(PATHS, min_size=1, max_size=5), st.data())
def test_overlaps_are_found_in_every_order(targets, data):
    """V3: whatever the order, and whether mount points or mounts ask for them."""
    order = data.draw(st.permutations(range(len(targets))))
    explicit = data.draw(st.sets(st.sampled_from(order)))
    spelled = ["/" + data.draw(st.sampled_from(["/", "//"])).join(targets[at]) for at in order]
    parts = [[name for name in targets[at] if name != "."] for at in order]
    overlapping = any(one == other for at, one in enumerate(parts) for to, other in enumerate(parts) if at != to)
    points = [point(f"p{at}", path) for at, path in enumerate(spelled) if at not in explicit]
    mounts = [{"volume": "work", "path": path} for at, path in enumerate(spelled) if at in explicit]
    source = template({"name": "a", "mounts": mounts}, volumes=[EMPTY])
    # A mount at a mount point's very place is an answer to it.
    answered = {tuple(parts[at]) for at in explicit} & {
        tuple(parts[at]) for at in range(len(parts)) if at not in explicit
    }
    assume(not answered)
    if overlapping:
        with pytest.raises(VolumeError, match="overlap"):
            reify(source, {"a": (ID, image(*points))})
    else:
        found = [mount.path for mount in reify(source, {"a": (ID, image(*points))}).mounts["a"]]
        assert len(found) == len(targets)
        for at, path in enumerate(found):
            assert not any(path.startswith(f"{later}/") for later in found[at:]), "the outer one comes first"


def test_pods_app_replaces_the_images_whole():
    """P2: nothing of the image's shines through."""
    app = {"exec": ["other"], "user": "7", "group": "8"}
    source = template({"name": "a", "app": app})
    found = image(point("data", "/data"), environment=[{"name": "A", "value": "b"}])
    done = reify(source, {"a": (ID, found)}, strict_volumes=True)
    assert done.mounts["a"] == ()
    run = effective_app(done.pod.app("a"), found)
    assert (run.exec, run.user, run.environment) == (("other",), "7", ())
    assert effective_app(template({"name": "a"}).pod.app("a"), found) is found.app


@pytest.mark.parametrize("app", [None, {"user": "0", "group": "0"}, {"exec": [], "user": "0", "group": "0"}])
def test_no_command(app):
    """R4: says so, and how to give one."""
    bare = ImageManifest.parse({"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/lib"})
    with pytest.raises(ImageError) as caught:
        reify(template({"name": "a", "app": app}), {"a": (ID, bare)})
    assert "app a has nothing to run" in str(caught.value)
    assert "example.com/lib" in str(caught.value)
    assert "--" in caught.value.hint


WEB = {"name": "web", "protocol": "udp", "port": 8080}


def test_ports_are_resolved():
    """P4, P5: number and protocol come from the app; a range is spelled out; podPort has the last word."""
    source = template(
        {"name": "a"},
        {"name": "b"},
        ports=[
            {"name": "web", "hostPort": 80, "hostIP": "127.0.0.1"},
            {"name": "many", "hostPort": 1000},
            {
                "name": "free",
                "hostPort": 5,
                "podPort": {"name": "free", "protocol": "sctp", "port": 6, "count": 2},
            },
        ],
    )
    many = {"name": "many", "protocol": "tcp", "port": 2000, "count": 2}
    done = reify(source, {"a": (ID, image(ports=[WEB])), "b": (ID, image(ports=[many]))})
    assert done.ports == (
        PublishedPort("127.0.0.1", 80, 8080, "udp"),
        PublishedPort("", 1000, 2000, "tcp"),
        PublishedPort("", 1001, 2001, "tcp"),
        PublishedPort("", 5, 6, "sctp"),
        PublishedPort("", 6, 7, "sctp"),
    )
    assert [port["podPort"] for port in done.pod.to_json()["ports"]] == [
        WEB,
        many,
        {"name": "free", "protocol": "sctp", "port": 6, "count": 2},
    ]


def test_a_pod_port_overrides_the_images():
    """P4: number, protocol, count and socketActivated, for every app that has a port of that name."""
    inside = {"name": "web", "protocol": "tcp", "port": 9090, "count": 2, "socketActivated": True}
    source = template({"name": "a"}, {"name": "b"}, ports=[{"name": "web", "hostPort": 80, "podPort": inside}])
    other = {"name": "other", "protocol": "tcp", "port": 1}
    images = {"a": (ID, image(ports=[WEB, other])), "b": (ID, image())}
    done = reify(source, images)
    assert done.ports == (PublishedPort("", 80, 9090, "tcp"), PublishedPort("", 81, 9091, "tcp"))
    assert done.pod.app("a").to_json()["app"]["ports"] == [inside, other]
    assert done.pod.app("b").app is None
    assert done.notes == ("app a: the pod's podPort overrides its port web",)
    assert reify(done.pod, images).pod == done.pod
    with pytest.raises(ManifestError) as caught:
        reify(template({"name": "a"}, ports=[{"name": "web", "hostPort": 65535, "podPort": inside}]), images)
    assert caught.value.data["path"] == "$.ports[0].hostPort"


def test_port_of_no_app():
    """P4"""
    with pytest.raises(ManifestError) as caught:
        reify(template({"name": "a"}, ports=[{"name": "x", "hostPort": 1}]), {"a": (ID, image())})
    assert caught.value.data["path"] == "$.ports[0].name"
    assert caught.value.data["found"] == '"x"'


def test_published_port_has_a_protocol_that_can_be_published():
    """P4, W9: no other reader of the pod's ports knows a further one; what is not published may have any."""
    echo = {"name": "echo", "protocol": "icmp", "port": 8}
    named, own = image(ports=[echo]), image()
    for ports, source in (
        ([{"name": "echo", "hostPort": 1}], named),
        ([{"name": "echo", "hostPort": 1, "podPort": echo}], own),
    ):
        with pytest.raises(ManifestError) as caught:
            reify(template({"name": "a"}, ports=ports), {"a": (ID, source)})
        assert caught.value.data["path"] == "$.ports[0].name"
        assert caught.value.data["found"] == '"echo" of protocol "icmp"'
    assert reify(template({"name": "a"}), {"a": (ID, named)}).ports == ()


def test_port_range_must_fit():
    """P4"""
    many = {"name": "many", "protocol": "tcp", "port": 1, "count": 10}
    with pytest.raises(ManifestError) as caught:
        reify(
            template({"name": "a"}, ports=[{"name": "many", "hostPort": 65530}]), {"a": (ID, image(ports=[many]))}
        )
    assert caught.value.data["path"] == "$.ports[0].hostPort"


def test_no_more_ports_are_published_at_once_than_by_hand():
    """P4, W9"""
    source = template({"name": "a"}, ports=[{"name": "many", "hostPort": 1}])

    def many(count):
        return {"a": (ID, image(ports=[{"name": "many", "protocol": "tcp", "port": 1, "count": count}]))}

    assert len(reify(source, many(1024)).ports) == 1024
    with pytest.raises(ManifestError) as caught:
        reify(source, many(1025))
    assert (caught.value.data["path"], caught.value.data["found"]) == ("$.ports[0].name", "1025")


def activated(name: str, port: int, protocol: str = "tcp", count: int = 1) -> ImageManifest:
    return image(
        ports=[{"name": name, "protocol": protocol, "port": port, "count": count, "socketActivated": True}]
    )


def test_a_socket_is_one_apps():
    """Y4: also of an image that runs twice; ranges count whole, and protocols apart."""
    apps = template({"name": "a"}, {"name": "b"})
    for mine, other, found in (
        (activated("x", 80), activated("x", 80), '80/tcp, which is "x" of app a'),
        (activated("x", 80, count=5), activated("y", 84), '84/tcp, which is "x" of app a'),
        (activated("x", 84), activated("y", 80, count=5), '84/tcp, which is "x" of app a'),
    ):
        with pytest.raises(ManifestError) as caught:
            reify(apps, {"a": (ID, mine), "b": (OTHER_ID, other)})
        assert (caught.value.data["path"], caught.value.data["found"]) == ("app b: $.ports[0].port", found)
    for mine, other in (
        (activated("x", 80, count=4), activated("y", 84)),
        (activated("x", 80), activated("y", 80, "udp")),
        (activated("x", 80), image(ports=[{"name": "x", "protocol": "tcp", "port": 80}])),
    ):
        reify(apps, {"a": (ID, mine), "b": (OTHER_ID, other)})


def test_sockets_that_cannot_be_made():
    """Y4"""
    for wrong, path in (
        (activated("x", 80, "sctp"), "app a: $.ports[0].protocol"),
        (activated("x", 1, count=257), "app a: $.ports[0]"),
    ):
        with pytest.raises(ManifestError) as caught:
            reify(template({"name": "a"}), {"a": (ID, wrong)})
        assert caught.value.data["path"] == path
    reify(template({"name": "a"}), {"a": (ID, activated("x", 1, count=256))})


def test_port_names_are_unique_across_the_pod():
    """P4: a name means one port; an image that runs twice names the same one."""
    same = {"a": (ID, image(ports=[WEB])), "b": (ID, image(ports=[WEB]))}
    reify(template({"name": "a"}, {"name": "b"}), same)
    other = {**same, "b": (ID, image(ports=[{**WEB, "port": 8081}]))}
    with pytest.raises(ManifestError) as caught:
        reify(template({"name": "a"}, {"name": "b"}), other)
    assert caught.value.data["found"] == '"web" of app a'
    assert "app b" in caught.value.data["path"]
