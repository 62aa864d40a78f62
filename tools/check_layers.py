#!/usr/bin/env python3
"""Rejects an #include that points up (or sideways) in the layering of docs/ARCHITECTURE.md.

A folder of src/ may include itself and the folders listed for it below. Third-party headers are fenced too:
each may be included only where the table says, so that a dependency stays replaceable.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALLOWED = {
    "base": set(),
    "quant": {"base"},
    "ops": {"base", "quant"},
    "routing": {"base", "quant", "ops"},
    "weights": {"base", "quant"},
    "layers": {"base", "quant", "ops", "routing", "weights"},
    "models": {"base", "quant", "ops", "routing", "weights", "layers"},
    "tokenizer": {"base", "quant", "weights"},
    "engine": {"base", "quant", "ops", "routing", "weights", "layers", "models", "tokenizer"},
    "server": {"base", "quant", "ops", "routing", "weights", "layers", "models", "tokenizer", "engine"},
    "lab": {"base", "quant", "ops", "routing", "weights", "layers", "models", "tokenizer", "engine", "server"},
}
ALLOWED["cli"] = set(ALLOWED)
FENCES = {
    r"hwy/": {"quant", "ops", "routing"},
    r"immintrin\.h|arm_neon\.h": {"quant", "ops", "routing", "base"},
    r"CLI/": {"cli"},
    r"boost/": {"server", "lab"},
    r"prometheus/": {"server"},
    r"pcre2\.h": {"tokenizer"},
    r"utf8proc\.h": {"tokenizer"},
    r"simdjson\.h": {"weights", "tokenizer"},  # files of tens of megabytes
    r"spdlog/": {"base"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.M)


def problems():
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in {".h", ".cc"}:
            continue
        folder = path.relative_to(ROOT / "src").parts[0]
        for include in INCLUDE.findall(path.read_text()):
            top = include.split("/")[0]
            where = f"{path.relative_to(ROOT)}: #include \"{include}\""
            if top in ALLOWED and "/" in include and top != folder and top not in ALLOWED[folder]:
                yield f"{where} points up: {folder}/ may include {sorted(ALLOWED[folder])}"
            for pattern, folders in FENCES.items():
                if re.match(pattern, include) and folder not in folders:
                    yield f"{where} is fenced: allowed only in {sorted(folders)}"


def main():
    found = list(problems())
    print("\n".join(found) if found else "layers: every include points down")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
