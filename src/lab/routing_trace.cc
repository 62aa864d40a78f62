#include "lab/routing_trace.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/mapped_file.h"
#include "lab/trace_formats.h"

namespace carpool {
namespace {

constexpr int64_t kMaxId = 1 << 20;
constexpr uint64_t kMaxLayer = 100'000;

bool ParseUint(std::string_view text, uint64_t& value) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r')) text.remove_suffix(1);
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  return ec == std::errc() && end == text.data() + text.size();
}

std::vector<std::string_view> SplitCsv(std::string_view line) {
  std::vector<std::string_view> cells;
  size_t start = 0;
  bool quoted = false;
  for (size_t i = 0; i <= line.size(); ++i) {
    if (i < line.size() && line[i] == '"') quoted = !quoted;
    if (i < line.size() && (line[i] != ',' || quoted)) continue;
    std::string_view cell = line.substr(start, i - start);
    if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"')
      cell = cell.substr(1, cell.size() - 2);
    cells.push_back(cell);
    start = i + 1;
  }
  return cells;
}

struct CsvColumns {
  size_t layer = 0, token = 1, experts = 2, step = SIZE_MAX, request = SIZE_MAX, count = 3;
};

Result<CsvColumns> ReadHeader(std::string_view line, const std::string& path) {
  CsvColumns c{SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, 0};
  for (std::string_view cell : SplitCsv(line)) {
    while (!cell.empty() && (cell.back() == '\r' || cell.back() == ' ')) cell.remove_suffix(1);
    const size_t i = c.count++;
    if (cell == "layer") c.layer = i;
    if (cell == "token") c.token = i;
    if (cell == "experts") c.experts = i;
    if (cell == "step") c.step = i;
    if (cell == "request") c.request = i;
  }
  if (c.layer == SIZE_MAX || c.token == SIZE_MAX || c.experts == SIZE_MAX) {
    return BadTrace(
        "{}: wanted a header with layer,token,experts (and maybe step, request), got '{}'", path,
        line.substr(0, 80));
  }
  return c;
}

Result<TraceSteps> ReadCsv(std::string_view text, const std::string& path, size_t rows_per_step) {
  TraceSteps steps;
  CsvColumns columns;
  size_t number = 0;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    const std::string_view line = text.substr(start, end - start);
    start = end + 1;
    ++number;
    if (line.empty() || line == "\r") continue;
    if (number == 1 && line.find_first_not_of("0123456789") == 0) {
      ASSIGN_OR_RETURN(columns, ReadHeader(line, path));
      continue;
    }
    const std::string where = fmt::format("{}: line {}", path, number);
    const auto cells = SplitCsv(line);
    uint64_t layer = 0, token = 0, step = 0, request = 0;
    if (cells.size() != columns.count || !ParseUint(cells[columns.layer], layer) ||
        !ParseUint(cells[columns.token], token) || layer > kMaxLayer ||
        (columns.step != SIZE_MAX && !ParseUint(cells[columns.step], step)) ||
        (columns.request != SIZE_MAX && !ParseUint(cells[columns.request], request))) {
      return BadTrace("{}: wanted layer,token,experts, got '{}'", where, line.substr(0, 80));
    }
    TracedRow row{columns.request == SIZE_MAX ? token : request, {}, {}};
    std::string_view rest = cells[columns.experts];
    while (!rest.empty()) {
      const size_t cut = std::min(rest.find_first_of(" ;,"), rest.size());
      uint64_t id = 0;
      if (cut > 0 && rest.substr(0, cut) != "\r") {
        if (!ParseUint(rest.substr(0, cut), id) || id >= static_cast<uint64_t>(kMaxId))
          return BadTrace("{}: wanted expert ids, got '{}'", where, rest.substr(0, 40));
        row.ids.push_back(static_cast<int32_t>(id));
      }
      rest.remove_prefix(std::min(cut + 1, rest.size()));
    }
    RETURN_IF_ERROR(CheckTracedRow(row, where));
    if (columns.step == SIZE_MAX) step = token / rows_per_step;
    steps[{step, layer}].push_back(std::move(row));
  }
  return steps;
}

