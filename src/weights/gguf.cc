#include "weights/gguf.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/printable.h"

namespace carpool {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr size_t kMaxArrayDepth = 4;
constexpr size_t kMaxAlignment = size_t{1} << 20;
constexpr size_t kMaxTensorName = 1024;

/// Bytes of one value; 0 for those without a fixed size or an unknown type.
size_t FixedBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

template <typename T>
T LoadAt(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

GgufValue LoadNumber(GgufType type, const std::byte* p) {
  switch (type) {
    case GgufType::kU8:
      return uint64_t{LoadAt<uint8_t>(p)};
    case GgufType::kI8:
      return int64_t{LoadAt<int8_t>(p)};
    case GgufType::kU16:
      return uint64_t{LoadAt<uint16_t>(p)};
    case GgufType::kI16:
      return int64_t{LoadAt<int16_t>(p)};
    case GgufType::kU32:
      return uint64_t{LoadAt<uint32_t>(p)};
    case GgufType::kI32:
      return int64_t{LoadAt<int32_t>(p)};
    case GgufType::kU64:
      return LoadAt<uint64_t>(p);
    case GgufType::kI64:
      return LoadAt<int64_t>(p);
    case GgufType::kF32:
      return double{LoadAt<float>(p)};
    case GgufType::kF64:
      return LoadAt<double>(p);
    case GgufType::kBool:
      return LoadAt<uint8_t>(p) != 0;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return uint64_t{0};
}

/// Reads a header front to back. The first problem sticks; what is read after it is harmless.
class Reader {
 public:
  Reader(std::span<const std::byte> file, const std::string& where) : file_(file), where_(where) {}

  template <typename T>
  T Number(std::string_view what) {
    if (!Need(sizeof(T), what)) return T{};
    const T value = LoadAt<T>(file_.data() + at_);
    at_ += sizeof(T);
    return value;
  }

  std::string_view String(std::string_view what) {
    const auto length = Number<uint64_t>(what);
    if (!ok() || !Need(length, what)) return {};
    const std::string_view text(reinterpret_cast<const char*>(file_.data() + at_),
                                static_cast<size_t>(length));
    at_ += static_cast<size_t>(length);
    return text;
  }

  GgufType Type(std::string_view what) {
    const auto id = Number<uint32_t>(what);
    if (ok() && id > static_cast<uint32_t>(GgufType::kF64))
      Fail("{}: unknown metadata type {}; wanted 0 to 12", what, id);
    return ok() ? static_cast<GgufType>(id) : GgufType::kU8;
  }

  GgufValue Value(GgufType type, std::string_view what, size_t depth = 0) {
    if (type == GgufType::kString) return String(what);
    if (type == GgufType::kArray) return Array(what, depth);
    const size_t bytes = FixedBytes(type);
    if (!Need(bytes, what)) return uint64_t{0};
    at_ += bytes;
    return LoadNumber(type, file_.data() + at_ - bytes);
  }

  /// False, with an error, unless `bytes` more are there.
  bool Need(uint64_t bytes, std::string_view what) {
    if (!ok()) return false;
    if (bytes <= left()) return true;
    Fail("{}: needs {} bytes at offset {}, but the file ends after {}; is it truncated?", what,
         bytes, at_, file_.size());
    return false;
  }
  /// False, with an error, unless `count` things of at least `least` bytes can still follow.
  bool Plausible(uint64_t count, size_t least, std::string_view what) {
    if (!ok()) return false;
    if (count <= left() / least) return true;
    Fail("{}: {} of at least {} bytes each cannot lie in the {} bytes that are left", what, count,
         least, left());
    return false;
  }

  template <typename... Args>
  void Fail(fmt::format_string<Args...> format, Args&&... args) {
    if (!ok()) return;
    status_ = MakeError(ErrorCode::kCorrupt, "{}: {}", where_,
                        fmt::format(format, std::forward<Args>(args)...));
  }
  void Refuse(std::string text) {
    if (ok()) status_ = Error{ErrorCode::kUnsupported, where_ + ": " + std::move(text)};
  }

  bool ok() const { return status_.has_value(); }
  const Status& status() const { return status_; }
  size_t at() const { return at_; }
  uint64_t left() const { return file_.size() - at_; }

 private:
  GgufValue Array(std::string_view what, size_t depth) {
    auto array = std::make_shared<GgufArray>();
    array->element = Type(what);
    const auto count = Number<uint64_t>(what);
    if (depth >= kMaxArrayDepth) Fail("{}: arrays more than {} deep", what, kMaxArrayDepth);
    const size_t bytes = FixedBytes(array->element);
    const size_t least = array->element == GgufType::kArray    ? 12
                         : array->element == GgufType::kString ? 8
                                                               : bytes;
    if (!Plausible(count, least, what)) return array;
    array->count = static_cast<size_t>(count);
    if (bytes > 0) {
      array->data = file_.data() + at_;
      at_ += array->count * bytes;
      return array;
    }
    for (size_t i = 0; i < array->count && ok(); ++i) {
      if (array->element == GgufType::kString) {
        array->strings.push_back(String(what));
      } else {
        array->arrays.push_back(Array(what, depth + 1));
      }
    }
    return array;
  }

  std::span<const std::byte> file_;
  const std::string& where_;
  size_t at_ = 0;
  Status status_;
};

void ReadEntries(Reader& r, uint64_t count, GgufHeader& header) {
  if (!r.Plausible(count, 13, "metadata")) return;
  for (uint64_t i = 0; i < count && r.ok(); ++i) {
    GgufEntry entry;
    entry.key = r.String("a metadata key");
    const std::string what = fmt::format("metadata '{}'", Printable(entry.key));
    entry.type = r.Type(what);
    entry.value = r.Value(entry.type, what);
    header.entries.push_back(std::move(entry));
  }
  std::sort(header.entries.begin(), header.entries.end(),
            [](const GgufEntry& a, const GgufEntry& b) { return a.key < b.key; });
  const auto twin =
      std::adjacent_find(header.entries.begin(), header.entries.end(),
                         [](const GgufEntry& a, const GgufEntry& b) { return a.key == b.key; });
  if (twin != header.entries.end()) r.Fail("metadata '{}' is there twice", Printable(twin->key));
}

std::string DecodableTypes() {
  std::string list;
  for (const GgmlType& type : GgmlTypes()) {
    if (type.storage) list += fmt::format("{}{}", list.empty() ? "" : " ", type.name);
  }
  return list;
}

/// Name, dimensions, type and size of one tensor; its offset is returned.
uint64_t ReadTensor(Reader& r, GgufTensor& t) {
  t.name = r.String("a tensor name");
  const std::string what = fmt::format("tensor '{}'", Printable(t.name));
  if (t.name.empty() || t.name.size() > kMaxTensorName)
    r.Fail("{}: wanted a name of 1 to {} bytes, got {}", what, kMaxTensorName, t.name.size());
  t.ndim = r.Number<uint32_t>(what);
  if (t.ndim == 0 || t.ndim > 4) r.Fail("{}: wanted 1 to 4 dimensions, got {}", what, t.ndim);
  uint64_t elements = 1;
  bool wraps = false;
  for (uint32_t i = 0; i < t.ndim && r.ok(); ++i) {
    t.dims[i] = r.Number<uint64_t>(what);
    if (t.dims[i] == 0) r.Fail("{}: dimension {} is 0", what, i);
    wraps = wraps || __builtin_mul_overflow(elements, t.dims[i], &elements);
  }
  const auto id = r.Number<uint32_t>(what);
  const auto offset = r.Number<uint64_t>(what);
  if (!r.ok()) return 0;
  t.type = FindGgmlType(id);
  if (t.type == nullptr) {
    r.Fail("{}: unknown type id {}; known: {}", what, id, DecodableTypes());
    return 0;
  }
  if (!t.type->storage) {
    r.Refuse(fmt::format("{}: type {} is not supported; supported: {}", what, t.type->name,
                         DecodableTypes()));
    return 0;
  }
  if (t.dims[0] % t.type->block_inputs != 0) {
    r.Fail("{}: rows of {} elements are no multiple of {}'s blocks of {}", what, t.dims[0],
           t.type->name, t.type->block_inputs);
  }
  wraps = wraps || __builtin_mul_overflow(elements / t.type->block_inputs,
                                          uint64_t{t.type->block_bytes}, &t.bytes);
  if (wraps) r.Fail("{}: the product of its dimensions overflows 64 bits", what);
  return offset;
}

/// Gives every tensor its bytes, which must be inside the data and in no other tensor's.
void PlaceTensors(Reader& r, std::span<const std::byte> data, const std::vector<uint64_t>& offsets,
                  GgufHeader& header) {
  for (size_t i = 0; i < offsets.size() && r.ok(); ++i) {
    GgufTensor& t = header.tensors[i];
    const std::string what = fmt::format("tensor '{}'", Printable(t.name));
    if (offsets[i] % header.alignment != 0)
      r.Fail("{}: offset {} is no multiple of the alignment {}", what, offsets[i],
             header.alignment);
    if (offsets[i] > data.size() || t.bytes > data.size() - offsets[i]) {
      r.Fail("{}: {} bytes at offset {} of the data, which has {}; is the file truncated?", what,
             t.bytes, offsets[i], data.size());
      return;
    }
    t.data = data.data() + offsets[i];
  }
  std::vector<const GgufTensor*> order;
  for (const GgufTensor& t : header.tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->data < b->data; });
  for (size_t i = 1; i < order.size() && r.ok(); ++i) {
    if (order[i - 1]->data + order[i - 1]->bytes > order[i]->data)
      r.Fail("tensors '{}' and '{}' overlap", Printable(order[i - 1]->name),
             Printable(order[i]->name));
  }
}

/// general.alignment, or 32.
size_t Alignment(Reader& r, const GgufHeader& header) {
  const GgufEntry* entry = header.Find("general.alignment");
  if (entry == nullptr) return 32;
  const auto* value = std::get_if<uint64_t>(&entry->value);
  if (value != nullptr && *value > 0 && *value <= kMaxAlignment && (*value & (*value - 1)) == 0)
    return static_cast<size_t>(*value);
  r.Fail("general.alignment: wanted a power of two up to {}, got {}", kMaxAlignment,
         value != nullptr ? fmt::format("{}", *value) : std::string(GgufTypeName(entry->type)));
  return 32;
}

Status SortTensors(std::vector<GgufTensor>& tensors, const std::string& where) {
  std::sort(tensors.begin(), tensors.end(),
            [](const GgufTensor& a, const GgufTensor& b) { return a.name < b.name; });
  const auto twin =
      std::adjacent_find(tensors.begin(), tensors.end(),
                         [](const GgufTensor& a, const GgufTensor& b) { return a.name == b.name; });
  if (twin == tensors.end()) return {};
  return MakeError(ErrorCode::kCorrupt, "{}: tensor '{}' is there twice", where,
                   Printable(twin->name));
}

/// An unsigned metadata number; `fallback` when absent.
Result<uint64_t> Count(const GgufHeader& header, std::string_view key, uint64_t fallback,
                       const std::string& where) {
  const GgufEntry* entry = header.Find(key);
  if (entry == nullptr) return fallback;
  if (const auto* u = std::get_if<uint64_t>(&entry->value)) return *u;
  if (const auto* i = std::get_if<int64_t>(&entry->value); i != nullptr && *i >= 0)
    return static_cast<uint64_t>(*i);
  return MakeError(ErrorCode::kCorrupt, "{}: {}: wanted a count, got {}", where, key,
                   GgufTypeName(entry->type));
}

/// "dir/name" of "dir/name-00002-of-00003.gguf"; empty when `path` is not named so.
std::string SplitPrefix(const std::string& path, uint64_t no, uint64_t count) {
  const std::string suffix = fmt::format("-{:05}-of-{:05}.gguf", no + 1, count);
  return path.ends_with(suffix) ? path.substr(0, path.size() - suffix.size()) : std::string();
}

}  // namespace

std::string_view GgufTypeName(GgufType type) {
  static constexpr std::string_view kNames[] = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                "i32", "f32", "bool", "string", "array",
                                                "u64", "i64", "f64"};
  return kNames[static_cast<size_t>(type)];
}

