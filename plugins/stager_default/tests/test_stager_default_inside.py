"""The half inside, as far as it runs without a pod: JSON, the manifest, logs, reasons, arguments."""

import errno
import json
import os
import resource
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kurma_stager_default.inside import errors, manifest, user_namespace
from kurma_stager_default.inside.app import etc_hosts, privileges, proc_sys_dev, process_settings, security_labels
from kurma_stager_default.inside.callins import logs, run, status
from kurma_stager_default.inside.pod import app_changes, app_restarts, app_run, device_cgroup
from kurma_stager_default.inside.streams import app_log

from kurma_core.formats import small_json
from kurma_core.linux.cgroups import Hierarchy, Layout
from kurma_core.linux.execute import ExecuteError
from kurma_core.models.isolator import IoPriority, IsolatorPlan, MemoryPolicy, Scheduling

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_json_reads_and_writes_what_the_package_does(value):
    assert small_json.decode(f" {json.dumps(value)}\n") == value
    assert small_json.decode(json.dumps(value, ensure_ascii=False)) == value
    if all(ord(char) < 0xD800 or ord(char) > 0xDFFF for char in str(value)):
        assert json.loads(small_json.encode_valid(value)) == value


@pytest.mark.parametrize(
    "text", ["", " ", "{", "{bad}", "[1,]", "[1] 2", '"open', "NaN", "[Infinity]", "nul", '"a\nb"']
)
def test_json_refuses(text):
    with pytest.raises(ValueError, match=r"JSON|follows"):
        small_json.decode(text)


def test_json_of_undecodable_bytes():
    assert json.loads(small_json.encode_valid("a\udcff")) == "a\ufffd"


def document(**config):
    return {
        "kurmaVersion": "1",
        "name": "pod",
        "pod": {
            "apps": [
                {
                    "name": "a",
                    "image": {"id": "sha512-1"},
                    "mounts": [{"volume": "v", "path": "/v"}],
                    "annotations": [{"name": "kurma.io/restart", "value": "always"}],
                }
            ],
            "volumes": [{"name": "v", "kind": "host", "readOnly": True}],
        },
        "images": {"sha512-1": {"app": {"exec": ["/x"], "user": "1", "group": "2"}}},
        "appImageOrder": {"a": ["sha512-1", "sha512-2"]},
        "stagerConfig": config,
    }


def test_a_manifest_without_the_reserved_part():
    """What a core that knows only the document gives is enough."""
    environment = {"HOSTNAME": "host", "AC_METADATA_URL": "http://x/token"}
    pod = manifest.Pod(document(), environment)
    (app,) = pod.apps
    assert (app.exec, app.user, app.layers, app.restart) == (["/x"], "1", ["sha512-1", "sha512-2"], "always")
    assert [(mount.volume, mount.path, mount.read_only, mount.seed) for mount in app.mounts] == [
        ("v", "/v", True, False)
    ]
    assert app.environment == [("AC_METADATA_URL", "http://x/token")]
    assert (pod.hostname, pod.lifecycle, pod.stop_timeout) == ("host", "all", 10)


@pytest.mark.parametrize(
    ("app", "pod", "image", "policy"),
    [
        (None, None, None, "never"),
        (None, None, "always", "always"),
        (None, "on-failure", "always", "on-failure"),
        ("never", "on-failure", "always", "never"),
    ],
)
def test_whose_restart_policy_counts(app, pod, image, policy):
    value = document()
    for place, word in ((value["pod"]["apps"][0], app), (value["pod"], pod), (value["images"]["sha512-1"], image)):
        place["annotations"] = [{"name": "kurma.io/restart", "value": word}] if word else []
    assert manifest.Pod(value, {}).apps[0].restart == policy


def test_a_wrong_restart_policy_of_the_pod_is_told():
    value = document()
    value["pod"]["apps"][0]["annotations"] = []
    value["pod"]["annotations"] = [{"name": "kurma.io/restart", "value": "sometimes"}]
    with pytest.raises(manifest.ManifestError, match="'sometimes' is none of never, on-failure, always"):
        manifest.Pod(value, {})


