// Text of JSON, made of what Python holds.
#include <bit>
#include <charconv>
#include <cmath>

#include "recording.h"

namespace maca::recorder {
namespace {

constexpr Py_ssize_t kLongest = 1000;  // characters of a value that are written; describe._TEXT

bool is_plain(const char* text, size_t size) {  // json writes it as it is
  for (size_t i = 0; i < size; ++i)
    if (text[i] < 0x20 || text[i] > 0x7e || text[i] == '"' || text[i] == '\\') return false;
  return true;
}

// By repr(), which takes a microsecond: learning rates and coefficients come again at every call.
bool append_finite(std::string& out, PyObject* value) {
  constexpr size_t kKept = 4096;
  static auto& known = *new std::unordered_map<uint64_t, std::string>;  // by its bits: -0.0 is 0.0
  if (known.size() >= kKept) known.clear();
  std::string& text = known[std::bit_cast<uint64_t>(PyFloat_AsDouble(value))];
  Ref made(text.empty() ? PyObject_Repr(value) : nullptr);
  if (made && !append_text(text, made.get())) return false;
  out += text;
  return !text.empty();
}

bool append_by(std::string& out, PyObject* function, PyObject* value) {
  Ref text(Plainly::now() ? PyObject_CallFunctionObjArgs(function, value, nullptr) : nullptr);
  return text && append_text(out, text.get());
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
  if (PyFloat_CheckExact(value) && std::isfinite(PyFloat_AsDouble(value))) return append_finite(out, value);
  if (PyUnicode_CheckExact(value) && PyUnicode_GetLength(value) <= kLongest) {
    std::string text;
    return append_text(text, value) && append_string(out, text);
  }
  int is_too_large = 0;
  const long long number = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &is_too_large) : 0;
  if (number == -1 && PyErr_Occurred()) return false;
  if (value == Py_None)
    out += "null";
  else if (value == Py_True || value == Py_False)
    out += value == Py_True ? "true" : "false";
  else if (PyLong_CheckExact(value) && !is_too_large)
    append_number(out, number);
  else
    return append_by(out, recording.value_text, value);
  return true;
}

}  // namespace maca::recorder
