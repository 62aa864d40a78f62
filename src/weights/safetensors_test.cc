#include "weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include "base/mapped_file.h"
#include "weights/test_files.h"

namespace carpool {
namespace {

using testing::AsBytes;
using testing::Bytes;
using ::testing::HasSubstr;
using testing::SafetensorsBytes;
using testing::TempDir;
using testing::TestTensor;

TEST(Safetensors, ReadsTensorsOfEveryDtypeInFileOrder) {
  const std::string file = SafetensorsBytes(std::vector<TestTensor>{
      {"b", "F32", {2}, Bytes<float>({1.5f, -2.0f})},
      {"a.weight", "U8", {2, 3}, "abcdef"},
      {"scalar", "F32", {}, Bytes<float>({3.0f})},
      {"none", "BF16", {0, 7}, ""},
      {"f8", "F8_E4M3", {1, 1, 1, 1, 2}, "xy"},
  });
  const auto header = ParseSafetensorsHeader(AsBytes(file), "f");
  ASSERT_TRUE(header) << header.error().message;
  ASSERT_EQ(header->tensors.size(), 5u);
  EXPECT_EQ(header->tensors[1].name, "a.weight");
  EXPECT_EQ(header->tensors[1].ndim, 2);
  EXPECT_EQ(ShapeText(header->tensors[1]), "[2, 3]");
  EXPECT_EQ(std::memcmp(header->tensors[1].data, "abcdef", 6), 0);
  EXPECT_EQ(header->tensors[2].ndim, 0);
  EXPECT_EQ(header->tensors[2].bytes, 4u);
  EXPECT_TRUE(header->renamed.empty());
}

TEST(Safetensors, NamesAreViewsUnlessEscapedOrPrefixed) {
  const std::string file = SafetensorsBytes(std::vector<TestTensor>{
      {"language_model.model.norm.weight", "U8", {1}, "a"},
      {"model.language_model.layers.0.x", "U8", {1}, "b"},
      {"caf\\u00e9\\n", "U8", {1}, "c"},
      {"plain", "U8", {1}, "d"},
  });
  const auto header = ParseSafetensorsHeader(AsBytes(file), "f");
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->tensors[0].name, "model.norm.weight");
  EXPECT_EQ(header->tensors[1].name, "model.layers.0.x");
  EXPECT_EQ(header->tensors[2].name, "caf\xc3\xa9\n");
  EXPECT_EQ(header->tensors[3].name, "plain");
  EXPECT_EQ(header->renamed.size(), 2u);
}

TEST(Safetensors, PaddingAfterTheHeaderAndAnEmptyFileAreFine) {
  EXPECT_TRUE(ParseSafetensorsHeader(AsBytes(SafetensorsBytes("{}   ", "")), "f"));
  EXPECT_TRUE(ParseSafetensorsHeader(AsBytes(SafetensorsBytes("{\"__metadata__\":{}} ", "")), "f"));
}

struct BadHeader {
  const char* what;
  std::string header;
  std::string data;
  const char* message;
};
void PrintTo(const BadHeader& bad, std::ostream* out) { *out << bad.what; }

class SafetensorsBad : public ::testing::TestWithParam<BadHeader> {};

TEST_P(SafetensorsBad, IsOneClearError) {
  const auto& bad = GetParam();
  const auto header =
      ParseSafetensorsHeader(AsBytes(SafetensorsBytes(bad.header, bad.data)), "dir/f.safetensors");
  ASSERT_FALSE(header);
  EXPECT_THAT(header.error().message, HasSubstr(bad.message));
  EXPECT_THAT(header.error().message, HasSubstr("dir/f.safetensors: "));
  EXPECT_EQ(header.error().message.find('\n'), std::string::npos);
}

std::string Entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"t":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape,
                     offsets);
}

