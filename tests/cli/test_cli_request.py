"""Every option of ``run`` and ``prepare`` arrives in the pod request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kurma_core.api.pods import AppOverrides, DnsRequest, PodRequest
from kurma_core.appc.template import app_name
from kurma_core.cli.command_line import Option
from kurma_core.cli.main import main
from kurma_core.cli.pod_options import POD_OPTIONS
from kurma_core.models.isolator import IsolatorReport
from kurma_core.models.network import NetworkRequest, PortMapping


@pytest.fixture(autouse=True)
def _as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def request_of(fakes: ModuleType, *words: str, command: str = "run") -> PodRequest:
    client = fakes.FakeClient()
    code = main([command, *words], connect=client.connect)
    assert [name for name, _, _ in client.calls] == [command], code
    request = client.calls[0][1][0]
    assert isinstance(request, PodRequest)
    return request


def volumes(request: PodRequest) -> list[Any]:
    return [volume.to_json() for volume in request.template.pod.volumes]


def mounts(request: PodRequest) -> list[Any]:
    return [mount.to_json() for mount in request.template.pod.apps[0].mounts]


def test_an_image_alone(fakes: ModuleType) -> None:
    request = request_of(fakes, "docker://127.0.0.1:5000/library/busybox:1.36")
    (app,) = request.template.pod.apps
    assert app.name == "busybox"
    assert app.image.locator == "docker://127.0.0.1:5000/library/busybox:1.36"
    assert request == PodRequest(request.template, foreground=True)


def test_all_of_an_apps_overrides(fakes: ModuleType) -> None:
    words = "--user www --group 5 --workdir /srv --exec /bin/sh -e A=1 -e B=x=y -e A=2 img -- -c true"
    assert request_of(fakes, *words.split()).overrides == {
        "img": AppOverrides(
            arguments=("-c", "true"),
            exec=("/bin/sh",),
            user="www",
            group="5",
            working_directory="/srv",
            environment=(("A", "2"), ("B", "x=y")),
        )
    }


@pytest.mark.parametrize("command", ["run", "prepare"])
@pytest.mark.parametrize(
    ("words", "user", "group"),
    [
        ("--user 1000:1001", "1000", "1001"),
        ("--user www:web", "www", "web"),
        ("--user www", "www", None),
        ("--user /a:b", "/a:b", None),
    ],
)
def test_a_user_may_name_the_group(
    fakes: ModuleType, command: str, words: str, user: str, group: str | None
) -> None:
    overrides = request_of(fakes, *words.split(), "img", command=command).overrides["img"]
    assert (overrides.user, overrides.group) == (user, group)


def test_names_with_blanks_are_no_variables(
    fakes: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "env"
    file.write_text("A=1\nB C=2\n")
    client = fakes.FakeClient()
    for words, option in (
        (["run", "-e", "A B=c", "img"], "--env: 'A B'"),
        (["run", "--env-file", str(file), "img"], f"--env-file: {file}, line 2: 'B C'"),
        (["enter", "-e", "A B=c", "web"], "--env: 'A B'"),
    ):
        assert main(words, connect=client.connect) == 2
        assert capsys.readouterr().err.startswith(f"kurma: {option} cannot be a variable's name\n")
    assert client.calls == []


@pytest.mark.parametrize("name", ["a", "Web-1.example.org", "a" * 63, f"{'a' * 31}.{'b' * 32}"])
def test_host_names(fakes: ModuleType, name: str) -> None:
    assert request_of(fakes, "--hostname", name, "img").hostname == name


@pytest.mark.parametrize("command", ["run", "prepare"])
def test_isolators_that_are_not_enforced_are_told(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    reports = (
        IsolatorReport("resource/cpu", "web", "modified", "clamped to 2"),
        IsolatorReport("os/linux/x", None, "ignored", "no plugin knows it"),
        IsolatorReport("resource/memory", "web", "enforced"),
    )
    client = fakes.FakeClient(answers={"prepare": fakes.record(isolators=reports)})
    main([command, "img"], connect=client.connect)
    assert capsys.readouterr().err.splitlines() == [
        "kurma: isolator resource/cpu of app web is modified: clamped to 2",
        "kurma: isolator os/linux/x is ignored: no plugin knows it",
    ]


def test_variables_from_here_and_from_files(
    fakes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", "yes")
    monkeypatch.delenv("NOWHERE", raising=False)
    file = tmp_path / "env"
    file.write_text('# a comment\n\nQ="quoted"\nHERE\nA=file\n')
    request = request_of(fakes, "--env-file", str(file), "-e", "A=line", "-e", "HERE", "-e", "NOWHERE", "img")
    assert dict(request.overrides["img"].environment) == {"Q": '"quoted"', "HERE": "yes", "A": "line"}


def test_a_line_of_a_file_of_variables_is_named(
    fakes: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "env"
    file.write_text("A=1\n\n# no\nexport B=2\n")
    assert main(["run", "--env-file", str(file), "img"], connect=fakes.FakeClient().connect) == 2
    said = capsys.readouterr().err.splitlines()[0]
    assert said == f"kurma: --env-file: {file}, line 4: 'export B' cannot be a variable's name"


def test_volumes_and_mounts(fakes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    request = request_of(
        fakes,
        *("-v", "/srv:/data:ro", "-v", "./x:/data/", "-v", "/a:/"),
        *("--volume", "name=tmp,kind=empty,mode=1777,uid=3,gid=4", "--mount", "volume=tmp,target=/tmp"),
        *("--volume", "name=h,source=/h,readOnly,recursive=false"),
        *("--read-only", "img"),
    )
    assert volumes(request) == [
        {"name": "tmp", "kind": "empty", "mode": "1777", "uid": 3, "gid": 4},
        {"name": "h", "kind": "host", "source": "/h", "readOnly": True, "recursive": False},
        {"name": "data", "kind": "host", "source": "/srv", "readOnly": True},
        {"name": "data-2", "kind": "host", "source": str(tmp_path / "x")},
        {"name": "root", "kind": "host", "source": "/a"},
    ]
    assert [(mount["volume"], mount["path"]) for mount in mounts(request)] == [
        ("data", "/data"),
        ("data-2", "/data/"),
        ("root", "/"),
        ("tmp", "/tmp"),
    ]
    assert request.template.pod.apps[0].read_only_rootfs


def test_sources_go_back_from_no_link(
    fakes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shell and the kernel would mean different places."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to("deep/er")
    monkeypatch.chdir(tmp_path / "deep")
    words = ("-v", "../x:/a", "-v", "er/../y/.:/b", "-v", ".:/c", "-v", "..:/d", "-v", "/..//z:/e")
    request = request_of(fakes, *words, "--volume", "name=v,source=./w", "img")
    assert [volume["source"] for volume in volumes(request)] == [
        f"{tmp_path}/deep/w",
        *(f"{tmp_path}/x", f"{tmp_path}/deep/y", f"{tmp_path}/deep", str(tmp_path), "/z"),
    ]
    for words in (("-v", "../link/../x:/a"), ("--volume", f"name=v,source={tmp_path}/link/../x")):
        assert main(["run", *words, "img"]) == 2
        said = capsys.readouterr().err
        assert f"has .. after the symbolic link {tmp_path}/link\n" in said
        assert f"hint: write the link's target: {tmp_path}/deep/x\n" in said
    os.rmdir(tmp_path / "deep" / "er")
    os.rmdir(tmp_path / "deep")
    assert main(["run", "-v", "./x:/a", "img"]) == 2
    assert "-v: './x': the current directory was removed" in capsys.readouterr().err


def test_user_namespaces_and_mapped_volumes(fakes: ModuleType) -> None:
    assert request_of(fakes, "img").userns is None
    for word in ("none", "auto", "100000:65536", "4294967290:5"):
        assert request_of(fakes, "--userns", word, "img").userns == word
        # As an annotation it is the caller's word, too.
        assert request_of(fakes, "--annotation", f"kurma.io/userns={word}", "img").userns == word
    words = ("-v", "/a:/a:idmap", "-v", "/b:/b:ro,idmap", "-v", "/c:/c", "--volume", "name=d,source=/d,idmap")
    found = {one["name"]: one for one in volumes(request_of(fakes, *words, "img"))}
    assert [found[name].get("kurma.io/idmap") for name in "abcd"] == [True, True, None, True]
    assert [found[name].get("readOnly") for name in "abcd"] == [None, True, None, None]


def test_volumes_of_many_kinds(fakes: ModuleType) -> None:
    """C8: words of -v and keys of --volume; rshared is the caller's own word."""
    words = ("-v", "/a:/a:rslave,create", "-v", "/b:/b:ro,rro", "--volume", "name=c,source=/c,propagation=private")
    request = request_of(fakes, *words, "img")
    found = {one["name"]: one for one in volumes(request)}
    assert found["a"]["kurma.io/propagation"] == "rslave"
    assert found["a"]["kurma.io/create"] is True
    assert found["b"]["kurma.io/recursive-read-only"] is True
    assert "kurma.io/propagation" not in found["c"]
    (noexec,) = volumes(request_of(fakes, "-v", "/a:/a:ro,noexec,nodev", "img"))
    assert (noexec["readOnly"], noexec["kurma.io/options"]) == (True, ["noexec", "nodev"])
    assert request_of(fakes, "img").dns is None
    for words in ((), ("--dns", "9.9.9.9")):
        dns = request_of(fakes, "--dns-exact", *words, "img").dns
        assert dns is not None
        assert (dns.exact, dns.nameservers) == (True, words[1:])
    assert request.grants == ()
    for options in (("-v", "/a:/a:rshared"), ("--volume", "name=a,source=/a,propagation=rshared")):
        assert request_of(fakes, *options, "img").grants == ("kurma.io/propagation=rshared",)
    (image,) = volumes(request_of(fakes, "--volume", "name=i,image=docker://x,subPath=a/b", "img"))
    expected = {"kind": "image", "readOnly": True, "kurma.io/image": "docker://x", "kurma.io/sub-path": "a/b"}
    assert image == {"name": "i", **expected}
    request = request_of(fakes, "--mount", "type=image,source=docker://x,target=/b,subpath=a/b", "img")
    assert volumes(request) == [{"name": "b", **expected}]
    assert [mount.to_json() for mount in request.template.pod.apps[0].mounts] == [{"volume": "b", "path": "/b"}]


