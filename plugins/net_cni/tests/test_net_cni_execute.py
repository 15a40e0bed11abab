"""Running plugins: real processes, made of shell scripts that misbehave as told."""

import json
import os
import time
from contextlib import suppress

import pytest
from kurma_cni import orphans
from kurma_net_cni.discover import discover
from kurma_net_cni.driver import CniNetwork
from kurma_net_cni.plugin import kurma_network
from kurma_net_cni.records import Records
from kurma_testing.networks import context

from kurma_core.errors import ConfigError, FormatVersionError, NetworkError
from kurma_core.hookspecs.driver import DriverContext
from kurma_core.linux.programs import ProgramTimeout, run
from plugins.net_cni.tests.stub import POD

RESULT = '{"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]}'
LOG = 'echo "$CNI_COMMAND $0 [$CNI_NETNS] $CNI_CONTAINERID $CNI_IFNAME $CNI_ARGS" >> $(dirname $0)/log; '
CAT = "tee $(dirname $0)/$(basename $0).$CNI_COMMAND"


@pytest.fixture
def bin_dir(tmp_path):
    directory = tmp_path / "bin"
    directory.mkdir()
    return directory


@pytest.fixture
def script(bin_dir):
    def script(name, text):
        path = bin_dir / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return script


@pytest.fixture
def driver(bin_dir, tmp_path):
    return CniNetwork([str(bin_dir)], 5, Records(str(tmp_path / "state")), (), print)


def config(*names, version="1.0.0"):
    return {"name": "n", "cniVersion": version, "plugins": [{"type": name} for name in names]}


def log(bin_dir):
    text = (bin_dir / "log").read_text().replace(f"{bin_dir}/", "")
    return text.splitlines()


# --- processes -------------------------------------------------------------------------------------------------


def test_input_output_and_status(script):
    path = script("p", "cat; echo no >&2; exit 3")
    finished = run([path], stdin=b"x" * 300_000, environment={"PATH": os.environ["PATH"]})
    assert (finished.status, finished.stdout, finished.stderr) == (3, b"x" * 300_000, b"no\n")


def test_a_signal_is_a_negative_status(script):
    assert run([script("p", "kill -9 $$")], environment={}).status == -9


@pytest.mark.parametrize(
    "start", ["sleep 60 &", "setsid sleep 60 &", "(sh -c 'sleep 60 & echo $! >>{pids}; wait' &) ;"]
)
def test_too_slow_is_killed_whole(script, tmp_path, start):
    """Its children, also in sessions of their own, and theirs; and orphans that stayed in its session."""
    pids = tmp_path / "pids"
    path = script("p", f"{start.format(pids=pids)} echo $! >> {pids}; echo $$ >> {pids}; sleep 61")
    begun = time.monotonic()
    with pytest.raises(ProgramTimeout):
        run([path], environment={"PATH": os.environ["PATH"]}, timeout=0.5)
    assert time.monotonic() - begun < 5
    found = [pid for pid in pids.read_text().split() if pid.isdecimal()]
    assert len(found) >= 2 or "(" in start
    for pid in found:
        until_dead(pid)


def until_dead(pid):
    for _ in range(100):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state in "ZX":  # dead, and not yet reaped by whoever has adopted it
            return
        time.sleep(0.02)
    pytest.fail(f"process {pid} lives on")


def test_printing_without_end_is_ended(script, tmp_path):
    driver = CniNetwork(
        [os.path.dirname(script("one", "[ $CNI_COMMAND = DEL ] && exit; exec cat /dev/zero"))], 30,
        Records(str(tmp_path / "state")), (), print,
    )  # fmt: skip
    begun = time.monotonic()
    with pytest.raises(NetworkError, match=r'"n": CNI plugin one was killed: it printed without end$'):
        driver.add(context(POD, config("one")))
    assert time.monotonic() - begun < 10


def test_what_is_inherited_holds_nothing_up(script):
    """A plugin may leave a process behind that keeps its output open."""
    begun = time.monotonic()
    finished = run([script("p", "sleep 3 & echo done")], environment={"PATH": os.environ["PATH"]})
    assert finished.stdout == b"done\n"
    assert time.monotonic() - begun < 2


