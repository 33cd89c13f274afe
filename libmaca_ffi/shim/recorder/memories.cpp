// Which values are the same: an allocation, how often it was written, and the view of it.
//
// RecordedMemories are the allocations that a session has met, RecordedMemory is one of them. It goes when its owner
// does. With PyTorch's own weak references, whose storages are looked through from time to time, those that are gone
// would stay: among the tensors' memory, where the C library cannot use what lies between them. A GPT's training step
// took half as much memory again, and all of it comes into the caches anew.
#include "recording.h"

#include <structmember.h>

#include <cstddef>
#include <memory>
#include <unordered_map>

namespace maca::recorder {

namespace {

struct View {
  long long offset;
  Value* value;
};

using Table = std::unordered_map<PyObject*, Memory*>;  // by the owner; holds the Memory

struct Memories {
  PyObject_HEAD Table* table;
};

}  // namespace

struct Memory {
  PyObject_HEAD PyObject* owner;  // not held
  PyObject* reference;            // a weak one to the owner, which calls this object when that is gone
  Memories* memories;             // where it is; nullptr: nowhere any more
  long long writes;               // as a Buffer counts them
  char is_written;                // since the program's own counter was seen last
  char is_blank;                  // not written since it was allocated
  long long last[kLevels];        // the call that wrote it last
  std::vector<View> views;
};

namespace {

constexpr size_t kViews = 256;  // of one allocation that are remembered
constexpr long long kNoCall = -1;

PyTypeObject *g_memory_type = nullptr, *g_memories_type = nullptr;

Memory* as_memory(PyObject* object) { return reinterpret_cast<Memory*>(object); }
Memories* as_memories(PyObject* object) { return reinterpret_cast<Memories*>(object); }

// --- RecordedMemory -------------------------------------------------------------------------------------------
void drop_views(Memory* self) {
  std::vector<View> gone;
  gone.swap(self->views);  // first: what is freed may run Python's code
  for (View& view : gone) Py_DECREF(reinterpret_cast<PyObject*>(view.value));
}

// Takes it out of the table. It may be freed.
void leave(Memory* self) {
  Ref held;
  if (self->memories) {
    self->memories->table->erase(self->owner);
    held = Ref(reinterpret_cast<PyObject*>(self));
    self->memories = nullptr;
  }
  Py_CLEAR(self->reference);
}

PyObject* owner_gone(PyObject* object, PyObject*, PyObject*) {
  leave(as_memory(object));
  Py_RETURN_NONE;
}

int memory_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(as_memory(object)->reference);
  return 0;
}

int memory_clear(PyObject* object) {
  Py_CLEAR(as_memory(object)->reference);
  return 0;
}

void memory_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  memory_clear(object);
  drop_views(as_memory(object));
  std::destroy_at(&as_memory(object)->views);
  release_memory(object);
}

PyObject* forget_method(PyObject* self, PyObject*) {
  forget(as_memory(self));
  Py_RETURN_NONE;
}

PyObject* written_by_method(PyObject* object, PyObject* args) {
  int level;
  long long call;
  if (!PyArg_ParseTuple(args, "iL:written_by", &level, &call)) return nullptr;
  if (level < 0 || level >= kLevels) return PyErr_Format(PyExc_ValueError, "level is 0 or 1, got %d", level);
  as_memory(object)->last[level] = call;
  for (View& view : as_memory(object)->views) view.value->made[level] = call;
  Py_RETURN_NONE;
}

PyMethodDef g_memory_methods[] = {
    {"forget", forget_method, METH_NOARGS, "forget(): nothing known of the elements holds any more."},
    {"written_by", written_by_method, METH_VARARGS,
     "written_by(level, call): a call that no result tells of wrote it."},
    {},
};

PyMemberDef g_memory_members[] = {
    {"is_written", T_BOOL, offsetof(Memory, is_written), 0, "Written since PyTorch's own counter was seen last."},
    {"is_blank", T_BOOL, offsetof(Memory, is_blank), 0, "Not written since it was allocated."},
    {},
};

PyType_Slot g_memory_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(memory_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(memory_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(memory_clear)},
    {Py_tp_call, reinterpret_cast<void*>(owner_gone)},
    {Py_tp_methods, g_memory_methods},
    {Py_tp_members, g_memory_members},
    {Py_tp_doc, const_cast<char*>("An allocation that tensors share. It is called when its owner is gone.")},
    {0, nullptr},
};

PyType_Spec g_memory_spec = {"libmaca_ffi._recorder.RecordedMemory", sizeof(Memory), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                             g_memory_slots};

