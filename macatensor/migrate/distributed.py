"""Makes a script for one device one that several processes train, each on its own part of the data."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
from libcst.helpers import get_full_name_for_node

from macatensor.migrate.imports import NeededImports, insert_imports
from macatensor.migrate.rewrite import Rewritten
from macatensor.migrate.rules import Change, Finding

_WRAP = """\
if "RANK" in os.environ:  # started by torchrun, one process for each device
    torch.distributed.init_process_group("mccl")
    {model} = torch.nn.parallel.DistributedDataParallel({model})
"""
_PREPARES = frozenset(
    {"maca", "to", "apply", "train", "half", "bfloat16", "float", "double"}
)  # methods before the wrap
_MARK = "DistributedDataParallel"


def distribute(made: Rewritten, file: str, model: str) -> Rewritten:
    """Wraps the variable ``model`` after the last statement that makes or moves it. A file that already wraps
    something is left alone."""
    if _MARK.encode() in made.code:
        made.findings.append(
            Finding(file, 0, _MARK, "the script wraps a model already", "nothing was added by --distributed")
        )
        return made
    inserter = _Inserter(model)
    tree = cst.parse_module(made.code)
    module = tree.visit(inserter)
    if not inserter.done:
        made.findings.append(
            Finding(file, 0, model, f"nothing is assigned to {model} in {file}", "name the model with -t")
        )
        return made
    needed = NeededImports()
    for name in ("os", "torch"):
        needed.add(name)
    module, _ = insert_imports(module, needed)
    code = module.bytes
    text = _WRAP.format(model=model)
    line = next(
        i for i, t in enumerate(code.decode(module.encoding).splitlines(), 1) if '"RANK" in os.environ' in t
    )
    changes = [*made.changes, Change(file, line, "", text.strip(), "distributed")]
    findings = [
        *made.findings,
        *(Finding(file, n, "DataLoader", "every process reads all of the data",
                  "pass sampler=torch.utils.data.distributed.DistributedSampler(dataset) and drop shuffle=True")
          for n in _loaders(code.decode(module.encoding))),
    ]  # fmt: skip
    return Rewritten(code, changes, findings)


def _loaders(code: str) -> list[int]:
    return [
        i for i, t in enumerate(code.splitlines(), 1) if "DataLoader(" in t and not t.lstrip().startswith("#")
    ]


class _Inserter(cst.CSTTransformer):
    """Puts the wrap into the first block that assigns the model."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.model = model
        self.done = False

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return updated_node.with_changes(body=self._with_wrap(updated_node.body))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        return updated_node.with_changes(body=self._with_wrap(updated_node.body))

    def _with_wrap(
        self, body: Sequence[cst.BaseStatement | cst.BaseSmallStatement]
    ) -> list[cst.BaseStatement | cst.BaseSmallStatement]:
        places = [i for i, statement in enumerate(body) if self._makes(statement)]
        if self.done or not any(self._assigns(body[i]) for i in places):
            return list(body)
        self.done = True
        last = places[0]
        for place in places:  # stop where the model is used in between, by the optimizer for one
            if any(self._mentions(statement) for statement in body[last + 1 : place]):
                break
            last = place
        wrap = cst.parse_module(_WRAP.format(model=self.model)).body
        return [*body[: last + 1], *wrap, *body[last + 1 :]]

    def _makes(self, statement: cst.BaseStatement | cst.BaseSmallStatement) -> bool:
        if self._assigns(statement):
            return True
        if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], cst.Expr):
            return False
        call = statement.body[0].value
        return (
            isinstance(call, cst.Call)
            and isinstance(call.func, cst.Attribute)
            and get_full_name_for_node(call.func.value) == self.model
            and call.func.attr.value in _PREPARES
        )

    def _assigns(self, statement: cst.BaseStatement | cst.BaseSmallStatement) -> bool:
        if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(
            statement.body[0], cst.Assign
        ):
            return False
        return any(get_full_name_for_node(t.target) == self.model for t in statement.body[0].targets)

    def _mentions(self, statement: cst.CSTNode) -> bool:
        finder = _NameFinder(self.model.split(".")[0])
        statement.visit(finder)
        return finder.found


class _NameFinder(cst.CSTVisitor):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.found = False

    def visit_Name(self, node: cst.Name) -> None:
        self.found = self.found or node.value == self.name
