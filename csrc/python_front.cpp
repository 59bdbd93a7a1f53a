// The way of llcoll.all_reduce_ and all_reduce_out around torch's dispatcher (1 us and more), for calls of which the
// dispatcher would make nothing but a call of the CPU kernel: exact torch.Tensors in plain contiguous memory, while no
// mode, transform, tracer or profiler is on. Whatever is not so, errors too, is left to the op.
#include <dlfcn.h>

#include <cstring>
#include <vector>

#include "check.h"
#include "dlpack.h"
#include "python_common.h"

namespace llcoll {
namespace {

constexpr size_t kShortBytes = 64 << 10;  // as a plan: up to here giving up Python's lock costs more than it frees

// torch's own answers to what may need the dispatcher, by name, since the stable ABI has none: 10 ns together, where
// the Python functions that ask the same take 350.
struct TorchState {
  bool (*has_dispatch_modes)(bool skip_infra);
  int64_t (*num_function_modes)();
  const void* const* (*tracing_state)();  // a reference to a shared_ptr, whose first word is the pointer
  bool (*has_profiler)();

  static TorchState find() {
    void* c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    auto symbol = [](void* library, const char* name) { return library == nullptr ? nullptr : dlsym(library, name); };
    return {
        reinterpret_cast<bool (*)(bool)>(symbol(c10, "_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb")),
        reinterpret_cast<int64_t (*)()>(symbol(torch, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv")),
        reinterpret_cast<const void* const* (*)()>(symbol(torch, "_ZN5torch3jit6tracer15getTracingStateEv")),
        reinterpret_cast<bool (*)()>(symbol(torch, "_ZN2at12hasCallbacksEv")),
    };
  }
  bool is_known() const {
    return has_dispatch_modes != nullptr && num_function_modes != nullptr && tracing_state != nullptr &&
           has_profiler != nullptr;
  }
  bool is_quiet() const {
    return !has_dispatch_modes(false) && num_function_modes() == 0 && *tracing_state() == nullptr && !has_profiler();
  }
};

// Set once, at import; all references are kept for the life of the process.
struct Front {
  const dlpack::ExchangeApi* tensors = nullptr;
  PyObject* tensor_type = nullptr;
  TorchState state{};
  // Where the state is not known: called without arguments, a true result means that the dispatcher is needed.
  std::vector<PyObject*> watches;
};
Front front;

// set_front(capsule, tensor_type, watches): False where this torch's interface is another one.
PyObject* set_front(PyObject*, PyObject* args) {
  PyObject *capsule, *tensor_type, *watches;
  if (!PyArg_ParseTuple(args, "OOO", &capsule, &tensor_type, &watches)) return nullptr;
  const auto* tensors =
      static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule, dlpack::kExchangeApiCapsule));
  if (tensors == nullptr) return nullptr;
  if (tensors->major != 1 || tensors->tensor_from_py_object == nullptr) Py_RETURN_FALSE;
  const Py_ssize_t count = PySequence_Size(watches);
  if (count < 0) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* watch = PySequence_GetItem(watches, i);
    if (watch == nullptr) return nullptr;
    front.watches.push_back(watch);
  }
  Py_INCREF(capsule);
  Py_INCREF(tensor_type);
  front.state = TorchState::find();
  front.tensor_type = tensor_type;
  front.tensors = tensors;
  Py_RETURN_TRUE;
}

// False, too, where asking raised: the op will.
bool is_false(PyObject* result) {
  const bool answer = result == Py_None || result == Py_False || (result != nullptr && PyObject_IsTrue(result) == 0);
  if (result == nullptr) PyErr_Clear();
  Py_XDECREF(result);
  return answer;
}

bool is_quiet() {
  if (front.state.is_known()) return front.state.is_quiet();
  for (PyObject* watch : front.watches) {
    if (!is_false(PyObject_CallNoArgs(watch))) return false;
  }
  return true;
}

bool to_dtype(dlpack::DataType type, DType& dtype) {
  if (type.lanes != 1) return false;
  switch (type.code << 8 | type.bits) {
    case dlpack::kFloat << 8 | 32:
      dtype = DType::kFloat32;
      return true;
    case dlpack::kFloat << 8 | 64:
      dtype = DType::kFloat64;
      return true;
    case dlpack::kFloat << 8 | 16:
      dtype = DType::kFloat16;
      return true;
    case dlpack::kBFloat << 8 | 16:
      dtype = DType::kBFloat16;
      return true;
    case dlpack::kInt << 8 | 8:
      dtype = DType::kInt8;
      return true;
    case dlpack::kUInt << 8 | 8:
      dtype = DType::kUInt8;
      return true;
    case dlpack::kInt << 8 | 32:
      dtype = DType::kInt32;
      return true;
    case dlpack::kInt << 8 | 64:
      dtype = DType::kInt64;
      return true;
    case dlpack::kBool << 8 | 8:
      dtype = DType::kBool;
      return true;
    default:
      return false;
  }
}

struct View {
  dlpack::Tensor tensor;
  void* data;
  size_t numel;
  DType dtype;
};

// True for a plain tensor: strided CPU memory, contiguous, not empty. Wrappers of transforms have no storage, so their
// view fails or has no data.
bool look(PyObject* object, View& view) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != front.tensor_type) return false;
  if (front.tensors->tensor_from_py_object(object, &view.tensor) != 0) {
    PyErr_Clear();
    return false;
  }
  const dlpack::Tensor& tensor = view.tensor;
  if (tensor.device.type != dlpack::kCpu || tensor.data == nullptr || !to_dtype(tensor.dtype, view.dtype)) return false;
  int64_t numel = 1;
  for (int32_t d = tensor.num_dims - 1; d >= 0; --d) {
    if (tensor.shape[d] != 1 && tensor.strides != nullptr && tensor.strides[d] != numel) return false;
    numel *= tensor.shape[d];
  }
  if (numel <= 0) return false;
  view.numel = static_cast<size_t>(numel);
  view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  // The view does not show torch's lazy negation. Public functions give it to imaginary parts alone, whose stride of 2
  // is seen above, unless there is but one element.
  return numel != 1 || is_false(PyObject_CallMethod(object, "is_neg", nullptr));
}

