#define Py_LIMITED_API 0x030a0000
#include "tape.h"

#include <Python.h>

#include <algorithm>
#include <numeric>

#include "unlocked.h"

namespace maca_shim {
namespace {

constexpr uintptr_t kFirstAddress = uintptr_t{1} << 61;  // no memory is there, tagged or not
constexpr int64_t kAlignment = 512;                      // of stand-ins
constexpr int kInlineOperands = 16;
constexpr int64_t kSmallestDrop = 1 << 14;  // bytes of inputs that are dropped at once
constexpr int64_t kLongRun = 64;            // launches of short plans before other Python threads may run

int64_t rounded(int64_t bytes) { return std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment); }

}  // namespace

StandIn* StandIns::make(int64_t bytes) {
  auto made = std::make_unique<StandIn>();
  made->address = all.empty() ? reinterpret_cast<char*>(kFirstAddress) : all.back()->address + all.back()->bytes;
  made->bytes = rounded(bytes);
  made->requested = bytes;
  made->free = false;
  made->owner = this;
  ++live;
  all.push_back(std::move(made));
  return all.back().get();
}

void StandIns::take_back(Block*) {
  if (--live == 0 && is_left) delete this;
}

void StandIns::leave() {
  is_left = true;
  if (live == 0) delete this;
}

Tape::~Tape() {
  if (t_tape == this) t_tape = nullptr;
  for (maca_buffer* buffer : inputs_) maca_buffer_release(buffer);
  for (maca_buffer* buffer : held_) maca_buffer_release(buffer);
  stand_ins_->leave();
}

maca_buffer* Tape::input(int64_t bytes) {
  StandIn* block = stand_ins_->make(bytes);
  block->input = static_cast<int32_t>(input_bytes_.size());
  input_bytes_.push_back(bytes);
  input_written_.push_back(false);
  auto* buffer = new maca_buffer{block, bytes, 0, 2, {}};  // by who records, and by this tape until it ends
  inputs_.push_back(buffer);
  return buffer;
}

bool Tape::begin() {
  if (capturing()) return false;
  t_tape = this;
  return true;
}

void Tape::end() {
  if (t_tape == this) t_tape = nullptr;
}

Block* Tape::allocate(int64_t bytes) { return bytes < 0 ? nullptr : stand_ins_->make(bytes); }

// Addresses of stand-ins follow one another.
Tape::Place Tape::place_of(const void* address) const {
  const auto& all = stand_ins_->all;
  const auto* const wanted = static_cast<const char*>(address);
  if (!wanted || all.empty() || wanted < all.front()->address || wanted >= all.back()->address + all.back()->bytes)
    return {-1, reinterpret_cast<intptr_t>(address)};
  auto next = std::upper_bound(all.begin(), all.end(), wanted,
                               [](const char* a, const std::unique_ptr<StandIn>& s) { return a < s->address; });
  const auto index = static_cast<int32_t>(next - all.begin() - 1);
  return {index, wanted - all[static_cast<size_t>(index)]->address};
}

void Tape::use(maca_buffer* buffer, bool writes) {
  Block* const block = buffer->block;
  if (block->owner == stand_ins_) {
    const int32_t input = static_cast<StandIn*>(block)->input;
    if (writes && input >= 0) input_written_[static_cast<size_t>(input)] = true;
    return;
  }
  if (held_.insert(buffer).second) ++buffer->uses;
  if (writes) held_written_.insert(buffer);
}

void Tape::launch(maca_program& program, const maca_reference* references, const maca_launch& call) {
  Step step = {Step::kLaunch, &program, call, places_.size(), scalars_.size(), place_of(call.workspace), 0, 0, -1};
  step.call.rng_offset = rng_blocks_;
  const int operand = program.info.packed_operand;
  maca_buffer* const weight = operand >= 0 && program.info.packed_bytes ? references[operand].buffer : nullptr;
  if (weight) {  // what the tape itself has written by then is met once
    const bool is_stand_in = weight->block->owner == stand_ins_;
    const int32_t input = is_stand_in ? static_cast<StandIn*>(weight->block)->input : -1;
    const bool may_pack =
        is_stand_in ? input >= 0 && !input_written_[static_cast<size_t>(input)] : held_written_.count(weight) == 0;
    if (may_pack) {
      step.weight = static_cast<int32_t>(weights_.size());
      weights_.push_back({steps_.size(), operand, is_stand_in ? nullptr : weight});
    }
  }
  for (uint32_t i = 0; i < call.pointer_count; ++i) places_.push_back(place_of(call.pointers[i]));
  scalars_.insert(scalars_.end(), call.scalars, call.scalars + call.scalar_count);
  numbers_.resize(scalars_.size(), -1);
  for (int32_t i = 0; i < program.operands; ++i)
    if (references[i].buffer) use(references[i].buffer, program.roles[i].written || program.allocates(i));
  keep(program);
  steps_.push_back(step);
}

