"""Activities of the device as events of PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable

from torch._C._autograd import DeviceType

from macatensor.profiling.activities import Activity, Kind
from macatensor.runtime.boxed import Value

# What Kineto's events say of things that activities of a device do not have.
_DEFAULTS: dict[str, object] = {
    "activity_type": "",
    "concrete_inputs": [],
    "cuda_elapsed_us": -1,
    "device_index": 0,
    "dtypes": [],
    "external_id": 0,
    "extra_meta": {},
    "flops": 0,
    "flow_id": 0,
    "flow_start": False,
    "flow_type": 0,
    "fwd_thread_id": 0,
    "is_async": False,
    "is_hidden_event": False,
    "is_python_function": False,
    "is_user_annotation": False,
    "kwinputs": {},
    "metadata_json": "",
    "module_hierarchy": [],
    "nbytes": 0,
    "overload_name": "",
    "privateuse1_elapsed_us": -1,
    "python_id": -1,
    "python_module_id": -1,
    "python_parent_id": -1,
    "scope": 0,
    "sequence_nr": -1,
    "shapes": [],
    "stack": [],
    "structured_input_shapes": [],
    "structured_input_strides": [],
}


class DeviceEvent:
    """An activity that answers as ``torch._C._autograd._KinetoEvent`` does: each attribute is a function."""

    def __init__(self, activity: Activity, number: int, owner: Value):
        is_memory = activity.kind is Kind.MEMORY
        self.activity = activity
        self.number = number
        self.owner_id = owner.correlation_id() if owner is not None else 0
        thread = owner.start_thread_id() if owner is not None else 0
        self._answers: dict[str, object] = {
            "name": activity.name,
            "device_type": DeviceType.PrivateUse1,
            "start_ns": activity.given if is_memory else activity.start,
            "end_ns": activity.given if is_memory else activity.end,
            "duration_ns": 0 if is_memory else activity.end - activity.start,
            "start_thread_id": thread if is_memory else activity.stream,
            "end_thread_id": thread if is_memory else activity.stream,
            "device_resource_id": activity.stream,
            "nbytes": activity.bytes if is_memory else 0,
            "correlation_id": 0 if is_memory else number,
            "linked_correlation_id": 0 if is_memory else self.owner_id,
            "activity_type": "" if is_memory else activity.category,
        }

    def __getattr__(self, name: str) -> Callable[[], object]:
        answers = self.__dict__["_answers"]
        if name not in answers and name not in _DEFAULTS:
            raise AttributeError(name)
        answer = answers[name] if name in answers else _DEFAULTS[name]
        return lambda: answer
