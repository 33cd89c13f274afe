// RecordedEntries: the base of the describer. Arguments and results as JSON, made of the texts of values met before.
#include "entries.h"

#include <structmember.h>

#include <algorithm>
#include <cstddef>

namespace maca::recorder {

Names known_names;

namespace {

using Type = Collected<Entries>;

PyTypeObject* g_type = nullptr;

// A call whose arguments or results are described.
struct Described {
  int level = 0;
  long long call = -1;             // the call's number, of results
  const Items* written = nullptr;  // results that were there before, if any
  MetTensors* met = nullptr;       // of a function, and what they are for
  Use use = Use::kNote;
};

bool is_level(int level) {
  if (level >= 0 && level < kLevels) return true;
  PyErr_Format(PyExc_ValueError, "level is 0 or 1, got %d", level);
  return false;
}

// An entry that Python writes, of any tensor.
bool append_new(Entries* self, std::string& out, PyObject* tensor, const Described& described, bool was_written,
                const std::string& place) {
  Ref level(PyLong_FromLong(described.level)), call(PyLong_FromLongLong(described.call)), name(new_text(place));
  if (!level || !call || !name || !Plainly::now()) return false;
  Ref text(PyObject_CallMethodObjArgs(reinterpret_cast<PyObject*>(self), known_names.entry, tensor, level.get(),
                                      call.get(), was_written ? Py_True : Py_False, name.get(), nullptr));
  return text && append_text(out, text.get());
}

// What all entries of a value's form say: (text, of one that requires a gradient, is it with the elements' numbers all
// that there is to say?: not of quantized tensors); null with an exception.
Ref form_text(Entries* self, PyObject* tensor, const Value& value) {
  Ref form = Ref::borrowed(value.form.get());
  if (!PyTuple_CheckExact(form.get())) {  // a Meta
    form = Ref::borrowed(PyDict_GetItemWithError(self->forms, value.form.get()));
    if (!form && !PyErr_Occurred()) form = ask(self, known_names.new_form, value.form.get(), tensor);
  }
  if (!form || (PyTuple_CheckExact(form.get()) && PyTuple_Size(form.get()) == 3)) return form;
  PyErr_SetString(PyExc_TypeError, "a form is (text, text with a gradient, is it all?)");
  return Ref();
}

// The text of a value that has none yet, kept with it. False, and perhaps no exception, when Python has to write it.
bool make_text(Entries* self, PyObject* tensor, Value& value, bool requires_grad, const std::string& place) {
  Ref form = form_text(self, tensor, value);
  if (!form || PyTuple_GetItem(form.get(), 2) != Py_True) return false;
  Ref text = Ref::borrowed(PyTuple_GetItem(form.get(), requires_grad ? 1 : 0));
  if (self->has_numbers) {
    Ref name(value.numbers ? nullptr : new_text(place));
    Ref numbers = name ? ask(self, known_names.numbers, tensor, name.get()) : Ref();
    if (numbers) value.numbers = std::move(numbers);
    if (!value.numbers) return false;
    text = Ref(PyUnicode_Concat(text.get(), value.numbers.get()));
  }
  (requires_grad ? value.grad_text : value.text) = std::move(text);
  return !PyErr_Occurred();
}

bool is_among(const Items* written, PyObject* tensor) {
  for (size_t i = 0; written && i < written->size(); ++i)
    if ((*written)[i].value.get() == tensor) return true;
  return false;
}

// The call that made an argument, or -1; of a result it is this call from now on.
long long credited(const KnownValue& found, const Described& described, bool was_written) {
  if (described.call < 0) return found.value->made[described.level];
  found.value->made[described.level] = described.call;
  if (was_written) found.memory->last[described.level] = described.call;
  return -1;
}

// What is known of a value: its text, made if there is none yet, and who made it. False as make_text().
bool append_known(Entries* self, std::string& out, PyObject* tensor, const KnownValue& found,
                  const Described& described, bool was_written, const std::string& place) {
  Value& value = *found.value;
  const Ref& text = found.has_gradient ? value.grad_text : value.text;
  if (!text && !make_text(self, tensor, value, found.has_gradient, place)) return false;
  if (!append_text(out, text.get())) return false;
  const long long made = credited(found, described, was_written);
  if (made >= 0) append_number(out += ",\"made_by\":", made);
  return true;
}

bool needs_gradient(PyObject* tensor, KnownValue& found) {
  Ref answer = members.requires_grad.of(tensor);
  found.has_gradient = answer.get() == Py_True;
  return static_cast<bool>(answer);
}

// find(), and whether the tensor requires a gradient.
bool find_all(Entries* self, PyObject* tensor, KnownValue& found) {
  if (!find(self, tensor, found)) return false;
  return !found.value || needs_gradient(tensor, found);
}

bool find_as_met(Entries* self, PyObject* tensor, const Described& described, KnownValue& found) {
  if (!described.met) return find_all(self, tensor, found);
  MetTensors& met = *described.met;
  const auto one = std::find_if(met.begin(), met.end(), [&](const Met& other) { return other.tensor == tensor; });
  const bool is_met = one != met.end();
  if (is_met && described.use == Use::kSame) {
    found = one->known;
    return true;
  }
  const bool is_of_host = reinterpret_cast<PyObject*>(Py_TYPE(tensor)) != known.tensor;
  if (is_met && described.use == Use::kVersion && one->known.value && is_of_host)
    return find_version(tensor, one->known, found) && needs_gradient(tensor, found);
  const bool is_again = is_met && described.use == Use::kRenew;
  if (is_again && one->known.value && is_of_host) {
    if (!find_again(self, tensor, one->known, found) || (found.value && !needs_gradient(tensor, found))) return false;
  } else if (!find_all(self, tensor, found)) {
    return false;
  }
  if (is_again) one->known = found;
  if (!is_met && described.use == Use::kNote) met.push_back({tensor, found});
  return true;
}

bool append_tensor(Entries* self, std::string& out, PyObject* tensor, const std::string& place,
                   const Described& described) {
  KnownValue found;
  if (!find_as_met(self, tensor, described, found)) return false;
  const bool was_written = is_among(described.written, tensor);
  if (found.value && append_known(self, out, tensor, found, described, was_written, place)) return true;
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyErr_Clear();  // entry() asks again, and warns
  return append_new(self, out, tensor, described, was_written, place);
}

bool append_entry(Entries* self, std::string& out, const std::string& place, PyObject* held, bool is_tensor,
                  const Described& described) {
  out += out.size() > 1 ? ",{\"place\":" : "{\"place\":";
  if (!append_string(out, place)) return false;
  if (is_tensor) {
    out += ",\"tensor\":{";
    if (!append_tensor(self, out, held, place, described)) return false;
    out += '}';
  } else if (held != Py_None) {
    out += ",\"value\":";
    if (!append_value(out, held)) return false;
  }
  out += '}';
  return true;
}

bool is_ready(Entries* self) {
  if (!self->forms) PyErr_SetString(PyExc_RuntimeError, "RecordedEntries.__init__ was not called");
  return self->forms != nullptr;
}

bool describe(Entries* self, std::string& out, const Items& items, const Described& described) {
  if (!is_ready(self)) return false;
  constexpr size_t kUsual = 192;  // bytes of a tensor's entry without numbers
  out.reserve(kUsual * items.size());
  out = "[";
  for (const Item& item : items)
    if (!append_entry(self, out, item.place, item.value.get(), item.is_tensor, described)) return false;
  out += ']';
  return true;
}

// arguments(found, level, call=-1, written=())
PyObject* arguments(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"found", "level", "call", "written", nullptr};
  PyObject *found, *ids = nullptr;
  Described described;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!i|LO:arguments", const_cast<char**>(names), &PyList_Type, &found,
                                   &described.level, &described.call, &ids) ||
      !is_level(described.level))
    return nullptr;
  Items items, written;
  for (Py_ssize_t i = 0; i < PyList_Size(found); ++i) {
    PyObject* held;
    std::string text;
    Ref pair = Ref::borrowed(PyList_GetItem(found, i));  // the list may change meanwhile
    if (!read_pair(pair.get(), text, held)) return nullptr;
    const bool is_tensor = is_tensor_object(held);
    Ref id(ids && is_tensor ? PyLong_FromVoidPtr(held) : nullptr);
    const int is_in = id ? PySequence_Contains(ids, id.get()) : 0;
    if (is_in < 0 || PyErr_Occurred()) return nullptr;
    if (is_in) written.push_back({text, Ref::borrowed(held), true});
    items.push_back({std::move(text), Ref::borrowed(held), is_tensor});
  }
  described.written = &written;
  std::string out;
  return describe(reinterpret_cast<Entries*>(self), out, items, described) ? new_text(out) : nullptr;
}

