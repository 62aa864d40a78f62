#include "base/file_writer.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace carpool {

FileWriter::FileWriter(const std::string& path)
    : path_(path), file_(std::fopen(path.c_str(), "wb")) {}

FileWriter::~FileWriter() {
  if (file_ != nullptr) std::fclose(file_);
}

Status FileWriter::Write(const void* data, size_t bytes) {
  if (file_ == nullptr || std::fwrite(data, 1, bytes, file_) != bytes) return Failed();
  return {};
}

Status FileWriter::Close() {
  const bool ok = file_ != nullptr && std::fclose(file_) == 0;
  file_ = nullptr;
  if (!ok) return Failed();
  return {};
}

Error FileWriter::Failed() const {
  return MakeError(ErrorCode::kInvalidArgument, "{}: cannot be written: {}", path_,
                   std::strerror(errno));
}

Status CommitFile(const std::string& temporary, const std::string& path, const Status& written) {
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

Status WriteTextFile(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  const auto all = [&]() -> Status {
    FileWriter file(temporary);
    RETURN_IF_ERROR(file.Write(text.data(), text.size()));
    return file.Close();
  };
  return CommitFile(temporary, path, all());
}

}  // namespace carpool
