"""Compiles AppArmor profiles and SELinux contexts of apps (``os/linux/apparmor-profile``, ``-selinux-context``).

Implements App Container Executor, Linux Isolators. The label is checked here, below ``IsolatorHost.root``; the
stager sets it for the next executed program, and the kernel checks it again then.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled, Power
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.schema import describe
from kurma_isolators_linux import procfs

if TYPE_CHECKING:
    from kurma_core.hookspecs.isolator import IsolatorHost

#: Files with Kurma's own label, which apps inherit: a profile with its mode, or a context.
_OWN = ("proc/self/attr/apparmor/current", "proc/self/attr/current")
_UNCONFINED = "unconfined"
_ENABLED = "sys/module/apparmor/parameters/enabled"
_SECURITYFS = "sys/kernel/security"
_PROFILES = f"{_SECURITYFS}/apparmor/profiles"
_SELINUX = "sys/fs/selinux"
#: Characters; the kernel takes a page.
_LONGEST = 1000
_PARTS = ("user", "role", "type", "level")


def apparmor_profile(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles ``{"profile": "my-profile"}``, or the name alone. If the kernel has AppArmor, a profile that is not
    loaded is an error, and not ignored. ``unconfined`` takes the app out of Kurma's own profile."""
    value = _profile(name, value)
    if value == _UNCONFINED:
        return _of(scope, IsolatorPlan(apparmor=None if _own(host) == _UNCONFINED else value), "")
    enabled = procfs.text(host, _ENABLED)
    if enabled != "Y":
        why = "this kernel has no AppArmor" if enabled is None else "AppArmor is switched off in this kernel"
        return Compiled(IsolatorPlan(), "ignored", why)
    mode = _mode(name, value, host)
    if mode == "unconfined":
        raise IsolatorError(
            f"isolator {name}: the profile {describe(value)} is loaded as unconfined: it denies nothing",
            hint="leave out flags=(unconfined) where the profile is defined, and load it again",
        )
    complains = "the profile is in complain mode: what it does not allow is logged, and not denied"
    return _of(scope, IsolatorPlan(apparmor=value), complains if mode == "complain" else "")


def _profile(name: str, value: Any) -> str:
    """Reads the profile's name. :raises IsolatorError: the value has another form."""
    if isinstance(value, dict):
        if value.keys() != {"profile"}:
            found = ", ".join(sorted(value)) or "nothing"
            raise _not_a_profile(name, f"an object of {found}")
        value = value["profile"]
    if not isinstance(value, str) or not value.isprintable() or value != value.strip() or not value:
        raise _not_a_profile(name, describe(value))
    if len(value) > _LONGEST:
        raise IsolatorError(f"isolator {name}: a profile's name has at most {_LONGEST} characters")
    return value


def _not_a_profile(name: str, found: str) -> IsolatorError:
    return IsolatorError(
        f"isolator {name}: expected the name of a profile, got {found}",
        hint='for instance {"profile": "my-profile"}, or "my-profile"',
    )


def apparmor_powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Requires a grant for a profile other than Kurma's own, which apps have by default. If Kurma is unconfined,
    every profile only restricts, and needs no grant."""
    profile = _profile(name, value)
    if procfs.text(host, _ENABLED) != "Y":
        return ()
    return () if _own(host) in (_UNCONFINED, profile) else (Power(f"{name}={profile}"),)


def _own(host: IsolatorHost) -> str:
    """Returns the profile that Kurma itself runs under, and its apps by default."""
    if procfs.text(host, _ENABLED) != "Y":
        return _UNCONFINED
    own = next(filter(None, (procfs.text(host, path) for path in _OWN)), _UNCONFINED)
    return own.partition(" (")[0]


def selinux_powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Requires a grant for a context other than Kurma's own, unless Kurma's has an unconfined type: only the
    policy knows which of two contexts allows more."""
    context = _context(name, value)
    if not os.path.isdir(f"{host.root.rstrip('/')}/{_SELINUX}"):
        return ()
    own = (procfs.text(host, _OWN[1]) or "").rstrip("\0")
    kind = own.split(":")[2:3]
    if own == context or (kind and kind[0].startswith(_UNCONFINED)):
        return ()
    return (Power(f"{name}={context}"),)


def _mode(name: str, profile: str, host: IsolatorHost) -> str:
    """Returns the mode of a loaded profile: ``enforce``, ``complain``, ``kill``, ``unconfined``, ….

    :raises IsolatorError: the profile is not loaded, or the list of profiles cannot be read.
    """
    path = f"{host.root.rstrip('/')}/{_PROFILES}"
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                found, _, mode = line.rstrip("\n").rpartition(" (")
                if found == profile:
                    return mode.removesuffix(")")
    except FileNotFoundError:
        raise IsolatorError(
            f"isolator {name}: whether the profile {describe(profile)} is loaded cannot be looked up: there is no "
            f"/{_PROFILES}",
            hint=f"mount -t securityfs securityfs /{_SECURITYFS}",
        ) from None
    except OSError as error:
        raise IsolatorError(
            f"isolator {name}: whether the profile {describe(profile)} is loaded cannot be looked up: "
            f"/{_PROFILES}: {error.strerror}"
        ) from None
    raise IsolatorError(
        f"isolator {name}: the AppArmor profile {describe(profile)} is not loaded",
        hint="load the file that defines it with apparmor_parser -r; aa-status lists what is loaded",
    )


def selinux_context(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles ``{"user": "system_u", "role": "system_r", "type": "container_t", "level": "s0"}``. Only at the
    exec of the app's program does the kernel check that the policy has the context and allows the transition."""
    context = _context(name, value)
    if not os.path.isdir(f"{host.root.rstrip('/')}/{_SELINUX}"):
        return Compiled(IsolatorPlan(), "ignored", "this kernel has no SELinux, or it is switched off")
    enforcing = procfs.text(host, f"{_SELINUX}/enforce")
    note = ""
    if enforcing is None:
        note = f"whether SELinux denies anything here cannot be looked up: /{_SELINUX} is not mounted"
    elif enforcing != "1":
        note = "SELinux is permissive here: what the policy does not allow is logged, and not denied"
    return _of(scope, IsolatorPlan(selinux=context), note)


def _context(name: str, value: Any) -> str:
    """Returns the context in the kernel's form. :raises IsolatorError: the value has another form."""
    if not isinstance(value, dict) or value.keys() != set(_PARTS):
        got = (
            f"an object of {', '.join(sorted(value)) or 'nothing'}" if isinstance(value, dict) else describe(value)
        )
        raise IsolatorError(
            f"isolator {name}: expected an object of user, role, type and level, got {got}",
            hint='for instance {"user": "system_u", "role": "system_r", "type": "container_t", "level": "s0"}',
        )
    for part in _PARTS:
        text = value[part]
        more = ":,_.-" if part == "level" else "_.-"
        if (
            not isinstance(text, str)
            or not 0 < len(text) <= _LONGEST
            or not all((letter.isascii() and letter.isalnum()) or letter in more for letter in text)
        ):
            raise IsolatorError(f"isolator {name}: {part}: expected a word of SELinux, got {describe(text)}")
    return ":".join(value[part] for part in _PARTS)


def _of(scope: str, plan: IsolatorPlan, note: str) -> Compiled:
    """Makes the result. A pod's label has no plan: the driver's defaults give it to each app without a label."""
    outcome = "modified" if note else "enforced"
    if scope == "pod":
        return Compiled(IsolatorPlan(), outcome, note, apps=IsolatorPlan())
    return Compiled(plan, outcome, note)