void Tape::copy(maca_buffer& to, int64_t to_offset, maca_buffer& from, int64_t from_offset, int64_t bytes) {
  use(&from, false);
  use(&to, true);
  steps_.push_back({Step::kCopy, nullptr, {}, places_.size(), 0, {-1, 0}, bytes, 0, -1});
  places_.push_back(place_of(to.block->address + to_offset));
  places_.push_back(place_of(from.block->address + from_offset));
}

void Tape::fill(maca_buffer& buffer, int64_t offset, int32_t byte, int64_t bytes) {
  use(&buffer, true);
  steps_.push_back({Step::kFill, nullptr, {}, places_.size(), 0, {-1, 0}, bytes, byte, -1});
  places_.push_back(place_of(buffer.block->address + offset));
}

void Tape::give(maca_buffer* const* results, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (results[i]->block->owner != stand_ins_) continue;
    auto* const block = static_cast<StandIn*>(results[i]->block);
    block->result = static_cast<int32_t>(result_bytes_.size());
    result_bytes_.push_back(results[i]->bytes);
  }
}

bool Tape::is_scratch(int64_t stand_in) const {
  if (stand_in < 0 || stand_in >= static_cast<int64_t>(stand_ins_->all.size())) return false;
  const StandIn& s = *stand_ins_->all[static_cast<size_t>(stand_in)];
  return s.input < 0 && s.result < 0;
}

std::vector<Tape::Touched> Tape::touched_by(size_t step) const {
  const Step& s = steps_[step];
  const Place* const places = places_.data() + s.places;
  if (s.kind == Step::kFill) return {{places[0], s.bytes, true}};
  if (s.kind == Step::kCopy) return {{places[0], s.bytes, true}, {places[1], s.bytes, false}};
  std::vector<Touched> touched;
  for (uint32_t i = 0; i < s.call.pointer_count; ++i) {
    const maca_role& role = s.program->roles[i];
    const bool is_absent = places[i].stand_in < 0 && places[i].offset == 0;
    touched.push_back({places[i], is_absent ? 0 : role.extent_bytes, role.written || role.output_bytes >= 0});
  }
  return touched;
}

void Tape::fuse(const std::vector<Fused>& fused) {
  std::vector<const Fused*> ends(steps_.size());
  std::vector<bool> is_gone(steps_.size());
  for (const Fused& f : fused) {
    for (const size_t i : f.steps) is_gone[i] = true;
    is_gone[f.steps.back()] = false;
    ends[f.steps.back()] = &f;
  }
  std::vector<Step> steps;
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (is_gone[i]) continue;
    Step step = steps_[i];
    if (const Fused* f = ends[i]) {
      maca_program& program = *f->program;
      const size_t begin = scalars_.size();
      for (const size_t part : f->steps)
        for (uint32_t k = 0; k < steps_[part].call.scalar_count; ++k) {
          scalars_.push_back(maca_scalar(scalars_[steps_[part].scalars + k]));
          numbers_.push_back(int32_t(numbers_[steps_[part].scalars + k]));
        }
      step = {Step::kLaunch, &program, {}, places_.size(), begin, {-1, 0}, 0, 0, -1};
      step.call.pointer_count = static_cast<uint32_t>(f->places.size());
      step.call.scalar_count = static_cast<uint32_t>(scalars_.size() - begin);
      places_.insert(places_.end(), f->places.begin(), f->places.end());
      if (program.info.workspace_bytes) {
        stand_ins_->make(static_cast<int64_t>(program.info.workspace_bytes));
        step.workspace = {static_cast<int32_t>(stand_ins_->all.size() - 1), 0};
        --stand_ins_->live;  // nobody releases it
      }
      launches_ -= static_cast<int64_t>(f->steps.size());
      keep(program);  // it draws no numbers
    }
    if (step.weight >= 0) weights_[static_cast<size_t>(step.weight)].step = steps.size();
    steps.push_back(step);
  }
  steps_ = std::move(steps);
}

void Tape::finish(const std::vector<bool>& kept, const std::vector<std::pair<int32_t, int32_t>>& heirs) {
  for (maca_buffer* buffer : inputs_) maca_buffer_release(buffer);
  inputs_.clear();
  find_lifetimes();
  plan_memory(heirs);
  plan_stops(kept);
}

void Tape::find_lifetimes() {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const auto touch = [&](const Place& place) {
      if (place.stand_in < 0) return;
      StandIn& s = *stand_ins_->all[static_cast<size_t>(place.stand_in)];
      if (s.born < 0) s.born = static_cast<int64_t>(i);
      s.died = static_cast<int64_t>(i) + 1;
    };
    for (const Touched& t : touched_by(i)) touch(t.place);
    touch(steps_[i].workspace);
  }
}

