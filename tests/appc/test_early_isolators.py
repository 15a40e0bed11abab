"""Early isolators: E8, and the form of E9."""

from __future__ import annotations

import pytest

from kurma_core.appc.early_image import convert_any
from kurma_core.appc.early_parts import overriding
from kurma_core.appc.image import Isolator
from kurma_core.appc.quantity import parse_quantity
from kurma_core.errors import ManifestError
from tests.appc.early_samples import APP, changed


def late(isolators: object) -> dict[str, object]:
    """Value by late name of an app manifest's isolators."""
    converted = convert_any(changed(APP, "isolators", to=isolators))
    return {isolator.name: isolator.value for isolator in converted.app.isolators}


@pytest.mark.parametrize(
    ("names", "value", "late_name", "late_value"),
    [
        ("cpu/shares cpu/shares/", "4096", "os/linux/cpu-shares", 4096),
        ("memory/limit", "1G", "resource/memory", {"limit": "1Gi"}),
        ("memory/limit", "5T", "resource/memory", {"limit": "5Ti"}),
        ("memory/limit", "4K", "resource/memory", {"limit": "4Ki"}),
        ("memory/limit", "512M", "resource/memory", {"limit": "512Mi"}),
        ("memory/limit", "1000000", "resource/memory", {"limit": "1000000"}),
        (
            "blockIO/readBandwidth block-io/read-bandwidth",
            "/tmp 1K",
            "kurma.io/block-read-bandwidth",
            {"path": "/tmp", "limit": "1Ki"},
        ),
        (
            "blockIO/writeBandwidth block-io/write-bandwidth",
            "/a b 100",
            "kurma.io/block-write-bandwidth",
            {"path": "/a b", "limit": "100"},
        ),
        (
            "networkIO/readBandwidth network-io/read-bandwidth",
            "eth0 100M",
            "kurma.io/network-read-bandwidth",
            {"device": "eth0", "limit": "100Mi"},
        ),
        (
            "networkIO/writeBandwidth network-io/write-bandwidth",
            "eth0  1G",
            "kurma.io/network-write-bandwidth",
            {"device": "eth0", "limit": "1Gi"},
        ),
        ("privateNetwork private-network", "true", "os/linux/namespaces", {"net": "private"}),
        ("privateNetwork private-network", "false", "os/linux/namespaces", {"net": "host"}),
        (
            "capabilities/boundingSet capabilities/bounding-set",
            "CAP_NET_BIND_SERVICE  CAP_SYS_ADMIN CAP_SYS_ADMIN",
            "os/linux/capabilities-retain-set",
            {"set": ["CAP_NET_BIND_SERVICE", "CAP_SYS_ADMIN"]},
        ),
        ("example.com/apparmor", "profile", "example.com/apparmor", "profile"),
        ("appArmor/profileName", "x", "app-armor/profile-name", "x"),
    ],
)
def test_early_isolator_becomes_a_late_one(names, value, late_name, late_value):
    for name in names.split():
        assert late([{"name": name, "val": value}]) == {late_name: late_value}
        assert late([{"name": name, "value": value}]) == {late_name: late_value}
        assert late({name: value}) == {late_name: late_value}


def test_early_quantity_means_the_same_in_the_late_form():
    assert parse_quantity(late({"memory/limit": "1G"})["resource/memory"]["limit"], "$") == 1 << 30


