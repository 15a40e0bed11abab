"""The default stager, alone: what an app finds, in the root that the core makes for its stager."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

import pytest

from kurma_core.errors import StagerError
from kurma_core.linux import capabilities
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.models.pod import MountSetup
from tests.kit.images import shell

pytestmark = pytest.mark.root

Pods = Callable[..., "object"]


def mount(volume: str, path: str, read_only: bool = False, seed: bool = False) -> MountSetup:
    return MountSetup(volume, path, read_only, seed)


def lines(text: str) -> dict[str, str]:
    """``KEY=VALUE`` or ``KEY: VALUE`` lines."""
    found = {}
    for line in text.splitlines():
        key, mark, value = line.partition("=" if "=" in line else ":")
        if mark:
            found[key.strip()] = value.strip()
    return found


# --- codes, reasons --------------------------------------------------------------------------------------------


def test_two_apps_and_their_exit_codes(pods):
    """H5: codes, reasons, times, logs; the stager itself ends with 0 (G6)."""
    pod = pods({"good": shell("echo out; echo err >&2"), "bad": shell("exit 42")})
    assert pod.ended() == 0, pod.output()
    good, bad = pod.app("good"), pod.app("bad")
    assert (good["exitCode"], good["exitReason"], good["exited"]) == (0, "exited", True)
    assert (bad["exitCode"], bad["exitReason"]) == (42, "exited")
    assert good["startedAt"] <= good["finishedAt"]
    assert pod.log("good.log", b"stdout") == "out\n"
    assert pod.log("good.log", b"stderr") == "err\n"


def test_running_is_told_before_the_end(pods):
    """G3: descriptor 4 closes while the app runs; no app holds it."""
    pod = pods({"main": shell("ls /proc/self/fd; echo end; sleep 1000")}).started()
    assert pod.process.alive()
    assert pod.app()["pid"] > 1
    assert pod.app()["exited"] is False
    # 3 is the directory that ls itself reads
    assert pod.wait_log("end").split() == ["0", "1", "2", "3", "end"]


def test_the_stagers_own_environment(pods):
    """G4: a stager of the document alone has the host name and the metadata service, nothing of its apps."""
    pairs = [("AC_METADATA_URL", "http://127.0.0.1:1/token"), ("A", "from kurma"), ("HOSTNAME", "x")]
    pod = pods({"main": shell("exec sleep 1000")}, environment=pairs).started()
    with open(f"/proc/{pod.process.pid}/environ") as file:
        own = dict(pair.split("=", 1) for pair in file.read().split("\0") if pair)
    assert (own["AC_METADATA_URL"], own["HOSTNAME"]) == ("http://127.0.0.1:1/token", "test-host")
    assert "A" not in own


@pytest.mark.parametrize(
    ("argv", "code", "reason"),
    [
        (["/no/such"], 127, "/no/such: not found"),
        (["nosuch"], 127, "nosuch: not found in /usr/local/sbin"),
        (["/etc/passwd"], 126, "/etc/passwd: is not executable (mode 0644)"),
        (["/etc"], 126, "/etc: is a directory"),
        (["/bad/script"], 126, "the script's interpreter /no/interpreter is missing"),
        (["/bad/loader"], 126, "its ELF loader /lib/ld-nowhere.so is missing"),
        (["/bad/arch"], 126, "is built for s390x"),
        (["/bad/text"], 126, "neither an ELF program nor a script"),
    ],
)
def test_exec_reasons(pods, busybox_root, tmp_path, argv, code, reason):
    """Y3: 127 not found, 126 not executable, each with its reason; the pod has run, and is over."""
    layer = tmp_path / "layer"
    (layer / "bad").mkdir(parents=True)
    elf = bytearray(b"\x7fELF\x02\x01\x01".ljust(64, b"\0"))
    elf[16:20] = b"\x02\0\x3e\0"
    elf[32:40] = (64).to_bytes(8, "little")
    elf[54:58] = (56).to_bytes(2, "little") + (1).to_bytes(2, "little")
    loader = b"/lib/ld-nowhere.so\0"
    entry = bytearray(56)
    entry[0:4] = (3).to_bytes(4, "little")
    entry[8:16] = (120).to_bytes(8, "little")
    entry[32:40] = entry[40:48] = len(loader).to_bytes(8, "little")
    with_loader = bytes(elf) + bytes(entry) + loader
    other = bytearray(with_loader)
    other[18:20] = (22).to_bytes(2, "little")
    for name, content in {
        "script": b"#!/no/interpreter -x\n",
        "loader": with_loader,
        "arch": bytes(other),
        "text": b"hello\n",
    }.items():
        (layer / "bad" / name).write_bytes(content)
        (layer / "bad" / name).chmod(0o755)
    pod = pods({"main": {"exec": argv, "user": "0", "group": "0"}}, roots=[str(layer), busybox_root])
    assert pod.ended() == 0, pod.output()
    app = pod.app()
    assert (app["exitCode"], app["exitReason"]) == (code, "start-failed")
    assert reason in app["message"]


def test_one_app_that_cannot_be_executed_does_not_end_the_others(pods):
    pod = pods({"bad": {"exec": ["/no/such"], "user": "0", "group": "0"}, "good": shell("echo alive; sleep 1000")})
    pod.started()
    assert pod.app("bad")["exitCode"] == 127
    pod.wait_log("alive", "good.log")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"user": "nobody-here"}, "no user 'nobody-here' in the image's /etc/passwd"),
        ({"group": "nogroup-here"}, "no group 'nogroup-here' in the image's /etc/group"),
        ({"user": "/no/file"}, "/no/file"),
        ({"workingDirectory": "/no/dir"}, "the working directory /no/dir does not exist"),
    ],
)
def test_what_cannot_be_set_up_fails_the_start(pods, fields, reason):
    """G3, Y2: the stager ends otherwise than by 0 before it closes descriptor 4, and its last line says why."""
    pod = pods({"main": shell("true", **fields)})
    with pytest.raises(StagerError, match=r"^the pod cannot be started: app ") as caught:
        pod.started()
    assert reason in str(caught.value)
    assert pod.app()["exitReason"] == "start-failed"
    assert pod.app()["exitCode"] == 125


def test_killed_by_a_signal(pods):
    pod = pods({"main": shell("kill -USR1 $$; sleep 10")})
    assert pod.ended() == 0
    assert (pod.app()["exitCode"], pod.app()["exitReason"]) == (138, "killed")


@pytest.mark.vm
def test_out_of_memory_is_told_from_killed(pods):
    """H5: the kernel's own word for it is the cgroup's counter."""
    from kurma_core.linux.cgroups import Layout
    from kurma_core.models.isolator import CgroupSetting

    hierarchy = Layout.detect().of("memory")
    assert hierarchy is not None
    file = "memory.limit_in_bytes" if hierarchy.version == 1 else "memory.max"
    plan = IsolatorPlan(cgroup=(CgroupSetting("memory", file, str(24 << 20)),))
    pod = pods(
        {"eater": shell("exec tail -c 200m /dev/zero"), "killed": shell("kill -9 $$")},
        plans={"eater": plan, "killed": plan},
    )
    assert pod.ended() == 0
    assert (pod.app("eater")["exitCode"], pod.app("eater")["exitReason"]) == (137, "oom")
    assert (pod.app("killed")["exitCode"], pod.app("killed")["exitReason"]) == (137, "killed")


# --- who, where, with what -------------------------------------------------------------------------------------


def test_environment(pods):
    """Y1: always these; the app's own win over the defaults, not over the app's name."""
    fields = {
        "environment": [{"name": "A", "value": "1 2"}, {"name": "HOME", "value": "/elsewhere"}],
        "user": "alice",
        "group": "",
    }
    pod = pods(
        {"main": {**shell("env"), **fields}, "plain": shell("env")},
        environment=[("AC_METADATA_URL", "http://127.0.0.1:1/token"), ("A", "from kurma")],
    )
    assert pod.ended() == 0, pod.output()
    assert lines(pod.log()) == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "AC_APP_NAME": "main",
        "AC_METADATA_URL": "http://127.0.0.1:1/token",
        "container": "kurma",
        "USER": "alice",
        "LOGNAME": "alice",
        "HOME": "/elsewhere",
        "SHELL": "/bin/ash",
        "A": "from kurma",
        "PWD": "/",
        "SHLVL": "1",
    }
    plain = lines(pod.log("plain.log"))
    assert (plain["USER"], plain["HOME"], plain["AC_APP_NAME"]) == ("root", "/root", "plain")


@pytest.mark.parametrize(
    ("user", "group", "groups", "expected"),
    [
        ("alice", "", [], "1000:100 10 100"),
        ("alice", "staff", [7], "1000:50 7 50"),
        ("1000", "5", [], "1000:5 5"),
        ("4711", "", [], "4711:0 0"),
        ("/owned", "/owned", [], "123:456 456"),
        ("0", "0", [], "0:0 0"),
    ],
)
def test_users(pods, busybox_root, tmp_path, user, group, groups, expected):
    """H6: name, number, path; supplementary groups; a name that is all digits wins over the number."""
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "owned").write_text("")
    os.chown(layer / "owned", 123, 456)
    fields = {"user": user, "group": group, "supplementaryGIDs": groups}
    pod = pods(
        {"main": {**shell('echo "$(id -u):$(id -g) $(id -G | tr " " "\n" | sort -n | tr "\n" " ")"'), **fields}},
        roots=[str(layer), busybox_root],
    )
    assert pod.ended() == 0, pod.output()
    assert pod.log().strip() == expected


def test_plain_user_reopens_its_output(pods):
    """``/dev/stdout`` is the app's own, whoever it runs as."""
    pod = pods(
        {"main": {**shell("echo again > /dev/stdout; echo wrong > /dev/stderr"), "user": "1000", "group": "100"}}
    )
    assert pod.ended() == 0
    assert pod.log(stream=b"stdout") == "again\n"
    assert pod.log(stream=b"stderr") == "wrong\n"


