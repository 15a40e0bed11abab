"""The renderer ``overlay``: layers as they are extracted, wherever stacking them says the same as merging them.

A plain image, and dependencies that are plain, are stacked: nothing is written. A merged tree of hard links is
made for what a stack cannot say: path whitelists, dependencies at a root of their own, images of several layers
(whose whiteouts no stager needs to know), and more layers than a mount can be trusted to take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core import cancellation
from kurma_core.appc import layering
from kurma_core.errors import ConfigError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, HostCheck, Option
from kurma_core.hookspecs.renderer import RendererHooks
from kurma_core.models.image import RenderedLayer
from kurma_core.trees import merging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kurma_core.hookspecs.driver import DriverContext
    from kurma_core.hookspecs.renderer import ImageNode, RenderCache

#: A stager that passes ``/layers/sha512-…`` names to mount(2) fits 25 of them into the kernel's one page.
MOST_LAYERS = 24
#: The kernel takes no more (OVL_MAX_STACK).
_KERNELS_MOST = 500
#: Stacks directories in a mount namespace. It also removes them: the process that made them may have been killed.
_TRY = """
cd "$0" && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
status=$?
[ $status != 0 ] || umount merged
cd / && rm -rf "$0"
exit $status
"""


class OverlayRenderer(RendererHooks):
    """:param most_layers: a longer stack is merged into one tree."""

    def __init__(self, most_layers: int = MOST_LAYERS) -> None:
        self.most_layers = most_layers

    @hookimpl
    def render(self, image: ImageNode, cache: RenderCache) -> tuple[RenderedLayer, ...]:
        """The images' own layers, top first, or one tree made of them (N4).

        :raises RenderError: a cycle, or a limit.
        :raises OSError: the tree cannot be made.
        """
        what = layering.applications(image)
        if len(what) <= self.most_layers and layering.stackable(what):
            return tuple(RenderedLayer(one.image, one.layers[0].path) for one in reversed(what))
        return (layering.merged("links", what, cache.tree, _link),)


def _link(target: str, steps: Sequence[layering.Step]) -> None:
    merging.merge(target, steps, check=cancellation.check, done=cancellation.step)


def _create(context: DriverContext) -> RendererHooks:
    most = context.config.get("most_layers", MOST_LAYERS)
    if not 1 <= most <= _KERNELS_MOST:
        raise ConfigError(
            f"renderer overlay: most_layers: expected a number from 1 to {_KERNELS_MOST}, not {most}",
            hint="the kernel stacks no more layers than that; longer stacks are merged into one tree",
        )
    return OverlayRenderer(most)


@hookimpl
def kurma_checks(context: DriverContext) -> Sequence[HostCheck]:
    """Whether layers can be stacked in the file system of the state directory."""
    import os
    import tempfile

    from kurma_core.linux.programs import find_program, one_line, run, search_path

    unshare = find_program("unshare")
    if os.geteuid() != 0 or unshare is None:
        return ()
    state_dir = context.state_root
    if not os.path.isdir(state_dir):
        return (HostCheck("file system", True, f"not checked: {state_dir} does not exist yet"),)
    try:
        with tempfile.TemporaryDirectory(
            prefix=".overlay-check-", dir=state_dir, ignore_cleanup_errors=True
        ) as place:
            for name in ("lower", "upper", "work", "merged"):
                os.mkdir(f"{place}/{name}")
            done = run([unshare, "-m", "/bin/sh", "-c", _TRY, place], environment={"PATH": search_path()})
        why = (one_line(done.stderr) or f"mount ended with {done.status}") if done.status != 0 else ""
    except OSError as error:
        why = error.strerror or str(error)
    if not why:
        return (HostCheck("file system", True),)
    file = "/etc/kurma/kurma.d/50-state_dir.yml"
    detail = (
        f"layers cannot be stacked in {state_dir}: {why}. It must be on ext4, xfs or btrfs. The "
        "hint sets another directory, without the present pods and images, unless --dir, KURMA_DIR, --config or "
        "KURMA_CONFIG does; restart kurmad after it"
    )
    hint = f"mkdir -p /srv/kurma /etc/kurma/kurma.d && echo 'state_dir: /srv/kurma' > {file}"
    return (HostCheck("file system", False, detail, hint),)


@hookimpl
def kurma_renderer() -> Driver:
    most = Option("most_layers", int, MOST_LAYERS, "a longer stack of layers is merged into one tree")
    return Driver(_create, options=(most,))
