"""The stager as a stage1 image: what is in it, and how its entrypoints read what stage0 has laid out."""

import os
import subprocess
from types import SimpleNamespace

import pytest
from kurma_stager_default import image, plugin
from kurma_stager_default.stage1 import isolators
from kurma_stager_default.stage1.arguments import RunArguments
from kurma_stager_default.stage1.document import environment
from kurma_stager_default.stage1.place import Stage1Error

from kurma_core.hookspecs.driver import DriverContext
from kurma_core.linux.cgroups import Hierarchy, Layout


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory):
    path = tmp_path_factory.mktemp("stage1") / "rootfs"
    path.mkdir()
    driver = plugin.kurma_stager().create(DriverContext(config={}, state_dir=str(path.parent / "state")))
    assert driver.export_formats() == ("stage1",)
    return path, driver.export("stage1", str(path))


def test_its_entrypoints(rootfs):
    """Each is there, and says what is wrong; by the image's own loader alone, from wherever it stands."""
    path, manifest = rootfs
    said = {each["name"]: each["value"] for each in manifest["annotations"]}
    for name in ("run", "enter", "gc", "stop"):
        program = f"{path}{said[f'coreos.com/rkt/stage1/{name}']}"
        environ = {"LD_LIBRARY_PATH": "/nowhere", "PYTHONHOME": "/nowhere", "PYTHONPATH": "/nowhere"}
        for where, word in ((program, "--odd"), (os.path.relpath(program, "/tmp"), "--odd")):
            done = subprocess.run(
                [where, word], cwd="/tmp", env=environ, capture_output=True, text=True, check=False, timeout=60
            )
            assert done.returncode in (2, 125), done
            assert done.stderr.count("\n") == 1, done
            assert done.stderr.startswith("stage1: ")


def test_what_is_not_in_it(rootfs):
    """Two of stage0's own paths alone, which rkt expects; and the default stager's image is as small as ever."""
    path, manifest = rootfs
    assert "app" not in manifest
    assert not (path / "opt/stage2").exists()
    assert sorted(str(each.relative_to(path)) for each in path.glob("rkt/**/*")) == ["rkt/env", "rkt/status"]
    assert "json" not in image._standard_names(image.own_modules("inside"))
    assert "json" in image._standard_names(image.own_modules("inside", "stage1"))


def test_the_supervisor_is_light(rootfs):
    """Every pod has one: what its program begins with needs nothing that only the entrypoints do."""
    path, _ = rootfs
    code = (path / image.code_of("pod")).read_bytes()
    for name in (b"stage1.document", b"stage1.place", b"kurma_core.trees.mount_targets"):
        assert name not in code
    assert b"stage1.output" in code


def test_arguments():
    found = RunArguments(["--debug", "--net=none", "--interactive", "--mds-token=t", "--hostname=h", "uuid"])
    assert (found.debug, found.networks, found.interactive) == (True, {}, True)
    assert (found.token, found.hostname, found.uuid, found.users) == ("t", "h", "uuid", None)
    found = RunArguments(
        ["--private-users=200000:65536", "--local-config=/etc/rkt", "--hostname=", "--debug=false"]
    )
    assert (found.users, found.networks, found.hostname, found.debug) == ((200000, 65536), None, "", False)
    assert RunArguments(["--private-users="]).users is None
    assert (found.all_capabilities, found.open_paths, found.no_seccomp) == (False, False, False)
    assert (found.resolv, found.hosts, found.shares_ipc) == ("default", "default", False)
    off = [f"--disable-{name}" for name in ("capabilities-restriction", "paths", "seccomp")]
    found = RunArguments([*off, "--dns-conf-mode=resolv=none,hosts=stage0", "--ipc=parent", "uuid"])
    assert (found.all_capabilities, found.open_paths, found.no_seccomp) == (True, True, True)
    assert (found.resolv, found.hosts, found.shares_ipc) == ("none", "stage0", True)
    assert not RunArguments(["--ipc=private"]).shares_ipc


@pytest.mark.parametrize(
    ("words", "networks"),
    [
        ([], None),
        (["--net=host"], None),
        (["--net"], {"default": ""}),
        (["--net="], {"default": ""}),
        (["--net=none"], {}),
        (["--net=a,b:IP=10.1.2.3;K=v"], {"a": "", "b": "IP=10.1.2.3;K=v"}),
        (["--net=all,a:IP=fd00::1", "--net=default"], {"all": "", "a": "IP=fd00::1", "default": ""}),
    ],
)
def test_networks_that_are_named(words, networks):
    assert RunArguments(words).networks == networks