@pytest.mark.parametrize(
    ("name", "value", "expected", "found"),
    [
        ("cpu/shares", 20, "a string", "20"),
        ("cpu/shares", "-1", "a whole number", '"-1"'),
        ("cpu/shares", "1K", "a whole number", '"1K"'),
        ("memory/limit", "1.5G", "powers of 1024", '"1.5G"'),
        ("memory/limit", "1Gi", "powers of 1024", '"1Gi"'),
        ("memory/limit", "1g", "powers of 1024", '"1g"'),
        ("memory/limit", "G", "powers of 1024", '"G"'),
        ("memory/limit", "", "powers of 1024", '""'),
        ("memory/limit", "8388608T", "at most 2^63-1", '"8388608T"'),
        ("memory/limit", 1024, "a string", "1024"),
        ("blockIO/readBandwidth", "/tmp", "PATH BYTES", '"/tmp"'),
        ("blockIO/readBandwidth", "tmp 1K", "an absolute path", '"tmp"'),
        ("blockIO/readBandwidth", "/tmp 1X", "powers of 1024", '"/tmp 1X"'),
        ("networkIO/readBandwidth", "100M", "DEVICE BYTES", '"100M"'),
        ("networkIO/readBandwidth", "eth0 eth1 100M", "DEVICE BYTES", '"eth0 eth1 100M"'),
        ("privateNetwork", "yes", '"true" or "false"', '"yes"'),
        ("capabilities/boundingSet", "", "capabilities", '""'),
        ("capabilities/boundingSet", "NET_ADMIN", "CAP_", '"NET_ADMIN"'),
        ("capabilities/boundingSet", "CAP_KILL,CAP_CHOWN", "separated by spaces", "CAP_KILL,CAP_CHOWN"),
        ("capabilities/boundingSet", ["CAP_KILL"], "a string", "a list"),
    ],
)
def test_early_isolator_value_refusals(name, value, expected, found):
    for form, path in (
        ([{"name": name, "val": value}], "$.isolators[0].val"),
        ([{"name": name, "value": value}], "$.isolators[0].value"),
        ({name: value}, '$.isolators["' + name + '"]'),
    ):
        if isinstance(form, dict) and "/" not in name:
            path = f"$.isolators.{name}"
        with pytest.raises(ManifestError) as caught:
            late(form)
        assert caught.value.data["path"] == path
        assert expected in str(caught.value.data["expected"])
        assert found in str(caught.value.data["found"])


def test_early_drafts_own_run_together_example_is_refused_with_the_right_way():
    with pytest.raises(ManifestError) as caught:
        late([{"name": "capabilities/bounding-set", "val": "CAP_NET_BIND_SERVICECAP_SYS_ADMIN"}])
    assert caught.value.hint == 'write "CAP_NET_BIND_SERVICE CAP_SYS_ADMIN"'


def test_early_hint_on_a_late_quantity():
    with pytest.raises(ManifestError) as caught:
        late({"memory/limit": "1Gi"})
    assert '"1G" means what "1Gi" means' in str(caught.value.hint)


@pytest.mark.parametrize(
    ("isolators", "path", "expected", "found"),
    [
        ("x", "$.isolators", "a list", '"x"'),
        ([{"val": "1G"}], "$.isolators[0].name", "the isolator's name", "nothing"),
        ([{"name": "memory/limit"}], "$.isolators[0].val", "the isolator's value", "nothing"),
        ([{"name": "memory/limit", "val": "1G", "value": "1G"}], "$.isolators[0].value", "val or value", "both"),
        ([{"name": "me mory", "val": "1G"}], "$.isolators[0].name", "an identifier", '"me mory"'),
        (
            [{"name": "blockIO/readBandwidth", "val": "/a 1"}, {"name": "block-io/read-bandwidth", "val": "/b 1"}],
            "$.isolators[1].name",
            "each isolator once",
            '"block-io/read-bandwidth" again',
        ),
        (
            {"name": "memory/limit", "value": "4G"},
            "$.isolators",
            "one object of name → value",
            "a single isolator",
        ),
        ({"privateNetwork": "true", "private-network": "false"}, "$.isolators.private-network", "once", "again"),
    ],
)
def test_early_isolators_refusals(isolators, path, expected, found):
    with pytest.raises(ManifestError) as caught:
        late(isolators)
    assert caught.value.data["path"] == path
    assert expected in str(caught.value.data["expected"])
    assert found in str(caught.value.data["found"])


def test_early_isolators_may_be_missing_or_empty():
    assert late(None) == late([]) == late({}) == {}


def test_early_isolators_override_one_by_one():
    base = (Isolator("a", 1), Isolator("b", 2))
    assert overriding(base, (Isolator("c", 4), Isolator("a", 3))) == (
        Isolator("a", 3),
        Isolator("b", 2),
        Isolator("c", 4),
    )