GgufValue GgufArray::At(size_t i) const {
  if (element == GgufType::kString) return strings[i];
  if (element == GgufType::kArray) return arrays[i];
  return LoadNumber(element, data + i * FixedBytes(element));
}

const GgufEntry* GgufHeader::Find(std::string_view key) const {
  const auto it =
      std::lower_bound(entries.begin(), entries.end(), key,
                       [](const GgufEntry& e, std::string_view k) { return e.key < k; });
  return it != entries.end() && it->key == key ? &*it : nullptr;
}

Result<GgufHeader> ParseGguf(std::span<const std::byte> file, const std::string& where) {
  Reader r(file, where);
  GgufHeader header;
  if (const auto magic = r.Number<uint32_t>("the header"); r.ok() && magic != kMagic)
    r.Fail("not a GGUF file: it begins with {:#010x}, wanted \"GGUF\"", magic);
  header.version = r.Number<uint32_t>("the header");
  if (r.ok() && __builtin_bswap32(header.version) <= 3 && header.version != 0) {
    r.Refuse("a big-endian GGUF file; wanted a little-endian one");
  } else if (r.ok() && header.version != 2 && header.version != 3) {
    r.Refuse(fmt::format("GGUF version {}; wanted 2 or 3", header.version));
  }
  const auto num_tensors = r.Number<uint64_t>("the header");
  const auto num_entries = r.Number<uint64_t>("the header");
  ReadEntries(r, num_entries, header);
  header.alignment = Alignment(r, header);
  std::vector<uint64_t> offsets;
  if (r.Plausible(num_tensors, 32, "tensor descriptions")) {
    for (uint64_t i = 0; i < num_tensors && r.ok(); ++i)
      offsets.push_back(ReadTensor(r, header.tensors.emplace_back()));
  }
  RETURN_IF_ERROR(r.status());
  const size_t begin = (r.at() + header.alignment - 1) / header.alignment * header.alignment;
  PlaceTensors(r, file.subspan(std::min(begin, file.size())), offsets, header);
  RETURN_IF_ERROR(r.status());
  auto sorted = header.tensors;
  RETURN_IF_ERROR(SortTensors(sorted, where));
  return header;
}

