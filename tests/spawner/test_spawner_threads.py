"""Several threads ask one spawner: each gets its own answer."""

import threading

import pytest

from kurma_core.errors import HostError
from kurma_core.spawner.client import Spawner


def test_threads_get_their_own_answers():
    """What each asks for fails, and the answer names what it has asked for."""
    wrong, answered = [], []

    def ask(number):
        for turn in range(20):
            path = f"/proc/self/nothing/{number}/{turn}"
            with pytest.raises(HostError) as caught:
                spawner.make_namespace(path)
            (answered if path in str(caught.value) else wrong).append(path)

    with Spawner() as spawner:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert len(answered) == 160
