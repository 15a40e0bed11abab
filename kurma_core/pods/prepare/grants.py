"""Decides on grants: whether a pod may have the powers that its isolators give beyond the default.

An image gets a power where a grant of ``kurma.yml`` or the caller's ``--grant`` says so, wherever it is asked for:
in the image's manifest, in the pod's for an app, or for the pod as a whole, which concerns each image in it. The
isolators that the caller gives are the caller's own word. So is the template of a pod that ``kurma.yml`` itself
holds. The plugins say which isolators ask for what (:class:`kurma_core.hookspecs.isolator.GatedIsolator`).

It is asked when a pod is prepared, when an app is added, and at every start: keys and grants may have changed.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from kurma_core.appc.image import Isolator
from kurma_core.errors import PowerError, UsageError
from kurma_core.hookspecs.isolator import Power
from kurma_core.isolation import powers
from kurma_core.pods.prepare import isolators
from kurma_core.pods.prepare.host_access import API_ACCESS
from kurma_core.pods.record.document import OF_APP, OF_IMAGE, OF_POD, Need
from kurma_core.value import frozen, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Set

    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.pod import PodManifest
    from kurma_core.config import GrantConfig
    from kurma_core.hookspecs.isolator import Isolator as IsolatorDriver
    from kurma_core.hookspecs.isolator import IsolatorHost
    from kurma_core.images.trust_policy import Vouchers
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.services import Services

Json = Any
#: Letters of a plain YAML scalar inside of brackets.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/=")
#: Whose word a power is given by, besides the grants of ``kurma.yml``.
CALLER, OPTION = "the command line", "--grant"
#: ``ISOLATOR=full`` is ``ISOLATOR``, said in full.
_WHOLE = "=full"
_LAPSES = {"unknown": "is not trusted for that name any more", "revoked": "was revoked"}


# --- what is asked for -----------------------------------------------------------------------------------------


def needs(
    request: PodRequest,
    pod: PodManifest,
    apps: Mapping[str, Iterable[Isolator]],
    drivers: tuple[IsolatorDriver, ...],
    shared: Set[str],
    host: IsolatorHost,
    registry_images: Collection[str] = (),
    of_file: Iterable[str] = (),
) -> Needs:
    """What the images of a pod must be granted, and what they have by the caller's word.

    :param apps: all isolators of each app, the caller's among them.
    :param shared: namespaces of the host's that the pod has because isolators say so. What the caller has decided
        is not asked for.
    :param host: what the isolators' plugins must know of the host.
    :param registry_images: the apps whose images came from a registry.
    :param of_file: namespaces of the host's that the pod has because its file says so, other than by isolators.
    """
    host = replace(host, siblings={one.name: one.value for one in pod.isolators})
    in_pod = replace(host, pod=host.siblings)
    hosts = {
        app: replace(
            in_pod,
            siblings={one.name: one.value for one in isolators},
            registry_image=app in registry_images,
        )
        for app, isolators in apps.items()
    }

    def typed(app: str | None, given: Iterable[tuple[str, Json]]) -> set[Power]:
        scope, its_host = ("pod", host) if app is None else ("app", hosts[app])
        return set(powers([Isolator(*pair) for pair in given], drivers, scope, its_host))

    template = request.template.pod
    of_apps = {app: typed(app, over.isolators) for app, over in request.overrides.items()}
    of_pod = typed(None, request.isolators)
    if request.configured:
        for app in template.apps:
            own_app = () if app.app is None else app.app.isolators
            written = [(one.name, one.value) for one in (*own_app, *app.isolators)]
            of_apps[app.name] = of_apps.get(app.name, set()) | typed(app.name, written)
        of_pod |= typed(None, [(one.name, one.value) for one in template.isolators])
        of_file = ()
    # A namespace is the pod's, whichever app it was given for; all else is that app's alone.
    of_pod |= {power for some in of_apps.values() for power in some if power.namespace is not None}

    def asked(isolators: Iterable[Isolator], typed: Set[Power], scope: str, host: IsolatorHost) -> list[Power]:
        found = [power for power in powers(isolators, drivers, scope, host) if power not in typed]
        return [power for power in found if power.namespace is None or power.namespace in shared]

    by_file = [Power(f"{isolators.NAMESPACES}={kind}", kind) for kind in sorted(of_file)]
    by_file = [power for power in by_file if power not in of_pod]
    everyones = [_need(power, OF_POD) for power in (*by_file, *asked(pod.isolators, of_pod, "pod", host))]
    found: dict[str, tuple[Need, ...]] = {}
    for app in template.apps:
        # An early pod's isolators of an app stand beside it.
        level = OF_APP if app.app is not None or app.isolators else OF_IMAGE
        own = asked(apps[app.name], of_pod | of_apps.get(app.name, set()), "app", hosts[app.name])
        everyones += [_need(power, app.name) for power in own if power.namespace is not None]
        found[app.name] = tuple(_need(power, level) for power in own)
    found[""] = tuple(everyones)
    mine = {app: of_apps.get(app, set()) - of_pod for app in hosts} | {"": of_pod}
    return Needs(
        {app: some for app, some in found.items() if some},
        {app: tuple(sorted(power.name for power in some)) for app, some in mine.items() if some},
    )


@frozen
class Needs:
    """:param needs: what images must be granted, as :class:`~kurma_core.pods.record.document.PodDocument` has it.
    :param given: names of the powers that apps have by the caller's word, by app; "": that all have.
    """

    needs: dict[str, tuple[Need, ...]]
    given: dict[str, tuple[str, ...]]

    def notes(self, configured: bool) -> tuple[str, ...]:
        """One line for people on each power that is the caller's word."""
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
    drivers: tuple[IsolatorDriver, ...],
    host: IsolatorHost,
    *,
    registry_image: bool,
) -> Needs:
    """Of an app that is added. Its pod's namespaces are what they are, whatever it asks for; what its pod asks for
    is known.

    :param request: of that app alone.
    :param pod: the pod's manifest.
    :returns: what is that app's own.
    """
    (app,) = request.template.pod.apps
    registry = [app.name] if registry_image else []
    found = needs(request, pod, {app.name: isolators}, drivers, frozenset(), host, registry)
    own, given = found.needs.get(app.name), found.given.get(app.name)
    return Needs({app.name: own} if own else {}, {app.name: given} if given else {})


