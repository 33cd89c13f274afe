"""The ``__all__`` of modules whose functions are ``torch.maca``'s: what they define, so that no list names it again."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def own_names(module: Mapping[str, object], internal: Collection[str] = ()) -> list[str]:
    """The public functions and classes that a module, by its ``globals()``, defines, but for those that are ours."""
    own = module["__name__"]
    return [
        name
        for name, held in module.items()
        if not name.startswith("_") and name not in internal and getattr(held, "__module__", None) == own
    ]
