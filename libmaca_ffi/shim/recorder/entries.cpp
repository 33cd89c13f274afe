// RecordedEntries: the base of the describer. Arguments and results as JSON, made of the texts of values met before.
#include "entries.h"

#include <structmember.h>

#include <algorithm>
#include <cstddef>

namespace maca::recorder {
namespace {

using Type = Collected<Entries>;

// An entry that Python writes, of any tensor.
bool append_new(Entries* self, std::string& out, const Item& item, const Described& described) {
  Ref level(PyLong_FromLong(described.level)), call(PyLong_FromLongLong(described.call)), place(new_text(item.place));
  if (!level || !call || !place) return false;
  Ref text =
      ask(self, "entry", item.value.get(), level.get(), call.get(), item.is_written ? Py_True : Py_False, place.get());
  return text && append_text(out, text.get());
}

// What all entries of a value's form say: (text, of one that requires a gradient, is it with the elements' numbers all
// that there is to say?: not of quantized tensors); null with an exception.
Ref form_text(Entries* self, PyObject* tensor, const Value& value) {
  Ref form = Ref::borrowed(value.form.get());
  if (!PyTuple_CheckExact(form.get())) {  // a Meta
    form = Ref::borrowed(PyDict_GetItemWithError(self->forms, value.form.get()));
    if (!form && !PyErr_Occurred()) form = ask(self, "new_form", value.form.get(), tensor);
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
    Ref numbers = name ? ask(self, "numbers", tensor, name.get()) : Ref();
    if (numbers) value.numbers = std::move(numbers);
    if (!value.numbers) return false;
    text = Ref(PyUnicode_Concat(text.get(), value.numbers.get()));
  }
  (requires_grad ? value.grad_text : value.text) = std::move(text);
  return !PyErr_Occurred();
}

// What is known of a value: its text, made if there is none yet, and the call that made it; of a result it is this call
// from now on. False as make_text().
bool append_known(Entries* self, std::string& out, const Item& item, const KnownValue& found,
                  const Described& described) {
  Value& value = *found.value;
  const Ref& text = found.has_gradient ? value.grad_text : value.text;
  if (!text && !make_text(self, item.value.get(), value, found.has_gradient, item.place)) return false;
  if (!append_text(out, text.get())) return false;
  long long& made = value.made[described.level];
  if (described.call >= 0) {
    made = described.call;
    if (item.is_written) found.memory->last[described.level] = made;
  } else if (made >= 0) {
    append_number(out += ",\"made_by\":", made);
  }
  return true;
}

bool needs_gradient(PyObject* tensor, KnownValue& found) {
  const int needs = requires_grad(tensor);
  found.has_gradient = needs == 1;
  return needs >= 0;
}

bool find_as_met(Entries* self, PyObject* tensor, const Described& described, KnownValue& found) {
  MetTensors none;
  MetTensors& met = described.met ? *described.met : none;
  const auto one = std::find_if(met.begin(), met.end(), [&](const Met& other) { return other.tensor == tensor; });
  if (one != met.end() && described.use != Use::kAgain) {
    found = one->known;
    return true;
  }
  if (!(one != met.end() ? find_again(self, tensor, one->known, found) : find(self, tensor, found))) return false;
  if (found.value && !needs_gradient(tensor, found)) return false;
  if (one != met.end())
    one->known = found;
  else if (described.met && described.use == Use::kNote)
    met.push_back({tensor, found});
  return true;
}

bool append_tensor(Entries* self, std::string& out, const Item& item, const Described& described) {
  KnownValue found;
  if (!find_as_met(self, item.value.get(), described, found)) return false;
  if (found.value && append_known(self, out, item, found, described)) return true;
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyErr_Clear();  // entry() asks again, and warns
  return append_new(self, out, item, described);
}

bool append_entry(Entries* self, std::string& out, const Item& item, const Described& described) {
  out += out.size() > 1 ? ",{\"place\":" : "{\"place\":";
  if (!append_string(out, item.place)) return false;
  if (item.is_tensor) {
    out += ",\"tensor\":{";
    if (!append_tensor(self, out, item, described)) return false;
    out += '}';
  } else if (item.value.get() != Py_None) {
    out += ",\"value\":";
    if (!append_value(out, item.value.get())) return false;
  }
  out += '}';
  return true;
}

bool is_ready(Entries* self) {
  if (!self->forms) PyErr_SetString(PyExc_RuntimeError, "RecordedEntries.__init__ was not called");
  return self->forms != nullptr;
}

// arguments(found, level, call=-1, written=())
PyObject* arguments(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"found", "level", "call", "written", nullptr};
  PyObject *found, *written = nullptr;
  Described described;
  Items items;
  std::string out;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!i|LO:arguments", const_cast<char**>(names), &PyList_Type, &found,
                                   &described.level, &described.call, &written) ||
      !is_level(described.level) || !is_ready(reinterpret_cast<Entries*>(self)) || !append_pairs(found, items))
    return nullptr;
  for (Item& item : items) {
    Ref id(written && item.is_tensor ? PyLong_FromVoidPtr(item.value.get()) : nullptr);
    item.is_written = id && PySequence_Contains(written, id.get()) > 0;
    if (PyErr_Occurred()) return nullptr;
  }
  return describe(self, out, items, described) ? new_text(out) : nullptr;
}

// strided(tensor, level, call, wrote, place)
PyObject* strided(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<Entries*>(object);
  PyObject *tensor, *place;
  Described described;
  int wrote;
  Item item;
  KnownValue found;
  std::string out;
  if (!PyArg_ParseTuple(args, "OiLpU:strided", &tensor, &described.level, &described.call, &wrote, &place) ||
      !is_level(described.level) || !is_ready(self) || !append_text(item.place, place) ||
      !find_any(self, tensor, found))
    return nullptr;
  if (!found.value) Py_RETURN_NONE;
  item.value = Ref::borrowed(tensor);
  item.is_written = wrote;
  if (needs_gradient(tensor, found) && append_known(self, out, item, found, described)) return new_text(out);
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
    {"arguments", as_method(arguments), METH_VARARGS | METH_KEYWORDS,
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
    {},
};

}  // namespace

bool is_entries(PyObject* object) {
  return PyObject_TypeCheck(object, Type::type) && is_ready(reinterpret_cast<Entries*>(object));
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

bool describe(PyObject* entries, std::string& out, const Items& items, const Described& described) {
  auto* self = reinterpret_cast<Entries*>(entries);
  const bool has_numbers = std::exchange(self->has_numbers, self->has_numbers && described.has_numbers);
  constexpr size_t kUsual = 192;  // bytes of a tensor's entry without numbers
  out.reserve(kUsual * items.size());
  out = "[";
  const bool is_right = std::all_of(items.begin(), items.end(),
                                    [&](const Item& item) { return append_entry(self, out, item, described); });
  out += ']';
  self->has_numbers = has_numbers;
  return is_right;
}

bool add_recording_entries(PyObject* module) {
  return Type::add(
      module, "libmaca_ffi._recorder.RecordedEntries",
      "RecordedEntries(forms)\n\nA subclass has entry(tensor, level, call, wrote, place), the text of what is no plain "
      "strided tensor; new_form(key, tensor), which enters what is new into the table of forms; numbers(tensor, "
      "place), text that follows a form's.",
      Py_TPFLAGS_BASETYPE,
      {{Py_tp_members, g_members},
       {Py_tp_new, reinterpret_cast<void*>(create)},
       {Py_tp_init, reinterpret_cast<void*>(initialize)},
       {Py_tp_methods, g_methods}});
}

}  // namespace maca::recorder
