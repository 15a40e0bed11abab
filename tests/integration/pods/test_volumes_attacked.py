"""Volumes against odds: hostile images, apps that swap links, odd sources, odd places (V1 to V4)."""

import contextlib
import itertools
import os
import socket
import subprocess
import threading

import pytest

from kurma_core.errors import KurmaError, StagerError, VolumeError
from tests.integration.pods.test_pods_changing import add
from tests.integration.pods.test_pods_volumes import host, mounting
from tests.kit.images import archive, busybox_root, shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

LONG = "n" * 255
DEEP = "/deep" + "/d" * 400


def tree(path):
    """Everything below a directory of the host, with times of change."""
    found = {}
    for directory, names, files in os.walk(path):
        for name in (".", *names, *files):
            status = os.lstat(os.path.join(directory, name))
            found[os.path.join(directory, name)] = (
                status.st_mode,
                status.st_uid,
                status.st_size,
                status.st_ctime_ns,
            )
    return found


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Path of an image archive whose links lead all over the place."""
    top = tmp_path_factory.mktemp("hostile")
    root = busybox_root(str(top / "root"), {"in/the/way": "a file\n", "over": "a file\n"})
    for name, target in {
        "absolute": "/run/made",
        "up": "../../../../../../../../made/up",
        "chain": "one",
        "one": "/two/../three",
        "three": "made/chain",
        "two": "bin",
        "by-proc": "/proc/self/root/made/proc",
        "by-pid": "/proc/1/root/made/pid",
        "loop": "loop/x",
        "a": "/place",
        "to-proc": "/proc",
        "to-dev": "dev/",
    }.items():
        os.symlink(target, f"{root}/{name}")
    return archive(root, str(top / "hostile.aci"), "example.com/hostile", app=shell("true"))


@pytest.fixture
def image(house, hostile):
    return house.client.here.images.fetch(hostile).id


def app(image, script, *targets, volume="vol", **fields):
    mounts = [{"volume": volume, "path": path} for path in targets]
    return {"image": image, "app": shell(script, **fields), "mounts": mounts}


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "mark").write_text("here\n")
    return tmp_path / "source"


@contextlib.contextmanager
def swapping(one, other):
    """Swaps two names without rest, and yields how often it has."""
    over, turns = threading.Event(), []

    def swap():
        while not over.is_set():
            os.rename(one, f"{one}-")
            os.rename(other, one)
            os.rename(f"{one}-", other)
            turns.append(1)

    thread = threading.Thread(target=swap, daemon=True)
    thread.start()
    try:
        yield turns
    finally:
        over.set()
        thread.join()


# --- sources -----------------------------------------------------------------------------------------------------


def test_a_refused_pod_leaves_the_host_as_it_was(house, image, tmp_path, source):
    """V1: nothing is made, nothing is touched; what is refused before the start leaves no pod either."""
    (tmp_path / "link").symlink_to("source")
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    refused = [
        (tmp_path / "none", ["/x"], {}, "no such file"),
        (tmp_path / "none" / "deep", ["/x"], {}, "/none: no such file"),
        (tmp_path / "file" / "x", ["/x"], {}, "not a directory"),
        (tmp_path / "link", ["/x"], {}, "is a symbolic link"),
        (tmp_path / "loop", ["/x"], {"allow_volume_links": True}, "too many levels of symbolic links"),
        (source, ["/x", "/x/"], {}, "volumes overlap: vol and vol are both mounted at /x"),
        (source, ["/"], {}, "cannot be mounted over /: kurma reserves this path"),
        (source, ["/proc/self"], {}, "cannot be mounted over /proc/self: kurma reserves this path"),
    ]
    late = [
        (source, ["/a", "/place"], "volume vol: cannot be mounted at /place: hides volume vol at /a"),
        (source, ["/loop"], "volume vol: cannot be mounted at /loop: too many links"),
        (source, ["/to-proc/x"], "volume vol: cannot be mounted at /to-proc/x: "),
        (source, ["/to-proc/sys"], "volume vol: cannot be mounted at /to-proc/sys: kurma reserves this path"),
        (source, ["/to-dev"], "volume vol: cannot be mounted at /to-dev: kurma reserves this path"),
        (source, [f"/{LONG}n"], f"volume vol: cannot be mounted at /{LONG}n: File name too long"),
        (source / "mark", ["/etc"], "volume vol: cannot be mounted at /etc: a directory stands where a file is"),
    ]
    before = tree(tmp_path)
    for place, targets, options, said in refused:
        with pytest.raises(VolumeError) as caught:
            house.run({"main": app(image, "true", *targets)}, volumes=[host("vol", place)], **options)
        assert said in str(caught.value)
        assert "vol" in str(caught.value)
        assert house.uuids() == []
    for place, targets, said in late:
        with pytest.raises(StagerError) as caught:
            house.run({"main": app(image, "true", *targets)}, volumes=[host("vol", place)])
        assert said in str(caught.value)
        (record,) = house.client.pods()
        assert said in record.apps[0].message
        house.client.rm(record.uuid)
    assert {name: it for name, it in tree(tmp_path).items() if "/kurma-" not in name} == {
        name: it for name, it in before.items() if "/kurma-" not in name
    }


def test_the_whole_host_is_the_host_and_it_is_told(house, source):
    """V1: with what is mounted there and without; never the root of the pod's stager, which lies on top of it."""
    script = f"cat /vol{source}/mark; ls /vol; ls /vol/proc | grep -c '^self$'"
    for recursive, shown in ((True, "1"), (False, "0")):
        volume = host("vol", "/", recursive=recursive, readOnly=True)
        record, output = house.run({"main": mounting(script, "vol")}, volumes=[volume])
        first, *names, last = output.split()
        assert (first, last) == ("here", shown)
        assert sorted(names) == sorted(name for name in os.listdir("/") if name[0] != ".")
        note = "volume vol: / is the whole host: its apps may read that"
        assert note in record.notes
        assert note in house.notes


