"""Checks any stager's image against the contract of stagers: ``kurma stager check``.

It makes pods under the stager and reports line by line. They run an app of its own (:mod:`probe`), which reports
its surroundings over a socket in the pod's network namespace and carries out commands, while the check inspects it
from outside. So the check does not rely on the stager's own logs, volumes and call-ins to find their errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from kurma_core import VERSION
from kurma_core.api.host import CheckLine
from kurma_core.errors import StagerError
from kurma_core.stager_check import check_apps, check_callins, check_image, probe_image
from kurma_core.stager_check.check_services import CheckServices, Patience, WatchedStager
from kurma_core.stager_check.pods import Lab, app
from kurma_core.stager_check.report import Report, Wrong

if TYPE_CHECKING:
    from kurma_core.api.images import HostImage
    from kurma_core.hookspecs.driver import Json
    from kurma_core.pods.services import Services
    from kurma_core.stager_check.pods import Pod


_NAME = "check"


def check(
    services: Services, reference: str, tell: Callable[[CheckLine], None], patience: Patience | None = None
) -> Report:
    """Checks a stager.

    :param reference: a name that ``--stager`` accepts, or an image's locator.
    :param tell: called with each line as soon as it is known.
    :raises StagerError: that stager is not an image of the Kurma Stager Specification.
    :raises KurmaError: the image cannot be fetched, or this host cannot run pods, so the stager was not checked.
    """
    named = reference in services.stagers.names()
    if named and not services.stagers.follows_ours(reference):
        raise StagerError(f"stager {reference} is an image of another kind than the Kurma Stager Specification's")
    config: Json = services.stagers.config(reference) if named else {}

    def verified() -> HostImage:
        if named:
            return services.stagers.image(reference)
        return services.images.host_image(reference)

    patience = patience or Patience()
    report = Report(tell)
    found = check_image.verified(verified, report)
    if found is None:
        report.skip("", "the image is not run")
        return report
    check_image.image_itself(found, report)
    driver = _driver(services, verified, patience)
    with services.store.workplace() as workplace:
        probes = probe_image.build(workplace)
        rooms = CheckServices(services, driver, config, probes, patience)
        lab = Lab(rooms, driver, probes, patience, workplace, check_image.most_apps(found.manifest))
        _pods(lab, found, report)
    return report


def _driver(services: Services, verified: Callable[[], HostImage], patience: Patience) -> WatchedStager:
    from kurma_core.staging.callin import StagerTimes
    from kurma_core.staging.stager_process import StagerImage

    def use(*, files: bool = True) -> StagerImage:  # verifies the image at each use
        found = verified()
        return StagerImage(found.id, found.path, found.manifest)

    log = services.config.log
    times = StagerTimes(patience.stop, log.size, log.count, patience.answer, patience.answer)
    return WatchedStager(_NAME, use, services.spawner, VERSION, times)


def _pods(lab: Lab, image: HostImage, report: Report) -> None:
    if not _first(lab, report):
        report.skip("", "no pod runs under this stager")
        return
    check_apps.users(lab, report)
    check_apps.read_only_root(lab, report)
    check_apps.volumes(lab, report)
    check_apps.handlers(lab, report)
    with report.rest("attach"):
        check_callins.attach(lab, report)
    check_apps.start_failure(lab, report)
    check_apps.stopping(lab, report)
    check_image.declared(lab, image.manifest, report)


def _first(lab: Lab, report: Report) -> bool:
    """Runs the pod that most lines check, or a pod for each app under a stager of one app; returns whether it
    ran."""
    user, group = str(probe_image.USER_ID), str(probe_image.GROUP_ID)
    variables = [{"name": "ODD", "value": check_apps.ODD_VALUE}, {"name": "EMPTY", "value": ""}]
    apps = {
        "main": app("main", "serve"),
        "other": app(
            "other",
            "serve",
            *check_apps.ODD_WORDS,
            user=user,
            group=group,
            workingDirectory="/work",
            environment=variables,
        ),
        "seven": app("seven", "serve"),
        "killed": app("killed", "serve"),
    }
    runs = False
    with report.line("start.descriptor-4"), _started(lab, apps) as pods:
        main, other = pods["main"].probe("main"), pods["other"].probe("other")
        report.say("start.descriptor-4", "ok")
        runs = True
        with report.rest():
            check_apps.basics(pods, main, other, report)
            check_apps.stacked(lab, main, report)
            check_callins.logs_of(pods["main"], main, report)
            check_callins.run_in(pods["main"], main, report)
            check_callins.status_of(pods, main, other, report)
            check_apps.by_itself(pods, main, other, report)
    return runs


@contextlib.contextmanager
def _started(lab: Lab, apps: Mapping[str, Mapping[str, Json]]) -> Iterator[Mapping[str, Pod]]:
    """Runs the apps in one pod; under a stager of fewer apps, ``main`` and ``other`` in a pod each.

    :returns: the pod of each app.
    """
    if lab.takes(len(apps)):
        try:
            with lab.pod(apps) as pod:
                yield dict.fromkeys(apps, pod)
        except StagerError as error:
            if error.data.get("status") is not None:
                few = f"a stager that takes fewer apps says so by the annotation {check_image.MOST_APPS}"
                raise Wrong(f"{error.message}; {few}") from None
            raise
    else:
        with lab.pod({"main": apps["main"]}) as main, lab.pod({"other": apps["other"]}) as other:
            yield {"main": main, "other": other}
