"""Decides the settings with which an app is started (overrides of its manifest, terminal and input), and builds
the :class:`PodSetup` for the stager's driver."""

from __future__ import annotations

from kurma_core.appc.image import App, Isolator, NameValue
from kurma_core.errors import StagerError, UsageError
from kurma_core.hookspecs.pod_setup import AppSetup, PodSetup, UserNamespace
from kurma_core.models.health import HEALTH_CHECK, RESTART
from kurma_core.models.image import Conventions
from kurma_core.models.pod import (
    GROUP_POLICIES,
    GROUP_POLICY,
    KEEP_ROOT,
    LOG_DIRECTORY,
    MAKE_WORKING_DIRECTORY,
    STDIN,
    STOP_SIGNAL,
    TERMINAL,
)
from kurma_core.pods import log_places
from kurma_core.pods.network.hosts_and_resolv_conf import findable, pod_dns, pod_hosts, replaced_files
from kurma_core.pods.prepare import volumes
from kurma_core.value import replace

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from kurma_core.api.pods import AppOverrides
    from kurma_core.appc.pod import PodApp, PodManifest
    from kurma_core.hookspecs.pod_setup import SecretSetup
    from kurma_core.models.image import RenderedImage, RenderedLayer
    from kurma_core.models.isolator import IdRange
    from kurma_core.models.network import Attachment
    from kurma_core.models.pod import PodRecord
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.services import Services


#: By value of the annotation ``kurma.io/stdin``: when the app's standard input ends; empty: it has none.
STDIN_ENDS = {None: "", "false": "", "true": "last", "keep": "never", "once": "first"}


def with_isolators(own: tuple[Isolator, ...], given: tuple[tuple[str, Any], ...]) -> tuple[Isolator, ...]:
    """A pod's isolators, with ``given`` ones in place of those of the same name; values that are objects are
    merged by key."""
    found = {isolator.name: isolator for isolator in own}
    for name, value in given:
        had = found[name].value if name in found else None
        if isinstance(had, dict) and isinstance(value, dict):
            value = {**had, **value}
        found[name] = Isolator(name, value)
    return tuple(found.values())


#: Isolators that set the same as the retain-set and the remove-set of that name.
_FORMS = {
    "kurma.io/capabilities": "os/linux/capabilities",
    "kurma.io/seccomp-profile": "os/linux/seccomp",
}


def overridden(
    base: App | None,
    overrides: AppOverrides,
    entrypoint: tuple[str, ...] | None,
    groups_of: Callable[[str], tuple[str, tuple[int, ...]]],
) -> App:
    """The app's manifest with the overrides applied.

    :param base: the pod's ``app``, else the image's; None: neither has one.
    :param entrypoint: see :class:`kurma_core.models.image.Conventions`.
    :param groups_of: gives primary group and supplementary group IDs of a user, from the image.
    """
    app = base if base is not None else App(exec=(), user="0", group="0")
    if overrides.exec:
        command = overrides.exec + overrides.arguments
    elif overrides.arguments:
        command = (app.exec if entrypoint is None else entrypoint) + overrides.arguments
    else:
        command = app.exec
    environment = tuple(NameValue(*pair) for pair in overrides.environment)
    isolators = _over(app.isolators, overrides.isolators)
    if overrides.user is not None:
        group, further = groups_of(overrides.user) if overrides.group is None else (overrides.group, ())
        app = replace(app, user=overrides.user, group=group, supplementary_gids=further)
    elif overrides.group is not None:
        app = replace(app, group=overrides.group)
    if overrides.supplementary_gids:
        app = replace(app, supplementary_gids=_once(*app.supplementary_gids, *overrides.supplementary_gids))
    return replace(
        app,
        exec=command,
        working_directory=overrides.working_directory or app.working_directory,
        environment=_by_name(app.environment, environment),
        event_handlers=_by_name(app.event_handlers, overrides.event_handlers),
        mount_points=_by_name(app.mount_points, overrides.mount_points),
        ports=_by_name(app.ports, overrides.ports),
        isolators=isolators,
    )