def test_sockets_and_fifos(house, tmp_path):
    """V1: what is not a directory stands for itself: an app talks to who listens on the host."""
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        script = "echo through > /fifo; [ -S /socket ] && exec sleep 1000"
        volumes = [host(name, tmp_path / name) for name in ("fifo", "socket")]
        with house.running({"main": mounting(script, "fifo", "socket")}, volumes=volumes) as pod:
            with open(tmp_path / "fifo") as fifo:
                assert fifo.read() == "through\n"
            inside = f"/proc/{pod.stager.pid}/root/volumes/socket"
            assert os.path.samefile(inside, tmp_path / "socket")


def test_what_comes_to_be_mounted_later(house, source):
    """V1: on the host, below a source: it does not come along, and read-only holds as before."""
    (source / "late").mkdir()
    volume = host("vol", source, readOnly=True)
    with house.running({"main": mounting("exec sleep 1000", "vol")}, volumes=[volume]) as pod:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", source / "late"], check=True)
        try:
            (source / "late" / "file").write_text("x")
            code, out, err = house.enter(pod.uuid, "/bin/sh", "-c", "ls /vol/late; echo x > /vol/late/file")
        finally:
            subprocess.run(["umount", source / "late"], check=True)
        assert (code, out) == (1, "")
        assert "Read-only file system" in err


@pytest.mark.full
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_a_source_that_is_swapped_while_pods_start(house, tmp_path, kind):
    """V1: what was named, or a refusal by name; never where a link leads. Also between prepare and start."""
    (tmp_path / "secret" / "inner").mkdir(parents=True)
    (tmp_path / "v" / "place").mkdir(parents=True)
    for place, text in (("secret", "secret"), ("v/place", "named")):
        (tmp_path / place / "mark").write_text(text)
    (tmp_path / "v" / "link").symlink_to(tmp_path / "secret")
    path, script = (tmp_path / "v" / "place", "cat /vol/mark") if kind == "directory" else (None, "cat /vol")
    volume = host("vol", path or tmp_path / "v" / "place" / "mark")
    seen = set()
    with swapping(tmp_path / "v" / "place", tmp_path / "v" / "link") as turns:
        for _ in range(25):
            try:
                _, output = house.run({"main": mounting(script, "vol")}, volumes=[volume])
            except VolumeError as error:
                assert f"volume vol: source {volume['source']}: " in str(error)  # noqa: PT017 - one of many turns
                seen.add("refused")
            else:
                seen.add(output)
            if seen == {"named", "refused"}:
                break
    assert len(turns) > 50
    assert seen <= {"named", "refused"}
    assert "refused" in seen


