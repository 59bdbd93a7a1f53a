// What users' tensors hold, and what collectives make of it.
#pragma once

#include <vector>

#include "llcoll/types.h"
#include "sim/mix.h"

namespace llcoll::sim {

// Small whole numbers: exact in sums, hard to mistake for one another. kOdd: some words are all ones. kInexact: numbers
// whose sums are rounded, so that their order tells (float32; other types as kExact).
enum class Values { kExact, kOdd, kInexact };
void fill_words(DType dtype, Values values, Random& random, uint32_t* words, uint32_t num_words);

// The sum as the contract has it, by the same arithmetic as the algorithms and none of their code. Whole 8-byte units.
void reduce_words(DType dtype, ReduceOp op, const std::vector<const uint32_t*>& inputs, uint32_t* out,
                  uint32_t num_words);

}  // namespace llcoll::sim
