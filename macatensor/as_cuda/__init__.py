"""CUDA scripts on ``maca``: after ``import macatensor.as_cuda`` the names of CUDA act on the device ``maca``.

``torch.cuda.*``, ``Tensor.cuda()``, ``device="cuda"``, ``torch.device("cuda")``, ``torch.autocast("cuda")``,
``torch.amp.GradScaler("cuda")``, ``torch.backends.cudnn``, ``torch.load(map_location="cuda")`` and the rest of
:func:`redirected` are served by ``torch.maca``. :func:`disable` puts every attribute back; :func:`redirect` is a
context manager. A function without a counterpart raises NotImplementedError when it is called.

Tensors and weights keep the script's own layout, so that its ``view`` calls and strides are those of stock PyTorch;
``enable(layout="nhwc")`` gives 4-D tensors the layout of ``macatensor.maca``.

What stays visible: a tensor's device is ``maca:0`` and so is ``torch.device("cuda")``, so a script that asks
``device.type == "cuda"`` is told no. ``macatensor migrate`` rewrites such comparisons.
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Iterator

from macatensor.as_cuda import arguments, attributes, names, ranks
from macatensor.as_cuda.patches import Patches
from macatensor.packages import stand_ins
from macatensor.runtime.layout import policy

__all__ = ["disable", "enable", "is_enabled", "missing", "redirect", "redirected", "report"]

_patches = Patches()
_printed = False
_layout = contextlib.ExitStack()  # the policy of transfers while names are redirected


def enable(*, quiet: bool = False, layout: str | None = None) -> None:
    """Redirects the names of CUDA to maca, and prints a line that says so, the first time.

    ``layout``: "nchw", the default, lets a 4-D tensor keep its layout when it is transferred, as CUDA does; "nhwc" makes
    it channels_last, as without as_cuda. Calling it again changes nothing but a layout that is given. Raises ValueError
    for another layout.
    """
    global _printed
    if layout is not None or not is_enabled():
        _keep_layout(layout or "nchw")
    if is_enabled():
        return
    try:
        names.install(_patches)
        attributes.install(_patches)
        ranks.install(_patches)
        arguments.install(_patches)
        stand_ins.provide()
        for name in stand_ins.NAMES:
            _patches.on_undo(
                stand_ins.withdraw, f"import {name} -> macatensor.packages.stand_ins, where it is absent"
            )
    except BaseException:
        disable()
        raise
    if not _printed and not quiet:
        _printed = True
        count = len(redirected())
        print(
            f"macatensor.as_cuda: {count} names of CUDA act on maca; macatensor.as_cuda.report() lists them",
            file=sys.stderr,
        )


def _keep_layout(layout: str) -> None:
    chosen = policy(layout)
    chosen.__enter__()
    _layout.close()
    _layout.push(chosen)


def disable() -> None:
    """Restores every attribute that :func:`enable` replaced, to the very same object, and the layout of transfers."""
    _layout.close()
    arguments.remove()
    _patches.undo()


def is_enabled() -> bool:
    """Do the names of CUDA act on maca now?"""
    return bool(_patches)


@contextlib.contextmanager
def redirect(*, layout: str | None = None) -> Iterator[None]:
    """``with as_cuda.redirect():`` redirects inside, and leaves the state it found. ``layout`` as of :func:`enable`."""
    if is_enabled():
        with policy(layout) if layout is not None else contextlib.nullcontext():
            yield
        return
    enable(quiet=True, layout=layout)
    try:
        yield
    finally:
        disable()


def redirected() -> list[str]:
    """What is redirected now, one ``"old -> new"`` each; empty when nothing is."""
    return list(_patches.served)


def missing() -> list[str]:
    """Names of CUDA without a counterpart: calling one raises NotImplementedError."""
    return list(_patches.missing)


def report() -> str:
    """What is redirected and what has no counterpart, as a text."""

    def block(items: list[str]) -> str:
        return textwrap.fill(", ".join(items), 110, initial_indent="  ", subsequent_indent="  ",
                             break_on_hyphens=False)  # fmt: skip

    served, absent = redirected(), missing()
    same = [
        old for old, new in (line.split(" -> ", 1) for line in served) if new == old.replace("cuda", "maca")
    ]
    others = [line for line in served if line.partition(" -> ")[0] not in same]
    lines = [f"macatensor.as_cuda: {len(served)} names of CUDA act on maca.", "The same name with maca for cuda:",
             block(same), "Others:", block(others)]  # fmt: skip
    if absent:
        lines += [f"{len(absent)} have no counterpart and raise when called:", block(absent)]
    return "\n".join(lines)


enable()
