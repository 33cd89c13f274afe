"""Where a module and a parameter lie in the outermost module that runs."""

from __future__ import annotations

import weakref

import torch


class ModulePaths:
    """Paths such as ``layers.0.conv1``, read once for each outermost module."""

    def __init__(self) -> None:
        self._roots: weakref.WeakKeyDictionary[torch.nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()
        self._parameters: dict[int, str] = {}
        self._root: weakref.ref[torch.nn.Module] | None = None

    def path(self, module: torch.nn.Module, outer: list[str | None]) -> str:
        """The module's path, ``""`` for an outermost one; ``outer`` are the paths of those that run around it."""
        if not outer:
            if module not in self._roots:
                self._read(module)
            self._root = weakref.ref(module)
            return ""
        root = self._root() if self._root is not None else None
        if root is not None:
            found = self._roots[root].get(id(module))
            if found is None:
                found = self._read(root).get(id(module))
            if found is not None:
                return found
        # made within forward, or run by another thread
        return f"{outer[-1]}.<{type(module).__name__}>".removeprefix(".")

    def _read(self, root: torch.nn.Module) -> dict[int, str]:
        paths = self._roots[root] = {id(m): name for name, m in root.named_modules()}
        self._parameters.update({id(p): name for name, p in root.named_parameters()})
        return paths

    def parameter(self, leaf: torch.Tensor) -> str | None:
        """The path of a parameter of a module that ran."""
        return self._parameters.get(id(leaf))
