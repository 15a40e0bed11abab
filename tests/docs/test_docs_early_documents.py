"""early_documents.md: its examples become what it says, and so does each row of its table of isolators."""

from __future__ import annotations

import json
import re

from kurma_core.appc.early_image import convert_any
from kurma_core.appc.early_pod import convert_pod
from tests.appc.early_samples import APP, changed
from tests.docs.pages import find_page

PAGE = find_page("early_documents.md").read_text()


def test_docs_early_examples_become_what_the_page_says():
    image, late_image, pod, late_pod = (json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE, re.S))
    assert convert_any(image).to_json() == late_image
    assert convert_pod(pod).to_json() == late_pod


def test_docs_early_isolators_become_what_the_page_says():
    section = PAGE.partition("## Isolators")[2].partition("## Pods")[0]
    rows = re.findall(r"^\| `(\S+)` (\".*?\") \| `(\S+)` (.*?) \|$", section, re.M)
    assert len(rows) == 9
    for name, value, late_name, late_value in rows:
        document = changed(APP, "isolators", to=[{"name": name, "val": json.loads(value)}])
        (isolator,) = convert_any(document).app.isolators
        assert (isolator.name, isolator.value) == (late_name, json.loads(late_value))