Result<TraceSteps> ReadOwn(std::string_view text, const std::string& path) {
  TraceSteps steps;
  std::vector<size_t> requests;  // of the step's rows
  size_t number = 0;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    const std::string_view line = text.substr(start, end - start);
    start = end + 1;
    ++number;
    if (line.empty()) continue;
    const std::string where = fmt::format("{}: line {}", path, number);
    try {
      const auto json = nlohmann::json::parse(line);
      const std::string record = json.value("record", "");
      if (record == "batch") requests = json.at("requests").get<std::vector<size_t>>();
      if (record != "row" || json.value("phase", "decode") != "decode") continue;
      const auto place = json.at("row").get<size_t>();
      TracedRow row{place < requests.size() ? requests[place] : place,
                    json.at("vanilla").get<std::vector<int32_t>>(),
                    {}};
      for (const auto& best : json.at("best"))
        if (row.scores.size() < row.ids.size()) row.scores.push_back(best.at("a").get<float>());
      if (row.scores.size() != row.ids.size()) row.scores.clear();
      RETURN_IF_ERROR(CheckTracedRow(row, where));
      const auto layer = json.at("layer").get<uint64_t>();
      if (layer > kMaxLayer) return BadTrace("{}: layer {} is above {}", where, layer, kMaxLayer);
      steps[{json.at("step").get<uint64_t>(), layer}].push_back(std::move(row));
    } catch (const std::exception& e) {
      return BadTrace("{}: not a record of a routing trace ({})", where, e.what());
    }
  }
  if (steps.empty())
    return BadTrace("{}: no decode row records; record the trace at level 2", path);
  return steps;
}

template <typename T>
int64_t LoadInteger(const char* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return static_cast<int64_t>(value);
}

Result<TraceSteps> ReadNpy(std::string_view text, const std::string& path, size_t rows_per_step) {
  ASSIGN_OR_RETURN(const NpyArray array, ReadNpyArray(text, path));
  const uint64_t tokens = array.shape[0], layers = array.shape[1], k = array.shape[2];
  TraceSteps steps;
  for (uint64_t t = 0; t < tokens; ++t) {
    for (uint64_t l = 0; l < layers; ++l) {
      RETURN_IF_ERROR(AddTracedRow(steps, t / rows_per_step, l, t,
                                   array.values.data() + (t * layers + l) * k, k,
                                   fmt::format("{}: token {}, layer {}", path, t, l)));
    }
  }
  return steps;
}

/// The first line of a Carpool trace is a record; an answer of a server has choices.
bool IsOwnTrace(std::string_view text) {
  return text.substr(0, text.find('\n')).find("\"record\"") != text.npos ||
         text.find("\"choices\"") == text.npos;
}

}  // namespace

Status CheckTracedRow(const TracedRow& row, const std::string& where) {
  if (row.ids.empty()) return BadTrace("{}: a row without experts", where);
  for (size_t i = 0; i < row.ids.size(); ++i) {
    if (row.ids[i] < 0 || row.ids[i] >= kMaxId)
      return BadTrace("{}: expert id {} is not in [0, {})", where, row.ids[i], kMaxId);
    const auto here = row.ids.begin() + static_cast<ptrdiff_t>(i);
    if (std::find(row.ids.begin(), here, row.ids[i]) != here)
      return BadTrace("{}: expert id {} stands twice in one row", where, row.ids[i]);
  }
  return {};
}

Status AddTracedRow(TraceSteps& steps, uint64_t step, size_t layer, size_t request,
                    const int64_t* ids, size_t k, const std::string& where) {
  TracedRow row{request, {}, {}};
  for (size_t i = 0; i < k; ++i) {
    if (ids[i] == -1) continue;  // an unused place
    row.ids.push_back(static_cast<int32_t>(std::clamp<int64_t>(ids[i], -1, kMaxId)));
  }
  if (row.ids.empty()) return {};  // padding, or a layer without experts
  RETURN_IF_ERROR(CheckTracedRow(row, where));
  steps[{step, layer}].push_back(std::move(row));
  return {};
}