def test_named_volumes(fakes: ModuleType) -> None:
    """A source without a slash is a name; each way to write it means the same."""
    named = {"kind": "named", "volume": "My.data"}
    assert volumes(request_of(fakes, "-v", "My.data:/srv/x", "img")) == [{"name": "srv-x", **named}]
    (one,) = volumes(request_of(fakes, "-v", "My.data:/x:ro,noexec", "img"))
    assert one == {"name": "x", **named, "readOnly": True, "kurma.io/options": ["noexec"]}
    (one,) = volumes(request_of(fakes, "--volume", "name=v,volume=My.data", "img"))
    assert one == {"name": "v", **named}
    (one,) = volumes(request_of(fakes, "--volume", "name=v,kind=named", "img"))
    assert one == {"name": "v", "kind": "named", "volume": "v"}
    request = request_of(fakes, "--mount", "type=volume,source=My.data,target=/srv/x", "img")
    assert volumes(request) == [{"name": "srv-x", **named}]
    assert mounts(request) == [{"volume": "srv-x", "path": "/srv/x"}]
    part = {"kurma.io/sub-path": "a/b"}
    request = request_of(fakes, "--mount", "type=volume,source=My.data,target=/srv/x,subpath=a/b", "img")
    assert volumes(request) == [{"name": "srv-x", **named, **part}]
    (one,) = volumes(request_of(fakes, "--volume", "name=v,volume=My.data,subPath=a/b", "img"))
    assert one == {"name": "v", **named, **part}


