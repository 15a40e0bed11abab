"""The example fetcher, against the contract of all fetchers."""

import kurma_example_memo
import pytest
from kurma_testing.fetchers import FetcherContract

from kurma_core.errors import ConfigError, FetchNotFoundError, PluginSkipped, UsageError
from kurma_core.hookspecs.fetcher import FetchRequest

REQUEST = FetchRequest("linux", "amd64")


pytestmark = pytest.mark.kurma_driver(kurma_example_memo)


@pytest.fixture
def options(tmp_path):
    (tmp_path / "box.aci").write_bytes(b"0123456789")
    return {"directory": str(tmp_path)}


class TestMemo(FetcherContract):
    @pytest.fixture
    def good(self):
        return "memo:box"

    @pytest.fixture
    def missing(self):
        return "memo:none"

    @pytest.fixture
    def malformed(self):
        return "memo:../box"


def test_it_resolves(driver, tmp_path):
    found = driver.resolve("memo:box", REQUEST)
    assert (found.transport, found.blob.size, found.blob.signature()) == ("file", 10, None)
    with found.blob.open(4) as stream:
        assert stream.read() == b"456789"
    (tmp_path / "box.aci.asc").write_bytes(b"signature")
    assert driver.resolve("memo:box", REQUEST).blob.signature().data == b"signature"


def test_what_it_refuses(driver):
    with pytest.raises(FetchNotFoundError, match=r"memo:none: no /.*/none\.aci"):
        driver.resolve("memo:none", REQUEST)
    for locator in ("memo:", "memo:../box", "memo:/etc/passwd"):
        with pytest.raises(UsageError, match="not a name"):
            driver.resolve(locator, REQUEST)


def test_a_host_without_the_directory(make_driver, tmp_path):
    with pytest.raises(PluginSkipped, match="needs the directory"):
        make_driver(directory=str(tmp_path / "none"))


def test_a_misspelt_option(make_driver):
    with pytest.raises(ConfigError, match="the nearest known one is 'directory'"):
        make_driver(dir="/")
