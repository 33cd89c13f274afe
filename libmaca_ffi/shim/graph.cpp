#define Py_LIMITED_API 0x030a0000
#include "graph.h"

#include <Python.h>

#include <algorithm>

#include "unlocked.h"

namespace maca_shim {
namespace {

Graph* g_capturing = nullptr;  // guarded by the interpreter's lock, as all launches are

// Launches of short plans that a replay may make before it lets other Python threads run.
constexpr int64_t kLongReplay = 64;

void release_pool(GraphPool* pool) {
  if (--pool->uses) return;
  for (Block* block : pool->blocks) block->owner = nullptr;  // those in use go to the allocator one by one
  for (Block* block : pool->idle) runtime().allocator.release(block);
  delete pool;
}

}  // namespace

thread_local Capture* t_tape = nullptr;
Capture* capturing() { return t_tape ? t_tape : g_capturing; }

// The smallest idle block that is large enough, unless half of it or more would lie idle.
Block* GraphPool::take(int64_t bytes) {
  auto best = idle.end();
  for (auto i = idle.begin(); i != idle.end(); ++i)
    if ((*i)->bytes >= bytes && (*i)->bytes <= 2 * bytes + 512 && (best == idle.end() || (*i)->bytes < (*best)->bytes))
      best = i;
  if (best == idle.end()) return nullptr;
  Block* block = *best;
  idle.erase(best);
  return block;
}

Block* allocate_block(int64_t bytes) {
  Capture* const capture = capturing();
  return capture ? capture->allocate(bytes) : runtime().allocator.allocate(bytes, t_site, t_pool);
}

void release_block(Block* block) {
  if (block->sharers)
    --block->sharers;
  else if (block->owner)
    block->owner->take_back(block);
  else
    runtime().allocator.release(block);
}

Block* Graph::allocate(int64_t bytes) {
  if (Block* block = pool_->take(bytes)) return block;
  Block* block = runtime().allocator.allocate(bytes, t_site);
  if (block) {
    block->owner = pool_;
    pool_->blocks.push_back(block);
  }
  return block;
}

Graph::Graph(GraphPool* pool) : pool_(pool) { ++pool->uses; }

Graph::~Graph() {
  if (g_capturing == this) g_capturing = nullptr;
  for (const Weight& w : weights_)
    if (w.packed) release_block(w.packed);
  for (maca_buffer* buffer : held_) maca_buffer_release(buffer);
  release_pool(pool_);
}

void Graph::use(maca_buffer* buffer, bool writes) {
  Block* block = buffer->block;
  blocks_.insert(block);
  if (writes) written_.insert(block);
  if (block->owner != pool_ && held_.insert(buffer).second) ++buffer->uses;
}

void Graph::launch(maca_program& program, const maca_reference* references, const maca_launch& call) {
  Step step = {Step::kLaunch, &program, call, pointers_.size(), scalars_.size(), nullptr, nullptr, 0, 0};
  step.call.rng_offset = rng_blocks_;
  pointers_.insert(pointers_.end(), call.pointers, call.pointers + call.pointer_count);
  scalars_.insert(scalars_.end(), call.scalars, call.scalars + call.scalar_count);
  for (int32_t i = 0; i < program.operands; ++i)
    if (references[i].buffer) use(references[i].buffer, program.roles[i].written || program.allocates(i));
  keep(program);
  const int weight = program.info.packed_operand;
  if (weight >= 0 && program.info.packed_bytes && references[weight].buffer)
    weights_.push_back({steps_.size(), references[weight].buffer, call.pointers[weight], nullptr, -1});
  steps_.push_back(step);
}

void Graph::copy(maca_buffer& to, int64_t to_offset, maca_buffer& from, int64_t from_offset, int64_t bytes) {
  use(&from, false);
  use(&to, true);
  steps_.push_back(
      {Step::kCopy, nullptr, {}, 0, 0, to.block->address + to_offset, from.block->address + from_offset, bytes, 0});
}

void Graph::fill(maca_buffer& buffer, int64_t offset, int32_t byte, int64_t bytes) {
  use(&buffer, true);
  steps_.push_back({Step::kFill, nullptr, {}, 0, 0, buffer.block->address + offset, nullptr, bytes, byte});
}

// Weights that the graph does not write itself are packed before the replay that meets them changed.
void Graph::finish() {
  std::vector<Weight> kept;
  for (Weight& w : weights_) {
    if (!held_.count(w.buffer) || written_.count(w.buffer->block)) continue;
    // not of the graph's pool: what is idle there now, a replay writes
    w.packed = runtime().allocator.allocate(static_cast<int64_t>(steps_[w.step].program->info.packed_bytes), t_site);
    if (!w.packed) continue;  // the launch takes the weight as it lies
    blocks_.insert(w.packed);
    kept.push_back(w);
  }
  weights_ = std::move(kept);
}

int Graph::pack_weights(const StreamSlot* slot) {
  Runtime& r = runtime();
  for (Weight& w : weights_) {
    if (w.writes == w.buffer->writes()) continue;
    if (slot->is_default) maca_task_queue_wait();  // packing runs at once
    const maca_program& program = *steps_[w.step].program;
    const int status = r.library.plan_pack(program.plan, w.address, w.packed->address, slot->handle);
    if (status != MACA_OK && !may_go_unpacked(status)) return status;
    steps_[w.step].call.packed = status == MACA_OK ? w.packed->address : nullptr;
    w.writes = w.buffer->writes();
    ++r.packs;
  }
  return MACA_OK;
}

int Graph::run(const Step& step, uint64_t rng_offset, const StreamSlot* slot) {
  Runtime& r = runtime();
  const bool is_long = step.kind == Step::kLaunch ? step.program->may_queue() : step.bytes > kLongCopy;
  maca_stream* const stream = launch_stream(slot, is_long);
  if (step.kind == Step::kCopy) return r.library.copy(MACA_COPY_ON_DEVICE, step.to, step.from, step.bytes, 0, stream);
  if (step.kind == Step::kFill) return r.library.fill(step.to, step.byte, step.bytes, stream);
  maca_launch call = step.call;
  call.pointers = pointers_.data() + step.pointers;
  call.scalars = scalars_.data() + step.scalars;
  call.rng_offset += rng_offset;
  call.stream = stream;
  return give_launch(*step.program, call);
}

int Graph::replay() {
  Runtime& r = runtime();
  r.queue.throttle(launches_);
  StreamSlot* stream = current_stream();
  for (Block* block : blocks_) order_block(block, stream);
  int status = pack_weights(stream);
  if (status != MACA_OK) return status;
  const uint64_t rng_offset = r.rng_offset.fetch_add(rng_blocks_);
  r.launches.fetch_add(launches_, std::memory_order_relaxed);
  {
    const Unlocked unlocked(is_long_ || launches_ > kLongReplay);
    for (size_t i = 0; i < steps_.size() && status == MACA_OK; ++i) status = run(steps_[i], rng_offset, stream);
  }
  for (Block* block : written_) ++block->writes;
  return wait_if_blocking(stream, status);
}

}  // namespace maca_shim

using namespace maca_shim;

struct maca_graph_pool : GraphPool {};
struct maca_graph : Graph {
  using Graph::Graph;
};

extern "C" {

maca_graph_pool* maca_graph_pools_create(void) { return new maca_graph_pool; }
void maca_graph_pools_destroy(maca_graph_pool* pool) {
  if (pool) release_pool(pool);
}

maca_graph* maca_graphs_begin(maca_graph_pool* pool) {
  if (capturing()) return nullptr;
  auto* graph = new maca_graph(pool);
  g_capturing = graph;
  return graph;
}
void maca_graphs_end(maca_graph* graph) {
  if (g_capturing != graph) return;
  graph->finish();
  g_capturing = nullptr;
}
int maca_graphs_replay(maca_graph* graph) { return graph->replay(); }
int64_t maca_graphs_launches(maca_graph* graph) { return graph->launches(); }
void maca_graphs_destroy(maca_graph* graph) { delete graph; }

}  // extern "C"