# --- plugins ---------------------------------------------------------------------------------------------------


def test_a_chain_runs_in_order_and_back(driver, script, bin_dir):
    script("one", LOG + CAT + " >/dev/null; " + f"echo '{RESULT}'")
    script("two", LOG + CAT + " >/dev/null; " + f"echo '{RESULT.replace('.2/', '.3/')}'")
    one = context(POD, config("one", "two"))
    assert driver.add(one).addresses[0].address == "10.0.0.3/24"
    driver.check(one)
    driver.delete(one)
    rest = f"{POD} eth0 IgnoreUnknown=1"
    path = f"/run/netns/kurma-{POD}"
    assert log(bin_dir) == [f"ADD one [{path}] {rest}", f"ADD two [{path}] {rest}",
                            f"CHECK one [{path}] {rest}", f"CHECK two [{path}] {rest}",
                            f"DEL two [] {rest}", f"DEL one [] {rest}"]  # fmt: skip
    read = {
        name: json.loads((bin_dir / name).read_text()) for name in ("one.ADD", "two.ADD", "one.DEL", "two.CHECK")
    }
    assert "prevResult" not in read["one.ADD"]
    assert read["two.ADD"]["prevResult"] == json.loads(RESULT)
    assert (
        read["one.DEL"]["prevResult"]["ips"]
        == read["two.CHECK"]["prevResult"]["ips"]
        == [{"address": "10.0.0.3/24"}]
    )


def test_before_0_4_0_delete_gets_no_result_and_there_is_no_check(driver, script, bin_dir):
    script("one", LOG + CAT + ' >/dev/null; echo \'{"ip4": {"ip": "10.0.0.2/24"}}\'')
    one = context(POD, config("one", version="0.2.0"))
    driver.add(one)
    driver.check(one)
    driver.delete(one)
    assert [line.split()[0] for line in log(bin_dir)] == ["ADD", "DEL"]
    assert "prevResult" not in json.loads((bin_dir / "one.DEL").read_text())


def test_delete_goes_on_after_a_failure_and_can_be_repeated(driver, script, bin_dir):
    script("one", LOG + f"echo '{RESULT}'")
    script(
        "two",
        LOG + f"[ $CNI_COMMAND = DEL ] && [ ! -e {bin_dir}/good ] && echo broken >&2 && exit 1; echo '{RESULT}'",
    )
    one = context(POD, config("one", "two", "one"))
    driver.add(one)
    with pytest.raises(NetworkError, match='cannot leave network "n": CNI plugin two failed: broken'):
        driver.delete(one)
    with pytest.raises(NetworkError, match=f"pod {POD} is not joined"):
        driver.check(one)
    assert [" ".join(line.split()[:2]) for line in log(bin_dir)[3:]] == [
        "DEL one",
        "DEL two",
        "DEL one",
        "DEL two",
    ]
    (bin_dir / "good").touch()
    driver.delete(one)
    assert [" ".join(line.split()[:2]) for line in log(bin_dir)[7:]] == ["DEL two"]
    driver.remove(config("one"))


def test_delete_after_a_failed_add_reaches_every_plugin(driver, script, bin_dir):
    script("one", LOG + f"echo '{RESULT}'")
    script("two", LOG + "[ $CNI_COMMAND = DEL ] || exit 1")
    one = context(POD, config("one", "two", "one"))
    with pytest.raises(NetworkError):
        driver.add(one)
    driver.delete(one)
    assert [" ".join(line.split()[:2]) for line in log(bin_dir)] == [
        "ADD one", "ADD two", "DEL one", "DEL two", "DEL one"
    ]  # fmt: skip


@pytest.mark.parametrize("told", ["alike", "otherwise", "in no way", "by its second plugin"])
def test_what_was_refused_at_add_is_not_left_either(driver, script, bin_dir, told):
    """A plugin that cannot read its configuration fails at DEL as at ADD: no pod is kept for ever by that."""
    words = {"alike": "invalid", "otherwise": "invalid at $CNI_COMMAND"}.get(told, "invalid")
    refuse = f'echo "{{\\"code\\": 999, \\"msg\\": \\"{words}\\"}}"; exit 1'
    script("one", LOG + ("exit 1" if told == "in no way" else refuse))
    script("two", f"echo '{RESULT}'")
    one = context(POD, config("two", "one") if told == "by its second plugin" else config("one", "two"))
    with pytest.raises(NetworkError):
        driver.add(one)
    if told == "alike":
        driver.delete(one)
        driver.delete(one)
        driver.remove(config("one", "two"))
    else:
        with pytest.raises(NetworkError, match="cannot leave"):
            driver.delete(one)


