// Which values are the same: an allocation, how often it was written, and the view of it.
//
// A memory goes when its owner does. With PyTorch's own weak references, whose storages are looked through from time to
// time, those that are gone would stay: among the tensors' memory, where the C library cannot use what lies between
// them. A GPT's training step took half as much memory again, and all of it comes into the caches anew.
#include <algorithm>

#include "recording.h"

namespace maca::recorder {
namespace {

constexpr size_t kViews = 256;  // of one allocation that are remembered

}  // namespace

// --- Memory ---------------------------------------------------------------------------------------------------
void Memory::forget() {
  std::vector<View> gone;
  gone.swap(views_);  // first: what is freed may run Python's code
  last = kNoCalls;
  is_blank = false;
}

void Memory::note_write() {
  forget();
  is_written = true;
}

void Memory::written_by(int level, long long call) {
  last[level] = call;
  for (View& view : views_) view.value->made[level] = call;
}

std::shared_ptr<Value> Memory::value_at(long long place, PyObject* form, long long version) {
  const auto found = std::find_if(views_.rbegin(), views_.rend(), [&](const View& view) {
    return view.place == place && view.value->form.get() == form;
  });
  if (found != views_.rend()) {
    Value& value = *found->value;
    if (value.is_unsettled && value.version + 1 == version) {
      value.version = version;
      value.is_unsettled = false;
      is_written = false;
    }
    if (value.version == version) return found->value;
  }
  // memory as it was found has numbers that mean nothing: none
  Ref numbers(is_blank ? PyUnicode_FromString("") : nullptr);
  if (is_blank && !numbers) return nullptr;
  auto value =
      std::make_shared<Value>(Value{Ref::borrowed(form), version, is_written, last, std::move(numbers), {}, {}});
  if (found != views_.rend()) {
    const auto old = std::exchange(found->value, value);
    return value;
  }
  std::vector<View> gone;
  if (views_.size() >= kViews) gone.swap(views_);
  views_.push_back({place, value});
  return value;
}

// --- Memories -------------------------------------------------------------------------------------------------
std::shared_ptr<Memory> Memories::find(PyObject* owner) const {
  const auto found = tables_->memories.find(owner);
  return found == tables_->memories.end() ? nullptr : found->second;
}

std::shared_ptr<Memory> Memories::meet(PyObject* owner, long long writes) {
  if (auto met = find(owner)) return met;
  if (!owner_gone_) {
    static PyMethodDef g_owner_gone = {"owner_gone", owner_gone, METH_O, nullptr};
    using Held = std::shared_ptr<Tables>;
    Ref held(PyCapsule_New(new Held(tables_), nullptr, [](PyObject* capsule) {
      delete static_cast<Held*>(PyCapsule_GetPointer(capsule, nullptr));
    }));
    owner_gone_ = Ref(held ? PyCFunction_New(&g_owner_gone, held.get()) : nullptr);
  }
  Ref reference(owner_gone_ ? PyWeakref_NewRef(owner, owner_gone_.get()) : nullptr);
  if (!reference) return nullptr;
  auto memory = std::make_shared<Memory>();
  memory->writes = writes;
  tables_->owners.emplace(reference.get(), owner);
  memory->reference = std::move(reference);
  return tables_->memories[owner] = std::move(memory);
}

// Called by the weak reference to an owner.
PyObject* Memories::owner_gone(PyObject* capsule, PyObject* reference) {
  const auto tables = *static_cast<std::shared_ptr<Tables>*>(PyCapsule_GetPointer(capsule, nullptr));
  const auto owner = tables->owners.find(reference);
  if (owner == tables->owners.end()) Py_RETURN_NONE;
  const auto memory = tables->memories.extract(owner->second);
  tables->owners.erase(owner);
  const Ref gone = std::move(memory.mapped()->reference);
  Py_RETURN_NONE;
}

void Memories::clear() {
  const Tables gone = std::exchange(*tables_, {});
  for (const auto& [owner, memory] : gone.memories) const Ref reference = std::move(memory->reference);
}

}  // namespace maca::recorder
