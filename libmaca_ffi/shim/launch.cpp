// Programs (a library's plan plus what the runtime does around it) and their launches.
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "capture.h"
#include "program.h"
#include "runtime.h"
#include "shim.h"
#include "unlocked.h"

using namespace maca_shim;

namespace {

constexpr int kInlineOperands = 16;
constexpr size_t kPackedPerBuffer = 4;

// A ring, since errors come soon: of launches that run at once none is asked for.
struct Launched {
  std::atomic<uint64_t> correlation{0};  // replays launch without the interpreter's lock
  std::atomic<const char*> kernel{nullptr};
};
constexpr size_t kRemembered = 8192;
Launched g_launched[kRemembered];

// The names of kernels are few, and errors may be read when the plan is gone.
const char* kept_name(const char* name) {
  static auto* const names = new std::set<std::string>;
  return names->insert(name).first->c_str();
}

struct Release {
  void operator()(Block* block) const { release_block(block); }
};
using Scratch = std::unique_ptr<Block, Release>;  // memory for one launch

// Bytes from an operand's first element to past the last; -1 where they cannot be counted or lie before the first.
int64_t extent_of(const maca_operand& operand) {
  const auto is_negative = [](int64_t n) { return n < 0; };
  if (std::any_of(operand.sizes, operand.sizes + operand.rank, is_negative) ||
      std::any_of(operand.strides, operand.strides + operand.rank, is_negative))
    return -1;
  if (std::count(operand.sizes, operand.sizes + operand.rank, 0)) return 0;
  int64_t elements = 1, reach = 0, bytes = 0;
  for (int32_t d = 0; d < operand.rank; ++d)
    if (__builtin_mul_overflow(operand.sizes[d] - 1, operand.strides[d], &reach) ||
        __builtin_add_overflow(elements, reach, &elements))
      return -1;
  return __builtin_mul_overflow(elements, int64_t{operand.dtype.bits / 8}, &bytes) ? -1 : bytes;
}

// Does the runtime check, and allocate, what the kernel of this request will touch?
bool covers(const maca_plan_request& request, int32_t operand_count, const maca_role* roles) {
  int32_t at = 0;
  for (int32_t a = 0; a < request.argument_count; ++a) {
    const maca_argument& argument = request.arguments[a];
    for (int32_t i = 0; i < argument.count; ++i, ++at) {
      if (at >= operand_count) return false;
      const maca_operand& operand = argument.operands[i];
      const maca_role& role = roles[at];
      if (operand.rank < 0 || operand.scalar_slot >= 0) continue;
      const int64_t extent = extent_of(operand);
      if (extent < 0 || role.extent_bytes < extent || role.item_bytes != operand.dtype.bits / 8) return false;
      if (role.output_bytes >= 0 && role.output_bytes < extent) return false;
    }
  }
  return at == operand_count;
}

// Where an operand begins, in bytes from the start of its buffer; -1 where it would leave it, whatever a wrapper's
// metadata claims. An empty one, which no kernel touches, may lie anywhere.
int64_t start_of(const maca_role& role, const maca_reference& reference) {
  if (role.extent_bytes == 0) return 0;
  int64_t start = 0;
  if (__builtin_mul_overflow(reference.offset, int64_t{role.item_bytes}, &start)) return -1;
  const int64_t held = reference.buffer->bytes;
  const bool is_inside =
      start >= 0 && role.extent_bytes > 0 && role.extent_bytes <= held && start <= held - role.extent_bytes;
  return is_inside ? start : -1;
}

// Touches of two operands overlap in part: neither apart nor the very same elements. Tensors at different places of
// lists must be apart, as far as ranges tell: which of them a kernel computes first is not said.
bool partial_overlap(const maca_program& p, const maca_reference* references, const char* const* pointers, int written,
                     int other) {
  const maca_role &w = p.roles[written], &o = p.roles[other];
  if (references[written].buffer != references[other].buffer) return false;
  if (w.extent_bytes == 0 || o.extent_bytes == 0) return false;
  const char *wb = pointers[written], *ob = pointers[other];
  if (wb + w.extent_bytes <= ob || ob + o.extent_bytes <= wb) return false;
  if (w.place && w.place != o.place) return true;
  return w.dense && o.dense && !(wb == ob && w.layout == o.layout);
}

// Fills in the pointers of operands, and the references of results, for which memory is taken.
int take_operands(const maca_program& p, maca_reference* references, char** pointers, StreamSlot* stream) {
  for (int i = 0; i < p.operands; ++i) {
    const maca_role& role = p.roles[i];
    if (role.output_bytes >= 0) {
      references[i] = {make_buffer(role.output_bytes, stream), 0};
      if (!references[i].buffer) return allocation_status();
    }
    maca_buffer* buffer = references[i].buffer;
    if (!buffer) {
      pointers[i] = nullptr;
      continue;
    }
    const int64_t start = start_of(role, references[i]);
    if (start < 0)
      return misuse(
          "an operand reaches outside its memory; its sizes, strides and storage offset need more than the "
          "buffer holds");
    if (buffer->is_lazy && (role.written || capturing()))
      if (const int status = own_block(buffer, stream)) return status;
    order_block(buffer->block, stream);
    pointers[i] = buffer->block->address + start;
  }
  return MACA_OK;
}

bool some_overlap_in_part(const maca_program& p, const maca_reference* references, char* const* pointers) {
  for (int i = 0; i < p.operands; ++i) {
    if (!p.roles[i].written) continue;
    for (int j = 0; j < p.operands; ++j)
      if (j != i && references[j].buffer && p.roles[j].output_bytes < 0 &&
          partial_overlap(p, references, pointers, i, j))
        return true;
  }
  return false;
}

// Does it run at once, by this thread, where what its stream has before it may not be over?
bool waits_first(const maca_program& p, const maca_launch& call) {
  return p.runs_at_once() && (call.stream || runtime().library.is_asynchronous());
}

// Hands the launch to the library, or to the task queue before it.
int submit(const maca_program& p, const maca_reference* references, maca_launch& call, StreamSlot* stream) {
  Runtime& r = runtime();
  int status = MACA_OK;
  const int weight = p.info.packed_operand;
  if (weight >= 0 && p.info.packed_bytes && references[weight].buffer)
    status = pack_weight(p, references[weight], call.pointers[weight], stream, &call.packed);
  call.rng_offset = p.info.rng_blocks ? r.rng_offset.fetch_add(p.info.rng_blocks) : 0;
  const bool may_start =
      p.may_queue() && !(r.queue.mode() == TaskQueue::kLong && !r.profile.is_on() && r.queue.is_profiled());
  call.stream = launch_stream(stream, may_start);
  r.launches.fetch_add(1, std::memory_order_relaxed);
  if (status == MACA_OK) {
    // What a stream is given, it is given with the lock: another thread's order_block() then finds it there.
    const bool runs_here = !call.stream && !r.library.is_asynchronous();
    const Unlocked unlocked((p.is_long && runs_here) || waits_first(p, call));
    status = give_launch(p, call);
  }
  status = wait_if_blocking(stream, status);
  for (int i = 0; i < p.operands; ++i)
    if (p.roles[i].written && references[i].buffer) ++references[i].buffer->block->writes;
  return status;
}

// `references` has an entry for every operand; those of allocated results are filled in here.
int launch(maca_program& p, maca_reference* references, char** pointers, const maca_scalar* scalars, size_t count) {
  runtime().queue.throttle(1);
  StreamSlot* const stream = current_stream();
  Scratch workspace;
  int status = take_operands(p, references, pointers, stream);
  if (status == MACA_OK && p.checks_overlap && some_overlap_in_part(p, references, pointers)) status = kPartialOverlap;
  if (status == MACA_OK && p.info.workspace_bytes) {
    workspace.reset(allocate_block(static_cast<int64_t>(p.info.workspace_bytes)));
    if (!workspace) status = allocation_status();
  }
  if (workspace) order_block(workspace.get(), stream);
  maca_launch call{};
  call.pointer_count = static_cast<uint32_t>(p.operands);
  call.pointers = reinterpret_cast<void* const*>(pointers);
  call.scalars = scalars;
  call.scalar_count = static_cast<uint32_t>(count);
  call.workspace = workspace ? workspace->address : nullptr;
  if (Capture* const capture = status == MACA_OK ? capturing() : nullptr)
    capture->launch(p, references, call);
  else if (status == MACA_OK)
    status = submit(p, references, call, stream);
  for (int i = 0; status != MACA_OK && i < p.operands; ++i)
    if (p.allocates(i) && references[i].buffer) maca_buffer_release(references[i].buffer);
  return status;
}

}  // namespace

