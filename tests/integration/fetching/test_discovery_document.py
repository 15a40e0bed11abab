"""What ``docs/howto/publish_images.md`` tells publishers and users to do works as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kurma_testing.webserver import Page

from tests.docs.pages import find_page
from tests.integration.fetching.publisher import Publisher, publisher
from tests.kit.keys import Signers

pytestmark = pytest.mark.root

DOCUMENT = find_page("publish_images.md").read_text()


@pytest.fixture
def owner(tmp_path: Path, signers: Signers) -> Iterator[Publisher]:
    with publisher(tmp_path / "owner", signers) as found:
        yield found


def addresses() -> dict[str, str]:
    """Where the document's table puts what."""
    rows = re.findall(r"^\| (.*?) \| `https://example\.com(/.*?)` \|$", DOCUMENT, re.MULTILINE)
    return dict(rows)


def test_publishing_and_fetching(owner: Publisher, tmp_path: Path) -> None:
    signers: Signers = owner.signers
    (html,) = re.findall(r"^```html\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
    at = addresses()
    archive, ident = owner.archive("example.com/app", "1.0")
    owner.server.pages["/"] = Page(html.encode(), etag="")
    owner.server.pages[at["the image"]] = Page(archive.read_bytes())
    owner.server.pages[at["its signature"]] = Page(signers.sign(archive, "alice"))
    owner.server.pages[at["the public key"]] = Page(signers.public("alice"))
    config = tmp_path / "kurma.json"
    config.write_text(json.dumps({"trustedkeys": [str(tmp_path / "keys")]}))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        "KURMA_DIR": str(tmp_path / "state"),
        "KURMA_CONFIG": str(config),
        "SSL_CERT_FILE": owner.ca_file,
    }

    def kurma(*words: str, code: int = 0) -> str:
        program = os.path.join(os.path.dirname(sys.executable), "kurma")
        done = subprocess.run([program, *words], capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    fetch, add = ("image", "fetch", "example.com/app:1.0"), ("trust", "add", "--prefix", "example.com")
    for words in (fetch, add):
        assert f"# kurma {' '.join(words)}\n" in DOCUMENT
    kurma(*fetch, code=125)
    kurma(*add, "--yes")
    assert kurma(*fetch) == f"{ident}\n"
