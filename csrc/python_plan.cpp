// Signals during waits, and the Plan type, whose run decides about Python's lock.
#include <csignal>

#include "check.h"
#include "plan.h"
#include "python_common.h"

namespace llcoll {
namespace {

// A short plan runs with Python's lock held: giving it up and taking it back costs more than the exchange. When the
// wait lasts, the first signal check gives it up, and each later one takes it only to look.
class HeldLock {
 public:
  HeldLock();
  ~HeldLock();
  HeldLock(const HeldLock&) = delete;
  HeldLock& operator=(const HeldLock&) = delete;
  void take() {
    if (thread_ != nullptr) PyEval_RestoreThread(std::exchange(thread_, nullptr));
  }
  void give_up() { thread_ = PyEval_SaveThread(); }

 private:
  PyThreadState* thread_ = nullptr;
  HeldLock* outer_;
};

thread_local HeldLock* held_lock = nullptr;

HeldLock::HeldLock() : outer_(std::exchange(held_lock, this)) {}
HeldLock::~HeldLock() {
  take();
  held_lock = outer_;
}

// What a signal handler raised inside a wait, until the call that it ended has come back to Python. Owned.
PyObject* interrupt = nullptr;

bool handler_raised() {
  if (PyErr_CheckSignals() == 0) return false;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  Py_XDECREF(interrupt);
  interrupt = value;
  return true;
}

// True where SIGINT's handler is Python's own and what was raised is its KeyboardInterrupt.
bool sigint_is_python_default() {
  if (interrupt == nullptr || PyErr_GivenExceptionMatches(interrupt, PyExc_KeyboardInterrupt) == 0) return false;
  PyObject* module = PyImport_ImportModule("signal");
  PyObject* current = module == nullptr ? nullptr : PyObject_CallMethod(module, "getsignal", "i", SIGINT);
  PyObject* standard = module == nullptr ? nullptr : PyObject_GetAttrString(module, "default_int_handler");
  const bool result = current != nullptr && current == standard;
  PyErr_Clear();
  Py_XDECREF(standard);
  Py_XDECREF(current);
  Py_XDECREF(module);
  return result;
}

struct PlanObject {
  PyObject_HEAD Plan* plan;
  PyObject* tensor;
  PyObject* out;
};

PyObject* plan_run(PyObject* self, PyObject*) {
  Plan& plan = *reinterpret_cast<PlanObject*>(self)->plan;
  auto run = [&] { plan.run(); };
  if (!run_wait(plan.is_short(), run)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* plan_call(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (PyTuple_Size(args) != 0 || (kwargs != nullptr && PyDict_Size(kwargs) != 0)) {
    PyErr_SetString(PyExc_TypeError, "a plan takes no arguments: it runs on its tensor's present contents");
    return nullptr;
  }
  return plan_run(self, nullptr);
}

PyObject* new_reference_or_none(PyObject* object) {
  PyObject* result = object == nullptr ? Py_None : object;
  Py_INCREF(result);
  return result;
}

PyObject* plan_tensor(PyObject* self, void*) {
  return new_reference_or_none(reinterpret_cast<PlanObject*>(self)->tensor);
}
PyObject* plan_out(PyObject* self, void*) { return new_reference_or_none(reinterpret_cast<PlanObject*>(self)->out); }

PyObject* plan_signature(PyObject* self, void*) {
  return PyUnicode_FromString(reinterpret_cast<PlanObject*>(self)->plan->signature().c_str());
}

PyObject* plan_repr(PyObject* self) {
  const Plan& plan = *reinterpret_cast<PlanObject*>(self)->plan;
  const std::string text =
      concat("<llcoll.Plan: ", plan.signature(), ", group '", plan.communicator().options().group_name, "'>");
  return PyUnicode_FromString(text.c_str());
}

void plan_dealloc(PyObject* self) {
  auto* object = reinterpret_cast<PlanObject*>(self);
  Py_CLEAR(object->tensor);
  Py_CLEAR(object->out);
  delete object->plan;
  PyTypeObject* type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyMethodDef plan_methods[] = {
    {"run", plan_run, METH_NOARGS, "Runs the collective on the tensor's present contents."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef plan_getset[] = {
    {"tensor", plan_tensor, nullptr, "The input.", nullptr},
    {"out", plan_out, nullptr, "Where the result goes; the input itself for an in-place plan.", nullptr},
    {"signature", plan_signature, nullptr, "What all ranks agreed on.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot plan_slots[] = {
    {Py_tp_doc, const_cast<char*>("A persistent collective, made by llcoll.plan(); calling it runs it.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(plan_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(plan_call)},
    {Py_tp_repr, reinterpret_cast<void*>(plan_repr)},
    {Py_tp_methods, plan_methods},
    {Py_tp_getset, plan_getset},
    {0, nullptr},
};

PyType_Spec plan_spec = {"llcoll.Plan", sizeof(PlanObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                         plan_slots};

PyTypeObject* plan_type = nullptr;

// plan(id, tensor, out) -> Plan: takes over what llcoll::_plan_create stored.
PyObject* make_plan(PyObject*, PyObject* args) {
  long long id = 0;
  PyObject *tensor, *out;
  if (!PyArg_ParseTuple(args, "LOO", &id, &tensor, &out)) return nullptr;
  try {
    std::unique_ptr<Plan> plan = take_plan(id);
    auto* object = PyObject_New(PlanObject, plan_type);
    if (object == nullptr) return nullptr;
    object->plan = plan.release();
    object->tensor = new_reference_or_none(tensor);
    object->out = new_reference_or_none(out);
    return reinterpret_cast<PyObject*>(object);
  } catch (const std::exception& error) {
    return raise_python(error);
  }
}

PyMethodDef module_methods[] = {
    {"plan", make_plan, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool run_wait(bool is_short, void (*body)(void*), void* argument) {
  try {
    if (is_short) {
      const HeldLock lock;
      body(argument);
    } else {
      const WithoutLock without_lock;
      body(argument);
    }
    return true;
  } catch (const std::exception& error) {
    if (interrupt != nullptr && PyErr_GivenExceptionMatches(interrupt, PyExc_BaseException)) {
      PyObject* raised = std::exchange(interrupt, nullptr);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised)), raised);
      Py_DECREF(raised);
    } else {
      raise_python(error);
    }
    return false;
  }
}

// The backends' waits call this. True: a signal handler raised, the wait must end.
bool check_signals() {
  if (held_lock != nullptr) {
    held_lock->take();
    const bool raised = handler_raised();
    held_lock->give_up();
    return raised;
  }
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool raised = handler_raised();
  // Raised again from Python's own loop, which the op gets back to. Any other handler's exception is kept instead, and
  // the op raises a RuntimeError, which the package converts.
  if (raised && sigint_is_python_default()) {
    Py_CLEAR(interrupt);
    set_interrupt_follows();
    PyErr_SetInterrupt();
  }
  PyGILState_Release(state);
  return raised;
}

PyObject* take_interrupt(PyObject*, PyObject*) {
  PyObject* raised = std::exchange(interrupt, nullptr);
  if (raised == nullptr) Py_RETURN_NONE;
  return raised;
}

bool add_plan_type(PyObject* module) {
  plan_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&plan_spec));
  if (plan_type == nullptr) return false;
  Py_INCREF(plan_type);
  if (PyModule_AddObject(module, "Plan", reinterpret_cast<PyObject*>(plan_type)) != 0) return false;
  return PyModule_AddFunctions(module, module_methods) == 0;
}

}  // namespace llcoll