def test_a_merged_tree_stands_for_the_image():
    value = document()
    value["images"] = {"sha512-tree": value["images"]["sha512-1"]}
    value["appImageOrder"] = {"a": ["sha512-tree"]}
    assert manifest.Pod(value, {}).apps[0].exec == ["/x"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"kurma.io": {"version": 2}}, "version 2 is newer"),
        ({"kurma.io": {"apps": {"a": {"plan": {"version": 9}}}}}, "version 9 is newer"),
        ({"graphStorage": "aufs"}, "'aufs' is none of overlay, copy"),
    ],
)
def test_a_newer_or_unknown_manifest_is_refused(config, said):
    with pytest.raises(manifest.ManifestError, match=said):
        manifest.Pod(document(**config), {})


def test_a_plan_as_the_core_writes_it():
    """A filter comes through whole; who knows plans without filters alone must refuse one with."""
    plan = IsolatorPlan(seccomp=bytes(range(16)))
    pod = manifest.Pod(document(**{"kurma.io": {"apps": {"a": {"plan": plan.to_json()}}}}), {})
    assert pod.apps[0].plan.seccomp == plan.seccomp
    assert (plan.to_json()["version"], IsolatorPlan().to_json()["version"]) == (2, 1)
    assert "seccomp" not in IsolatorPlan().to_json()


def test_the_newest_plan_as_the_core_writes_it():
    """18."""
    plan = IsolatorPlan(
        umask=0,
        io_priority=IoPriority("idle"),
        scheduling=Scheduling("batch", nice=5),
        memory_policy=MemoryPolicy("bind", "0-3,6"),
        keyrings=True,
        masked_paths=(),
        read_only_paths=("/etc",),
    )
    found = manifest.Plan(plan.to_json())
    assert plan.version == manifest.PLAN_VERSION
    assert (found.umask, found.io_priority["kind"], found.scheduling["nice"]) == (0, "idle", 5)
    assert found.memory_policy["nodes"] == "0-3,6"
    assert (found.keyrings, found.masked_paths, found.read_only_paths) == (True, [], ["/etc"])
    usual = manifest.Plan(IsolatorPlan().to_json())
    assert (usual.keyrings, usual.masked_paths, usual.own_paths, found.own_paths) == (False, None, False, True)
    for wrong in (-1, 0o1000, "077", 1.5):
        with pytest.raises(manifest.ManifestError, match="not a umask"):
            manifest.Plan({"version": 4, "umask": wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        {"rlimits": {"files": [1, 1]}},
        {"ioPriority": {"kind": "fast"}},
        {"scheduling": {"policy": "fair"}},
        {"memoryPolicy": {"mode": "near"}},
        {"rlimits": {"nofile": [1 << 70, 1 << 70]}},
    ],
)
def test_a_setting_that_this_stager_does_not_know_is_told(wrong):
    """18: nothing has been set then."""
    with pytest.raises(errors.SetupError, match=r"there is no|cannot set the limit nofile to \d+:\d+: "):
        process_settings.apply(manifest.Plan({"version": 4, **wrong}))


def test_small_limits_are_set_at_last():
    """The set-up of an app needs more."""
    numbers = {"nofile": resource.RLIMIT_NOFILE, "as": resource.RLIMIT_AS}
    before = {name: resource.getrlimit(number) for name, number in numbers.items()}
    process_settings.apply(manifest.Plan({"version": 4, "rlimits": {key: [20, 20] for key in numbers}}))
    assert {name: resource.getrlimit(number) for name, number in numbers.items()} == before


def test_an_empty_storage_is_none_chosen():
    assert manifest.Pod(document(graphStorage=""), {}).storage is None


