"""Rewrites one source on its syntax tree; comments and formatting stay as they were."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import (
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedNameProvider,
    QualifiedNameSource,
)

from macatensor.migrate.imports import NeededImports, dotted, insert_imports, split_from, split_import
from macatensor.migrate.rules import DTYPES, FOREIGN, Change, Finding, Rules

# "cuda", "cuda:1", and the starts of "cuda:{}".format(i) and "cuda:%d" % i
_DEVICE = re.compile(r"cuda(:(\d+|%[dsi]|\{[^}]*\})?)?\Z")
_TYPE_NAME = re.compile(r"torch\.cuda\.(\w+)Tensor\Z")
_OLD_AUTOCAST = ("enabled", "dtype", "cache_enabled")  # parameters of torch.cuda.amp.autocast, in order
_AMP = ("autocast", "GradScaler", "custom_fwd", "custom_bwd")


@dataclass
class Rewritten:
    """A source after rewriting."""

    code: bytes
    changes: list[Change] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def rewrite(source: bytes, file: str, rules: Rules) -> Rewritten:
    """``source`` for maca. Raises libcst.ParserSyntaxError, or UnicodeDecodeError, where it does not parse."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    rewriter = Rewriter(file, rules, wrapper.module)
    module = wrapper.visit(rewriter)
    changes = sorted(rewriter.changes, key=lambda c: c.line)
    findings = sorted(dict.fromkeys(rewriter.findings), key=lambda f: f.line)
    # a program that asks torch.accelerator reaches maca as it is, where transfers would change layouts
    if (changes or (rewriter.asks_accelerator and not rules.nhwc)) and rewriter.imports_torch:
        package = "macatensor" if rules.nhwc else "macatensor.nchw"
        module, line = insert_imports(module, rewriter.needed, package)
        if line:
            changes.insert(0, Change(file, line, "", f"import {package}", "import"))
    return Rewritten(module.bytes if changes else source, changes, findings)


def amp_name(name: str | None) -> str | None:
    """``"autocast"`` for ``torch.cuda.amp.autocast`` and its kin; None for other names."""
    if name is None or not name.startswith("torch.cuda.amp."):
        return None
    last = name.rpartition(".")[2]
    return last if last in _AMP else None


