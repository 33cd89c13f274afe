// What value a tensor has: its form, the allocation that it lies in, and which of the values that this has had.
#include "entries.h"

namespace maca::recorder {
namespace {

constexpr size_t kPlainForms = 1 << 14;  // that are kept

bool is_unreadable() {  // sparse and other tensors without strides or a storage
  if (!PyErr_ExceptionMatches(PyExc_NotImplementedError) && !PyErr_ExceptionMatches(PyExc_RuntimeError)) return false;
  PyErr_Clear();
  return true;
}

// --- forms ----------------------------------------------------------------------------------------------------
// The form of any strided tensor; null with an exception.
Ref form_by_questions(Entries* self, PyObject* tensor) {
  Ref shape = members.shape.of(tensor), stride = shape ? members.stride.call(tensor) : Ref();
  Ref dtype = stride ? members.dtype.of(tensor) : Ref(), device = dtype ? members.device.of(tensor) : Ref();
  Ref conj = device ? members.is_conj.call(tensor) : Ref(), neg = conj ? members.is_neg.call(tensor) : Ref();
  Ref key(neg ? PyTuple_Pack(6, shape.get(), stride.get(), dtype.get(), device.get(), conj.get(), neg.get()) : nullptr);
  if (!key) return key;
  Ref form = Ref::borrowed(PyDict_GetItemWithError(self->forms, key.get()));
  return form || PyErr_Occurred() ? std::move(form) : ask(self, "new_form", key.get(), tensor);
}

// Of host tensors whose elements are what the memory holds: a key of bytes is made in a tenth of a tuple's time.
Ref plain_form_of(Entries* self, PyObject* tensor, const DlTensor& read) {
  auto& [memories, plain_forms, key, refused] = *self->parts;
  const auto rank = static_cast<size_t>(read.rank);
  key.assign(reinterpret_cast<const char*>(&read.dtype), sizeof read.dtype);
  for (const int64_t* numbers : {read.sizes, read.strides})
    if (rank) key.append(reinterpret_cast<const char*>(numbers), rank * sizeof *numbers);
  const auto found = plain_forms.find(key);
  if (found != plain_forms.end()) return Ref::borrowed(found->second.get());
  std::string kept = key;  // the next tensor's takes its place
  Ref form = form_by_questions(self, tensor);
  if (!form) return form;
  if (plain_forms.size() >= kPlainForms) plain_forms.clear();
  plain_forms.insert_or_assign(std::move(kept), Ref::borrowed(form.get()));
  return form;
}

// A host tensor's form and the address of its first element, in one question, and whether it is a negative view in
// another, unless that is known. Without a form: an exception, or it is a tensor of another kind.
Ref form_in_one(Entries* self, PyObject* tensor, long long& place, bool is_known_plain = false) {
  constexpr int kRefusals = 16;  // a tensor of a kind that DLPack lacks costs a millisecond: its error tells the stack
  DlTensor read{};
  if (!recording.exchange || self->parts->refused >= kRefusals) return Ref();
  if (recording.exchange->read(tensor, &read)) {
    if (!PyErr_Occurred() || !PyErr_ExceptionMatches(PyExc_Exception)) return Ref();
    PyErr_Clear();
    ++self->parts->refused;
    return Ref();
  }
  if (read.device.type != kDlHost || read.dtype.code == kDlComplex) return Ref();
  Ref neg = is_known_plain ? Ref::borrowed(Py_False) : members.is_neg.call(tensor);
  if (!neg || neg.get() == Py_True) return Ref();
  place = static_cast<long long>(reinterpret_cast<intptr_t>(read.data));
  return plain_form_of(self, tensor, read);
}

// The form of a strided tensor on the host and where in its memory it begins; null with an exception.
Ref form_of(Entries* self, PyObject* tensor, long long& place) {
  Ref form = form_in_one(self, tensor, place);
  if (form || PyErr_Occurred()) return form;
  Ref address = members.data_ptr.call(tensor);
  place = address ? PyLong_AsLongLong(address.get()) : -1;
  return PyErr_Occurred() ? Ref() : form_by_questions(self, tensor);
}

// --- memory ---------------------------------------------------------------------------------------------------
bool take_value(std::shared_ptr<Memory> memory, long long place, PyObject* form, long long version, KnownValue& found) {
  auto value = memory ? memory->value_at(place, form, version) : nullptr;
  found = {std::move(memory), std::move(value), place, false};
  return found.value != nullptr;
}

bool find_on_host(Entries* self, PyObject* tensor, KnownValue& found) {
  long long place = 0, version;
  Ref form = form_of(self, tensor, place);
  Ref storage = form ? members.untyped_storage.call(tensor) : Ref();
  Ref resizable = storage ? members.resizable.call(storage.get()) : Ref();
  if (!resizable) return is_unreadable();
  if (resizable.get() != Py_True) return true;  // NumPy shares it: writes to it may go unseen
  return version_of(tensor, version) &&
         take_value(self->parts->memories.meet(storage.get()), place, form.get(), version, found);
}

bool find_on_maca(Entries* self, PyObject* tensor, KnownValue& found) {
  Ref payload(PyObject_GetAttr(tensor, known.payload_name));
  maca_buffer* buffer = payload ? memory_of(payload.get()) : nullptr;
  if (!buffer) return false;
  const auto writes = static_cast<long long>(buffer->writes());
  auto memory = self->parts->memories.meet(PyTuple_GetItem(payload.get(), 0), writes);
  if (!memory) return false;
  if (std::exchange(memory->writes, writes) != writes) memory->forget();
  const long long offset = PyLong_AsLongLong(PyTuple_GetItem(payload.get(), 1));
  if (offset == -1 && PyErr_Occurred()) return false;
  return take_value(std::move(memory), offset, PyTuple_GetItem(payload.get(), 2), 0, found);
}

bool is_maca(PyObject* tensor) { return PyObject_TypeCheck(tensor, reinterpret_cast<PyTypeObject*>(known.tensor)); }

}  // namespace

bool find(Entries* self, PyObject* tensor, KnownValue& found) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  if (type == known.tensor) return find_on_maca(self, tensor, found);
  return (type != recording.tensor && type != recording.parameter) || find_on_host(self, tensor, found);
}

