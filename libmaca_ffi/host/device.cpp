// The host library's implementation of maca.h.
#include <cblas.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <new>
#include <set>
#include <vector>

#include "kernels/matmul/bfloat16_tiles.h"
#include "collectives/collectives.h"
#include "device_memory.h"
#include "kernel.h"
#include "launch_times.h"
#include "onednn/engine.h"
#include "processor.h"
#include "stream.h"
#include "ways.h"

extern "C" __attribute__((weak)) const maca::KernelEntry __start_maca_kernels[];
extern "C" __attribute__((weak)) const maca::KernelEntry __stop_maca_kernels[];

using namespace maca;

// One thread may record it anew while another waits, which keeps what it waits for.
struct maca_event {
  std::shared_ptr<Completion> completion() const {
    std::lock_guard lock(mutex_);
    return completion_;
  }
  void record(std::shared_ptr<Completion> completion) {
    std::lock_guard lock(mutex_);
    completion_.swap(completion);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Completion> completion_;
};

// Counted: a queued launch keeps its plan after plan_destroy().
struct maca_plan {
  std::shared_ptr<Plan> plan;
};

struct maca_device {
  std::mutex errors_mutex;  // apart from the other: who waits for all streams must let their work fail
  std::deque<maca_error> errors;
  std::mutex mutex;
  std::set<maca_stream*> streams;
  AddressRanges ranges;
  LaunchTimes launch_times;
};

namespace {

void explain(maca_reason* reason, const std::string& text) {
  if (reason) std::snprintf(reason->text, sizeof reason->text, "%s", text.c_str());
}

struct Kernels {
  Isa isa = allowed_isa();
  std::map<std::string_view, const KernelEntry*> best;
  std::vector<const char*> names;
  Kernels() {
    for (const KernelEntry* e = __start_maca_kernels; e != __stop_maca_kernels; ++e) {
      if (e->isa > isa) continue;
      const KernelEntry*& slot = best[e->name];
      if (!slot || slot->isa < e->isa) slot = e;
    }
    for (const auto& [name, entry] : best) names.push_back(entry->name);
  }
};
const Kernels& kernels() {
  static const Kernels table;
  return table;
}

maca_error make_error(uint64_t correlation, int code, const std::string& text) {
  maca_error e{};
  e.status = MACA_DEVICE_ERROR;
  e.code = code;
  e.correlation = correlation;
  std::snprintf(e.text, sizeof e.text, "%s", text.c_str());
  return e;
}

maca_status run_plan(maca_device* device, const Plan& plan, const Launch& launch, uint64_t correlation) {
  maca_error error;
  LaunchTimes& times = device->launch_times;
  try {
    const int64_t start = times.is_on() ? LaunchTimes::now() : 0;
    plan.run(launch);
    if (start) times.keep(correlation, start);
    return MACA_OK;
  } catch (const LaunchError& e) {
    error = make_error(correlation, e.code, e.what());
  } catch (const std::bad_alloc&) {
    error = make_error(correlation, MACA_ERROR_INTERNAL, "the host has no memory left for a kernel's scratch");
  } catch (const std::exception& e) {
    error = make_error(correlation, MACA_ERROR_INTERNAL, e.what());
  } catch (...) {
    error = make_error(correlation, MACA_ERROR_INTERNAL, "unknown failure in a kernel");
  }
  std::lock_guard lock(device->errors_mutex);
  device->errors.push_back(error);
  return MACA_DEVICE_ERROR;
}

maca_status device_count(int32_t* count) {
  *count = 1;
  return MACA_OK;
}

maca_status device_open(int32_t index, maca_device** device, maca_reason* reason) {
  if (index != 0) {
    explain(reason, "the host library has one device, index 0");
    return MACA_INVALID;
  }
  if (const char* extension = missing_extension()) {
    explain(reason, std::string("this processor has no ") + extension + ", which oneDNN and OpenBLAS need");
    return MACA_UNSUPPORTED;
  }
  if (const Isa chosen = kernels().isa, lowest = isa_of(MACA_LOWEST_ISA); chosen < lowest) {
    explain(reason, std::string("the host library was built for ") + isa_name(lowest) + " and better, here are only " +
                        isa_name(chosen) + " (the processor's, or MACA_SIMD's); build it with MACA_ISAS=all");
    return MACA_INVALID;
  }
  onednn::limit_instruction_set();
  *device = new (std::nothrow) maca_device;
  return *device ? MACA_OK : MACA_OUT_OF_MEMORY;
}

maca_status device_close(maca_device* device) {
  delete device;
  return MACA_OK;
}

// Writes what the caller's struct has room for.
template <class Struct> void give(Struct* to, Struct full) {
  full.size = std::min<uint32_t>(to->size, sizeof full);
  std::memcpy(to, &full, full.size);
}

maca_status device_info(maca_device*, maca_device_info* info) {
  maca_device_info full{};
  full.features = MACA_DEVICE_FORKS | MACA_DEVICE_COMM_LOCAL;
  full.threads = ThreadPool::instance().threads();
  full.kernel_count = static_cast<int32_t>(kernels().names.size());
  full.alignment = kMemoryAlignment;
  std::snprintf(full.name, sizeof full.name, "MACA host CPU");
  std::snprintf(full.simd, sizeof full.simd, "%s", bfloat16_tiles::available() ? "amx" : isa_name(kernels().isa));
  std::snprintf(full.libraries, sizeof full.libraries, "%s, OpenBLAS (%s)", onednn::description().c_str(),
                scipy_openblas_get_corename());
  give(info, full);
  return MACA_OK;
}

maca_status device_synchronize(maca_device* device) {
  std::lock_guard lock(device->mutex);
  for (maca_stream* s : device->streams) s->stream.synchronize();
  return MACA_OK;
}

maca_status device_set_threads(maca_device*, int32_t threads) {
  ThreadPool::instance().set_threads(threads);
  return MACA_OK;
}

const char* kernel_name(maca_device*, int32_t index) {
  const auto& names = kernels().names;
  return index >= 0 && static_cast<size_t>(index) < names.size() ? names[static_cast<size_t>(index)] : nullptr;
}

maca_status memory_reserve(maca_device* device, uint64_t bytes, void** address, uint64_t* granularity) {
  return device->ranges.reserve(bytes, address, granularity);
}

// Work that touches a stream: at once on the default stream, queued on another.
template <class F> void on_stream(maca_stream* stream, F work) {
  if (stream)
    stream->stream.submit(std::move(work));
  else
    work();
}

void parallel_copy(void* to, const void* from, uint64_t bytes) {
  parallel_for(static_cast<int64_t>(bytes), 1 << 19, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

maca_status copy(maca_device*, int32_t kind, void* to, const void* from, uint64_t bytes, uint32_t flags,
                 maca_stream* stream) {
  void* target = kind == MACA_COPY_TO_HOST ? to : untagged(to);
  const void* source = kind == MACA_COPY_TO_DEVICE ? from : untagged(from);
  const bool waits = kind != MACA_COPY_ON_DEVICE && !(flags & MACA_COPY_QUEUED);
  if (bytes == 0) return MACA_OK;
  if (stream && waits && kind == MACA_COPY_TO_DEVICE && bytes <= 64 << 10) {  // copied twice, not waited for
    std::vector<char> staged(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    on_stream(stream, [target, staged = std::move(staged)] { std::memcpy(target, staged.data(), staged.size()); });
    return MACA_OK;
  }
  on_stream(stream, [=] { parallel_copy(target, source, bytes); });
  if (stream && waits) stream->stream.synchronize();
  return MACA_OK;
}

maca_status fill(maca_device*, void* to, int32_t byte, uint64_t bytes, maca_stream* stream) {
  void* target = untagged(to);
  if (bytes) on_stream(stream, [=] { std::memset(target, byte, bytes); });
  return MACA_OK;
}

maca_status stream_create(maca_device* device, int32_t, maca_stream** stream) try {
  *stream = new maca_stream;
  std::lock_guard lock(device->mutex);
  device->streams.insert(*stream);
  return MACA_OK;
} catch (const std::exception&) {
  return MACA_OUT_OF_MEMORY;
}

maca_status stream_destroy(maca_device* device, maca_stream* stream) {
  {
    std::lock_guard lock(device->mutex);
    device->streams.erase(stream);
  }
  delete stream;
  return MACA_OK;
}

maca_status stream_synchronize(maca_device*, maca_stream* stream) {
  if (stream) stream->stream.synchronize();
  return MACA_OK;
}

maca_status stream_query(maca_device*, maca_stream* stream) {
  return !stream || stream->stream.idle() ? MACA_OK : MACA_NOT_READY;
}

maca_status event_create(maca_device*, uint32_t, maca_event** event) {  // all are timed: it costs nothing
  *event = new (std::nothrow) maca_event;
  return *event ? MACA_OK : MACA_OUT_OF_MEMORY;
}

maca_status event_destroy(maca_device*, maca_event* event) {
  delete event;
  return MACA_OK;
}

maca_status event_record(maca_device*, maca_event* event, maca_stream* stream) {
  auto completion = std::make_shared<Completion>();
  event->record(completion);
  on_stream(stream, [completion] { completion->finish(); });
  return MACA_OK;
}

maca_status event_query(maca_device*, maca_event* event) {
  const auto completion = event->completion();
  return !completion || completion->finished() ? MACA_OK : MACA_NOT_READY;
}

maca_status event_synchronize(maca_device*, maca_event* event) {
  if (const auto completion = event->completion()) completion->wait();
  return MACA_OK;
}

maca_status event_elapsed(maca_device*, maca_event* start, maca_event* end, double* milliseconds) {
  const auto from = start->completion(), to = end->completion();
  if (!from || !to) return MACA_INVALID;
  if (!from->finished() || !to->finished()) return MACA_NOT_READY;
  *milliseconds = std::chrono::duration<double, std::milli>(to->when - from->when).count();
  return MACA_OK;
}

maca_status stream_wait_event(maca_device*, maca_stream* stream, maca_event* event) {
  if (auto completion = event->completion()) on_stream(stream, [completion] { completion->wait(); });
  return MACA_OK;
}

maca_status plan_create(maca_device*, const maca_plan_request* raw, maca_plan** plan, maca_reason* reason) try {
  const auto& best = kernels().best;
  const auto found = best.find(raw->kernel);
  if (found == best.end()) {
    explain(reason, std::string("the host library has no kernel ") + raw->kernel);
    return MACA_DECLINED;
  }
  const Request request(*raw);
  std::shared_ptr<Plan> made = found->second->factory(request);
  *plan = new maca_plan{std::move(made)};
  return MACA_OK;
} catch (const Declined& e) {
  explain(reason, e.what());
  return MACA_DECLINED;
} catch (const std::bad_alloc&) {
  return MACA_OUT_OF_MEMORY;
} catch (const std::exception& e) {
  explain(reason, e.what());
  return MACA_INVALID;
}

maca_status plan_candidates(maca_device*, const maca_plan_request* raw, const char** names, int32_t capacity,
                            int32_t* count) try {
  const std::vector<const char*> ways = ways_for(Request(*raw));
  *count = static_cast<int32_t>(std::min(ways.size(), static_cast<size_t>(capacity)));
  std::copy_n(ways.begin(), *count, names);
  return MACA_OK;
} catch (const std::bad_alloc&) {
  return MACA_OUT_OF_MEMORY;
} catch (const std::exception&) {  // no request that plan_create would take
  *count = 0;
  return MACA_OK;
}

// Dropping and retaking the caller's lock costs 1 us alone and 85 us beside a busy thread; below this much work
// (about 50 us on one core) it is not worth it: figures of one machine, which was not noted.
constexpr uint64_t kLongWork = 200'000;

maca_status plan_info(maca_device*, const maca_plan* plan, maca_plan_info* info) {
  const Plan& p = *plan->plan;
  maca_plan_info full{};
  full.cost = p.work > kLongWork ? MACA_COST_LONG : MACA_COST_SHORT;
  full.workspace_bytes = p.workspace_bytes;
  full.rng_blocks = p.rng_blocks;
  full.packed_operand = p.packed_operand;
  full.packed_bytes = p.packed_bytes;
  full.implementation = p.implementation.c_str();
  give(info, full);
  return MACA_OK;
}

maca_status plan_pack(maca_device* device, const maca_plan* plan, const void* operand, void* packed,
                      maca_stream* stream) {
  auto keep = plan->plan;
  const void* from = untagged(operand);
  void* to = untagged(packed);
  maca_status status = MACA_OK;
  const auto work = [keep, from, to] { keep->pack(from, to); };
  try {
    if (stream) stream->stream.synchronize();
    work();
  } catch (const std::exception& e) {
    std::lock_guard lock(device->errors_mutex);
    device->errors.push_back(make_error(0, MACA_ERROR_INTERNAL, e.what()));
    status = MACA_DEVICE_ERROR;
  }
  return status;
}

maca_status plan_launch(maca_device* device, const maca_plan* plan, const maca_launch* launch) {
  const uint32_t count = launch->pointer_count;
  if (!launch->stream) {
    constexpr uint32_t kInline = 32;
    void* inline_pointers[kInline];
    std::unique_ptr<void*[]> many;
    void** pointers = inline_pointers;
    if (count > kInline) {
      many.reset(new (std::nothrow) void*[count]);
      if (!many) return MACA_OUT_OF_MEMORY;
      pointers = many.get();
    }
    for (uint32_t i = 0; i < count; ++i) pointers[i] = untagged(launch->pointers[i]);
    const Launch here{pointers,         launch->scalars,   untagged(launch->workspace), untagged(launch->packed),
                      launch->rng_seed, launch->rng_offset};
    return run_plan(device, *plan->plan, here, launch->correlation);
  }
  // The caller's arrays end with this call, so the queued launch owns copies.
  struct Queued {
    std::shared_ptr<Plan> plan;
    std::vector<void*> pointers;
    std::vector<maca_scalar> scalars;
    Launch launch;
  };
  auto queued = std::make_shared<Queued>();
  queued->plan = plan->plan;
  for (uint32_t i = 0; i < count; ++i) queued->pointers.push_back(untagged(launch->pointers[i]));
  queued->scalars.assign(launch->scalars, launch->scalars + launch->scalar_count);
  queued->launch = {queued->pointers.data(),  queued->scalars.data(), untagged(launch->workspace),
                    untagged(launch->packed), launch->rng_seed,       launch->rng_offset};
  const uint64_t correlation = launch->correlation;
  launch->stream->stream.submit(
      [device, queued, correlation] { run_plan(device, *queued->plan, queued->launch, correlation); });
  return MACA_OK;
}

maca_status profile_set(maca_device* device, int32_t on) {
  device->launch_times.set(on != 0);
  return MACA_OK;
}

maca_status profile_take(maca_device* device, maca_profile_record* records, int32_t capacity, int32_t* count) {
  *count = device->launch_times.take(records, capacity);
  return MACA_OK;
}

maca_status plan_destroy(maca_device*, maca_plan* plan) {
  delete plan;
  return MACA_OK;
}

maca_status error_take(maca_device* device, maca_error* error) {
  maca_error taken{};
  {
    std::lock_guard lock(device->errors_mutex);
    if (!device->errors.empty()) {
      taken = device->errors.front();
      device->errors.pop_front();
    }
  }
  give(error, taken);
  return MACA_OK;
}

const maca_interface kInterface = {
    .size = sizeof(maca_interface),
    .major = MACA_ABI_MAJOR,
    .minor = MACA_ABI_MINOR,
    .library = "MacaTensor host library",
    .device_count = device_count,
    .device_open = device_open,
    .device_close = device_close,
    .device_info = device_info,
    .device_synchronize = device_synchronize,
    .device_set_threads = device_set_threads,
    .kernel_name = kernel_name,
    .memory_allocate = memory_allocate,
    .memory_free = memory_free,
    .memory_info = memory_info,
    .memory_reserve = memory_reserve,
    .memory_commit = memory_commit,
    .memory_decommit = memory_decommit,
    .host_allocate = host_allocate,
    .host_free = host_free,
    .copy = copy,
    .fill = fill,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_synchronize = stream_synchronize,
    .stream_query = stream_query,
    .stream_wait_event = stream_wait_event,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed,
    .plan_create = plan_create,
    .plan_info = plan_info,
    .plan_pack = plan_pack,
    .plan_launch = plan_launch,
    .plan_destroy = plan_destroy,
    .error_take = error_take,
    .comm_id = comm_id,
    .comm_create = comm_create,
    .comm_destroy = comm_destroy,
    .comm_abort = comm_abort,
    .comm_error = comm_error,
    .comm_all_reduce = comm_all_reduce,
    .comm_reduce = comm_reduce,
    .comm_broadcast = comm_broadcast,
    .comm_all_gather = comm_all_gather,
    .comm_reduce_scatter = comm_reduce_scatter,
    .comm_all_to_all = comm_all_to_all,
    .comm_allocate = comm_allocate,
    .comm_free = comm_free,
    .profile_set = profile_set,
    .profile_take = profile_take,
    .plan_candidates = plan_candidates,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const maca_interface* maca_get_interface(int32_t major) {
  return major == MACA_ABI_MAJOR ? &kInterface : nullptr;
}

namespace maca {
// For summary_of_host_memory.cpp, which has no device.
std::unique_ptr<Plan> plan_of_kernel(const maca_plan_request& request) {
  return kernels().best.at(request.kernel)->factory(Request(request));
}
}  // namespace maca