def check_grants(grants: Iterable[str], drivers: tuple[IsolatorDriver, ...]) -> None:
    """:raises UsageError: one of ``--grant`` names no power that an installed plugin knows."""
    from kurma_core.plugins.contract import known_power

    for word in grants:
        found, near = known_power(word, drivers)
        if not found:
            hint = f"did you mean {near}?" if near else None
            raise UsageError(f"{OPTION}: there is no power {word[:100]!r}", hint=hint)


# --- whether it is granted -------------------------------------------------------------------------------------


def check_pod(
    needs: Mapping[str, tuple[Need, ...]],
    images: Mapping[str, str],
    services: Services,
    insecure: Collection[str] = (),
    grants: Mapping[str, Iterable[str]] | None = None,
) -> tuple[str, ...]:
    """:param needs: as :func:`needs` gives them.
    :param images: ID by app.
    :param insecure: relaxations with which the pod's images are had.
    :param grants: the caller's own, as :class:`~kurma_core.pods.record.document.PodDocument` has them.
    :returns: one line for people on each power that was granted.
    :raises PowerError: neither they nor a grant of ``kurma.yml`` gives an image of the pod what is asked for.
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
    """As :func:`check_pod`, for one app: what it asks for, and what the pod gives each of its apps.

    :param made: it is a pod's already, for which the caller cannot say ``--grant`` any more.
    """
    name, found = _had(needs, app, image, services, insecure, grants or {}, made=made)
    return tuple(
        f"{note_of(app)}{name} has {power} by {OPTION if by is None else f'the grant {by} of kurma.yml'}"
        for power, by in found
    )


def had(document: PodDocument, services: Services, app: str) -> frozenset[str]:
    """Names of the powers that grants give an app, now, of those that it must be granted.

    :raises PowerError: there is one that they do not give.
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
    """The image's name, and of each need the power that is granted, and the grant; None: the caller's own.

    :param grants: the caller's own.
    """
    own = _words(grants.get(app, ()))
    # For the pod as a whole it was said when the pod was made, and holds for apps that come later.
    everyones = own | _words(grants.get("", ()))
    wanted = [(need, own) for need in needs.get(app, ())] + [(need, everyones) for need in needs.get("", ())]
    # What an app asks for all of them is its own need, too.
    wanted = [(need, mine) for need, mine in wanted if need.level != app]
    if not wanted:
        return "", []
    vouchers = services.images.vouchers(image, insecure=insecure)
    return vouchers.name, _granted(wanted, app, vouchers, services.config.grants, made=made)


def _words(grants: Iterable[str]) -> frozenset[str]:
    return frozenset(word.removesuffix(_WHOLE) for word in grants)


def check_again(document: PodDocument, services: Services, app: str | None = None) -> None:
    """Before a start: what was granted when the pod was made must be granted still.

    :param app: the one that is started; None: all.
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
    """:param wanted: each need, and what the caller has granted of its kind.
    :returns: of each need the power that is granted, and the grant; None: the caller's own.
    :raises PowerError: some of it is not; it has all that is lacking, so that one line gives it.
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
    """The whole before the part that would do."""
    for power in filter(None, (need.power, need.least)):
        for name, some in admitting.items():
            if not some.isdisjoint((power, need.isolator)):
                return power, name
    return None


def note_of(app: str) -> str:
    """How a line on what was granted to an app begins."""
    return f"app {app}: its image "


def admits(grant: GrantConfig, image: Vouchers) -> bool:
    """Whether the grant is one for that image, and for all that it is made of."""
    if grant.digests:
        wanted = frozenset(grant.digests)
        return bool(wanted & image.digests) and all(part.signers or wanted & part.digests for part in image.parts)
    return (
        any(begins(image.name, name) for name in grant.images)
        and bool(image.signers if not grant.signers else set(image.signers).intersection(grant.signers))
        and all(part.signers for part in image.parts)
    )


def begins(name: str, beginning: str) -> bool:
    """``example.com/app`` begins itself and ``example.com/app/web``, and not ``example.com/apple``."""
    return name == beginning or name.startswith(f"{beginning}/")


# --- the refusal -----------------------------------------------------------------------------------------------


def _asked(refused: list[Need], image: Vouchers) -> str:
    """Who asks for what, each once."""
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
    """As YAML takes it for text, which it does for no bare number."""
    plain = _PLAIN.issuperset(text) and text[0].isalpha() and text not in ("true", "false", "null", "yes", "no")
    if plain and text not in ("on", "off", "y", "n"):
        return text
    return json.dumps(text)


def api_rights(document: PodDocument, services: Services, app: str) -> str:
    """What the app may ask for, as its isolators want it and grants give it now: ``full`` or ``read``.

    :raises PowerError: they give its image no power of the sort any more.
    """
    wanted = document.plans[app].api or "read"
    if not document.needs:
        return wanted
    return "read" if f"{API_ACCESS}=read" in had(document, services, app) else wanted
