// RecordedEntries, the base of the describer: what find.cpp, which says what value a tensor has, and entries.cpp, which
// writes entries, share.
#pragma once
#include "recording.h"

namespace maca::recorder {

struct Entries {
  struct Parts {
    Memories memories;
    std::unordered_map<std::string, Ref> plain_forms;  // of host tensors, by what DLPack says of them
    std::string key;                                   // memory for the one that is looked for
    int refused = 0;                                   // tensors that DLPack's exchange has refused
  };
  PyObject_HEAD PyObject* forms;  // from what tells forms apart to what entries say of it; of new_form()
  Parts* parts;
  char has_numbers;  // record levels 1 and 2

  int traverse(visitproc visit, void* arg) {
    Py_VISIT(forms);
    return 0;
  }
  void clear() { Py_CLEAR(forms); }
  void release() {
    clear();
    parts->memories.clear();
    delete parts;
  }
};

// Of tensors of the exact types that most are. These return false with an exception.
bool find(Entries* self, PyObject* tensor, KnownValue& found);
// The same after an operator that was given the host tensor: it may have written it, or made another view of it. While
// form and address are the same, the allocation is, which is three questions less, one of them with the GIL given away.
bool find_again(Entries* self, PyObject* tensor, const KnownValue& known, KnownValue& found);
// Of subclasses of MacaTensor too, whose entries Python writes.
bool find_any(Entries* self, PyObject* tensor, KnownValue& found);
// The memory of a tensor, if it was met.
std::shared_ptr<Memory> met_memory(Entries* self, PyObject* tensor);

template <class... Given> Ref ask(Entries* self, const char* method, Given... given) {
  return ask(reinterpret_cast<PyObject*>(self), method, given...);
}

}  // namespace maca::recorder
