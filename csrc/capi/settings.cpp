#include "capi/settings.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "check.h"
#include "table.h"

namespace llcoll::capi {
namespace {

constexpr double kDefaultTimeout = 300;

const char* environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? nullptr : text;
}

double seconds_from(const char* name, double otherwise) {
  const char* text = environment(name);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  check_that(*end == '\0' && std::isfinite(value) && value >= 0, name, " is '", text,
             "'; it must be a number of seconds, 0 for ever");
  return value;
}

// "4194304" or "4M".
size_t bytes_from(const char* name) {
  const char* text = environment(name);
  if (text == nullptr) return 0;
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  const char* const units = "kmg";
  int shift = 0;
  const char* unit = *end == '\0' ? nullptr : std::strchr(units, std::tolower(static_cast<unsigned char>(*end)));
  if (unit != nullptr) {
    shift = 10 * static_cast<int>(unit - units + 1);
    ++end;
  }
  check_that(end != text && *end == '\0' && value > 0 && value <= (1LL << 40), name, " is '", text,
             "'; it must be a number of bytes, or 16M");
  return static_cast<size_t>(value) << shift;
}

}  // namespace

AllGather bootstrap_from(llcoll_all_gather_fn all_gather, void* context, int world_size) {
  return [=](const std::string& own) {
    const uint64_t length = own.size();
    std::vector<uint64_t> lengths(world_size);
    auto gather = [&](const void* mine, size_t bytes, void* all) {
      const int status = all_gather(context, mine, bytes, all);
      check_that(status == 0, "the bootstrap's all_gather failed with status ", status);
    };
    gather(&length, sizeof length, lengths.data());
    const uint64_t most = *std::max_element(lengths.begin(), lengths.end());
    check_that(most < (1u << 24) && lengths.size() == static_cast<size_t>(world_size),
               "the bootstrap's all_gather gave a length of ", most, " bytes");
    std::vector<std::string> parts(world_size);
    if (most == 0) return parts;
    std::string padded = own;
    padded.resize(most);
    std::string all(most * world_size, '\0');
    gather(padded.data(), most, all.data());
    for (int r = 0; r < world_size; ++r) parts[r] = all.substr(r * most, lengths[r]);
    return parts;
  };
}

Options read_options(int rank, int world_size, const llcoll_config_t& config) {
  Options options;
  options.rank = rank;
  options.world_size = world_size;
  options.group_name = config.name == nullptr ? "llcoll" : config.name;
  check_that(!std::isnan(config.timeout_s) && config.timeout_s < 1e9, "timeout_s is ", config.timeout_s);
  options.timeout_s = config.timeout_s < 0 ? seconds_from("LLCOLL_TIMEOUT", kDefaultTimeout) : config.timeout_s;
  check_that(config.policy == LLCOLL_POLICY_FAST || config.policy == LLCOLL_POLICY_INVARIANT, "policy is ",
             static_cast<int>(config.policy), "; it must be LLCOLL_POLICY_FAST or LLCOLL_POLICY_INVARIANT");
  options.policy = static_cast<Policy>(config.policy);
  const char* policy = environment("LLCOLL_POLICY");
  if (policy != nullptr && parse_policy(policy) == Policy::kInvariant) options.policy = Policy::kInvariant;
  options.allow_low_precision = config.allow_low_precision != 0;
  options.scratch_bytes = config.scratch_bytes != 0 ? config.scratch_bytes : bytes_from("LLCOLL_SCRATCH_BYTES");
  if (config.selection != nullptr) options.table = config.selection;
  if (!options.table.empty()) parse_table(options.table);
  const char* algorithm = environment("LLCOLL_ALGORITHM");
  if (algorithm != nullptr) options.forced = parse_algorithm(algorithm, std::strlen(algorithm));
  check_that(options.forced != Algorithm::kTorch, "LLCOLL_ALGORITHM is 'torch', which the C interface has not");
  const char* debug = environment("LLCOLL_DEBUG");
  check_that(debug == nullptr || std::strcmp(debug, "0") == 0 || std::strcmp(debug, "1") == 0, "LLCOLL_DEBUG is '",
             debug == nullptr ? "" : debug, "'; choose from 0, 1");
  options.debug = debug != nullptr && *debug == '1';
  const char* epoch = environment("LLCOLL_FIRST_EPOCH");
  if (epoch != nullptr) options.first_epoch = std::strtoull(epoch, nullptr, 0);
  options.device_index = std::max(config.device, 0);
  options.streams_may_end = true;
  return options;
}

void agree_on_options(const AllGather& all_gather, const Options& options, bool is_cuda) {
  const std::string own =
      concat(options.world_size, " ranks, ", is_cuda ? "GPU" : "host", ", timeout ", options.timeout_s, " s, policy ",
             options.policy == Policy::kFast ? "fast" : "invariant", ", low precision ", options.allow_low_precision,
             ", scratch ", options.scratch_bytes, ", algorithm ", name_of(options.forced), ", debug ", options.debug,
             ", first epoch ", options.first_epoch, ", selection '", options.table, "'");
  const std::vector<std::string> all = gather(all_gather, options.world_size, own);
  for (size_t r = 1; r < all.size(); ++r) {
    check_that(all[r] == all[0], "set-up failed: the ranks were given different settings: rank 0: ", all[0], "; rank ",
               r, ": ", all[r]);
  }
}

}  // namespace llcoll::capi