def test_a_nonsense_manifest_is_told(tmp_path):
    path = tmp_path / "manifest"
    path.write_text('{"pod": []}')
    with pytest.raises(manifest.ManifestError, match="not a stager manifest"):
        manifest.load(str(path))


def test_what_is_said_of_devices_where_the_second_wall_is_missing(tmp_path):
    """H11: a host without cgroups, and a v2 directory that takes no program."""
    alone = "devices: those that were not given are refused by nodev alone"
    assert device_cgroup.close(Layout([]), []) == f"{alone} (this host has no cgroups)"
    assert device_cgroup.close(Layout([]), ["c 1:11 rw"]) == f"{alone} (this host has no cgroups)"
    with pytest.raises(
        errors.SetupError, match="for reading alone: their cgroup cannot be closed: this host has no"
    ):
        device_cgroup.close(Layout([]), ["c 1:11 rw", "c 1:11 r"])
    note = device_cgroup.close(Layout([Hierarchy(2, (), str(tmp_path), ".")]), [])
    assert note.startswith(f"{alone} (")


def test_what_is_said_of_walls_beside_an_app_that_has_none(monkeypatch):
    """H2: nothing is claimed that does not hold, also when such an app comes or goes."""
    for wall in ("landlock_usable", "filters_usable"):
        monkeypatch.setattr(privileges.sandbox, wall, lambda: True)
    monkeypatch.setattr(privileges, "granted", lambda plan: {21} if plan.privileged else set())

    def run(name, privileged=False):
        plan = SimpleNamespace(privileged=privileged, keyrings=privileged)
        return SimpleNamespace(app=SimpleNamespace(name=name, plan=plan))

    plain, power = [run("a"), run("b")], run("p", privileged=True)
    closed = [
        "landlock: each app has a domain of its own; apps do not reach each other through /proc",
        "keys: each app has a session keyring of its own, and may not call on others",
    ]
    opened = [
        "landlock: each app but p has a domain of its own; they do not reach others through /proc",
        "keys: each app has a session keyring of its own; p may call on others",
    ]
    assert list(privileges.wall_notes([one.app for one in plain])) == closed
    assert list(privileges.wall_notes([one.app for one in (*plain, power)])) == opened
    assert "no app has a domain" in privileges.wall_notes([power.app])[0]
    groups = SimpleNamespace(wall=[])
    pod = SimpleNamespace(runs=plain, groups=groups, notes=[*closed, "devices: those …", "ipc: the host's"])
    app_changes._renew_notes(pod)
    assert pod.notes == [*closed, "devices: those …", "ipc: the host's"]
    pod.runs, groups.wall = [*plain, power], None
    app_changes._renew_notes(pod)
    assert pod.notes == [*opened, device_cgroup.OPEN, "ipc: the host's"]
    pod.runs = plain
    app_changes._renew_notes(pod)
    assert pod.notes == [*closed, device_cgroup.OPEN, "ipc: the host's"]


def test_what_is_masked_for_each_cpu(tmp_path):
    """H11: where the machine has it, for every CPU; this one may not."""
    cpus = tmp_path / "devices/system/cpu"
    (cpus / "cpufreq").mkdir(parents=True)
    (cpus / "cpu0").mkdir()
    sys = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        assert proc_sys_dev._in_cpus(sys) == []
        for name in ("cpu0", "cpu17"):
            (cpus / name / "thermal_throttle").mkdir(parents=True)
        assert sorted(proc_sys_dev._in_cpus(sys)) == [
            f"devices/system/cpu/{name}/thermal_throttle" for name in ("cpu0", "cpu17")
        ]
    finally:
        os.close(sys)


# --- logs ------------------------------------------------------------------------------------------------------

NOW = 1_500_000_000_000_000_001
STAMP = b"2017-07-14T02:40:00.000000001Z"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a", "b"],
        ["a", "--tail"],
        ["a", "--tail", "x"],
        ["a", "--since", "now"],
        ["a", "--stream=all"],
        ["a", "--tail", "-1"],
        ["a", "--tail", "٣"],
        ["a", "--x=1"],
        ["a", "-f"],
        ["a", "--follow=yes"],
        ["--follow"],
    ],
)
def test_wrong_arguments_of_logs(arguments):
    with pytest.raises(logs.UsageError):
        logs.Wanted(arguments)


