"""The example renderer, against the contract of all renderers."""

import kurma_example_flat
import pytest
from kurma_testing.renderers import RendererContract


@pytest.mark.kurma_driver(kurma_example_flat)
class TestFlat(RendererContract):
    pass
