// The GGUF container: what is right is read, what is wrong gets one line that says so.
#include "weights/gguf.h"

#include <gtest/gtest.h>

#include <limits>

#include "weights/gguf_writer.h"
#include "weights/test_files.h"

namespace carpool {
namespace {

using testing::AsBytes;
using testing::TempDir;

template <typename T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
std::string Text(std::string_view text) { return Raw(uint64_t{text.size()}).append(text); }

/// A header with counts that may be lies.
std::string Start(uint64_t tensors, uint64_t entries, uint32_t version = 3) {
  return "GGUF" + Raw(version) + Raw(tensors) + Raw(entries);
}
std::string Entry(std::string_view key, uint32_t type, const std::string& value) {
  return Text(key) + Raw(type) + value;
}
std::string Tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                   uint64_t offset) {
  std::string out = Text(name) + Raw(static_cast<uint32_t>(dims.size()));
  for (const uint64_t d : dims) out += Raw(d);
  return out + Raw(type) + Raw(offset);
}
/// A file of these parts with `data` zero bytes.
std::string File(const std::string& entries, uint64_t num_entries, const std::string& tensors,
                 uint64_t num_tensors, size_t data) {
  std::string file = Start(num_tensors, num_entries) + entries + tensors;
  file.resize((file.size() + 31) / 32 * 32 + data);
  return file;
}

std::string GgufError(const std::string& file) {
  const auto header = ParseGguf(AsBytes(file), "m.gguf");
  if (header) return "(no error)";
  EXPECT_EQ(header.error().message.find('\n'), std::string::npos);
  EXPECT_TRUE(header.error().message.starts_with("m.gguf: ")) << header.error().message;
  return header.error().message;
}

void ExpectError(const std::string& file, std::string_view part) {
  const std::string error = GgufError(file);
  EXPECT_NE(error.find(part), std::string::npos) << error;
}

TEST(Gguf, EveryMetadataTypeIsRead) {
  const std::string nested = Raw(uint32_t{9}) + Raw(uint64_t{2}) +  // two arrays
                             Raw(uint32_t{2}) + Raw(uint64_t{2}) + Raw(uint16_t{7}) +
                             Raw(uint16_t{8}) +                                // of u16
                             Raw(uint32_t{8}) + Raw(uint64_t{1}) + Text("x");  // of strings
  const std::string entries =
      Entry("a", 0, Raw(uint8_t{200})) + Entry("b", 1, Raw(int8_t{-3})) +
      Entry("c", 2, Raw(uint16_t{60000})) + Entry("d", 3, Raw(int16_t{-300})) +
      Entry("e", 4, Raw(uint32_t{4000000000})) + Entry("f", 5, Raw(int32_t{-5})) +
      Entry("g", 6, Raw(1.5f)) + Entry("h", 7, Raw(uint8_t{1})) + Entry("i", 8, Text("text")) +
      Entry("j", 9, nested) + Entry("k", 10, Raw(std::numeric_limits<uint64_t>::max())) +
      Entry("l", 11, Raw(std::numeric_limits<int64_t>::min())) + Entry("m", 12, Raw(-2.25));
  for (const uint32_t version : {2u, 3u}) {
    const std::string file = Start(0, 13, version) + entries;
    const auto header = ParseGguf(AsBytes(file), "m.gguf");
    ASSERT_TRUE(header) << header.error().message;
    EXPECT_EQ(header->version, version);
    const auto value = [&](std::string_view key) { return header->Find(key)->value; };
    EXPECT_EQ(value("a"), GgufValue(uint64_t{200}));
    EXPECT_EQ(value("b"), GgufValue(int64_t{-3}));
    EXPECT_EQ(value("c"), GgufValue(uint64_t{60000}));
    EXPECT_EQ(value("d"), GgufValue(int64_t{-300}));
    EXPECT_EQ(value("e"), GgufValue(uint64_t{4000000000}));
    EXPECT_EQ(value("f"), GgufValue(int64_t{-5}));
    EXPECT_EQ(value("g"), GgufValue(1.5));
    EXPECT_EQ(value("h"), GgufValue(true));
    EXPECT_EQ(value("i"), GgufValue(std::string_view("text")));
    EXPECT_EQ(value("k"), GgufValue(std::numeric_limits<uint64_t>::max()));
    EXPECT_EQ(value("l"), GgufValue(std::numeric_limits<int64_t>::min()));
    EXPECT_EQ(value("m"), GgufValue(-2.25));
    const auto list = std::get<std::shared_ptr<const GgufArray>>(value("j"));
    ASSERT_EQ(list->count, 2u);
    const auto first = std::get<std::shared_ptr<const GgufArray>>(list->At(0));
    EXPECT_EQ(first->At(1), GgufValue(uint64_t{8}));
    const auto second = std::get<std::shared_ptr<const GgufArray>>(list->At(1));
    EXPECT_EQ(second->At(0), GgufValue(std::string_view("x")));
    EXPECT_EQ(header->Find("z"), nullptr);
  }
}

TEST(Gguf, TensorsLieWhereTheHeaderSays) {
  const std::string entry = Entry("general.alignment", 4, Raw(uint32_t{64}));
  std::string file = Start(2, 1) + entry + Tensor("a", {64, 3}, 8, 0) + Tensor("b", {5}, 0, 256);
  const size_t begin = (file.size() + 63) / 64 * 64;
  file.resize(begin + 256 + 20);
  const auto header = ParseGguf(AsBytes(file), "m.gguf");
  ASSERT_TRUE(header) << header.error().message;
  const GgufTensor& a = header->tensors[0];
  EXPECT_EQ(a.bytes, 3 * 2 * 34u);
  EXPECT_EQ(a.dims[0], 64u);
  EXPECT_EQ(a.data, AsBytes(file).data() + begin);
  EXPECT_EQ(header->tensors[1].data, a.data + 256);
  EXPECT_EQ(header->tensors[1].bytes, 20u);
}

TEST(Gguf, EveryTruncationIsAnError) {
  const std::string file =
      File(Entry("general.name", 8, Text("x")) +
               Entry("n", 9, Raw(uint32_t{8}) + Raw(uint64_t{2}) + Text("ab") + Text("c")),
           2, Tensor("t", {32, 2}, 8, 0), 1, 68);
  ASSERT_TRUE(ParseGguf(AsBytes(file), "m.gguf"));
  for (size_t n = 0; n < file.size(); ++n)
    EXPECT_NE(GgufError(file.substr(0, n)), "(no error)") << n;
  ExpectError("", "needs 4 bytes at offset 0, but the file ends after 0");
  ExpectError(file.substr(0, file.size() - 1),
              "tensor 't': 68 bytes at offset 0 of the data, which has 67; is the file truncated?");
}

TEST(Gguf, OtherFilesAreRefused) {
  ExpectError("PK\x03\x04 a zip file", "not a GGUF file: it begins with 0x04034b50");
  ExpectError(Start(0, 0, 1), "GGUF version 1; wanted 2 or 3");
  ExpectError(Start(0, 0, 4), "GGUF version 4; wanted 2 or 3");
  ExpectError(Start(0, 0, 0x03000000), "a big-endian GGUF file");
}

TEST(Gguf, CountsThatCannotBeAreRefused) {
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  for (const uint64_t n : {kHuge, kHuge / 32, uint64_t{1} << 32, uint64_t{2}}) {
    ExpectError(Start(n, 0), fmt::format("tensor descriptions: {} of at least 32 bytes each", n));
    ExpectError(Start(0, n), fmt::format("metadata: {} of at least 13 bytes each", n));
  }
  for (const uint32_t element : {4u, 8u, 9u}) {
    for (const uint64_t n : {kHuge, kHuge / 4 + 1, uint64_t{100}}) {
      ExpectError(Start(0, 1) + Entry("list", 9, Raw(element) + Raw(n)),
                  fmt::format("metadata 'list': {} of at least", n));
    }
  }
}

TEST(Gguf, StringsLongerThanTheFileAreRefused) {
  for (const uint64_t n : {std::numeric_limits<uint64_t>::max(), uint64_t{1} << 63, uint64_t{9}}) {
    ExpectError(Start(0, 1) + Raw(n) + "12345678",
                fmt::format("a metadata key: needs {} bytes", n));
  }
}

TEST(Gguf, BadMetadataIsRefused) {
  ExpectError(Start(0, 1) + Entry("k", 13, Raw(uint64_t{0})),
              "metadata 'k': unknown metadata type 13");
  ExpectError(Start(0, 1) + Entry("k", 0xFFFFFFFF, Raw(uint64_t{0})),
              "unknown metadata type 4294967295");
  ExpectError(Start(0, 1) + Entry("k", 9, Raw(uint32_t{77}) + Raw(uint64_t{0})),
              "unknown metadata type 77");
  ExpectError(Start(0, 2) + Entry("k", 0, Raw(uint8_t{1})) + Entry("k", 0, Raw(uint8_t{1})),
              "metadata 'k' is there twice");
  std::string deep = Raw(uint32_t{4}) + Raw(uint64_t{0});
  for (int i = 0; i < 100; ++i) deep = Raw(uint32_t{9}) + Raw(uint64_t{1}) + deep;
  ExpectError(Start(0, 1) + Entry("k", 9, deep), "arrays more than 4 deep");
}

TEST(Gguf, AlignmentMustBeAPowerOfTwo) {
  for (const uint32_t bad : {0u, 3u, 48u, 1u << 21}) {
    ExpectError(Start(0, 1) + Entry("general.alignment", 4, Raw(bad)),
                fmt::format("general.alignment: wanted a power of two up to 1048576, got {}", bad));
  }
  ExpectError(Start(0, 1) + Entry("general.alignment", 8, Text("32")), "got string");
  for (const uint32_t good : {1u, 8u, 32u, 4096u})
    EXPECT_EQ(GgufError(Start(0, 1) + Entry("general.alignment", 4, Raw(good))), "(no error)");
}

TEST(Gguf, BadTensorsAreRefused) {
  const auto one = [](const std::string& tensor, size_t data = 4096) {
    return File("", 0, tensor, 1, data);
  };
  ExpectError(one(Tensor("", {32}, 0, 0)), "wanted a name of 1 to 1024 bytes, got 0");
  ExpectError(one(Tensor(std::string(2000, 'x'), {32}, 0, 0)), "got 2000");
  ExpectError(one(Text("t") + Raw(uint32_t{0}) + std::string(40, '\0')),
              "wanted 1 to 4 dimensions, got 0");
  ExpectError(one(Tensor("t", {1, 1, 1, 1, 1}, 0, 0)), "wanted 1 to 4 dimensions, got 5");
  ExpectError(one(Tensor("t", {1, 1, 1, 1}, 0, 0).replace(9, 4, Raw(0xFFFFFFFFu))),
              "wanted 1 to 4 dimensions, got 4294967295");
  ExpectError(one(Tensor("t", {32, 0}, 0, 0)), "dimension 1 is 0");
  ExpectError(one(Tensor("t", {33}, 8, 0)),
              "rows of 33 elements are no multiple of Q8_0's blocks of 32");
  ExpectError(one(Tensor("t", {32}, 4, 0)), "unknown type id 4; known: F32 F16");
  ExpectError(one(Tensor("t", {32}, 0xFFFFFFFF, 0)), "unknown type id 4294967295");
  ExpectError(one(Tensor("t", {256}, 16, 0)), "type IQ2_XXS is not supported; supported: F32");
  ExpectError(one(Tensor("t", {32}, 0, 16)), "offset 16 is no multiple of the alignment 32");
  ExpectError(one(Tensor("t\x01\n", {32, 0}, 0, 0)), "tensor 't\\x01\\x0a'");
}

TEST(Gguf, SizesThatWrapAreRefused) {
  constexpr uint64_t k32 = uint64_t{1} << 32, k62 = uint64_t{1} << 62;
  const auto one = [](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    return File("", 0, Tensor("t", dims, type, offset), 1, 4096);
  };
  ExpectError(one({k32, k32}, 0, 0), "the product of its dimensions overflows 64 bits");
  ExpectError(one({k32, k32, k32, k32}, 8, 0), "overflows 64 bits");
  ExpectError(one({k62}, 0, 0), "overflows 64 bits");      // times 4 bytes is 0
  ExpectError(one({k62 + 8}, 0, 0), "overflows 64 bits");  // … is 32
  ExpectError(one({uint64_t{0} - 32}, 0, 0), "overflows 64 bits");
  ExpectError(one({uint64_t{1} << 40}, 1, 0), "is the file truncated?");
  // Offset plus size wraps to the start of the data.
  ExpectError(one({32}, 0, uint64_t{0} - 128),
              "128 bytes at offset 18446744073709551488 of the data");
  ExpectError(one({32}, 0, uint64_t{1} << 63), "is the file truncated?");
  // Two tensors whose padded sizes sum to less than one of them.
  const uint64_t half = (uint64_t{1} << 61) + 8;
  ExpectError(File("", 0, Tensor("a", {half}, 0, 0) + Tensor("b", {half}, 0, half * 4), 2, 4096),
              "is the file truncated?");
}

TEST(Gguf, TensorsMustNotShareBytesOrNames) {
  ExpectError(File("", 0, Tensor("a", {32}, 0, 0) + Tensor("b", {32}, 0, 96), 2, 4096),
              "tensors 'a' and 'b' overlap");
  ExpectError(File("", 0, Tensor("a", {8}, 0, 0) + Tensor("a", {8}, 0, 32), 2, 4096),
              "tensor 'a' is there twice");
}

/// Part `no` of `count` with one tensor.
std::string Part(uint16_t no, uint16_t count, int32_t total = 2) {
  std::string name = "blk.";
  name += std::to_string(no);
  return File(Entry("split.no", 2, Raw(no)) + Entry("split.count", 2, Raw(count)) +
                  Entry("split.tensors.count", 5, Raw(total)) +
                  Entry("general.name", 8, Text(no == 0 ? "first" : "later")),
              4, Tensor(name, {8}, 0, 0), 1, 32);
}

TEST(Gguf, PartsOfASplitAreOneModel) {
  TempDir dir;
  const std::string first = dir.Write("m-00001-of-00002.gguf", Part(0, 2));
  const std::string second = dir.Write("m-00002-of-00002.gguf", Part(1, 2));
  for (const auto& path : {first, second}) {
    const auto model = GgufModel::Open(path);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_EQ(model->files().size(), 2u);
    EXPECT_EQ(model->tensors().size(), 2u);
    EXPECT_NE(model->FindTensor("blk.1"), nullptr);
    EXPECT_EQ(model->Find("general.name")->value, GgufValue(std::string_view("first")));
  }
}

TEST(Gguf, BadSplitsAreRefused) {
  TempDir dir;
  const auto error = [](const std::string& path) {
    const auto model = GgufModel::Open(path);
    return model ? std::string("(no error)") : model.error().message;
  };
  const std::string first = dir.Write("m-00001-of-00002.gguf", Part(0, 2));
  EXPECT_EQ(error(first),
            dir.path() + "/m-00002-of-00002.gguf: no such file; it is part 2 of 2 of the model");
  dir.Write("m-00002-of-00002.gguf", Part(0, 2));
  EXPECT_NE(error(first).find("says it is part 1 of 2, wanted part 2 of 2"), std::string::npos);
  dir.Write("m-00002-of-00002.gguf", Part(1, 3));
  EXPECT_NE(error(first).find("says it is part 2 of 3"), std::string::npos);
  dir.Write("m-00002-of-00002.gguf", Part(1, 2).substr(0, 100));
  EXPECT_NE(error(first).find("truncated"), std::string::npos);
  const std::string renamed = dir.Write("model.gguf", Part(0, 2));
  EXPECT_NE(error(renamed).find("wanted the name to end in -00001-of-00002.gguf"),
            std::string::npos);
  dir.Write("n-00001-of-00002.gguf", Part(0, 2, 3));
  dir.Write("n-00002-of-00002.gguf", Part(1, 2, 3));
  EXPECT_NE(error(dir.path() + "/n-00001-of-00002.gguf").find("promises 3 tensors, got 2"),
            std::string::npos);
}

TEST(GgufWriter, WhatIsWrittenIsReadBack) {
  TempDir dir;
  GgufWriter writer;
  writer.SetString("general.architecture", "llama");
  writer.SetU32("n", 7);
  writer.SetF32("x", 0.5f);
  writer.SetBool("yes", true);
  writer.SetStrings("words", std::vector<std::string>{"a", "", "ccc"});
  writer.SetInts("ints", std::vector<int32_t>{-1, 2});
  writer.SetFloats("floats", std::vector<float>{1.5f});
  writer.SetBools("bools", {true, false});
  writer.AddTensor("q", *FindGgmlType(8), {32, 3});
  writer.AddTensor("v", *FindGgmlType(0), {5});
  const std::string q(3 * 34, 'q'), v(20, 'v');
  const std::string path = dir.path() + "/m.gguf";
  ASSERT_TRUE(writer.Write(path, [&](const ByteSink& sink) -> Status {
    RETURN_IF_ERROR(sink(AsBytes(q).first(50)));
    RETURN_IF_ERROR(sink(AsBytes(q).subspan(50)));
    return sink(AsBytes(v));
  }));
  const auto model = GgufModel::Open(path);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->metadata().size(), 8u);
  EXPECT_EQ(model->Find("x")->value, GgufValue(0.5));
  const auto words = std::get<std::shared_ptr<const GgufArray>>(model->Find("words")->value);
  EXPECT_EQ(words->strings, (std::vector<std::string_view>{"a", "", "ccc"}));
  const GgufTensor* t = model->FindTensor("v");
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(t->data), t->bytes), v);
  GgufWriter copy;
  for (const GgufEntry& entry : model->metadata()) copy.SetEntry(entry);
  const std::string header = copy.Header();
  const auto again = ParseGguf(AsBytes(header), "copy");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->entries.size(), 8u);
  EXPECT_EQ(again->Find("ints")->type, GgufType::kArray);
}

}  // namespace
}  // namespace carpool
