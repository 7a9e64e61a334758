"""All error messages of the project, read as one list: one vocabulary, one shape."""

from __future__ import annotations

import ast
import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
# what is said otherwise everywhere else, and how
OTHERWISE = {
    r"\bcannot read:": "cannot be read: …",
    r": no such file": "there is no such file",
    r"\b[Ii]nvalid\b|\billegal\b": "what is allowed, or what is wrong",
    r"\bfailed to\b|\b[Uu]nable to\b": "cannot …",
    r"\b[Pp]lease\b": "the fix itself",
    r"\b(can|won|don|doesn|isn|aren)'t\b": "cannot, does not, …",
    r"\bunrecogni[sz]ed\b|\bunsupported\b|\bnot supported\b": "unknown …; known: …",
    r"!$": "no exclamation",
    r"\.$": "no full stop: the message is a line of its own",
}


def messages() -> list[tuple[str, str]]:
    """(file:line, text with … for each value) of every exception of the project's own kinds that is raised anywhere."""
    return [
        (f"{path.relative_to(CHECKOUT)}:{node.lineno}", text)
        for folder in ("roofline", "microbench")
        for path in (CHECKOUT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and ast.unparse(node.exc.func).endswith("Error")
        if node.exc.args and (text := _text(node.exc.args[0]))
    ]


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_one_vocabulary() -> None:
    odd = [f"{place}: {text!r}: say {better}" for place, text in messages() for word, better in OTHERWISE.items() if re.search(word, text)]
    assert not odd, "\n".join(odd)


def test_the_list_is_the_whole_list() -> None:
    found = messages()
    assert len(found) > 300
    assert any("there is no such file" in text for _, text in found)
