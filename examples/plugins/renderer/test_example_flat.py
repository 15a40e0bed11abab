"""The example renderer, against the contract of all renderers."""

import kurma_example_flat
import pytest

from kurma_core.testing.renderers import RendererContract


class TestFlat(RendererContract):
    @pytest.fixture
    def driver(self):
        return kurma_example_flat.kurma_renderer()
