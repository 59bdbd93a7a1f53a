// create_nodes(): the communicator of a group that spans nodes, over an engine written in Python (node_engine.py).
#include <climits>

#include "check.h"
#include "nodes.h"
#include "python_common.h"

namespace llcoll {
namespace {

// Takes Python's lock for a scope, whether or not this thread has it.
class WithLock {
 public:
  WithLock() : state_(PyGILState_Ensure()) {}
  ~WithLock() { PyGILState_Release(state_); }
  WithLock(const WithLock&) = delete;
  WithLock& operator=(const WithLock&) = delete;

 private:
  PyGILState_STATE state_;
};

std::string utf8(PyObject* object) {
  Py_ssize_t length = 0;
  const char* data = object == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(object, &length);
  std::string text = data == nullptr ? "" : std::string(data, static_cast<size_t>(length));
  PyErr_Clear();
  return text;
}

// Throws the pending Python exception as a C++ one. Ctrl-C is raised again as soon as Python runs.
[[noreturn]] void throw_python(const char* step) {
  if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0) PyErr_SetInterrupt();
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  PyObject* object = value == nullptr ? nullptr : PyObject_Str(value);
  PyErr_Clear();
  const std::string text = utf8(object);
  for (PyObject* held : {object, type, value, traceback}) Py_XDECREF(held);
  fail_with(step, text.empty() ? ": an exception without text" : ": ", text);
}

class PythonEngine final : public Engine {
 public:
  // `needs_check`: whether check_ready() has anything to ask; called with Python's lock.
  PythonEngine(PyObject* object, bool needs_check) : object_(object), needs_check_(needs_check) { Py_INCREF(object_); }
  ~PythonEngine() override {
    const WithLock lock;
    Py_DECREF(object_);
  }

  void check_ready() override {
    if (!needs_check_) return;
    const WithLock lock;
    finish(PyObject_CallMethod(object_, "check_ready", nullptr), "between nodes");
  }

  void start(const EngineCall& call) override {
    const WithLock lock;
    PyObject* result = PyObject_CallMethod(
        object_, "start", "iiKKKssi", static_cast<int>(call.kind), call.slot,
        static_cast<unsigned long long>(call.send_offset), static_cast<unsigned long long>(call.receive_offset),
        static_cast<unsigned long long>(call.count), name_of(call.dtype), name_of(call.op), call.root);
    finish(result, "between nodes");
  }

  void wait(int slot) override {
    const WithLock lock;
    finish(PyObject_CallMethod(object_, "wait", "i", slot), "between nodes");
  }

  std::string explain(const std::string& error) override {
    const WithLock lock;
    PyObject* result = PyObject_CallMethod(object_, "explain", "s", error.c_str());
    if (result == nullptr) throw_python("explaining an error between nodes");
    std::string text = utf8(result);
    Py_DECREF(result);
    return text;
  }

  void stop(const std::string& reason) override {
    const WithLock lock;
    finish(PyObject_CallMethod(object_, "stop", "s", reason.c_str()), "stopping between nodes");
  }

 private:
  static void finish(PyObject* result, const char* step) {
    if (result == nullptr) throw_python(step);
    Py_DECREF(result);
  }

  PyObject* object_;
  bool needs_check_;
};

// create_nodes(group_name, ..., patient, inside_name, node_of, scratch_address, chunk, receive, engine,
// needs_check): node_of[r] says which ranks share a node; the scratch must outlive the communicator; `engine` is
// nodes.Engine.
PyObject* create_nodes(PyObject*, PyObject* args) {
  OptionsText text;
  const char* inside_name = nullptr;
  PyObject *list, *engine;
  unsigned long long address = 0, chunk = 0, receive = 0;
  int needs_check = 0;
  if (!PyArg_ParseTuple(args, LLC_OPTIONS_FORMAT "sOKKKOp", LLC_OPTIONS_ARGS(text), &inside_name, &list, &address,
                        &chunk, &receive, &engine, &needs_check)) {
    return nullptr;
  }
  std::vector<int> node_of;
  const Py_ssize_t count = PySequence_Size(list);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_GetItem(list, i);
    if (item == nullptr) return nullptr;
    node_of.push_back(static_cast<int>(PyLong_AsLong(item)));
    Py_DECREF(item);
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  try {
    const Options options = text.options(INT_MAX);
    check_that(static_cast<int>(node_of.size()) == options.world_size, "node_of has ", node_of.size(), " ranks of ",
               options.world_size);
    NodeScratch scratch;
    scratch.data = reinterpret_cast<char*>(static_cast<uintptr_t>(address));
    scratch.chunk = static_cast<size_t>(chunk);
    scratch.receive = static_cast<size_t>(receive);
    register_communicator(
        options.group_name,
        make_nodes_communicator(options, NodeMap::make(node_of, options.rank), share_communicator(inside_name),
                                std::make_unique<PythonEngine>(engine, needs_check != 0), scratch),
        text.is_default != 0);
  } catch (const std::exception& error) {
    return raise_python(error);
  }
  Py_RETURN_NONE;
}

// nodes_scratch_bytes(chunk, receive) -> the memory that create_nodes() needs
PyObject* nodes_scratch_bytes(PyObject*, PyObject* args) {
  unsigned long long chunk = 0, receive = 0;
  if (!PyArg_ParseTuple(args, "KK", &chunk, &receive)) return nullptr;
  NodeScratch scratch;
  scratch.chunk = static_cast<size_t>(chunk);
  scratch.receive = static_cast<size_t>(receive);
  return PyLong_FromUnsignedLongLong(scratch.bytes());
}

}  // namespace

PyMethodDef nodes_methods[] = {
    {"create_nodes", create_nodes, METH_VARARGS, nullptr},
    {"nodes_scratch_bytes", nodes_scratch_bytes, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace llcoll
