"""The gate: what decides on power over the host that an isolator asks for (X6).

An image gets such power where a grant of ``kurma.yml`` says so, wherever it is asked for: in the image's manifest,
in the pod's for an app, or for the pod as a whole, which concerns each image in it. What root has typed on the
command line is root's own word and does not come here. The plugins say which isolators ask for what
(:class:`kurma_core.hookspecs.GatedIsolator`).

It is asked when a pod is prepared, when an app is added, and at every start: keys and grants may have changed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kurma_core.appc.image import Isolator
from kurma_core.errors import PowerError
from kurma_core.isolation import powers
from kurma_core.pods.document import OF_APP, OF_IMAGE, OF_POD, Need

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Set

    from kurma_core.appc.pod import PodManifest
    from kurma_core.config import GrantConfig
    from kurma_core.hookspecs import Isolator as IsolatorDriver
    from kurma_core.hookspecs import Power
    from kurma_core.images.vouching import Vouchers
    from kurma_core.pods.document import PodDocument
    from kurma_core.pods.request import PodRequest
    from kurma_core.pods.services import Services

Json = Any
#: Letters of a plain YAML scalar inside of brackets.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/=")
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
) -> dict[str, tuple[Need, ...]]:
    """What the images of a pod must be granted, as :class:`~kurma_core.pods.document.PodDocument` has it.

    :param apps: all isolators of each app, those that root has typed among them.
    :param shared: namespaces of the host's that the pod has because isolators say so. What root's word has decided
        is nobody's to ask for.
    """

    def typed(given: Iterable[tuple[str, Json]]) -> set[Power]:
        return {power for _, power in powers([Isolator(*pair) for pair in given], drivers)}

    of_apps = {app: typed(over.isolators) for app, over in request.overrides.items()}
    # A namespace is the pod's, whichever app root has typed it for; all else is that app's alone.
    of_pod = typed(request.isolators)
    of_pod |= {power for some in of_apps.values() for power in some if power.namespace is not None}

    def asked(isolators: Iterable[Isolator], typed: Set[Power]) -> list[Power]:
        found = [power for _, power in powers(isolators, drivers) if power not in typed]
        return [power for power in found if power.namespace is None or power.namespace in shared]

    everyones = [_need(power, OF_POD) for power in asked(pod.isolators, of_pod)]
    found: dict[str, tuple[Need, ...]] = {}
    for app in request.template.pod.apps:
        # An early pod's isolators of an app stand beside it.
        level = OF_APP if app.app is not None or app.isolators else OF_IMAGE
        own = asked(apps[app.name], of_pod | of_apps.get(app.name, set()))
        everyones += [_need(power, app.name) for power in own if power.namespace is not None]
        found[app.name] = tuple(_need(power, level) for power in own)
    found[""] = tuple(everyones)
    return {app: some for app, some in found.items() if some}


def _need(power: Power, level: str) -> Need:
    return Need(power.name, level, power.least)


def needs_of_new(
    request: PodRequest, isolators: Iterable[Isolator], drivers: tuple[IsolatorDriver, ...]
) -> tuple[Need, ...]:
    """Of an app that is added. Its pod's namespaces are what they are, whatever it asks for; what its pod asks for
    is known.

    :param request: of that app alone.
    """
    (app,) = request.template.pod.apps
    found = needs(request, request.template.pod, {app.name: isolators}, drivers, frozenset())
    return found.get(app.name, ())


# --- whether it is granted -------------------------------------------------------------------------------------


def check_pod(
    needs: Mapping[str, tuple[Need, ...]],
    images: Mapping[str, str],
    services: Services,
    insecure: Collection[str] = (),
) -> tuple[str, ...]:
    """:param needs: as :func:`needs` gives them.
    :param images: ID by app.
    :param insecure: relaxations with which the pod's images are had.
    :returns: one line for people on each power that was granted.
    :raises PowerError: no grant gives an image of the pod what is asked for.
    """
    return tuple(note for app in images for note in check_app(needs, app, images[app], services, insecure))


def check_app(
    needs: Mapping[str, tuple[Need, ...]], app: str, image: str, services: Services, insecure: Collection[str] = ()
) -> tuple[str, ...]:
    """As :func:`check_pod`, for one app: what it asks for, and what the pod gives each of its apps."""
    name, found = _had(needs, app, image, services, insecure)
    return tuple(f"{note_of(app)}{name} has {power} by the grant {by} of kurma.yml" for power, by in found)


def had(document: PodDocument, services: Services, app: str) -> frozenset[str]:
    """Names of the powers that grants give an app, now, of those that it must be granted.

    :raises PowerError: there is one that they do not give.
    """
    _, found = _had(document.needs, app, document.images[app], services, document.insecure)
    return frozenset(power for power, _ in found)


def _had(
    needs: Mapping[str, tuple[Need, ...]], app: str, image: str, services: Services, insecure: Collection[str]
) -> tuple[str, list[tuple[str, str]]]:
    """The image's name, and of each need the power that is granted, and the grant."""
    # What an app asks for all of them is its own need, too.
    wanted = [need for need in (*needs.get(app, ()), *needs.get("", ())) if need.level != app]
    if not wanted:
        return "", []
    vouchers = services.images.vouchers(image, insecure=insecure)
    return vouchers.name, _granted(wanted, app, vouchers, services.config.grants)


def check_again(document: PodDocument, services: Services, app: str | None = None) -> None:
    """Before a start: what was granted when the pod was made must be granted still.

    :param app: the one that is started; None: all.
    """
    for name in document.app_names if app is None else (app,):
        check_app(document.needs, name, document.images[name], services, document.insecure)


def _granted(
    wanted: list[Need], app: str, vouchers: Vouchers, grants: Mapping[str, GrantConfig]
) -> list[tuple[str, str]]:
    """:returns: of each need the power that is granted, and the grant.
    :raises PowerError: some of it is not; it has all that is lacking, so that one line gives it.
    """
    admitting = {
        name: frozenset(word.removesuffix(_WHOLE) for word in grant.isolators)
        for name, grant in grants.items()
        if admits(grant, vouchers)
    }
    found, refused = [], []
    for need in wanted:
        given = _given(need, admitting)
        if given is None:
            refused.append(need)
        else:
            found.append(given)
    if not refused:
        return found
    raise PowerError(
        f"app {app}: {_asked(refused, vouchers)}: power over the host, which no grant of kurma.yml gives to that "
        f"image ({_signed(vouchers)})",
        hint=f"if it is meant, {_where(grants)}: {_line(refused, app, vouchers, grants)}",
        app=app,
        image=vouchers.id,
        isolator=refused[0].isolator,
    )


def _given(need: Need, admitting: Mapping[str, Set[str]]) -> tuple[str, str] | None:
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
