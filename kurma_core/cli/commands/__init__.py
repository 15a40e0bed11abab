"""The table of commands: the module and the function of each, its line in listings, and other words for it.

Both readers of the command line, help, suggestions and the reference in docs/reference/cli.md are made from this
table. It has the lines of help so that ``kurma --help`` imports no command; a test compares them with the
docstrings.
"""

from __future__ import annotations


class Entry:
    """A command.

    :param module: below :mod:`kurma_core.cli.commands`. :param attribute: the command in it.
    :param harm: it ends or removes something: a mistyped harmless word never leads to it.
    """

    __slots__ = ("attribute", "harm", "help", "module")

    def __init__(self, module: str, attribute: str, help: str, *, harm: bool = False) -> None:
        self.module = module
        self.attribute = attribute
        self.help = help
        self.harm = harm


class Alias:
    """Another word for a command, for the habits of other container engines.

    :param path: the command's words, such as ``image list``.
    :param preset: defaults of its options that differ.
    """

    __slots__ = ("path", "preset")

    def __init__(self, path: str, **preset: str) -> None:
        self.path = tuple(path.split())
        self.preset = preset

    @property
    def entry(self) -> Entry:
        found = find(self.path)
        assert isinstance(found, Entry)
        return found

    @property
    def help(self) -> str:
        return self.entry.help

    @property
    def harm(self) -> bool:
        return self.entry.harm


class Group:
    """A group of commands, such as ``kurma image``."""

    __slots__ = ("entries", "help")
    harm = False

    def __init__(self, help: str, entries: dict[str, Entry | Alias]) -> None:
        self.help = help
        self.entries = entries


