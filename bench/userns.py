"""What a user namespace costs a pod's start, for a small image and for one of 20,000 files.

Run as root in a host of its own: ``sh tests/host python bench/userns.py``. Pods run one after the other in this
process, ``none`` and ``auto`` in turn; printed are lower quartiles in milliseconds, from the start of a prepared
pod to its end (the app is ``true``).
"""

import json
import os
import statistics
import sys
import tempfile
import time

from tests.kit.client import open_client

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests.kit.house import House
from tests.kit.images import archive, busybox_root, shell

_ROUNDS, _FILES = 40, 20_000


def _image(directory: str, files: int) -> str:
    root = busybox_root(f"{directory}/root-{files}")
    for number in range(files):
        if number % 200 == 0:
            os.mkdir(f"{root}/data/{number // 200}")
        with open(f"{root}/data/{number // 200}/{number}", "w") as file:
            file.write(str(number))
    return archive(root, f"{directory}/{files}.aci", f"example.com/files-{files}", app=shell("true"))


def _measure(house: House, image: str) -> dict[str, float]:
    house.image = image
    times: dict[str, list[float]] = {"none": [], "auto": []}
    for number in range(_ROUNDS + 2):
        for word, found in times.items():
            record = house.client.prepare(house.request("true", userns=word))
            begin = time.perf_counter()
            house.start(record.uuid)
            if number >= 2:  # the first ones warm up
                found.append(time.perf_counter() - begin)
            house.client.rm(record.uuid)
    return {word: statistics.quantiles(found, n=4)[0] * 1000 for word, found in times.items()}


def main() -> None:
    """Prints a table."""
    with tempfile.TemporaryDirectory() as directory:
        config = f"{directory}/kurma.json"
        with open(config, "w") as file:
            json.dump({}, file)
        with open_client(config, f"{directory}/state") as client:
            images = {files: client.here.images.fetch(_image(directory, files)).id for files in (0, _FILES)}
        house = House(config, f"{directory}/state", "", directory)
        print("files   none    auto")
        for files, image in images.items():
            found = _measure(house, image)
            print(f"{files:5}  {found['none']:5.1f}   {found['auto']:5.1f}")
        house.close()


if __name__ == "__main__":
    main()
