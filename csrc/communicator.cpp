// The registry of communicators, and the names that users write.
#include "communicator.h"

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>

#include "check.h"

namespace llcoll {
namespace {

constexpr const char* kCollectiveNames[kNumCollectives] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                                           "reduce",     "all_to_all",     "all_to_all"};
constexpr const char* kDTypeNames[kNumDTypes] = {"float32",       "float64",     "float16", "bfloat16",
                                                 "float8_e4m3fn", "float8_e5m2", "int8",    "uint8",
                                                 "int32",         "int64",       "bool"};
constexpr const char* kReduceOpNames[kNumReduceOps] = {"sum", "avg", "min", "max", "prod"};
constexpr const char* kAlgorithmNames[kNumAlgorithms] = {
    "auto",          "one_shot_ll",   "one_shot_sentinel", "two_shot_ll", "two_shot_sentinel", "two_shot_ll128",
    "one_shot_flag", "two_shot_flag", "two_shot_multimem", "torch",       "leaders",           "lanes"};

template <size_t kCount>
int index_of(const char* const (&names)[kCount], const char* what, const char* text, size_t length) {
  for (size_t i = 0; i < kCount; ++i) {
    if (std::strlen(names[i]) == length && std::memcmp(names[i], text, length) == 0) return static_cast<int>(i);
  }
  std::string choices;
  for (const char* name : names) choices += (choices.empty() ? "" : ", ") + std::string(name);
  fail_with("unknown ", what, " '", std::string(text, length), "'; choose from ", choices);
}

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Communicator>, std::less<>> communicators;
  std::string default_name;
  bool has_default = false;
  // Unregistered from inside an interrupt check, that is, below a running wait of the same communicator.
  std::vector<std::shared_ptr<Communicator>> parked;
};

// Never destroyed: threads may still look names up while the process exits.
Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

// Counts changes of the registry: a cached pointer of an older generation is void.
std::atomic<uint64_t> generation{1};

// One look-up is on the path of each op call, so every thread remembers its last one.
struct LastFound {
  uint64_t generation = 0;
  size_t length = 0;
  Communicator* communicator = nullptr;
  char name[64];
};
thread_local LastFound last_found;

struct LastHash {
  uint64_t generation = 0;
  uint64_t hash = 0;
  Communicator* communicator = nullptr;
};
thread_local LastHash last_hash;

std::atomic<bool (*)()> interrupt_check{nullptr};
std::atomic<int> num_in_interrupt_check{0};

std::string known_names(const Registry& r) {
  std::string text;
  for (const auto& [name, communicator] : r.communicators) text += (text.empty() ? "'" : ", '") + name + "'";
  return text.empty() ? "none" : text;
}

const std::shared_ptr<Communicator>* look_up(const Registry& r, std::string_view name) {
  const bool wants_default = name.empty() && r.has_default;
  const auto it = wants_default ? r.communicators.find(r.default_name) : r.communicators.find(name);
  return it == r.communicators.end() ? nullptr : &it->second;
}

[[noreturn]] void fail_unknown(const Registry& r, std::string_view name) {
  fail_with("no communicator for group '", name,
            "' on this device type; call llcoll.init() on every rank of the group ",
            "first (initialised here: ", known_names(r), ")");
}

const std::shared_ptr<Communicator>& find_locked(const Registry& r, std::string_view name) {
  const std::shared_ptr<Communicator>* found = look_up(r, name);
  if (found == nullptr) fail_unknown(r, name);
  return *found;
}

Communicator* find_hash_locked(const Registry& r, uint64_t hash) {
  if (r.has_default && hash == hash_of("", 0)) return r.communicators.at(r.default_name).get();
  for (const auto& [name, communicator] : r.communicators) {
    if (hash_of(name.data(), name.size()) == hash) return communicator.get();
  }
  return nullptr;
}

}  // namespace

DumpHeader Communicator::dump_header(const std::string& reason) {
  return {options_.group_name, rank(),    world_size(),          device_name(),
          options_.timeout_s,  awaited(), recorder_.num_calls(), reason};
}

void Communicator::note_failure(const std::string& text) {
  const auto begins_with = [&](const char* prefix) { return text.rfind(prefix, 0) == 0; };
  if (!begins_with("CollectiveTimeout: ") && !begins_with("CollectiveMismatch: ")) return;
  if (has_dumped_.exchange(true)) return;
  const DumpHeader header = dump_header(text);
  write_dump_file(header, dump_to_json(header, recorded_calls()));
}

void set_interrupt_check(bool (*check)()) { interrupt_check.store(check, std::memory_order_release); }

