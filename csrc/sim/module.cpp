// llcoll._sim: the simulator for pytest. Development installs only; it is no part of the package's interface.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "sim/program.h"

namespace py = pybind11;
namespace sim = llcoll::sim;

PYBIND11_MODULE(_sim, m) {
  m.doc() = "Runs llcoll's protocols on simulated memory that is weaker than any GPU's.";
  py::enum_<llcoll::DType>(m, "DType")
      .value("float32", llcoll::DType::kFloat32)
      .value("float64", llcoll::DType::kFloat64)
      .value("float16", llcoll::DType::kFloat16)
      .value("bfloat16", llcoll::DType::kBFloat16)
      .value("int8", llcoll::DType::kInt8)
      .value("uint8", llcoll::DType::kUInt8)
      .value("int32", llcoll::DType::kInt32)
      .value("int64", llcoll::DType::kInt64)
      .value("bool", llcoll::DType::kBool);
  py::enum_<llcoll::ReduceOp>(m, "ReduceOp")
      .value("sum", llcoll::ReduceOp::kSum)
      .value("avg", llcoll::ReduceOp::kAvg)
      .value("min", llcoll::ReduceOp::kMin)
      .value("max", llcoll::ReduceOp::kMax)
      .value("prod", llcoll::ReduceOp::kProd);
  py::enum_<sim::Verdict>(m, "Verdict")
      .value("right", sim::Verdict::kRight)
      .value("wrong_data", sim::Verdict::kWrongData)
      .value("hang", sim::Verdict::kHang)
      .value("bad_access", sim::Verdict::kBadAccess)
      .value("limit", sim::Verdict::kLimit);
  py::class_<sim::Call>(m, "Call")
      .def(py::init<>())
      .def_readwrite("kernel", &sim::Call::kernel)
      .def_readwrite("numel", &sim::Call::numel)
      .def_readwrite("dtype", &sim::Call::dtype)
      .def_readwrite("op", &sim::Call::op)
      .def_readwrite("channels", &sim::Call::channels)
      .def_readwrite("max_chunk", &sim::Call::max_chunk)
      .def_readwrite("once", &sim::Call::once)
      .def_readwrite("in_place", &sim::Call::in_place)
      .def_readwrite("dependent", &sim::Call::dependent)
      .def_readwrite("waits", &sim::Call::waits)
      .def_readwrite("root", &sim::Call::root)
      .def_readwrite("splits", &sim::Call::splits)
      .def_readwrite("absent", &sim::Call::absent)
      .def_readwrite("symmetric_inputs", &sim::Call::symmetric_inputs)
      .def_readwrite("symmetric_outputs", &sim::Call::symmetric_outputs)
      .def_readwrite("lines", &sim::Call::lines)
      .def_readwrite("stream", &sim::Call::stream);
  py::class_<sim::Program>(m, "Program")
      .def(py::init<>())
      .def_readwrite("ranks", &sim::Program::ranks)
      .def_readwrite("threads", &sim::Program::threads)
      .def_readwrite("grain", &sim::Program::grain)
      .def_readwrite("first_epoch", &sim::Program::first_epoch)
      .def_readwrite("odd_values", &sim::Program::odd_values)
      .def_readwrite("model_user", &sim::Program::model_user)
      .def_readwrite("early_trigger", &sim::Program::early_trigger)
      .def_readwrite("resident", &sim::Program::resident)
      .def_readwrite("timeouts", &sim::Program::timeouts)
      .def_readwrite("inexact", &sim::Program::inexact)
      .def_readwrite("add_order", &sim::Program::add_order)
      .def_readwrite("sum_order", &sim::Program::sum_order)
      .def_readwrite("aged_epoch", &sim::Program::aged_epoch)
      .def_readwrite("mutant", &sim::Program::mutant)
      .def_readwrite("calls", &sim::Program::calls);
  py::class_<sim::Outcome>(m, "Outcome")
      .def_readonly("verdict", &sim::Outcome::verdict)
      .def_readonly("text", &sim::Outcome::text)
      .def_readonly("steps", &sim::Outcome::steps)
      .def_readonly("failed_calls", &sim::Outcome::failed_calls);
  py::class_<sim::RandomReport>(m, "RandomReport")
      .def_readonly("schedules", &sim::RandomReport::schedules)
      .def_readonly("steps", &sim::RandomReport::steps)
      .def_readonly("failed_calls", &sim::RandomReport::failed_calls)
      .def_readonly("seconds", &sim::RandomReport::seconds)
      .def_readonly("bad_seed", &sim::RandomReport::bad_seed)
      .def_readonly("bad", &sim::RandomReport::bad);
  py::class_<sim::ExploreReport>(m, "ExploreReport")
      .def_readonly("states", &sim::ExploreReport::states)
      .def_readonly("edges", &sim::ExploreReport::edges)
      .def_readonly("ends", &sim::ExploreReport::ends)
      .def_readonly("depth", &sim::ExploreReport::depth)
      .def_readonly("complete", &sim::ExploreReport::complete)
      .def_readonly("seconds", &sim::ExploreReport::seconds)
      .def_readonly("bad", &sim::ExploreReport::bad)
      .def_readonly("trace", &sim::ExploreReport::trace);
  // Both hold the interpreter's lock no longer than the arguments take: several programs may run side by side.
  m.def("run_random", &sim::run_random, py::arg("program"), py::arg("first_seed") = 1, py::arg("schedules") = 1000,
        py::arg("max_seconds") = 0.0, py::call_guard<py::gil_scoped_release>());
  m.def("explore", &sim::explore, py::arg("program"), py::arg("max_states") = 1000000, py::arg("max_seconds") = 0.0,
        py::call_guard<py::gil_scoped_release>());
  m.def("trace_of", &sim::trace_of, py::arg("program"), py::arg("seed"));
  m.def("kernel_names", &sim::kernel_names);
  m.def("has_kernel", &sim::has_kernel, py::arg("name"), py::arg("dtype"), py::arg("once") = false,
        py::arg("ranks") = 2);
  m.def("mutant_names", &sim::mutant_names);
}
