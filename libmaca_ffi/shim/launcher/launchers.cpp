// Which launcher each operator overload has.
#include <unordered_map>

#include "launcher.h"

namespace maca_launcher {
namespace {

struct Bound {
  Ref func;  // kept, so that its address stays its own
  Ref launcher;
  Run run = nullptr;
};

// By address: OpOverload.__hash__ is a Python function (0.15 us), and a dict by id() makes and compares numbers (0.07).
// Never destroyed: at exit Python may be gone before it.
using Table = std::unordered_map<PyObject*, Bound>;
Table& table() {
  static auto* const bound = new Table;
  return *bound;
}

// A launcher in Python, of a composite for one. Modes of functions, as that of a default device, have seen the
// program's call and are gone, unless C++ made it, as TorchScript and the autograd engine do: then they would see what
// is called here.
PyObject* call_object(PyObject* launcher, PyObject* args, PyObject* kwargs) {
  const Ref modes(PyObject_CallNoArgs(known.function_modes));
  if (!modes) return nullptr;
  if (!kwargs) kwargs = Py_None;
  return PyLong_AsLong(modes.get()) == 0
             ? PyObject_CallFunctionObjArgs(launcher, args, kwargs, nullptr)
             : PyObject_CallFunctionObjArgs(known.below_modes, launcher, args, kwargs, nullptr);
}

}  // namespace

PyObject* launch(PyObject* func, PyObject* args, PyObject* kwargs) {
  const auto found = table().find(func);
  if (found != table().end()) {
    const Run run = found->second.run;
    const Ref launcher = Ref::borrowed(found->second.launcher.get());  // the call may bind others
    return run(launcher.get(), args, kwargs);
  }
  const Ref launcher(PyObject_CallFunctionObjArgs(known.bind, func, nullptr));
  return launcher ? call_object(launcher.get(), args, kwargs) : nullptr;
}

PyObject* launcher_of(PyObject*, PyObject* func) {
  const auto found = table().find(func);
  return Ref::borrowed(found == table().end() ? Py_None : found->second.launcher.get()).release();
}

PyObject* set_launcher(PyObject*, PyObject* args) {
  PyObject *func, *launcher;
  if (!PyArg_ParseTuple(args, "OO:set_launcher", &func, &launcher)) return nullptr;
  Run run = direct_kernel_call(launcher);
  if (!run) run = direct_view_call(launcher);
  if (!run) run = direct_blank_call(launcher);
  Bound old;  // let go of when the table is whole again
  std::swap(old, table()[func]);
  table()[func] = {Ref::borrowed(func), Ref::borrowed(launcher), run ? run : call_object};
  Py_RETURN_NONE;
}

PyObject* forget_launchers(PyObject*, PyObject*) {
  const Table old = std::exchange(table(), {});
  Py_RETURN_NONE;
}

}  // namespace maca_launcher