namespace maca_shim {

int give_launch(const maca_program& program, maca_launch& call) {
  static std::atomic<uint64_t> last{0};
  Runtime& r = runtime();
  call.size = sizeof call;
  call.rng_seed = r.rng_seed.load(std::memory_order_relaxed);
  call.correlation = ++last;
  if (program.extension) {
    ++program.extension->launches;
    if (waits_first(program, call))
      if (const int status = r.library.stream_synchronize(std::exchange(call.stream, nullptr))) return status;
  }
  const bool runs_on = call.stream || (r.library.is_asynchronous() && !program.runs_at_once());
  if (runs_on) {  // its error may come later
    Launched& l = g_launched[call.correlation % kRemembered];
    l.kernel = program.kernel;
    l.correlation = call.correlation;
  }
  if (!r.profile.is_on()) return program.library->plan_launch(program.plan, &call);
  int64_t bytes = 0;
  for (const maca_role& role : program.roles) bytes += role.scalar ? 0 : std::max(role.output_bytes, role.extent_bytes);
  const int64_t given = Profile::now();
  const int status = program.library->plan_launch(program.plan, &call);
  r.profile.launch(program.kernel, program.info.implementation, bytes, call, runs_on, given);
  return status;
}

int pack_weight(const maca_program& p, const maca_reference& weight, const void* address, StreamSlot* stream,
                const void** packed) {
  *packed = nullptr;
  auto& entries = weight.buffer->packed;
  const auto find = [&] {
    return std::find_if(entries.begin(), entries.end(),
                        [&](const Packed& e) { return e.program == p.id && e.offset == weight.offset; });
  };
  auto found = find();
  // packing runs at once, so what is queued goes first; meanwhile other threads may change the entries
  if (found != entries.end() && !found->valid && found->writes == weight.buffer->writes() && stream->is_default &&
      runtime().queue.pending()) {
    maca_task_queue_wait();
    found = find();
  }
  if (found == entries.end()) {
    if (entries.size() >= kPackedPerBuffer) {
      if (entries.front().block) runtime().allocator.release(entries.front().block);
      entries.erase(entries.begin());
    }
    entries.push_back({p.id, weight.offset, weight.buffer->writes(), nullptr, false});
    return MACA_OK;
  }
  Packed& e = *found;
  if (e.writes != weight.buffer->writes()) {
    e.writes = weight.buffer->writes();
    e.valid = false;
    return MACA_OK;
  }
  if (!e.block) e.block = runtime().allocator.allocate(static_cast<int64_t>(p.info.packed_bytes), t_site);
  if (!e.block) return MACA_OK;
  order_block(e.block, stream);
  if (!e.valid) {
    ++runtime().packs;
    const int status = runtime().library.plan_pack(p.plan, address, e.block->address, stream->handle);
    if (status != MACA_OK) return may_go_unpacked(status) ? MACA_OK : status;
    e.valid = true;
  }
  *packed = e.block->address;
  return MACA_OK;
}

int wait_if_blocking(const StreamSlot* stream, int status) {
  const Runtime& r = runtime();
  const bool waits = status == MACA_OK && r.blocking && (stream->handle || r.library.is_asynchronous());
  return waits ? r.library.stream_synchronize(stream->handle) : status;
}

bool may_go_unpacked(int status) {
  return status == MACA_OUT_OF_MEMORY || status == MACA_UNSUPPORTED || status == MACA_DECLINED;
}

int launch_program(maca_program& program, maca_reference* references, const maca_scalar* scalars, size_t scalar_count) {
  if (program.operands <= kInlineOperands) {
    char* pointers[kInlineOperands];
    return launch(program, references, pointers, scalars, scalar_count);
  }
  std::vector<char*> pointers(static_cast<size_t>(program.operands));
  return launch(program, references, pointers.data(), scalars, scalar_count);
}

}  // namespace maca_shim

