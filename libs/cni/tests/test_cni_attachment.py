"""Joining and leaving by a chain of real programs: which plugin is asked for what, after failures too."""

import json

import pytest
from kurma_cni import orphans
from kurma_cni.attachment import Attachment
from kurma_cni.chain import parse_chain
from kurma_cni.errors import CniError
from kurma_cni.plugins import Plugins

from kurma_core.linux import programs

RESULT = {"ips": [{"address": "10.1.2.3/24"}]}
#: Logs what it is asked, and fails for a verb where a file of its name and that verb lies beside it.
PLUGIN = f"""#!/bin/sh
cd "${{0%/*}}"
me="${{0##*/}}"
echo "$me $CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $CNI_ARGS" >>log
cat >"$me.$CNI_COMMAND.document"
if [ -e "$me.$CNI_COMMAND.fails" ]; then echo '{{"code": 7, "msg": "no", "details": "not now"}}'; exit 1; fi
[ "$CNI_COMMAND" != ADD ] || echo '{json.dumps(RESULT)}'
"""


@pytest.fixture
def bin_dir(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).write_text(PLUGIN)
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.fixture
def plugins(bin_dir):
    return Plugins(programs, [str(bin_dir)], 30)


def attachment(**state):
    chain = parse_chain({"name": "n", "cniVersion": "1.0.0", "plugins": [{"type": "one"}, {"type": "two"}]})
    return Attachment(chain, "pod", "eth0", "IP=10.1.2.3", **state)


def asked(bin_dir):
    return [" ".join(line.split()[:2]) for line in (bin_dir / "log").read_text().splitlines()]


def test_the_chain_is_joined_in_order_and_left_in_reverse(bin_dir, plugins):
    one = attachment()
    saved = []
    one.add(plugins, "/ns", save=lambda: saved.append(one.result))
    assert one.result == {**RESULT, "cniVersion": "1.0.0"}
    assert saved == [one.result]
    assert json.loads((bin_dir / "two.ADD.document").read_text())["prevResult"] == one.result
    assert one.delete(plugins, "") == []
    assert asked(bin_dir) == ["one ADD", "two ADD", "two DEL", "one DEL"]
    lines = (bin_dir / "log").read_text().splitlines()
    assert lines[0] == "one ADD pod /ns eth0 IgnoreUnknown=1;IP=10.1.2.3"
    assert json.loads((bin_dir / "one.DEL.document").read_text())["prevResult"] == one.result


def test_what_has_been_left_is_not_left_again(bin_dir, plugins):
    one = attachment(result=RESULT)
    (bin_dir / "one.DEL.fails").touch()
    saved = []
    (failure,) = one.delete(plugins, "", lambda: saved.append(one.left))
    assert (failure.plugin, failure.code, failure.words) == ("one", 7, "no: not now")
    assert failure.message == 'cannot leave network "n": CNI plugin one failed: no: not now'
    assert saved == [(1,)]
    (bin_dir / "one.DEL.fails").unlink()
    (bin_dir / "log").unlink()
    # By another process, which has read what was saved.
    assert attachment(result=RESULT, left=(1,)).delete(plugins, "") == []
    assert asked(bin_dir) == ["one DEL"]


def test_what_the_first_plugin_refused_leaves_nothing(bin_dir, plugins):
    one = attachment()
    (bin_dir / "one.ADD.fails").touch()
    (bin_dir / "one.DEL.fails").touch()
    with pytest.raises(CniError, match=r'^cannot join network "n": CNI plugin one failed: no: not now$'):
        one.add(plugins, "/ns")
    assert one.refused
    assert one.delete(plugins, "") == []
    other = attachment()
    assert [error.plugin for error in other.delete(plugins, "")] == ["one"]


def test_a_failure_of_a_later_plugin_is_no_refusal(bin_dir, plugins):
    one = attachment()
    (bin_dir / "two.ADD.fails").touch()
    with pytest.raises(CniError, match="CNI plugin two failed"):
        one.add(plugins, "/ns")
    assert (one.refused, one.result) == ("", {**RESULT, "cniVersion": "1.0.0"})


def test_a_result_that_makes_no_sense(plugins):
    def check(result):
        raise ValueError("it has no sense")

    with pytest.raises(CniError, match="CNI plugin one printed a result that makes no sense: it has no sense"):
        attachment().add(plugins, "/ns", check)


def test_nothing_runs_for_a_pod_that_never_was():
    assert orphans.running("no-such-pod") == []
    orphans.end("no-such-pod")
