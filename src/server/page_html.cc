#include "server/page_html.h"

namespace carpool {

std::string_view PageHtml() {
  return R"page(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Carpool</title>
<link rel="icon" href="data:,">
<style>
:root { color-scheme: light dark; --bg: #fbfaf7; --fg: #1d2226; --dim: #667; --line: #d8d6cf; --panel: #fff;
  --own: #2166ac; --ride: #e08214; --cell: #ecebe6; }
@media (prefers-color-scheme: dark) { :root { --bg: #14171a; --fg: #e6e6e1; --dim: #9aa3ab; --line: #343a40;
  --panel: #1b1f23; --own: #6baed6; --ride: #fdae61; --cell: #262b30; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--bg); color: var(--fg);
  font: 1rem/1.45 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1rem; margin: 0 0 .4rem; }
header { display: flex; flex-wrap: wrap; gap: .3rem 1rem; align-items: baseline; margin-bottom: 1rem; }
header p, .note { margin: 0; color: var(--dim); font-size: .9rem; }
section { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .8rem;
  margin-bottom: 1rem; }
label { display: inline-flex; gap: .4rem; align-items: center; }
.row { display: flex; flex-wrap: wrap; gap: .6rem 1.2rem; align-items: center; margin-top: .6rem; }
textarea, input, button { font: inherit; color: inherit; background: var(--bg); border: 1px solid var(--line);
  border-radius: .35rem; padding: .35rem .5rem; }
textarea { width: 100%; min-height: 3.5rem; } input[type=number] { width: 5.5rem; } input[type=text] { width: 10rem; }
button { cursor: pointer; font-weight: 600; } button:disabled { opacity: .5; cursor: default; }
:focus-visible { outline: 2px solid var(--own); outline-offset: 2px; }
fieldset { border: 0; padding: 0; margin: 0; display: flex; flex-wrap: wrap; gap: .4rem 1rem; align-items: center; }
legend { float: left; margin-right: .6rem; }
.texts { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .6rem; }
.texts p { margin: 0; padding: .5rem; border: 1px solid var(--line); border-radius: .35rem; height: 7.5rem;
  overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .9rem; }
canvas { width: 100%; display: block; }
#chart { height: 11rem; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .6rem; }
.numbers div { border-left: 3px solid var(--line); padding-left: .6rem; }
.numbers b { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem; vertical-align: -.08rem; }
#error { color: #c0392b; } #error:empty { display: none; }
</style>
</head>
<body>
<header><h1>Carpool</h1><p id="model">connecting…</p></header>
<main>
<section aria-labelledby="try">
  <h2 id="try">Try a prompt</h2>
  <form id="form">
    <label for="prompt" class="note">Prompt</label>
    <textarea id="prompt">It was a dark and stormy night</textarea>
    <div class="row">
      <label>Streams <input id="streams" type="number" min="1" max="64" value="8"></label>
      <label>Tokens each <input id="tokens" type="number" min="1" max="4096" value="160"></label>
      <label>API key <input id="key" type="text" autocomplete="off" placeholder="if asked for"></label>
      <button id="go">Generate</button>
      <button id="stop" type="button" disabled>Stop</button>
    </div>
  </form>
  <p id="error" role="alert"></p>
</section>
<section aria-labelledby="routing">
  <h2 id="routing">Routing of the whole server</h2>
  <form id="switch" class="row">
    <fieldset><legend class="note">Policy</legend>
      <label><input type="radio" name="policy" value="vanilla"> exact</label>
      <label><input type="radio" name="policy" value="oea"> OEA, own experts k0 =</label>
      <input id="k0" type="number" min="1" value="3" aria-label="k0">
    </fieldset>
    <span class="note" id="policy" aria-live="polite"></span>
  </form>
  <p class="note">Under OEA a token keeps its own best k0 experts and fills its other places with experts that
  another token of the batch already needs. It acts from four decoding streams on.</p>
</section>
<section aria-labelledby="now">
  <h2 id="now">Experts read in the last step, layers × experts</h2>
  <canvas id="heat" height="120" role="img" aria-label="no step yet"></canvas>
  <p class="note"><span class="key" style="background:var(--own)"></span> read because a token chose it (stronger:
  more tokens) &nbsp; <span class="key" style="background:var(--ride)"></span> part of its tokens only ride along
  &nbsp; <span class="key" style="background:var(--cell)"></span> not read</p>
</section>
<section aria-labelledby="time">
  <h2 id="time">Over time</h2>
  <div class="numbers" aria-live="off">
    <div><span class="note">distinct experts per layer</span><b id="n-distinct">–</b></div>
    <div><span class="note">tokens/s</span><b id="n-speed">–</b></div>
    <div><span class="note">rides</span><b id="n-rides">–</b></div>
    <div><span class="note">running</span><b id="n-running">–</b></div>
  </div>
  <canvas id="chart" height="180" role="img" aria-label="distinct experts and tokens per second over time"></canvas>
  <p class="note">Upper line: distinct experts. Lower line: tokens/s. <span class="key" style="background:var(--own)"></span>
  exact <span class="key" style="background:var(--ride)"></span> batch-coupled</p>
</section>
<section aria-labelledby="out"><h2 id="out">Streams</h2><div class="texts" id="texts"></div></section>
</main>
<script>
"use strict";
const $ = id => document.getElementById(id);
const headers = () => {
  const h = {"Content-Type": "application/json"};
  if ($("key").value) h.Authorization = "Bearer " + $("key").value;
  return h;
};
const fail = text => { $("error").textContent = text || ""; };
async function call(path, body) {
  const answer = await fetch(path, body ? {method: "POST", headers: headers(), body: JSON.stringify(body)}
                                        : {headers: headers()});
  const document_ = await answer.json();
  if (!answer.ok) throw new Error(document_.error ? document_.error.message : "HTTP " + answer.status);
  return document_;
}
function showPolicy(text) {
  $("policy").textContent = "now: " + text;
  const oea = text.match(/^oea:k0=(\d+)/);
  for (const radio of document.querySelectorAll("[name=policy]"))
    radio.checked = radio.value === (text === "vanilla" ? "vanilla" : oea ? "oea" : "");
  if (oea) $("k0").value = oea[1];
}
async function connect() {
  try {
    const model = (await call("/v1/models")).data[0];
    $("model").textContent = model.id + ": " + model.moe.layers + " MoE layers, " + model.moe.experts +
      " experts, top-" + model.moe.top_k;
    $("k0").max = model.moe.top_k;
    showPolicy(model.routing);
    fail();
  } catch (e) { $("model").textContent = "not connected"; fail(e.message); }
}
async function change() {
  const chosen = document.querySelector("[name=policy]:checked");
  if (!chosen) return;
  try {
    const routing = chosen.value === "oea" ? "oea:k0=" + $("k0").value : "vanilla";
    showPolicy((await call("/v1/moe/routing", {routing})).routing);
    fail();
  } catch (e) { fail(e.message); }
}
let controller = null;
// All streams share one request: a browser opens only six connections to a server, and the picture
// needs one of them.
async function stream(boxes, signal) {
  const answer = await fetch("/v1/completions", {method: "POST", headers: headers(), signal, body: JSON.stringify({
    prompt: $("prompt").value, max_tokens: Number($("tokens").value), temperature: 1, n: boxes.length,
    seed: Date.now() % 1e6, stream: true, ignore_eos: true})});
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    held += value;
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ") || event === "data: [DONE]") continue;
      const data = JSON.parse(event.slice(6));
      if (data.error) throw new Error(data.error.message);
      const box = boxes[data.choices[0].index];
      box.append(data.choices[0].text);
      box.scrollTop = box.scrollHeight;
    }
  }
}
async function generate(event) {
  event.preventDefault();
  if (controller) return;
  fail();
  controller = new AbortController();
  $("go").disabled = true; $("stop").disabled = false;
  $("texts").replaceChildren();
  const boxes = [];
  for (let i = 0; i < Math.min(64, Number($("streams").value)); ++i) {
    const box = document.createElement("p");
    box.tabIndex = 0;
    $("texts").append(box);
    boxes.push(box);
  }
  try { await stream(boxes, controller.signal); } catch (e) { if (e.name !== "AbortError") fail(e.message); }
  controller = null;
  $("go").disabled = false; $("stop").disabled = true;
  document.body.dataset.done = "1";
}
const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function prepare(canvas) {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * scale; canvas.height = height * scale;
  const g = canvas.getContext("2d");
  g.scale(scale, scale); g.clearRect(0, 0, width, height);
  return [g, width, height];
}
function drawHeat(step) {
  const canvas = $("heat");
  canvas.style.height = Math.max(60, Math.min(400, step.layers * 22)) + "px";
  const [g, width, height] = prepare(canvas);
  const w = width / step.experts, h = height / step.layers;
  for (let layer = 0; layer < step.layers; ++layer) for (let e = 0; e < step.experts; ++e) {
    const own = step.own_rows[layer * step.experts + e], rides = step.rides[layer * step.experts + e];
    g.globalAlpha = 1;
    g.fillStyle = color("--cell");
    g.fillRect(e * w, layer * h, Math.max(w - .5, .5), h - 1);
    if (!own && !rides) continue;
    g.globalAlpha = .45 + .55 * Math.min(1, own / 6);
    g.fillStyle = color("--own");
    g.fillRect(e * w, layer * h, Math.max(w - .5, .5), h - 1);
    if (!rides) continue;
    g.globalAlpha = 1;
    g.fillStyle = color("--ride");
    const part = (h - 1) * rides / (own + rides);
    g.fillRect(e * w, layer * h + h - 1 - part, Math.max(w - .5, .5), part);
  }
  canvas.setAttribute("aria-label", step.rows + " rows; distinct experts per layer: " + step.distinct.join(", "));
}
const history = [];
function drawChart() {
  const [g, width, height] = prepare($("chart"));
  const half = height / 2 - 8;
  [["distinct", 0], ["speed", half + 16]].forEach(([field, top]) => {
    const most = Math.max(1, ...history.map(p => p[field]));
    g.fillStyle = color("--dim"); g.font = "11px system-ui";
    g.fillText(most.toFixed(0), 2, top + 10);
    for (let i = 1; i < history.length; ++i) {
      const x = j => width - (history.length - 1 - j) * 5, y = j => top + half - half * .85 * history[j][field] / most;
      g.strokeStyle = color(history[i].exact ? "--own" : "--ride"); g.lineWidth = 2;
      g.beginPath(); g.moveTo(x(i - 1), y(i - 1)); g.lineTo(x(i), y(i)); g.stroke();
    }
  });
}
let last = null;
async function poll() {
  try {
    const s = await call("/v1/moe/stats?heat=1");
    const sum = f => s.decode[f] + s.mixed[f];
    if (s.last_step.rows) drawHeat(s.last_step);
    const now = performance.now() / 1000, rows = sum("rows"), steps = sum("steps");
    if (last && steps > last.steps) {
      const distinct = s.last_step.distinct.reduce((a, b) => a + b, 0) / s.last_step.layers;
      const own = s.last_step.own_rows.reduce((a, b) => a + b, 0), rides = s.last_step.rides.reduce((a, b) => a + b, 0);
      const speed = (rows - last.rows) / (now - last.now);
      history.push({distinct, speed, exact: s.routing === "vanilla"});
      while (history.length > Math.max(40, $("chart").clientWidth / 5)) history.shift();
      $("n-distinct").textContent = distinct.toFixed(1);
      $("n-speed").textContent = speed.toFixed(0);
      $("n-rides").textContent = (100 * rides / Math.max(1, own + rides)).toFixed(0) + " %";
      drawChart();
    }
    $("n-running").textContent = s.running;
    last = {now, rows, steps};
  } catch (e) { /* the next poll tells */ }
  setTimeout(poll, controller ? 150 : 1000);
}
$("form").addEventListener("submit", generate);
$("stop").addEventListener("click", () => controller && controller.abort());
$("switch").addEventListener("change", change);
$("switch").addEventListener("submit", e => e.preventDefault());
$("key").addEventListener("change", connect);
connect(); poll();
</script>
</body>
</html>
)page";
}

}  // namespace carpool