@pytest.mark.parametrize("text", ["/a:/a:rslave,rshared", "/a:/a:ro,rw", "/a:/a:ro,ro", "/a:/a:slave", "/a:/a:"])
def test_words_of_a_bind_that_do_not_fit(fakes: ModuleType, capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert main(["run", "-v", text, "img"], connect=fakes.FakeClient().connect) == 2
    assert "-v: malformed" in capsys.readouterr().err


def test_directories_in_memory(fakes: ModuleType) -> None:
    """Options as podman has them; sizes as mount(8), or as elsewhere."""
    words = (
        "--tmpfs",
        "/tmp",
        "--tmpfs",
        "/a/tmp:rw,size=64m,mode=0700,noexec",
        "--tmpfs",
        "/c:size=1.5Gi,uid=7,ro",
    )
    request = request_of(fakes, *words, "-v", "/x:/tmp-2", "img")
    kept = {"kind": "empty", "kurma.io/memory": True, "mode": "1777"}
    assert volumes(request) == [
        {"name": "tmp-2", "kind": "host", "source": "/x"},
        {**kept, "name": "tmp"},
        {**kept, "name": "a-tmp", "kurma.io/size": "64Mi", "mode": "0700"},
        {**kept, "name": "c", "kurma.io/size": "1.5Gi", "uid": 7, "readOnly": True},
    ]
    assert [(mount.volume, mount.path) for mount in request.template.pod.apps[0].mounts] == [
        *(("tmp-2", "/tmp-2"), ("tmp", "/tmp"), ("a-tmp", "/a/tmp"), ("c", "/c")),
    ]


def test_what_is_the_hosts(fakes: ModuleType) -> None:
    request = request_of(fakes, "--pid", "host", "--uts", "private", "--device", "/dev/fuse", "img")
    assert request.isolators == (("os/linux/namespaces", {"pid": "host", "uts": "private"}),)
    request = request_of(fakes, "--pid", "own", "img")
    assert request.isolators == ()
    assert request.template.pod.apps[0].annotation("kurma.io/pid") == "own"
    assert request_of(fakes, "--pid", "pod", "img").isolators == (("os/linux/namespaces", {"pid": "private"}),)
    assert request_of(fakes, "img").isolators == ()
    assert request_of(fakes, "--ipc", "host", "img").isolators == (("os/linux/namespaces", {"ipc": "host"}),)
    words = [word for text in ("/dev/a:/dev/b", "/dev/a:rw", "/dev/a:/dev/b:r") for word in ("--device", text)]
    (given,) = request_of(fakes, *words, "img").overrides["img"].isolators
    assert given == (
        "kurma.io/devices",
        [
            {"path": "/dev/b", "hostPath": "/dev/a", "access": "rwm"},
            {"path": "/dev/a", "hostPath": "/dev/a", "access": "rw"},
            {"path": "/dev/b", "hostPath": "/dev/a", "access": "r"},
        ],
    )


@pytest.mark.parametrize("text", ["fuse", "/dev/a:x", "/dev/a:/dev/b:r:w", "/dev/a:", ""])
def test_a_device_that_is_none_is_refused(
    fakes: ModuleType, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--device", text, "img"], connect=fakes.FakeClient().connect) == 2
    assert f"--device: expected HOST[:PATH][:ACCESS], found {text!r}" in capsys.readouterr().err


def test_networks_ports_and_names(fakes: ModuleType) -> None:
    request = request_of(
        fakes,
        *(
            "--net",
            "default:eth5,ip=10.1.0.9",
            "--net",
            "back",
            "-p",
            "8080:80",
            "--publish",
            "127.0.0.1:53:53/udp",
        ),
        *("--hostname", "h", "--hosts-entry", "10.0.0.1=db,db.local", "--hosts-entry", "::1=six"),
        *("--dns", "9.9.9.9", "--dns", "1.1.1.1", "--dns-search", "a.example.", "--dns-opt", "ndots:2", "img"),
    )
    assert request.networks == (NetworkRequest("default", "eth5", ("10.1.0.9",)), NetworkRequest("back"))
    assert request.ports == (PortMapping(8080, 80), PortMapping(53, 53, "udp", "127.0.0.1"))
    assert request.hostname == "h"
    assert request.hosts == (("10.0.0.1", ("db", "db.local")), ("::1", ("six",)))
    assert request.dns == DnsRequest(("9.9.9.9", "1.1.1.1"), ("a.example.",), ("ndots:2",))


def test_the_pods_own(fakes: ModuleType) -> None:
    request = request_of(
        fakes,
        *("--name", "web", "--rm", "-i", "--stager", "s", "--renderer", "copy", "--pull", "never", "--verify"),
        *("--strict-isolators", "--strict-volumes", "--allow-volume-links", "--insecure-options", "http,tls"),
        *("--grant", "os/linux/privileged", "--grant", "kurma.io/devices=/dev/fuse"),
        *(
            "--insecure-options",
            "image",
            "--annotation",
            "a.b/c=d=e",
            "--isolator",
            'os/linux/x={"set": [1.5]}',
            "img",
        ),
    )
    assert request.name == "web"
    assert request.grants == ("os/linux/privileged", "kurma.io/devices=/dev/fuse")
    assert request.ephemeral
    assert (request.interactive, request.terminal) == ("img", None)
    assert (request.stager, request.renderer, request.pull, request.verify) == ("s", "copy", "never", True)
    assert request.strict_isolators
    assert request.strict_volumes
    assert request.allow_volume_links
    assert request.insecure == {"http", "tls", "image"}
    assert request.template.pod.annotation("a.b/c") == "d=e"
    assert request.overrides["img"].isolators == (("os/linux/x", {"set": [1.5]}),)


def test_prepare_takes_the_same(fakes: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "uuid"
    request = request_of(fakes, "--name", "n", "--uuid-file", str(file), "img", command="prepare")
    assert request.name == "n"
    assert capsys.readouterr().out == fakes.UUID + "\n"
    assert file.read_text() == fakes.UUID + "\n"


def test_run_writes_the_uuid(fakes: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "uuid"
    request_of(fakes, "--uuid-file", str(file), "img")
    assert file.read_text() == fakes.UUID + "\n"


POD = {
    "apps": [
        {"name": "one", "image": "/one.aci"},
        {"name": "two", "image": "docker://two", "app": {"exec": ["/x"], "user": "0", "group": "0"}},
    ],
    "volumes": [{"name": "v", "kind": "empty"}],
    "networks": ["default"],
}


@pytest.mark.parametrize("suffix", ["json", "yml"])
def test_a_pod_from_a_file(fakes: ModuleType, tmp_path: Path, suffix: str) -> None:
    import yaml

    file = tmp_path / f"pod.{suffix}"
    file.write_text(json.dumps(POD) if suffix == "json" else yaml.safe_dump(POD))
    words = ["--volume", "name=w,kind=empty", "--annotation", "a=b", "--grant", "kurma.io/pids-limit"]
    request = request_of(fakes, "--pod", str(file), *words)
    assert request.grants == ("kurma.io/pids-limit",), "of a pod of several apps, too"
    assert [app.name for app in request.template.pod.apps] == ["one", "two"]
    assert [volume["name"] for volume in volumes(request)] == ["v", "w"]
    assert request.template.networks == ("default",)
    assert request.networks is None
    assert request.overrides == {}


@pytest.mark.parametrize(
    ("of_pod", "of_app", "told"),
    [
        ({"network": "host"}, {}, "unknown key $.network; did you mean networks?"),
        ({}, {"readonly": True}, "unknown key $.apps[0].readonly; did you mean readOnlyRootFS?"),
    ],
)
def test_an_unknown_key_of_a_pod_file_is_an_error(
    fakes: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    of_pod: dict[str, Any],
    of_app: dict[str, Any],
    told: str,
) -> None:
    """19.2: a mistyped key would lift a restriction. A manifest keeps it, as the specification asks for."""
    file = tmp_path / "pod.json"
    pod = {"apps": [{"name": "a", "image": "docker://x", **of_app}], **of_pod}
    file.write_text(json.dumps(pod))
    client = fakes.FakeClient()
    assert main(["run", "--pod", str(file)], connect=client.connect) == 125
    assert capsys.readouterr().err.startswith(f"kurma: {file}: {told}\n  hint: ")
    assert client.calls == []
    file.write_text(json.dumps({"acKind": "PodManifest", **pod}))
    kept = request_of(fakes, "--pod", str(file)).template.to_json()
    assert of_pod.items() <= kept.items()
    assert of_app.items() <= kept["apps"][0].items()
    assert f"{told.partition(';')[0]} is kept" in capsys.readouterr().err


def test_options_of_an_app_reach_a_pod_file_of_one(fakes: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "pod.json"
    mount = {"volume": "v", "path": "/v"}
    file.write_text(json.dumps({"apps": [{"name": "one", "image": "i", "mounts": [mount]}]}))
    request = request_of(fakes, "--pod", str(file), "-i", "--tty", "-e", "A=1", "-v", "/x:/y", "--", "word")
    assert (request.interactive, request.terminal) == ("one", "one")
    assert request.overrides["one"].arguments == ("word",)
    assert mounts(request) == [mount, {"volume": "y", "path": "/y"}]


def test_a_pod_from_standard_input(tmp_path: Path) -> None:
    program = f"""
import os, sys, types
sys.path.insert(0, {str(Path(__file__).parent)!r})
os.geteuid = lambda: 0
import cli_fakes
from kurma_core.cli.main import main
client = cli_fakes.FakeClient()
main(["run", "--pod", "-"], connect=client.connect)
print([app.name for app in client.calls[0][1][0].template.pod.apps])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(POD), capture_output=True, text=True, check=True
    )
    assert done.stdout == "['one', 'two']\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "neither an image nor a pod"),
        ("--pod FILE img", "both an image and --pod"),
        ("--pod FILE -e A=1", "--env needs a pod of one app; this pod has 2"),
        ("--pod FILE -i", "--interactive needs a pod of one app"),
        ("--pod FILE -t", "--tty needs a pod of one app"),
        ("--pod FILE -- word", "ARG needs a pod of one app"),
        ("-v .data:/data img", "'.data' is neither a path nor the name of a volume"),
        ("-v data:/data:ro,create img", "a named volume cannot have create"),
        ("--mount type=volume,source=a/b,target=/x img", "'a/b' is neither a path nor the name of a volume"),
        ("-v /a img", "-v: malformed '/a'"),
        ("-v /a:b img", "-v: malformed"),
        ("-v /a:/b:rx img", "-v: malformed"),
        ("-v /a:/b:ro,rw img", "-v: malformed"),
        ("--group-add users img", "--group-add: 'users' is not the number of a group"),
        ("--userns keep-id img", "--userns: malformed 'keep-id'"),
        ("--userns 0:65536 img", "--userns: malformed '0:65536'"),
        ("--userns 100000 img", "--userns: malformed '100000'"),
        ("--userns 100000:0 img", "--userns: malformed '100000:0'"),
        ("--userns 100000:-5 img", "--userns: malformed '100000:-5'"),
        ("--userns 4294967290:6 img", "--userns: malformed '4294967290:6'"),
        ("--userns= img", "--userns: malformed ''"),
        ("--volume kind=empty img", "has no name"),
        ("--volume name=a,size=3 img", "malformed 'size=3'"),
        ("--volume name=a,readOnly=maybe img", "readOnly must be true or false"),
        ("--volume name=a,uid=x img", "uid must be a number"),
        (f"--volume name=a,uid={'9' * 5000} img", "uid must be a number"),
        (f"--tmpfs /a:gid={'9' * 5000} img", "malformed"),
        (f"--secret a,uid={'9' * 5000} img", "uid must be a number"),
        ("--tmpfs tmp img", "--tmpfs: 'tmp' is not an absolute path"),
        ("--tmpfs /tmp:exec img", "--tmpfs: malformed 'exec' in '/tmp:exec'"),
        ("--tmpfs /tmp:size=big img", "--tmpfs: size: expected a quantity of bytes"),
        ("--tmpfs /tmp:size=0 img", "--tmpfs: size: expected more than 0 bytes, found '0'"),
        ("--tmpfs /tmp:mode=8 img", "--tmpfs: mode must be an octal number"),
        ("--pod FILE --tmpfs /tmp", "--tmpfs needs a pod of one app"),
        ("--mount volume=a img", "--mount: malformed"),
        ("-p 80 img", "malformed port '80'"),
        ("--net a: img", "malformed network 'a:'"),
        ("--dns nine img", "'nine' is not an address"),
        ("--dns fe80::1%eth0 img", "'fe80::1%eth0' is not an address"),
        ("--dns 224.0.0.251 img", "--dns: 224.0.0.251 is a multicast address"),
        ("-p 224.0.0.1:80:80 img", "malformed port '224.0.0.1:80:80': 224.0.0.1 is a multicast address"),
        ("-p [ff02::1]:80:80 img", "malformed port '[ff02::1]:80:80': ff02::1 is a multicast address"),
        ("-p 255.255.255.255:80:80 img", "255.255.255.255 is the address of broadcasts"),
        ("--dns-search a..b img", "--dns-search: malformed 'a..b'"),
        ("--dns-search .a img", "--dns-search: malformed '.a'"),
        (f"--dns-search {'a' * 64}.b img", "--dns-search: malformed 'aaa"),
        ("--dns-search= img", "--dns-search: malformed ''"),
        ("--dns-search a#b img", "--dns-search: malformed 'a#b'"),
        ("--dns-opt a;b img", "--dns-opt: malformed 'a;b'"),
        (f"--dns-search {'a' * 254} img", "--dns-search: malformed 'aaa"),
        ("--hosts-entry a=b img", "'a' is not an address"),
        ("--hosts-entry 10.0.0.1= img", "malformed '10.0.0.1='"),
        ("--annotation x img", "expected NAME=VALUE"),
        ("-e =x img", "--env: expected NAME=VALUE"),
        ("--env-file /nowhere img", "--env-file: /nowhere: cannot be read: no such file"),
        ("--insecure-options all img", "no option 'all'"),
        ("--hosts-entry foo img", "--hosts-entry: expected IP=NAME[,NAME], found 'foo'"),
        ("--name= img", "--name: the name is empty"),
        ("--stager= img", "--stager: the name is empty"),
        ("-e 1A=x img", "--env: '1A' cannot be a variable's name"),
        ("-e A,B img", "--env: 'A,B' cannot be a variable's name"),
        ("--workdir rel img", "--workdir: 'rel' is not an absolute path"),
        ("--workdir= img", "--workdir: '' is not an absolute path"),
        ("--mount volume=a,target=b img", "--mount: target: 'b' is not an absolute path"),
        ("--mount volume=a,target=/b/../c img", "--mount: target: '/b/../c' is not an absolute path"),
        ("--volume name=a,mode=rwx img", "--volume: mode must be an octal number up to 7777, not 'rwx'"),
        ("--volume name=a,mode=17777 img", "--volume: mode must be"),
        ("--volume name=a,mode= img", "--volume: mode must be"),
        ("--hostname= img", "--hostname: ''"),
        ("--hostname a_b img", "--hostname: 'a_b' cannot be a host's name"),
        ("--hostname a..b img", "--hostname: 'a..b'"),
        (f"--hostname {'a' * 64} img", "--hostname: 'aaa"),
        (f"--hostname {'a' * 32}.{'b' * 32} img", "--hostname: 'aaa"),
        ("--user 1:2 --group 3 img", "--user: '1:2' names a group, and --group is given"),
        ("--user 1: img", "--group: malformed ''"),
        ("--user :1 img", "--user: malformed ''"),
        ("--user 1:2:3 img", "--group: malformed '2:3'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    fakes: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(POD))
    client = fakes.FakeClient()
    assert main(["run", *words.replace("FILE", str(file)).split()], connect=client.connect) == 2
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith("kurma: ")
    assert said in err[0]
    assert all(line.startswith("  hint: ") for line in err[1:])
    assert len(err) <= 2
    assert client.calls == []


def test_an_isolators_value_is_json(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--isolator", "a={", "img"], connect=fakes.FakeClient().connect) == 2
    assert "--isolator a" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "prepare"])
def test_options_that_are_short_for_an_isolator(fakes: ModuleType, command: str) -> None:
    words = "--memory 1.5Gi --cpus 250m --caps-remove CAP_KILL,CHOWN --caps-remove MKNOD --isolator a.b/c=1 img"
    assert request_of(fakes, *words.split(), command=command).overrides["img"].isolators == (
        ("resource/memory", {"limit": "1.5Gi"}),
        ("resource/cpu", {"limit": "250m"}),
        ("os/linux/capabilities-remove-set", {"set": ["CAP_KILL", "CHOWN", "MKNOD"]}),
        ("a.b/c", 1),
    )
    limits = "--ulimit nofile=1024:4096 --ulimit core=0 --ulimit memlock=-1 --ulimit stack=8192:-1 img"
    assert request_of(fakes, *limits.split(), command=command).overrides["img"].isolators == (
        ("kurma.io/ulimits", {"nofile": [1024, 4096], "core": [0, 0], "memlock": [-1, -1], "stack": [8192, -1]}),
    )
    retained = request_of(fakes, "--caps-retain", "CAP_KILL", "img", command=command).overrides["img"].isolators
    assert retained == (("os/linux/capabilities-retain-set", {"set": ["CAP_KILL"]}),)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--isolator", "a"], "--isolator: "),
        (["--isolator", "a="], "--isolator a"),
        (["--isolator", "a=NaN"], "--isolator a"),
        (["--isolator", 'a={"x":1,"x":2}'], "--isolator a, $.x: expected each key once"),
        (["--isolator", "A b=1"], "--isolator A b: expected"),
        (["--isolator", "a=1", "--isolator", "a=1"], "--isolator a: a is already set by --isolator a"),
        (
            ["--memory", "1G", "--isolator", "resource/memory={}"],
            "--isolator resource/memory: resource/memory is already set by --memory",
        ),
        (["--memory", "512m"], "--memory: '512m': the suffix m means thousandths"),
        (["--memory", "many"], "--memory: expected a quantity of bytes"),
        (["--memory", ""], "--memory: expected a quantity of bytes"),
        (["--memory=-1"], "--memory: expected a quantity of bytes"),
        (["--cpus", "2x"], "--cpus: expected a quantity of cores"),
        (["--caps-retain", "CAP_KILL", "--caps-remove", "CAP_KILL"], "contradict each other"),
        (["--caps-retain", ""], "--caps-retain: expected capabilities, found ''"),
        (["--caps-remove", "CAP_KILL,,CAP_CHOWN"], "--caps-remove: expected capabilities"),
        (["--isolator", "a"], "--isolator: expected NAME=JSON, found 'a'"),
        (["--ulimit", "nofile"], "--ulimit: expected NAME=SOFT[:HARD], found 'nofile'"),
        (["--ulimit", "nofile=many"], "--ulimit: expected NAME=SOFT[:HARD] in whole numbers, found 'nofile=many'"),
        (["--ulimit", "nofile=1:2:3"], "--ulimit: expected NAME=SOFT[:HARD] in whole numbers"),
        (["--ulimit", "nofile=1:"], "--ulimit: expected NAME=SOFT[:HARD] in whole numbers"),
        (["--ulimit", "nofile=-2"], "--ulimit: expected NAME=SOFT[:HARD] in whole numbers"),
        (["--ulimit", "nofile=1", "--ulimit", "nofile=2"], "--ulimit: nofile is given twice"),
        (
            ["--ulimit", "nofile=1", "--isolator", "kurma.io/ulimits={}"],
            "--isolator kurma.io/ulimits: kurma.io/ulimits is already set by --ulimit",
        ),
        (["--exec", ""], "--exec: the program's path is empty"),
        (["-v", "./a:/data:"], "-v: malformed './a:/data:'"),
        (["-v", "./a:/data/../x"], "-v: target: '/data/../x' is not an absolute path without .."),
        (
            ["--volume", "name=a,kind=host"],
            "--volume: source: expected an absolute path on the host, found nothing",
        ),
        (
            ["--volume", "name=a,kind=tmpfs"],
            '--volume: kind: expected "host", "empty", "image" or "named", found "tmpfs"',
        ),
        (["--volume", "name=A,kind=empty"], "--volume: name: expected a name"),
        (["--volume", "name=a,kind=empty,source=/a"], "--volume: source: expected no source in a volume of kind"),
        (["--volume", "name=a,source=/a,source=/b"], "--volume: source is given twice in"),
    ],
)
def test_isolators_that_are_malformed_are_told(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    for command in (["run"], ["prepare"], ["app", "add", "web"]):
        client = fakes.FakeClient()
        assert main([*command, *words, "img"], connect=client.connect) == 2
        first, *more = capsys.readouterr().err.splitlines()
        assert first.startswith("kurma: ")
        assert said in first
        assert [line[:8] for line in more] in ([], ["  hint: "])
        assert client.calls == []


KEYS = (
    "name, kind, source, readOnly, recursive, idmap, propagation, create, recursiveReadOnly, image, subPath, "
    "mode, uid, gid, volume"
)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            ["-v", "./a:/data:ro,z"],
            "Kurma sets no SELinux labels: leave out z and Z, and use chcon(1)",
        ),
        (
            ["--volume", "name=a,source=/a,readonly=true"],
            f"keys: {KEYS}",
        ),
        (["--mount", "type=bind,source=./data,target=/x"], "-v ./data:/x"),
        (["--mount", "type=tmpfs,target=/x"], "--tmpfs /x"),
        (["--uts", "host", "--hostname", "foo"], "with --uts host, the pod has the host's name"),
    ],
)
def test_what_other_engines_have_here_is_told(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], words: list[str], hint: str
) -> None:
    assert main(["run", *words, "img"], connect=fakes.FakeClient().connect) == 2
    assert capsys.readouterr().err.splitlines()[1] == f"  hint: {hint}"


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("/images/Busy_Box-1.0.aci", "busy-box-1-0"),
        ("docker://host:5000/a/b:1.0", "b"),
        ("docker://debian@sha256:00ff", "debian"),
        ("example.com/etcd:v2,arch=amd64", "etcd"),
        ("https://x.example/a/nginx.aci?token=1", "nginx"),
        ("oci:/dir/layout:tag", "layout"),
        ("sha512-00ff", "app"),
        ("./---", "app"),
        ("x" * 80, "x" * 40),
    ],
)
def test_the_apps_name(image: str, name: str) -> None:
    assert app_name(image) == name


def test_supplementary_groups_and_their_policy(fakes: ModuleType) -> None:
    request = request_of(fakes, *["--group-add", "5", "--group-add", "70", "--group-policy", "strict", "img"])
    assert request.overrides["img"].supplementary_gids == (5, 70)
    assert request.template.pod.apps[0].annotation("kurma.io/group-policy") == "strict"
    assert request_of(fakes, "img").template.pod.apps[0].annotations == ()


@pytest.mark.parametrize("flags", ["-it", "-ti", "-i -t", "--interactive --tty"])
def test_a_terminal(fakes: ModuleType, flags: str) -> None:
    request = request_of(fakes, *flags.split(), "img")
    assert (request.interactive, request.terminal) == ("img", "img")


@pytest.mark.parametrize("command", ["run", "prepare"])
def test_the_passphrase_of_an_encrypted_image(
    command: str, fakes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's first line, else the variable, which no program that is started from here inherits (A1)."""
    file = tmp_path / "passphrase"
    file.write_bytes(b"open sesame \nmore\n")
    monkeypatch.setenv("KURMA_PASSPHRASE", "of the environment")
    for words, expected in ((["--passphrase-file", str(file)], b"open sesame "), ([], b"of the environment")):
        monkeypatch.setenv("KURMA_PASSPHRASE", "of the environment")
        client = fakes.FakeClient()
        assert main([command, *words, "img"], connect=client.connect) in (0, 42)
        passphrases = client.settings.passphrases()
        assert (passphrases.get("img", wrong=False), passphrases.attempts) == (expected, 1)
        assert "KURMA_PASSPHRASE" not in os.environ


@pytest.mark.parametrize(
    "text",
    ["pw,target=/x", "source=pw,target=/x", "target=/x,source=pw", "src=pw,dst=/x", "type=mount,src=pw,dst=/x"],
)
def test_secrets_in_the_forms_of_podman_and_docker(fakes: ModuleType, text: str) -> None:
    (secret,) = request_of(fakes, "--secret", text, "img").template.pod.apps[0].secrets
    assert secret.to_json() == {"name": "pw", "target": "/x"}


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["pw", "pw"], "the targets overlap: the file /run/secrets/pw twice"),
        (["pw,type=env,target=A", "k,type=env,target=A"], "the variable A of pw and k"),
        (
            ["pw,target=/a", "k,target=/a/b", "k,target=/q/r", "pw,target=/q"],
            "/a/b of k below the file /a of pw; /q/r of k below the file /q of pw",
        ),
        (["pw,source=pw"], "malformed 'source=pw'"),
        (["target=/x"], "'target=/x' names no secret"),
    ],
)
def test_secrets_that_are_refused(
    fakes: ModuleType, texts: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client = fakes.FakeClient()
    words = [word for text in texts for word in ("--secret", text)]
    assert main(["prepare", *words, "img"], connect=client.connect) == 2
    assert client.calls == []
    first, second = capsys.readouterr().err.splitlines()
    assert said in first
    assert second.startswith("  hint: ")


def test_every_option_is_used_by_a_test() -> None:
    secrets = Path(__file__).parent.parent / "integration/cli/test_root_pod_secrets.py"
    files = (Path(__file__), Path(__file__).with_name("test_cli_health.py"), secrets)
    text = "".join(file.read_text() for file in files)
    for part in POD_OPTIONS:
        if isinstance(part, Option):
            assert any(flag in text for flag in part.flags), part.name


@pytest.mark.parametrize("name", ["pod.json", "pod.yml", "pod"])
def test_a_file_of_an_option_that_is_not_there(
    fakes: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    client = fakes.FakeClient()
    for path, why in ((tmp_path / name, "no such file or directory"), (tmp_path, "it is a directory")):
        for option, words in (("--pod", []), ("--env-file", ["img"])):
            assert main(["run", option, str(path), *words], connect=client.connect) == 2
            assert capsys.readouterr().err.splitlines()[0] == f"kurma: {option}: {path}: cannot be read: {why}"
    assert client.calls == []


def test_the_pid_namespace_of_an_app(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    client = fakes.FakeClient()
    assert main(["app", "add", "--pid", "host", "web", "img"], connect=client.connect) == 0
    ((_, (_, request), _), *_) = [call for call in client.calls if call[0] == "app_add"]
    assert request.template.pod.apps[0].annotation("kurma.io/pid") == "host"
    assert request.grants == ("os/linux/namespaces=pid",)
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(POD))
    capsys.readouterr()
    assert main(["run", "--pid", "own", "--pod", str(file)], connect=client.connect) == 2
    assert "--pid own needs a pod of one app" in capsys.readouterr().err


def test_kept_roots(fakes: ModuleType, tmp_path: Path) -> None:
    """The option is over what the pod's file says."""
    file = tmp_path / "pod.json"
    notes = [{"name": "kurma.io/keep-root", "value": "false"}]
    file.write_text(json.dumps({"apps": [{"name": "a", "image": "img"}], "annotations": notes}))
    for words, kept in (
        (["img"], None),
        (["--keep-root", "img"], "true"),
        (["--keep-root", "--pod", str(file)], "true"),
    ):
        client = fakes.FakeClient()
        assert main(["prepare", *words], connect=client.connect) == 0
        ((_, (request, *_), _), *_) = [call for call in client.calls if call[0] == "prepare"]
        assert request.template.pod.annotation("kurma.io/keep-root") == kept


def test_the_parent_of_the_cgroup(fakes: ModuleType, tmp_path: Path) -> None:
    """It is over what the pod's file says."""
    file = tmp_path / "pod.json"
    notes = [{"name": "kurma.io/cgroup-parent", "value": "/a"}]
    file.write_text(json.dumps({"apps": [{"name": "a", "image": "img"}], "annotations": notes}))
    request = request_of(fakes, "--pod", str(file), "--cgroup-parent", "b-c.slice")
    assert [(one.name, one.value) for one in request.template.pod.annotations] == [
        ("kurma.io/cgroup-parent", "b-c.slice")
    ]


@pytest.mark.parametrize("command", ["run", "prepare"])
def test_a_restart_policy(fakes: ModuleType, tmp_path: Path, command: str) -> None:
    """It is over what the pod's file says."""
    request = request_of(fakes, "--restart", "on-failure", "img", command=command)
    assert request.template.pod.annotation("kurma.io/pod/restart") == "on-failure"
    file = tmp_path / "pod.json"
    pod = {"apps": [{"name": "a", "image": "img"}]}
    file.write_text(json.dumps({**pod, "annotations": [{"name": "kurma.io/pod/restart", "value": "never"}]}))
    request = request_of(fakes, "--pod", str(file), "--restart", "always", command=command)
    assert request.template.pod.annotation("kurma.io/pod/restart") == "always"
    assert request_of(fakes, "img", command=command).template.pod.annotation("kurma.io/pod/restart") is None


def test_logs_and_the_stop_signal(fakes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are annotations: of the pod, and of its app."""
    monkeypatch.chdir(tmp_path)
    words = ("--log-dir", "logs", "--log-path", "a/b.log", "--stop-signal", "QUIT", "img")
    pod = request_of(fakes, *words).template.pod
    assert pod.annotation("kurma.io/log-dir") == str(tmp_path / "logs")
    assert pod.apps[0].annotation("kurma.io/log-path") == "a/b.log"
    assert pod.apps[0].annotation("kurma.io/stop-signal") == "3"
