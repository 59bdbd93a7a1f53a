// An NCCL whose calls cost nothing and send nothing, before the real one: what is left of a program's time is its own,
// and no faster NCCL can take the program below that. Results are wrong, so only times are of use.
//
//   LD_PRELOAD=libnccl_free.so:libnccl.so.2 NCCL_FREE=all|pairs|none program
//
// `pairs`: only Send and Recv are left out. `none`: nothing is, to see what this library costs itself. Communicators
// are made as ever, since programs ask for their sizes.
#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

using Comm = void*;
using Stream = void*;

enum class Free { kNone, kPairs, kAll };

Free read_free() {
  const char* text = std::getenv("NCCL_FREE");
  if (text != nullptr && std::strcmp(text, "all") == 0) return Free::kAll;
  if (text != nullptr && std::strcmp(text, "pairs") == 0) return Free::kPairs;
  if (text != nullptr && std::strcmp(text, "none") == 0) return Free::kNone;
  std::fprintf(stderr, "nccl_free: NCCL_FREE is '%s'; it must be all, pairs or none\n", text == nullptr ? "" : text);
  std::exit(2);
}

bool is_free(bool is_pair) {
  static const Free what = read_free();
  return what == Free::kAll || (is_pair && what == Free::kPairs);
}

template <class F>
F* next(const char* name, F*) {
  auto* const found = reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
  if (found != nullptr) return found;
  std::fprintf(stderr, "nccl_free: there is no %s behind it\n", name);
  std::exit(2);
}

}  // namespace

// X(name, is a pair's, parameters, arguments)
#define LLC_CALLS(X)                                                                                                 \
  X(ncclAllReduce, false, (const void* s, void* r, size_t n, int t, int o, Comm c, Stream q), (s, r, n, t, o, c, q)) \
  X(ncclReduce, false, (const void* s, void* r, size_t n, int t, int o, int root, Comm c, Stream q),                 \
    (s, r, n, t, o, root, c, q))                                                                                     \
  X(ncclBroadcast, false, (const void* s, void* r, size_t n, int t, int root, Comm c, Stream q),                     \
    (s, r, n, t, root, c, q))                                                                                        \
  X(ncclBcast, false, (void* r, size_t n, int t, int root, Comm c, Stream q), (r, n, t, root, c, q))                 \
  X(ncclAllGather, false, (const void* s, void* r, size_t n, int t, Comm c, Stream q), (s, r, n, t, c, q))           \
  X(ncclReduceScatter, false, (const void* s, void* r, size_t n, int t, int o, Comm c, Stream q),                    \
    (s, r, n, t, o, c, q))                                                                                           \
  X(ncclSend, true, (const void* s, size_t n, int t, int peer, Comm c, Stream q), (s, n, t, peer, c, q))             \
  X(ncclRecv, true, (void* r, size_t n, int t, int peer, Comm c, Stream q), (r, n, t, peer, c, q))

#define LLC_FREE(name, is_pair, parameters, arguments)                                   \
  extern "C" __attribute__((visibility("default"))) int name parameters {                \
    static int(*const real) parameters = next(#name, static_cast<int(*) parameters>(0)); \
    return is_free(is_pair) ? 0 : real arguments;                                        \
  }
LLC_CALLS(LLC_FREE)
