"""The names that a script written for CUDA may use, by area: what the page of support has to answer for.

A line is ``prefix: name name ...``, or whole names. Functions and classes of ``torch.maca`` are those that its modules
define. Tests say which of them they prove with
``@pytest.mark.supports(...)`` and ``@pytest.mark.refuses(..., reason=...)``, in the same notation.
"""

from __future__ import annotations

from macatensor import device
from macatensor.device import tensor_types


def served(*modules: str) -> str:
    """The line of the functions and classes of ``torch.maca`` that these modules define."""
    places = {f"macatensor.{module}" for module in modules}
    names = [n for n in device.__all__ if getattr(getattr(device, n), "__module__", None) in places]
    return f"torch.maca: {' '.join(names)}"


AREAS: dict[str, list[str]] = {
    "Device": [
        served("device", "device.properties", "device.sensors", "runtime.sync_debug"),
        "torch.maca: OutOfMemoryError",
        f"torch.maca.nccl: {' '.join(device.nccl.__all__)}",
    ],
    "Random numbers": [served("runtime.random", "device.generators"), "torch: manual_seed random.fork_rng"],
    "Streams and events": [
        served("runtime.streams"),
        "torch.maca: _sleep",
        "torch.maca.Stream: priority wait_stream wait_event record_event query synchronize",
        "torch.maca.Event: record wait query synchronize elapsed_time",
        "torch.Tensor.record_stream MACA_SANITIZE MACA_TASK_QUEUE MACA_BACKWARD_THREAD",
    ],
    "Graphs": [served("device.graphs", "device.graphed_callables")],
    "Memory": [
        served("device.memory", "device.memory_history"),
        "torch.maca.memory: _record_memory_history _snapshot _dump_snapshot",
        "torch.Tensor: pin_memory is_pinned",
        "MACA_MEMORY_FENCE",
    ],
    "Ranges, types, storages": [
        "torch.maca.nvtx: mark range_push range_pop",
        "torch.maca.jiterator",
        f"torch.maca: {' '.join(tensor_types.__all__)}",
        "torch.Tensor: type data_ptr storage untyped_storage",
        "torch.UntypedStorage torch.TypedStorage",
    ],
    "Profiling": [served("device.profiler"), "torch.maca.profiler: start stop profile"],
    "torch.accelerator": [
        "torch.accelerator: current_accelerator current_device_index current_stream device_count device_index "
        "empty_cache empty_host_cache get_device_capability get_memory_info is_available max_memory_allocated max_memory_reserved "
        "memory_allocated memory_reserved memory_stats reset_accumulated_memory_stats reset_peak_memory_stats "
        "set_device_index set_stream synchronize Graph"
    ],
    "Backend flags": [
        "torch.backends.maca: matmul.allow_tf32 matmul.allow_fp16_reduced_precision_reduction "
        "matmul.allow_bf16_reduced_precision_reduction conv.allow_tf32 deterministic benchmark benchmark_limit enabled "
        "version task_queue.mode library_info fft_plan_cache enable_flash_sdp enable_math_sdp enable_mem_efficient_sdp",
        "torch.backends.opt_einsum torch.use_deterministic_algorithms torch.set_float32_matmul_precision",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE PYTORCH_ALLOW_CUDA_CUDNN_TF32",
    ],
    "Tuning": [
        f"torch.maca.tunable: {' '.join(n for n in device.tunable.__all__ if n != 'set_aoe')}",
        "torch.maca.set_aoe TUNE_BANK_PATH",
    ],
    "Dumps, logs, options": [
        served("device.dumps", "device.options", "device.formats", "device.op_info"),
        "MACA_OP_INFO MACA_LOG_LEVEL",
    ],
    "Mixed precision": [
        "torch: autocast amp.GradScaler amp.custom_fwd amp.custom_bwd",
        f"torch.maca.amp: {' '.join(device.amp.__all__)}",
    ],
    "Serialization and sharing": [
        "torch: save load Tensor.__array__ Tensor.__dlpack__ multiprocessing",
        "pickle copy.deepcopy safetensors state_dict",
    ],
    "CUDA scripts": [
        "macatensor.as_cuda macatensor.as_cuda.redirect macatensor.as_cuda.report macatensor.as_cuda.disable",
        "macatensor.migrate: --rules --report --similar --distributed",
    ],
    "Switches": [
        "MACA_LIBRARY MACA_VISIBLE_DEVICES MACA_DEVICE_MEMORY MACA_FALLBACK MACA_GRAIN MACA_COLLECTIVES MACA_SIMD MACA_WINOGRAD "
        "MACA_SPLIT_FLOAT32 MACA_VENDOR_LIBRARIES MACA_PRODUCT_PROPOSALS MACA_VENDOR_FOLDER MACA_LAUNCH_BLOCKING PYTORCH_DEFAULT_NCHW "
        "TORCH_MCCL_TRACE_BUFFER_SIZE TORCH_MCCL_DEBUG_INFO_TEMP_FILE OMP_NUM_THREADS"
    ],
    "torch.nn": ["torch.nn.Module.to torch.nn.utils torch.nn.init"],
    "torch.optim": [
        "torch.optim: ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD "
        "SparseAdam"
    ],
    "torch.distributed": [
        "torch.distributed: all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_gather_single all_reduce "
        "all_reduce_coalesced all_to_all all_to_all_single barrier batch_isend_irecv broadcast broadcast_object_list "
        "destroy_process_group gather gather_object get_backend get_rank get_world_size init_device_mesh init_process_group irecv "
        "isend monitored_barrier new_group new_subgroups new_subgroups_by_enumeration recv recv_object_list reduce reduce_scatter "
        "reduce_scatter_single reduce_scatter_tensor scatter scatter_object_list send send_object_list",
        "torch.distributed.ReduceOp: SUM AVG PRODUCT MIN MAX BAND BOR BXOR PREMUL_SUM",
        "torch.distributed: run checkpoint.save checkpoint.load checkpoint.async_save fsdp.fully_shard "
        "fsdp.FullyShardedDataParallel tensor.DTensor tensor.parallel.parallelize_module tensor.parallel.loss_parallel tensor.debug.CommDebugMode "
        "pipelining.PipelineStage pipelining.pipeline optim.ZeroRedundancyOptimizer split_group algorithms.Join "
        "rpc.rpc_sync rpc.rpc_async rpc.remote tensor.parallel.SequenceParallel _functional_collectives "
        "checkpoint.state_dict",
        "torch.utils.data.DistributedSampler",
        "torch.nn: parallel.DistributedDataParallel SyncBatchNorm",
        "torch.nn.parallel: replicate scatter gather parallel_apply DataParallel data_parallel",
        "torch.maca.comm: broadcast broadcast_coalesced reduce_add reduce_add_coalesced scatter gather",
    ],
    "The rest of PyTorch": [
        "torch: __config__ compile distributions export func fx hub.load_state_dict_from_url jit.script jit.trace masked "
        "onnx.export package",
        "torch.utils: benchmark.Timer bottleneck checkpoint data model_zoo tensorboard.SummaryWriter",
    ],
}


def expand(lines: list[str]) -> list[str]:
    """Whole names, in order."""
    names = []
    for line in lines:
        prefix, colon, rest = line.partition(": ")
        names += [f"{prefix}.{n}" for n in rest.split()] if colon else line.split()
    return names
