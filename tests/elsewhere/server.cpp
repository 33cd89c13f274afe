// The other side of library.cpp: loads a device library and does what it is asked through file 3, until that is closed.
#include <dlfcn.h>

#include <cstdio>
#include <deque>
#include <memory>

#include "messages.h"

using elsewhere::Function;
using elsewhere::Message;

namespace {

const maca_interface* g_table;
maca_device* g_device;

void begin(Message& answer, maca_status status) { answer.put<int32_t>(status); }

void open(Message& answer) {
  maca_reason reason{};
  reason.size = sizeof reason;
  const maca_status status = g_table->device_open(0, &g_device, &reason);
  begin(answer, status == MACA_DEVICE_ERROR ? MACA_INVALID : status);
  answer.put_text(reason.text);
  if (status != MACA_OK) return;
  maca_device_info info{};
  info.size = sizeof info;
  g_table->device_info(g_device, &info);
  answer.put(info);
  answer.put<uint32_t>(static_cast<uint32_t>(info.kernel_count));
  for (int32_t i = 0; i < info.kernel_count; ++i) answer.put_text(g_table->kernel_name(g_device, i));
}

void copy(Message& q, Message& answer) {
  const auto kind = q.take<int32_t>();
  const auto bytes = q.take<uint64_t>();
  void* to = kind == MACA_COPY_TO_HOST ? nullptr : q.take<void*>();
  const void* from = kind == MACA_COPY_TO_DEVICE ? q.rest() : q.take<const void*>();
  std::unique_ptr<char[]> own;
  if (kind == MACA_COPY_TO_HOST) to = (own = std::make_unique<char[]>(bytes)).get();
  begin(answer, g_table->copy(g_device, kind, to, from, bytes, 0, nullptr));
  if (own) answer.put_bytes(own.get(), bytes);
}

// A request and the memory that it points into.
struct Request {
  std::deque<std::string> texts;
  std::deque<std::vector<int64_t>> numbers;
  std::deque<std::vector<double>> doubles;
  std::deque<std::vector<maca_operand>> operands;
  std::vector<maca_argument> arguments;
  std::vector<maca_attribute> attributes;
  maca_plan_request request{};

  const char* text(Message& q) { return texts.emplace_back(q.take_text()).c_str(); }
  const int64_t* list(Message& q, int64_t count) {
    auto& made = numbers.emplace_back(static_cast<size_t>(count));
    q.take_bytes(made.data(), made.size() * sizeof(int64_t));
    return made.data();
  }