def test_working_directory_and_host_name(pods):
    pod = pods({"main": {**shell("pwd; hostname; cat /proc/1/comm"), "workingDirectory": "/home/alice"}})
    assert pod.ended() == 0
    assert pod.log() == "/home/alice\ntest-host\nkurma-init\n"


def test_standard_input(pods):
    """The app that asks for it has the stager's; the others have none."""
    read, write = os.pipe()
    os.write(write, b"hello\n")
    os.close(write)
    try:
        pod = pods({"main": shell("cat"), "other": shell("cat; echo end")}, interactive="main", stdin=read)
        assert pod.ended() == 0
    finally:
        os.close(read)
    assert pod.log() == "hello\n"
    assert pod.log("other.log") == "end\n"


def status_of(text: str) -> dict[str, int]:
    found = {key: int(value, 16) for key, value in lines(text).items() if key.startswith("Cap")}
    found.update({key: int(value) for key, value in lines(text).items() if key == "NoNewPrivs"})
    return found


@pytest.mark.parametrize("user", ["0", "1000"])
def test_default_capabilities(pods, user):
    """X2: the fourteen, and no more; a plain user holds none, bounded by them."""
    pod = pods({"main": {**shell("cat /proc/self/status"), "user": user, "group": user}})
    assert pod.ended() == 0
    found = status_of(pod.log())
    fourteen = capabilities.mask(capabilities.DEFAULT_SET)
    held = fourteen if user == "0" else 0
    assert found == {
        "CapInh": 0, "CapPrm": held, "CapEff": held, "CapBnd": fourteen, "CapAmb": 0, "NoNewPrivs": 0
    }  # fmt: skip


