// What value a tensor has: its form, the allocation that it lies in, and which of the values that this has had.
#include <cstring>

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
// Of host tensors whose elements are what the memory holds: a key of bytes is made in a tenth of a tuple's time.
class PlainKey {
 public:
  PlainKey(PyObject* dtype, int64_t rank, const int64_t* sizes, const int64_t* strides) {
    const size_t bytes = static_cast<size_t>(rank) * sizeof(int64_t);
    size_ = sizeof dtype + 2 * bytes;
    if (size_ > sizeof held_) more_.resize(size_);
    char* out = size_ > sizeof held_ ? more_.data() : held_;
    std::memcpy(out, &dtype, sizeof dtype);
    if (!bytes) return;  // there may be no sizes
    std::memcpy(out + sizeof dtype, sizes, bytes);
    std::memcpy(out + sizeof dtype + bytes, strides, bytes);
  }
  std::string_view bytes() const { return {more_.empty() ? held_ : more_.data(), size_}; }

 private:
  char held_[sizeof(PyObject*) + 2 * 6 * sizeof(int64_t)];
  std::string more_;
  size_t size_;
};

Ref plain_form_of(Entries* self, PyObject* tensor, const PlainKey& key) {
  const auto found = self->plain_forms->find(key.bytes());
  if (found != self->plain_forms->end()) return Ref::borrowed(found->second);
  Ref shape = members.shape.of(tensor), stride = shape ? members.stride.call(tensor) : Ref();
  Ref dtype = stride ? members.dtype.of(tensor) : Ref(), device = dtype ? members.device.of(tensor) : Ref();
  Ref named(device ? PyTuple_Pack(4, shape.get(), stride.get(), dtype.get(), device.get()) : nullptr);
  Ref form = named ? ask(self, known_names.new_form, named.get(), tensor) : Ref();
  if (!form) return form;
  if (self->plain_forms->size() >= kPlainForms) drop_plain_forms(self);
  self->plain_forms->emplace(key.bytes(), Ref::borrowed(form.get()).release());
  return form;
}

// PyTorch's object for a dtype of DLPack's; null with an exception.
PyObject* dtype_of(PyObject* tensor, const DlTensor& read) {
  static auto& known = *new std::unordered_map<uint32_t, PyObject*>;  // dtypes live as long as PyTorch
  uint32_t bits;
  static_assert(sizeof bits == sizeof read.dtype);
  std::memcpy(&bits, &read.dtype, sizeof bits);
  const auto found = known.find(bits);
  if (found != known.end()) return found->second;
  Ref dtype = members.dtype.of(tensor);
  return dtype ? known[bits] = dtype.release() : nullptr;
}

// A host tensor's form and the address of its first element, in one question, and whether it is a negative view in
// another, unless that is known. Without a form: an exception, or it is a tensor of another kind.
Ref form_in_one(Entries* self, PyObject* tensor, long long& place, bool is_known_plain = false) {
  DlTensor read{};
  if (recording.exchange->read(tensor, &read)) {
    if (!PyErr_Occurred() || !PyErr_ExceptionMatches(PyExc_Exception)) return Ref();
    PyErr_Clear();
    ++self->refused;
    return Ref();
  }
  if (read.device.type != kDlHost || read.dtype.code == kDlComplex) return Ref();
  Ref neg = is_known_plain ? Ref::borrowed(Py_False) : members.is_neg.call(tensor);
  PyObject* dtype = neg && neg.get() != Py_True ? dtype_of(tensor, read) : nullptr;
  if (!dtype) return Ref();
  place = static_cast<long long>(reinterpret_cast<intptr_t>(read.data));
  return plain_form_of(self, tensor, {dtype, read.rank, read.sizes, read.strides});
}

bool append_numbers(std::vector<int64_t>& numbers, PyObject* tuple) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); ++i) numbers.push_back(PyLong_AsLongLong(PyTuple_GetItem(tuple, i)));
  return !PyErr_Occurred();
}

// The form of a strided tensor on the host and where in its memory it begins; null with an exception.
Ref form_of(Entries* self, PyObject* tensor, long long& place) {
  constexpr int kRefusals = 16;  // a tensor of a kind that DLPack lacks costs a millisecond: its error tells the stack
  if (recording.exchange && self->refused < kRefusals) {
    Ref form = form_in_one(self, tensor, place);
    if (form || PyErr_Occurred()) return form;
  }
  Ref shape = members.shape.of(tensor), stride = shape ? members.stride.call(tensor) : Ref();
  Ref dtype = stride ? members.dtype.of(tensor) : Ref(), is_cpu = dtype ? members.is_cpu.of(tensor) : Ref();
  Ref neg = is_cpu ? members.is_neg.call(tensor) : Ref();
  const int is_complex = neg ? PySet_Contains(recording.complex_types, dtype.get()) : -1;
  if (is_complex < 0) return Ref();
  Ref address = members.data_ptr.call(tensor);
  place = address ? PyLong_AsLongLong(address.get()) : -1;
  if (PyErr_Occurred()) return Ref();
  if (!is_complex && neg.get() != Py_True && is_cpu.get() == Py_True) {
    std::vector<int64_t> numbers;
    if (!append_numbers(numbers, shape.get()) || !append_numbers(numbers, stride.get())) return Ref();
    const auto rank = static_cast<int64_t>(numbers.size() / 2);
    return plain_form_of(self, tensor, {dtype.get(), rank, numbers.data(), numbers.data() + rank});
  }
  Ref device = members.device.of(tensor), conj = device ? members.is_conj.call(tensor) : Ref();
  Ref key(!conj ? nullptr
                : PyTuple_Pack(6, shape.get(), stride.get(), dtype.get(), device.get(), conj.get(), neg.get()));
  if (!key) return Ref();
  Ref form = Ref::borrowed(PyDict_GetItemWithError(self->forms, key.get()));
  if (form || PyErr_Occurred()) return form;
  return ask(self, known_names.new_form, key.get(), tensor);
}