ERROR = '{"cniVersion": "1.0.0", "code": 7, "msg": "no good", "details": "too small"}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"echo '{ERROR}'; exit 1", r"failed: no good: too small$"),
        ("echo plain words; exit 1", r"failed: plain words$"),
        ("echo one >&2; echo two >&2; exit 1", r"failed: one two$"),
        ("echo '[]'; exit 1", r"failed: \[\]$"),
        ("exit 4", r"failed: it ended with status 4 and said nothing$"),
        ("kill -9 $$", r"failed: it ended with signal 9 and said nothing$"),
        ("printf 'a\\033[31mb\\nc'; exit 1", r"failed: a \[31mb c$"),
        ("true", r"printed no result but nothing$"),
        ("echo hello", r"printed no result but hello$"),
        ("printf %100000s | tr ' ' '['", r"printed no result but \[+$"),
        ("printf %100000s | tr ' ' '['; exit 1", r"failed: \[+"),
        ("head -c 5000000 /dev/zero", r"printed no result but nothing$"),
        ("echo only on standard error >&2", r"printed no result but nothing$"),
        ("head -c 5000000 /dev/zero | tr '\\0' x; exit 1", r"failed: x{200} … x{400}$"),
        ("echo 3", r"returned a wrong result: \$: expected an object, found 3$"),
    ],
)
def test_every_failure_is_one_clear_line(driver, script, text, why):
    script("one", f"[ $CNI_COMMAND = DEL ] && exit; {text}")
    one = context(POD, config("one"))
    with pytest.raises(NetworkError, match=why) as caught:
        driver.add(one)
    assert '"n"' in caught.value.message
    assert "\n" not in caught.value.message
    driver.delete(one)


def test_one_that_takes_too_long_is_killed(bin_dir, tmp_path, script):
    driver = CniNetwork([str(bin_dir)], 0.5, Records(str(tmp_path / "state")), (), print)
    script("one", "[ $CNI_COMMAND = DEL ] && exit; sleep 20")
    with pytest.raises(NetworkError, match=r'"n".* was killed: it took longer than 0\.5 seconds$'):
        driver.add(context(POD, config("one")))


def test_the_error_keeps_the_plugins_code(driver, script):
    script("one", f"echo '{ERROR}'; exit 1")
    with pytest.raises(NetworkError) as caught:
        driver.add(context(POD, config("one")))
    assert caught.value.data["code"] == 7


@pytest.mark.parametrize("missing", ["bridge", "host-local", "homemade"])
def test_a_missing_program_is_named_with_its_package(driver, script, bin_dir, missing):
    for name in {"bridge", "host-local"} - {missing}:
        script(name, "exit 0")
    kind = missing if missing == "homemade" else "bridge"
    with pytest.raises(NetworkError) as caught:
        driver.setup({"name": "n", "type": kind, "ipam": {"type": "host-local"}})
    assert caught.value.message == (
        f'network "n" needs the CNI plugin "{missing}", which is in none of {bin_dir}'
    )  # fmt: skip
    assert ("containernetworking-plugins" in (caught.value.hint or "")) is (missing != "homemade")


def test_a_program_that_cannot_be_executed(driver, bin_dir):
    (bin_dir / "one").write_text("no program")
    (bin_dir / "one").chmod(0o755)
    with pytest.raises(NetworkError, match="cannot be executed: Exec format error"):
        driver.add(context(POD, config("one")))


