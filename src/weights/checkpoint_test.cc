#include "weights/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/test_files.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::SafetensorsBytes;
using testing::TempDir;
using testing::TestTensor;

std::string One(const std::string& name, const std::string& data = "x") {
  return SafetensorsBytes(std::vector<TestTensor>{{name, "U8", {data.size()}, data}});
}
std::string ErrorOf(const std::string& dir) {
  const auto checkpoint = Checkpoint::OpenDirectory(dir);
  return checkpoint ? std::string("no error") : checkpoint.error().message;
}
std::string Index(std::string_view map) {
  return fmt::format(R"({{"metadata":{{"total_size":2}},"weight_map":{}}})", map);
}

TEST(Checkpoint, OneFileSortedByName) {
  const TempDir dir;
  dir.Write("model.safetensors",
            SafetensorsBytes(std::vector<TestTensor>{
                {"z", "U8", {1}, "1"}, {"a", "U8", {2}, "23"}, {"m", "U8", {1}, "4"}}));
  auto checkpoint = Checkpoint::OpenDirectory(dir.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const Checkpoint moved = std::move(*checkpoint);
  ASSERT_EQ(moved.tensors().size(), 3u);
  EXPECT_EQ(moved.tensors()[0].name, "a");
  ASSERT_NE(moved.Find("m"), nullptr);
  EXPECT_EQ(static_cast<char>(*moved.Find("m")->data), '4');
  EXPECT_EQ(moved.Find("b"), nullptr);
}

TEST(Checkpoint, Shards) {
  const TempDir dir;
  dir.Write("model-00001-of-00002.safetensors", One("model.language_model.b", "1"));
  dir.Write("mtp.safetensors", One("a", "2"));
  dir.Write("unrelated.safetensors", "garbage");
  dir.Write(
      "model.safetensors.index.json",
      Index(
          R"({"model.language_model.b":"model-00001-of-00002.safetensors","a":"mtp.safetensors"})"));
  const auto checkpoint = Checkpoint::OpenDirectory(dir.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->num_files(), 2u);
  ASSERT_NE(checkpoint->Find("model.b"), nullptr);
  EXPECT_EQ(static_cast<char>(*checkpoint->Find("model.b")->data), '1');
  // What was read ahead or given back is still there.
  checkpoint->Prefetch("model.");
  checkpoint->ReleasePages();
  EXPECT_EQ(static_cast<char>(*checkpoint->Find("model.b")->data), '1');
  EXPECT_EQ(static_cast<char>(*checkpoint->Find("a")->data), '2');
}

TEST(Checkpoint, TheDownloadCacheMayLinkToItsBlobs) {
  const TempDir cache;
  fs::create_directories(cache.path() + "/blobs");
  fs::create_directories(cache.path() + "/snapshots/abc");
  cache.Write("blobs/123", One("a"));
  fs::create_symlink("../../blobs/123", cache.path() + "/snapshots/abc/model.safetensors");
  EXPECT_EQ(ErrorOf(cache.path() + "/snapshots/abc"), "no error");
}

TEST(Checkpoint, WrongFolders) {
  const TempDir dir;
  EXPECT_THAT(ErrorOf(dir.path() + "/nowhere"), HasSubstr("no such directory"));
  EXPECT_THAT(ErrorOf(dir.Write("file", "x")), HasSubstr("wanted a checkpoint directory"));
  EXPECT_THAT(ErrorOf(dir.path()), HasSubstr("neither model.safetensors nor"));
  fs::create_directory(dir.path() + "/model.safetensors");
  EXPECT_THAT(ErrorOf(dir.path()), HasSubstr("model.safetensors"));
}

TEST(Checkpoint, NamesTwice) {
  const TempDir dir;
  dir.Write("model.safetensors", SafetensorsBytes(std::vector<TestTensor>{{"a", "U8", {1}, "1"},
                                                                          {"a", "U8", {1}, "2"}}));
  EXPECT_THAT(ErrorOf(dir.path()), HasSubstr("tensor 'a' is there twice"));
  // Escaped and wrapped names are compared as what they mean.
  dir.Write("model.safetensors", SafetensorsBytes(std::vector<TestTensor>{
                                     {"\\u0061", "U8", {1}, "1"}, {"a", "U8", {1}, "2"}}));
  EXPECT_THAT(ErrorOf(dir.path()), HasSubstr("twice"));
  dir.Write("model.safetensors",
            SafetensorsBytes(std::vector<TestTensor>{{"model.a", "U8", {1}, "1"},
                                                     {"language_model.model.a", "U8", {1}, "2"}}));
  EXPECT_THAT(ErrorOf(dir.path()), HasSubstr("twice"));
}

class CheckpointIndex : public ::testing::Test {
 protected:
  CheckpointIndex() {
    dir_.Write("s1.safetensors", One("a"));
    dir_.Write("s2.safetensors", One("b"));
  }
  std::string With(std::string_view index) {
    dir_.Write("model.safetensors.index.json", index);
    return ErrorOf(dir_.path());
  }
  TempDir dir_;
};

TEST_F(CheckpointIndex, ShardsStayInTheFolder) {
  const TempDir other;
  other.Write("s3.safetensors", One("c"));
  const std::string outside = other.path() + "/s3.safetensors";
  for (const std::string& shard :
       {std::string("../s3.safetensors"), outside, std::string("sub/s3.safetensors"),
        std::string(".."), std::string(""), std::string("s3.bin"),
        std::string("..\\\\s3.safetensors"), std::string("s1\\u0000.safetensors")}) {
    EXPECT_THAT(With(Index(fmt::format(R"({{"c":"{}"}})", shard))), HasSubstr("in the same folder"))
        << shard;
  }
  fs::create_symlink(outside, dir_.path() + "/link.safetensors");
  EXPECT_THAT(With(Index(R"({"c":"link.safetensors"})")), HasSubstr("outside the model's folder"));
  fs::create_symlink("s1.safetensors", dir_.path() + "/near.safetensors");
  EXPECT_EQ(With(Index(R"({"a":"near.safetensors"})")), "no error");
}

TEST_F(CheckpointIndex, MissingShard) {
  EXPECT_THAT(With(Index(R"({"a":"s1.safetensors","c":"s9.safetensors"})")),
              HasSubstr("shard s9.safetensors is not in"));
}

TEST_F(CheckpointIndex, IndexAndShardsMustAgree) {
  EXPECT_THAT(With(Index(R"({"a":"s1.safetensors","b":"s2.safetensors","c":"s2.safetensors"})")),
              HasSubstr("tensor 'c' is not in this shard"));
  EXPECT_THAT(With(Index(R"({"a":"s1.safetensors","0":"s2.safetensors"})")),
              HasSubstr("tensor '0' is not in this shard"));
  EXPECT_THAT(With(Index(R"({"a":"s1.safetensors","c":"s2.safetensors"})")),
              HasSubstr("tensor 'b' is in this shard, but"));
  EXPECT_THAT(With(Index(R"({"a":"s2.safetensors","b":"s1.safetensors"})")),
              HasSubstr("s1.safetensors: tensor 'a' is in this shard, but"));
  dir_.Write("s2.safetensors", One("a"));
  EXPECT_THAT(With(Index(R"({"a":"s1.safetensors","b":"s2.safetensors"})")),
              HasSubstr("s2.safetensors: tensor 'a'"));
}

TEST_F(CheckpointIndex, BrokenIndex) {
  EXPECT_THAT(With(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(With("[]"), HasSubstr("not valid JSON of the expected form"));
  EXPECT_THAT(With("{}"), HasSubstr("wanted a 'weight_map'"));
  EXPECT_THAT(With(Index("{}")), HasSubstr("wanted a 'weight_map'"));
  EXPECT_THAT(With(Index("[1]")), HasSubstr("not valid JSON of the expected form"));
  EXPECT_THAT(With(Index(R"({"a":1})")), HasSubstr("not valid JSON of the expected form"));
  EXPECT_THAT(With(Index(R"({"a":"s1.safetensors","a":"s1.safetensors"})")), HasSubstr("twice"));
  EXPECT_THAT(With(Index(R"({"a":"s1.safetensors"})") + "{}"), HasSubstr("text after"));
}

}  // namespace
}  // namespace carpool