bool same_shape(const View& a, const View& b) {
  return a.dtype == b.dtype && a.tensor.num_dims == b.tensor.num_dims &&
         std::memcmp(a.tensor.shape, b.tensor.shape, sizeof(int64_t) * static_cast<size_t>(a.tensor.num_dims)) == 0;
}

// The same or disjoint.
bool may_pair(const View& a, const View& b) {
  const auto x = reinterpret_cast<uintptr_t>(a.data), y = reinterpret_cast<uintptr_t>(b.data);
  const size_t num_bytes = a.numel * static_cast<size_t>(element_bytes(a.dtype));
  return x == y || x + num_bytes <= y || y + num_bytes <= x;
}

// A name that was parsed; most callers pass the same object again and again. Owned.
struct LastName {
  PyObject* text = nullptr;
  int value = 0;
};

// Throws where it is no name.
template <class Parse>
int parse(PyObject* text, LastName& last, Parse parse_text) {
  if (text == last.text) return last.value;
  Py_ssize_t length = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text, &length);
  if (data == nullptr) {
    PyErr_Clear();
    fail_with("not a string");
  }
  const int value = static_cast<int>(parse_text(data, static_cast<size_t>(length)));
  Py_INCREF(text);
  Py_XDECREF(last.text);
  last = {text, value};
  return value;
}

Communicator& find(PyObject* group) {
  if (group == Py_None) return find_communicator("", 0);
  Py_ssize_t length = 0;
  const char* data = PyUnicode_AsUTF8AndSize(group, &length);
  if (data == nullptr) {
    PyErr_Clear();
    fail_with("not a string");
  }
  return find_communicator(data, static_cast<size_t>(length));
}

bool prepare(PyObject* const* args, const View& input, const View& output, Communicator*& communicator,
             CollectiveCall& call) {
  static LastName last_op, last_algorithm;
  try {
    const auto op = static_cast<ReduceOp>(parse(args[1], last_op, parse_reduce_op));
    communicator = &find(args[2]);
    const auto requested = static_cast<Algorithm>(parse(args[3], last_algorithm, parse_algorithm));
    const Algorithm algorithm = communicator->resolve(Collective::kAllReduce, input.numel, input.dtype, op, requested);
    call = {input.data, output.data, input.numel, input.dtype, op, algorithm, nullptr};
    return algorithm != Algorithm::kTorch && !communicator->closed();
  } catch (const std::exception&) {
    return false;
  }
}

// all_reduce(input, reduce_op, group_name or None, algorithm, out): True, or False where the op must be called.
PyObject* all_reduce(PyObject*, PyObject* const* args, Py_ssize_t num_args) {
  if (num_args != 5) {
    PyErr_SetString(PyExc_TypeError, "all_reduce takes 5 arguments");
    return nullptr;
  }
  View input, output;
  if (front.tensors == nullptr || !look(args[0], input)) Py_RETURN_FALSE;
  if (args[4] == args[0]) {
    output = input;
  } else if (!look(args[4], output) || !same_shape(input, output) || !may_pair(input, output)) {
    Py_RETURN_FALSE;
  }
  Communicator* communicator = nullptr;
  CollectiveCall call{};
  if (!is_quiet() || !prepare(args, input, output, communicator, call)) Py_RETURN_FALSE;
  const bool is_short = input.numel * static_cast<size_t>(element_bytes(input.dtype)) <= kShortBytes;
  auto run = [&] { communicator->run(call); };
  if (!run_wait(is_short, run)) return nullptr;
  Py_RETURN_TRUE;
}

}  // namespace

PyMethodDef front_methods[] = {
    {"set_front", set_front, METH_VARARGS, nullptr},
    {"all_reduce", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(all_reduce)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace llcoll