void Tape::plan_memory(const std::vector<std::pair<int32_t, int32_t>>& heirs) {
  const auto end = static_cast<int64_t>(steps_.size());
  std::vector<MemoryPlan::Value> values;
  for (const auto& s : stand_ins_->all) {
    if (s->input >= 0)
      values.push_back({0, -1, -1, false});
    else if (s->result >= 0)
      values.push_back({result_bytes_[static_cast<size_t>(s->result)], s->born < 0 ? end : s->born, end + 1, true});
    else
      values.push_back({s->requested, s->born, s->died, false});
  }
  memory_ = MemoryPlan(values, heirs);
  const auto& pieces = memory_.pieces;
  stand_ins_at_.resize(pieces.size());
  for (size_t i = 0; i < memory_.homes.size(); ++i)
    if (const auto& home = memory_.homes[i]; home.piece >= 0)
      stand_ins_at_[static_cast<size_t>(home.piece)].push_back({i, home.offset});
  for (size_t i = 0; i < pieces.size(); ++i) {
    births_.push_back(i);
    if (pieces[i].result < 0) deaths_.push_back(i);
  }
  std::stable_sort(births_.begin(), births_.end(), [&](size_t a, size_t b) { return pieces[a].born < pieces[b].born; });
  std::stable_sort(deaths_.begin(), deaths_.end(), [&](size_t a, size_t b) { return pieces[a].died < pieces[b].died; });
}

// A backward lets go of what the forward kept as it goes. Small inputs wait for others: each time may have to wait for
// the interpreter's lock.
void Tape::plan_stops(const std::vector<bool>& kept) {
  std::vector<const StandIn*> ending;
  for (const auto& s : stand_ins_->all) {
    if (s->input < 0 || s->born < 0) continue;
    const auto input = static_cast<size_t>(s->input);
    if (!kept[input] && !input_written_[input]) ending.push_back(s.get());
  }
  std::stable_sort(ending.begin(), ending.end(), [](auto* a, auto* b) { return a->died < b->died; });
  int64_t gathered = 0;
  Stop stop{0, {}};
  for (size_t i = 0; i < ending.size(); ++i) {
    stop.inputs.push_back(static_cast<size_t>(ending[i]->input));
    stop.step = static_cast<size_t>(ending[i]->died);
    gathered += ending[i]->requested;
    const bool is_last = i + 1 == ending.size() || ending[i + 1]->died > ending[i]->died;
    if (!is_last || gathered < kSmallestDrop || stop.step >= steps_.size()) continue;
    stops_.push_back(std::move(stop));
    stop = {0, {}};
    gathered = 0;
  }
}

int Tape::pack(const maca_reference* inputs, const std::vector<char*>& bases, StreamSlot* stream,
               std::vector<const void*>& packed) {
  for (size_t i = 0; i < weights_.size(); ++i) {
    const Weight& w = weights_[i];
    const Step& step = steps_[w.step];
    const Place& place = places_[step.places + static_cast<size_t>(w.operand)];
    char* const address = at(place, bases);
    maca_buffer* buffer = w.held;
    if (!buffer) buffer = inputs[stand_ins_->all[static_cast<size_t>(place.stand_in)]->input].buffer;
    const int64_t item = step.program->roles[static_cast<size_t>(w.operand)].item_bytes;
    const maca_reference weight = {buffer, (address - buffer->block->address) / item};
    if (const int status = pack_weight(*step.program, weight, address, stream, &packed[i])) return status;
  }
  return MACA_OK;
}

void Tape::vary(size_t scalar, size_t number) {
  numbers_[scalar] = static_cast<int32_t>(number);
  varies_ = true;
}

int Tape::run_step(const Step& step, const maca_scalar* scalars, const std::vector<char*>& bases, const void* packed,
                   uint64_t rng_offset, const StreamSlot* stream) {
  Runtime& r = runtime();
  const Place* const places = places_.data() + step.places;
  const bool is_long = step.kind == Step::kLaunch ? step.program->may_queue() : step.bytes > kLongCopy;
  maca_stream* const target = launch_stream(stream, is_long);
  if (step.kind == Step::kCopy)
    return r.library.copy(MACA_COPY_ON_DEVICE, at(places[0], bases), at(places[1], bases), step.bytes, 0, target);
  if (step.kind == Step::kFill) return r.library.fill(at(places[0], bases), step.byte, step.bytes, target);
  maca_launch call = step.call;
  void* few[kInlineOperands];
  std::vector<void*> many;
  void** pointers = few;
  if (call.pointer_count > kInlineOperands) {
    many.resize(call.pointer_count);
    pointers = many.data();
  }
  for (uint32_t i = 0; i < call.pointer_count; ++i) pointers[i] = at(places[i], bases);
  call.pointers = pointers;
  call.scalars = scalars + step.scalars;
  call.workspace = at(step.workspace, bases);
  call.packed = packed;
  call.rng_offset += rng_offset;
  call.stream = target;
  return give_launch(*step.program, call);
}

