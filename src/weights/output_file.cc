#include "weights/output_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace carpool {
namespace {

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

Status WriteFile(const std::string& path, const std::function<Status(const ByteSink&)>& write) {
  const std::string temporary = path + ".tmp";
  const auto all = [&]() -> Status {
    File file(temporary);
    RETURN_IF_ERROR(write([&](std::span<const std::byte> bytes) -> Status {
      return file.Write(bytes.data(), bytes.size());
    }));
    return file.Close();
  };
  return Commit(temporary, path, all());
}

}  // namespace carpool