@pytest.mark.full
def test_an_app_that_swaps_what_is_added_to_its_pod(house, tmp_path):
    """V1: a source within a volume of an app that runs, for another app: the app's links lead it nowhere."""
    shared, secret = tmp_path / "shared", tmp_path / "secret"
    (shared / "sub").mkdir(parents=True)
    secret.mkdir()
    (shared / "sub" / "mark").write_text("named")
    (secret / "mark").write_text("secret")
    script = (
        f"cd /vol; echo up; while :; do mv sub kept; ln -s {secret} sub; rm sub; mv kept sub; done 2>/dev/null"
    )
    seen = set()
    with house.running({"main": mounting(script, "vol")}, volumes=[host("vol", shared)]) as pod:
        until(lambda: house.log(pod, "main") == "up\n", "the racer runs")
        for number in range(12):
            name = f"app-{number}"
            entry = {"app": shell(f"cat /x/mark > /vol/{name}"), "mounts": []}
            own = {**host(name, shared / "sub"), "readOnly": True}
            entry["mounts"] = [{"volume": name, "path": "/x", "appVolume": own}, {"volume": "vol", "path": "/vol"}]
            try:
                add(house, pod, entry, name)
            except KurmaError as error:
                assert f"volume {name}: source {shared}/sub: " in str(error)  # noqa: PT017 - one of many turns
                seen.add("refused")
                continue
            until(lambda found=shared / name: found.exists() and found.read_text(), "it has told")
            seen.add((shared / name).read_text())
    assert seen <= {"named", "refused"}
    assert "refused" in seen


# --- places ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("userns", ["none", "auto"])
@pytest.mark.parametrize("storage", ["overlay", "copy"])
def test_places_inside_whatever_links_say(make_house, hostile, source, tmp_path, storage, userns):
    """V3: links of all kinds, long names and paths, files in the way; made 0755 and root's; a read-only root."""
    house = make_house({"plugins": {"stagers": {"default": {"config": {"graphStorage": storage}}}}})
    image = house.client.here.images.fetch(hostile).id
    places = {
        "/absolute/x": "/run/made/x",
        "/up/x": "/made/up/x",
        "/chain/x": "/made/chain/x",
        "/by-proc/x": "/made/proc/x",
        "/by-pid/x": "/made/pid/x",
        "/new/er/x": "/new/er/x",
        f"/{LONG}/{LONG}": f"/{LONG}/{LONG}",
        "/in/the/way/x": "/in/the/way/x",
        "/over": "/over",
        "/etc/hosts": "/etc/hosts",
        "/dev/shm/x": "/dev/shm/x",
        DEEP: DEEP,
    }
    script = f"""
        for each in {" ".join(places.values())}; do cat $each/mark; done
        stat -c '%a %u %g %n' /run/made /made /made/up /new /new/er /in/the/way /{LONG}
        touch /made/probe 2>/dev/null || echo read-only
        ls -l /proc/self/root/made/pid | wc -l
    """
    request = {**app(image, script, *places), "readOnlyRootFS": True}
    volume = {**host("vol", source), "readOnly": True}
    before = tree(source)
    record, output = house.run({"main": request}, volumes=[volume], userns=userns)
    lines = output.splitlines()
    assert lines[: len(places)] == ["here"] * len(places)
    made = ("/run/made", "/made", "/made/up", "/new", "/new/er", "/in/the/way", f"/{LONG}")
    assert lines[len(places) : -2] == [f"755 0 0 {name}" for name in made]
    assert lines[-2:] == ["read-only", "2"]
    notes = [note for note in record.notes if note.startswith("app main: volume vol")]
    assert sorted(notes) == [
        "app main: volume vol takes the place of the image's file /in/the/way",
        "app main: volume vol takes the place of the image's file /over",
    ]
    assert tree(source) == before
    assert not os.path.exists("/made")
    _, output = house.run({"main": app(image, "cat /in/the/way /over")})
    assert output == "a file\na file\n", "the image is as it was"


def test_overlaps_in_every_order(house, image, source):
    """V3: where only the image's links show that one is below the other, or hides it."""
    volumes = [host(name, source) for name in ("one", "two", "three")]
    (source / "x").mkdir()
    targets = {"one": "/place/x", "two": "/a", "three": "/elsewhere"}
    for order in itertools.permutations(targets):
        mounts = [{"volume": name, "path": targets[name]} for name in order]
        script = "cat /place/mark /place/x/mark /a/x/mark"
        request = {**app(image, script), "mounts": mounts}
        assert house.run({"main": request}, volumes=volumes)[1] == "here\n" * 3
        for mount in mounts:
            mount["path"] = {"one": "/place", "two": "/a"}.get(mount["volume"], mount["path"])
        with pytest.raises(StagerError) as caught:
            house.run({"main": request}, volumes=volumes)
        first, second = sorted(("one", "two"), key=order.index)
        paths = {"one": "/place", "two": "/a"}
        said = f"volume {second}: cannot be mounted at {paths[second]}: hides volume {first} at {paths[first]}"
        assert str(caught.value).endswith(said)


