#include "weights/safetensors_writer.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace carpool {
namespace {

/// The header, padded with spaces so that data starts on a multiple of 64.
std::string Header(std::span<const PlannedTensor> tensors) {
  nlohmann::ordered_json json;
  json["__metadata__"] = {{"format", "pt"}};
  uint64_t offset = 0;
  for (const auto& t : tensors) {
    json[t.name] = {{"dtype", DtypeName(t.dtype)},
                    {"shape", t.shape},
                    {"data_offsets", {offset, offset + t.bytes}}};
    offset += t.bytes;
  }
  std::string text = json.dump();
  text.append((64 - (text.size() + 8) % 64) % 64, ' ');
  return text;
}

class File {
 public:
  explicit File(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "wb")) {}
  ~File() {
    if (file_ != nullptr) std::fclose(file_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  Status Write(const void* data, size_t bytes) {
    if (file_ == nullptr || std::fwrite(data, 1, bytes, file_) != bytes) return Failed();
    return {};
  }
  Status Close() {
    const bool ok = file_ != nullptr && std::fclose(file_) == 0;
    file_ = nullptr;
    if (!ok) return Failed();
    return {};
  }

 private:
  Error Failed() const {
    return MakeError(ErrorCode::kInvalidArgument, "{}: cannot be written: {}", path_,
                     std::strerror(errno));
  }
  std::string path_;
  std::FILE* file_;
};

Status Commit(const std::string& temporary, const std::string& path, const Status& written) {
  std::error_code ec;
  if (!written) {
    std::filesystem::remove(temporary, ec);
    return written.error();
  }
  std::filesystem::rename(temporary, path, ec);
  if (ec)
    return MakeError(ErrorCode::kInvalidArgument, "{}: cannot be written: {}", path, ec.message());
  return {};
}

}  // namespace

uint64_t SafetensorsFileBytes(std::span<const PlannedTensor> tensors) {
  uint64_t bytes = 8 + Header(tensors).size();
  for (const auto& t : tensors) bytes += t.bytes;
  return bytes;
}

Status WriteSafetensors(const std::string& path, std::span<const PlannedTensor> tensors,
                        const std::function<Status(const ByteSink& sink)>& write) {
  const std::string temporary = path + ".tmp";
  const auto all = [&]() -> Status {
    File file(temporary);
    const std::string header = Header(tensors);
    const uint64_t size = header.size();
    RETURN_IF_ERROR(file.Write(&size, sizeof(size)));
    RETURN_IF_ERROR(file.Write(header.data(), header.size()));
    uint64_t left = 0;
    for (const auto& t : tensors) left += t.bytes;
    RETURN_IF_ERROR(write([&](std::span<const std::byte> bytes) -> Status {
      left -= bytes.size();
      return file.Write(bytes.data(), bytes.size());
    }));
    CARPOOL_CHECK_EQ(left, uint64_t{0});
    return file.Close();
  };
  return Commit(temporary, path, all());
}

Status WriteTextFile(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  const auto all = [&]() -> Status {
    File file(temporary);
    RETURN_IF_ERROR(file.Write(text.data(), text.size()));
    return file.Close();
  };
  return Commit(temporary, path, all());
}

}  // namespace carpool
