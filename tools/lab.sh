#!/bin/sh
# usage: lab.sh CARPOOL DIR   the whole lab on the bundled model: sweep with sensitivity per layer, A/B, a recorded trace
# under other policies, a layer of GLM-5's size, plans. Leaves DIR/index.html and the rest. A second call resumes the sweep.
set -eu
carpool=$1
dir=$2
text=$(dirname "$0")/../models/books-20m/heldout.txt
mkdir -p "$dir"

echo "== sweep"
"$carpool" sweep --batch 4,16,64 --tokens 8192 --per-layer --out "$dir/run" --report "$dir"

echo "== A/B"
"$carpool" ab vanilla oea:k0=5 --report "$dir"

echo "== what other policies would have done to recorded routing"
set --
while [ $# -lt 32 ] && read -r line; do
  if [ ${#line} -gt 40 ]; then set -- "$@" --prompt "$line"; fi
done <"$text"
"$carpool" generate "$@" --max-tokens 64 --ignore-eos --trace "$dir/trace.jsonl" --trace-level 2 >"$dir/generated.txt"
"$carpool" whatif "$dir/trace.jsonl" --shape demo \
  --routing vanilla,oea:k0=5,oea:k0=3,topk:k=5,topk:k=3,lynx:budget=40,cap:budget=40,xshare:budget=40 | tee "$dir/whatif.txt"

echo "== a MoE layer of GLM-5's size"
"$carpool" bench moe --shape glm-5 --batch 16 --seconds 30 --time-svg "$dir/moe_time_glm5.svg" \
  --routing vanilla,oea:k0=7,oea:k0=6,oea:k0=5,oea:k0=4,oea:k0=3 | tee "$dir/moe_time_glm5.txt"

echo "== plans"
for hardware in here epyc-9005-2s h200-x8 rtx-pro-6000-x8; do
  "$carpool" plan glm-5 --hardware $hardware --batch 1,16,64
  echo
done | tee "$dir/plan.txt"
echo "report: $dir/index.html, $dir/ab.html"
