// Writing files so that an interrupted run leaves the old one, or nothing, under the final name.
#pragma once

#include <cstdio>
#include <string>

#include "base/result.h"

namespace carpool {

/// A file being written. Errors: InvalidArgument, naming the path.
class FileWriter {
 public:
  /// Creates or empties the file; an error shows at the first Write or Close.
  explicit FileWriter(const std::string& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  Status Write(const void* data, size_t bytes);
  Status Close();

 private:
  Error Failed() const;
  std::string path_;
  std::FILE* file_;
};

/// Renames `temporary` to `path` if it was `written` well; removes it otherwise.
Status CommitFile(const std::string& temporary, const std::string& path, const Status& written);

/// Whole text to `path` by way of a temporary file.
Status WriteTextFile(const std::string& path, const std::string& text);

}  // namespace carpool
