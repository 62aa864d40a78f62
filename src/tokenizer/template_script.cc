#include "tokenizer/template_script.h"

namespace carpool {

// Frames, both ways: a decimal length, a newline, that many bytes. Replies have a word before the
// length: "ok" (the bytes are text), "request" (the request was no good), "template" (the template
// failed or refused), "limit" (a bound was met; the parent throws this process away), "setup" (no
// jinja2) or "ready". The first frame is the setup; it is answered by "ready" and then by how
// compiling the templates went.
const char* const kTemplateScript = R"PY(
import json, resource, sys

def limit(what, soft, keep_hard=False):
    hard = resource.getrlimit(what)[1]
    soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(what, (soft, hard if keep_hard else soft))

inp, out = sys.stdin.buffer, sys.stdout.buffer

def read_frame():
    line = inp.readline(32)
    if not line.endswith(b"\n"):
        sys.exit(0)
    n = int(line)
    data = inp.read(n)
    if len(data) != n:
        sys.exit(0)
    return data

def reply(word, text):
    data = text.encode("utf-8", "replace")
    out.write(b"%s %d\n" % (word.encode(), len(data)))
    out.write(data)
    out.flush()

setup = json.loads(read_frame())
limit(resource.RLIMIT_CORE, 0)
limit(resource.RLIMIT_FSIZE, 0)
limit(resource.RLIMIT_AS, setup["memory_bytes"])
limit(resource.RLIMIT_NOFILE, 64)
limit(resource.RLIMIT_NPROC, 0)

def start_cpu_clock():
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + setup["cpu_seconds"]) + 1, keep_hard=True)

try:
    import datetime
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
except Exception as e:
    reply("setup", "%s: %s" % (type(e).__name__, e))
    sys.exit(0)

class Generation(jinja2.ext.Extension):  # {% generation %} marks what a model wrote; here it only prints it
    tags = {"generation"}
    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)

def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

class Refused(jinja2.exceptions.TemplateError):
    pass

def raise_exception(message):
    raise Refused(str(message))

def strftime_now(form):
    return datetime.datetime.now().strftime(form)

env = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = strftime_now

def no_constant(word):
    raise ValueError(word + " is not JSON")

def parse_json(data):
    return json.loads(data, parse_constant=no_constant)

def prepare(messages):
    for m in messages if isinstance(messages, list) else []:
        calls = m.get("tool_calls") if isinstance(m, dict) else None
        for call in calls if isinstance(calls, list) else []:
            f = call.get("function", call) if isinstance(call, dict) else None
            if isinstance(f, dict) and isinstance(f.get("arguments"), str):
                try:
                    f["arguments"] = parse_json(f["arguments"])
                except (ValueError, RecursionError):
                    f["arguments"] = {}
                if not isinstance(f["arguments"], dict):
                    f["arguments"] = {}

def render(request):
    values = dict(setup["special_tokens"], tools=None, documents=None, add_generation_prompt=False)
    values.update(request)
    prepare(values.get("messages"))
    name = "tool_use" if values["tools"] and "tool_use" in compiled else "default"
    parts, size = [], 0
    for part in compiled[name].generate(values):
        size += len(part)
        if size > setup["output_bytes"]:
            raise MemoryError("more than %d bytes of output" % setup["output_bytes"])
        parts.append(part)
    return "".join(parts)

def short(e):
    line = getattr(e, "lineno", None)
    text = " ".join(str(e).split())[:300]
    return "%s: %s%s" % (type(e).__name__, text, " (line %d)" % line if line else "")

def answer(work):
    start_cpu_clock()
    try:
        text = work()
        data = text.encode("utf-8")
        if len(data) > setup["output_bytes"]:
            raise MemoryError("more than %d bytes of output" % setup["output_bytes"])
    except MemoryError as e:
        return reply("limit", "memory or output limit: %s" % (e or "out of memory"))
    except RequestError as e:
        return reply("request", str(e))
    except Refused as e:
        return reply("template", " ".join(str(e).split())[:300])
    except Exception as e:  # RecursionError, OverflowError, SecurityError, undefined values, ...
        return reply("template", short(e))
    reply("ok", text)

class RequestError(Exception):
    pass

compiled = {}
def compile_all():
    for name, source in setup["templates"].items():
        compiled[name] = env.from_string(source)
    return ""

def one_request(data):
    try:
        request = parse_json(data.decode("utf-8"))
    except (ValueError, RecursionError) as e:
        raise RequestError("not JSON: %s" % " ".join(str(e).split())[:200])
    if not isinstance(request, dict) or not all(k.isidentifier() for k in request):
        raise RequestError("wanted an object whose keys are names")
    if not isinstance(request.get("messages"), list):
        raise RequestError("wanted a list \"messages\"")
    return render(request)

reply("ready", "")
answer(compile_all)
while True:
    data = read_frame()
    answer(lambda: one_request(data))
    data = None
)PY";

}  // namespace carpool
