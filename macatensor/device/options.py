"""``torch.maca.set_option``: torch_npu's way to set what has a switch elsewhere, by one name each."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

import torch

from macatensor.choices import deciding

__all__ = ["get_option", "set_option"]

_Value = bool | str


def _backend() -> object:
    return torch.backends.maca  # type: ignore[attr-defined]


def _truth(value: object) -> bool:
    """``True``, ``"enable"``, ``"on"``, ``"1"`` and their opposites. Raises ValueError for others."""
    accepted = {"enable": True, "on": True, "1": True, "true": True,
                "disable": False, "off": False, "0": False, "false": False}  # fmt: skip
    if isinstance(value, bool):
        return value
    if str(value).lower() not in accepted:
        raise ValueError(f"got {value!r}; accepted: True, False, 'enable', 'disable'")
    return accepted[str(value).lower()]


def _flag(place: str) -> tuple[Callable[[], _Value], Callable[[object], None]]:
    """An attribute of ``torch.backends.maca``."""
    *path, last = place.split(".")

    def owner() -> object:
        held = _backend()
        for name in path:
            held = getattr(held, name)
        return held

    return lambda: bool(getattr(owner(), last)), lambda value: setattr(owner(), last, _truth(value))


def _precision() -> str:
    mode = _backend()
    allowed = mode.matmul.allow_tf32 or mode.conv.allow_tf32  # type: ignore[attr-defined]
    return "allow_fp32_to_tf32" if allowed else "must_keep_origin_dtype"


def _set_precision(value: object) -> None:
    accepted = {"allow_fp32_to_tf32": True, "allow_mix_precision": True, "must_keep_origin_dtype": False}
    if value not in accepted:
        raise ValueError(f"got {value!r}{_nearest(str(value), accepted)}")
    for kind in (_backend().matmul, _backend().conv):  # type: ignore[attr-defined]
        kind.allow_tf32 = accepted[str(value)]


def _choice() -> str:
    return "measure" if deciding.measures() else "bank" if deciding.uses() else "library"


def _set_choice(value: object) -> None:
    if value not in ("library", "bank", "measure"):
        raise ValueError(f"got {value!r}; accepted: 'library', 'bank', 'measure'")
    settings = deciding.settings()
    settings.enabled, settings.tuning = value != "library", value == "measure"


def _stores() -> bool:
    from torch._functorch import config

    return bool(config.enable_autograd_cache)


def _set_stores(value: object) -> None:
    from torch._functorch import config

    config.enable_autograd_cache = _truth(value)


_OPTIONS: dict[str, tuple[Callable[[], _Value], Callable[[object], None]]] = {
    "precision_mode": (_precision, _set_precision),
    "allow_matmul_tf32": _flag("matmul.allow_tf32"),
    "allow_conv_tf32": _flag("conv.allow_tf32"),
    "deterministic": _flag("deterministic"),
    "implementation": (_choice, _set_choice),
    "compile_cache": (_stores, _set_stores),
}
_ASCEND = {
    "ACL_PRECISION_MODE": "precision_mode",
    "ALLOW_MATMUL_HF32": "allow_matmul_tf32",
    "ALLOW_CONV_HF32": "allow_conv_tf32",
    "ACL_OP_DETERMINISTIC": "deterministic",
    "ACL_OP_COMPILER_CACHE_MODE": "compile_cache",
}  # torch_npu's names for the same


def _nearest(given: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(given, list(known), 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; accepted: {', '.join(known)}"


def _find(name: object) -> tuple[Callable[[], _Value], Callable[[object], None]]:
    known = {**_OPTIONS, **{other: _OPTIONS[ours] for other, ours in _ASCEND.items()}}
    if name not in known:
        raise ValueError(f"torch.maca has no option {name!r}{_nearest(str(name), known)}")
    return known[str(name)]


def set_option(option: Mapping[str, object]) -> None:
    """Sets options by name: ``precision_mode`` (``must_keep_origin_dtype``, ``allow_fp32_to_tf32``), ``allow_matmul_tf32``,
    ``allow_conv_tf32``, ``deterministic``, ``implementation`` (who chooses products and convolutions: ``library``,
    ``bank``, ``measure``) and ``compile_cache``; torch_npu's names for them, as ``ALLOW_MATMUL_HF32``, too.

    All names are known before one is set. Raises ValueError for another name or value, with the nearest one.
    """
    found = {name: _find(name) for name in option}
    for name, (_, put) in found.items():
        try:
            put(option[name])
        except ValueError as error:
            raise ValueError(f"the option {name}: {error}") from None


def get_option(name: str) -> bool | str:
    """What :func:`set_option` set, or what holds without. Raises ValueError for another name."""
    return _find(name)[0]()
