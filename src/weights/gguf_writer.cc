#include "weights/gguf_writer.h"

#include <cstring>
#include <utility>

#include "base/aligned.h"
#include "base/check.h"

namespace carpool {
namespace {

constexpr uint64_t kAlignment = 32;
constexpr uint32_t kVersion = 3;

template <typename T>
void Append(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}
void AppendText(std::string& out, std::string_view text) {
  Append(out, static_cast<uint64_t>(text.size()));
  out.append(text);
}

void AppendValue(std::string& out, GgufType type, const GgufValue& value) {
  const auto integer = [&](auto narrow) {
    using T = decltype(narrow);
    const auto* u = std::get_if<uint64_t>(&value);
    Append(out, u != nullptr ? static_cast<T>(*u) : static_cast<T>(std::get<int64_t>(value)));
  };
  switch (type) {
    case GgufType::kU8:
      return integer(uint8_t{});
    case GgufType::kI8:
      return integer(int8_t{});
    case GgufType::kU16:
      return integer(uint16_t{});
    case GgufType::kI16:
      return integer(int16_t{});
    case GgufType::kU32:
      return integer(uint32_t{});
    case GgufType::kI32:
      return integer(int32_t{});
    case GgufType::kU64:
      return integer(uint64_t{});
    case GgufType::kI64:
      return integer(int64_t{});
    case GgufType::kF32:
      return Append(out, static_cast<float>(std::get<double>(value)));
    case GgufType::kF64:
      return Append(out, std::get<double>(value));
    case GgufType::kBool:
      return Append(out, static_cast<uint8_t>(std::get<bool>(value)));
    case GgufType::kString:
      return AppendText(out, std::get<std::string_view>(value));
    case GgufType::kArray: {
      const auto& array = *std::get<std::shared_ptr<const GgufArray>>(value);
      Append(out, static_cast<uint32_t>(array.element));
      Append(out, static_cast<uint64_t>(array.count));
      for (size_t i = 0; i < array.count; ++i) AppendValue(out, array.element, array.At(i));
    }
  }
}

}  // namespace

void GgufWriter::Key(std::string_view key, GgufType type) {
  AppendText(metadata_, key);
  Append(metadata_, static_cast<uint32_t>(type));
  ++num_entries_;
}

void GgufWriter::ArrayKey(std::string_view key, GgufType element, size_t count) {
  Key(key, GgufType::kArray);
  Append(metadata_, static_cast<uint32_t>(element));
  Append(metadata_, static_cast<uint64_t>(count));
}

void GgufWriter::SetU32(std::string_view key, uint32_t value) {
  Key(key, GgufType::kU32);
  Append(metadata_, value);
}
void GgufWriter::SetF32(std::string_view key, float value) {
  Key(key, GgufType::kF32);
  Append(metadata_, value);
}
void GgufWriter::SetBool(std::string_view key, bool value) {
  Key(key, GgufType::kBool);
  Append(metadata_, static_cast<uint8_t>(value));
}
void GgufWriter::SetString(std::string_view key, std::string_view value) {
  Key(key, GgufType::kString);
  AppendText(metadata_, value);
}
void GgufWriter::SetStrings(std::string_view key, std::span<const std::string> values) {
  ArrayKey(key, GgufType::kString, values.size());
  for (const auto& value : values) AppendText(metadata_, value);
}
void GgufWriter::SetInts(std::string_view key, std::span<const int32_t> values) {
  ArrayKey(key, GgufType::kI32, values.size());
  for (const int32_t value : values) Append(metadata_, value);
}
void GgufWriter::SetFloats(std::string_view key, std::span<const float> values) {
  ArrayKey(key, GgufType::kF32, values.size());
  for (const float value : values) Append(metadata_, value);
}
void GgufWriter::SetBools(std::string_view key, const std::vector<bool>& values) {
  ArrayKey(key, GgufType::kBool, values.size());
  for (const bool value : values) Append(metadata_, static_cast<uint8_t>(value));
}
void GgufWriter::SetEntry(const GgufEntry& entry) {
  Key(entry.key, entry.type);
  AppendValue(metadata_, entry.type, entry.value);
}

void GgufWriter::AddTensor(std::string name, const GgmlType& type, std::vector<uint64_t> dims) {
  CARPOOL_CHECK(!dims.empty() && dims.size() <= 4 && dims[0] % type.block_inputs == 0);
  uint64_t elements = 1;
  for (const uint64_t d : dims) elements *= d;
  const uint64_t bytes = elements / type.block_inputs * type.block_bytes;
  tensors_.push_back({std::move(name), &type, std::move(dims), bytes, data_bytes_});
  data_bytes_ = RoundUp(data_bytes_ + bytes, kAlignment);
}

uint64_t GgufWriter::TensorBytes(size_t i) const { return tensors_[i].bytes; }

std::string GgufWriter::Header() const {
  std::string out = "GGUF";
  Append(out, kVersion);
  Append(out, static_cast<uint64_t>(tensors_.size()));
  Append(out, num_entries_);
  out += metadata_;
  for (const Planned& t : tensors_) {
    AppendText(out, t.name);
    Append(out, static_cast<uint32_t>(t.dims.size()));
    for (const uint64_t d : t.dims) Append(out, d);
    Append(out, t.type->id);
    Append(out, t.offset);
  }
  out.resize(RoundUp(out.size(), kAlignment));
  return out;
}

Status GgufWriter::Write(const std::string& path,
                         const std::function<Status(const ByteSink& sink)>& write) const {
  return WriteFile(path, [&](const ByteSink& sink) -> Status {
    const std::string header = Header();
    RETURN_IF_ERROR(sink(std::as_bytes(std::span(header))));
    size_t tensor = 0;
    uint64_t done = 0;  // bytes of it
    constexpr std::byte kPadding[kAlignment] = {};
    const ByteSink padded = [&](std::span<const std::byte> bytes) -> Status {
      CARPOOL_CHECK(tensor < tensors_.size());
      done += bytes.size();
      CARPOOL_CHECK(done <= tensors_[tensor].bytes);
      RETURN_IF_ERROR(sink(bytes));
      if (done < tensors_[tensor].bytes) return {};
      const size_t padding = static_cast<size_t>(RoundUp(done, kAlignment) - done);
      ++tensor;
      done = 0;
      return sink(std::span(kPadding, padding));
    };
    RETURN_IF_ERROR(write(padded));
    CARPOOL_CHECK_EQ(tensor, tensors_.size());
    return {};
  });
}

}  // namespace carpool