@pytest.mark.vm
@pytest.mark.parametrize("user", ["0", "1000"])
def test_granted_capabilities_and_no_new_privileges(pods, user):
    names = ("CAP_NET_BIND_SERVICE", "CAP_CHOWN")
    plan = IsolatorPlan(capabilities=names, ambient=names, no_new_privileges=True)
    pod = pods({"main": {**shell("cat /proc/self/status"), "user": user, "group": user}}, plans={"main": plan})
    assert pod.ended() == 0
    found = status_of(pod.log())
    held = capabilities.mask([capabilities.BITS[name] for name in names])
    assert (found["CapPrm"], found["CapEff"], found["CapBnd"], found["NoNewPrivs"]) == (held, held, held, 1)
    if user != "0":
        assert found["CapAmb"] == found["CapInh"] == held


@pytest.mark.vm
def test_limits_and_scores(pods):
    plan = IsolatorPlan(rlimits={"nofile": (123, 456)}, oom_score_adj=321)
    pod = pods({"main": shell("ulimit -Sn; ulimit -Hn; cat /proc/self/oom_score_adj")}, plans={"main": plan})
    assert pod.ended() == 0, pod.output()
    assert pod.log() == "123\n456\n321\n"


def test_sysctls_are_the_pods_own(pods):
    def host() -> str:
        with open("/proc/sys/kernel/shmmni") as file:
            return file.read()

    before = host()
    pod = pods(
        {"main": shell("cat /proc/sys/kernel/shmmni")}, pod_plan=IsolatorPlan(sysctls={"kernel.shmmni": "77"})
    )
    assert pod.ended() == 0, pod.output()
    assert pod.log() == "77\n"
    assert host() == before