bool interrupted() {
  bool (*check)() = interrupt_check.load(std::memory_order_acquire);
  if (check == nullptr) return false;
  num_in_interrupt_check.fetch_add(1);
  const bool result = check();
  num_in_interrupt_check.fetch_sub(1);
  return result;
}

void register_communicator(const std::string& group_name, std::shared_ptr<Communicator> communicator, bool is_default) {
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  if (r.communicators.count(group_name) != 0) {
    fail_with("group '", group_name, "' has a communicator already");
  }
  const uint64_t hash = hash_of(group_name.data(), group_name.size());
  if (find_hash_locked(r, hash) != nullptr || hash == hash_of("", 0)) {
    fail_with("group '", group_name, "' has the same hash as another group's name; give it another name");
  }
  r.communicators.emplace(group_name, std::move(communicator));
  if (is_default) {
    r.default_name = group_name;
    r.has_default = true;
  }
  if (num_in_interrupt_check.load() == 0) r.parked.clear();
  generation.fetch_add(1);
}

Communicator& find_communicator(const char* group_name, size_t length) {
  LastFound& last = last_found;
  const uint64_t now = generation.load(std::memory_order_acquire);
  if (last.generation == now && last.length == length && std::memcmp(last.name, group_name, length) == 0) {
    return *last.communicator;
  }
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  Communicator& found = *find_locked(r, {group_name, length});
  if (length <= sizeof last.name) {
    last.generation = generation.load(std::memory_order_relaxed);
    last.length = length;
    last.communicator = &found;
    std::memcpy(last.name, group_name, length);
  }
  return found;
}

Communicator& find_communicator(uint64_t name_hash, const char* name_for_errors) {
  LastHash& last = last_hash;
  const uint64_t now = generation.load(std::memory_order_acquire);
  if (last.generation == now && last.hash == name_hash) return *last.communicator;
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  Communicator* found = find_hash_locked(r, name_hash);
  if (found == nullptr) fail_unknown(r, name_for_errors != nullptr ? name_for_errors : concat("#", name_hash));
  last = {generation.load(std::memory_order_relaxed), name_hash, found};
  return *found;
}

uint64_t hash_of(const char* group_name, size_t length) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (size_t i = 0; i < length; ++i) hash = (hash ^ static_cast<unsigned char>(group_name[i])) * 0x100000001b3;
  return hash;
}

bool has_communicator(const char* group_name, size_t length) {
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  return look_up(r, {group_name, length}) != nullptr;
}

std::shared_ptr<Communicator> share_communicator(const std::string& group_name) {
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  return find_locked(r, group_name);
}

bool unregister_communicator(const std::string& group_name) {
  Registry& r = registry();
  std::shared_ptr<Communicator> last_reference;  // destroyed after the lock is gone
  const std::lock_guard<std::mutex> lock(r.mutex);
  const auto it = r.communicators.find(group_name.empty() && r.has_default ? r.default_name : group_name);
  if (it == r.communicators.end()) return false;
  generation.fetch_add(1);
  last_reference = std::move(it->second);
  if (r.has_default && it->first == r.default_name) r.has_default = false;
  r.communicators.erase(it);
  last_reference->close();
  if (num_in_interrupt_check.load() != 0) r.parked.push_back(last_reference);
  return true;
}

const char* name_of(Collective kind) { return kCollectiveNames[static_cast<int>(kind)]; }
const char* name_of(DType dtype) { return kDTypeNames[static_cast<int>(dtype)]; }
const char* name_of(ReduceOp op) { return kReduceOpNames[static_cast<int>(op)]; }
const char* name_of(Algorithm algorithm) { return kAlgorithmNames[static_cast<int>(algorithm)]; }

ReduceOp parse_reduce_op(const char* text, size_t length) {
  if (length == 3 && std::memcmp(text, "sum", 3) == 0) return ReduceOp::kSum;
  return static_cast<ReduceOp>(index_of(kReduceOpNames, "reduce_op", text, length));
}

Algorithm parse_algorithm(const char* text, size_t length) {
  if (length == 4 && std::memcmp(text, "auto", 4) == 0) return Algorithm::kAuto;
  return static_cast<Algorithm>(index_of(kAlgorithmNames, "algorithm", text, length));
}

Policy parse_policy(const std::string& text) {
  check_that(text == "fast" || text == "invariant", "unknown policy '", text, "'; choose from fast, invariant");
  return text == "fast" ? Policy::kFast : Policy::kInvariant;
}

}  // namespace llcoll
