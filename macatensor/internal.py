"""Kernels that no aten operator names: launched by name, with operands and attributes given by hand."""

from __future__ import annotations

from typing import Any

from macatensor import counting, flags
from macatensor.ffi import OK, _gc, ffi, lib, out_of_memory
from macatensor.meta import Meta
from macatensor.plan import ABSENT, Declined, Plan, _destroy, _Request
from macatensor.tensor import MacaTensor

_plans: dict[Any, Plan] = {}
flags.caches.append(_plans)


def launch(
    kernel: str, inputs: list[MacaTensor | None], results: list[Meta | None], attributes: dict[str, Any]
) -> list[Any]:
    """Runs ``kernel`` on ``inputs`` (None: absent) and returns new tensors of ``results``' metas.

    Raises :class:`macatensor.plan.Declined` when the library has no kernel for them.
    """
    payloads = [t._payload if t is not None else ABSENT for t in inputs]
    payloads += [ABSENT for r in results if r is None]
    return plan(kernel, inputs, results, attributes).launch(payloads, [])


def plan(
    kernel: str, inputs: list[MacaTensor | None], results: list[Meta | None], attributes: dict[str, Any]
) -> Plan:
    """The plan that :func:`launch` runs."""
    key = (
        kernel,
        tuple(t._payload[2] if t is not None else None for t in inputs),
        tuple(results),
        tuple((k, type(v), v) for k, v in attributes.items()),
    )
    found = _plans.get(key)
    if found is None:
        found = _create(kernel, inputs, results, attributes)
        counting.misses += 1
        if len(_plans) >= 4096:
            _plans.clear()
        _plans[key] = found
    return found


def _create(kernel: str, inputs: list[Any], results: list[Meta | None], attributes: dict[str, Any]) -> Plan:
    request = _Request(kernel)
    for t in inputs:
        request.add([(t._payload[2] if t is not None else None, -1)], is_list=False, is_output=False)
    for meta in results:
        request.add([(meta, -1)], is_list=False, is_output=True)
    request.attributes = [(k, v) for k, v in attributes.items() if v is not None]
    roles = ffi.new("maca_role[]", max(len(request.operands), 1))
    for i, (meta, _) in enumerate(request.operands):
        roles[i].output_bytes = -1
        if meta is None:
            continue
        roles[i].item_bytes = meta.itemsize
        roles[i].extent_bytes = meta.nbytes
        roles[i].dense = int(meta.dense)
        if i >= len(inputs):
            roles[i].output_bytes = meta.nbytes
    program = ffi.new("maca_program**")
    reason = ffi.new("maca_reason*")
    reason.size = ffi.sizeof("maca_reason")
    status = lib.maca_program_create(
        request.build(), len(request.operands), roles, 0, ffi.new("maca_scalar[]", 1), program, reason
    )
    if status in (lib.MACA_DECLINED, lib.MACA_INVALID):
        raise Declined(f"{kernel}: {ffi.string(reason.text).decode(errors='replace')}")
    if status != OK:
        raise out_of_memory()
    return Plan(_gc(program[0], _destroy), results, [-1] * len(results), kernel, kernel)
