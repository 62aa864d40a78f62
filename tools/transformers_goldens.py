#!/usr/bin/env python3
"""Goldens from the real Hugging Face transformers: a tiny random model of every family, its logits, its greedy tokens.

Not part of any build: needs torch (a CPU build will do), transformers and numpy, best in a throw-away environment:

    python3 -m venv /tmp/tf && /tmp/tf/bin/pip install torch transformers numpy
    /tmp/tf/bin/python tools/transformers_goldens.py --check build/release/src/models_test

writes tests/golden/transformers/FAMILY.json and has the tests of src/models compare them with Carpool: full logits of a
prefill, logits of a cached decode token by token, greedy tokens. A weight is a function of its tensor's name (see
Tensor()), so the files hold names, shapes and results only.
"""
import argparse
import base64
import json
import math
import os
import pathlib
import subprocess
import tempfile

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENS = [(7 * i * i + 3 * i + 1) % 320 for i in range(40)]
PROMPT, GREEDY = 12, 12

COMMON = dict(vocab_size=320, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, max_position_embeddings=512,
              hidden_act="silu", tie_word_embeddings=False, bos_token_id=None, eos_token_id=319, pad_token_id=None)
MLA = dict(num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=24,
           intermediate_size=128, moe_intermediate_size=32, n_routed_experts=16, num_experts_per_tok=4,
           first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5, n_shared_experts=1)
PLAIN = dict(rope_type="default", rope_theta=10000.0)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16, beta_fast=32.0,
            beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0)
# name: (fields, salt). The salt picks weights whose routers and indexers have no near ties.
FAMILIES = {
    "glm_moe_dsa": (dict(MLA, model_type="glm_moe_dsa", n_group=1, topk_group=1, index_n_heads=8, index_head_dim=16,
                         index_topk=8, rms_norm_eps=1e-5, rope_parameters=PLAIN), ""),
    "glm4_moe": (dict(model_type="glm4_moe", num_key_value_heads=2, head_dim=16, attention_bias=True, use_qk_norm=True,
                      intermediate_size=128, moe_intermediate_size=32, n_routed_experts=16, num_experts_per_tok=4,
                      n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1, routed_scaling_factor=1.5,
                      norm_topk_prob=True, rms_norm_eps=1e-5,
                      rope_parameters=dict(PLAIN, partial_rotary_factor=0.5)), ""),
    "glm4_moe_lite": (dict(MLA, model_type="glm4_moe_lite", n_group=1, topk_group=1, routed_scaling_factor=1.8,
                           rms_norm_eps=1e-5, rope_parameters=PLAIN), ""),
    "deepseek_v2": (dict(MLA, model_type="deepseek_v2", q_lora_rank=None, topk_method="greedy", n_shared_experts=2,
                         norm_topk_prob=False, routed_scaling_factor=1.0, rms_norm_eps=1e-6,
                         rope_parameters=dict(YARN, mscale=0.707, mscale_all_dim=0.707)), "#1"),
    "deepseek_v2_groups": (dict(MLA, model_type="deepseek_v2", q_lora_rank=None, topk_method="group_limited_greedy",
                                n_group=4, topk_group=2, n_shared_experts=2, norm_topk_prob=False,
                                routed_scaling_factor=4.0, rms_norm_eps=1e-6, rope_parameters=PLAIN), "#1"),
    "deepseek_v3": (dict(MLA, model_type="deepseek_v3", n_group=4, topk_group=2, rms_norm_eps=1e-6,
                         rope_parameters=YARN), ""),
    "deepseek_v32": (dict(MLA, model_type="deepseek_v32", n_group=4, topk_group=2, index_n_heads=8, index_head_dim=16,
                          index_topk=8, rms_norm_eps=1e-6, rope_parameters=YARN), ""),
    "qwen3_moe": (dict(model_type="qwen3_moe", num_key_value_heads=2, head_dim=32, intermediate_size=128,
                       moe_intermediate_size=32, num_experts=16, num_experts_per_tok=4, norm_topk_prob=True,
                       decoder_sparse_step=1, mlp_only_layers=[0], rms_norm_eps=1e-6, rope_parameters=PLAIN), "#0"),
    "qwen2_moe": (dict(model_type="qwen2_moe", num_key_value_heads=2, intermediate_size=128, moe_intermediate_size=32,
                       shared_expert_intermediate_size=48, num_experts=16, num_experts_per_tok=4, norm_topk_prob=False,
                       rms_norm_eps=1e-6, rope_parameters=PLAIN), "#0"),
    "olmoe": (dict(model_type="olmoe", num_key_value_heads=4, intermediate_size=32, num_experts=16,
                   num_experts_per_tok=4, norm_topk_prob=False, clip_qkv=2.0, rms_norm_eps=1e-5,
                   rope_parameters=PLAIN), "#0"),
    "mixtral": (dict(model_type="mixtral", num_key_value_heads=2, intermediate_size=96, num_local_experts=8,
                     num_experts_per_tok=2, sliding_window=None, rms_norm_eps=1e-5, rope_parameters=PLAIN), "#0"),
    "mixtral_window": (dict(model_type="mixtral", num_key_value_heads=2, intermediate_size=96, num_local_experts=8,
                            num_experts_per_tok=2, sliding_window=10, rms_norm_eps=1e-5, rope_parameters=PLAIN), "#0"),
    "gpt_oss": (dict(model_type="gpt_oss", num_key_value_heads=2, head_dim=16, intermediate_size=64,
                     num_local_experts=8, num_experts_per_tok=2, sliding_window=8, rms_norm_eps=1e-5,
                     layer_types=["sliding_attention", "full_attention"] * 2,
                     rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0,
                                          beta_slow=1.0, truncate=False, original_max_position_embeddings=16)), ""),
    "llama": (dict(model_type="llama", num_key_value_heads=2, intermediate_size=96, rms_norm_eps=1e-5,
                   tie_word_embeddings=True,
                   rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                                        high_freq_factor=4.0, original_max_position_embeddings=16)), ""),
    "qwen3": (dict(model_type="qwen3", num_key_value_heads=2, head_dim=32, intermediate_size=96, rms_norm_eps=1e-6,
                   rope_parameters=PLAIN), ""),
}


