// A device library whose device is another process: every call goes to a server that has loaded the real library,
// perhaps one for another processor under qemu. So the tests that judge a library judge that one.
//
//     MACA_LIBRARY=libelsewhere.so MACA_ELSEWHERE="qemu-aarch64 -L /usr/aarch64-linux-gnu server libmaca_host.so"
//
// All work is done when a call returns, so that streams and events have nothing to wait for.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <cstdlib>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <sstream>

#include "messages.h"

using elsewhere::Function;
using elsewhere::Message;

struct maca_device {
  int file = -1;
  maca_device_info info{};
  std::vector<std::string> kernels;
};
struct maca_plan {
  uint64_t handle;
  maca_plan_info info;
  std::string implementation;
};
struct maca_stream {};
struct maca_event {};

namespace {

std::mutex g_mutex;  // one conversation, one call at a time

// Asks and waits for the answer, whose first number is the status.
maca_status ask(maca_device* device, const Message& question, Message& answer) {
  std::lock_guard lock(g_mutex);
  if (!question.send(device->file) || !answer.receive(device->file)) return MACA_DEVICE_ERROR;
  return static_cast<maca_status>(answer.take<int32_t>());
}

Message question(Function function) {
  Message m;
  m.put(function);
  return m;
}

void say(maca_reason* reason, const std::string& text) {
  if (reason) std::snprintf(reason->text, sizeof reason->text, "%s", text.c_str());
}

int start(const char* command) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return -1;
  std::vector<std::string> words;
  std::istringstream text(command);
  for (std::string word; text >> word;) words.push_back(word);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(ends[1], 3);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  close(ends[1]);
  return child < 0 ? -1 : ends[0];
}

maca_status device_open(int32_t index, maca_device** device, maca_reason* reason) {
  const char* command = std::getenv("MACA_ELSEWHERE");
  if (!command || index != 0) return say(reason, "MACA_ELSEWHERE names no command for device 0"), MACA_INVALID;
  auto made = std::make_unique<maca_device>();
  made->file = start(command);
  Message answer;
  const maca_status status = made->file < 0 ? MACA_DEVICE_ERROR : ask(made.get(), question(Function::Open), answer);
  if (status == MACA_DEVICE_ERROR) return say(reason, std::string("no answer from ") + command), MACA_INVALID;
  const std::string said = answer.take_text();
  if (status != MACA_OK) return say(reason, said), status;
  made->info = answer.take<maca_device_info>();
  made->info.features = 0;
  for (auto n = answer.take<uint32_t>(); n > 0; --n) made->kernels.push_back(answer.take_text());
  *device = made.release();
  return MACA_OK;
}

maca_status device_close(maca_device* device) {
  close(device->file);
  delete device;
  return MACA_OK;
}

maca_status device_info(maca_device* device, maca_device_info* info) {
  const uint32_t size = std::min<uint32_t>(info->size, sizeof *info);
  std::memcpy(info, &device->info, size);
  info->size = size;
  return MACA_OK;
}

maca_status device_synchronize(maca_device*) { return MACA_OK; }

const char* kernel_name(maca_device* device, int32_t index) {
  const auto i = static_cast<size_t>(index);
  return index >= 0 && i < device->kernels.size() ? device->kernels[i].c_str() : nullptr;
}

maca_status memory_allocate(maca_device* device, uint64_t bytes, void** address) {
  Message q = question(Function::Allocate), a;
  q.put(bytes);
  const maca_status status = ask(device, q, a);
  if (status == MACA_OK) *address = reinterpret_cast<void*>(a.take<uint64_t>());
  return status;
}

maca_status memory_free(maca_device* device, void* address) {
  Message q = question(Function::Free), a;
  q.put(address);
  return ask(device, q, a);
}

maca_status memory_info(maca_device* device, uint64_t* free_bytes, uint64_t* total_bytes) {
  Message a;
  const maca_status status = ask(device, question(Function::MemoryInfo), a);
  if (status == MACA_OK) *free_bytes = a.take<uint64_t>(), *total_bytes = a.take<uint64_t>();
  return status;
}

