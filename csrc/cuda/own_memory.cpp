#include "cuda/own_memory.h"

#include <cuda.h>
#include <unistd.h>

#include "cpu/exchange.h"
#include "cpu/shm.h"
#include "cuda/cuda_check.h"

namespace llcoll {
namespace {

// The driver's functions, found through the runtime: libcuda is not linked, so the library loads without a GPU.
struct Driver {
  decltype(&cuGetErrorString) get_error_string;
  decltype(&cuMemGetAllocationGranularity) get_granularity;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemExportToShareableHandle) export_handle;
  decltype(&cuMemImportFromShareableHandle) import_handle;
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free_address;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
};

template <class F>
void find(const char* name, F& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
  check_cuda(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &status), name);
#else
  check_cuda(cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &status), name);
#endif
  check_that(found != nullptr && status == cudaDriverEntryPointSuccess, "the CUDA driver has no ", name);
  function = reinterpret_cast<F>(found);
}

const Driver& driver() {
  static const Driver instance = [] {
    Driver d{};
    find("cuGetErrorString", d.get_error_string);
    find("cuMemGetAllocationGranularity", d.get_granularity);
    find("cuMemCreate", d.create);
    find("cuMemRelease", d.release);
    find("cuMemExportToShareableHandle", d.export_handle);
    find("cuMemImportFromShareableHandle", d.import_handle);
    find("cuMemAddressReserve", d.reserve);
    find("cuMemAddressFree", d.free_address);
    find("cuMemMap", d.map);
    find("cuMemUnmap", d.unmap);
    find("cuMemSetAccess", d.set_access);
    return d;
  }();
  return instance;
}

void check_driver(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  driver().get_error_string(result, &text);
  fail_with(what, ": ", text == nullptr ? "an unknown error" : text, " (", static_cast<int>(result), ")");
}

// A reference to physical memory; mappings hold references of their own.
class Handle {
 public:
  Handle() = default;
  ~Handle() {
    if (value != 0) driver().release(value);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  CUmemGenericAllocationHandle value = 0;
};

CUmemAllocationProp properties_of(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

}  // namespace

OwnMemory::OwnMemory(int device, int rank, int world_size, uint64_t bytes, const AllGather& all_gather,
                     double timeout_s) {
  memory_.device = device;
  memory_.buffers.resize(world_size);
  Fd fd;
  try {
    agree(all_gather, rank, "allocating GPU memory", [&] {
      check_cuda(cudaFree(nullptr), "cudaFree");  // the device's context
      const CUmemAllocationProp properties = properties_of(device);
      size_t granularity = 0;
      check_driver(driver().get_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                   "cuMemGetAllocationGranularity");
      memory_.bytes = (bytes + granularity - 1) / granularity * granularity;
      Handle own;
      check_driver(driver().create(&own.value, memory_.bytes, &properties, 0), "cuMemCreate");
      int descriptor = -1;
      check_driver(driver().export_handle(&descriptor, own.value, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                   "cuMemExportToShareableHandle");
      fd = Fd(descriptor);
      memory_.buffers[rank] = map(own.value);
    });
    const auto take = [&](int peer, int peer_fd, const exchange::Announcement& announced) {
      check_that(announced.segment_bytes == memory_.bytes, "it has ", announced.segment_bytes, " bytes, this rank's ",
                 memory_.bytes);
      Handle handle;
      check_driver(driver().import_handle(&handle.value, reinterpret_cast<void*>(static_cast<intptr_t>(peer_fd)),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                   "cuMemImportFromShareableHandle");
      memory_.buffers[peer] = map(handle.value);
    };
    exchange_descriptors(fd.get(), memory_.bytes, rank, world_size, all_gather, timeout_s, take);
  } catch (...) {
    unmap_all();
    throw;
  }
}

OwnMemory::~OwnMemory() {
  if (!is_kept_) unmap_all();
}

uint64_t OwnMemory::map(uint64_t handle) {
  CUdeviceptr address = 0;
  check_driver(driver().reserve(&address, memory_.bytes, 0, 0, 0), "cuMemAddressReserve");
  CUresult result = driver().map(address, memory_.bytes, 0, handle, 0);
  if (result != CUDA_SUCCESS) {
    driver().free_address(address, memory_.bytes);
    check_driver(result, "cuMemMap");
  }
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = memory_.device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  result = driver().set_access(address, memory_.bytes, &access, 1);
  if (result != CUDA_SUCCESS) {
    driver().unmap(address, memory_.bytes);
    driver().free_address(address, memory_.bytes);
    check_driver(result, "cuMemSetAccess (do the GPUs reach each other's memory?)");
  }
  return address;
}

void OwnMemory::unmap_all() {
  for (uint64_t& address : memory_.buffers) {
    if (address == 0) continue;
    driver().unmap(address, memory_.bytes);
    driver().free_address(address, memory_.bytes);
    address = 0;
  }
}

}  // namespace llcoll
