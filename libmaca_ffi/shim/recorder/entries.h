// RecordedEntries, the base of the describer: what recording_find.cpp, which says what value a tensor has, and
// recording_entries.cpp, which writes entries, share.
#pragma once
#include <functional>
#include <string_view>
#include <unordered_map>

#include "recording.h"

namespace maca::recorder {

// Keys are looked for without a std::string of their own.
struct BytesHash {
  using is_transparent = void;
  size_t operator()(std::string_view bytes) const { return std::hash<std::string_view>()(bytes); }
};
using PlainForms = std::unordered_map<std::string, PyObject*, BytesHash, std::equal_to<>>;

struct Entries {
  PyObject_HEAD PyObject* memories;  // RecordedMemories
  PyObject* forms;                   // from what tells forms apart to a Form
  PlainForms* plain_forms;           // to a Form, of plain_form_of()
  int refused;                       // tensors that DLPack's exchange has refused
  char has_numbers;                  // record levels 1 and 2
  char has_files;                    // record level 2
};

// Of tensors of the exact types that most are. These return false with an exception.
bool find(Entries* self, PyObject* tensor, KnownValue& found);
// The same of a tensor whose form and place in memory are those of `known`.
bool find_version(PyObject* tensor, const KnownValue& known, KnownValue& found);
// The same after an operator that was given the host tensor: it may have written it, or made another view of it. While
// form and address are the same, the allocation is, which is three questions less, one of them with the GIL given away.
bool find_again(Entries* self, PyObject* tensor, const KnownValue& known, KnownValue& found);
// Of subclasses of MacaTensor too, whose entries Python writes.
bool find_any(Entries* self, PyObject* tensor, KnownValue& found);
void drop_plain_forms(Entries* self);

// What the describer does in Python.
inline Ref ask(Entries* self, PyObject* method, PyObject* first, PyObject* second = nullptr) {
  if (!Plainly::now()) return Ref();
  return Ref(PyObject_CallMethodObjArgs(reinterpret_cast<PyObject*>(self), method, first, second, nullptr));
}

}  // namespace maca::recorder
