#!/usr/bin/env python3
"""Checks what the documents say against the tree: functions of docs/TRACE.md, files named anywhere, README's length."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def problems():
    for line in (ROOT / "docs/TRACE.md").read_text().splitlines():
        for file, function in re.findall(r"`([\w/]+\.cc):(\w+)`", line):
            path = ROOT / "src" / file
            if not path.exists() or not re.search(rf"\b{function}\(", path.read_text()):
                yield f"docs/TRACE.md: {file} has no function {function}"
    for document in DOCUMENTS:
        text = document.read_text()
        for path in re.findall(r"`((?:src|docs|tools|tests|models|cmake)/[\w./-]+)`", text):
            if "NAME" not in path and not (ROOT / path).exists():
                yield f"{document.relative_to(ROOT)}: {path} does not exist"
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            if not (document.parent / link).exists():
                yield f"{document.relative_to(ROOT)}: link to {link}, which does not exist"
    lines = len((ROOT / "README.md").read_text().splitlines())
    if lines > 150:
        yield f"README.md has {lines} lines, wanted at most 150"


def main():
    found = list(problems())
    print("\n".join(found) if found else f"docs: {len(DOCUMENTS)} documents agree with the tree")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
