#include "weights/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/printable.h"

namespace carpool {
namespace {

namespace ondemand = simdjson::ondemand;

struct DtypeEntry {
  std::string_view name;
  Dtype dtype;
  uint8_t bytes;
};
constexpr DtypeEntry kDtypes[] = {
    {"BOOL", Dtype::kBool, 1},      {"U8", Dtype::kU8, 1},          {"I8", Dtype::kI8, 1},
    {"I16", Dtype::kI16, 2},        {"U16", Dtype::kU16, 2},        {"I32", Dtype::kI32, 4},
    {"U32", Dtype::kU32, 4},        {"I64", Dtype::kI64, 8},        {"U64", Dtype::kU64, 8},
    {"F16", Dtype::kF16, 2},        {"BF16", Dtype::kBF16, 2},      {"F32", Dtype::kF32, 4},
    {"F64", Dtype::kF64, 8},        {"F8_E4M3", Dtype::kF8E4M3, 1}, {"F8_E5M2", Dtype::kF8E5M2, 1},
    {"F8_E8M0", Dtype::kF8E8M0, 1},
};

const DtypeEntry& EntryOf(Dtype dtype) {
  CARPOOL_CHECK(dtype != Dtype::kGgufBlocks);
  return *std::find_if(std::begin(kDtypes), std::end(kDtypes),
                       [&](const auto& e) { return e.dtype == dtype; });
}

/// A JSON string still between its quotes in the text.
struct RawString {
  std::string_view text;
  bool escaped = false;
};
RawString RawAt(const char* begin) {
  // The first pass of simdjson has seen the closing quote, so the loop ends inside the text.
  const char* p = begin;
  bool escaped = false;
  for (; *p != '"'; ++p) {
    if (*p != '\\') continue;
    escaped = true;
    ++p;
  }
  return {std::string_view(begin, static_cast<size_t>(p - begin)), escaped};
}

/// Offsets of one tensor until the data has been laid out.
struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
};

class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> file, const std::string& where)
      : file_(file), where_(where) {}

  Result<SafetensorsHeader> Parse() {
    RETURN_IF_ERROR(ReadSize());
    RETURN_IF_ERROR(ReadJson());
    RETURN_IF_ERROR(LayOut());
    return std::move(header_);
  }

 private:
  template <typename... Args>
  Error Corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    return MakeError(ErrorCode::kCorrupt, "{}: {}", where_,
                     fmt::format(format, std::forward<Args>(args)...));
  }
  Error Json(simdjson::error_code code) const {
    return Corrupt("the safetensors header is not valid JSON of the expected form: {}",
                   simdjson::error_message(code));
  }

  Status ReadSize() {
    if (file_.size() < 8) {
      return Corrupt("wanted a safetensors file of at least 8 bytes, got {} bytes", file_.size());
    }
    uint64_t size = 0;
    for (size_t i = 0; i < 8; ++i) size |= static_cast<uint64_t>(file_[i]) << (8 * i);
    if (size > kMaxHeaderBytes) {
      return Corrupt(
          "the header size field says {} bytes, at most {} are allowed; not a safetensors file?",
          size, kMaxHeaderBytes);
    }
    if (size > file_.size() - 8) {
      return Corrupt(
          "the header should have {} bytes but the file ends after {}; truncated download?", size,
          file_.size() - 8);
    }
    if (size < 2 || static_cast<char>(file_[8]) != '{')
      return Corrupt("the header does not start with '{{'");
    header_.header_bytes = size;
    return {};
  }

  Status ReadJson() {
    const auto* text = reinterpret_cast<const char*>(file_.data() + 8);
    const size_t size = header_.header_bytes;
    // simdjson may read a few bytes past the text: tensor data, or a copy when the file ends too
    // soon.
    simdjson::padded_string copy;
    simdjson::padded_string_view view(text, size, file_.size() - 8);
    if (file_.size() - 8 - size < simdjson::SIMDJSON_PADDING) {
      copy = simdjson::padded_string(text, size);
      view = copy;
    }
    text_ = text;
    parsed_ = view.data();
    ondemand::parser parser(kMaxHeaderBytes);
    ondemand::document doc;
    if (auto e = parser.iterate(view).get(doc)) return Json(e);
    ondemand::object root;
    if (auto e = doc.get_object().get(root)) return Json(e);
    for (auto item : root) {
      ondemand::field field;
      if (auto e = std::move(item).get(field)) return Json(e);
      RETURN_IF_ERROR(ReadEntry(field));
    }
    if (doc.current_location().error() != simdjson::OUT_OF_BOUNDS)
      return Corrupt("there is text after the end of the JSON header");
    return {};
  }

  Status ReadEntry(ondemand::field& field) {
    const RawString raw = RawAt(field.key().raw());
    std::string_view name = raw.text;
    if (raw.escaped) {
      if (auto e = field.unescaped_key().get(name)) return Json(e);
    }
    ondemand::object body;
    if (field.value().get_object().get(body)) {
      return Corrupt("header entry '{}': wanted an object", Printable(name));
    }
    if (name == "__metadata__") return ReadMetadata(body);
    TensorInfo tensor;
    tensor.name = Keep(name, raw.escaped);
    RETURN_IF_ERROR(ReadTensor(body, tensor));
    header_.tensors.push_back(tensor);
    return {};
  }

  Status ReadMetadata(ondemand::object& body) {
    if (std::exchange(seen_metadata_, true)) return Corrupt("'__metadata__' is there twice");
    for (auto item : body) {
      ondemand::field field;
      if (auto e = std::move(item).get(field)) return Json(e);
      if (field.value().get_raw_json_string().error()) {
        return Corrupt("__metadata__ must map strings to strings");
      }
    }
    return {};
  }

  Status ReadTensor(ondemand::object& body, TensorInfo& tensor) {
    bool has_dtype = false;
    bool has_shape = false;
    bool has_offsets = false;
    Range range;
    const auto twice = [&](std::string_view key) {
      return Corrupt("tensor '{}': '{}' is there twice", Printable(tensor.name), key);
    };
    for (auto item : body) {
      ondemand::field field;
      if (auto e = std::move(item).get(field)) return Json(e);
      const std::string_view key = RawAt(field.key().raw()).text;
      if (key == "dtype") {
        if (std::exchange(has_dtype, true)) return twice(key);
        RETURN_IF_ERROR(ReadDtype(field.value(), tensor));
      } else if (key == "shape") {
        if (std::exchange(has_shape, true)) return twice(key);
        RETURN_IF_ERROR(ReadShape(field.value(), tensor));
      } else if (key == "data_offsets") {
        if (std::exchange(has_offsets, true)) return twice(key);
        RETURN_IF_ERROR(ReadOffsets(field.value(), tensor, range));
      } else {
        return Corrupt("tensor '{}': unknown field '{}'; known: dtype, shape, data_offsets",
                       Printable(tensor.name), Printable(key));
      }
    }
    if (!has_dtype || !has_shape || !has_offsets) {
      return Corrupt("tensor '{}': '{}' is missing", Printable(tensor.name),
                     !has_dtype   ? "dtype"
                     : !has_shape ? "shape"
                                  : "data_offsets");
    }
    return CheckSize(tensor, range);
  }

  Status ReadDtype(ondemand::value value, TensorInfo& tensor) {
    ondemand::raw_json_string raw;
    if (value.get_raw_json_string().get(raw)) {
      return Corrupt("tensor '{}': dtype: wanted a string", Printable(tensor.name));
    }
    const std::string_view name = RawAt(raw.raw()).text;
    for (const auto& entry : kDtypes) {
      if (entry.name != name) continue;
      tensor.dtype = entry.dtype;
      return {};
    }
    std::string known;
    for (const auto& entry : kDtypes)
      known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.name);
    return MakeError(ErrorCode::kUnsupported, "{}: tensor '{}': unknown dtype '{}'; known: {}",
                     where_, Printable(tensor.name), Printable(name), known);
  }

  Status ReadShape(ondemand::value value, TensorInfo& tensor) {
    ondemand::array array;
    if (value.get_array().get(array)) {
      return Corrupt("tensor '{}': shape: wanted a list", Printable(tensor.name));
    }
    for (auto item : array) {
      uint64_t dim = 0;
      if (std::move(item).get_uint64().get(dim)) {
        return Corrupt("tensor '{}': shape: wanted whole numbers from 0", Printable(tensor.name));
      }
      if (tensor.ndim == kMaxDims) {
        return MakeError(ErrorCode::kUnsupported, "{}: tensor '{}' has more than {} dimensions",
                         where_, Printable(tensor.name), kMaxDims);
      }
      tensor.shape[tensor.ndim++] = dim;
    }
    return {};
  }

  Status ReadOffsets(ondemand::value value, const TensorInfo& tensor, Range& range) {
    ondemand::array array;
    uint64_t offsets[2] = {0, 0};
    size_t n = 0;
    bool good = !value.get_array().get(array);
    if (good) {
      for (auto item : array) {
        uint64_t offset = 0;
        good = !std::move(item).get_uint64().get(offset) && n < 2;
        if (!good) break;
        offsets[n++] = offset;
      }
    }
    if (!good || n != 2) {
      return Corrupt("tensor '{}': data_offsets: wanted two whole numbers from 0",
                     Printable(tensor.name));
    }
    range = {offsets[0], offsets[1]};
    return {};
  }

  Status CheckSize(TensorInfo& tensor, const Range& range) {
    const uint64_t buffer = file_.size() - 8 - header_.header_bytes;
    if (range.begin > range.end || range.end > buffer) {
      return Corrupt(
          "tensor '{}': data_offsets [{}, {}] do not fit the {} data bytes of the file; truncated "
          "download?",
          Printable(tensor.name), range.begin, range.end, buffer);
    }
    uint64_t bytes = DtypeBytes(tensor.dtype);
    for (size_t d = 0; d < tensor.ndim; ++d) {
      if (__builtin_mul_overflow(bytes, tensor.shape[d], &bytes)) {
        return Corrupt("tensor '{}': shape {} overflows", Printable(tensor.name),
                       ShapeText(tensor));
      }
    }
    if (bytes != range.end - range.begin) {
      return Corrupt("tensor '{}': {} {} needs {} bytes, data_offsets span {}",
                     Printable(tensor.name), DtypeName(tensor.dtype), ShapeText(tensor), bytes,
                     range.end - range.begin);
    }
    tensor.bytes = bytes;
    tensor.data = file_.data() + 8 + header_.header_bytes + range.begin;
    return {};
  }

  /// Data must follow data without holes or overlap, from the first byte after the header to the
  /// last of the file.
  Status LayOut() {
    auto& tensors = header_.tensors;
    const auto by_place = [](const TensorInfo& a, const TensorInfo& b) {
      return a.data != b.data ? a.data < b.data : a.bytes < b.bytes;
    };
    if (!std::is_sorted(tensors.begin(), tensors.end(), by_place)) {
      std::sort(tensors.begin(), tensors.end(), by_place);
    }
    const std::byte* expected = file_.data() + 8 + header_.header_bytes;
    for (const auto& tensor : tensors) {
      if (tensor.data != expected) {
        return Corrupt("tensor '{}' {}", Printable(tensor.name),
                       tensor.data < expected
                           ? "overlaps the tensor before it"
                           : fmt::format("starts {} bytes after the end of the one before it",
                                         tensor.data - expected));
      }
      expected += tensor.bytes;
    }
    const std::byte* end = file_.data() + file_.size();
    if (expected != end) return Corrupt("{} bytes follow the last tensor", end - expected);
    return {};
  }

  /// The name as the rest of the program sees it: without the prefix of a multimodal wrapper, alive
  /// as long as the file.
  std::string_view Keep(std::string_view name, bool escaped) {
    if (!escaped) name = std::string_view(text_ + (name.data() - parsed_), name.size());
    const PlainName plain = StripWrapper(name);
    if (!escaped && plain.head.empty()) return plain.tail;
    return Own(std::string(plain.head) + std::string(plain.tail));
  }
  std::string_view Own(std::string name) {
    return *header_.renamed.emplace_back(std::make_unique<std::string>(std::move(name)));
  }

  std::span<const std::byte> file_;
  const std::string& where_;
  SafetensorsHeader header_;
  const char* text_ = nullptr;    // the header in the file
  const char* parsed_ = nullptr;  // the same, or its padded copy
  bool seen_metadata_ = false;
};

}  // namespace

PlainName StripWrapper(std::string_view name) {
  constexpr std::string_view kInner = "model.language_model.";  // model.language_model.layers…
  constexpr std::string_view kOuter =
      "language_model.";  // language_model.model.…, language_model.lm_head…
  if (name.starts_with(kInner)) return {"model.", name.substr(kInner.size())};
  if (name.starts_with(kOuter)) return {"", name.substr(kOuter.size())};
  return {"", name};
}

std::string_view DtypeName(Dtype dtype) {
  return dtype == Dtype::kGgufBlocks ? "GGUF blocks" : EntryOf(dtype).name;
}
size_t DtypeBytes(Dtype dtype) { return EntryOf(dtype).bytes; }

std::string ShapeText(const TensorInfo& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape, tensor.shape + tensor.ndim, ", "));
}

Result<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> file,
                                                 const std::string& where) {
  return HeaderParser(file, where).Parse();
}

}  // namespace carpool
