"""Tool calls and reasoning through the server, on the scripted fixture model (scripted_model.py)."""
import json
import tempfile
import unittest

from scripted_model import write_scripted_model
from serving import Server

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
QUESTION = [{"role": "user", "content": "How is the weather in Paris?"}]


class ServeToolsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server(model=write_scripted_model(cls.folder.name + "/scripted"))

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def chat(self, messages, **fields):
        status, answer = self.server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 64, **fields})
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]

    def test_call_and_reasoning(self):
        choice = self.chat(QUESTION, tools=[WEATHER])
        message = choice["message"]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        self.assertEqual(message["reasoning_content"], "I need the weather")
        self.assertFalse(message["content"])
        [call] = message["tool_calls"]
        self.assertEqual(call["type"], "function")
        self.assertTrue(call["id"])
        self.assertEqual(call["function"]["name"], "get_weather")
        self.assertEqual(json.loads(call["function"]["arguments"]), {"city": "Paris"})

    def test_reasoning_opened_by_the_template(self):
        choice = self.chat(QUESTION, tools=[WEATHER], chat_template_kwargs={"enable_thinking": True})
        self.assertEqual(choice["message"]["reasoning_content"], "I need the weather")

    def test_the_whole_conversation(self):
        call = self.chat(QUESTION, tools=[WEATHER])["message"]["tool_calls"][0]
        messages = QUESTION + [{"role": "assistant", "content": None, "tool_calls": [call]},
                               {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]
        choice = self.chat(messages, tools=[WEATHER])
        self.assertEqual(choice["finish_reason"], "stop")
        self.assertEqual(choice["message"]["content"], "It is sunny today.")
        self.assertNotIn("tool_calls", choice["message"])

    def test_without_tools(self):
        for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
            choice = self.chat(QUESTION, **fields)
            self.assertEqual(choice["message"]["content"], "It is sunny today.", fields)
            self.assertEqual(choice["finish_reason"], "stop")

    def test_streamed(self):
        events = list(self.server.stream("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 64, "tools": [WEATHER]}))
        self.assertEqual(events.pop(), "[DONE]")
        deltas = [e["choices"][0]["delta"] for e in events if e["choices"]]
        self.assertEqual("".join(d.get("reasoning_content") or "" for d in deltas), "I need the weather")
        self.assertEqual("".join(d.get("content") or "" for d in deltas), "")
        calls = [c for d in deltas for c in d.get("tool_calls", [])]
        self.assertEqual(calls[0]["function"]["name"], "get_weather")
        self.assertEqual(json.loads("".join(c["function"].get("arguments", "") for c in calls)), {"city": "Paris"})
        self.assertEqual([e["choices"][0]["finish_reason"] for e in events if e["choices"]][-1], "tool_calls")

    def test_cut_in_the_middle_of_a_call(self):
        choice = self.chat(QUESTION, tools=[WEATHER], max_tokens=8)
        self.assertEqual(choice["finish_reason"], "length")
        self.assertEqual(choice["message"]["content"], "<tool_call>get_weather<arg_key>")
        self.assertNotIn("tool_calls", choice["message"])


if __name__ == "__main__":
    unittest.main()
