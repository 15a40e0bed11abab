"""What the command line changes of an app."""

from __future__ import annotations

from kurma_core.appc.image import ImageManifest
from kurma_core.pods.request import AppOverrides, docker_words, overridden


def image(**annotations: str) -> ImageManifest:
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
            "annotations": [{"name": f"appc.io/docker/{k}", "value": v} for k, v in annotations.items()],
        }
    )


def test_arguments_are_appended_to_an_acis_command() -> None:
    manifest = image()
    assert overridden(manifest.app, AppOverrides(arguments=("x",)), manifest).exec == ("/e", "/c", "x")


def test_arguments_replace_a_docker_images_cmd() -> None:
    manifest = image(entrypoint='["/e"]', cmd='["/c"]')
    assert overridden(manifest.app, AppOverrides(arguments=("x", "y")), manifest).exec == ("/e", "x", "y")
    only_cmd = image(cmd='["/c"]')
    assert overridden(only_cmd.app, AppOverrides(arguments=("x",)), only_cmd).exec == ("x",)
    assert docker_words(only_cmd, "entrypoint") is None


def test_exec_replaces_all_and_takes_the_arguments() -> None:
    manifest = image(entrypoint='["/e"]')
    assert overridden(manifest.app, AppOverrides(exec=("/z",), arguments=("1",)), manifest).exec == ("/z", "1")


def test_environment_is_replaced_by_name_in_place() -> None:
    manifest = image()
    app = overridden(manifest.app, AppOverrides(environment=(("A", "9"), ("C", "3"))), manifest)
    assert [(e.name, e.value) for e in app.environment] == [("A", "9"), ("B", "2"), ("C", "3")]
    assert (app.user, app.group) == ("u", "g")


def test_an_image_without_app_gets_one() -> None:
    manifest = image()
    app = overridden(None, AppOverrides(arguments=("/bin/true",), user="7", working_directory="/w"), manifest)
    assert (app.exec, app.user, app.group, app.working_directory) == (("/bin/true",), "7", "0", "/w")