# --- roots and volumes -----------------------------------------------------------------------------------------


@pytest.mark.vm
@pytest.mark.parametrize("storage", ["overlay", "copy"])
def test_union_and_clean_copy(pods, busybox_root, tmp_path, storage):
    """H3: the top layer wins; what an app writes reaches no layer; the root directory looks as the top one's."""
    top, middle = tmp_path / "top", tmp_path / "middle"
    for layer in (top, middle):
        (layer / "etc").mkdir(parents=True)
        (layer / "etc" / "who").write_text(layer.name)
    (middle / "etc" / "only").write_text("middle")
    top.chmod(0o751)
    script = "stat -c %a /; cat /etc/who /etc/only; echo x > /etc/who; rm /etc/only; mkdir /new; echo done"
    pod = pods(
        {"main": shell(script)}, roots=[str(top), str(middle), busybox_root], config={"graphStorage": storage}
    )
    assert pod.ended() == 0, pod.output()
    assert pod.log() == "751\ntopmiddledone\n"
    assert (top / "etc" / "who").read_text() == "top"
    assert (middle / "etc" / "only").exists()
    assert not (top / "new").exists()


def test_setuid_works(pods, busybox_root, tmp_path):
    """G2: a setuid program of a layer still is one, although devices are none."""
    layer = tmp_path / "layer"
    (layer / "suid").mkdir(parents=True)
    with open(f"{busybox_root}/bin/busybox", "rb") as file:
        (layer / "suid" / "busybox").write_bytes(file.read())
    (layer / "suid" / "busybox").chmod(0o4755)
    (layer / "etc").mkdir()
    (layer / "etc" / "passwd").write_text("root::0:0:root:/:/bin/sh\nalice:x:1000:100::/:/bin/sh\n")
    script = "id -u; /suid/busybox su -c 'id -u' root"
    pod = pods({"main": {**shell(script), "user": "1000", "group": "100"}}, roots=[str(layer), busybox_root])
    assert pod.ended() == 0
    assert pod.log() == "1000\n0\n"


