"""What an app sees of a graph of images, and that nothing it does there comes to the store (N1 to N4)."""

import os

import pytest

from tests.kit.images import archive, busybox_root, shell

pytestmark = pytest.mark.root

_SEES = "cat /etc/who /opt/libs/lib.so /opt/libs/etc/who; test ! -e /etc/hidden; test ! -L /srv; cat /srv/data"
# Every way to change a file: by name, by descriptor, in its looks; and then all of it goes.
_WRECKS = """
for file in /etc/who /opt/libs/lib.so /srv/data; do
    test -e $file || continue
    echo changed >> $file && chmod 0600 $file && chown 77:77 $file && touch -t 200001010000 $file &&
    mv $file $file.moved && ln $file.moved $file && dd if=/dev/null of=$file 2>/dev/null || exit 9
done
chmod 0711 /bin/busybox && touch -t 200001010000 /bin/busybox && chmod 0700 /opt /etc /srv &&
echo new > /opt/new && rm -r /etc/who* /opt /srv && echo done
"""


@pytest.fixture
def graph(house, tmp_path):
    """An image that whitelists, above one that stands plain and one that stands below a root of its own."""

    def fetch(name, files, links=(), **manifest):
        root = busybox_root(f"{tmp_path}/{name}", files) if name == "base" else f"{tmp_path}/{name}"
        for path, text in files.items():
            os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
            with open(f"{root}/{path}", "w", encoding="ascii") as out:
                out.write(text)
        for path, target in links:
            os.symlink(target, f"{root}/{path}")
        made = archive(root, f"{tmp_path}/{name}.aci", f"example.com/graph-{name}", **manifest)
        return house.client.here.images.fetch(made).id

    base = fetch("base", {"etc/who": "base\n", "etc/hidden": "no\n"}, [("srv", "/etc")])
    libs = fetch("libs", {"lib.so": "lib\n", "etc/who": "libs\n"})
    plain = fetch(
        "plain",
        {"etc/who": "top\n", "srv/data": "data\n", "opt/libs/lib.so": "top's\n"},
        dependencies=[{"imageName": "example.com/graph-base", "imageID": base}],
        app=shell("true"),
    )
    whole = fetch(
        "whole",
        {"srv/data": "data\n"},
        dependencies=[
            {"imageName": "example.com/graph-plain", "imageID": plain},
            {"imageName": "example.com/graph-libs", "imageID": libs, "kurma.io/root": "/opt/libs"},
        ],
        pathWhitelist=[
            *("/bin", "/bin/sh", "/bin/busybox", "/etc/who", "/opt/libs/lib.so", "/opt/libs/etc/who", "/srv/data"),
            *(f"/bin/{name}" for name in sorted(os.listdir(f"{tmp_path}/base/bin"))),
        ],
        app=shell("true"),
    )
    return plain, whole


@pytest.mark.parametrize("renderer", ["overlay", "copy"])
def test_apps_share_trees_and_change_none(house, graph, renderer):
    plain, whole = graph
    images = house.client.here.images
    for _ in range(2):  # what the first one did, the second does not see
        record, output = house.run({"main": {"image": whole, "app": shell(_SEES)}}, renderer=renderer)
        assert (record.exit_code, output) == (0, "top\nlib\nlibs\ndata\n")
        for image in (whole, plain):
            record, output = house.run({"main": {"image": image, "app": shell(_WRECKS)}}, renderer=renderer)
            assert (record.exit_code, output) == (0, "done\n")
    trees = [layer for image in graph for layer in images.render(image, renderer, verify=True).layers]
    for image in graph:
        images.verify(image)
    assert {layer.id for layer in trees} & {plain, whole} == ({plain} if renderer == "overlay" else set())
