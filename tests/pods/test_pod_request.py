"""What the command line changes of an app."""

from __future__ import annotations

import pytest

from kurma_core.api.pods import AppOverrides, PodRequest
from kurma_core.appc.image import ImageManifest
from kurma_core.appc.template import PodTemplate
from kurma_core.errors import ManifestError, UsageError
from kurma_core.pods.manager import PodManager
from kurma_core.pods.prepare.app_settings import joined, overridden


def groups_of(user: str) -> tuple[str, tuple[int, ...]]:
    return f"group of {user}", (7,)


def image() -> ImageManifest:
    return ImageManifest.parse(
        {
            "acKind": "ImageManifest",
            "acVersion": "0.8.1",
            "name": "example.com/x",
            "app": {
                "exec": ["/e", "/c"],
                "user": "u",
                "group": "g",
                "environment": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            },
        }
    )


def test_arguments_are_appended_to_an_acis_command() -> None:
    manifest = image()
    assert overridden(manifest.app, AppOverrides(arguments=("x",)), None, groups_of).exec == ("/e", "/c", "x")


@pytest.mark.parametrize(
    ("entrypoint", "command"), [(None, ("/e", "/c", "x", "y")), (("/e",), ("/e", "x", "y")), ((), ("x", "y"))]
)
def test_arguments_follow_the_entrypoint_that_the_image_expects(
    entrypoint: tuple[str, ...] | None, command: tuple[str, ...]
) -> None:
    app = image().app
    assert overridden(app, AppOverrides(arguments=("x", "y")), entrypoint, groups_of).exec == command
    assert overridden(app, AppOverrides(user="7"), entrypoint, groups_of).exec == ("/e", "/c")


def test_exec_replaces_all_and_takes_the_arguments() -> None:
    overrides = AppOverrides(exec=("/z",), arguments=("1",))
    assert overridden(image().app, overrides, ("/e",), groups_of).exec == ("/z", "1")


def test_environment_is_replaced_by_name_in_place() -> None:
    manifest = image()
    app = overridden(manifest.app, AppOverrides(environment=(("A", "9"), ("C", "3"))), None, groups_of)
    assert [(e.name, e.value) for e in app.environment] == [("A", "9"), ("B", "2"), ("C", "3")]
    assert (app.user, app.group) == ("u", "g")


def test_an_image_without_app_gets_one() -> None:
    app = overridden(
        None, AppOverrides(arguments=("/bin/true",), user="7", working_directory="/w"), None, groups_of
    )
    assert (app.exec, app.user, app.group, app.working_directory) == (("/bin/true",), "7", "group of 7", "/w")


def test_another_user_brings_its_own_groups() -> None:
    manifest = image()
    other = overridden(manifest.app, AppOverrides(user="9"), None, groups_of)
    assert (other.user, other.group, other.supplementary_gids) == ("9", "group of 9", (7,))
    both = overridden(manifest.app, AppOverrides(user="9", group="8"), None, groups_of)
    assert (both.user, both.group, both.supplementary_gids) == ("9", "8", ())
    group = overridden(manifest.app, AppOverrides(group="8"), None, groups_of)
    assert (group.user, group.group) == ("u", "8")


@pytest.mark.parametrize(
    ("name", "hint"), [("é", "- inside"), ("Éa", "- inside: a"), ("a" * 129, f": {'a' * 128}"), ("-", "- inside")]
)
def test_what_cannot_be_a_pods_name(name: str, hint: str) -> None:
    """Usage, also where nothing like it could be one."""
    with pytest.raises(UsageError, match="is not a valid pod name") as caught:
        PodManager._name(PodRequest(PodTemplate.parse({"apps": []}), name=name), "u")
    assert (caught.value.hint or "").endswith(hint)


def test_a_request_changes_what_a_pods_file_changes() -> None:
    file = AppOverrides(
        exec=("/z",),
        arguments=("1",),
        user="u",
        group="g",
        supplementary_gids=(5,),
        environment=(("A", "1"), ("B", "2")),
        isolators=(("os/linux/capabilities-retain-set", {"set": []}), ("resource/cpu", {"limit": "1"})),
    )
    assert joined(None, None) is None
    assert joined(file, None) is joined(None, file) is file
    remove = ("os/linux/capabilities-remove-set", {"set": ["CAP_KILL"]})
    found = joined(file, AppOverrides(arguments=("2",), environment=(("B", "3"),), isolators=(remove,)))
    assert found is not None
    assert (found.exec, found.arguments) == (("/z",), ("2",))
    assert (found.user, found.group, found.supplementary_gids) == ("u", "g", (5,))
    assert found.environment == (("A", "1"), ("B", "3"))
    assert found.isolators == (("resource/cpu", {"limit": "1"}), remove)
    other = joined(file, AppOverrides(exec=("/y",), user="0"))
    assert other is not None
    assert (other.exec, other.arguments) == (("/y",), ())
    assert (other.user, other.group, other.supplementary_gids) == ("0", None, ())


def test_a_template_keeps_its_changes_in_json() -> None:
    app = {
        "name": "a",
        "image": "example.com/x",
        "args": ["1"],
        "environment": [{"name": "A", "value": "1"}],
        "ports": [{"name": "http", "protocol": "tcp", "port": 80}],
        "mountPoints": [{"name": "data", "path": "/data"}],
        "eventHandlers": [{"name": "pre-start", "exec": ["/e"]}],
    }
    dns = {"nameservers": ["10.0.0.53"], "search": ["."], "options": ["rotate"]}
    hosts = [{"address": "::1", "names": ["a"]}]
    template = PodTemplate.parse({"apps": [app], "hostname": "h", "dns": dns, "hosts": hosts})
    assert template.to_json()["apps"] == [app]
    assert PodTemplate.parse(template.to_json()) == template
    changed = overridden(image().app, template.pod.apps[0].overrides or AppOverrides(), None, groups_of)
    assert [point.path for point in changed.mount_points] == ["/data"]
    assert changed.handler("pre-start") == ("/e",)
    assert [port.port for port in changed.ports] == [80]


@pytest.mark.parametrize(
    ("pod", "path"),
    [
        ({"hostname": "a b"}, "$.hostname"),
        ({"dns": {"nameservers": ["x"]}}, "$.dns.nameservers[0]"),
        ({"dns": {"search": ["a..b"]}}, "$.dns.search[0]"),
        ({"dns": {"options": ["a\nb"]}}, "$.dns.options[0]"),
        ({"hosts": [{"address": "10.0.0.1", "names": ["a\nb"]}]}, "$.hosts[0].names[0]"),
        ({"hosts": [{"address": "10.0.0.1", "names": []}]}, "$.hosts[0].names"),
        ({"apps": [{"name": "a", "image": "b", "user": 3}]}, "$.apps[0].user"),
        ({"apps": [{"name": "a", "image": "b", "ports": [{"name": "c"}]}]}, "$.apps[0].ports[0].protocol"),
    ],
)
def test_what_a_template_cannot_say(pod: dict[str, object], path: str) -> None:
    with pytest.raises(ManifestError) as caught:
        PodTemplate.parse({"apps": [], **pod})
    assert caught.value.data["path"] == path
