from pathlib import Path

import pytest

from kurma_core.linux import capabilities


def test_table_is_the_kernels():
    assert len(capabilities.NAMES) == 41
    # <linux/capability.h>
    assert capabilities.BITS["CAP_CHOWN"] == 0
    assert capabilities.BITS["CAP_NET_BIND_SERVICE"] == 10
    assert capabilities.BITS["CAP_SYS_ADMIN"] == 21
    assert capabilities.BITS["CAP_AUDIT_WRITE"] == 29
    assert capabilities.BITS["CAP_CHECKPOINT_RESTORE"] == 40


def test_default_set_is_the_fourteen():
    assert len(capabilities.DEFAULT_SET) == 14
    assert capabilities.mask(capabilities.DEFAULT_SET) == 0xA80425FB


@pytest.mark.parametrize("name", ["CAP_NET_RAW", "cap_net_raw", "NET_RAW", "net_raw"])
def test_names_are_read_in_any_case(name):
    assert capabilities.parse(name) == 13


@pytest.mark.parametrize("name", ["", "CAP_", "CAP_NOPE", "CAP_CAP_CHOWN", "13"])
def test_unknown_names(name):
    with pytest.raises(ValueError, match="no such capability"):
        capabilities.parse(name)


def test_masks_and_names():
    assert capabilities.bits(capabilities.mask({0, 13, 40})) == {0, 13, 40}
    assert capabilities.names({40, 0, 41}) == ["CAP_CHOWN", "CAP_CHECKPOINT_RESTORE", "CAP_41"]


def test_get_agrees_with_proc():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    effective, permitted, inheritable = capabilities.get()
    assert capabilities.mask(effective) == int(status["CapEff"], 16)
    assert capabilities.mask(permitted) == int(status["CapPrm"], 16)
    assert capabilities.mask(inheritable) == int(status["CapInh"], 16)
    assert capabilities.mask(capabilities.bounding()) == int(status["CapBnd"], 16)
    assert capabilities.mask(capabilities.ambient()) == int(status["CapAmb"], 16)