def test_no_resolver_file_without_dns():
    """The app keeps its own."""
    pod = manifest.Pod(document(), {})
    assert set(etc_hosts.contents(pod)) == {"/etc/hosts", "/etc/hostname"}


# --- restarts --------------------------------------------------------------------------------------------------


class _Ended:
    """An execution that has ended."""

    def __init__(self, began, code=1, reason="exited"):
        self.began, self.code, self.reason = began, code, reason


def next_pause(run):
    return run.restarts.next_pause(run.app.restart, run.instance, first=not run.history)


def test_pauses_double_up_to_a_minute_and_begin_anew_once_it_has_settled(monkeypatch):
    """H5."""
    now = 1000.0
    monkeypatch.setattr(app_restarts.time, "monotonic", lambda: now)
    app = manifest.App("a", {"exec": ["/x"]})
    app.restart = "always"
    run = app_run.AppRun(app, None)
    pauses = []
    for _ in range(12):
        run.instance = _Ended(now - 1)
        pauses.append(next_pause(run))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0]
    run.instance = _Ended(now - 9.9)
    assert next_pause(run) == 60.0
    run.instance = _Ended(now - 10)
    assert [next_pause(run), next_pause(run)][0] == 0.1


@pytest.mark.parametrize(
    ("restart", "ended", "again"),
    [
        ("never", _Ended(0, 1), False),
        ("on-failure", _Ended(0, 0), False),
        ("on-failure", _Ended(0, 3), True),
        ("on-failure", _Ended(0, 137, "killed"), True),
        ("on-failure", _Ended(0, 137, "oom"), True),
        ("always", _Ended(0, 0), True),
        ("always", _Ended(0, 127, "start-failed"), False),
        ("always", _Ended(0, 126, "start-failed"), False),
        ("always", _Ended(0, 125, "start-failed"), False),
    ],
)
def test_what_is_started_again(restart, ended, again):
    app = manifest.App("a", {"exec": ["/x"]})
    app.restart = restart
    run = app_run.AppRun(app, None)
    run.instance = ended
    assert (next_pause(run) is not None) == again


def test_status_before_there_is_any(tmp_path):
    """Neither a supervisor that listens nor a file: the apps of the manifest, none of which has ended."""
    (tmp_path / "pod").mkdir()
    (tmp_path / "manifest").write_text(json.dumps(document()))
    assert status.find(str(tmp_path)) == {"a": {"exited": False}}
    (tmp_path / "manifest").write_text("{}")
    with pytest.raises(errors.SetupError, match="not a stager manifest"):
        status.find(str(tmp_path))
    (tmp_path / "pod/status.json").write_text('{"apps": {"a": {"exited": true, "exitCode": 3}}}')
    assert status.find(str(tmp_path)) == {"a": {"exited": True, "exitCode": 3}}
    (tmp_path / "pod/status.json").write_text("{")
    with pytest.raises(errors.SetupError, match=r"does not answer: .*; .*status\.json: is damaged"):
        status.find(str(tmp_path))


def test_power_that_nothing_holds_without_landlock_is_told(monkeypatch):
    """H2: with it, nobody traces beyond the own domain; in a user namespace, nobody of the host."""
    app = manifest.App("a", {"exec": ["/x"]})
    app.plan = manifest.Plan({"capabilities": ["CAP_SYS_PTRACE"]})
    host = user_namespace.Ids(None)
    own = user_namespace.Ids({"path": "/userns", "uids": [[0, 1000, 1]], "gids": [[0, 1000, 1]]})
    monkeypatch.setattr(privileges.sandbox, "landlock_usable", lambda: False)
    note = privileges.power_note(app, host)
    assert note is not None
    assert note.startswith("app a: CAP_SYS_PTRACE without Landlock")
    assert privileges.power_note(app, own) is None
    app.plan = manifest.Plan({})
    assert privileges.power_note(app, host) is None
    monkeypatch.setattr(privileges.sandbox, "landlock_usable", lambda: True)
    app.plan = manifest.Plan({"capabilities": ["CAP_SYS_PTRACE"]})
    assert privileges.power_note(app, host) is None


