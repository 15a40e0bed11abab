"""Apps of a mutable pod, by their files: whoever dies while he adds or removes one, it can be taken away (G10)."""

import json

import pytest
from kurma_stager_rkt import apps, entrypoints, pod_files, roots
from kurma_stager_rkt.apps import PodApps
from kurma_stager_rkt.records import Note, app_statuses
from kurma_stager_rkt.stage1_image import ENTRYPOINTS, Stage1
from kurma_testing.stagers import pod_setup

from kurma_core.errors import StagerError
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.value import replace

UUID = "146d7cef-fbf6-41da-a2f8-eba218597f9c"


class Died(BaseException):
    """Of who changes the pod."""


class Pod:
    """A mutable pod's directory, and a stage1 that knows which apps it has; what has no such app fails."""

    def __init__(self, tmp_path, monkeypatch):
        self.place, layer = tmp_path / "pod", tmp_path / "layer"
        layer.mkdir()
        (layer / "file").write_text("of the image")
        for directory in (
            "appsinfo",
            *(f"stage1/rootfs/{name}" for name in ("opt/stage2", "rkt/env", "rkt/status")),
        ):
            (self.place / directory).mkdir(parents=True)
        (self.place / "pod").write_text(json.dumps({"apps": [], "volumes": []}))
        (self.place / "pod.lck").touch()
        self.setup = pod_setup(tmp_path / "kurma", layer, ("/bin/true",))
        self.known, self.asked, self.told = set(), [], []
        monkeypatch.setattr(entrypoints, "ask", self._ask)
        stage1 = Stage1("example.com/s", 5, dict.fromkeys(ENTRYPOINTS, "/ex"))
        note = Note("cgroup", "id", "path", stage1, debug=True, mutable=True, lifted=("seccomp",))
        self.apps = PodApps(None, note, str(self.place), UUID, self.told.append)

    def _ask(self, start, note, place, name, words, timeout, cgroup):
        assert cgroup == f"cgroup/apps/app/{name.removeprefix('app/')}"
        self.asked.append((name, *words))
        if name == "app/add":
            self.known.add("app")
        elif "app" not in self.known:
            raise StagerError("no such app", status=1)
        elif name == "app/rm":
            self.known.remove("app")

    def files(self):
        return sorted(str(path.relative_to(self.place)) for path in self.place.rglob("*"))

    def manifest(self):
        return json.loads((self.place / "pod").read_text())


@pytest.fixture
def pod(tmp_path, monkeypatch):
    return Pod(tmp_path, monkeypatch)


STEPS = [
    (pod_files, "write_app_info"),
    (pod_files, "write_app"),
    (roots, "make_app"),
    (apps, "_touch"),
    (apps, "replace_file"),
    (entrypoints, "ask"),
    (roots, "remove_in"),
    (roots, "forget_app"),
    (apps, "_drop"),
]


@pytest.mark.parametrize("after", [1, 2, 3, 4])
@pytest.mark.parametrize(("module", "name"), STEPS, ids=[name for _, name in STEPS])
@pytest.mark.parametrize("doing", ["add", "remove"])
def test_who_changes_it_dies(pod, monkeypatch, module, name, after, doing):
    """After any step; what is left goes by the next removal, and stage1 does not know the app any more."""
    before = pod.files()
    if doing == "remove":
        pod.apps.add(pod.setup, "copy")
    whole, left = getattr(module, name), [after]

    def dying(*given, **named):
        found = whole(*given, **named)
        left[0] -= 1
        if not left[0]:
            raise Died
        return found

    with monkeypatch.context() as patched:
        patched.setattr(module, name, dying)
        try:
            pod.apps.add(pod.setup, "copy") if doing == "add" else pod.apps.remove("app", ("data",))
        except Died:
            assert not left[0]
    pod.apps.remove("app", ("data",))
    assert (pod.files(), pod.manifest(), pod.known) == (before, {"apps": [], "volumes": []}, set())


def test_what_stage1_does_not_let_go(pod):
    """An app that it has stays, if it says so; one that it never had goes."""
    pod.apps.add(pod.setup, "copy")
    assert (pod.place / "stage1/rootfs/opt/stage2/app/rootfs/file").read_text() == "of the image"
    environment = (pod.place / "stage1/rootfs/rkt/env/app").read_text().splitlines()
    assert environment == [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        *("SHELL=/bin/sh", "USER=root", "LOGNAME=root", "HOME=/root", "AC_APP_NAME=app", "KURMA_TEST=yes"),
    ]
    there = pod.files()
    pod.known.clear()
    for _ in range(2):
        with pytest.raises(StagerError, match="no such app"):
            pod.apps.remove("app", ())
        assert (pod.files(), [app["name"] for app in pod.manifest()["apps"]]) == (there, ["app"])
    assert pod.told == []
    pod.known.add("app")
    pod.apps.remove("app", ())
    pod.apps.remove("app", ())
    assert pod.asked == [
        ("app/add", "--app=app", "--debug", f"--uuid={UUID}", "--disable-seccomp"),
        *[("app/stop", "--app=app", "--debug")] * 3,
        ("app/rm", "--app=app", "--debug"),
    ]