def _by_name(base: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Values that have names: ``given`` ones in place of those of the same name."""
    return tuple({one.name: one for one in (*base, *given)}.values()) if given else base


def joined(file: AppOverrides | None, given: AppOverrides | None) -> AppOverrides | None:
    """The changes of a pod's file and of a request as one; those of the request count first.

    A command of the request replaces the file's command and arguments, and a user the file's user and groups.
    """
    if not file or not given:
        return given or file
    isolators = _over(tuple(Isolator(*pair) for pair in file.isolators), given.isolators)
    new_user = given.user is not None
    return replace(
        file,
        exec=given.exec or file.exec,
        arguments=given.arguments if given.exec else given.arguments or file.arguments,
        user=given.user if new_user else file.user,
        group=given.group if new_user else given.group or file.group,
        supplementary_gids=_once(*(() if new_user else file.supplementary_gids), *given.supplementary_gids),
        working_directory=given.working_directory or file.working_directory,
        environment=tuple({**dict(file.environment), **dict(given.environment)}.items()),
        isolators=tuple((one.name, one.value) for one in isolators),
        event_handlers=_by_name(file.event_handlers, given.event_handlers),
        mount_points=_by_name(file.mount_points, given.mount_points),
        ports=_by_name(file.ports, given.ports),
    )


def with_group_policy(
    entry: PodApp, app: App, overrides: AppOverrides, groups_of: Callable[[str], tuple[str, tuple[int, ...]]]
) -> App:
    """The app's manifest with the supplementary groups of its group policy; unchanged without a policy.

    :param entry: the app in the pod, with its annotations; its ``app`` is as the pod's file has it.
    :param app: the app's manifest with the overrides.
    :param groups_of: as in :func:`overridden`.
    :raises UsageError: there is no such policy.
    """
    policy = group_policy(entry)
    if policy is None:
        return app
    # The groups of the pod's file were chosen for this app; those of an image are its own choice.
    own = entry.app.supplementary_gids if entry.app is not None and overrides.user is None else ()
    if policy == "merge":
        _, found = groups_of(app.user)
        own = (*(app.supplementary_gids if overrides.user is None else ()), *found)
    return replace(app, supplementary_gids=_once(*own, *overrides.supplementary_gids))


def group_policy(app: PodApp) -> str | None:
    """The app's annotation for its groups. :raises UsageError: it has an invalid value."""
    policy = app.annotation(GROUP_POLICY)
    if policy not in (None, *GROUP_POLICIES):
        raise UsageError(
            f"app {app.name}: its annotation {GROUP_POLICY} is {policy!r}", hint="it is merge or strict"
        )
    return policy


def _once(*groups: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(groups))


def _setting(isolator: str) -> str | None:
    """The setting of an isolator that other isolators set, too; None: it stands alone."""
    for end in ("-retain-set", "-remove-set"):
        if isolator.endswith(end):
            return isolator.removesuffix(end)
    return _FORMS.get(isolator)


def _over(base: tuple[Isolator, ...], given: tuple[tuple[str, Any], ...]) -> tuple[Isolator, ...]:
    """An app's isolators, with ``given`` ones in place of those of the same name, and of other forms of the same
    setting."""
    found = {isolator.name: isolator for isolator in base}
    new = {name: Isolator(name, value) for name, value in given}
    for name in new:
        setting = _setting(name)
        if setting is not None:
            found = {other: one for other, one in found.items() if other == name or _setting(other) != setting}
    return tuple({**found, **new}.values())


def check_annotations(pod: PodManifest, app: PodApp, expected: Conventions, *, ephemeral: bool) -> None:
    """:param expected: the conventions of its image. :param ephemeral: the pod is removed once it has ended.

    :raises UsageError: one of the app's annotations has an invalid value.
    """
    _says(app, TERMINAL)
    _says(app, MAKE_WORKING_DIRECTORY)
    stdin_ends(app)
    stop_signal(app)
    log_places.check_path(pod, app)
    text = app.annotation(HEALTH_CHECK)
    if text is not None:
        from kurma_core.appc.health_check import of_app

        check = of_app(app.name, text, expected.health_check)
        if ephemeral and check is not None and check.on_failure == RESTART:
            raise UsageError(f"app {app.name}: cannot combine --rm with a health check that restarts the pod")


def check_kept_root(pod: PodManifest, *, ephemeral: bool) -> None:
    """Checks the pod's annotation that keeps its apps' roots.

    :raises UsageError: its value is invalid, or the pod is removed at its end.
    """
    value = pod.annotation(KEEP_ROOT)
    if value not in (None, "true", "false"):
        raise UsageError(f"the pod's annotation {KEEP_ROOT} is {value!r}", hint="it is true or false")
    if value == "true" and ephemeral:
        raise UsageError(
            "--keep-root has no effect with --rm, which removes the pod", hint="leave one of them out"
        )


def stdin_ends(app: PodApp) -> str:
    """When the app's standard input ends: see :attr:`AppSetup.stdin_ends`; empty: it is not kept open.

    :raises UsageError: the annotation has an invalid value.
    """
    value = app.annotation(STDIN)
    if value not in STDIN_ENDS:
        words = ", ".join(word for word in STDIN_ENDS if word)
        raise UsageError(f"app {app.name}: its annotation {STDIN} is {value!r}", hint=f"it is one of {words}")
    return STDIN_ENDS[value]


def stop_signal(app: PodApp) -> int | None:
    """The number of the app's stop signal by its annotation; None: the image decides.

    :raises UsageError: the annotation names no signal.
    """
    value = app.annotation(STOP_SIGNAL)
    if value is None:
        return None
    from kurma_core.linux.process import signal_number

    number = signal_number(value)
    if number is None:
        raise UsageError(
            f"app {app.name}: its annotation {STOP_SIGNAL} is {value!r}",
            hint="name a signal, such as SIGTERM or 15",
        )
    return number


def has_terminal(document: PodDocument, app: PodApp) -> bool:
    return document.terminal == app.name or _says(app, TERMINAL)


def keeps_stdin(document: PodDocument, app: PodApp) -> bool:
    """Whether the app's standard input stays open, so that an attached client can type, regardless of the pod's
    starter."""
    return document.interactive == app.name or bool(stdin_ends(app))


def typed_into(document: PodDocument) -> str | None:
    """The app whose terminal gets the caller's standard input."""
    for app in document.manifest.apps:
        if document.interactive == app.name and has_terminal(document, app):
            return app.name
    return None


def foreground_input(services: Services, record: PodRecord) -> tuple[bool, bool]:
    """Whether the pod's foreground command reads standard input, and whether that is for a terminal.

    With a stager that has no call-ins, such as a stage1, the stager's own standard input is used, whatever the
    apps' settings are.
    """
    from kurma_core.hookspecs import implements
    from kurma_core.hookspecs.stager import StagerHooks

    document = services.store.directory(record.uuid).read_document()
    if not implements(services.stagers.of_pod(document), StagerHooks.begin):
        return True, True
    return document.interactive is not None, typed_into(document) is not None


def _says(app: PodApp, name: str) -> bool:
    value = app.annotation(name)
    if value not in (None, "true", "false"):
        raise UsageError(f"app {app.name}: its annotation {name} is {value!r}", hint="it is true or false")
    return bool(value == "true")


def pod_setup(
    services: Services,
    document: PodDocument,
    directory: str,
    rendered: Mapping[str, RenderedImage],
    attachments: tuple[Attachment, ...],
    metadata_url: str | None,
    secrets: Mapping[str, tuple[SecretSetup, ...]],
    note: Callable[[str], None] = lambda _: None,
) -> PodSetup:
    """Everything that the stager's driver gets to know of the pod.

    :param directory: the pod's.
    :param rendered: the image of each app and image volume.
    :param attachments: with their results, if the networks are joined.
    :param metadata_url: URL of the pod's metadata service; holds its token.
    :param secrets: of the apps, with their values.
    :param note: called with warnings about the pod's name servers.
    """
    manifests: dict[str, Any] = {}
    for image in rendered.values():
        manifests.update(image.manifests)
    variables = () if metadata_url is None else (("AC_METADATA_URL", metadata_url),)
    return PodSetup(
        uuid=document.uuid,
        name=document.name,
        directory=directory,
        manifest=document.manifest,
        images=manifests,
        apps=tuple(
            _app_setup(document, app, rendered[app].layers, attachments, variables, secrets.get(app, ()))
            for app in document.app_names
        ),
        volumes=volumes.setups(document.manifest, directory, document.ids, rendered),
        network_namespace=document.network_namespace,
        cgroup=document.cgroup,
        plans=document.plans,
        pod_plan=document.pod_plan,
        config=services.stagers.config(document.stager),
        hostname=document.hostname,
        dns=pod_dns(document, attachments, note),
        hosts=pod_hosts(document, attachments),
        volume_links=document.volume_links,
        userns=None if document.ids is None else UserNamespace(document.user_namespace or "", document.ids),
        keep=document.keep,
        metadata_url=metadata_url,
        names=document.network_namespace is not None and bool(findable(attachments)),
        attachments=attachments if document.own_networks else (),
        log_directory=document.manifest.annotation(LOG_DIRECTORY),
        asked=tuple(what for what, said in (("dns", document.dns), ("hosts", document.hosts)) if said),
    )


def check_secrets(apps: Sequence[PodApp], ids: IdRange | None, services: Services, stager: str) -> None:
    """Checks the secrets of a new pod, or of an app that is added, before anything is made.

    :param ids: of the pod's user namespace. :param stager: the stager's name.
    :raises SecretError: one does not exist, or cannot be used so. :raises StagerError: the stager cannot give apps
        secrets.
    """
    if not any(app.secrets for app in apps):
        return
    if not services.stagers.get(stager).features().secrets:
        raise StagerError(f"stager {stager} cannot give apps secrets", hint="run the pod with another stager")
    secret_values(apps, ids, services.config.state_dir)


def secret_values(
    apps: Sequence[PodApp], ids: IdRange | None, state_dir: str
) -> Mapping[str, tuple[SecretSetup, ...]]:
    """The secrets of the apps that have some, with their present values.

    :param ids: of the pod's user namespace.
    :raises SecretError: one does not exist, or cannot be used so.
    """
    if not any(app.secrets for app in apps):
        return {}
    from kurma_core.pods.prepare.secrets import values

    return values(apps, ids, state_dir)


def _app_setup(
    document: PodDocument,
    app: str,
    layers: tuple[RenderedLayer, ...],
    attachments: tuple[Attachment, ...],
    variables: tuple[tuple[str, str], ...],
    secrets: tuple[SecretSetup, ...],
) -> AppSetup:
    expected = document.conventions.get(app, Conventions())
    runtime = document.manifest.app(app)
    terminal = has_terminal(document, runtime)
    return AppSetup(
        name=app,
        layers=layers,
        mounts=document.mounts[app],
        environment=(*variables, *document.environment.get(app, ())),
        # Input for an app with a terminal comes by the attach call-in instead.
        interactive=document.interactive == app and not terminal,
        stdin_open=keeps_stdin(document, runtime),
        stdin_ends=stdin_ends(runtime) or "last",
        terminal=terminal,
        make_working_directory=expected.make_working_directory or _says(runtime, MAKE_WORKING_DIRECTORY),
        stop_signal=stop_signal(runtime) or expected.stop_signal,
        replace_files=replaced_files(document, expected.replace_files, attachments),
        log_path=log_places.log_path(document.manifest, runtime),
        secrets=secrets,
    )
