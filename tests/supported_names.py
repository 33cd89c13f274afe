"""The names that a script written for CUDA may use, by area: what the page of support has to answer for.

A line is ``prefix: name name ...``, or whole names. Tests say which of them they prove with
``@pytest.mark.supports(...)`` and ``@pytest.mark.refuses(..., reason=...)``, in the same notation.
"""

from __future__ import annotations

AREAS: dict[str, list[str]] = {
    "Device": [
        "torch.maca: can_device_access_peer current_blas_handle current_device device device_count device_of "
        "get_arch_list get_device_capability get_device_name get_device_properties get_gencode_flags "
        "get_sync_debug_mode init ipc_collect is_available is_bf16_supported is_initialized library_info set_device "
        "set_sync_debug_mode synchronize OutOfMemoryError"
    ],
    "Random numbers": [
        "torch.maca: get_rng_state get_rng_state_all initial_seed manual_seed manual_seed_all seed seed_all "
        "set_rng_state set_rng_state_all",
        "torch: manual_seed random.fork_rng",
    ],
    "Streams and events": [
        "torch.maca: Event Stream StreamContext _sleep current_stream default_stream set_stream stream",
        "torch.maca.Stream: priority wait_stream wait_event record_event query synchronize",
        "torch.maca.Event: record wait query synchronize elapsed_time",
        "torch.Tensor.record_stream MACA_SANITIZE MACA_TASK_QUEUE MACA_BACKWARD_THREAD",
    ],
    "Graphs": [
        "torch.maca: MacaGraph graph graph_pool_handle is_current_stream_capturing make_graphed_callables"
    ],
    "Memory": [
        "torch.maca: caching_allocator_alloc caching_allocator_delete change_current_allocator empty_cache "
        "get_allocator_backend list_gpu_processes max_memory_allocated max_memory_cached max_memory_reserved "
        "mem_get_info memory_allocated memory_cached memory_reserved memory_snapshot memory_stats memory_summary "
        "reset_max_memory_allocated reset_max_memory_cached reset_peak_memory_stats set_per_process_memory_fraction",
        "torch.maca.memory: _record_memory_history _snapshot _dump_snapshot",
        "torch.Tensor: pin_memory is_pinned",
    ],
    "Ranges, types, storages": [
        "torch.maca.nvtx: mark range_push range_pop",
        "torch.maca.jiterator",
        "torch.maca: FloatTensor DoubleTensor HalfTensor BFloat16Tensor ByteTensor CharTensor ShortTensor IntTensor "
        "LongTensor BoolTensor",
        "torch.Tensor: type data_ptr storage untyped_storage",
        "torch.UntypedStorage torch.TypedStorage",
    ],
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
    "Mixed precision": ["torch: autocast amp.GradScaler amp.custom_fwd amp.custom_bwd"],
    "Serialization and sharing": [
        "torch: save load Tensor.__array__ Tensor.__dlpack__ multiprocessing",
        "pickle copy.deepcopy safetensors state_dict",
    ],
    "CUDA scripts": [
        "macatensor.as_cuda macatensor.as_cuda.redirect macatensor.as_cuda.disable",
        "macatensor.migrate: --rules --report --similar --distributed",
    ],
    "Switches": [
        "MACA_LIBRARY MACA_VISIBLE_DEVICES MACA_DEVICE_MEMORY MACA_FALLBACK MACA_GRAIN MACA_SIMD MACA_WINOGRAD "
        "MACA_SPLIT_FLOAT32 MACA_LAUNCH_BLOCKING PYTORCH_DEFAULT_NCHW OMP_NUM_THREADS"
    ],
    "torch.nn": ["torch.nn.Module.to torch.nn.utils torch.nn.init"],
    "torch.optim": [
        "torch.optim: ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD "
        "SparseAdam"
    ],
    "The rest of PyTorch": [
        "torch: __config__ distributions export func fx hub.load_state_dict_from_url jit.script jit.trace masked "
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