def Tensor(name, shape, salt):
    """The seeded weights of tensor `name`: FNV-1a of the name starts splitmix64 (models/golden_weights_testing.h)."""
    seed = 0xCBF29CE484222325
    for c in (name + salt).encode():
        seed = (seed ^ c) * 0x100000001B3 % 2**64
    n = math.prod(shape)
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    u = 2.0 * ((z >> np.uint64(11)).astype(np.float64) * 2.0**-53) - 1.0
    if name.endswith("norm.weight"):
        value = 1.0 + 0.1 * u
    elif name.endswith(("k_norm.bias", "_proj.bias")):
        value = 0.1 * u
    elif name.endswith("e_score_correction_bias"):
        value = 0.2 * u
    elif name.endswith(("mlp.gate.weight", "block_sparse_moe.gate.weight")) or name == "model.embed_tokens.weight":
        value = u
    else:
        value = u * math.sqrt(3.0 / shape[-1])
    return value.astype(np.float32).reshape(shape)


def Load(folder):
    kinds = dict(dtype=torch.float32, attn_implementation="eager")
    try:
        return AutoModelForCausalLM.from_pretrained(folder, experts_implementation="eager", **kinds).eval()
    except (TypeError, ValueError):  # families without experts
        return AutoModelForCausalLM.from_pretrained(folder, **kinds).eval()


def MakeCheckpoint(fields, salt, folder):
    """Lets transformers save a model of this configuration, then gives every tensor in the file its seeded values."""
    kind = {**COMMON, **fields}
    config = AutoConfig.for_model(kind.pop("model_type"), **kind)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    file = pathlib.Path(folder) / "model.safetensors"
    with safe_open(file, "np") as f:
        shapes = {name: list(f.get_slice(name).get_shape()) for name in f.keys()}
    save_file({name: Tensor(name, shape, salt) for name, shape in shapes.items()}, file, metadata={"format": "pt"})
    return shapes


@torch.no_grad()
def Run(model):
    """Logits of one prefill, how far a cached decode is from them, and greedy tokens."""
    ids = torch.tensor([TOKENS])
    logits = model(ids, use_cache=False).logits[0].double()
    step = model(ids[:, :PROMPT], use_cache=True)
    worst = (step.logits[0].double() - logits[:PROMPT]).abs().max().item()
    for i in range(PROMPT, len(TOKENS)):
        step = model(ids[:, i:i + 1], past_key_values=step.past_key_values, use_cache=True)
        worst = max(worst, (step.logits[0, -1].double() - logits[i]).abs().max().item())
    greedy = list(TOKENS[:PROMPT])
    for _ in range(GREEDY):
        greedy.append(int(model(torch.tensor([greedy]), use_cache=False).logits[0, -1].argmax()))
    return logits.numpy(), worst, greedy[PROMPT:]


def Golden(name, full):
    fields, salt = FAMILIES[name]
    with tempfile.TemporaryDirectory() as folder:
        shapes = MakeCheckpoint(fields, salt, folder)
        model = Load(folder)
        logits, worst, greedy = Run(model)
        config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    top = np.abs(logits).max()
    print(f"{name:20} max|logit| {top:.4f}  cached decode within {worst / top:.1e}  greedy {greedy[:6]}", flush=True)
    golden = {
        "family": name,
        "made_with": {"transformers": transformers.__version__, "torch": torch.__version__},
        "salt": salt,
        "config": config,
        "tokens": TOKENS,
        "prompt": PROMPT,
        "greedy": greedy,
        "largest": top,
        "tensors": shapes,
    }
    # [tokens, vocabulary], little-endian: fp32, or int16 for 32767ths of the largest.
    if full:
        golden["logits_f32"] = base64.b64encode(logits.astype("<f4").tobytes()).decode()
    else:
        golden["logits_i16"] = base64.b64encode(np.rint(logits / (top / 32767)).astype("<i2").tobytes()).decode()
    return golden


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/golden/transformers")
    parser.add_argument("--family", action="append", choices=sorted(FAMILIES), help="only these")
    parser.add_argument("--full", action="store_true", help="logits as fp32 instead of int16: three times the size")
    parser.add_argument("--check", type=pathlib.Path, help="the tests of src/models, to run on the result")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    args.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in args.family or FAMILIES:
        try:
            golden = Golden(name, args.full)
        except Exception as error:  # a family this release does not have
            failed.append(name)
            print(f"{name:20} {type(error).__name__}: {error}", flush=True)
            continue
        (args.out / f"{name}.json").write_text(json.dumps(golden, indent=None, separators=(",", ":")) + "\n")
    if args.check:
        environment = dict(os.environ, CARPOOL_GOLDENS=str(args.out))
        subprocess.run([args.check, "--gtest_filter=*Transformers*"], env=environment, check=True)
    if failed:
        raise SystemExit(f"not made: {', '.join(failed)}")


if __name__ == "__main__":
    main()
