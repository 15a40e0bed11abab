"""``kurma daemon reload``: what has changed, or why not; plugins that come, change and go while kurmad runs."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command import Kurma
from tests.kit.installed import make_above, unpack
from tests.kit.waiting import until
from tests.registry.conftest import NETWORK

pytestmark = pytest.mark.root

SERVICE = """
import threading
from kurma_core.cancellation import current
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver

class Service:
    def __init__(self, context): pass
    @hookimpl
    def serve(self, host):
        host.ready()
        ended = threading.Event()
        with current().waking(ended.set):
            ended.wait()

@hookimpl
def kurma_service():
    return Driver(Service)
"""
EXAMPLES = Path(__file__).parents[3] / "examples/plugins"
QUIET = {"daemon": {"prestarted_stagers": 0}}


class Site:
    """A directory of ``PYTHONPATH`` in which distributions are installed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()

    def install(self, version: str, source: str = NETWORK, *, group: str = "kurma.networks") -> None:
        """One distribution, ``kurma-cable``, of that version alone."""
        self.uninstall()
        entry = f"[{group}]\ncable = kurma_cable"
        unpack(self.directory, "kurma-cable", entry, {"kurma_cable": source}, version=version)

    def uninstall(self) -> None:
        for info in self.directory.glob("*.dist-info"):
            for file in info.iterdir():
                file.unlink()
            info.rmdir()
        self.module.unlink(missing_ok=True)

    @property
    def module(self) -> Path:
        return self.directory / "kurma_cable.py"


class Place:
    """A kurmad, its configuration and its log."""

    def __init__(self, kurma: Kurma, config: Path, log: Path, site: Site) -> None:
        self.kurma = kurma
        self.config = config
        self.log = log
        self.site = site
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                [self.kurma.program, "daemon", "run"],
                env=self.kurma.environment,
                stdin=subprocess.DEVNULL,
                stderr=stream,
            )
        until(lambda: "serves" in self.log.read_text(), lambda: f"kurmad: {self.log.read_text()}")

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            assert self.process.wait(20) == 0
            self.process = None

    def configure(self, **values: Any) -> None:
        self.config.write_text(json.dumps({**QUIET, **values}))

    def reload(self) -> list[str]:
        """The lines of a reload that succeeds."""
        return self.kurma.out("daemon", "reload").splitlines()

    def refused(self) -> list[str]:
        done = self.kurma("daemon", "reload")
        assert done.returncode == 125, done.stdout + done.stderr
        assert done.stdout.startswith("kurmad keeps the configuration that it read at 20")
        return [line.removeprefix("kurma: ") for line in done.stderr.splitlines() if line.startswith("kurma: ")]


