"""``macatensor ops --kernels``: what the device library is asked for, for those who write one."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from op_table import Row


class KernelFacts(TypedDict):
    """What ``macatensor ops --kernels --json`` says of a kernel."""

    kernel: str
    operator: str
    operands: list[str]
    scalars: list[str]
    attributes: list[str]
    results: list[str]


def kernel_facts(row: Row) -> KernelFacts:
    """What a plan of the row's kernel gets, as maca.h names it.

    Operands and results in order, ``?`` for one that may be absent and ``[]`` for lists; scalars, of which each has an
    attribute ``NAME.scalar``; attributes with their types in the aten schema.
    """
    import torch

    from macatensor.dispatch.attribute_rules import ATTRIBUTE_RULES
    from macatensor.dispatch.promotion import promoted
    from macatensor.dispatch.signature import Role, read

    operator, _, overload = row.name.partition(".")
    func = getattr(getattr(torch.ops.aten, operator), overload or "default")
    types = {a.name: str(a.type) for a in func._schema.arguments}
    signature = read(func, row.launch_scalars)
    facts: KernelFacts = {
        "kernel": row.kernel_name,
        "operator": str(func),
        "operands": [],
        "scalars": [],
        "attributes": [],
        "results": ["Tensor[]" if is_list else "Tensor" for is_list in signature.returns],
    }
    for argument in signature.arguments:
        kind = types[argument.name]
        if argument.role in (Role.TENSOR, Role.TENSORS):
            mark = ("[]" if argument.role is Role.TENSORS else "") + ("?" if "Optional" in kind else "")
            facts["operands"].append(argument.name + mark)
        elif argument.role in (Role.SCALAR, Role.SCALARS):
            facts["scalars"].append(argument.name + ("[]" if argument.role is Role.SCALARS else ""))
        elif not any(word in kind for word in ("Device", "Generator", "Layout", "MemoryFormat")):
            facts["attributes"].append(f"{argument.name}: {kind}")
    if promoted(signature, row):
        facts["attributes"].append("common_dtype: ScalarType")
    if row.attributes:
        told = ATTRIBUTE_RULES[row.attributes]()
        facts["attributes"] += [f"{name}: {type(value).__name__}" for name, value in told]
    return facts


def kernel_line(facts: KernelFacts) -> str:
    """One line of :func:`kernel_facts`."""
    parts = [f"{facts['kernel']} <- {facts['operator']}({', '.join(facts['operands'])})"]
    parts.append(f"-> {', '.join(facts['results']) or 'nothing'}")
    for what, names in (("scalars", facts["scalars"]), ("attributes", facts["attributes"])):
        if names:
            parts.append(f"{what}: {', '.join(names)}")
    return "  ".join(parts)


def other_kernels(rows: list[Row]) -> list[str]:
    """Kernels of the loaded library that no row names: the runtime asks for them itself, and does without."""
    from macatensor.runtime import ffi

    return sorted(set(ffi.kernels()) - {row.kernel_name for row in rows})