// --- RecordedMemories -----------------------------------------------------------------------------------------
PyObject* memories_create(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* object = allocate(type);
  if (object) as_memories(object)->table = new Table;
  return object;
}

int memories_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  for (const auto& [owner, memory] : *as_memories(object)->table) Py_VISIT(reinterpret_cast<PyObject*>(memory));
  return 0;
}

int memories_clear(PyObject* object) {
  Table& table = *as_memories(object)->table;
  while (!table.empty()) leave(table.begin()->second);
  return 0;
}

void memories_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  memories_clear(object);
  delete as_memories(object)->table;
  release_memory(object);
}

PyObject* get_method(PyObject* self, PyObject* owner) {
  Memory* found = memory_of(self, owner);
  return Ref::borrowed(found ? reinterpret_cast<PyObject*>(found) : Py_None).release();
}

PyObject* clear_method(PyObject* self, PyObject*) {
  memories_clear(self);
  Py_RETURN_NONE;
}

PyMethodDef g_memories_methods[] = {
    {"get", get_method, METH_O, "get(owner): the RecordedMemory of a Buffer or a storage, or None: it was not met."},
    {"clear", clear_method, METH_NOARGS, "clear(): none was met."},
    {},
};

PyType_Slot g_memories_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(memories_create)},
    {Py_tp_dealloc, reinterpret_cast<void*>(memories_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(memories_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(memories_clear)},
    {Py_tp_methods, g_memories_methods},
    {Py_tp_doc, const_cast<char*>("RecordedMemories()\n\nThe allocations that were met and are still there.")},
    {0, nullptr},
};

PyType_Spec g_memories_spec = {"libmaca_ffi._recorder.RecordedMemories", sizeof(Memories), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, g_memories_slots};

}  // namespace

bool is_memories(PyObject* object) { return Py_TYPE(object) == g_memories_type; }

Memory* memory_of(PyObject* memories, PyObject* owner) {
  const Table& table = *as_memories(memories)->table;
  const auto found = table.find(owner);
  return found == table.end() ? nullptr : found->second;
}

Memory* meet_memory(PyObject* memories, PyObject* owner, long long writes) {
  if (Memory* met = memory_of(memories, owner)) return met;
  Ref object(allocate(g_memory_type));
  if (!object) return nullptr;
  Memory* self = as_memory(object.get());
  new (&self->views) std::vector<View>;
  self->owner = owner;
  self->writes = writes;
  for (long long& call : self->last) call = kNoCall;
  if (!(self->reference = PyWeakref_NewRef(owner, object.get()))) return nullptr;
  self->memories = as_memories(memories);
  self->memories->table->emplace(owner, self);  // takes the reference over
  return as_memory(object.release());
}

bool is_there(const Memory* memory) { return memory->memories != nullptr; }

void note_write(Memory* memory) {
  forget(memory);
  memory->is_written = true;
}

long long& writes_of(Memory* memory) { return memory->writes; }
void set_last(Memory* memory, int level, long long call) { memory->last[level] = call; }

void forget(Memory* memory) {
  drop_views(memory);
  for (long long& call : memory->last) call = kNoCall;
  memory->is_blank = false;
}

Value* value_at(Memory* memory, long long offset, PyObject* form, long long version) {
  std::vector<View>& views = memory->views;
  View* found = nullptr;
  for (size_t i = views.size(); i-- > 0 && !found;)
    if (views[i].offset == offset && views[i].value->form == form) found = &views[i];
  if (found) {
    Value* value = found->value;
    if (value->is_unsettled && value->version + 1 == version) {
      value->version = version;
      value->is_unsettled = false;
      memory->is_written = false;
    }
    if (value->version == version) {
      Py_INCREF(reinterpret_cast<PyObject*>(value));
      return value;
    }
  }
  // memory as it was found has numbers that mean nothing: none
  Ref numbers(memory->is_blank ? PyUnicode_FromString("") : Ref::borrowed(Py_None).release());
  Value* value = numbers ? new_value(form, version, memory->is_written, memory->last, numbers.get()) : nullptr;
  if (!value) return nullptr;
  Py_INCREF(reinterpret_cast<PyObject*>(value));  // the table's
  if (found) {
    Ref old(reinterpret_cast<PyObject*>(std::exchange(found->value, value)));
    return value;
  }
  if (views.size() >= kViews) drop_views(memory);
  views.push_back({offset, value});
  return value;
}

bool add_recording_memories(PyObject* module) {
  g_memory_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_memory_spec));
  g_memories_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_memories_spec));
  return g_memory_type && g_memories_type &&
         PyModule_AddObjectRef(module, "RecordedMemories", reinterpret_cast<PyObject*>(g_memories_type)) == 0;
}

}  // namespace maca::recorder