#: By heading of ``kurma --help``, in its order.
SECTIONS: dict[str, dict[str, Entry | Alias | Group]] = {
    "Run pods": {
        "run": Entry("run", "run", "Create a pod and run it; with -d, in the background."),
        "prepare": Entry("run", "prepare", "Create a pod without running it, and print its UUID."),
        "create": Alias("prepare"),
        "run-prepared": Entry("run", "run_prepared", "Run a prepared pod; with -d, in the background."),
        "start": Entry("run", "start", "Run ended pods again, with clean root filesystems."),
        "restart": Entry("run", "restart", "Stop pods that run, then run them again.", harm=True),
        "stop": Entry("pods", "stop", "Stop pods.", harm=True),
        "kill": Entry("pods", "kill", "Send a signal to the apps of pods.", harm=True),
        "rm": Entry("pods", "rm", "Remove pods that do not run.", harm=True),
        "annotate": Entry("pods", "annotate", "Set and remove annotations of a pod or of an app."),
        "wait": Entry("pods", "wait", "Wait until a pod ends or has a health."),
        "app": Group(
            "List and change the apps of a running pod.",
            {
                "list": Entry("app", "list_", "List the apps of a pod."),
                "ls": Alias("app list"),
                "add": Entry("app", "add", "Add an app to a running pod."),
                "start": Entry("app", "start", "Start added or ended apps of a running pod."),
                "stop": Entry("app", "stop", "Stop apps of a running pod.", harm=True),
                "reopen-log": Entry("app", "reopen_log", "Continue the logs of apps in new files."),
                "update": Entry("app", "update", "Change the resources of an app."),
                "rm": Entry("app", "rm", "Remove ended apps from a pod.", harm=True),
            },
        ),
        "healthcheck": Group(
            "Check the health of apps.",
            {"run": Entry("health", "run", "Check the health of an app now.")},
        ),
        "pod": Group(
            "Inspect pods, and convert old pod manifests.",
            {
                "convert": Entry("convert", "pod", "Convert a pod manifest of App Container 0.1.0."),
                "inspect": Alias("inspect", type="pod"),
            },
        ),
    },
    "Look at pods": {
        "ps": Entry("pods", "ps", "List running pods; with -a, all pods."),
        "list": Entry("pods", "list_", "List all pods."),
        "ls": Alias("list"),
        "show": Entry("pods", "show", "Show all facts about a pod."),
        "inspect": Entry("pods", "inspect", "Print a pod, an image, a network or a volume as JSON."),
        "status": Entry("pods", "status", "Show the state of a pod and of its apps."),
        "logs": Entry("logs", "logs", "Print the output of a pod's apps."),
        "top": Entry("stats", "top", "Show the processes of a pod, or the busiest pods."),
        "stats": Entry("stats", "stats", "Show the resource usage of pods, continuously."),
        "events": Entry("events", "events", "Print events of pods, images and volumes as they happen."),
        "cat-manifest": Entry("pods", "cat_manifest", "Print the manifest of a pod, with all overrides."),
    },
    "Enter pods": {
        "exec": Entry("enter", "exec_", "Run a command in an app of a running pod."),
        "enter": Entry("enter", "enter", "Run a shell or a command in an app of a running pod."),
        "attach": Entry("enter", "attach", "Attach to an app's output and standard input."),
        "cp": Entry("enter", "cp", "Copy files to a running app or from it."),
        "diff": Entry("enter", "diff", "List what an app has changed in its root."),
        "commit": Entry("image_archive", "commit", "Make an image of an app's kept root."),
    },
    "Images": {
        "pull": Alias("image fetch"),
        "fetch": Alias("image fetch"),
        "images": Alias("image list"),
        "rmi": Alias("image rm"),
        "login": Entry("image", "login", "Check credentials with a registry, and save them."),
        "logout": Entry("image", "logout", "Remove the credentials that login saved.", harm=True),
        "image": Group(
            "Fetch, build, list and remove images.",
            {
                "fetch": Entry("image", "fetch", "Fetch images into the store, and print their IDs."),
                "pull": Alias("image fetch"),
                "list": Entry("image", "list_", "List stored images."),
                "ls": Alias("image list"),
                "show": Entry("image", "show", "Show all facts about an image."),
                "inspect": Alias("inspect", type="image"),
                "cat-manifest": Entry("image", "cat_manifest", "Print an image's manifest, byte for byte."),
                "build": Entry("image_archive", "build", "Build an image from a directory."),
                "validate": Entry("image_archive", "validate", "Check that Kurma accepts image archives."),
                "export": Entry("image", "export", "Write a stored image to a file."),
                "save": Entry("image_push", "save", "Write a stored image to a file for other engines."),
                "push": Entry("image_push", "push", "Push a stored image to a registry."),
                "extract": Entry("image", "extract", "Extract an image's root filesystem."),
                "sign": Entry("image_archive", "sign", "Sign an image archive."),
                "verify": Entry("image_archive", "verify", "Check a stored image, or the signature of a file."),
                "render": Entry("image", "render", "Render an image, and print its layer directories, top first."),
                "convert": Entry("convert", "image", "Convert an image manifest of App Container 0.1.0."),
                "rm": Entry("image", "rm", "Remove stored images.", harm=True),
                "gc": Entry("image", "gc", "Remove images that no pod has used for some time.", harm=True),
                "login": Alias("login"),
                "logout": Alias("logout"),
            },
        ),
        "trust": Group(
            "Manage the keys whose signatures on images are trusted.",
            {
                "add": Entry("trust", "add", "Trust a key's signatures on images."),
                "list": Entry("trust", "list_", "List trusted, masked and revoked keys."),
                "ls": Alias("trust list"),
                "rm": Entry("trust", "rm", "Stop trusting a key.", harm=True),
            },
        ),
    },
    "Networks": {
        "network": Group(
            "List, create, check, repair and remove networks.",
            {
                "list": Entry("network", "list_", "List networks."),
                "ls": Alias("network list"),
                "show": Entry("network", "show", "Show all facts about a network."),
                "inspect": Alias("inspect", type="network"),
                "create": Entry("network", "create", "Create a network in kurma.d/50-networks.yml."),
                "check": Entry("network", "check", "Check networks; with --repair repair them."),
                "rm": Entry("network", "rm", "Remove a network's bridge and rules from the host.", harm=True),
            },
        ),
    },
    "Secrets": {
        "secret": Group(
            "Create, list, show and remove secrets.",
            {
                "create": Entry("secret", "create", "Create a secret from a file or from standard input."),
                "list": Entry("secret", "list_", "List secrets, without their values."),
                "ls": Alias("secret list"),
                "show": Entry("secret", "show", "Show a secret, without its value."),
                "inspect": Entry("secret", "inspect", "Print secrets as JSON, without their values."),
                "rm": Entry("secret", "rm", "Remove secrets that no pod names.", harm=True),
            },
        ),
    },
    "Volumes": {
        "volume": Group(
            "Create, list and remove named volumes.",
            {
                "create": Entry("volume", "create", "Create a named volume, and print its name."),
                "list": Entry("volume", "list_", "List named volumes."),
                "ls": Alias("volume list"),
                "show": Entry("volume", "show", "Show all facts about a named volume."),
                "inspect": Alias("inspect", type="volume"),
                "rm": Entry("volume", "rm", "Remove named volumes, with their files.", harm=True),
                "prune": Entry(
                    "volume", "prune", "Remove all named volumes that no pod uses, with their files.", harm=True
                ),
            },
        ),
    },
    "This host": {
        "info": Entry("system", "info", "Show facts about this host and this installation."),
        "gc": Entry("pods", "gc", "Remove old ended pods, and leftovers of crashes.", harm=True),
        "system": Group(
            "Show and free what Kurma keeps on the disk.",
            {
                "df": Entry("system", "df", "Show what Kurma keeps on the disk."),
                "prune": Entry("system", "prune", "Remove ended pods, and what nothing uses.", harm=True),
                "info": Alias("info"),
            },
        ),
        "daemon": Group(
            "Run and reload kurmad, the daemon.",
            {
                "run": Entry("daemon", "run", "Run kurmad in the foreground."),
                "reload": Entry("daemon", "reload", "Make kurmad reload its configuration."),
            },
        ),
        "config": Group(
            "Show and check the configuration.",
            {
                "show": Entry("system", "show_config", "Show the configuration, and the origin of each value."),
                "check": Entry("system", "check_config", "Check the configuration and its plugins."),
            },
        ),
        "version": Entry("system", "version", "Print Kurma's version."),
        "completion": Entry("system", "completion", "Print the completion script for a shell."),
    },
    "Plugins": {
        "plugins": Group(
            "List, enable, disable and create plugins.",
            {
                "list": Entry("plugins", "list_", "List plugins, and the reasons of their failures."),
                "ls": Alias("plugins list"),
                "show": Entry("plugins", "show", "Show a plugin and its options."),
                "new": Entry("plugins", "new", "Create the package of a new plugin, with tests."),
                "enable": Entry("plugins", "enable", "Enable a plugin in kurma.d/50-plugins.yml."),
                "disable": Entry("plugins", "disable", "Disable a plugin in kurma.d/50-plugins.yml.", harm=True),
            },
        ),
        "isolators": Group(
            "List isolators: limits and powers of apps and pods.",
            {
                "list": Entry("plugins", "list_isolators", "List isolators, and their effect on this host."),
                "ls": Alias("isolators list"),
            },
        ),
        "stager": Group(
            "List, build, check and export stagers.",
            {
                "list": Entry("stager", "list_", "List the stagers that --stager accepts."),
                "ls": Alias("stager list"),
                "build": Entry("stager", "build", "Build or fetch a stager's image, and verify it."),
                "check": Entry("stager", "check", "Run the contract suite on a stager's image."),
                "export": Entry("stager", "export", "Write a stager as an image for another engine."),
            },
        ),
    },
}

TABLE: dict[str, Entry | Alias | Group] = {
    word: entry for section in SECTIONS.values() for word, entry in section.items()
}


def find(path: tuple[str, ...]) -> Entry | Alias | Group | None:
    """The command, alias or group of these words."""
    found: Entry | Alias | Group | None = None
    entries: dict[str, Entry | Alias | Group] | dict[str, Entry | Alias] = TABLE
    for word in path:
        found = entries.get(word)
        if found is None:
            return None
        entries = found.entries if isinstance(found, Group) else {}
    return found
