// RecordedSummary: the numbers of host tensors of one form, by the host library's function for memory of its own.
#include "recording.h"

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace maca::recorder {
namespace {

using Summarize = int32_t (*)(int32_t code, int32_t bits, int32_t rank, const int64_t* sizes, const int64_t* strides,
                              const void* data, double* result, const void* threads);

constexpr int64_t kLong = 1 << 18;  // elements: below it keeping the interpreter's lock costs less than taking it again

struct Layout {
  std::vector<int64_t> sizes, strides;
  int64_t count = 1, reach = 0;  // elements; those from the first to behind the last in memory
};

struct Summary {
  PyObject_HEAD Summarize function;
  int code, bits;
  const void* threads;  // that take part, as the function knows them
  Layout* layout;
};

PyTypeObject* g_type = nullptr;

bool read_numbers(PyObject* tuple, std::vector<int64_t>& numbers) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); ++i) numbers.push_back(PyLong_AsLongLong(PyTuple_GetItem(tuple, i)));
  return !PyErr_Occurred();
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject*) {
  unsigned long long function, threads;
  int code, bits;
  PyObject *sizes, *strides;
  if (!PyArg_ParseTuple(args, "KKiiO!O!:RecordedSummary", &function, &threads, &code, &bits, &PyTuple_Type, &sizes,
                        &PyTuple_Type, &strides))
    return nullptr;
  auto layout = std::make_unique<Layout>();
  if (!read_numbers(sizes, layout->sizes) || !read_numbers(strides, layout->strides)) return nullptr;
  if (!function || layout->sizes.size() != layout->strides.size())
    return PyErr_Format(PyExc_ValueError, "RecordedSummary expects a function, and as many strides as sizes");
  int64_t last = 0;
  for (size_t i = 0; i < layout->sizes.size(); ++i) {
    layout->count *= layout->sizes[i];
    last += (layout->sizes[i] - 1) * std::abs(layout->strides[i]);
  }
  if (layout->count) layout->reach = last + 1;
  auto* self = reinterpret_cast<Summary*>(allocate(type));
  if (!self) return nullptr;
  self->function = reinterpret_cast<Summarize>(static_cast<uintptr_t>(function));
  self->threads = reinterpret_cast<const void*>(static_cast<uintptr_t>(threads));
  self->code = code;
  self->bits = bits;
  self->layout = layout.release();
  return reinterpret_cast<PyObject*>(self);
}

void dealloc(PyObject* object) {
  delete reinterpret_cast<Summary*>(object)->layout;
  release_memory(object);
}

long long as_number(const Ref& number) { return number ? PyLong_AsLongLong(number.get()) : -1; }

// Does the memory hold all elements? Not of a storage that was made smaller, nor of the zeros of forward-mode
// derivatives, which have none. -1 with an exception.
int is_there(const Summary* self, PyObject* tensor, const void* data) {
  if (!self->layout->reach) return 1;
  if (!data) return 0;
  Ref storage = members.untyped_storage.call(tensor);
  const long long bytes = as_number(storage ? members.nbytes.call(storage.get()) : Ref());
  const long long offset = bytes < 0 ? -1 : as_number(members.storage_offset.call(tensor));
  if (offset < 0) return -1;
  return (offset + self->layout->reach) * (self->bits / 8) <= bytes;
}

PyObject* call(PyObject* self, PyObject* args, PyObject*) {
  PyObject* tensor;
  double found[kNumbers];
  bool is_found = false;
  if (!PyArg_ParseTuple(args, "O:RecordedSummary", &tensor) || !summarize(self, tensor, found, is_found))
    return nullptr;
  if (!is_found) Py_RETURN_NONE;
  uint64_t hash;
  std::memcpy(&hash, found + 7, sizeof hash);
  return Py_BuildValue("(dddddddK)", found[0], found[1], found[2], found[3], found[4], found[5], found[6],
                       static_cast<unsigned long long>(hash));
}

PyType_Slot g_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_call, reinterpret_cast<void*>(call)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_doc,
     const_cast<char*>("RecordedSummary(function, threads, code, bits, sizes, strides)\n\nCalled with a host tensor of "
                       "this form: minimum, maximum, mean, norm, how many are NaN, Inf and finite, and the "
                       "hash; or None when its memory does not hold it. `function` is the address of "
                       "maca_host_summarize, `threads` of an OpenMp, or 0.")},
    {0, nullptr},
};

PyType_Spec g_spec = {"libmaca_ffi._recorder.RecordedSummary", sizeof(Summary), 0, Py_TPFLAGS_DEFAULT, g_slots};

}  // namespace

bool is_summary(PyObject* object) { return Py_TYPE(object) == g_type; }

bool summarize(PyObject* object, PyObject* tensor, double (&found)[kNumbers], bool& is_found) {
  const auto* self = reinterpret_cast<Summary*>(object);
  const Layout& layout = *self->layout;
  Ref address = members.data_ptr.call(tensor);
  const void* data = address ? PyLong_AsVoidPtr(address.get()) : nullptr;
  if (PyErr_Occurred()) return false;
  const int is = is_there(self, tensor, data);
  if (is <= 0) return is == 0;
  const auto run = [&] {
    return self->function(self->code, self->bits, static_cast<int32_t>(layout.sizes.size()), layout.sizes.data(),
                          layout.strides.data(), data, found, self->threads);
  };
  int32_t status;
  if (layout.count > kLong) {
    Py_BEGIN_ALLOW_THREADS;
    status = run();
    Py_END_ALLOW_THREADS;
  } else {
    status = run();
  }
  is_found = status == 0;
  return true;
}

bool append_summary(std::string& out, const double (&found)[kNumbers], bool& is_written) {
  const double &norm = found[3], &finite = found[6];
  is_written = finite == 0 || std::isfinite(norm);  // else extremes are written as JSON has them, by Python
  if (!is_written) return true;
  static const char* names[] = {",\"min\":", ",\"max\":", ",\"mean\":", ",\"norm\":"};
  for (int i = 0; finite != 0 && i < 4; ++i) {
    char* digits = PyOS_double_to_string(found[i], 'r', 0, Py_DTSF_ADD_DOT_0, nullptr);
    if (!digits) return false;
    (out += names[i]) += digits;
    PyMem_Free(digits);
  }
  uint64_t hash;
  std::memcpy(&hash, found + 7, sizeof hash);
  char text[96];
  std::snprintf(text, sizeof text, ",\"nan\":%lld,\"inf\":%lld,\"hash\":\"%016llx\"", static_cast<long long>(found[4]),
                static_cast<long long>(found[5]), static_cast<unsigned long long>(hash));
  out += text;
  return true;
}

bool add_recording_summary(PyObject* module) {
  g_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_spec));
  return g_type && PyModule_AddObjectRef(module, "RecordedSummary", reinterpret_cast<PyObject*>(g_type)) == 0;
}

}  // namespace maca::recorder