@pytest.mark.parametrize(
    "words",
    [
        ["--net=a,,b"],
        ["--net=a", "--net=a:IP=10.1.2.3"],
        ["--net=:IP=10.1.2.3"],
        ["--net=all:IP=10.1.2.3"],
        ["--net=none,default"],
        ["--net=host", "--net=default"],
        ["../uuid"],
        ["--ipc=host"],
        ["--mutable"],
        ["--dns-conf-mode=resolv=maybe"],
        ["--dns-conf-mode=hosts=none"],
        ["--dns-conf-mode=host"],
        ["--debug=maybe"],
        ["--hostname"],
        ["one", "two"],
        ["--private-users=1:0"],
        ["--private-users=4294967295:2"],
        ["--private-users=a:b"],
    ],
)
def test_arguments_that_are_none(words):
    with pytest.raises(Stage1Error):
        RunArguments(words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"A": "1\nB=2", "C": "3"}),
        ("A=1\nB=2\nC=4\n", {"A": "1\nB=2", "C": "4"}),
        ("C=\nD=x=y\n\nodd\n=x\n", {"A": "1\nB=2", "C": "", "D": "x=y"}),
        ("A=5\0C=two\nlines\0", {"A": "5", "C": "two\nlines"}),
    ],
)
def test_environment_file(tmp_path, text, expected):
    (tmp_path / "rkt/env").mkdir(parents=True)
    if text:
        (tmp_path / "rkt/env/web").write_text(text)
    app = {"environment": [{"name": "A", "value": "1\nB=2"}, {"name": "C", "value": "3"}]}
    place = SimpleNamespace(rootfs=str(tmp_path))
    assert dict(map(tuple, environment(place, "web", app))) == expected


V1 = Layout([Hierarchy(1, (name,), f"/sys/fs/cgroup/{name}", name) for name in ("cpu", "memory")])


def plan(name, value, layout=V1):
    notes = []
    found = isolators.plan_of([{"name": name, "value": value}], "app web", layout, notes.append)
    return found, notes


@pytest.mark.parametrize(
    ("name", "value", "written"),
    [
        ("resource/memory", {"limit": "1G"}, ["memory.limit_in_bytes=1000000000"]),
        ("resource/memory", {"limit": "1.5Ki"}, ["memory.limit_in_bytes=1536"]),
        (
            "resource/memory",
            {"request": "1Mi", "limit": "2M"},
            [
                "memory.limit_in_bytes=2000000",
                "memory.soft_limit_in_bytes=1048576",
            ],
        ),
        (
            "resource/cpu",
            {"limit": "250m"},
            [
                "cpu.shares=256",
                "cpu.cfs_period_us=100000",
                "cpu.cfs_quota_us=25000",
            ],
        ),
        ("resource/cpu", {"request": "2"}, ["cpu.shares=2048"]),
        ("os/linux/cpu-shares", 512, ["cpu.shares=512"]),
    ],
)
def test_resource_isolators(name, value, written):
    found, notes = plan(name, value)
    assert [f"{one['file']}={one['value']}" for one in found["cgroup"]] == written
    assert notes == []


def test_resource_isolators_on_version_2(tmp_path):
    (tmp_path / "cgroup.controllers").write_text("memory cpu\n")
    layout = Layout([Hierarchy(2, (), str(tmp_path), ".")])
    found, _ = plan("resource/cpu", {"limit": "1500m"}, layout)
    assert [(one["file"], one["value"]) for one in found["cgroup"]] == [
        ("cpu.weight", "150"),
        ("cpu.max", "150000 100000"),
    ]
    (tmp_path / "cgroup.controllers").write_text("\n")
    with pytest.raises(Stage1Error, match="no cgroup controller memory for this pod"):
        plan("resource/memory", {"limit": "1G"}, layout)


def test_other_isolators():
    found, _ = plan("os/linux/capabilities-remove-set", {"set": ["CAP_CHOWN"]})
    assert "CAP_CHOWN" not in found["capabilities"]
    assert "CAP_KILL" in found["capabilities"]
    found, notes = plan("resource/odd", 1)
    assert notes == ["app web: isolator resource/odd is not known to this stage1, and ignored"]
    for name, value in (
        ("os/linux/seccomp-retain-set", {"set": []}),
        ("os/linux/selinux-context", {}),
        ("os/linux/capabilities-retain-set", {"set": ["CAP_NONE"]}),
        ("os/linux/no-new-privileges", "yes"),
        ("os/linux/oom-score-adj", 5000),
        ("resource/memory", {"limit": "1X"}),
    ):
        with pytest.raises(Stage1Error, match=f"app web: isolator {name}: "):
            plan(name, value)
