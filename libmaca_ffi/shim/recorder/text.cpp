// Text of JSON, made of what Python holds.
#include <charconv>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "recording.h"

namespace maca::recorder {
namespace {

constexpr Py_ssize_t kLongest = 1000;  // characters or elements of a value; describe._TEXT

bool is_plain(const char* text, size_t size) {  // json writes it as it is
  for (size_t i = 0; i < size; ++i)
    if (text[i] < 0x20 || text[i] > 0x7e || text[i] == '"' || text[i] == '\\') return false;
  return true;
}

bool append_by(std::string& out, PyObject* function, PyObject* value) {
  Ref text(Plainly::now() ? PyObject_CallFunctionObjArgs(function, value, nullptr) : nullptr);
  return text && append_text(out, text.get());
}

bool append_integer(std::string& out, PyObject* value, bool& fits) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (number == -1 && PyErr_Occurred()) return false;
  fits = !overflow;
  if (fits) append_number(out, number);
  return true;
}

// As repr() writes a number, which takes a microsecond: learning rates and coefficients come again at every call.
bool append_double(std::string& out, double value) {
  constexpr size_t kKept = 4096;
  static auto& known = *new std::unordered_map<uint64_t, std::string>;  // by its bits
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const auto found = known.find(bits);
  if (found != known.end()) {
    out += found->second;
    return true;
  }
  char* digits = PyOS_double_to_string(value, 'r', 0, Py_DTSF_ADD_DOT_0, nullptr);
  if (!digits) return false;
  out += digits;
  if (known.size() >= kKept) known.clear();
  known.emplace(bits, digits);
  PyMem_Free(digits);
  return true;
}

// A value that holds no others; `fits` is false, and nothing is written, of one of a kind that Python puts into words.
bool append_single(std::string& out, PyObject* value, bool& fits) {
  fits = true;
  if (value == Py_None) {
    out += "null";
  } else if (value == Py_True || value == Py_False) {
    out += value == Py_True ? "true" : "false";
  } else if (PyLong_CheckExact(value)) {
    return append_integer(out, value, fits);
  } else if (PyFloat_CheckExact(value) && std::isfinite(PyFloat_AsDouble(value))) {
    return append_double(out, PyFloat_AsDouble(value));
  } else if (PyUnicode_CheckExact(value)) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(value, &size);
    if (!text) PyErr_Clear();
    fits = text && size <= kLongest && is_plain(text, static_cast<size_t>(size));
    if (fits) ((out += '"').append(text, static_cast<size_t>(size))) += '"';
  } else {
    fits = false;
  }
  return true;
}

// Sizes, dimensions and masks, as json.dumps has them; `fits` is as above.
bool append_sequence(std::string& out, PyObject* values, bool& fits) {
  const bool is_list = PyList_CheckExact(values);
  const Py_ssize_t size = is_list ? PyList_Size(values) : PyTuple_Size(values);
  const size_t before = out.size();
  fits = size <= kLongest;
  out += '[';
  for (Py_ssize_t i = 0; fits && i < size; ++i) {
    if (i) out += ", ";
    if (!append_single(out, is_list ? PyList_GetItem(values, i) : PyTuple_GetItem(values, i), fits)) return false;
  }
  if (fits)
    out += ']';
  else
    out.resize(before);
  return true;
}

}  // namespace

bool append_text(std::string& out, PyObject* text) {
  Py_ssize_t size = 0;
  const char* held = PyUnicode_AsUTF8AndSize(text, &size);
  if (held) {
    out.append(held, static_cast<size_t>(size));
    return true;
  }
  if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return false;
  PyErr_Clear();  // half of a surrogate pair, as file names may have
  Ref bytes(PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass"));
  char* encoded = nullptr;
  if (!bytes || PyBytes_AsStringAndSize(bytes.get(), &encoded, &size)) return false;
  out.append(encoded, static_cast<size_t>(size));
  return true;
}

PyObject* new_text(const std::string& text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass");
}

bool append_string(std::string& out, const std::string& text) {
  if (!is_plain(text.data(), text.size())) {
    Ref held(new_text(text));
    return held && append_by(out, recording.escaped, held.get());
  }
  out += '"';
  out += text;
  out += '"';
  return true;
}

void append_number(std::string& out, long long number) {
  char digits[20];  // and the sign of the longest
  out.append(digits, std::to_chars(digits, std::end(digits), number).ptr);
}

bool append_value(std::string& out, PyObject* value) {
  bool fits = false;
  const bool is_sequence = PyList_CheckExact(value) || PyTuple_CheckExact(value);
  if (!(is_sequence ? append_sequence : append_single)(out, value, fits)) return false;
  return fits || append_by(out, recording.value_text, value);
}

}  // namespace maca::recorder