def _is_dotted(node: cst.BaseExpression) -> bool:
    """Is it names alone? ``torch.cuda.current_stream().query``, which has the same qualified name, calls something."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def _string(value: str) -> cst.SimpleString:
    return cst.SimpleString(f'"{value}"')


def _keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    return cst.Arg(
        value,
        keyword=cst.Name(name),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )


class Rewriter(cst.CSTTransformer):
    """Applies :class:`Rules` to a module and keeps account."""

    METADATA_DEPENDENCIES = (QualifiedNameProvider, PositionProvider, ParentNodeProvider)

    def __init__(self, file: str, rules: Rules, module: cst.Module) -> None:
        super().__init__()
        self.file = file
        self.rules = rules
        self.module = module
        self.changes: list[Change] = []
        self.findings: list[Finding] = []
        self.imports_torch = False
        self.asks_accelerator = False
        self.needed = NeededImports()
        self._handled: set[cst.CSTNode] = set()  # parts of what a larger rule has rewritten

    # -- accounts

    def line(self, node: cst.CSTNode) -> int:
        """Where ``node`` of the original tree begins."""
        return self.get_metadata(PositionProvider, node).start.line

    def change(self, node: cst.CSTNode, new: cst.CSTNode | str, rule: str) -> None:
        """Notes a rewriting."""
        text = new if isinstance(new, str) else self.module.code_for_node(new)
        self.changes.append(
            Change(self.file, self.line(node), self.module.code_for_node(node).strip(), text.strip(), rule)
        )

    def find(self, node: cst.CSTNode, api: str, problem: tuple[str, str]) -> None:
        """Notes what needs a person."""
        self.findings.append(Finding(self.file, self.line(node), api, *problem))

    def name(self, node: cst.CSTNode) -> str | None:
        """The qualified name of an expression that an import brought in."""
        found = self.get_metadata(QualifiedNameProvider, node, set())
        names = sorted(
            (q.name for q in cast(Any, found) if q.source is QualifiedNameSource.IMPORT),
            key=lambda n: (len(n), n),
        )
        return names[0] if names else None

    # -- names

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        """Chains such as ``torch.cuda.synchronize``, whole; and ``x.is_cuda``."""
        attribute = original_node.attr.value
        if attribute == "is_cuda":
            new = updated_node.with_changes(attr=cst.Name("is_maca"))
            self.change(original_node, new, "is_cuda")
            return new
        parent = self.get_metadata(ParentNodeProvider, original_node)
        inner = isinstance(parent, cst.Attribute) and parent.value is original_node
        if inner or original_node in self._handled or isinstance(parent, (cst.ImportAlias, cst.ImportFrom)):
            return updated_node
        name = self.name(original_node)
        if name is None:
            return updated_node
        self.asks_accelerator = self.asks_accelerator or name.startswith("torch.accelerator.")
        # of other packages the import is listed, not each use
        problem = self.rules.problem(name) if name.startswith("torch.") else None
        if problem is not None:
            self.find(original_node, name, problem)
        renamed = self.rules.rename(name) if _is_dotted(original_node) else None
        if renamed is None or renamed[0] == name:
            return updated_node
        renewed: cst.BaseExpression = self._renamed(original_node, name, renamed[0])
        self.change(original_node, renewed, renamed[1])
        return renewed

    def _renamed(self, node: cst.Attribute, name: str, new: str) -> cst.BaseExpression:
        """``node`` under its new name, begun by the same imported name where that still leads there."""
        base: Any = node
        depth = 0
        while isinstance(base, cst.Attribute):
            base, depth = base.value, depth + 1
        root = ".".join(name.split(".")[:-depth])
        after = self.rules.rename(root)
        root = after[0] if after else root
        if isinstance(base, cst.Name) and root and new.startswith(root + "."):
            return dotted(f"{base.value}.{new[len(root) + 1 :]}")
        self.needed.add(new.rpartition(".")[0])
        return dotted(new)

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        """A class's own ``def cuda(self)`` follows its calls."""
        body = self.get_metadata(ParentNodeProvider, original_node)
        owner = self.get_metadata(ParentNodeProvider, body) if isinstance(body, cst.IndentedBlock) else None
        if original_node.name.value == "cuda" and isinstance(owner, cst.ClassDef):
            self.changes.append(
                Change(self.file, self.line(original_node), "def cuda", "def maca", "cuda method")
            )
            return updated_node.with_changes(name=cst.Name("maca"))
        return updated_node

    # -- imports

    def leave_Import(
        self, original_node: cst.Import, updated_node: cst.Import
    ) -> cst.BaseSmallStatement | cst.FlattenSentinel[cst.BaseSmallStatement]:
        """``import torch.backends.cudnn as cudnn``, ``import torch.cuda.amp``."""
        result = []
        for alias in original_node.names:
            name = get_full_name_for_node(alias.name) or ""
            self.imports_torch = self.imports_torch or name.split(".")[0] == "torch"
            self._check_import(original_node, name)
            renamed = self.rules.rename(name)
            result.append((alias, name, renamed[0] if renamed else name))
        if all(name == new for _, name, new in result):
            return updated_node
        made = split_import(result)
        for statement in made:
            self.change(original_node, statement, "import")
        return made[0] if len(made) == 1 else cst.FlattenSentinel(made)

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.BaseSmallStatement | cst.FlattenSentinel[cst.BaseSmallStatement]:
        """``from torch.cuda.amp import autocast``, ``from torch import cuda``."""
        if original_node.relative or original_node.module is None:
            return updated_node
        module = get_full_name_for_node(original_node.module) or ""
        self.imports_torch = self.imports_torch or module.split(".")[0] == "torch"
        if isinstance(original_node.names, cst.ImportStar):
            self._check_import(original_node, module)
            renamed = self.rules.rename(module)
            if renamed is None:
                return updated_node
            star = updated_node.with_changes(module=dotted(renamed[0]))
            self.change(original_node, star, "import")
            return star
        targets = []
        for alias in original_node.names:
            name = f"{module}.{alias.name.value}"
            self.asks_accelerator = self.asks_accelerator or name.startswith("torch.accelerator")
            self._check_import(original_node, name)
            renamed = self.rules.rename(name)
            targets.append((alias, name, renamed[0] if renamed else name))
        if all(name == new for _, name, new in targets):
            return updated_node
        made = split_from(updated_node, targets)
        for statement in made:
            self.change(original_node, statement, "import")
        return made[0] if len(made) == 1 else cst.FlattenSentinel(made)

    def _check_import(self, node: cst.CSTNode, name: str) -> None:
        # of switches and modules the uses are listed, not the import
        if name.startswith("torch.backends.") or name in ("torch.cuda.nvtx", "torch.nn.parallel"):
            return
        problem = self.rules.problem(name)
        if problem is not None:
            self.find(node, name, problem)

    # -- calls

    def visit_Call(self, node: cst.Call) -> None:
        """``x.type(torch.cuda.FloatTensor)`` is rewritten whole."""
        if self._tensor_type(node):
            self._handled.add(node.args[0].value)

    def _tensor_type(self, node: cst.Call) -> str | None:
        """The dtype, where the call converts to a tensor type of CUDA."""
        if not (
            isinstance(node.func, cst.Attribute) and node.func.attr.value == "type" and len(node.args) == 1
        ):
            return None
        value = node.args[0].value
        if isinstance(value, cst.Attribute):
            found = _TYPE_NAME.match(self.name(value) or "")
            return DTYPES.get(found[1]) if found else None
        return None

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Methods ``cuda``, arguments of mixed precision, tensor types, arguments of user rules."""
        new = self._call(original_node, updated_node)
        if new is None:
            return updated_node
        call, rule = new
        self.change(original_node, call, rule)
        return call

    def _call(self, node: cst.Call, updated: cst.Call) -> tuple[cst.Call, str] | None:
        name = self.name(node.func)
        func = updated.func
        dtype = self._tensor_type(node)
        if dtype is not None and isinstance(func, cst.Attribute):
            self.needed.add("torch")
            args = (cst.Arg(_string("maca")), cst.Arg(dotted(f"torch.{dtype}")))
            return updated.with_changes(func=func.with_changes(attr=cst.Name("to")), args=args), "tensor type"
        amp = amp_name(name)
        if amp is not None:
            return updated.with_changes(args=self._amp_arguments(amp, updated.args)), "mixed precision"
        arguments = self.rules.user.arguments.get(name or "")
        if arguments:
            renamed = _rename_arguments(updated.args, arguments)
            return (
                (updated.with_changes(args=renamed), "user rule") if renamed != list(updated.args) else None
            )
        if (
            isinstance(func, cst.Attribute)
            and isinstance(node.func, cst.Attribute)
            and func.attr.value == "cuda"
        ):
            if name is not None and name.split(".")[0] in FOREIGN:
                return None
            return updated.with_changes(func=func.with_changes(attr=cst.Name("maca"))), "cuda method"
        if (
            self.rules.nhwc
            and isinstance(func, cst.Attribute)
            and func.attr.value == "view"
            and _sizes(node.args)
        ):
            return updated.with_changes(func=func.with_changes(attr=cst.Name("reshape"))), "view"
        return None

    def _amp_arguments(self, kind: str, args: Sequence[cst.Arg]) -> list[cst.Arg]:
        if kind in ("custom_fwd", "custom_bwd"):
            return [*args, _keyword("device_type", _string("maca"))]
        if kind == "GradScaler":
            return [cst.Arg(_string("maca")), *args]
        result = [cst.Arg(_string("maca"))]  # the order of the other parameters differs: by name
        for position, arg in enumerate(args):
            if arg.keyword is None and not arg.star and position < len(_OLD_AUTOCAST):
                arg = _keyword(_OLD_AUTOCAST[position], arg.value).with_changes(comma=arg.comma)
            result.append(arg)
        return result

    def leave_Decorator(self, original_node: cst.Decorator, updated_node: cst.Decorator) -> cst.Decorator:
        """``@custom_fwd`` without a call."""
        kind = amp_name(self.name(original_node.decorator))
        if isinstance(original_node.decorator, cst.Call) or kind not in ("custom_fwd", "custom_bwd"):
            return updated_node
        call = cst.Call(updated_node.decorator, [_keyword("device_type", _string("maca"))])
        self.change(original_node.decorator, call, "mixed precision")
        return updated_node.with_changes(decorator=call)

    def leave_Lambda(self, original_node: cst.Lambda, updated_node: cst.Lambda) -> cst.BaseExpression:
        """``map_location=lambda storage, location: storage.cuda(0)``: storages have no method for maca."""
        call, params = original_node.body, original_node.params.params
        if not (
            len(params) == 2
            and isinstance(call, cst.Call)
            and isinstance(call.func, cst.Attribute)
            and call.func.attr.value == "cuda"
            and isinstance(call.func.value, cst.Name)
            and call.func.value.value == params[0].name.value
            and len(call.args) < 2
        ):
            return updated_node
        new: cst.BaseExpression = _string("maca")
        if call.args:
            index = self.module.code_for_node(call.args[0].value)
            new = (
                _string(f"maca:{index}")
                if index.isdecimal()
                else cst.parse_expression(f'f"maca:{{{index}}}"')
            )
        inner = self.module.code_for_node(call)  # noted as a method already
        self.changes = [c for c in self.changes if (c.line, c.old) != (self.line(call), inner)]
        self.change(original_node, new, "map_location")
        return new

    # -- strings

    def leave_SimpleString(
        self, original_node: cst.SimpleString, updated_node: cst.SimpleString
    ) -> cst.BaseExpression:
        """``"cuda"``, ``"cuda:0"`` and ``"nccl"``; never documentation or part of a longer text."""
        parent = self.get_metadata(ParentNodeProvider, original_node)
        if isinstance(parent, (cst.Expr, cst.ConcatenatedString)) or "b" in original_node.prefix:
            return updated_node
        text = original_node.raw_value
        if text == "nccl" or "cuda:nccl" in text:
            return self._nccl(original_node, updated_node)
        if _TYPE_NAME.match(text):
            self.find(original_node, text, ("maca has no tensor types", "convert with .to(device, dtype)"))
        if not _DEVICE.match(text):
            return updated_node
        quote = original_node.quote
        new = updated_node.with_changes(value=f"{original_node.prefix}{quote}maca{text[4:]}{quote}")
        self.change(original_node, new, "device string")
        return new

    def _nccl(self, node: cst.SimpleString, updated: cst.SimpleString) -> cst.SimpleString:
        new = updated.with_changes(value=node.value.replace("cuda:nccl", "maca:mccl").replace("nccl", "mccl"))
        self.change(node, new, "backend")
        return new

    def leave_FormattedString(
        self, original_node: cst.FormattedString, updated_node: cst.FormattedString
    ) -> cst.BaseExpression:
        """``f"cuda:{rank}"``."""
        parts = updated_node.parts
        first = parts[0] if parts else None
        if not isinstance(first, cst.FormattedStringText) or len(parts) > 2:
            return updated_node
        if first.value != "cuda:" and not (len(parts) == 1 and _DEVICE.match(first.value)):
            return updated_node
        new = updated_node.with_changes(
            parts=[first.with_changes(value="maca" + first.value[4:]), *parts[1:]]
        )
        self.change(original_node, new, "device string")
        return new


def _sizes(args: Sequence[cst.Arg]) -> bool:
    """Are these the sizes of a view, and no dtype? Of one argument only numbers, tuples, ``x.size()`` and ``x.shape`` are
    sure to be."""
    if len(args) != 1:
        return len(args) > 1 and all(arg.keyword is None for arg in args)
    value: cst.CSTNode = args[0].value
    if args[0].star or isinstance(value, (cst.Integer, cst.UnaryOperation, cst.Tuple, cst.List)):
        return True
    if isinstance(value, cst.Call):
        value = value.func
    return isinstance(value, cst.Attribute) and value.attr.value in ("size", "shape")


def _rename_arguments(args: Sequence[cst.Arg], renames: dict[str, str | None]) -> list[cst.Arg]:
    result = []
    for arg in args:
        name = arg.keyword.value if arg.keyword is not None else None
        if name is not None and name in renames:
            new = renames[name]
            if new is None:
                continue
            arg = arg.with_changes(keyword=cst.Name(new))
        result.append(arg)
    if result and len(result) < len(args):  # the last one dropped leaves a comma behind
        result[-1] = result[-1].with_changes(comma=args[-1].comma)
    return result


def parses(code: bytes) -> bool:
    """Is ``code`` still Python? A guard against what a rule might break."""
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True