maca_status copy(maca_device* device, int32_t kind, void* to, const void* from, uint64_t bytes, uint32_t,
                 maca_stream*) {
  Message q = question(Function::Copy), a;
  q.put(kind);
  q.put(bytes);
  if (kind != MACA_COPY_TO_HOST) q.put(to);
  if (kind == MACA_COPY_TO_DEVICE)
    q.put_bytes(from, bytes);
  else
    q.put(from);
  const maca_status status = ask(device, q, a);
  if (status == MACA_OK && kind == MACA_COPY_TO_HOST) a.take_bytes(to, bytes);
  return status;
}

maca_status fill(maca_device* device, void* to, int32_t byte, uint64_t bytes, maca_stream*) {
  Message q = question(Function::Fill), a;
  q.put(to);
  q.put(byte);
  q.put(bytes);
  return ask(device, q, a);
}

maca_status stream_create(maca_device*, int32_t, maca_stream** stream) {
  *stream = new maca_stream;
  return MACA_OK;
}
maca_status stream_destroy(maca_device*, maca_stream* stream) {
  delete stream;
  return MACA_OK;
}
maca_status stream_done(maca_device*, maca_stream*) { return MACA_OK; }
maca_status stream_wait_event(maca_device*, maca_stream*, maca_event*) { return MACA_OK; }
maca_status event_create(maca_device*, uint32_t, maca_event** event) {
  *event = new maca_event;
  return MACA_OK;
}
maca_status event_destroy(maca_device*, maca_event* event) {
  delete event;
  return MACA_OK;
}
maca_status event_record(maca_device*, maca_event*, maca_stream*) { return MACA_OK; }
maca_status event_done(maca_device*, maca_event*) { return MACA_OK; }
maca_status event_elapsed(maca_device*, maca_event*, maca_event*, double* milliseconds) {
  *milliseconds = 0;
  return MACA_OK;
}

void put_operand(Message& q, const maca_operand& o) {
  q.put(o.dtype);
  q.put(o.rank);
  q.put(o.scalar_slot);
  if (o.rank <= 0) return;
  q.put_bytes(o.sizes, sizeof(int64_t) * static_cast<size_t>(o.rank));
  q.put_bytes(o.strides, sizeof(int64_t) * static_cast<size_t>(o.rank));
}

void put_attribute(Message& q, const maca_attribute& t) {
  q.put(t.kind);
  q.put_text(t.name);
  q.put(t.integer);
  q.put(t.real);
  q.put(static_cast<int32_t>(t.text != nullptr));
  q.put_text(t.text);
  const bool floats = t.kind == MACA_ATTRIBUTE_FLOATS, ints = t.kind == MACA_ATTRIBUTE_INTS || t.kind == MACA_ATTRIBUTE_BOOLS;
  q.put(floats || ints ? t.count : int64_t{0});
  if (floats) q.put_bytes(t.doubles, sizeof(double) * static_cast<size_t>(t.count));
  if (ints) q.put_bytes(t.ints, sizeof(int64_t) * static_cast<size_t>(t.count));
}

maca_status plan_create(maca_device* device, const maca_plan_request* r, maca_plan** plan, maca_reason* reason) {
  Message q = question(Function::Create), a;
  q.put(r->flags);
  q.put_text(r->kernel);
  q.put(r->scalar_count);
  q.put(r->argument_count);
  for (int32_t i = 0; i < r->argument_count; ++i) {
    const maca_argument& argument = r->arguments[i];
    const int32_t operands = argument.operands ? argument.count : 0;
    q.put(argument.kind);
    q.put(argument.is_output);
    q.put(argument.count);
    q.put(operands);
    for (int32_t n = 0; n < operands; ++n) put_operand(q, argument.operands[n]);
  }
  q.put(r->attribute_count);
  for (int32_t i = 0; i < r->attribute_count; ++i) put_attribute(q, r->attributes[i]);
  const maca_status status = ask(device, q, a);
  if (status == MACA_DEVICE_ERROR) return say(reason, "the server is gone"), MACA_INVALID;
  say(reason, a.take_text());
  if (status != MACA_OK) return status;
  auto made = std::make_unique<maca_plan>();
  made->handle = a.take<uint64_t>();
  made->info = a.take<maca_plan_info>();
  made->implementation = a.take_text();
  *plan = made.release();
  return MACA_OK;
}