def test_what_is_hidden_is_told_once(house, image, source):
    """V3: by the volume's name and the place, however often the app starts anew."""
    (source / "count").write_text("")
    script = "echo >> /etc/count; [ $(wc -l < /etc/count) -ge 3 ]"
    request = {
        **app(image, script, "/etc", "/in/the/way"),
        "annotations": [{"name": "kurma.io/restart", "value": "on-failure"}],
    }
    record, _ = house.run({"main": request}, volumes=[host("vol", source)])
    assert (record.exit_code, (source / "count").read_text()) == (0, "\n\n\n")
    notes = [note for note in record.notes if note.startswith("app main: volume")]
    assert notes == [
        "app main: volume vol hides what the image has at /etc",
        "app main: volume vol takes the place of the image's file /in/the/way",
    ]


def test_files_on_files(house, image, source, tmp_path):
    """V1: the image's is hidden, and told if there is something in it; what is missing is made, empty."""
    before = tree(tmp_path)
    request = app(
        image, "cat /over /etc/hosts /new/file; stat -c '%a %u %g' /new", "/over", "/etc/hosts", "/new/file"
    )
    record, output = house.run({"main": request}, volumes=[host("vol", source / "mark")])
    assert output == "here\nhere\nhere\n755 0 0\n"
    assert [note for note in record.notes if "vol" in note] == [
        "app main: volume vol hides what the image has at /over"
    ]
    assert {path: it for path, it in tree(tmp_path).items() if path in before and "/kurma-" not in path} == {
        path: it for path, it in before.items() if "/kurma-" not in path
    }


def test_an_apps_own_volume_and_what_is_read_only(house, source, tmp_path):
    """V4: an app's own volume comes before the pod's of that name; read-only is what either says."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mark").write_text("own\n")
    points, volumes = [], []
    for number, (point, volume) in enumerate(itertools.product((False, True), repeat=2)):
        points.append({"name": f"v{number}", "path": f"/v{number}", "readOnly": point})
        volumes.append(host(f"v{number}", source, readOnly=volume))
    points.append({"name": "vol", "path": "/own"})
    script = "for n in 0 1 2 3; do touch /v$n/made-$n 2>/dev/null && echo v$n; done; cat /own/mark"
    request = {
        "app": shell(script, mountPoints=points),
        "mounts": [{"volume": "vol", "path": "/own", "appVolume": host("vol", tmp_path / "own")}],
    }
    other = mounting("cat /vol/mark", "vol")
    _, output = house.run({"main": request, "other": other}, volumes=[*volumes, host("vol", source)])
    assert sorted(output.split()) == ["here", "own", "v0"]
    assert sorted(os.listdir(source)) == ["made-0", "mark"]


RACE = """
    cd /dev/shm; echo up
    while :; do
        mkdir -p t; mv t k; ln -s /pod/planted t; rm t; ln -s /proc/1/root/pod/planted t; rm t; ln -s t t; rm t
        echo x > t; rm t; mkfifo t; rm t; mv k t; rm -r t
    done 2>/dev/null
"""


@pytest.mark.full
def test_an_app_that_swaps_the_way_to_anothers_place(house, source):
    """V3: in the pod's shared memory, where both may make things, while the other one starts again and again."""
    victim = {
        "app": shell("cat /dev/shm/t/deep/x/mark > /told/$$ || exit 1"),
        "mounts": [{"volume": "vol", "path": "/dev/shm/t/deep/x"}, {"volume": "told", "path": "/told"}],
        "annotations": [{"name": "kurma.io/restart", "value": "always"}],
    }
    (told := source.parent / "told").mkdir()
    volumes = [host("vol", source, readOnly=True), host("told", told)]
    with house.running({"racer": shell(RACE)}, volumes=volumes) as pod:
        planted = house.path(pod, "pod/planted")
        os.mkdir(planted)
        until(lambda: house.log(pod, "racer") == "up\n", "the racer runs")
        messages = set()
        for number in range(5):
            name = f"victim-{number}"
            try:
                add(house, pod, victim, name)
            except StagerError as error:
                messages.add(str(error).partition(f"app {name}: ")[2])
        assert os.listdir(planted) == []
        assert os.listdir(source) == ["mark"]
        assert {path.read_text() for path in told.iterdir()} <= {"here\n", ""}
        assert all("volume vol: cannot be mounted at /dev/shm/t/deep/x: " in one for one in messages if one), (
            messages
        )
