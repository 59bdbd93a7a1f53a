// Selection tables: which algorithm serves messages up to which size, for each class of element types. No torch.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "llcoll/types.h"

namespace llcoll {

struct Topology;

// What a table tells apart: LL128 adds float32 best, sentinel needs a floating type, the rest is bytes.
enum class TypeClass : int32_t { kFloat32, kFloat, kInteger };  // kFloat: every other floating type
inline constexpr int kNumTypeClasses = 3;
const char* name_of(TypeClass type_class);  // "float32", "float", "integer"
constexpr TypeClass class_of(DType dtype) {
  if (dtype == DType::kFloat32) return TypeClass::kFloat32;
  return is_floating(dtype) ? TypeClass::kFloat : TypeClass::kInteger;
}

struct TableRow {
  uint64_t max_bytes;  // the row serves messages up to here, above the row before
  Algorithm algorithm;
};
inline constexpr uint64_t kAnySize = std::numeric_limits<uint64_t>::max();
inline constexpr int kMaxTableRows = 16;

// Rows in growing order of max_bytes; the last one's is kAnySize.
struct Table {
  std::vector<TableRow> rows[kNumTypeClasses];
};

// "float32: 64 one_shot_ll, 8192 one_shot_flag, * torch; float: ...; integer: ...": every class once, sizes in bytes,
// growing, `*` last. Throws LlcollError with what is wrong.
Table parse_table(const std::string& text);

// A built-in table, by the machine it is for. The rows are in default_tables.cpp: measured figures go there.
struct DefaultTable {
  const char* name;
  const char* provenance;  // where the crossovers come from
  const char* rows;        // for parse_table
};
const DefaultTable& default_table(const Topology& topology, int world_size);

}  // namespace llcoll