@pytest.mark.parametrize(("verb", "before"), [("ADD", ()), ("ADD", ("two",)), ("DEL", ())])
def test_killed_while_a_plugin_is_at_work(driver, script, bin_dir, tmp_path, verb, before):
    """kill -9 of Kurma: the plugin goes on. Whoever leaves the network for the pod ends it first, lest it makes
    something after all has been taken away. Another of the chain may have joined the pod already."""
    script("two", LOG + f"echo '{RESULT}'")
    script(
        "one",
        LOG + f"[ $CNI_COMMAND = {verb} ] && [ ! -e {bin_dir}/seen ] && touch {bin_dir}/seen && sleep 30 && "
        f"touch {bin_dir}/late; echo '{RESULT}'",
    )
    one = context("146d7cef-fbf6-41da-a2f8-eba218597f9c", config(*before, "one"))
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            driver.add(one)
            driver.delete(one)
        os._exit(0)
    for _ in range(500):
        if (bin_dir / "seen").exists() and orphans.running(one.pod):
            break
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert orphans.running(one.pod)
    assert [leak.pod for leak in driver.leaks([], ())] == [one.pod]
    assert list(driver.repair([], ())) == []
    assert orphans.running(one.pod) == []
    assert not (bin_dir / "late").exists()
    assert [line.split()[:2] for line in log(bin_dir)[-1 - len(before) :]] == [
        ["DEL", name] for name in ("one", *before)
    ]
    assert list((tmp_path / "state" / "results").iterdir()) == []


def test_nobody_is_looked_for_where_all_have_ended(driver, script, monkeypatch):
    """A pod that has joined, or failed to, has no plugin at work: all processes of the host are not looked at."""
    monkeypatch.setattr(orphans, "end", lambda pod: pytest.fail("nobody can be at work"))
    script("one", f"echo '{RESULT}'")
    script("two", "[ $CNI_COMMAND = ADD ] && exit 1; exit 0")
    driver.add(context(POD, config("one", "one")))
    driver.delete(context(POD, config("one", "one")))
    with pytest.raises(NetworkError):
        driver.add(context(POD, config("one", "two")))
    driver.delete(context(POD, config("one", "two")))


def test_leaving_without_the_programs(driver, script, bin_dir, tmp_path):
    """Nothing to leave where none of them has run for the pod; else it is told what is missing, and stays."""
    one = context(POD, config("one"))
    driver.delete(one)
    assert not (tmp_path / "state" / "results").exists()
    path = script("one", f"echo '{RESULT}'")
    driver.add(one)
    os.unlink(path)
    (record,) = (tmp_path / "state" / "results").iterdir()
    for text in (record.read_text(), "torn"):
        record.write_text(text)
        with pytest.raises(NetworkError, match='needs the CNI plugin "one"'):
            driver.delete(one)
        assert record.exists()
    script("one", f"echo '{RESULT}'")
    driver.delete(one)
    assert not record.exists()


# --- records and files -----------------------------------------------------------------------------------------


def test_a_newer_record_is_refused(driver, script, tmp_path):
    script("one", f"echo '{RESULT}'")
    one = context(POD, config("one"))
    driver.add(one)
    (record,) = (tmp_path / "state" / "results").iterdir()
    record.write_text(json.dumps({**json.loads(record.read_text()), "version": 2}))
    with pytest.raises(FormatVersionError):
        driver.delete(one)


def test_networks_are_told_apart_in_the_records(tmp_path):
    from kurma_net_cni.records import Record

    records = Records(str(tmp_path))
    for network, pod, interface in (("a", "p1", "eth0"), ("ba", "p2", "eth0"), ("a", "p3", "a:a")):
        records.write(Record(network, pod, interface))
    assert records.pods("a") == ("p1", "p3")
    assert records.pods("ba") == ("p2",)
    assert records.pods("c") == ()