// strided(tensor, level, call, wrote, place)
PyObject* strided(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<Entries*>(object);
  PyObject *tensor, *name;
  Described described;
  int wrote;
  KnownValue found;
  std::string place, out;
  if (!PyArg_ParseTuple(args, "OiLpU:strided", &tensor, &described.level, &described.call, &wrote, &name) ||
      !is_level(described.level) || !is_ready(self) || !append_text(place, name) || !find_any(self, tensor, found))
    return nullptr;
  if (!found.value) Py_RETURN_NONE;
  if (needs_gradient(tensor, found) && append_known(self, out, tensor, found, described, wrote, place))
    return new_text(out);
  return PyErr_Occurred() ? nullptr : Ref::borrowed(Py_None).release();
}

PyObject* wrote_method(PyObject* self, PyObject* tensor) {
  if (!is_ready(reinterpret_cast<Entries*>(self)) || !wrote(self, tensor)) return nullptr;
  Py_RETURN_NONE;
}

// written_by(tensor, level, call)
PyObject* written_by(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<Entries*>(object);
  PyObject* tensor;
  int level;
  long long call;
  if (!PyArg_ParseTuple(args, "OiL:written_by", &tensor, &level, &call) || !is_level(level) || !is_ready(self))
    return nullptr;
  if (const auto memory = met_memory(self, tensor)) memory->written_by(level, call);
  return PyErr_Occurred() ? nullptr : Ref::borrowed(Py_None).release();
}

