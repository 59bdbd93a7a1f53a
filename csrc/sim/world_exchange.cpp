// Collectives of one exchange: cut by the code that ships (csrc/exchange_plan.cpp), and what they must give.
#include <algorithm>
#include <cstring>

#include "sim/values.h"
#include "sim/world.h"

namespace llcoll::sim {

// `splits` holds what the call points to.
CollectiveCall World::exchange_call(const Call& call, const KernelRow& row, int rank,
                                    std::vector<size_t>& splits) const {
  const auto ranks = static_cast<size_t>(program_.ranks);
  CollectiveCall made{};
  made.kind = row.collective;
  made.numel = static_cast<size_t>(call.numel);
  made.dtype = call.dtype;
  made.op = call.op;
  made.root = call.root;
  splits.resize(2 * ranks);
  if (call.splits.size() == ranks * ranks) {  // all_to_all: by sender, then by receiver
    made.kind = Collective::kAllToAllV;
    for (size_t p = 0; p < ranks; ++p) {
      splits[p] = static_cast<size_t>(call.splits[static_cast<size_t>(rank) * ranks + p]);
      splits[ranks + p] = static_cast<size_t>(call.splits[p * ranks + static_cast<size_t>(rank)]);
    }
    made.input_splits = splits.data();
    made.output_splits = splits.data() + ranks;
  } else if (call.splits.size() == ranks) {
    for (size_t p = 0; p < ranks; ++p) splits[p] = static_cast<size_t>(call.splits[p]);
    made.input_splits = made.output_splits = splits.data();
  }
  return made;
}

void World::plan_exchange(int k) {
  const Call& call = program_.calls[k];
  for (int rank = 0; rank < program_.ranks; ++rank) {
    Launch& launch = launches_[k * program_.ranks + rank];
    const KernelRow& row = *launch.row;
    std::vector<size_t> splits;
    const CollectiveCall made = exchange_call(call, row, rank, splits);
    lay_out_parts(made, rank, program_.ranks, row.unit_bytes, launch.exchange);
    const uint32_t slots = capacity_[static_cast<int>(row.scratch)];
    cut_parts(made, program_.ranks, {row.unit_bytes, row.push, slots}, static_cast<uint32_t>(call.channels),
              launch.exchange);
    // Smaller chunks than the slots would hold, as after a small scratch.
    Cut& cut = launch.exchange.cut;
    if (call.max_chunk > 0 && !cut.open_ended) {
      const Plan plan = make_plan(launch.exchange.largest, 1, static_cast<uint32_t>(call.channels),
                                  static_cast<uint32_t>(call.max_chunk));
      const uint64_t others =
          uint64_t(call.channels - 1) * plan.per_channel + uint64_t{plan.num_chunks - 1} * plan.chunk;
      cut.chunk = plan.chunk;
      cut.num_chunks = plan.num_chunks;
      cut.stride = stride_of(plan.chunk);
      cut.hello = cut.hello || others >= launch.exchange.largest;
    }
    if (is(Mutant::kNoHello)) cut.hello = false;
  }
}

void World::expect_exchange(int k) {
  const Call& call = program_.calls[k];
  const int ranks = program_.ranks;
  const uint32_t* values = inputs_[launches_[k * ranks].data_call].data();
  const Collective kind = launches_[k * ranks].row->collective;
  const auto input_of = [&](int rank) { return reinterpret_cast<const char*>(values + size_t(rank) * user_words_); };
  const auto parts_of = [&](int rank) -> const Parts& { return launches_[k * ranks + rank].exchange.input; };
  for (int rank = 0; rank < ranks; ++rank) {
    const Parts& out = launches_[k * ranks + rank].exchange.output;
    char* to = reinterpret_cast<char*>(&expected_[k][size_t(rank) * user_words_]);
    if (kind == Collective::kReduceScatter || kind == Collective::kReduce) {
      const uint64_t bytes = parts_of(rank).bytes_of(rank);
      const auto words = static_cast<uint32_t>((bytes + 7) / 8 * 2);
      std::vector<std::vector<uint32_t>> parts;
      std::vector<const uint32_t*> sources;
      for (int source = 0; source < ranks; ++source) {
        parts.emplace_back(words);
        std::memcpy(parts.back().data(), input_of(source) + parts_of(source).begin[rank], bytes);
      }
      for (const auto& part : parts) sources.push_back(part.data());
      std::vector<uint32_t> sum(words);
      reduce_words(call.dtype, call.op, sources, sum.data(), words);
      std::memcpy(to, sum.data(), bytes);
      output_bytes_[k * ranks + rank] = static_cast<uint32_t>(bytes);
      continue;
    }
    const bool gathers = kind == Collective::kAllGather || kind == Collective::kBroadcast;
    for (int source = 0; source < ranks; ++source) {
      const uint64_t from = gathers ? 0 : parts_of(source).begin[rank];
      std::memcpy(to + out.begin[source], input_of(source) + from, out.bytes_of(source));
    }
    output_bytes_[k * ranks + rank] = static_cast<uint32_t>(out.begin[ranks]);
  }
}

}  // namespace llcoll::sim