  explicit Request(Message& q) {
    request.size = sizeof request;
    request.flags = q.take<uint32_t>();
    request.kernel = text(q);
    request.scalar_count = q.take<int32_t>();
    request.argument_count = q.take<int32_t>();
    for (int32_t i = 0; i < request.argument_count; ++i) {
      maca_argument argument{};
      argument.kind = q.take<int32_t>();
      argument.is_output = q.take<int32_t>();
      argument.count = q.take<int32_t>();
      auto& list_of = operands.emplace_back(static_cast<size_t>(q.take<int32_t>()));
      for (maca_operand& o : list_of) {
        o.dtype = q.take<maca_dtype>();
        o.rank = q.take<int32_t>();
        o.scalar_slot = q.take<int32_t>();
        if (o.rank <= 0) continue;
        o.sizes = list(q, o.rank);
        o.strides = list(q, o.rank);
      }
      argument.operands = list_of.empty() ? nullptr : list_of.data();
      arguments.push_back(argument);
    }
    request.attribute_count = q.take<int32_t>();
    for (int32_t i = 0; i < request.attribute_count; ++i) {
      maca_attribute t{};
      t.kind = q.take<int32_t>();
      t.name = text(q);
      t.integer = q.take<int64_t>();
      t.real = q.take<double>();
      const bool has_text = q.take<int32_t>() != 0;
      const char* said = text(q);
      t.text = has_text ? said : nullptr;
      t.count = q.take<int64_t>();
      if (t.kind == MACA_ATTRIBUTE_FLOATS) {
        auto& made = doubles.emplace_back(static_cast<size_t>(t.count));
        q.take_bytes(made.data(), made.size() * sizeof(double));
        t.doubles = made.data();
      } else if (t.count > 0) {
        t.ints = list(q, t.count);
      }
      attributes.push_back(t);
    }
    request.arguments = arguments.data();
    request.attributes = attributes.data();
  }
};

void create(Message& q, Message& answer) {
  const Request request(q);
  maca_plan* plan = nullptr;
  maca_reason reason{};
  reason.size = sizeof reason;
  const maca_status status = g_table->plan_create(g_device, &request.request, &plan, &reason);
  begin(answer, status);
  answer.put_text(reason.text);
  if (status != MACA_OK) return;
  maca_plan_info info{};
  info.size = sizeof info;
  info.packed_operand = -1;
  g_table->plan_info(g_device, plan, &info);
  answer.put(plan);
  answer.put(info);
  answer.put_text(info.implementation);
}

void launch(Message& q, Message& answer) {
  auto* plan = q.take<maca_plan*>();
  maca_launch l{};
  l.size = sizeof l;
  l.pointer_count = q.take<uint32_t>();
  std::vector<void*> pointers(l.pointer_count);
  q.take_bytes(pointers.data(), pointers.size() * sizeof(void*));
  l.scalar_count = q.take<uint32_t>();
  std::vector<maca_scalar> scalars(l.scalar_count);
  q.take_bytes(scalars.data(), scalars.size() * sizeof(maca_scalar));
  l.pointers = pointers.data();
  l.scalars = scalars.data();
  l.workspace = q.take<void*>();
  l.packed = q.take<const void*>();
  l.rng_seed = q.take<uint64_t>();
  l.rng_offset = q.take<uint64_t>();
  l.correlation = q.take<uint64_t>();
  begin(answer, g_table->plan_launch(g_device, plan, &l));
}

void answer_to(Message& q, Message& answer) {
  switch (q.take<Function>()) {
    case Function::Open: return open(answer);
    case Function::Allocate: {
      void* address = nullptr;
      begin(answer, g_table->memory_allocate(g_device, q.take<uint64_t>(), &address));
      return answer.put(address);
    }
    case Function::Free: return begin(answer, g_table->memory_free(g_device, q.take<void*>()));
    case Function::MemoryInfo: {
      uint64_t free_bytes = 0, total = 0;
      begin(answer, g_table->memory_info(g_device, &free_bytes, &total));
      answer.put(free_bytes);
      return answer.put(total);
    }
    case Function::Copy: return copy(q, answer);
    case Function::Fill: {
      auto* to = q.take<void*>();
      const auto byte = q.take<int32_t>();
      return begin(answer, g_table->fill(g_device, to, byte, q.take<uint64_t>(), nullptr));
    }
    case Function::Create: return create(q, answer);
    case Function::Destroy: return begin(answer, g_table->plan_destroy(g_device, q.take<maca_plan*>()));
    case Function::Pack: {
      auto* plan = q.take<maca_plan*>();
      const auto* operand = q.take<const void*>();
      auto* packed = q.take<void*>();
      if (!g_table->plan_pack) return begin(answer, MACA_UNSUPPORTED);
      return begin(answer, g_table->plan_pack(g_device, plan, operand, packed, nullptr));
    }
    case Function::Launch: return launch(q, answer);
    case Function::Error: {
      maca_error error{};
      error.size = sizeof error;
      begin(answer, g_table->error_take(g_device, &error));
      return answer.put(error);
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  constexpr int kFile = 3;
  void* library = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!library) return std::fprintf(stderr, "%s\n", count == 2 ? dlerror() : "expected a library"), 2;
  const auto entry = reinterpret_cast<const maca_interface* (*)(int32_t)>(dlsym(library, "maca_get_interface"));
  g_table = entry ? entry(MACA_ABI_MAJOR) : nullptr;
  if (!g_table) return std::fprintf(stderr, "%s has no interface of this major\n", arguments[1]), 2;
  for (Message q; q.receive(kFile);) {
    Message answer;
    answer_to(q, answer);
    if (!answer.send(kFile)) return 1;
  }
}