PyObject* close(PyObject* self, PyObject*) {
  Type::of(self).parts->memories.clear();
  Py_RETURN_NONE;
}

PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* object = allocate(type);
  if (object) Type::of(object).parts = new Entries::Parts;
  return object;
}

int initialize(PyObject* object, PyObject* args, PyObject*) {
  PyObject* forms;
  if (!PyArg_ParseTuple(args, "O!:RecordedEntries", &PyDict_Type, &forms) || !is_configured()) return -1;
  put(Type::of(object).forms, forms);
  return 0;
}

PyMethodDef g_methods[] = {
    {"arguments", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(arguments)), METH_VARARGS | METH_KEYWORDS,
     "arguments(found, level, call=-1, written=()): places and what is there as a JSON list. `level` is the call's; of "
     "results `call` is the number of the call and `written` the ids of those that were there before."},
    {"wrote", wrote_method, METH_O,
     "wrote(tensor): an operator below autograd has written its memory: nothing known of it holds any more."},
    {"strided", strided, METH_VARARGS,
     "strided(tensor, level, call, wrote, place): an entry's text of a strided tensor or a subclass of MacaTensor; "
     "None "
     "of those of other kinds, and of those whose memory NumPy shares. Of results `call` is the number of the call and "
     "`wrote`: into memory that was there before."},
    {"written_by", written_by, METH_VARARGS,
     "written_by(tensor, level, call): a call that no result tells of has written the tensor's memory."},
    {"close", close, METH_NOARGS, "close(): lets go of all memory that was met."},
    {},
};

PyMemberDef g_members[] = {
    {"has_numbers", T_BOOL, offsetof(Entries, has_numbers), 0, "Entries hold the elements' numbers."},
    {"has_files", T_BOOL, offsetof(Entries, has_files), 0, "And where the elements are kept, as numbers() says."},
    {},
};

PyType_Slot g_slots[] = {
    {Py_tp_members, g_members},
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_init, reinterpret_cast<void*>(initialize)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Type::dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(Type::traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(Type::clear)},
    {Py_tp_methods, g_methods},
    {Py_tp_doc,
     const_cast<char*>(
         "RecordedEntries(forms)\n\nA subclass has entry(tensor, level, call, wrote, place), the text of what is no "
         "plain strided tensor; new_form(key, tensor), which enters what is new into the table of forms; "
         "numbers(tensor, place), text that follows a form's.")},
    {0, nullptr},
};

PyType_Spec g_spec = {"libmaca_ffi._recorder.RecordedEntries", sizeof(Entries), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, g_slots};

bool name_all() {
  return intern_names({
      {&known_names.entry, "entry"},
      {&known_names.numbers, "numbers"},
      {&known_names.new_form, "new_form"},
  });
}

}  // namespace

bool is_entries(PyObject* object) {
  return PyObject_TypeCheck(object, g_type) && is_ready(reinterpret_cast<Entries*>(object));
}

bool note_blank(PyObject* entries, PyObject* tensor) {
  KnownValue found;
  if (!find_any(reinterpret_cast<Entries*>(entries), tensor, found)) return false;
  if (!found.value) return true;
  found.memory->is_blank = true;
  found.value->text = Ref();
  found.value->grad_text = Ref();
  found.value->numbers = Ref(PyUnicode_FromString(""));
  return static_cast<bool>(found.value->numbers);
}

bool set_numbers(PyObject* entries, bool are_wanted) {
  return std::exchange(reinterpret_cast<Entries*>(entries)->has_numbers, are_wanted);
}

bool describe_arguments(PyObject* entries, std::string& out, const Items& items, int level, MetTensors* met, Use use) {
  Described described;
  described.level = level;
  described.met = met;
  described.use = use;
  return describe(reinterpret_cast<Entries*>(entries), out, items, described);
}

bool describe_results(PyObject* entries, std::string& out, Items items, const Items& written, int level, long long call,
                      MetTensors* met, Use use) {
  const size_t returned = items.size();
  for (const Item& item : written) {
    size_t at = 0;
    while (at < items.size() && items[at].value.get() != item.value.get()) ++at;
    if (at == items.size())
      items.push_back({item.place, Ref::borrowed(item.value.get()), true});
    else if (at >= returned)
      items[at].place = item.place;  // given twice: the last place is its
  }
  if (items.empty()) return true;
  Described described;
  described.level = level;
  described.call = call;
  described.written = &written;
  described.met = met;
  described.use = use;
  return describe(reinterpret_cast<Entries*>(entries), out, items, described);
}

bool add_recording_entries(PyObject* module) {
  g_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_spec));
  return g_type && name_all() && PyModule_AddType(module, g_type) == 0;
}

}  // namespace maca::recorder
