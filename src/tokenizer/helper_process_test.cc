#include "tokenizer/helper_process.h"

#include <gtest/gtest.h>

#include <thread>

namespace carpool {
namespace {

using Failure = HelperProcess::Failure;
using std::chrono::milliseconds;

HelperProcess Shell(const std::string& script) {
  auto helper = HelperProcess::Start({"/bin/sh", "-c", script});
  if (!helper) ADD_FAILURE() << helper.error().message;
  return std::move(helper).value();
}

TEST(HelperProcess, RepliesThatComeTogetherOrInPiecesAreToldApart) {
  HelperProcess helper = Shell(
      "printf 'one 3\\nabctwo 0\\nthr'; sleep 0.2; printf 'ee 4\\nde'; sleep 0.1; printf 'fg'; "
      "sleep 9");
  std::this_thread::sleep_for(milliseconds(100));  // the first two are there
  HelperProcess::Reply reply;
  for (const auto& [word, body] : {std::pair{"one", "abc"}, {"two", ""}, {"three", "defg"}}) {
    ASSERT_EQ(helper.Receive(milliseconds(5000), 100, reply), Failure::kNone);
    EXPECT_EQ(reply.word, word);
    EXPECT_EQ(reply.body, body);
  }
  EXPECT_TRUE(helper.Idle());
  EXPECT_EQ(helper.Receive(milliseconds(50), 100, reply), Failure::kTimeout);
}

TEST(HelperProcess, DeathNonsenseAndExcessAreToldApart) {
  HelperProcess::Reply reply;
  EXPECT_EQ(Shell("exit 3").Receive(milliseconds(5000), 100, reply), Failure::kDied);
  EXPECT_EQ(Shell("echo no-length; sleep 9").Receive(milliseconds(5000), 100, reply),
            Failure::kNonsense);
  EXPECT_EQ(Shell("echo word x1; sleep 9").Receive(milliseconds(5000), 100, reply),
            Failure::kNonsense);
  EXPECT_EQ(Shell("echo word 101; sleep 9").Receive(milliseconds(5000), 100, reply),
            Failure::kTooLarge);
  EXPECT_FALSE(HelperProcess::Start({"/no/such/program"}));
  HelperProcess gone = Shell("exit 0");
  ASSERT_EQ(gone.Receive(milliseconds(5000), 100, reply), Failure::kDied);
  EXPECT_FALSE(gone.Idle());
  EXPECT_EQ(gone.Send(std::string(1 << 20, 'x'), milliseconds(5000)),
            Failure::kDied);  // and no SIGPIPE
}

}  // namespace
}  // namespace carpool
