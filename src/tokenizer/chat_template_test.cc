#include "tokenizer/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tokenizer/test_tokenizers.h"

namespace carpool {
namespace {

using ::testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Result<ChatTemplate> Make(const std::string& source, const TemplateLimits& limits = {}) {
  return ChatTemplate::FromSource({{"default", source}},
                                  {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, "test template",
                                  limits);
}

std::string Render(const std::string& source, const std::string& request) {
  auto t = Make(source);
  if (!t) return "LOAD: " + t.error().message;
  auto text = t->Render(request);
  return text ? *text : "RENDER: " + text.error().message;
}

// In the shape of the GLM 4.7/5 format, written for this test.
constexpr const char* kGlmLike = R"([gMASK]<sop>
{%- if tools -%}
<|system|>
# Tools
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
{%- endif -%}
{%- macro text(content) -%}
    {%- if content is string -%}{{ content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}{%- if item.type == 'text' -%}{{ item.text }}{%- endif -%}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last_user=-1) -%}
{%- for m in messages -%}
    {%- if m.role == 'user' -%}{%- set ns.last_user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
    {%- if m.role == 'system' -%}<|system|>{{ text(m.content) }}
    {%- elif m.role == 'user' -%}<|user|>{{ text(m.content) }}
    {%- elif m.role == 'assistant' -%}<|assistant|>
        {%- set content = text(m.content) -%}
        {%- if m.reasoning_content is string -%}{%- set reasoning = m.reasoning_content -%}
        {%- elif '</think>' in content -%}
            {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
            {%- set content = content.split('</think>')[-1].lstrip('\n') -%}
        {%- else -%}{%- set reasoning = '' -%}{%- endif -%}
        {%- if ((clear_thinking is defined and not clear_thinking) or loop.index0 > ns.last_user) and reasoning -%}
            <think>{{ reasoning.strip() }}</think>
        {%- else -%}</think>{%- endif -%}
        {%- if content.strip() -%}{{ content.strip() }}{%- endif -%}
        {%- for call in m.tool_calls or [] -%}
            {%- set call = call.function or call -%}
            <tool_call>{{ call.name }}
            {%- for k, v in call.arguments.items() -%}
                <arg_key>{{ k }}</arg_key><arg_value>{{ v if v is string else v | tojson(ensure_ascii=False) }}</arg_value>
            {%- endfor -%}</tool_call>
        {%- endfor -%}
    {%- elif m.role == 'tool' -%}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}<|observation|>{%- endif -%}
        <tool_response>{{ text(m.content) }}</tool_response>
    {%- else -%}{{ raise_exception('unknown role ' ~ m.role) }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{ '</think>' if (enable_thinking is defined and not enable_thinking) else '<think>' }}
{%- endif -%}
)";

TEST(ChatTemplate, RendersGlmConversations) {
  auto t = Make(kGlmLike);
  ASSERT_TRUE(t) << t.error().message;
  const std::string plain =
      R"("messages":[{"role":"system","content":"S"},{"role":"user","content":"U"}],"add_generation_prompt":true)";
  EXPECT_EQ(t->Render("{" + plain + "}").value(),
            "[gMASK]<sop><|system|>S<|user|>U<|assistant|><think>");
  EXPECT_EQ(t->Render("{" + plain + R"(,"enable_thinking":false})").value(),
            "[gMASK]<sop><|system|>S<|user|>U<|assistant|></think>");
  // Arguments come as strings from OpenAI clients.
  const std::string tools = R"("messages":[{"role":"user","content":"U1"},
      {"role":"assistant","content":"A1","reasoning_content":"R1"},{"role":"user","content":[{"type":"text","text":"U2"}]},
      {"role":"assistant","content":"","reasoning_content":"R2","tool_calls":[
        {"type":"function","function":{"name":"f","arguments":"{\"x\":1,\"s\":\"a b\"}"}},
        {"type":"function","function":{"name":"f","arguments":{"x":2,"s":"é"}}}]},
      {"role":"tool","content":"42"},{"role":"tool","content":"43"}],"add_generation_prompt":true)";
  const std::string calls =
      "<|user|>U2<|assistant|><think>R2</think><tool_call>f<arg_key>x</arg_key><arg_value>1</"
      "arg_value>"
      "<arg_key>s</arg_key><arg_value>a "
      "b</arg_value></tool_call><tool_call>f<arg_key>x</arg_key><arg_value>2"
      "</arg_value><arg_key>s</arg_key><arg_value>é</arg_value></"
      "tool_call><|observation|><tool_response>42"
      "</tool_response><tool_response>43</tool_response><|assistant|><think>";
  EXPECT_EQ(t->Render("{" + tools + "}").value(),
            "[gMASK]<sop><|user|>U1<|assistant|></think>A1" + calls);
  EXPECT_EQ(t->Render("{" + tools + R"(,"clear_thinking":false})").value(),
            "[gMASK]<sop><|user|>U1<|assistant|><think>R1</think>A1" + calls);
  EXPECT_EQ(
      t->Render(
           R"({"tools":[{"type":"function","function":{"name":"f","b":[1,2.5,1e-7],"a":"<é'>"}}],"messages":[]})")
          .value(),
      "[gMASK]<sop><|system|>\n# Tools\n"
      "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"b\": [1, 2.5, 1e-07], \"a\": "
      "\"<é'>\"}}\n");
  const auto refused = t->Render(R"({"messages":[{"role":"robot"}]})");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("unknown role robot"));
}