@pytest.mark.vm
def test_read_only_root(pods):
    pod = pods(
        {
            "main": shell(
                "touch /file || echo refused; touch /work/in && echo volume; touch /dev/shm/x && echo memory"
            )
        },
        read_only=True,
        volumes={"v": "/tmp"},
        mounts={"main": [mount("v", "/work")]},
    )
    try:
        assert pod.ended() == 0, pod.output()
        assert pod.log(stream=b"stdout") == "refused\nvolume\nmemory\n"
    finally:
        if os.path.exists("/tmp/in"):
            os.unlink("/tmp/in")


@pytest.mark.vm
def test_volumes(pods, tmp_path):
    """V2, V3: shared by the apps, made with their parents, a file in the way gives way, read-only means it."""
    shared, single = tmp_path / "shared", tmp_path / "single"
    shared.mkdir()
    single.write_text("one file")
    pod = pods(
        {
            "writer": shell("echo hi > /a/b/c/file; stat -c '%a %u' /a/b; cat /etc/one"),
            "reader": shell(
                "until grep hi /etc/passwd/file; do :; done 2>/dev/null; touch /etc/passwd/x || echo refused"
            ),
        },
        volumes={"v": str(shared), "f": str(single)},
        mounts={
            "writer": [mount("v", "/a/b/c"), mount("f", "/etc/one")],
            "reader": [mount("v", "/etc/passwd", read_only=True)],
        },
    )
    assert pod.ended() == 0, pod.output()
    assert pod.log("writer.log") == "755 0\none file"
    assert pod.log("reader.log", b"stdout") == "hi\nrefused\n"
    assert (shared / "file").read_text() == "hi\n"


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        (("/a", "/a"), "hides volume v at /a"),
        (("/a", "/link"), "hides volume v at /a"),
        (("/link/b", "/a/b"), "hides volume v at /link/b"),
        (("/proc/sys", "/b"), "kurma reserves this path"),
        (("/", "/b"), "kurma reserves this path"),
    ],
)
def test_overlapping_volumes(pods, busybox_root, tmp_path, paths, said):
    """V3: an error, also where a link hides that one is mounted over the other."""
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "link").symlink_to("/a")
    source = tmp_path / "source"
    source.mkdir()
    pod = pods(
        {"main": shell("true")},
        roots=[str(layer), busybox_root],
        volumes={"v": str(source), "w": str(source)},
        mounts={"main": [mount("v", paths[0]), mount("w", paths[1])]},
    )
    with pytest.raises(StagerError) as caught:
        pod.started()
    assert said in str(caught.value)
    assert os.listdir(source) == []


def test_links_in_an_image_lead_nowhere_outside(pods, busybox_root, tmp_path):
    """V3: a link of the image on the way to a target is followed inside the app's root, never outside."""
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "out").symlink_to("../../../../../../../tmp")
    (layer / "absolute").symlink_to("/run")
    source = tmp_path / "source"
    source.mkdir()
    (source / "mark").write_text("here")
    pod = pods(
        {"main": shell("cat /tmp/deep/mark /run/deep/mark; cat /etc/hostname")},
        roots=[str(layer), busybox_root],
        volumes={"v": str(source), "w": str(source)},
        mounts={"main": [mount("v", "/out/deep"), mount("w", "/absolute/deep")]},
    )
    assert pod.ended() == 0, pod.output()
    assert pod.log() == "hereheretest-host\n"
    assert not os.path.exists("/tmp/deep")