bool find_again(Entries* self, PyObject* tensor, const KnownValue& known, KnownValue& found) {
  long long place = 0, version;
  const bool is_of_host = known.value && is_tensor_type(Py_TYPE(tensor)) && !is_maca(tensor);
  Ref form = is_of_host ? form_in_one(self, tensor, place, true) : Ref();
  if (!form && PyErr_Occurred()) return false;
  if (!form || form.get() != known.value->form.get() || place != known.place || !known.memory->is_there())
    return find(self, tensor, found);
  return version_of(tensor, version) && take_value(known.memory, place, form.get(), version, found);
}

bool find_any(Entries* self, PyObject* tensor, KnownValue& found) {
  return is_maca(tensor) ? find_on_maca(self, tensor, found) : find(self, tensor, found);
}

std::shared_ptr<Memory> met_memory(Entries* self, PyObject* tensor) {
  Ref owner;
  if (is_maca(tensor)) {
    Ref payload(PyObject_GetAttr(tensor, known.payload_name));
    if (payload && memory_of(payload.get())) owner = Ref::borrowed(PyTuple_GetItem(payload.get(), 0));
  } else if (!is_tensor_object(tensor)) {  // a method that was found once does not look
    PyErr_Format(PyExc_TypeError, "expected a tensor, got %R", reinterpret_cast<PyObject*>(Py_TYPE(tensor)));
  } else if (is_tensor_type(Py_TYPE(tensor)) || Plainly::now()) {
    owner = members.untyped_storage.call(tensor);
    if (!owner) is_unreadable();
  }
  return owner ? self->parts->memories.find(owner.get()) : nullptr;
}

bool wrote(PyObject* entries, PyObject* tensor) {
  if (is_maca(tensor)) return true;  // the runtime counts
  if (const auto memory = met_memory(reinterpret_cast<Entries*>(entries), tensor)) memory->note_write();
  return !PyErr_Occurred();
}

}  // namespace maca::recorder
