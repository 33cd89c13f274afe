"""What becomes what: names of CUDA, names without a counterpart, names that are near, and rules of the user's own."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from macatensor.files.untrusted import json_of


@dataclass(frozen=True)
class Change:
    """One place that was rewritten."""

    file: str
    line: int
    old: str
    new: str
    rule: str


@dataclass(frozen=True)
class Finding:
    """One place that needs a person: an API without a counterpart, or something whose meaning changes."""

    file: str
    line: int
    api: str
    why: str
    remedy: str


# JSON schema of a file of rules
SCHEMA: dict[str, object] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Rules for macatensor migrate",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "modules": {
            "description": "Dotted module -> dotted module; imports and everything below the module follow.",
            "type": "object",
            "additionalProperties": {"type": "string"},
        },
        "functions": {
            "description": "Qualified function or class -> qualified function or class.",
            "type": "object",
            "additionalProperties": {"type": "string"},
        },
        "arguments": {
            "description": "Qualified function (its old name) -> keyword argument -> new name, or null to drop it.",
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": {"type": ["string", "null"]},
            },
        },
    },
}


class RulesError(ValueError):
    """A file of rules that does not follow :data:`SCHEMA`."""


@dataclass(frozen=True)
class UserRules:
    """Renames of the user's own; :data:`SCHEMA` describes the file."""

    modules: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, dict[str, str | None]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> UserRules:
        """Reads a JSON file. Raises RulesError with the place of what is wrong."""
        try:
            data = json_of(path)
        except OSError as error:
            raise RulesError(f"{path}: {error}") from None
        except ValueError as error:  # which names the file
            raise RulesError(str(error)) from None
        return cls.from_json(data, str(path))

    @classmethod
    def from_json(cls, data: object, where: str = "rules") -> UserRules:
        """Checks and takes the parsed JSON."""
        if not isinstance(data, dict):
            raise RulesError(f"{where}: expected an object, got {type(data).__name__}")
        known = SCHEMA["properties"]
        assert isinstance(known, dict)
        unknown = sorted(set(data) - set(known))
        if unknown:
            raise RulesError(f"{where}: unknown key {unknown[0]!r}; accepted: {', '.join(known)}")
        for key, table in data.items():
            _check_names(table, f"{where}: {key}", nested=key == "arguments")
        return cls(**data)

    def rename(self, name: str) -> str | None:
        """The new name of a qualified one; None where no rule speaks of it."""
        if name in self.functions:
            return self.functions[name]
        parts = name.split(".")
        for n in range(len(parts), 0, -1):
            new = self.modules.get(".".join(parts[:n]))
            if new is not None:
                return ".".join([new, *parts[n:]])
        return None


def _check_names(table: object, where: str, nested: bool) -> None:
    if not isinstance(table, dict):
        raise RulesError(f"{where}: expected an object, got {type(table).__name__}")
    for old, new in table.items():
        if not all(part.isidentifier() for part in old.split(".")):
            raise RulesError(f"{where}: {old!r} is no dotted name")
        if nested:
            if not isinstance(new, dict):
                raise RulesError(f"{where}: {old!r} needs an object of argument names")
            for argument, renamed in new.items():
                if renamed is not None and not (isinstance(renamed, str) and renamed.isidentifier()):
                    raise RulesError(
                        f"{where}: {old}({argument}=...) needs a name or null, got {reprlib.repr(renamed)}"
                    )
        elif not (isinstance(new, str) and all(part.isidentifier() for part in new.split("."))):
            raise RulesError(f"{where}: {old!r} needs a dotted name, got {reprlib.repr(new)}")


DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip

# near, not the same: used with --similar, and then reported
SIMILAR = {
    "torch.cuda.memory_cached": ("torch.maca.memory_reserved", "the newer name of the same figure"),
    "torch.cuda.max_memory_cached": ("torch.maca.max_memory_reserved", "the newer name of the same figure"),
    "torch.cuda.reset_max_memory_allocated": ("torch.maca.reset_peak_memory_stats", "resets every peak"),
    "torch.cuda.reset_max_memory_cached": ("torch.maca.reset_peak_memory_stats", "resets every peak"),
    "torch.cuda.memory_summary": ("torch.maca.memory_stats", "gives a dict, not a text"),
    "torch.cuda.nvtx.range": ("torch.profiler.record_function", "ranges of PyTorch's own profiler"),
}