int Tape::run(const maca_reference* inputs, const double* numbers, maca_buffer** results,
              const std::function<void(size_t)>& drop, const char** kernel) {
  Runtime& r = runtime();
  r.queue.throttle(launches_);
  StreamSlot* const stream = current_stream();
  const auto& all = stand_ins_->all;
  for (size_t i = 0; i < input_bytes_.size(); ++i) {
    const int64_t held = inputs[i].buffer->bytes, start = inputs[i].offset;
    if (input_bytes_[i] && (start < 0 || input_bytes_[i] > held || start > held - input_bytes_[i]))
      return misuse("an input of a compiled program reaches outside its memory");
    if (input_written_[i])
      if (const int status = before_write(inputs[i].buffer, stream)) return status;
    order_block(inputs[i].buffer->block, stream);
  }
  for (maca_buffer* buffer : held_) order_block(buffer->block, stream);
  std::vector<char*> bases(all.size());
  for (size_t i = 0; i < all.size(); ++i)
    if (const int32_t input = all[i]->input; input >= 0)
      bases[i] = inputs[input].buffer->block->address + inputs[input].offset;
  std::vector<maca_scalar> given;  // of this run alone: another thread may run the tape, too
  if (varies_) {
    given = scalars_;
    for (size_t i = 0; i < given.size(); ++i)
      if (numbers_[i] >= 0) given[i].value.real = numbers[numbers_[i]];
  }
  const maca_scalar* const scalars = varies_ ? given.data() : scalars_.data();
  std::vector<const void*> packed(weights_.size());
  int status = pack(inputs, bases, stream, packed);
  const uint64_t rng_offset = rng_blocks_ ? r.rng_offset.fetch_add(rng_blocks_) : 0;
  r.launches.fetch_add(launches_, std::memory_order_relaxed);
  std::vector<Block*> blocks(memory_.pieces.size());
  auto next = births_.begin();
  const auto bear = [&](int64_t step) {  // the pieces that are there from this step on
    for (; next != births_.end() && memory_.pieces[*next].born <= step; ++next) {
      const MemoryPlan::Piece& piece = memory_.pieces[*next];
      Block* block;
      if (piece.result >= 0) {
        maca_buffer*& result = results[all[static_cast<size_t>(piece.result)]->result];
        result = make_buffer(piece.bytes, stream);
        block = result ? result->block : nullptr;
      } else {
        block = blocks[*next] = r.allocator.allocate(piece.bytes, t_site);
        if (block) order_block(block, stream);
      }
      if (!block) {
        status = allocation_status();
        return;
      }
      for (const auto& [stand_in, offset] : stand_ins_at_[*next]) bases[stand_in] = block->address + offset;
    }
  };
  auto ending = deaths_.begin();
  const auto bury = [&](int64_t step) {  // the pieces that nothing needs from this step on
    for (; ending != deaths_.end() && memory_.pieces[*ending].died <= step; ++ending)
      if (Block*& block = blocks[*ending]; block) {
        r.allocator.release(block);
        block = nullptr;
      }
  };
  size_t at_step = 0;
  const auto run_until = [&](size_t end) {
    const Unlocked unlocked(is_long_ || launches_ > kLongRun);
    for (; at_step < end && status == MACA_OK; ++at_step) {
      bear(static_cast<int64_t>(at_step));
      const Step& step = steps_[at_step];
      if (status == MACA_OK)
        status = run_step(step, scalars, bases, step.weight >= 0 ? packed[static_cast<size_t>(step.weight)] : nullptr,
                          rng_offset, stream);
      if (status != MACA_OK) *kernel = step.program ? step.program->kernel : "copy";
      bury(static_cast<int64_t>(at_step) + 1);
    }
  };
  for (const Stop& stop : stops_) {
    run_until(stop.step);
    if (status == MACA_OK) std::for_each(stop.inputs.begin(), stop.inputs.end(), drop);
  }
  run_until(steps_.size());
  if (status == MACA_OK) bear(static_cast<int64_t>(steps_.size()));
  bury(static_cast<int64_t>(steps_.size()) + 1);
  for (size_t i = 0; i < input_written_.size(); ++i)
    if (input_written_[i]) ++inputs[i].buffer->block->writes;
  for (maca_buffer* buffer : held_written_) ++buffer->block->writes;
  return wait_if_blocking(stream, status);
}

}  // namespace maca_shim