// --- memory ---------------------------------------------------------------------------------------------------
bool version_of(PyObject* tensor, long long& version) {
  Ref counted = members.version.of(tensor);
  version = counted ? PyLong_AsLongLong(counted.get()) : 0;
  if (!PyErr_Occurred()) return true;
  if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return false;
  PyErr_Clear();  // inference tensors do not count
  version = 0;
  return true;
}

bool take_value(Memory* memory, long long place, PyObject* form, long long version, KnownValue& found) {
  Ref held = Ref::borrowed(reinterpret_cast<PyObject*>(memory));
  Value* value = value_at(memory, place, form, version);
  found = {std::move(held), Ref(reinterpret_cast<PyObject*>(value)), place, false};
  return value != nullptr;
}

bool find_on_host(Entries* self, PyObject* tensor, KnownValue& found) {
  long long place = 0, version;
  Ref form = form_of(self, tensor, place);
  Ref storage = form ? members.untyped_storage.call(tensor) : Ref();
  Ref resizable = storage ? members.resizable.call(storage.get()) : Ref();
  if (!resizable) return is_unreadable();
  if (resizable.get() != Py_True) return true;  // NumPy shares it: writes to it may go unseen
  if (!version_of(tensor, version)) return false;
  Memory* memory = meet_memory(self->memories, storage.get());
  return memory && take_value(memory, place, form.get(), version, found);
}

bool find_on_maca(Entries* self, PyObject* tensor, KnownValue& found) {
  Ref payload(PyObject_GetAttr(tensor, known.payload_name));
  maca_buffer* buffer = payload ? memory_of(payload.get()) : nullptr;
  if (!buffer) return false;
  PyObject* held = PyTuple_GetItem(payload.get(), 0);
  const auto writes = static_cast<long long>(buffer->writes());
  Memory* memory = meet_memory(self->memories, held, writes);
  if (!memory) return false;
  if (writes_of(memory) != writes) {
    forget(memory);
    writes_of(memory) = writes;
  }
  const long long offset = PyLong_AsLongLong(PyTuple_GetItem(payload.get(), 1));
  if (offset == -1 && PyErr_Occurred()) return false;
  return take_value(memory, offset, PyTuple_GetItem(payload.get(), 2), 0, found);
}

}  // namespace

void drop_plain_forms(Entries* self) {
  PlainForms gone;
  gone.swap(*self->plain_forms);
  for (const auto& [key, form] : gone) Py_DECREF(form);
}

bool find(Entries* self, PyObject* tensor, KnownValue& found) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  if (type == known.tensor) return find_on_maca(self, tensor, found);
  return (type != recording.tensor && type != recording.parameter) || find_on_host(self, tensor, found);
}

bool find_version(PyObject* tensor, const KnownValue& known, KnownValue& found) {
  long long version;
  if (!version_of(tensor, version)) return false;
  Ref form = Ref::borrowed(reinterpret_cast<Value*>(known.value.get())->form);
  return take_value(reinterpret_cast<Memory*>(known.memory.get()), known.place, form.get(), version, found);
}

bool find_again(Entries* self, PyObject* tensor, const KnownValue& known, KnownValue& found) {
  long long place = 0, version;
  auto* memory = reinterpret_cast<Memory*>(known.memory.get());
  Ref form = recording.exchange ? form_in_one(self, tensor, place, true) : Ref();
  if (!form && PyErr_Occurred()) return false;
  if (!form || form.get() != reinterpret_cast<Value*>(known.value.get())->form || place != known.place ||
      !is_there(memory))
    return find(self, tensor, found);
  return version_of(tensor, version) && take_value(memory, place, form.get(), version, found);
}

bool find_any(Entries* self, PyObject* tensor, KnownValue& found) {
  if (PyObject_TypeCheck(tensor, reinterpret_cast<PyTypeObject*>(known.tensor)))
    return find_on_maca(self, tensor, found);
  return find(self, tensor, found);
}

bool wrote(PyObject* entries, PyObject* tensor) {
  if (PyObject_TypeCheck(tensor, reinterpret_cast<PyTypeObject*>(known.tensor))) return true;  // the runtime counts
  if (!is_tensor_object(tensor)) {  // a method that was found once does not look
    PyErr_Format(PyExc_TypeError, "expected a tensor, got %R", reinterpret_cast<PyObject*>(Py_TYPE(tensor)));
    return false;
  }
  if (!is_tensor_type(Py_TYPE(tensor)) && !Plainly::now()) return false;
  Ref storage = members.untyped_storage.call(tensor);
  if (!storage) return is_unreadable();
  Memory* memory = memory_of(reinterpret_cast<Entries*>(entries)->memories, storage.get());
  if (memory) note_write(memory);
  return true;
}

}  // namespace maca::recorder