# prefix of a qualified name -> why it does not run on maca, and what to do
UNSUPPORTED = {
    "torch.cuda.nccl": ("NCCL is a library of CUDA", 'use torch.distributed with the backend "mccl"'),
    "torch.cuda.profiler": ("it starts CUDA's profiler", "use torch.profiler.profile"),
    "torch.cuda.nvtx": ("NVTX marks ranges for CUDA's profiler", "use torch.profiler.record_function"),
    "torch.cuda.jiterator": ("it compiles CUDA C++", "write the operator with PyTorch's own"),
    "torch.nn.DataParallel": ("one device is visible in a process", "drop the wrapper, or see --distributed"),
    "torch.nn.parallel.DataParallel": ("one device is visible in a process", "drop the wrapper, or see --distributed"),
    "torch.nn.parallel.data_parallel": ("one device is visible in a process", "call the module itself"),
    "torch.version.cuda": ("it is None without CUDA", "ask torch.maca.library_info()"),
    "torch.utils.cpp_extension.CUDAExtension": ("it compiles CUDA C++", "write the kernel against maca.h"),
    "torch.utils.cpp_extension.load": ("its sources may be CUDA C++", "write the kernel against maca.h"),
    "torch.utils.cpp_extension.load_inline": ("its sources may be CUDA C++", "write the kernel against maca.h"),
    "torch.backends.cudnn": ("torch.backends.maca has no such switch", "drop it: the switch has no effect on maca"),
    "torch.backends.cuda": ("torch.backends.maca has no such switch", "drop it: the switch has no effect on maca"),
    "apex": ("it is compiled for CUDA", "use torch.amp and torch.optim"),
    "bitsandbytes": ("it is compiled for CUDA", "use torch.optim"),
    "cupy": ("its arrays lie in CUDA's memory", "use torch on maca, or numpy"),
    "flash_attn": ("it is compiled for CUDA", "use torch.nn.functional.scaled_dot_product_attention"),
    "nvidia": ("it drives CUDA", "use torch.utils.data"),
    "numba.cuda": ("it compiles for CUDA", "write the operator with PyTorch's own, or against maca.h"),
    "pycuda": ("it drives CUDA", "use torch on maca"),
    "pynvml": ("it asks NVIDIA's driver", "use torch.maca.mem_get_info and get_device_properties"),
    "tensorrt": ("it runs on NVIDIA devices", "run the PyTorch model itself"),
    "triton": ("it compiles for CUDA", "write the operator with PyTorch's own, or against maca.h"),
    "xformers": ("it is compiled for CUDA", "use torch.nn.functional.scaled_dot_product_attention"),
}  # fmt: skip

FOREIGN = (
    "cupy",
    "numba",
    "pycuda",
    "jax",
    "tensorflow",
    "cuda",
)  # packages whose `.cuda` is no device of PyTorch


def unsupported(name: str) -> tuple[str, str] | None:
    """Why the qualified name does not run on maca and what to do; the longest prefix decides."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        found = UNSUPPORTED.get(".".join(parts[:n]))
        if found is not None:
            return found
    if name.startswith("torch.cuda."):
        kind = parts[2].removesuffix("Tensor")
        if kind != parts[2] and kind in DTYPES:
            return "maca has no tensor types", f'torch.tensor(..., dtype=torch.{DTYPES[kind]}, device="maca")'
        return f"torch.maca has no {'.'.join(parts[2:])}", "drop it, or choose a near API (--similar)"
    return None


def in_torch(name: str) -> bool:
    """Does the installed PyTorch with macatensor have ``name``, such as ``"torch.maca.synchronize"``?"""
    import torch

    import macatensor  # noqa: F401 - registers the device

    value: object = torch
    for part in name.split(".")[1:]:
        value = getattr(value, part, None)
        if value is None:
            return False
    return True


@dataclass
class Rules:
    """Everything that decides about a name. ``nhwc`` lets transfers change the layout, and writes ``reshape`` for
    ``view``; ``exists`` tells which names the target has."""

    user: UserRules = field(default_factory=UserRules)
    similar: bool = False
    nhwc: bool = False
    exists: Callable[[str], bool] = in_torch

    def rename(self, name: str) -> tuple[str, str] | None:
        """The new qualified name and the rule's name; None when ``name`` stays."""
        own = self.user.rename(name)
        if own is not None:
            return own, "user rule"
        if name in ("torch.Tensor.cuda", "torch.nn.Module.cuda"):
            return name.removesuffix("cuda") + "maca", "cuda method"
        if name == "torch.cuda.amp" or name.startswith("torch.cuda.amp."):
            return "torch.amp" + name.removeprefix("torch.cuda.amp"), "mixed precision"
        if name == "torch.cuda":
            return "torch.maca", "torch.cuda"
        if name.startswith("torch.cuda."):
            rest = name.removeprefix("torch.cuda.").split(".")
            if rest[0] in ("memory", "random", "streams") and len(rest) > 1:
                rest = rest[1:]
            new = "torch.maca." + ".".join(rest)
            if self.exists("torch.maca." + rest[0]):
                return new, "torch.cuda"
            if self.similar and name in SIMILAR:
                return SIMILAR[name][0], "similar"
            return None
        for old in ("torch.backends.cudnn", "torch.backends.cuda"):
            if (name == old or name.startswith(old + ".")) and self.exists("torch.backends.maca"):
                return "torch.backends.maca" + name[len(old) :], "torch.backends"
        return None

    def problem(self, name: str) -> tuple[str, str] | None:
        """Why ``name`` needs a person, and what to do; None where all is well."""
        renamed = self.rename(name)
        if renamed is None:
            return unsupported(name)
        new, rule = renamed
        if rule == "similar":
            return f"not the same: {SIMILAR[name][1]}", f"check that {new} serves"
        if rule == "torch.backends" and not self.exists(new):
            return unsupported(name)
        return None
