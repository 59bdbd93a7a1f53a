// Module llcoll._C: loads the ops and the CPU backend; functions of plain Python values for the package alone.
#include "python_common.h"

#include "cpu/cpu_communicator.h"
#include "ops_common.h"

namespace llcoll {
namespace {

// create(group_name, rank, world_size, is_default, timeout, policy, allow_low_precision, scratch_bytes, algorithm,
//        debug, first_epoch, table, pool_bytes, patient, all_gather)
PyObject* create(PyObject*, PyObject* args) {
  OptionsText text;
  PyObject* callable = nullptr;
  if (!PyArg_ParseTuple(args, LLC_OPTIONS_FORMAT "O", LLC_OPTIONS_ARGS(text), &callable)) return nullptr;
  PythonAllGather all_gather(callable);
  return create_and_register(text, all_gather, [&](const Options& options) {
    return make_cpu_communicator(options, [&](const std::string& own) { return all_gather(own); });
  });
}

// Takes llcoll._cuda's hooks as a capsule; they live as long as the process.
PyObject* use_cuda_hooks(PyObject*, PyObject* capsule) {
  void* hooks = PyCapsule_GetPointer(capsule, kCudaHooksCapsule);
  if (hooks == nullptr) return nullptr;
  set_cuda_hooks(static_cast<const CudaHooks*>(hooks));
  Py_RETURN_NONE;
}

PyObject* deferred_error_capsule(PyObject*, PyObject*) {
  return PyCapsule_New(reinterpret_cast<void*>(deferred_error_slot()), kDeferredErrorCapsule, nullptr);
}

PyMethodDef methods[] = {
    {"create", create, METH_VARARGS, nullptr},
    {"use_cuda_hooks", use_cuda_hooks, METH_O, nullptr},
    {"deferred_error_capsule", deferred_error_capsule, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace llcoll

PyMODINIT_FUNC PyInit__C() {
  PyObject* module = PyModule_Create(&llcoll::module_def);
  if (module != nullptr && (!llcoll::add_common(module) || PyModule_AddFunctions(module, llcoll::front_methods) != 0 ||
                            PyModule_AddFunctions(module, llcoll::probe_methods) != 0)) {
    Py_CLEAR(module);
  }
  return module;
}