maca_status plan_info(maca_device*, const maca_plan* plan, maca_plan_info* info) {
  const uint32_t size = std::min<uint32_t>(info->size, sizeof *info);
  maca_plan_info full = plan->info;
  full.size = size;
  full.implementation = plan->implementation.c_str();
  std::memcpy(info, &full, size);
  return MACA_OK;
}

maca_status plan_pack(maca_device* device, const maca_plan* plan, const void* operand, void* packed, maca_stream*) {
  Message q = question(Function::Pack), a;
  q.put(plan->handle);
  q.put(operand);
  q.put(packed);
  return ask(device, q, a);
}

maca_status plan_launch(maca_device* device, const maca_plan* plan, const maca_launch* l) {
  Message q = question(Function::Launch), a;
  q.put(plan->handle);
  q.put(l->pointer_count);
  q.put_bytes(l->pointers, sizeof(void*) * l->pointer_count);
  q.put(l->scalar_count);
  q.put_bytes(l->scalars, sizeof(maca_scalar) * l->scalar_count);
  q.put(l->workspace);
  q.put(l->packed);
  q.put(l->rng_seed);
  q.put(l->rng_offset);
  q.put(l->correlation);
  return ask(device, q, a);
}

maca_status plan_destroy(maca_device* device, maca_plan* plan) {
  Message q = question(Function::Destroy), a;
  q.put(plan->handle);
  delete plan;
  return ask(device, q, a);
}

maca_status error_take(maca_device* device, maca_error* error) {
  Message a;
  const uint32_t size = std::min<uint32_t>(error->size, sizeof *error);
  maca_error full{};
  if (ask(device, question(Function::Error), a) == MACA_OK) {
    full = a.take<maca_error>();
  } else {  // the process is gone, and the device with it
    full.status = MACA_DEVICE_ERROR, full.code = MACA_ERROR_INTERNAL, full.sticky = 1;
    std::snprintf(full.text, sizeof full.text, "the process with the device has ended");
  }
  full.size = size;
  std::memcpy(error, &full, size);
  return MACA_OK;
}

const maca_interface kInterface = [] {
  maca_interface t{};
  t.size = sizeof t;
  t.major = MACA_ABI_MAJOR;
  t.minor = MACA_ABI_MINOR;
  t.library = "a device in another process";
  t.device_open = device_open;
  t.device_close = device_close;
  t.device_info = device_info;
  t.device_synchronize = device_synchronize;
  t.kernel_name = kernel_name;
  t.memory_allocate = memory_allocate;
  t.memory_free = memory_free;
  t.memory_info = memory_info;
  t.copy = copy;
  t.fill = fill;
  t.stream_create = stream_create;
  t.stream_destroy = stream_destroy;
  t.stream_synchronize = stream_done;
  t.stream_query = stream_done;
  t.stream_wait_event = stream_wait_event;
  t.event_create = event_create;
  t.event_destroy = event_destroy;
  t.event_record = event_record;
  t.event_query = event_done;
  t.event_synchronize = event_done;
  t.event_elapsed = event_elapsed;
  t.plan_create = plan_create;
  t.plan_info = plan_info;
  t.plan_pack = plan_pack;
  t.plan_launch = plan_launch;
  t.plan_destroy = plan_destroy;
  t.error_take = error_take;
  return t;
}();

}  // namespace

extern "C" __attribute__((visibility("default"))) const maca_interface* maca_get_interface(int32_t major) {
  return major == MACA_ABI_MAJOR ? &kInterface : nullptr;
}