INSTANTIATE_TEST_SUITE_P(
    Rules, SafetensorsBad,
    ::testing::Values(
        BadHeader{"no brace", " {}", "", "does not start with '{'"},
        BadHeader{"empty", "", "", "does not start with '{'"},
        BadHeader{"not closed", "{\"a\":", "", "not valid JSON"},
        BadHeader{"two documents", "{}{}", "", "text after the end"},
        BadHeader{"nul after", std::string("{}\0\0", 4), "", "not valid JSON"},
        BadHeader{"not utf-8", "{\"\xff\xfe\":{}}", "", "not valid JSON"},
        BadHeader{"deep", "{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}", "",
                  "wanted an object"},
        BadHeader{
            "deep metadata",
            "{\"__metadata__\":{\"a\":" + std::string(5000, '[') + std::string(5000, ']') + "}}",
            "", "strings to strings"},
        BadHeader{"metadata number", R"({"__metadata__":{"a":1}})", "", "strings to strings"},
        BadHeader{"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", "", "twice"},
        BadHeader{"entry not object", R"({"a":3})", "", "wanted an object"},
        BadHeader{"field twice",
                  R"({"t":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}})", "x",
                  "twice"},
        BadHeader{"unknown field", R"({"t":{"dtype":"U8","shape":[],"data_offsets":[0,1],"z":0}})",
                  "x", "unknown field"},
        BadHeader{"no dtype", R"({"t":{"shape":[],"data_offsets":[0,1]}})", "x",
                  "'dtype' is missing"},
        BadHeader{"no offsets", R"({"t":{"dtype":"U8","shape":[]}})", "x",
                  "'data_offsets' is missing"},
        BadHeader{"unknown dtype", Entry("\"F4\"", "[1]", "[0,1]"), "x", "unknown dtype 'F4'"},
        BadHeader{"dtype number", Entry("8", "[1]", "[0,1]"), "x", "dtype: wanted a string"},
        BadHeader{"negative dim", Entry("\"U8\"", "[-1]", "[0,1]"), "x", "whole numbers from 0"},
        BadHeader{"float dim", Entry("\"U8\"", "[1.0]", "[0,1]"), "x", "whole numbers from 0"},
        BadHeader{"huge dim", Entry("\"U8\"", "[99999999999999999999]", "[0,1]"), "x",
                  "whole numbers from 0"},
        BadHeader{"shape not list", Entry("\"U8\"", "1", "[0,1]"), "x", "shape: wanted a list"},
        BadHeader{"six dims", Entry("\"U8\"", "[1,1,1,1,1,1]", "[0,1]"), "x",
                  "more than 5 dimensions"},
        BadHeader{"overflow", Entry("\"F32\"", "[4294967296,4294967296]", "[0,1]"), "x",
                  "overflows"},
        BadHeader{"overflow to fit", Entry("\"U8\"", "[9223372036854775808,2]", "[0,0]"), "",
                  "overflows"},
        BadHeader{"size mismatch", Entry("\"F32\"", "[2]", "[0,4]"), "abcd",
                  "needs 8 bytes, data_offsets span 4"},
        BadHeader{"negative offset", Entry("\"U8\"", "[1]", "[-1,0]"), "x",
                  "two whole numbers from 0"},
        BadHeader{"one offset", Entry("\"U8\"", "[1]", "[0]"), "x", "two whole numbers from 0"},
        BadHeader{"three offsets", Entry("\"U8\"", "[1]", "[0,1,1]"), "x",
                  "two whole numbers from 0"},
        BadHeader{"backwards", Entry("\"U8\"", "[1]", "[1,0]"), "x", "do not fit"},
        BadHeader{"truncated data", Entry("\"U8\"", "[8]", "[0,8]"), "abcd", "truncated"},
        BadHeader{"huge offset",
                  Entry("\"U8\"", "[1]", "[18446744073709551614,18446744073709551615]"), "x",
                  "do not fit"},
        BadHeader{"hole at the start", Entry("\"U8\"", "[1]", "[1,2]"), "xy",
                  "starts 1 bytes after"},
        BadHeader{"trailing garbage", Entry("\"U8\"", "[1]", "[0,1]"), "xPK\3\4",
                  "4 bytes follow the last tensor"},
        BadHeader{
            "overlap",
            R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
            "xyz", "overlaps"},
        BadHeader{
            "same place",
            R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
            "xy", "overlaps"},
        BadHeader{
            "hole",
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
            "xyz", "starts 1 bytes after"},
        BadHeader{"control characters in a name", "{\"a\\nb\":3}", "", "a\\x0ab"}));

