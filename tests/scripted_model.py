"""A scripted fixture model: a real checkpoint whose weights recite fixed text. Not a language model.

Attention and experts are zero, so that the last hidden state is the last token's embedding, a one-hot row; the head maps
every token to its successor in the script. Whatever the prompt, decoding continues the script that its last token starts.
For tests of what a server does with tool calls and reasoning, which the bundled model was never trained to write.
"""
import json
import pathlib
import struct

TRIGGER_TOOLS, TRIGGER_ANSWER = "<|assistant|>", "<|answer|>"
SPECIAL = ["<|endoftext|>", "<|system|>", "<|user|>", TRIGGER_TOOLS, TRIGGER_ANSWER, "<|observation|>"]
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
# No token twice: each has one successor.
SCRIPTS = [
    [TRIGGER_TOOLS, "<think>", "I need", " the weather", "</think>", "<tool_call>", "get_", "weather", "<arg_key>", "city",
     "</arg_key>", "<arg_value>", "Par", "is", "</arg_value>", "</tool_call>", "<|observation|>"],
    [TRIGGER_ANSWER, "It is", " sunny", " today", ".", "<|user|>"],
]
TEMPLATE = """{%- if tools -%}<|system|>{{ tools | tojson }}{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}<|observation|>{{ m.content }}
{%- elif m.role == 'assistant' -%}<|assistant|>{{ m.content or '' }}{%- for c in m.tool_calls or [] -%}
<tool_call>{{ c.function.name }}{%- for k, v in c.function.arguments.items() -%}
<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>{%- endfor -%}</tool_call>{%- endfor -%}
{%- else -%}<|{{ m.role }}|>{{ m.content }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{%- if tools and messages[-1].role != 'tool' -%}<|assistant|>{% if enable_thinking %}<think>{% endif %}
{%- else -%}<|answer|>{%- endif -%}
{%- endif -%}
"""


def byte_alphabet():
    """The printable character of each byte in byte-level BPE vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {b: chr(b) for b in plain}, 256
    for b in range(256):
        if b not in table:
            table[b], extra = chr(extra), extra + 1
    return table


def write_scripted_model(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = byte_alphabet()
    spell = lambda text: "".join(alphabet[b] for b in text.encode())
    vocab = {alphabet[b]: b for b in range(256)}
    for script in SCRIPTS:
        for piece in script:
            if piece not in SPECIAL + TAGS and spell(piece) not in vocab:
                vocab[spell(piece)] = len(vocab)
    added = {text: len(vocab) + i for i, text in enumerate(SPECIAL + TAGS)}
    ids = lambda piece: added[piece] if piece in added else vocab[spell(piece)]
    size = len(vocab) + len(added)
    hidden = -(-size // 64) * 64
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": t in SPECIAL} for t, i in added.items()],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": []}}
    end = [added[t] for t in ("<|endoftext|>", "<|user|>", "<|observation|>")]
    config = {
        "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "vocab_size": size, "hidden_size": hidden,
        "intermediate_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
        "qk_head_dim": 32, "v_head_dim": 16, "head_dim": 16, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "attention_bias": False, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "rope_interleave": True,
        "max_position_embeddings": 4096, "index_head_dim": 32, "index_n_heads": 2, "index_topk": 64, "n_routed_experts": 4,
        "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 1.0, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "num_nextn_predict_layers": 0, "tie_word_embeddings": False, "eos_token_id": end}
    embedding = {(i, i): 1.0 for i in range(size)}
    head = {}
    for script in SCRIPTS:
        for this, following in zip(script, script[1:]):
            head[ids(following), ids(this)] = 1.0
    tensors = {"model.embed_tokens.weight": ((size, hidden), embedding), "lm_head.weight": ((size, hidden), head),
               "model.norm.weight": ((hidden,), 1.0)}
    mlp = lambda name, width: {f"{name}.gate_proj.weight": ((width, hidden), 0.0), f"{name}.up_proj.weight": ((width, hidden), 0.0),
                               f"{name}.down_proj.weight": ((hidden, width), 0.0)}
    for layer in (0, 1):
        p = f"model.layers.{layer}"
        a = p + ".self_attn"
        tensors |= {
            p + ".input_layernorm.weight": ((hidden,), 1.0), p + ".post_attention_layernorm.weight": ((hidden,), 1.0),
            a + ".q_a_proj.weight": ((32, hidden), 0.0), a + ".q_a_layernorm.weight": ((32,), 1.0),
            a + ".q_b_proj.weight": ((64, 32), 0.0), a + ".kv_a_proj_with_mqa.weight": ((48, hidden), 0.0),
            a + ".kv_a_layernorm.weight": ((32,), 1.0), a + ".kv_b_proj.weight": ((64, 32), 0.0),
            a + ".o_proj.weight": ((hidden, 32), 0.0), a + ".indexer.k_norm.weight": ((32,), 1.0),
            a + ".indexer.k_norm.bias": ((32,), 0.0), a + ".indexer.weights_proj.weight": ((2, hidden), 0.0),
            a + ".indexer.wk.weight": ((32, hidden), 0.0), a + ".indexer.wq_b.weight": ((64, 32), 0.0)}
    tensors |= mlp("model.layers.0.mlp", 64)
    m = "model.layers.1.mlp"
    tensors |= mlp(m + ".shared_experts", 32) | {m + ".gate.weight": ((4, hidden), 0.0),
                                                 m + ".gate.e_score_correction_bias": ((4,), 0.0)}
    for e in range(4):
        tensors |= mlp(f"{m}.experts.{e}", 32)
    header, data = {}, bytearray()
    for name, (shape, values) in tensors.items():
        start, count = len(data), 1
        for n in shape:
            count *= n
        if isinstance(values, dict):
            block = bytearray(4 * count)
            for (r, c), v in values.items():
                struct.pack_into("<f", block, 4 * (r * shape[1] + c), v)
        else:
            block = struct.pack("<f", values) * count
        data += block
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end, "do_sample": False}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
