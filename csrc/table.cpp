#include "table.h"

#include <cstring>
#include <string_view>

#include "check.h"
#include "communicator.h"

namespace llcoll {
namespace {

constexpr const char* kClassNames[kNumTypeClasses] = {"float32", "float", "integer"};

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

// Takes everything up to `separator`, or all, from the front of `rest`.
std::string_view take(std::string_view& rest, char separator) {
  const size_t at = rest.find(separator);
  const std::string_view piece = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view{} : rest.substr(at + 1);
  return trimmed(piece);
}

uint64_t parse_limit(std::string_view text) {
  if (text == "*") return kAnySize;
  uint64_t value = 0;
  for (const char digit : text) {
    check_that(digit >= '0' && digit <= '9' && value < kAnySize / 16, "selection table: '", std::string(text),
               "' is not a size in bytes");
    value = value * 10 + static_cast<uint64_t>(digit - '0');
  }
  check_that(!text.empty(), "selection table: a row has no size");
  return value;
}

std::vector<TableRow> parse_rows(std::string_view text) {
  std::vector<TableRow> rows;
  while (!text.empty()) {
    std::string_view row = take(text, ',');
    const uint64_t limit = parse_limit(take(row, ' '));
    const std::string_view name = trimmed(row);
    const Algorithm algorithm = parse_algorithm(name.data(), name.size());
    check_that(algorithm != Algorithm::kAuto, "selection table: a row says auto");
    check_that(rows.empty() || rows.back().max_bytes < limit, "selection table: sizes do not grow at '",
               std::string(name), "'");
    rows.push_back({limit, algorithm});
  }
  check_that(!rows.empty() && rows.back().max_bytes == kAnySize, "selection table: the last row's size must be *");
  check_that(rows.size() <= kMaxTableRows, "selection table: ", rows.size(), " rows; at most ", kMaxTableRows);
  return rows;
}

}  // namespace

const char* name_of(TypeClass type_class) { return kClassNames[static_cast<int>(type_class)]; }

Table parse_table(const std::string& text) {
  Table table;
  std::string_view rest = text;
  while (!trimmed(rest).empty()) {
    std::string_view part = take(rest, ';');
    const std::string_view name = take(part, ':');
    int type_class = 0;
    while (type_class < kNumTypeClasses && name != kClassNames[type_class]) ++type_class;
    check_that(type_class < kNumTypeClasses, "selection table: unknown class of types '", std::string(name),
               "'; choose from float32, float, integer");
    check_that(table.rows[type_class].empty(), "selection table: class '", std::string(name), "' comes twice");
    table.rows[type_class] = parse_rows(part);
  }
  for (int i = 0; i < kNumTypeClasses; ++i) {
    check_that(!table.rows[i].empty(), "selection table: class '", kClassNames[i], "' is missing");
  }
  return table;
}

}  // namespace llcoll