@pytest.fixture
def place(tmp_path: Path, kurma_command: Kurma, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    site = Site(tmp_path / "site")
    kurma = Kurma(tmp_path / "state", tmp_path / "kurma.json", kurma_command.image)
    kurma.environment["PYTHONPATH"] = str(site.directory)
    found = Place(kurma, tmp_path / "kurma.json", tmp_path / "kurmad.log", site)
    found.configure()
    yield found
    found.stop()


@pytest.fixture
def kurmad(place: Place) -> Callable[[], Place]:
    def start() -> Place:
        place.start()
        return place

    return start


def test_what_has_changed(kurmad: Callable[[], Place]) -> None:
    place = kurmad()
    assert place.reload() == ["nothing that takes effect is new"]
    place.configure(renderer="copy", stop_timeout=7, prefetch_images=[])
    assert place.reload() == ["renderer: overlay → copy", "stop_timeout: 10.0 → 7.0"]
    log = place.log.read_text()
    assert "renderer: overlay → copy" in log
    assert "the configuration was read again: new: renderer, stop_timeout" in log
    place.configure(renderer="copy", stop_timeout=8, run_dir="/run/elsewhere")
    report = place.kurma.json("daemon", "reload")
    assert report["changed"] == [{"key": "stop_timeout", "change": "changed", "before": 7.0, "after": 8.0}]
    assert report["fixed"] == []  # KURMA_DIR moves the run directory, whatever the files say
    assert (report["files"], report["problems"]) == ([str(place.config)], [])
    assert report["at"] == report["inForce"]
    info = place.kurma.json("info")["daemon"]
    assert (info["configuration"], info["configurationRead"]) == (str(place.config), report["at"])
    events = [
        json.loads(line)
        for line in place.kurma.out("events", "--since", "0", "--no-follow", "--format", "json").splitlines()
    ]
    kinds = [(event["kind"], event["detail"].get("changed")) for event in events if event["subject"] == "daemon"]
    assert kinds == [
        ("started", None),
        ("reloaded", ""),
        ("reloaded", "renderer, stop_timeout"),
        ("reloaded", "stop_timeout"),
    ]


def test_a_refusal_says_why_and_changes_nothing(kurmad: Callable[[], Place]) -> None:
    place = kurmad()
    before = place.kurma.json("info")["daemon"]
    place.configure(stop_timeout=7, renderer="cpoy", plugins={"isolators": {"linux": {"config": {"typo": 1}}}})
    checked = place.kurma("--host", "local", "config", "check").stderr.splitlines()
    said = place.refused()
    assert said == [line.removeprefix("kurma: ") for line in checked if line.startswith("kurma: ")]
    assert len(said) == 2
    for line in said:
        assert f"kept the old configuration: {line}" in place.log.read_text()
    now = place.kurma.json("info")["daemon"]
    assert now["refused"] is not None
    assert now["configurationRead"] == before["configurationRead"]
    assert place.kurma.json("info")["renderer"] == "overlay"
    # A file that cannot be read is refused alike.
    place.config.write_text('{"renderr": "copy"}')
    assert any("unknown key" in line for line in place.refused())
    kinds = [
        json.loads(line)["kind"]
        for line in place.kurma("events", "--since", "0", "--no-follow", "--format", "json").stdout.splitlines()
    ]
    assert kinds[-2:] == ["reload-refused", "reload-refused"]
    place.configure(stop_timeout=7)
    assert place.reload() == ["stop_timeout: 10.0 → 7.0"]
    assert place.kurma.json("info")["daemon"]["refused"] is None


def test_many_at_once_and_one_that_leaves(kurmad: Callable[[], Place]) -> None:
    place = kurmad()
    place.configure(stop_timeout=7)
    leaving = place.kurma.popen("daemon", "reload")
    leaving.send_signal(signal.SIGKILL)
    codes: list[int] = []
    ask = [
        threading.Thread(target=lambda: codes.append(place.kurma("daemon", "reload").returncode)) for _ in "1234"
    ]
    for thread in ask:
        thread.start()
    for thread in ask:
        thread.join()
    leaving.communicate()
    assert codes == [0, 0, 0, 0]
    assert place.log.read_text().count("stop_timeout: 10.0 → 7.0") == 1
    assert place.reload() == ["nothing that takes effect is new"]


def test_without_kurmad(place: Place) -> None:
    done = place.kurma("daemon", "reload")
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.splitlines() == [
        f"kurma: cannot reload kurmad: it does not run for {place.kurma.state}",
        "  hint: without kurmad, each command reads the configuration itself",
    ]


def test_plugins_come_and_go(kurmad: Callable[[], Place]) -> None:
    place = kurmad()
    place.configure(container_networks=[{"name": "mine", "plugin": "cable"}])
    assert any("no network plugin 'cable' is installed" in line for line in place.refused())
    place.site.install("0.1.0")
    assert place.reload() == ["container_networks: changed", "plugin networks/cable: kurma-cable 0.1.0 is new"]
    (mine,) = [one for one in place.kurma.json("network", "list") if one["name"] == "mine"]
    assert (mine["driver"], mine["problem"]) == ("cable", None)
    # An upgrade: what is loaded works on.
    place.site.install("0.2.0", "import nothing_of_this_name")
    line = (
        "plugin networks/cable: kurma-cable 0.1.0 → kurma-cable 0.2.0: "
        "0.2.0 is installed, 0.1.0 is loaded: restart kurmad"
    )
    assert place.reload() == [line]
    assert line in place.log.read_text()
    (mine,) = [one for one in place.kurma.json("network", "list") if one["name"] == "mine"]
    assert mine["problem"] is None
    place.configure()
    place.site.uninstall()
    assert place.reload() == [
        "container_networks: changed",
        "plugin networks/cable: kurma-cable 0.2.0 → uninstalled",
    ]


@pytest.mark.parametrize("imports", [False, True], ids=["a path", "a finder"])
def test_an_editable_install_while_kurmad_runs(place: Place, tmp_path: Path, *, imports: bool) -> None:
    """18.3: kurmad reads the ``.pth`` file of the install."""
    program, packages = make_above(tmp_path / "venv")
    place.kurma.program = str(program)
    sources = tmp_path / "kurma-cable"
    sources.mkdir()
    place.start()
    place.configure(container_networks=[{"name": "mine", "plugin": "cable"}])
    place.site.directory = packages
    place.site.install("0.1.0")
    place.site.module.rename(sources / "kurma_cable.py")
    finder = f"import sys\nsys.path.append({str(sources)!r})\n"
    (packages / "cable_finder.py").write_text(finder)
    (packages / "cable.pth").write_text("import cable_finder\n" if imports else f"{sources}\n")
    assert place.kurma("config", "check").returncode == 0
    assert place.reload() == ["container_networks: changed", "plugin networks/cable: kurma-cable 0.1.0 is new"]
    assert known(row(place)) == ("0.1.0", "0.1.0", "ok", "", "kurmad")
    assert place.reload() == ["nothing that takes effect is new"]


def test_a_changed_file_of_an_editable_install(kurmad: Callable[[], Place]) -> None:
    place = kurmad()
    place.site.install("0.1.0")
    place.configure(container_networks=[{"name": "mine", "plugin": "cable"}])
    assert len(place.reload()) == 2
    place.site.module.write_text(f"{NETWORK}\n# changed\n")
    changed = "its files, or Kurma's hooks, have changed since it was loaded"
    assert place.reload() == [f"plugin networks/cable: kurma-cable 0.1.0: {changed}: restart kurmad"]


def test_a_plugin_that_was_broken_when_it_was_loaded_and_is_mended(kurmad: Callable[[], Place]) -> None:
    place = kurmad()
    place.site.install("0.1.0", "import nothing_of_this_name")
    place.configure(container_networks=[{"name": "mine", "plugin": "cable"}])
    assert any("is broken: ModuleNotFoundError" in line for line in place.refused())
    place.site.install("0.1.1")
    assert place.reload() == ["container_networks: changed", "plugin networks/cable: kurma-cable 0.1.1 is new"]


SKIPS = (
    NETWORK.replace("    return Driver(", "    skip()\n    return Driver(")
    + """
import os
from kurma_core.errors import PluginSkipped
def skip():
    if not os.path.exists(__file__ + ".needed"):
        raise PluginSkipped("the host lacks it")
"""
)
WORKS = "plugin networks/cable: kurma-cable 0.1.0: works now"


@pytest.mark.parametrize("source", ["import nothing_of_this_name", SKIPS], ids=["raises", "skipped"])
def test_a_plugin_that_failed_and_is_mended_in_place(place: Place, source: str) -> None:
    """18.3: without another version, and without a restart of kurmad."""
    place.site.install("0.1.0", source)
    place.configure(container_networks=[{"name": "mine", "plugin": "cable"}])
    place.start()
    until(lambda: "the configuration is wrong: " in place.log.read_text(), "kurmad has tried to load it")
    assert len(place.refused()) == 1
    hint = "  hint: if nothing_of_this_name is installed, restart kurmad"
    assert (hint in place.kurma("daemon", "reload").stderr.splitlines()) == (source != SKIPS)
    if source == SKIPS:
        (place.site.directory / "kurma_cable.py.needed").touch()
    else:
        place.site.module.write_text(NETWORK)
    assert place.reload() == [WORKS]
    (mine,) = [one for one in place.kurma.json("network", "list") if one["name"] == "mine"]
    assert mine["problem"] is None
    assert place.reload() == ["nothing that takes effect is new"]


def test_a_service_that_failed_and_is_mended_in_place(place: Place) -> None:
    """C1, 18.3: the reload starts it."""
    place.site.install("0.1.0", "import nothing_of_this_name", group="kurma.services")
    place.configure(plugins={"services": {"cable": {}}})
    place.start()
    until(lambda: "service cable: failed: " in place.log.read_text(), "the service has failed")
    place.site.module.write_text(SERVICE)
    assert place.reload() == [WORKS.replace("networks", "services")]
    until(lambda: "service cable: running" in place.log.read_text(), "the service runs")


def test_an_optional_plugin_that_is_broken_is_left_out(kurmad: Callable[[], Place]) -> None:
    """18.3: the reload takes effect without it. What is required, or wrong in the configuration, is refused."""
    place = kurmad()
    place.site.install(
        "0.1.0", SERVICE.replace("(self, context): pass", "(self, context): {}['x']"), group="kurma.services"
    )
    place.configure(stop_timeout=7, plugins={"services": {"cable": {}}})
    failure = "left out: service plugin 'cable' of kurma-cable 0.1.0 is broken: KeyError: 'x'"
    done = place.kurma("--host", "local", "config", "check")
    assert (done.returncode, notes(done)[0]) == (0, failure)
    assert place.reload() == [
        "stop_timeout: 10.0 → 7.0",
        "plugins.services.cable: new",
        f"plugin services/cable: kurma-cable 0.1.0 is new: {failure}",
    ]
    assert place.kurma.json("info")["daemon"]["refused"] is None
    until(lambda: "service cable: waiting: " in place.log.read_text(), "the service is tried again")
    assert place.reload() == [f"plugin services/cable: kurma-cable 0.1.0: {failure}"]
    place.configure(stop_timeout=8, plugins={"services": {"cable": {"required": True}}})
    assert len(place.refused()) == 1
    place.configure(stop_timeout=8, plugins={"services": {"cable": {"config": {"typo": 1}}}})
    assert ["unknown key" in line for line in place.refused()] == [True]
    place.configure(stop_timeout=8)
    place.stop()
    place.log.write_text("")
    place.configure(plugins={"services": {"cable": {}}})
    place.start()
    until(lambda: f"{failure}\n" in place.log.read_text(), "the log of the start")


def test_a_wrong_configuration_is_logged_at_the_start(place: Place) -> None:
    place.configure(required_isolators={"example.com/gone": True})
    place.start()
    said = "the configuration is wrong: "
    until(lambda: said in place.log.read_text(), "the log")
    (line,) = place.kurma("config", "check").stderr.splitlines()[:1]
    until(lambda: f"{said}{line.removeprefix('kurma: ')}" in place.log.read_text(), "the same as config check")


# --- a configuration that kurmad has not read ---


def notes(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.removeprefix("kurma: ") for line in done.stderr.splitlines()]


@pytest.fixture
def unread(kurmad: Callable[[], Place]) -> Place:
    """A kurmad whose configuration has changed since it read it."""
    place = kurmad()
    assert notes(place.kurma("list")) == []
    place.configure(stop_timeout=7)
    return place


def test_a_newer_file_is_told_at_once(unread: Place) -> None:
    pid = unread.process.pid if unread.process else 0
    told = f"kurmad (process {pid}) has not read the present {unread.config}: kurma daemon reload"
    for words in (
        ("list",),
        ("image", "list", "--format", "json"),
        ("info",),
        ("run", "--rm", "--net", "none", unread.kurma.image),
        ("prepare", "--net", "none", unread.kurma.image),
        ("network", "list"),
        ("events", "--since", "0", "--no-follow"),
        ("config", "show"),
        ("config", "check"),
        ("plugins", "list"),
    ):
        done = unread.kurma(*words)
        assert done.returncode in (0, 3), done.stderr
        assert notes(done).count(told) == 1, (words, done.stderr)
    # The output stays clean; a command that does without kurmad says nothing.
    assert json.loads(unread.kurma("image", "list", "--format", "json").stdout)
    assert notes(unread.kurma("--host", "local", "list")) == []
    # Touched, or changed and changed back: nothing.
    unread.configure()
    assert notes(unread.kurma("list")) == []
    unread.configure(stop_timeout=7)
    assert notes(unread.kurma("list")) == [told]
    assert unread.kurma("daemon", "reload").returncode == 0
    assert notes(unread.kurma("list")) == []


def test_detached(unread: Place) -> None:
    done = unread.kurma("run", "-d", "--net", "none", unread.kurma.image)
    assert [line for line in notes(done) if "has not read" in line]
    assert len(done.stdout.split()) == 1
    unread.kurma.out("rm", "--force", done.stdout.strip())


def test_an_address_is_taken_as_it_is(unread: Place) -> None:
    socket = f"unix:{unread.kurma.state}/run/kurmad.sock"
    assert notes(unread.kurma("--host", socket, "list")) == []


@pytest.mark.parametrize("verb", ["prepare", "run"])
def test_the_hint_of_a_network_that_is_not_known(unread: Place, verb: str) -> None:
    unread.configure(container_networks=[{"name": "mine", "plugin": "bridge"}])
    done = unread.kurma(verb, "--net", "mine", unread.kurma.image)
    assert done.returncode == 125
    note, error, hint = done.stderr.splitlines()[-3:]
    assert "has not read" in note
    assert "'mine'" in error or "mine" in error
    assert hint.startswith("  hint: ")
    assert hint.endswith(f"has not read the present {unread.config}: kurma daemon reload")


def test_a_file_that_was_refused(unread: Place) -> None:
    unread.configure(renderer="cpoy")
    assert len(unread.refused()) > 0
    (note,) = notes(unread.kurma("list"))
    assert note.endswith(f"has refused the present {unread.config}: kurma config check says why")
    unread.configure(stop_timeout=9)
    (note,) = notes(unread.kurma("list"))
    assert note.endswith(f"has not read the present {unread.config}: kurma daemon reload"), "it is mended"


def test_another_file(kurmad: Callable[[], Place], tmp_path: Path) -> None:
    place = kurmad()
    other = tmp_path / "other.json"
    other.write_text('{"stop_timeout": 3}')
    (note,) = notes(place.kurma("--config", str(other), "list"))
    does = "restart it with that one, or add --host local"
    assert note.endswith(f"reads {place.config}, not --config {other}: {does}")
    (note,) = notes(place.kurma("list", env={"KURMA_CONFIG": str(other)}))
    assert note.endswith(f"reads {place.config}, not KURMA_CONFIG {other}: {does}")
    # The same values in another file.
    other.write_text(place.config.read_text())
    assert notes(place.kurma("--config", str(other), "list")) == []
    # A broken file that is not kurmad's own is an error; its own is not, so that pods can be stopped.
    other.write_text('{"stop_timeot": 3}')
    done = place.kurma("--config", str(other), "list")
    assert (done.returncode, done.stdout) == (125, "")
    assert "unknown key" in done.stderr
    place.config.write_text('{"stop_timeot": 3}')
    done = place.kurma("list")
    assert done.returncode == 0
    assert "kurmad goes on with the configuration that it has read before" in done.stderr


@pytest.mark.parametrize("words", ["config check", "config show", "daemon reload", "plugins list", "list"])
def test_a_file_that_cannot_be_read_is_told_once(kurmad: Callable[[], Place], words: str) -> None:
    place = kurmad()
    place.config.write_text('{"stop_timeot": 3}')
    done = place.kurma(*words.split())
    assert done.returncode == (0 if words == "list" else 125)
    assert done.stderr.count("stop_timeot: unknown key") == 1, done.stderr


# --- plugins of the process that does the work ---


def row(place: Place, *options: str) -> Any:
    found = [one for one in place.kurma.json("plugins", "list", *options) if one["name"] == "cable"]
    return found[0] if found else None


def known(found: Any) -> tuple[Any, ...]:
    return tuple(found[key] for key in ("version", "loaded", "status", "reason", "process"))


def test_the_listing_is_of_what_kurmad_has_loaded(kurmad: Callable[[], Place]) -> None:
    place = kurmad()
    place.site.install("0.1.0")
    unseen = ("0.1.0", None, "found", "kurmad does not see it: kurma daemon reload", "this command")
    assert known(row(place)) == unseen
    assert known(row(place, "--here")) == ("0.1.0", "0.1.0", "ok", "", "this command")
    assert len(place.reload()) == 1
    # The reload imports plugins that the index lacks, to find collisions; a listing imports nothing into kurmad.
    first = known(row(place))
    assert first in (
        ("0.1.0", None, "ok", "kurmad has not loaded it yet", "kurmad"),
        ("0.1.0", "0.1.0", "ok", "", "kurmad"),
    )
    assert known(row(place)) == first
    assert known(row(place, "--no-load")) == ("0.1.0", first[1], "found", "", "kurmad")
    place.configure(container_networks=[{"name": "mine", "plugin": "cable"}])
    place.reload()
    assert known(row(place)) == ("0.1.0", "0.1.0", "ok", "", "kurmad")
    place.site.install("0.2.0")
    told = "0.2.0 is installed, 0.1.0 is loaded: restart kurmad"
    assert known(row(place)) == ("0.2.0", "0.1.0", "outdated", told, "kurmad")
    place.configure()
    place.reload()
    assert known(row(place)) == ("0.2.0", "0.1.0", "outdated", told, "kurmad"), "loaded, and no longer in use"
    assert place.kurma.json("plugins", "show", "networks/cable")["status"] == "outdated"
    place.stop()
    assert known(row(place)) == ("0.2.0", "0.2.0", "ok", "", "this command")
    place.log.write_text("")
    place.start()
    assert known(row(place))[:3] in (("0.2.0", "0.2.0", "ok"), ("0.2.0", None, "ok"))
    place.site.uninstall()
    assert known(row(place))[3:] == (
        "this command does not see it: it was uninstalled, or kurmad runs another Python",
        "kurmad",
    )
    for one in place.kurma.json("plugins", "list"):
        assert one["distribution"] is not None
        assert one["version"] is not None


def test_the_listing_has_what_fails_without_being_loaded(kurmad: Callable[[], Place]) -> None:
    """18.3: of a configuration and of installed plugins that kurmad has not read."""
    place = kurmad()
    place.configure(plugins={"networks": {"cable": {"required": True}}})
    found = row(place)
    assert (found["status"], found["distribution"]) == ("failed", None)
    assert found["reason"].startswith("not installed, and ")
    place.site.install("0.1.0", group="kurma.network")
    found = [one for one in place.kurma.json("plugins", "list") if one["distribution"] == "kurma-cable"]
    assert [one["status"] for one in found] == ["failed"]


def test_a_distribution_without_a_version(place: Place) -> None:
    place.site.install("0.1.0")
    (info,) = place.site.directory.glob("*.dist-info")
    (info / "METADATA").unlink()
    found = row(place)
    assert (found["distribution"], found["version"], found["status"]) == ("an unnamed distribution", "?", "ok")


def test_a_plugin_that_is_enabled_is_read_by_a_reload(kurmad: Callable[[], Place], tmp_path: Path) -> None:
    """``kurma plugins enable`` says that kurmad has not read it."""
    place = kurmad()
    etc = tmp_path / "etc/kurma.d"
    etc.mkdir(parents=True)
    done = place.kurma("plugins", "disable", "fetchers", "docker", env={"KURMA_CONFIG": str(etc.parent)})
    assert done.returncode == 0, done.stderr
    assert "kurma: kurmad uses the old setting until: kurma daemon reload" in done.stderr.splitlines()


def links() -> set[str]:
    return {link["ifname"] for link in json.loads(subprocess.check_output(["ip", "-j", "link"]))}


def test_a_plugin_that_kurmad_has_not_seen_leaves_the_network(kurmad: Callable[[], Place]) -> None:
    """18.3: of a pod that another process has started. For a new pod, kurmad says what to do."""
    place = kurmad()
    network = {"name": "mine", "plugin": "cable", "subnet": "10.77.0.0/24"}
    place.configure(container_networks=[network])
    place.stop()
    place.log.write_text("")
    place.start()
    place.site.install("0.1.0", (EXAMPLES / "network/kurma_example_cable.py").read_text())
    script = ("--exec", "/bin/sh", place.kurma.image, "--", "-c", "echo up; exec sleep 1000")
    process = place.kurma.popen("--host", "local", "run", "--name", "web", "--net", "mine", *script)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    before = links()
    process.kill()
    process.communicate()
    done = place.kurma("rm", "--force", "web")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(before - links()) == 1
    assert place.kurma.json("list") == []
    done = place.kurma("run", "--rm", "--net", "mine", place.kurma.image)
    unseen = "network plugin 'cable' of kurma-cable 0.1.0 was installed since kurmad has looked"
    assert unseen in done.stderr
    assert done.stderr.splitlines()[-1] == "  hint: kurma daemon reload"
    assert known(row(place))[3:] == ("kurmad does not see it: kurma daemon reload", "this command")


def test_an_uninstalled_network_is_left_by_the_pods_that_are_joined(kurmad: Callable[[], Place]) -> None:
    """By the driver that kurmad has made before."""
    example = EXAMPLES / "network/kurma_example_cable.py"
    place = kurmad()
    place.site.install("0.1.0", example.read_text())
    place.configure(container_networks=[{"name": "mine", "plugin": "cable", "subnet": "10.77.0.0/24"}])
    place.reload()
    words = ("--net", "mine", "--exec", "/bin/sleep", place.kurma.image, "--", "1000")
    uuid = place.kurma.out("run", "-d", *words).strip()
    (attachment,) = [one for one in place.kurma.pod(uuid)["networks"] if one["network"] == "mine"]
    assert attachment["driver"] == "cable"
    before = links()
    place.configure()
    place.site.uninstall()
    assert len(place.reload()) == 2
    place.kurma.out("stop", uuid)
    assert len(before - links()) == 1
    place.kurma.out("rm", uuid)
    assert "error: " not in place.log.read_text().rpartition("→ uninstalled")[2]


@pytest.mark.parametrize("end", ["stop", "rm --force"])
def test_an_uninstalled_stager_ends_the_pods_that_it_runs(kurmad: Callable[[], Place], end: str) -> None:
    """18.3: by the driver that kurmad has made before."""
    place = kurmad()
    package = place.site.directory / "kurma_example_solo"
    shutil.copytree(EXAMPLES / "stager/kurma_example_solo", package)
    place.site.install("0.1.0", "from kurma_example_solo.plugin import kurma_stager", group="kurma.stagers")
    place.configure(stagers={"mine": {"driver": "cable", "without_isolators": True}})
    place.reload()
    script = "trap 'exit 0' TERM; while :; do sleep 0.02; done"
    words = ("--stager", "mine", "--net", "none", "--exec", "/bin/sh", place.kurma.image, "--", "-c", script)
    uuid = place.kurma.out("run", "-d", *words).strip()
    until(lambda: place.kurma.pod(uuid)["apps"]["busybox"]["pid"], "the stager has loaded its modules")
    place.configure()
    place.site.uninstall()
    shutil.rmtree(package)
    assert "plugin stagers/cable: kurma-cable 0.1.0 → uninstalled" in place.reload()
    assert place.kurma.pod(uuid)["state"] == "running"
    place.kurma.out(*end.split(), uuid)
    if end == "stop":
        assert place.kurma.pod(uuid)["state"] == "stopped"
        place.kurma.out("rm", uuid)
    assert place.kurma.json("list") == []
    assert "error: " not in place.log.read_text().rpartition("→ uninstalled")[2]


@pytest.mark.parametrize("source", ['{}["mtu"]', "raise KeyboardInterrupt"], ids=["KeyError", "KeyboardInterrupt"])
def test_a_plugin_that_fails_in_kurmad(kurmad: Callable[[], Place], source: str) -> None:
    """18.3: the client gets the plugin's name, and kurmad logs the trace, once."""
    place, add = kurmad(), "def add(self, context): "
    place.site.install("0.1.0", NETWORK.replace(f"{add}pass", add + source))
    place.configure(container_networks=[{"name": "mine", "plugin": "cable"}])
    place.reload()
    done = place.kurma("run", "--rm", "--net", "mine", "--exec", "/bin/true", place.kurma.image)
    assert done.returncode == 125
    assert "network plugin 'cable' of kurma-cable 0.1.0 failed in add: Key" in done.stderr
    assert "  hint: this is a mistake in the plugin; the log of kurmad shows where" in done.stderr.splitlines()
    log = place.log.read_text()
    assert log.count("Traceback (most recent call last):") == 1
    assert "kurma_cable.py" in log
    assert "; request: POST /v1/pods" in log
    assert place.kurma.json("list") == []


@pytest.mark.full
def test_a_teardown_that_fails_is_tried_and_logged_ever_more_rarely(kurmad: Callable[[], Place]) -> None:
    """18.3: the network is uninstalled, and kurmad is started anew."""
    place, source = kurmad(), (EXAMPLES / "network/kurma_example_cable.py").read_text()
    network = {"name": "mine", "plugin": "cable", "subnet": "10.77.0.0/24"}
    place.site.install("0.1.0", source)
    place.configure(container_networks=[network])
    place.reload()
    words = ("--net", "mine", "--exec", "/bin/sleep", place.kurma.image, "--", "1000")
    uuid = place.kurma.out("run", "-d", *words).strip()
    place.configure()
    place.site.uninstall()
    place.stop()
    place.log.write_text("")
    place.start()
    # It fails with that line if it is what takes the pod down; kurmad may be faster.
    place.kurma("stop", uuid)
    line = f"error: pod {uuid}: teardown is not complete: network \"mine\": no network plugin 'cable' is installed"

    def written() -> list[str]:
        return [text.partition(line)[2] for text in place.log.read_text().splitlines() if line in text]

    until(lambda: any("times since" in text for text in written()), place.log.read_text, 60)
    # By the command, by kurmad on its own, and once for what it has tried after 1, 3, 7 and 15 s.
    *first, last = written()
    assert len(first) <= 2
    assert last.startswith(" (4 times since ")
    place.site.install("0.1.0", source)
    place.configure(container_networks=[network])
    place.reload()
    place.kurma.out("rm", uuid)
    assert place.kurma.json("list") == []