TEST(Safetensors, SizeFieldMustFitTheFile) {
  const auto error = [](const std::string& file) {
    const auto header = ParseSafetensorsHeader(AsBytes(file), "f");
    return header ? std::string() : header.error().message;
  };
  EXPECT_THAT(error(""), HasSubstr("at least 8 bytes"));
  EXPECT_THAT(error("1234567"), HasSubstr("at least 8 bytes"));
  EXPECT_THAT(error(std::string("\x10\0\0\0\0\0\0\0{}", 10)), HasSubstr("the file ends after 2"));
  EXPECT_THAT(error(std::string(8, '\xff') + "{}"), HasSubstr("at most 100000000"));
  EXPECT_THAT(error(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10)),
              HasSubstr("at most 100000000"));  // 100,000,001
}

TEST(Safetensors, EveryTruncationIsAnErrorAndReadsNothingOutside) {
  const std::string file = SafetensorsBytes(
      std::vector<TestTensor>{{"a", "F32", {2}, "12345678"}, {"b", "U8", {1}, "x"}});
  for (size_t n = 0; n < file.size(); ++n) {
    // Its own heap block, so that ASan sees a read past the end.
    const std::vector<char> cut(file.begin(), file.begin() + static_cast<ptrdiff_t>(n));
    EXPECT_FALSE(ParseSafetensorsHeader({reinterpret_cast<const std::byte*>(cut.data()), n}, "f"))
        << n;
  }
}

TEST(Safetensors, EveryFlippedHeaderByteIsHandled) {
  const std::string good = SafetensorsBytes(
      std::vector<TestTensor>{{"a\\tb", "F32", {2}, "12345678"}, {"b", "U8", {1}, "x"}});
  size_t refused = 0;
  for (size_t i = 0; i < good.size() - 9; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<char> file(good.begin(), good.end());
      file[i] = static_cast<char>(file[i] ^ (1 << bit));
      refused += !ParseSafetensorsHeader(
          {reinterpret_cast<const std::byte*>(file.data()), file.size()}, "f");
    }
  }
  EXPECT_GT(refused, good.size());
}

size_t ResidentHighWaterBytes() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

double ThreadCpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(CARPOOL_DEBUG)
constexpr bool kMeasured = false;
#else
constexpr bool kMeasured = true;
#endif

// The size of GLM-5 in NVFP4: 75 layers of 256 experts and more, in one file.
TEST(Safetensors, QuarterMillionTensorsParseFastInLittleMemory) {
  const TempDir dir;
  size_t header_bytes = 0;
  {
    std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
    size_t offset = 0;
    const char* const kinds[] = {"input_scale", "weight", "weight_scale", "weight_scale_2"};
    for (size_t i = 0; i < 250'000; ++i) {
      const char* proj = i / 4 % 3 == 0 ? "down" : i / 4 % 3 == 1 ? "gate" : "up";
      header += fmt::format(
          ",\"model.layers.{}.mlp.experts.{}.{}_proj.{}\":{{\"dtype\":\"F8_E4M3\",\"shape\":[2,4],"
          "\"data_offsets\":[{},{}]}}",
          i / 3072, i / 12 % 256, proj, kinds[i % 4], offset, offset + 8);
      offset += 8;
    }
    header += "}";
    header_bytes = header.size();
    dir.Write("model.safetensors", SafetensorsBytes(header, ""));
    std::filesystem::resize_file(dir.path() + "/model.safetensors",
                                 8 + header_bytes + offset);  // the data is a hole
  }
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the high-water mark
  const size_t before = ResidentHighWaterBytes();
  const double start = ThreadCpuSeconds();
  const auto checkpoint = Checkpoint::OpenDirectory(dir.path());
  const double seconds = ThreadCpuSeconds() - start;
  const size_t grown = ResidentHighWaterBytes() - before;
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->tensors().size(), 250'000u);
  EXPECT_NE(checkpoint->Find("model.layers.80.mlp.experts.7.up_proj.weight_scale_2"), nullptr);
  fmt::print("header {:.1f} MB: {:.3f} s of CPU, {:.2f} x the header resident\n",
             1e-6 * static_cast<double>(header_bytes), seconds,
             static_cast<double>(grown) / static_cast<double>(header_bytes));
  if (!kMeasured) return;
  EXPECT_LT(seconds, 0.5);
  EXPECT_LT(grown, 4 * header_bytes);
  EXPECT_GT(grown, header_bytes / 2);  // the measurement itself works
}

}  // namespace
}  // namespace carpool