def test_networks_of_cnis_own_directory(tmp_path):
    for name, value in {
        "20-b.conf": {"name": "second", "type": "ptp"},
        "10-a.conflist": {"name": "first", "cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]},
        "30-again.conf": {"name": "first", "type": "other"},
        "40-broken.conf": {"name": "broken"},
        "50-ignored.txt": {"name": "ignored", "type": "x"},
    }.items():
        (tmp_path / name).write_text(json.dumps(value))
    (tmp_path / "60-torn.conf").write_text("{")
    notes = []
    found = discover([str(tmp_path / "nowhere"), str(tmp_path)], notes.append)
    assert list(found) == ["first", "second"]
    assert found["first"]["plugins"] == [{"type": "bridge"}]
    assert [note.partition(" ")[0] for note in notes] == [
        str(tmp_path / name) for name in ("40-broken.conf", "60-torn.conf")
    ]


def test_plugins_in_files_of_their_own(tmp_path):
    """CNI 1.1.0: a network's plugins may stand in a directory of its name, beside it."""
    network = {"name": "n", "cniVersion": "1.1.0", "plugins": [{"type": "bridge"}]}
    (tmp_path / "10-n.conflist").write_text(json.dumps(network))
    (tmp_path / "20-m.conflist").write_text(json.dumps({"name": "m", "cniVersion": "1.1.0"}))
    (tmp_path / "30-o.conflist").write_text(json.dumps({**network, "name": "o", "loadOnlyInlinedPlugins": True}))
    for name in ("n", "m", "o"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "2.conf").write_text('{"type": "tuning"}')
        (tmp_path / name / "1.conf").write_text('{"type": "firewall"}')
        (tmp_path / name / "3.conflist").write_text("no plugin")
    notes = []
    found = discover([str(tmp_path)], notes.append)
    assert [one["type"] for one in found["n"]["plugins"]] == ["bridge", "firewall", "tuning"]
    assert [one["type"] for one in found["m"]["plugins"]] == ["firewall", "tuning"]
    assert [one["type"] for one in found["o"]["plugins"]] == ["bridge"]
    assert notes == []
    (tmp_path / "n" / "3.conf").write_text("{")  # the network is not joined without it
    assert set(discover([str(tmp_path)], notes.append)) == {"m", "o"}
    (note,) = notes
    assert note.startswith(f"{tmp_path}/10-n.conflist is no CNI network: its plugin {tmp_path}/n/3.conf cannot be")


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", "", "\0", '{"name": "x"}', '{"type": 3, "name": "x"}'])
def test_a_broken_file_hides_nothing_else(tmp_path, content):
    (tmp_path / "10-broken.json").write_text(content)
    (tmp_path / "20-good.json").write_text('{"name": "good", "type": "bridge"}')
    os.mkfifo(tmp_path / "05-pipe.conf")
    (tmp_path / "06-directory.conf").mkdir()
    (tmp_path / "07-away.conf").symlink_to("nowhere")
    notes = []
    assert list(discover([str(tmp_path)], notes.append)) == ["good"]
    (note,) = notes
    assert note.startswith(f"{tmp_path}/10-broken.json is no CNI network: ")
    assert "\n" not in note


def test_the_defaults_of_its_options_make_a_driver(tmp_path):
    driver = kurma_network()
    settings = {option.name: option.default for option in driver.options}
    assert all(isinstance(settings[option.name], option.type) for option in driver.options)
    network = driver.create(DriverContext(config=settings, state_dir=str(tmp_path / "cni")))
    network.setup({"name": "n", "type": "bridge", "ipam": {"type": "host-local"}})  # Debian's are found
    assert not (tmp_path / "cni").exists()


@pytest.mark.parametrize("key", ["bin_dirs", "config_dirs"])
@pytest.mark.parametrize("path", ["cni/bin", "", 3, "/opt/a:/opt/b"])
def test_directories_are_absolute(tmp_path, key, path):
    driver = kurma_network()
    settings = {option.name: option.default for option in driver.options} | {key: [path]}
    with pytest.raises(ConfigError, match=f"cni.config.{key}: .* is not an absolute path"):
        driver.create(DriverContext(config=settings, state_dir=str(tmp_path / "cni")))


def test_a_bridge_from_before_has_a_hint(driver, script):
    message = "failed to set bridge addr: br0 already has an IP address different from 10.1.0.1/16"
    script("one", f'[ $CNI_COMMAND = DEL ] && exit; echo \'{{"code": 999, "msg": "{message}"}}\'; exit 1')
    with pytest.raises(NetworkError, match="already has an IP address") as caught:
        driver.add(context(POD, config("one")))
    assert caught.value.hint == "its bridge is there from before, with other addresses: kurma network rm n"
