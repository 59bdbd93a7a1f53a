#include "python_common.h"

#include <cstring>

#include "check.h"

namespace llcoll {

// Defined in python_plan.cpp.
bool add_plan_type(PyObject* module);
bool check_signals();
PyObject* take_interrupt(PyObject*, PyObject*);

namespace {

// Owned; set once by the package, kept for the life of the process.
PyObject* error_classes[4] = {nullptr, nullptr, nullptr, nullptr};
constexpr const char* kPrefixes[4] = {
    "LlcollError: ", "CollectiveTimeout: ", "CollectiveMismatch: ", "CollectiveAborted: "};

PyObject* set_error_classes(PyObject*, PyObject* args) {
  PyObject* classes[4];
  if (!PyArg_ParseTuple(args, "OOOO", &classes[0], &classes[1], &classes[2], &classes[3])) return nullptr;
  for (int i = 0; i < 4; ++i) {
    Py_INCREF(classes[i]);
    Py_XDECREF(error_classes[i]);
    error_classes[i] = classes[i];
  }
  Py_RETURN_NONE;
}

// Runs fn(communicator) without Python's lock for a function of one group name and, maybe, one more text.
template <class F>
PyObject* with_communicator(PyObject* args, const char* format, F fn) {
  const char* group_name = nullptr;
  const char* text = "";
  if (!PyArg_ParseTuple(args, format, &group_name, &text)) return nullptr;
  try {
    const WithoutLock without_lock;
    fn(*share_communicator(group_name), text);
  } catch (const std::exception& error) {
    return raise_python(error);
  }
  Py_RETURN_NONE;
}

PyObject* check(PyObject*, PyObject* args) {
  return with_communicator(args, "s", [](Communicator& c, const char*) { c.check(); });
}

PyObject* abort(PyObject*, PyObject* args) {
  return with_communicator(args, "ss", [](Communicator& c, const char* reason) { c.abort(reason); });
}

// flight_record(group_name, reason) -> JSON
PyObject* flight_record(PyObject*, PyObject* args) {
  std::string text;
  PyObject* done =
      with_communicator(args, "ss", [&](Communicator& c, const char* reason) { text = c.flight_record(reason); });
  if (done == nullptr) return nullptr;
  Py_DECREF(done);
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

PyObject* unregister(PyObject*, PyObject* args) {
  const char* group_name = nullptr;
  if (!PyArg_ParseTuple(args, "s", &group_name)) return nullptr;
  bool found = false;
  try {
    const WithoutLock without_lock;
    found = unregister_communicator(group_name);
  } catch (const std::exception& error) {
    return raise_python(error);
  }
  return PyBool_FromLong(found);
}

// resolve(group_name, numel, dtype, reduce_op, algorithm) -> the algorithm's name
PyObject* resolve(PyObject*, PyObject* args) {
  const char *group_name, *dtype_name, *op, *algorithm;
  unsigned long long numel = 0;
  if (!PyArg_ParseTuple(args, "sKsss", &group_name, &numel, &dtype_name, &op, &algorithm)) return nullptr;
  try {
    int dtype = 0;
    while (dtype < kNumDTypes && std::strcmp(name_of(static_cast<DType>(dtype)), dtype_name) != 0) ++dtype;
    check_that(dtype < kNumDTypes, "unsupported dtype ", dtype_name);
    const Algorithm chosen =
        share_communicator(group_name)
            ->resolve(Collective::kAllReduce, numel, static_cast<DType>(dtype), parse_reduce_op(op, std::strlen(op)),
                      parse_algorithm(algorithm, std::strlen(algorithm)));
    return PyUnicode_FromString(name_of(chosen));
  } catch (const std::exception& error) {
    return raise_python(error);
  }
}

// The process is about to end: no wait may touch Python any more.
PyObject* stop_signal_checks(PyObject*, PyObject*) {
  set_interrupt_check(nullptr);
  Py_RETURN_NONE;
}

// The names of an enumeration, in its order.
template <class Enum>
PyObject* names_of(int count) {
  PyObject* names = PyList_New(0);
  for (int i = 0; names != nullptr && i < count; ++i) {
    PyObject* name = PyUnicode_FromString(name_of(static_cast<Enum>(i)));
    if (name == nullptr || PyList_Append(names, name) != 0) Py_CLEAR(names);
    Py_XDECREF(name);
  }
  return names;
}

PyObject* algorithms(PyObject*, PyObject*) { return names_of<Algorithm>(kNumAlgorithms); }
PyObject* collectives(PyObject*, PyObject*) { return names_of<Collective>(kNumCollectives); }
PyObject* reduce_ops(PyObject*, PyObject*) { return names_of<ReduceOp>(kNumReduceOps); }

PyMethodDef common_methods[] = {
    {"set_error_classes", set_error_classes, METH_VARARGS, nullptr},
    {"check", check, METH_VARARGS, nullptr},
    {"abort", abort, METH_VARARGS, nullptr},
    {"flight_record", flight_record, METH_VARARGS, nullptr},
    {"unregister", unregister, METH_VARARGS, nullptr},
    {"resolve", resolve, METH_VARARGS, nullptr},
    {"take_interrupt", take_interrupt, METH_NOARGS, nullptr},
    {"stop_signal_checks", stop_signal_checks, METH_NOARGS, nullptr},
    {"algorithms", algorithms, METH_NOARGS, nullptr},
    {"reduce_ops", reduce_ops, METH_NOARGS, nullptr},
    {"collectives", collectives, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

// The text of the exception that is being held, without changing it.
std::string text_of(PyObject* value) {
  std::string text = "an exception without text";
  PyObject* object = value == nullptr ? nullptr : PyObject_Str(value);
  PyObject* bytes = object == nullptr ? nullptr : PyUnicode_AsUTF8String(object);
  if (bytes != nullptr) text = PyBytes_AsString(bytes);
  PyErr_Clear();
  Py_XDECREF(bytes);
  Py_XDECREF(object);
  return text;
}

}  // namespace

PyObject* raise_python(const std::exception& error) {
  const char* text = error.what();
  PyObject* type = error_classes[0] == nullptr ? PyExc_RuntimeError : error_classes[0];
  for (int i = 0; i < 4; ++i) {
    const size_t length = std::strlen(kPrefixes[i]);
    if (std::strncmp(text, kPrefixes[i], length) != 0) continue;
    if (error_classes[i] != nullptr) {
      type = error_classes[i];
      text += length;
    }
    break;
  }
  PyErr_SetString(type, text);
  return nullptr;
}

PythonAllGather::~PythonAllGather() {
  for (PyObject* object : raised_) Py_XDECREF(object);
}

bool PythonAllGather::restore() {
  if (raised_[0] == nullptr) return false;
  PyErr_Restore(raised_[0], raised_[1], raised_[2]);
  for (PyObject*& object : raised_) object = nullptr;
  return true;
}

std::vector<std::string> PythonAllGather::operator()(const std::string& own) {
  const PyGILState_STATE state = PyGILState_Ensure();
  std::vector<std::string> result;
  PyObject* list = nullptr;
  PyObject* bytes = PyBytes_FromStringAndSize(own.data(), static_cast<Py_ssize_t>(own.size()));
  if (bytes != nullptr) list = PyObject_CallFunctionObjArgs(callable_, bytes, nullptr);
  const Py_ssize_t count = list == nullptr ? 0 : PySequence_Size(list);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_GetItem(list, i);
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (item != nullptr && PyBytes_AsStringAndSize(item, &data, &size) == 0) result.emplace_back(data, size);
    Py_XDECREF(item);
    if (PyErr_Occurred() != nullptr) break;
  }
  std::string failure;
  if (PyErr_Occurred() != nullptr) {
    for (PyObject*& object : raised_) Py_CLEAR(object);
    PyErr_Fetch(&raised_[0], &raised_[1], &raised_[2]);
    PyErr_NormalizeException(&raised_[0], &raised_[1], &raised_[2]);
    failure = text_of(raised_[1]);
  }
  Py_XDECREF(list);
  Py_XDECREF(bytes);
  PyGILState_Release(state);
  if (!failure.empty()) fail_with("the set-up's exchange failed: ", failure);
  return result;
}

Options OptionsText::options(int max_ranks) const {
  Options result;
  result.group_name = group_name;
  result.rank = rank;
  result.world_size = world_size;
  result.timeout_s = timeout_s;
  result.policy = parse_policy(policy);
  result.allow_low_precision = allow_low_precision != 0;
  result.scratch_bytes = static_cast<size_t>(scratch_bytes);
  result.forced = parse_algorithm(algorithm, std::strlen(algorithm));
  result.debug = debug != 0;
  result.first_epoch = first_epoch;
  result.table = table;
  result.pool_bytes = static_cast<size_t>(pool_bytes);
  result.patient = patient != 0;
  check_that(world_size >= 1 && world_size <= max_ranks && rank >= 0 && rank < world_size, "rank ", rank, " of ",
             world_size, " ranks; at most ", max_ranks, " are supported");
  return result;
}

PyObject* create_and_register(const OptionsText& text, PythonAllGather& all_gather,
                              const std::function<std::shared_ptr<Communicator>(const Options&)>& make) {
  try {
    const Options options = text.options();
    const WithoutLock without_lock;
    register_communicator(options.group_name, make(options), text.is_default != 0);
  } catch (const std::exception& error) {
    return all_gather.restore() ? nullptr : raise_python(error);
  }
  Py_RETURN_NONE;
}

bool add_common(PyObject* module) {
  for (PyMethodDef* functions : {common_methods, select_methods, nodes_methods}) {
    if (PyModule_AddFunctions(module, functions) != 0) return false;
  }
  if (!add_plan_type(module)) return false;
  set_interrupt_check(&check_signals);
  return true;
}

}  // namespace llcoll
