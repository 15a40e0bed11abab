"""Decides on grants: whether a pod may have the powers that its isolators give beyond the default.

An image gets a power if a grant of ``kurma.yml`` or the caller's ``--grant`` gives it, regardless of where the
isolator is: in the image's manifest, in the pod's manifest for an app, or for the pod as a whole, which concerns
each image in it. Isolators on the caller's command line need no grant, and neither do those of a pod template in
``kurma.yml``. The plugins declare which isolators need which powers
(:class:`kurma_core.hookspecs.isolator.IsolatorHooks.powers`).

Grants are checked when a pod is prepared, when an app is added, and at every start, since keys and grants may have
changed.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from kurma_core.appc.image import Isolator
from kurma_core.errors import PowerError, UsageError
from kurma_core.hookspecs.isolator import Power
from kurma_core.isolation import powers
from kurma_core.models.pod import PID, PID_HOST
from kurma_core.pods.prepare import isolators
from kurma_core.pods.record.document import OF_APP, OF_IMAGE, OF_POD, Need
from kurma_core.value import frozen, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Set

    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.pod import PodManifest
    from kurma_core.config import GrantConfig
    from kurma_core.hookspecs.isolator import IsolatorHost
    from kurma_core.images.trust_policy import Vouchers
    from kurma_core.isolation import IsolatorPlugin
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.services import Services

Json = Any
#: Letters of a plain YAML scalar inside of brackets.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/=")
#: Names, in messages, of the caller's own ways to give a power, besides the grants of ``kurma.yml``.
CALLER, OPTION = "the command line", "--grant"
#: ``ISOLATOR=full`` means the same as ``ISOLATOR``.
_WHOLE = "=full"
#: The power of an app whose mounts appear on the host, which a key of a volume asks for.
SHARED_MOUNTS = "kurma.io/propagation=rshared"
_LAPSES = {"unknown": "is not trusted for that name any more", "revoked": "was revoked"}


# --- the needs of a pod ---------------------------------------------------------------------------------------


def needs(
    request: PodRequest,
    pod: PodManifest,
    apps: Mapping[str, Iterable[Isolator]],
    plugins: tuple[IsolatorPlugin, ...],
    shared: Set[str],
    host: IsolatorHost,
    fewer_capabilities: Collection[str] = (),
    of_file: Iterable[str] = (),
) -> Needs:
    """The powers that the images of a pod must be granted, and those that the caller gives directly.

    :param apps: all isolators of each app, including the caller's.
    :param shared: namespaces of the host that the pod shares because of isolators. Those that the caller chose
        need no grant.
    :param host: the host's properties, for the isolators' plugins.
    :param fewer_capabilities: the apps whose images expect fewer default capabilities.
    :param of_file: namespaces of the host that the pod shares because its file says so, other than by isolators.
    """
    host = replace(host, siblings={one.name: one.value for one in pod.isolators})
    in_pod = replace(host, pod=host.siblings)
    hosts = {
        app: replace(
            in_pod,
            siblings={one.name: one.value for one in isolators},
            fewer_capabilities=app in fewer_capabilities,
        )
        for app, isolators in apps.items()
    }

    def typed(app: str | None, given: Iterable[tuple[str, Json]]) -> set[Power]:
        scope, its_host = ("pod", host) if app is None else ("app", hosts[app])
        return set(powers([Isolator(*pair) for pair in given], plugins, scope, its_host))

    template = request.template.pod
    of_apps = {app: typed(app, over.isolators) for app, over in request.overrides.items()}
    of_pod = typed(None, request.isolators)
    if request.configured:
        for app in template.apps:
            written = [(one.name, one.value) for one in app.own_isolators]
            of_apps[app.name] = of_apps.get(app.name, set()) | typed(app.name, written)
        of_pod |= typed(None, [(one.name, one.value) for one in template.isolators])
        of_file = ()
    # A namespace belongs to the whole pod, whichever app's isolator shares it; all other powers are that app's
    # alone.
    of_pod |= {power for some in of_apps.values() for power in some if power.namespace is not None}

    def asked(isolators: Iterable[Isolator], typed: Set[Power], scope: str, host: IsolatorHost) -> list[Power]:
        found = [power for power in powers(isolators, plugins, scope, host) if power not in typed]
        return [power for power in found if power.namespace is None or power.namespace in shared]

    by_file = [Power(f"{isolators.NAMESPACES}={kind}", kind) for kind in sorted(of_file)]
    by_file = [power for power in by_file if power not in of_pod]
    everyones = [_need(power, OF_POD) for power in (*by_file, *asked(pod.isolators, of_pod, "pod", host))]
    found: dict[str, tuple[Need, ...]] = {}
    for app in template.apps:
        level = OF_APP if app.app is not None or app.own_isolators else OF_IMAGE
        own = asked(apps[app.name], of_pod | of_apps.get(app.name, set()), "app", hosts[app.name])
        if app.annotation(PID) == PID_HOST and not request.configured:
            # Of that app alone: its namespace is not the pod's.
            own.append(Power(f"{isolators.NAMESPACES}=pid"))
        everyones += [_need(power, app.name) for power in own if power.namespace is not None]
        found[app.name] = tuple(_need(power, level) for power in own)
        if shares_mounts(pod, app.name) and not request.configured:
            found[app.name] = (*found[app.name], Need(SHARED_MOUNTS, OF_APP))
    found[""] = tuple(everyones)
    mine = {app: of_apps.get(app, set()) - of_pod for app in hosts} | {"": of_pod}
    return Needs(
        {app: some for app, some in found.items() if some},
        {app: tuple(sorted(power.name for power in some)) for app, some in mine.items() if some},
    )


def shares_mounts(pod: PodManifest, app: str) -> bool:
    """Whether mounts of the app appear on the host: it mounts a volume with the propagation ``rshared``."""
    shared = {volume.name for volume in pod.volumes if volume.propagation == "rshared"}
    return bool(shared) and any(mount.volume in shared for mount in pod.app(app).mounts)


@frozen
class Needs:
    """The powers that a pod needs.

    :param needs: the powers that images must be granted, as in
        :class:`~kurma_core.pods.record.document.PodDocument`.
    :param given: names of the powers that the caller gives directly, by app; "": to all apps.
    """

    needs: dict[str, tuple[Need, ...]]
    given: dict[str, tuple[str, ...]]

    def notes(self, configured: bool) -> tuple[str, ...]:
        """One line for people on each power that the caller gives directly."""
        whose = "its entry in kurma.yml" if configured else CALLER
        return tuple(
            f"{note_of(app)}has {power} by {whose}" if app else f"the pod has {power} by {whose}"
            for app, some in sorted(self.given.items())
            for power in some
        )


def _need(power: Power, level: str) -> Need:
    return Need(power.name, level, power.least)


def needs_of_new(
    request: PodRequest,
    pod: PodManifest,
    isolators: tuple[Isolator, ...],
    plugins: tuple[IsolatorPlugin, ...],
    host: IsolatorHost,
    *,
    fewer_capabilities: bool,
) -> Needs:
    """The needs of an app that is added to a pod. It cannot change the pod's namespaces, and the needs of the pod
    itself are known already.

    :param request: of that app alone.
    :param pod: the pod's manifest.
    :returns: the app's own needs.
    """
    (app,) = request.template.pod.apps
    registry = [app.name] if fewer_capabilities else []
    found = needs(request, pod, {app.name: isolators}, plugins, frozenset(), host, registry)
    own, given = found.needs.get(app.name), found.given.get(app.name)
    return Needs({app.name: own} if own else {}, {app.name: given} if given else {})


def check_grants(grants: Iterable[str], plugins: tuple[IsolatorPlugin, ...]) -> None:
    """:raises UsageError: a ``--grant`` names a power that no installed plugin knows."""
    from kurma_core.plugins.contract import known_power

    for word in grants:
        found, near = known_power(word, [plugin.gated for plugin in plugins])
        if not found:
            hint = f"did you mean {near}?" if near else None
            raise UsageError(f"{OPTION}: there is no power {word[:100]!r}", hint=hint)


# --- the check of grants --------------------------------------------------------------------------------------


def check_pod(
    needs: Mapping[str, tuple[Need, ...]],
    images: Mapping[str, str],
    services: Services,
    insecure: Collection[str] = (),
    grants: Mapping[str, Iterable[str]] | None = None,
) -> tuple[str, ...]:
    """Checks that the images of a pod are granted the powers that they need.

    :param needs: as from :func:`needs`.
    :param images: ID by app.
    :param insecure: checks that are relaxed for the pod's images.
    :param grants: the caller's own, as in :class:`~kurma_core.pods.record.document.PodDocument`.
    :returns: one line for people on each power that was granted.
    :raises PowerError: neither the caller nor a grant of ``kurma.yml`` gives an image a power that it needs.
    """
    return tuple(note for app in images for note in check_app(needs, app, images[app], services, insecure, grants))


def check_app(
    needs: Mapping[str, tuple[Need, ...]],
    app: str,
    image: str,
    services: Services,
    insecure: Collection[str] = (),
    grants: Mapping[str, Iterable[str]] | None = None,
    *,
    made: bool = False,
) -> tuple[str, ...]:
    """As :func:`check_pod`, for one app: its own needs, and those of the pod, which each of its apps has.

    :param made: the pod exists already, so that the caller can no longer use ``--grant`` for it.
    """
    name, found = _had(needs, app, image, services, insecure, grants or {}, made=made)
    return tuple(
        f"{note_of(app)}{name} has {power} by {OPTION if by is None else f'the grant {by} of kurma.yml'}"
        for power, by in found
    )


def had(document: PodDocument, services: Services, app: str) -> frozenset[str]:
    """Names of the powers that grants presently give an app, of those that it needs.

    :raises PowerError: a power that it needs is not granted.
    """
    _, found = _had(document.needs, app, document.images[app], services, document.insecure, document.grants)
    return frozenset(power for power, _ in found)


def _had(
    needs: Mapping[str, tuple[Need, ...]],
    app: str,
    image: str,
    services: Services,
    insecure: Collection[str],
    grants: Mapping[str, Iterable[str]],
    *,
    made: bool = True,
) -> tuple[str, list[tuple[str, str | None]]]:
    """The image's name, and for each need the granted power with the name of the grant; None: the caller's
    ``--grant``.

    :param grants: the caller's own.
    """
    own = _words(grants.get(app, ()))
    # Grants for the pod as a whole were given when it was made, and hold for apps that are added later, too.
    everyones = own | _words(grants.get("", ()))
    wanted = [(need, own) for need in needs.get(app, ())] + [(need, everyones) for need in needs.get("", ())]
    # An app's need that concerns all apps is listed twice: as its own and as the pod's.
    wanted = [(need, mine) for need, mine in wanted if need.level != app]
    if not wanted:
        return "", []
    vouchers = services.images.vouchers(image, insecure=insecure)
    return vouchers.name, _granted(wanted, app, vouchers, services.config.grants, made=made)


def _words(grants: Iterable[str]) -> frozenset[str]:
    return frozenset(word.removesuffix(_WHOLE) for word in grants)


def check_again(document: PodDocument, services: Services, app: str | None = None) -> None:
    """Checks, before a start, that the powers that were granted when the pod was made are still granted.

    :param app: the app that is started; None: all.
    """
    for name in document.app_names if app is None else (app,):
        image = document.images[name]
        check_app(document.needs, name, image, services, document.insecure, document.grants, made=True)


def _granted(
    wanted: list[tuple[Need, frozenset[str]]],
    app: str,
    vouchers: Vouchers,
    grants: Mapping[str, GrantConfig],
    *,
    made: bool,
) -> list[tuple[str, str | None]]:
    """:param wanted: each need, and the caller's grants that apply to it.
    :returns: for each need the granted power, with the name of the grant; None: the caller's ``--grant``.
    :raises PowerError: a need is not granted; the hint names all that are missing, so that one line grants them.
    """
    admitting: dict[str | None, frozenset[str]] = {
        name: _words(grant.isolators) for name, grant in grants.items() if admits(grant, vouchers)
    }
    found, refused = [], []
    for need, mine in wanted:
        given = _given(need, {None: mine, **admitting})
        if given is None:
            refused.append(need)
        else:
            found.append(given)
    if not refused:
        return found
    options = " ".join(f"{OPTION} {shlex.quote(power)}" for power in dict.fromkeys(need.power for need in refused))
    raise PowerError(
        f"app {app}: {_asked(refused, vouchers)}: beyond the default, and no grant of kurma.yml gives it to that "
        f"image ({_signed(vouchers)})",
        hint=f"if it is meant, {'prepare the pod anew with' if made else 'give'} {options}; or for good, "
        f"{_where(grants)}: {_line(refused, app, vouchers, grants)}",
        app=app,
        image=vouchers.id,
        isolator=refused[0].isolator,
    )


def _given(need: Need, admitting: Mapping[str | None, Set[str]]) -> tuple[str, str | None] | None:
    """The granted power with its grant. The whole power is tried before the lesser part that is enough."""
    for power in filter(None, (need.power, need.least)):
        for name, some in admitting.items():
            if not some.isdisjoint((power, need.isolator)):
                return power, name
    return None


def note_of(app: str) -> str:
    """The beginning of a note on a power that was granted to an app."""
    return f"app {app}: its image "


def admits(grant: GrantConfig, image: Vouchers) -> bool:
    """Whether the grant applies to that image and to all of its dependencies."""
    if grant.digests:
        wanted = frozenset(grant.digests)
        return bool(wanted & image.digests) and all(part.signers or wanted & part.digests for part in image.parts)
    return (
        any(begins(image.name, name) for name in grant.images)
        and bool(image.signers if not grant.signers else set(image.signers).intersection(grant.signers))
        and all(part.signers for part in image.parts)
    )


def begins(name: str, beginning: str) -> bool:
    """Whether ``name`` is ``beginning`` or below it: ``example.com/app/web`` is below ``example.com/app``,
    ``example.com/apple`` is not."""
    return name == beginning or name.startswith(f"{beginning}/")


# --- the error message ----------------------------------------------------------------------------------------


def _asked(refused: list[Need], image: Vouchers) -> str:
    """The origin of each refused need and its powers, each origin once."""
    levels: dict[str, dict[str, None]] = {}
    for need in refused:
        levels.setdefault(need.level, {})[need.power] = None
    return "; ".join(_asks(level, ", ".join(powers), image.name) for level, powers in levels.items())


def _asks(level: str, what: str, image: str) -> str:
    if level == OF_IMAGE:
        return f"its image {image} asks for {what}"
    if level == OF_APP:
        return f"the pod's manifest asks for {what} for its image {image}"
    who = "the pod" if level == OF_POD else f"app {level}"
    return f"{who} asks for {what}, which its image {image} would have as well"


def _signed(image: Vouchers) -> str:
    if image.signers:
        words = "signed by " + ", ".join(image.signers)
    elif image.lapsed:
        words = "; ".join(f"its signer's key {key} {_LAPSES[why]}" for key, why in image.lapsed.items())
    else:
        words = "it carries no signature that was verified"
    loose = [part.name for part in image.parts if not part.signers]
    return f"{words}; it depends on {loose[0]}, which is not signed" if loose else words


def _where(grants: Mapping[str, GrantConfig]) -> str:
    return "put among the grants of kurma.yml" if grants else "add to kurma.yml"


def _line(refused: list[Need], app: str, image: Vouchers, grants: Collection[str]) -> str:
    name, number = app, 1
    while name in grants:
        number += 1
        name = f"{app}-{number}"
    loose = [part.id for part in image.parts if not part.signers]
    if image.signers and not loose:
        whose = f"images: {_list([image.name])}, signers: {_list(image.signers)}"
    else:
        whose = f"digests: {_list([image.id, *loose])}"
    powers = dict.fromkeys(need.power for need in refused)
    entry = f"{_scalar(name)}: {{{whose}, isolators: {_list(powers)}}}"
    return entry if grants else f"grants: {{{entry}}}"


def _list(words: Iterable[str]) -> str:
    return f"[{', '.join(_scalar(word) for word in words)}]"


def _scalar(text: str) -> str:
    """The text as a YAML scalar; quoted if YAML would not read it as a string."""
    plain = _PLAIN.issuperset(text) and text[0].isalpha() and text not in ("true", "false", "null", "yes", "no")
    if plain and text not in ("on", "off", "y", "n"):
        return text
    return json.dumps(text)


def api_rights(document: PodDocument, services: Services, app: str) -> str:
    """The rights of the app in the API, by its isolators and the present grants: ``full`` or ``read``.

    :raises PowerError: the grants no longer give its image any right to the API.
    """
    wanted = document.plans[app].api or "read"
    if not document.needs:
        return wanted
    return "read" if f"{isolators.API_ACCESS}=read" in had(document, services, app) else wanted