extern "C" {

int maca_program_create(const maca_plan_request* request, int32_t operand_count, const maca_role* roles,
                        int32_t default_count, const maca_scalar* defaults, maca_program** program,
                        maca_reason* reason) {
  if (!covers(*request, operand_count, roles))
    return misuse("an operand's sizes and strides reach outside of any memory");
  maca_plan* plan = nullptr;
  Extension* extension = nullptr;
  int status = plan_of_extension(request, &plan, reason, &extension);
  if (status == MACA_DECLINED) {
    const std::string others = reason->text;
    *reason = {sizeof *reason, ""};
    status = runtime().library.plan_create(request, &plan, reason);
    const std::string own = reason->text;
    if (status == MACA_DECLINED && !others.empty())
      std::snprintf(reason->text, sizeof reason->text, "%s; the device library: %s", others.c_str(), own.c_str());
  }
  if (status != MACA_OK) return status;
  const Library& library = extension ? extension->library : runtime().library;
  static std::atomic<uint64_t> next{1};
  auto p = std::make_unique<maca_program>();
  p->plan = plan;
  p->library = &library;
  p->extension = extension;
  p->kernel = kept_name(request->kernel);
  p->id = next++;
  p->operands = operand_count;
  p->roles.assign(roles, roles + operand_count);
  p->checks_overlap = std::any_of(roles, roles + operand_count, [](const maca_role& role) { return role.written; });
  p->defaults.assign(defaults, defaults + default_count);
  if ((status = library.plan_info(plan, operand_count, &p->info)) != MACA_OK) {
    const maca_failure why = failure();
    report(library.plan_destroy(plan));
    restore_failure(why);
    return status;
  }
  if (extension || !library.has_packing()) p->info.packed_operand = -1;
  if (extension) {  // wherever it says which algorithm ran, whose it is
    const char* const way = p->info.implementation;
    p->info.implementation = kept_name((library.extension() + std::string(way ? ": " : "") + (way ? way : "")).c_str());
  }
  p->is_long = p->info.cost == MACA_COST_LONG;
  *program = p.release();
  return MACA_OK;
}

void maca_program_destroy(maca_program* program) {
  if (!program || --program->uses) return;
  report(program->library->plan_destroy(program->plan));
  delete program;
}

int maca_program_candidates(const maca_plan_request* request, const char** names, int32_t capacity, int32_t* count) {
  return runtime().library.plan_candidates(request, names, capacity, count);
}

uint64_t maca_program_number(const maca_program* program) { return program->id; }
int32_t maca_program_extension(const maca_program* program) {
  return program->extension ? program->extension->number : 0;
}

const char* maca_runtime_kernel_of(uint64_t correlation) {
  const Launched& l = g_launched[correlation % kRemembered];
  return l.correlation == correlation ? l.kernel.load() : nullptr;
}

}  // extern "C"
