// Module llcoll._cuda: loads the CUDA kernels of the ops and the CUDA backend.
#include <cstdio>

#include "cuda/cuda_communicator.h"
#include "ops_common.h"
#include "python_common.h"

namespace llcoll {
namespace {

// buffer_bytes(group_name, ..., pool_bytes) -> the symmetric memory that each rank must give to create()
PyObject* buffer_bytes(PyObject*, PyObject* args) {
  OptionsText text;
  if (!PyArg_ParseTuple(args, LLC_OPTIONS_FORMAT, LLC_OPTIONS_ARGS(text))) return nullptr;
  try {
    return PyLong_FromUnsignedLongLong(cuda_buffer_bytes(text.options()));
  } catch (const std::exception& error) {
    return raise_python(error);
  }
}

bool read_addresses(PyObject* list, std::vector<uint64_t>& addresses) {
  const Py_ssize_t count = PySequence_Size(list);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_GetItem(list, i);
    if (item == nullptr) return false;
    addresses.push_back(PyLong_AsUnsignedLongLong(item));
    Py_DECREF(item);
    if (PyErr_Occurred() != nullptr) return false;
  }
  return count >= 0;
}

// create(group_name, rank, world_size, is_default, timeout, policy, allow_low_precision, scratch_bytes, algorithm,
//        debug, first_epoch, table, pool_bytes, patient, device, buffers, multicast, bytes, all_gather)
PyObject* create(PyObject*, PyObject* args) {
  OptionsText text;
  CudaMemory memory;
  PyObject *buffers, *callable;
  unsigned long long multicast = 0;
  unsigned long long bytes = 0;
  if (!PyArg_ParseTuple(args, LLC_OPTIONS_FORMAT "iOKKO", LLC_OPTIONS_ARGS(text), &memory.device, &buffers, &multicast,
                        &bytes, &callable)) {
    return nullptr;
  }
  if (!read_addresses(buffers, memory.buffers)) return nullptr;
  memory.multicast = multicast;
  memory.bytes = bytes;
  PythonAllGather all_gather(callable);
  return create_and_register(text, all_gather, [&](Options options) {
    options.device_index = memory.device;
    return make_cuda_communicator(options, memory, [&](const std::string& own) { return all_gather(own); });
  });
}

int enqueue_barrier(const char* group_name, size_t length, char* error_text, size_t error_size) {
  if (!has_communicator(group_name, length)) return 0;
  try {
    Communicator& communicator = find_communicator(group_name, length);
    const DeviceScope scope(communicator.options().device_index);
    communicator.barrier(scope.stream());
    return 1;
  } catch (const std::exception& error) {
    std::snprintf(error_text, error_size, "%s", error.what());
    return -1;
  }
}

void announce_error(const char* group_name, size_t length, const char* what) {
  announce(CallText{"", 0, group_name, length, "", 0}, what);
}

CudaHooks hooks{&enqueue_barrier, &announce_error};

PyObject* hooks_capsule(PyObject*, PyObject*) { return PyCapsule_New(&hooks, kCudaHooksCapsule, nullptr); }

PyObject* use_deferred_error(PyObject*, PyObject* capsule) {
  void* function = PyCapsule_GetPointer(capsule, kDeferredErrorCapsule);
  if (function == nullptr) return nullptr;
  use_deferred_error_slot(reinterpret_cast<DeferredErrorSlot>(function));
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"create", create, METH_VARARGS, nullptr},
    {"buffer_bytes", buffer_bytes, METH_VARARGS, nullptr},
    {"hooks_capsule", hooks_capsule, METH_NOARGS, nullptr},
    {"use_deferred_error", use_deferred_error, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "_cuda", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace llcoll

PyMODINIT_FUNC PyInit__cuda() {
  PyObject* module = PyModule_Create(&llcoll::module_def);
  if (module != nullptr &&
      (!llcoll::add_common(module) || PyModule_AddFunctions(module, llcoll::cuda_probe_methods) != 0)) {
    Py_CLEAR(module);
  }
  return module;
}