def test_masked_content_is_told(pods, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    pod = pods({"main": shell("true")}, volumes={"v": str(source)}, mounts={"main": [mount("v", "/etc")]})
    assert pod.ended() == 0, pod.output()
    assert "app main: volume v hides what the image has at /etc" in pod.document()["notes"]


@pytest.mark.vm
def test_seeded_volume(pods, busybox_root, tmp_path):
    """P5: an empty volume takes over what the image has there, owners, modes and links included; once."""
    layer, source = tmp_path / "layer", tmp_path / "source"
    (layer / "data" / "sub").mkdir(parents=True)
    source.mkdir()
    (layer / "data" / "file").write_text("image's")
    (layer / "data" / "link").symlink_to("/etc/passwd")
    os.chown(layer / "data" / "file", 12, 34)
    os.chmod(layer / "data", 0o1770)
    arguments = {
        "roots": [str(layer), busybox_root],
        "volumes": {"v": str(source)},
        "mounts": {name: [mount("v", "/data", seed=True)] for name in ("one", "two")},
    }
    pod = pods({name: shell("cat /data/file; readlink /data/link") for name in ("one", "two")}, **arguments)
    assert pod.ended() == 0, pod.output()
    assert pod.log("one.log") == pod.log("two.log") == "image's/etc/passwd\n"
    status = (source / "file").stat()
    assert (status.st_uid, status.st_gid) == (12, 34)
    assert stat.S_IMODE(source.stat().st_mode) == 0o1770
    (source / "file").write_text("changed")
    again = pods({name: shell("cat /data/file") for name in ("one", "two")}, **arguments)
    assert again.ended() == 0, again.output()
    assert again.log("one.log") == "changed"


@pytest.mark.vm
def test_host_files(pods):
    """H10: given to an app that brings none."""
    pod = pods(
        {"main": shell("cat /etc/hosts; echo --; cat /etc/resolv.conf")},
        hosts=(("127.0.0.1", ("localhost",)), ("10.1.2.3", ("test-host", "alias"))),
        dns={"nameservers": ("10.0.0.53",), "search": ("a.example", "b.example"), "options": ("ndots:2",)},
    )
    assert pod.ended() == 0, pod.output()
    assert pod.log() == (
        "127.0.0.1\tlocalhost\n10.1.2.3\ttest-host alias\n--\n"
        "nameserver 10.0.0.53\nsearch a.example b.example\noptions ndots:2\n"
    )


@pytest.mark.parametrize("replaced", [(), ("hosts", "hostname", "resolv.conf")], ids=["kept", "replaced"])
def test_host_files_of_the_image(pods, busybox_root, tmp_path, replaced):
    """H10: they stay, with the pod's own name, or Kurma's take their place; an empty file is none."""
    layer = tmp_path / "layer"
    (layer / "etc").mkdir(parents=True)
    (layer / "etc" / "hosts").write_text("1.1.1.1 own")  # without the line's end
    (layer / "etc" / "hosts").chmod(0o600)
    (layer / "run").mkdir()
    (layer / "run" / "stub.conf").write_text("nameserver 1.1.1.1\n")
    (layer / "etc" / "resolv.conf").symlink_to("../run/stub.conf")
    (layer / "etc" / "hostname").write_text("")
    pod = pods(
        {"main": shell("cat /etc/hosts /etc/hostname /run/stub.conf; stat -c %a /etc/hosts")},
        roots=[str(layer), busybox_root],
        hosts=(("127.0.0.1", ("localhost",)), ("10.1.2.3", ("test-host",))),
        dns={"nameservers": ("10.0.0.53",), "search": (), "options": ()},
        replace_files=replaced,
    )
    assert pod.ended() == 0, pod.output()
    if replaced:
        assert pod.log() == "127.0.0.1\tlocalhost\n10.1.2.3\ttest-host\ntest-host\nnameserver 10.0.0.53\n644\n"
        assert pod.app()["files"] == {"hosts": "kurma", "hostname": "kurma", "resolv.conf": "kurma"}
    else:
        assert pod.log() == "1.1.1.1 own\n10.1.2.3\ttest-host\ntest-host\nnameserver 1.1.1.1\n600\n"
        assert pod.app()["files"] == {"hosts": "image+name", "hostname": "kurma", "resolv.conf": "image"}
    assert (layer / "etc" / "hosts").read_text() == "1.1.1.1 own"
    assert (layer / "run" / "stub.conf").read_text() == "nameserver 1.1.1.1\n"
    assert (layer / "etc" / "hostname").read_text() == ""