TEST(ChatTemplate, RendersTheBundledTemplate) {
  auto t = ChatTemplate::Load(test::BundledModelDir());
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(
      t->Render(
           R"({"messages":[{"role":"system","content":" A tale. "},{"role":"user","content":"Who is there?"},
      {"role":"assistant","content":"I."},{"role":"user","content":"Who?"}],"add_generation_prompt":true})")
          .value(),
      "A tale.\n\n\"Who is there?\" said the visitor.\n\n\"I.\" was the answer.\n\n\"Who?\" said "
      "the visitor.\n\n\"");
  EXPECT_EQ(t->source(), ReadAll(test::BundledModelDir() + "/chat_template.jinja"));
}

TEST(ChatTemplate, BehavesAsHuggingFaceDoes) {
  const std::string one = R"({"messages":[{"role":"user","content":"<&>"}]})";
  EXPECT_EQ(Render("{{ bos_token }}{{ messages[0].content }}{{ nothing }}{{ eos_token }}", one),
            "<s><&></s>");
  EXPECT_EQ(Render("a\n  {% if true %}\nb\n  {% endif %}\nc", one), "a\nb\nc");
  EXPECT_EQ(Render("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 4 %}{% break "
                   "%}{% endif %}{{ i }}{% endfor %}",
                   one),
            "023");
  EXPECT_EQ(Render("{{ {'b':1,'a':[none,true,'é\"']} | tojson }}", one),
            R"({"b": 1, "a": [null, true, "é\""]})");
  EXPECT_EQ(Render("{{ {'a':[1]} | tojson(indent=2) }}", one), "{\n  \"a\": [\n    1\n  ]\n}");
  EXPECT_EQ(Render("{{ strftime_now('%Y') | length }}", one), "4");
  EXPECT_EQ(Render("{% generation %}x{% endgeneration %}", one), "x");
  EXPECT_EQ(
      Render(
          "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ x is defined }}",
          one),
      "TrueTrueFalseFalse");
  EXPECT_EQ(
      Render("{{ messages[::-1][0].role.upper() }}{{ (messages | map(attribute='role') | list) }}",
             one),
      "USER['user']");
  EXPECT_EQ(Render("{{ messages[0].tool_calls[0].function.arguments }}",
                   R"({"messages":[{"tool_calls":[{"function":{"arguments":"[not json"}}]}]})"),
            "{}");
  auto two = ChatTemplate::FromSource({{"default", "D"}, {"tool_use", "T"}}, {}, "t");
  ASSERT_TRUE(two) << two.error().message;
  EXPECT_EQ(two->Render(R"({"messages":[]})").value(), "D");
  EXPECT_EQ(two->Render(R"({"messages":[],"tools":[{}]})").value(), "T");
}

TEST(ChatTemplate, BadRequestsAreErrorsAndDoNotRestartTheHelper) {
  auto t = Make("{{ messages | length }}{{ messages[0].x.y }}");
  ASSERT_TRUE(t) << t.error().message;
  const int pid = t->helper_pid();
  EXPECT_GT(pid, 0);
  const std::string deep =
      R"({"messages":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  for (const std::string& bad :
       {std::string(), std::string("{"), std::string("[]"), std::string("{}"),
        std::string(R"({"messages":3})"), std::string(R"({"messages":[NaN]})"),
        std::string(R"({"messages":[],"a b":1})"), std::string("\xff"),
        std::string(R"({"messages":[{"x":1}]})"), deep}) {
    const auto text = t->Render(bad);
    if (text)
      continue;  // an undefined member renders empty or fails, as Jinja2 says; it may not hang or
                 // kill
    EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument) << bad.substr(0, 40);
    EXPECT_EQ(text.error().message.find('\n'), std::string::npos);
  }
  EXPECT_FALSE(t->Render("{"));
  EXPECT_FALSE(t->Render(R"({"messages":3})"));
  EXPECT_EQ(t->helper_pid(), pid);
}

