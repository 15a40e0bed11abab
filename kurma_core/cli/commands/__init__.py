"""The table of commands: the module and the function of each, and its line in listings.

The line is kept here so that ``kurma --help`` imports no command; a test compares it with the docstrings.
"""

from __future__ import annotations


class Entry:
    """:param module: below :mod:`kurma_core.cli.commands`. :param attribute: the command in it."""

    __slots__ = ("attribute", "help", "module")

    def __init__(self, module: str, attribute: str, help: str) -> None:
        self.module = module
        self.attribute = attribute
        self.help = help


class Group:
    """A group of commands, such as ``kurma image``."""

    __slots__ = ("entries", "help")

    def __init__(self, help: str, entries: dict[str, Entry]) -> None:
        self.help = help
        self.entries = entries


TABLE: dict[str, Entry | Group] = {
    "run": Entry("run", "run", "Run a pod in the foreground, to its end, or by -d in the background."),
    "prepare": Entry("run", "prepare", "Prepare a pod, and print its UUID."),
    "run-prepared": Entry(
        "run", "run_prepared", "Run a prepared pod in the foreground, to its end, or by -d in the background."
    ),
    "start": Entry("run", "start", "Run an ended pod again, from a clean copy, under the same UUID."),
    "restart": Entry(
        "run", "restart", "Stop a pod if it runs, and run it again, in the foreground or by -d in the background."
    ),
    "list": Entry("pods", "list_", "List pods."),
    "show": Entry("pods", "show", "Show everything that is known of a pod."),
    "status": Entry("pods", "status", "Show the state of a pod and of its apps."),
    "wait": Entry("pods", "wait", "Wait for a pod's end, and exit with its exit code."),
    "cat-manifest": Entry("pods", "cat_manifest", "Print a pod's manifest, as it runs."),
    "logs": Entry("logs", "logs", "Print what the apps of a pod have written."),
    "stats": Entry("stats", "stats", "Show what pods use, again and again."),
    "top": Entry("stats", "top", "Show the processes of a pod; without POD, what pods use, the busiest first."),
    "events": Entry("events", "events", "Print what happens to pods and images, as it happens."),
    "enter": Entry("enter", "enter", "Run a command inside an app of a running pod."),
    "exec": Entry("enter", "enter", "Run a command inside an app of a running pod."),
    "attach": Entry("enter", "attach", "Join an app of a running pod: its output, and its standard input."),
    "cp": Entry("enter", "cp", "Copy files from an app that runs, or to it."),
    "stop": Entry("pods", "stop", "Stop pods."),
    "kill": Entry("pods", "kill", "Send a signal to the apps of a pod."),
    "rm": Entry("pods", "rm", "Remove pods that do not run."),
    "gc": Entry("pods", "gc", "Take down what is dead, and remove pods that ended a while ago."),
    "app": Group(
        "The apps of a pod, and changing them while it runs.",
        {
            "list": Entry("app", "list_", "List the apps of a pod."),
            "add": Entry("app", "add", "Add an app to a pod that runs."),
            "start": Entry("app", "start", "Start apps that were added or have ended, each from a clean root."),
            "stop": Entry("app", "stop", "Stop apps; the rest of the pod goes on."),
            "rm": Entry("app", "rm", "Remove apps that do not run from a pod that does."),
        },
    ),
    "image": Group(
        "Fetch, build and look at images.",
        {
            "fetch": Entry("image", "fetch", "Fetch images into the store, and print their IDs."),
            "list": Entry("image", "list_", "List the images of the store."),
            "show": Entry("image", "show", "Show everything that is known of an image."),
            "cat-manifest": Entry("image", "cat_manifest", "Print an image's manifest, byte for byte."),
            "build": Entry("image_archive", "build", "Build an image archive from a directory."),
            "validate": Entry(
                "image_archive", "validate", "Check that files are image archives that Kurma accepts."
            ),
            "export": Entry("image", "export", "Write an image of the store to a file."),
            "extract": Entry("image", "extract", "Extract an image's root filesystem, and print the image's ID."),
            "sign": Entry("image_archive", "sign", "Sign an image archive."),
            "verify": Entry(
                "image_archive",
                "verify",
                "Check an image of the store against what was extracted, or the signature of a file.",
            ),
            "render": Entry("image", "render", "Render an image, and print its directories, top first."),
            "convert": Entry("convert", "image", "Print the late form of an early image's manifest."),
            "rm": Entry("image", "rm", "Remove images from the store."),
            "gc": Entry("image", "gc", "Remove images that were not used for a while."),
            "login": Entry("image", "login", "Check credentials with a source of images, and keep them."),
            "logout": Entry("image", "logout", "Remove credentials that login keeps."),
        },
    ),
    "trust": Group(
        "Whose signatures on images count.",
        {
            "add": Entry("trust", "add", "Trust a key's signatures on images."),
            "list": Entry("trust", "list_", "List trusted keys, and keys that are no longer trusted."),
            "rm": Entry("trust", "rm", "Trust a key no longer."),
        },
    ),
    "pod": Group(
        "The manifests of pods.",
        {"convert": Entry("convert", "pod", "Print the late form of an early pod's manifest.")},
    ),
    "stager": Group(
        "The programs that run the inside of pods.",
        {
            "list": Entry("stager", "list_", "List the stagers that --stager accepts."),
            "build": Entry("stager", "build", "Build, or fetch, and verify a stager's image; print its ID."),
            "check": Entry(
                "stager",
                "check",
                "Run the contract suite on a stager's image, line by line.",
            ),
            "export": Entry(
                "stager", "export", "Write a stager as an image for another container engine; print its ID."
            ),
        },
    ),
    "network": Group(
        "The networks that pods may join.",
        {
            "list": Entry("network", "list_", "List networks."),
            "show": Entry("network", "show", "Show everything that is known of a network."),
            "check": Entry("network", "check", "Tell what is wrong with networks, and what pods have left."),
            "rm": Entry("network", "rm", "Take from the host what networks share among pods, such as a bridge."),
        },
    ),
    "isolators": Group(
        "Isolators: limits and powers of apps and pods.",
        {"list": Entry("plugins", "list_isolators", "List isolators, and what this host makes of each.")},
    ),
    "plugins": Group(
        "The plugins of this installation.",
        {
            "list": Entry("plugins", "list_", "List plugins, and why one does not work."),
            "show": Entry("plugins", "show", "Show a plugin and the options that it takes."),
            "new": Entry("plugins", "new", "Make the package of a new plugin, which works and has tests."),
            "enable": Entry("plugins", "enable", "Enable a plugin in kurma.d/50-plugins.yml."),
            "disable": Entry("plugins", "disable", "Disable a plugin in kurma.d/50-plugins.yml."),
        },
    ),
    "config": Group(
        "The configuration.",
        {
            "show": Entry(
                "system", "show_config", "Show the effective configuration, and where each value comes from."
            ),
            "check": Entry("system", "check_config", "Check the configuration, with the plugins that it names."),
        },
    ),
    "daemon": Group(
        "The daemon, kurmad.",
        {
            "run": Entry("daemon", "run", "Serve the state directory: run the daemon, in the foreground."),
            "reload": Entry(
                "daemon", "reload", "Have kurmad read its configuration again, and print what has changed."
            ),
        },
    ),
    "info": Entry("system", "info", "Show what this host and this installation are."),
    "version": Entry("system", "version", "Print Kurma's version."),
    "completion": Entry("system", "completion", "Print a shell's completion for kurma."),
}


def find(path: tuple[str, ...]) -> Entry | Group | None:
    """The command or group of these words."""
    found: Entry | Group | None = None
    entries: dict[str, Entry | Group] | dict[str, Entry] = TABLE
    for word in path:
        found = entries.get(word)
        if found is None:
            return None
        entries = found.entries if isinstance(found, Group) else {}
    return found