def test_of_many_executions_the_last_are_remembered_and_the_others_logs_go(monkeypatch):
    """An app that is started again for years fills no disk (H7)."""

    class Past:
        def __init__(self, number):
            self.number = number

        def to_json(self, _):
            return {"instance": self.number, "log": app_log.file_name("main", self.number)}

    removed = []
    monkeypatch.setattr(app_log, "remove", removed.append)
    run = app_run.AppRun(None, None)
    for number in range(13):
        run._remember(Past(number))
    assert [one["instance"] for one in run.history] == list(range(3, 13))
    assert removed == ["/pod/logs/main.log", "/pod/logs/main.1.log", "/pod/logs/main.2.log"]


def test_a_program_that_is_denied_under_a_label_is_told_with_it():
    """Only where the kernel says no more than that: a file's own mode is reason enough."""
    profile, context = (
        manifest.Plan({"version": 3, **label}) for label in ({"apparmor": "web"}, {"selinux": "a:b"})
    )
    denied = ExecuteError(errno.EACCES, "permission denied", "/bin/sh")
    assert (
        str(security_labels.explained(denied, profile))
        == "/bin/sh: permission denied, with the AppArmor profile web"
    )
    assert (
        str(security_labels.explained(denied, context))
        == "/bin/sh: permission denied, with the SELinux context a:b"
    )
    assert security_labels.explained(denied, context).exit_code == 126
    for code, reason in ((errno.EACCES, "is not executable (mode 0644)"), (errno.ENOENT, "not found")):
        other = ExecuteError(code, reason, "/bin/sh")
        assert security_labels.explained(other, profile) is other


def test_names_that_change_while_a_hosts_file_is_made_are_in_it(tmp_path, monkeypatch):
    """W10: the core writes ``.names``, then the files that it finds; this one it does not find yet."""
    (tmp_path / ".names").write_text("10.0.0.1\told\t# kurma\n")
    rename, names = os.rename, iter(["10.0.0.2\tnew\t# kurma\n", "10.0.0.3\tnewest\t# kurma\n"])

    def late(*args, **options):
        rename(*args, **options)
        for text in names:
            (tmp_path / ".names").write_text(text)
            return

    monkeypatch.setattr(os, "rename", late)
    directory = os.open(tmp_path, os.O_RDONLY)
    os.close(etc_hosts._copy(directory, "app", b"127.0.0.1 localhost", (os.getuid(), os.getgid())))
    os.close(directory)
    assert (tmp_path / "app").read_text() == "127.0.0.1 localhost\n10.0.0.3\tnewest\t# kurma\n"
    assert (tmp_path / "app").stat().st_mode & 0o777 == 0o644
    assert not (tmp_path / ".app.new").exists()


@pytest.mark.parametrize("dead", [False, True])
def test_a_command_does_not_outlive_a_call_in_that_dies_first(dead):
    """Before the child could ask to be told of that."""
    heard, said = os.pipe()
    call_in = os.fork()
    if not call_in:
        try:
            me = os.getpid()
            report, told = os.pipe()
            child = os.fork()
            if child:
                if not dead:
                    os.waitpid(child, 0)
                os._exit(0)
            os.close(report)
            while dead and os.getppid() == me:
                time.sleep(0.001)
            run.end_with_parent(told)
            os.write(said, b"goes on")
        finally:
            os._exit(0)
    os.close(said)
    os.waitpid(call_in, 0)
    assert os.read(heard, 100) == (b"" if dead else b"goes on")
    os.close(heard)