TEST(ChatTemplate, HostileTemplatesEndInAnErrorInBoundedTime) {
  TemplateLimits limits;
  limits.wall = std::chrono::milliseconds(1000);
  limits.output_bytes = 1 << 20;
  const char* hostile[] = {
      "{% for i in range(10**9) %}{% endfor %}",
      "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
      "{{ messages[0].role * 10**9 }}",
      "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ "
      "ns.s %}{% endfor %}",
      "{% for i in range(99999) %}{{ messages[0].role * 1000 }}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% set n = messages | length + 9 %}{{ n ** (n ** n) }}",
      "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ raise_exception('escaped') if ''.__class__ "
      "}}{{ 1/0 }}",
      "{{ messages.append(1) }}",
      "{{ lipsum.__globals__['os'].popen('id').read() }}",
      "{{ cycler.__init__.__globals__.os.system('id') }}",
      "{{ ('%s' ~ '{0.__class__}').format(messages).x.y }}",
      "{{ (messages | attr('__class__')).mro() }}",
      "{{ strftime_now('%Y' * 10**8) }}",
      "{% include '/etc/passwd' %}",
      "{% import 'os' as os %}",
      "{{ '%0999999999d' | format(messages | length) }}",
      "{{ 10**(10**10) }}",
      "{% if %}",
  };
  for (const char* source : hostile) {
    const auto begin = std::chrono::steady_clock::now();
    auto t = Make(source, limits);
    if (!t) {
      EXPECT_EQ(t.error().code, ErrorCode::kCorrupt) << source;
      EXPECT_THAT(t.error().message, HasSubstr("does not compile"));
    } else {
      const auto text = t->Render(R"({"messages":[{"role":"user"}]})");
      EXPECT_FALSE(text) << source << " gave " << text->substr(0, 100);
      if (!text) {
        EXPECT_EQ(text.error().message.find('\n'), std::string::npos);
        EXPECT_EQ(text.error().message.find("uid="), std::string::npos);
      }
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(seconds.count(), 10.0) << source;
  }
}

TEST(ChatTemplate, TheHelperIsReplacedAfterABreachAndNoZombieStays) {
  TemplateLimits limits;
  limits.wall = std::chrono::milliseconds(1500);  // machines that build while they test are slow
  int last = -1;
  {
    auto t = Make(
        "{% for i in range(90000 if spin else 1) %}{% for j in range(90000 if spin else 1) %}{% "
        "endfor %}{% endfor %}ok",
        limits);
    ASSERT_TRUE(t) << t.error().message;
    const int first = t->helper_pid();
    EXPECT_EQ(t->Render(R"({"messages":[]})").value(), "ok");
    const auto slow = t->Render(R"({"messages":[],"spin":true})");
    ASSERT_FALSE(slow);
    EXPECT_EQ(slow.error().code, ErrorCode::kExhausted);
    EXPECT_THAT(slow.error().message, HasSubstr("longer than 1500 ms"));
    EXPECT_EQ(t->Render(R"({"messages":[]})").value(), "ok");
    const int second = t->helper_pid();
    EXPECT_NE(first, second);
    EXPECT_EQ(kill(first, 0), -1);  // reaped, not a zombie
    EXPECT_EQ(errno, ESRCH);
    // Somebody kills it between two requests: no SIGPIPE, no error.
    kill(second, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(t->Render(R"({"messages":[]})").value(), "ok");
    last = t->helper_pid();
    EXPECT_EQ(kill(second, 0), -1);
  }
  EXPECT_EQ(kill(last, 0), -1);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(ChatTemplate, ManyThreadsMayRenderAndLargeRequestsPass) {
  auto t = Make("{{ messages[0].content | length }} {{ messages[0].content }}");
  ASSERT_TRUE(t) << t.error().message;
  std::vector<std::thread> threads;
  for (int i = 1; i <= 4; ++i) {
    threads.emplace_back([&t, i] {
      for (int j = 0; j < 10; ++j) {
        const std::string content(static_cast<size_t>(i) * 100'000, static_cast<char>('a' + i));
        const auto text = t->Render(R"({"messages":[{"content":")" + content + "\"}]}");
        ASSERT_TRUE(text) << text.error().message;
        EXPECT_EQ(*text, std::to_string(content.size()) + " " + content);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(t->Render(std::string(size_t{17} << 20, ' ')));
}

TEST(ChatTemplate, LoadLooksInBothFilesAndSaysWhenThereIsNone) {
  const std::string dir = ::testing::TempDir() + "/chat_template_test" + std::to_string(getpid());
  std::filesystem::create_directories(dir);
  const auto none = ChatTemplate::Load(dir);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(none.error().message, HasSubstr("this checkpoint has no chat template"));
  std::ofstream(dir + "/tokenizer_config.json")
      << R"({"bos_token":"<b>","chat_template":"{{ bos_token }}config"})";
  auto config = ChatTemplate::Load(dir);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->Render(R"({"messages":[]})").value(), "<b>config");
  std::ofstream(dir + "/chat_template.jinja") << "{{ bos_token }}file";
  auto file = ChatTemplate::Load(dir);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->Render(R"({"messages":[]})").value(), "<b>file");
  std::filesystem::remove_all(dir);
  EXPECT_FALSE(ChatTemplate::FromSource({{"other", "x"}}, {}, "t"));
  EXPECT_FALSE(Make("\xff"));
}

}  // namespace
}  // namespace carpool