Result<NpyArray> ReadNpyArray(std::string_view text, const std::string& path) {
  if (text.size() < 12) return BadTrace("{}: a .npy file cut short", path);
  const bool wide = text[6] >= 2;  // version 2: four bytes of header length
  size_t header = static_cast<uint8_t>(text[8]) + 256u * static_cast<uint8_t>(text[9]);
  if (wide)
    header += 65536u * static_cast<uint8_t>(text[10]) + 16777216u * static_cast<uint8_t>(text[11]);
  const size_t begin = wide ? 12 : 10;
  if (text.size() < begin + header) return BadTrace("{}: a .npy file cut short", path);
  const std::string_view info = text.substr(begin, header);
  int64_t (*load)(const char*) = nullptr;
  size_t size = 0;
  const auto type = [&](std::string_view name, int64_t (*fn)(const char*), size_t bytes) {
    if (info.find(name) != std::string_view::npos) load = fn, size = bytes;
  };
  type("'|u1'", LoadInteger<uint8_t>, 1);
  type("'|i1'", LoadInteger<int8_t>, 1);
  type("'<i2'", LoadInteger<int16_t>, 2);
  type("'<u2'", LoadInteger<uint16_t>, 2);
  type("'<i4'", LoadInteger<int32_t>, 4);
  type("'<i8'", LoadInteger<int64_t>, 8);
  const size_t open = info.find("'shape': (");
  NpyArray array;
  if (open != std::string_view::npos) {
    std::string_view list = info.substr(open + 10);
    list = list.substr(0, list.find(')'));
    for (const std::string_view cell : SplitCsv(list)) {
      uint64_t n = 0;
      if (ParseUint(cell, n)) array.shape.push_back(n);
    }
  }
  const auto& shape = array.shape;
  if (load == nullptr || shape.size() != 3 || info.find("'fortran_order': False") == info.npos) {
    return BadTrace("{}: wanted a C-ordered integer array [tokens, layers, k], got {}", path,
                    info.substr(0, 100));
  }
  const uint64_t tokens = shape[0], layers = shape[1], k = shape[2];
  if (k == 0 || k > 1024 || layers == 0 || layers > kMaxLayer || tokens > text.size()) {
    return BadTrace(
        "{}: wanted [tokens, layers <= {}, k <= 1024] within the file, got [{}, {}, {}]", path,
        kMaxLayer, tokens, layers, k);
  }
  if (text.size() - begin - header != tokens * layers * k * size) {
    return BadTrace("{}: [{}, {}, {}] needs {} bytes of data, the file has {}", path, tokens,
                    layers, k, tokens * layers * k * size, text.size() - begin - header);
  }
  const char* p = text.data() + begin + header;
  for (uint64_t i = 0; i < tokens * layers * k; ++i) array.values.push_back(load(p + i * size));
  return array;
}

Result<RoutingTrace> ReadRoutingTrace(const std::string& path, size_t rows_per_step) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  RoutingTrace trace;
  TraceSteps steps;
  if (text.starts_with("\x93NUMPY")) {
    trace.format = "npy";
    ASSIGN_OR_RETURN(steps, ReadNpy(text, path, rows_per_step));
  } else if (text.starts_with("PK")) {
    trace.format = "sglang";
    ASSIGN_OR_RETURN(steps, ReadSglangRecord(text, path));
  } else if (text.starts_with("[") || (text.starts_with("{") && !IsOwnTrace(text))) {
    trace.format = "responses";
    ASSIGN_OR_RETURN(steps, ReadResponses(text, path));
  } else if (text.starts_with("{")) {
    trace.format = "carpool";
    ASSIGN_OR_RETURN(steps, ReadOwn(text, path));
  } else {
    trace.format = "csv";
    ASSIGN_OR_RETURN(steps, ReadCsv(text, path, rows_per_step));
  }
  if (steps.empty()) return BadTrace("{}: no routed rows in it", path);
  for (auto& [key, rows] : steps) {
    trace.num_layers = std::max(trace.num_layers, key.second + 1);
    for (const TracedRow& row : rows) {
      trace.top_k = std::max(trace.top_k, row.ids.size());
      for (const int32_t id : row.ids)
        trace.num_experts = std::max(trace.num_experts, static_cast<size_t>(id) + 1);
    }
    trace.steps.push_back({key.first, key.second, std::move(rows)});
  }
  return trace;
}

}  // namespace carpool