def test_a_link_that_stage1_has_made(pod, tmp_path):
    """Leads nobody out of its root."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = pod.place / "stage1/rootfs/rkt/env"
    env.rmdir()
    env.symlink_to(elsewhere)
    pod.apps.add(pod.setup, "copy")
    assert list(elsewhere.iterdir()) == []
    assert (pod.place / f"stage1/rootfs{elsewhere}/app").is_file()


def test_links_that_its_image_has(pod, tmp_path):
    """At its start neither: what is written into stage1's root is in that root."""
    elsewhere = tmp_path / "elsewhere"
    for name in ("stage2", "env", "status", "etc"):
        (elsewhere / name).mkdir(parents=True)
    rootfs = pod.place / "stage1/rootfs"
    for path, name in (("opt/stage2", "stage2"), ("rkt/env", "env"), ("rkt/status", "status")):
        (rootfs / path).rmdir()
        (rootfs / path).symlink_to(elsewhere / name)
    (rootfs / "etc").symlink_to("../../../../../elsewhere/etc")
    setup = replace(pod.setup, hosts=(("127.0.0.1", ("here",)),), asked=("hosts",))
    pod_files.write_rootfs(str(pod.place), setup)
    pod_files.write_environment(str(pod.place), setup, setup.apps[0])
    assert [path for path in elsewhere.rglob("*") if path.is_file()] == []
    inside = sorted(path.name for path in rootfs.rglob("*") if path.is_file())
    assert inside == ["app", "manifest", "rkt-hosts"]


def test_whose_file_an_error_is_of(pod):
    """By its path; what is of another descriptor, whose number begins alike, stays what it is."""

    def told(end):
        with pytest.raises(OSError) as raised, pod_files.inside(str(pod.place), "opt") as opt:
            raise OSError(2, "gone", opt + end)
        return raised.value.filename

    opt = f"{pod.place}/stage1/rootfs/opt"
    assert (told(""), told("/app")) == (opt, f"{opt}/app")
    assert told("1/app").startswith("/proc/self/fd/")


@pytest.mark.parametrize("path", ["app", "app/rootfs"])
def test_a_link_in_an_apps_place(pod, tmp_path, path):
    """Is no directory for it: nothing is written where it leads."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = pod.place / "stage1/rootfs/opt/stage2" / path
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere)
    with pytest.raises(FileExistsError) as raised:
        pod_files.write_rootfs(str(pod.place), pod.setup)
    assert raised.value.filename == str(link)
    assert list(elsewhere.iterdir()) == []


def test_what_is_told_of_an_app(pod):
    """Whether it was started, and how it has ended, last."""

    def status():
        found = app_statuses(str(pod.place), alive=True, mutable=True)["app"]
        return found.started_at is not None, found.exited, found.exit_code

    pod.apps.add(pod.setup, "copy")
    assert status() == (False, False, None)
    pod.apps.start("app", 10)
    assert status() == (True, False, None)
    (pod.place / "stage1/rootfs/rkt/status/app").write_text("7\n")
    assert status() == (True, True, 7)
    pod.apps.start("app", 10)
    assert status() == (True, False, None)
    pod.known.clear()
    with pytest.raises(StagerError):
        pod.apps.start("app", 10)
    assert status() == (False, False, None)


def test_a_privileged_app_in_a_user_namespace(pod, monkeypatch):
    """Is told of as such when it is added: its walls are its own."""
    asked = []
    monkeypatch.setattr(entrypoints, "ask", lambda *given: asked.append(given[4]))
    stage1 = Stage1("example.com/s", 5, dict.fromkeys(ENTRYPOINTS, "/ex"))
    note = Note("cgroup", "id", "path", stage1, mutable=True, private_users=(70000, 65536))
    setup = replace(pod.setup, plans={"app": IsolatorPlan(privileged=True)})
    PodApps(None, note, str(pod.place), UUID, pod.told.append).add(setup, "copy")
    walls = ("--disable-capabilities-restriction", "--disable-paths", "--disable-seccomp")
    assert asked == [("--app=app", f"--uuid={UUID}", *walls, "--private-users=70000:65536")]