bool IsGgufFile(const std::string& path) {
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec)) return false;
  if (path.ends_with(".gguf")) return true;
  char magic[4] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof(magic));
  return std::string_view(magic, sizeof(magic)) == "GGUF";
}

const GgufTensor* GgufModel::FindTensor(std::string_view name) const {
  const auto& all = header_.tensors;
  const auto it =
      std::lower_bound(all.begin(), all.end(), name,
                       [](const GgufTensor& t, std::string_view n) { return t.name < n; });
  return it != all.end() && it->name == name ? &*it : nullptr;
}

Result<GgufModel> GgufModel::Open(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  ASSIGN_OR_RETURN(GgufHeader header, ParseGguf(file.bytes(), path));
  ASSIGN_OR_RETURN(const uint64_t count, Count(header, "split.count", 1, path));
  GgufModel model;
  model.path_ = path;
  if (count <= 1) {
    model.files_.push_back(std::move(file));
    model.header_ = std::move(header);
    RETURN_IF_ERROR(SortTensors(model.header_.tensors, path));
    return model;
  }
  ASSIGN_OR_RETURN(const uint64_t no, Count(header, "split.no", 0, path));
  const std::string prefix = SplitPrefix(path, no, count);
  if (prefix.empty() || no >= count) {
    return MakeError(ErrorCode::kCorrupt,
                     "{}: part {} of {} of a split model; wanted the name to end in "
                     "-{:05}-of-{:05}.gguf; give files of a split their names back",
                     path, no + 1, count, no + 1, count);
  }
  for (uint64_t i = 0; i < count; ++i) {
    const std::string part = fmt::format("{}-{:05}-of-{:05}.gguf", prefix, i + 1, count);
    auto opened = MappedFile::Open(part);
    if (!opened) {
      return MakeError(opened.error().code, "{}; it is part {} of {} of the model",
                       opened.error().message, i + 1, count);
    }
    ASSIGN_OR_RETURN(GgufHeader parsed, ParseGguf(opened->bytes(), part));
    ASSIGN_OR_RETURN(const uint64_t said_no, Count(parsed, "split.no", 0, part));
    ASSIGN_OR_RETURN(const uint64_t said_count, Count(parsed, "split.count", 1, part));
    if (said_no != i || said_count != count) {
      return MakeError(ErrorCode::kCorrupt, "{}: says it is part {} of {}, wanted part {} of {}",
                       part, said_no + 1, said_count, i + 1, count);
    }
    model.files_.push_back(*std::move(opened));
    if (i == 0) {
      model.header_ = std::move(parsed);
    } else {
      auto& all = model.header_.tensors;
      all.insert(all.end(), parsed.tensors.begin(), parsed.tensors.end());
    }
  }
  const size_t found = model.header_.tensors.size();
  ASSIGN_OR_RETURN(const uint64_t said, Count(model.header_, "split.tensors.count", found, path));
  if (said != found) {
    return MakeError(ErrorCode::kCorrupt, "{}: split.tensors.count promises {} tensors, got {}",
                     path, said, found);
  }
  RETURN_IF_ERROR(SortTensors(model.header_.tensors, path));
  return model;
}

}  // namespace carpool
