"""Every function that a public C++ header declares and does not define is exported, or a user's program would not link."""

import re
from pathlib import Path

import pytest

HEADERS = sorted((Path(__file__).resolve().parents[2] / "include" / "scoremod").glob("*.hpp"))
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^\s*#[^\n]*", re.DOTALL | re.MULTILINE)
SCOPE = re.compile(r"\b(namespace|class|struct|union)\b")
FUNCTION = re.compile(r"(?P<name>operator\S+|~?\w+)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)\s*(?:const)?\s*(?:noexcept)?$")
NO_FUNCTION = re.compile(r"\b(using|typedef|static_assert|friend|return|inline|constexpr)\b|=\s*(delete|default|0)$")


def declarations(text):
    """(enclosing scopes' heads, statement) for each statement outside of function bodies."""
    scopes, pending, nested = [], "", 0
    for char in text:
        if nested or (char == "{" and not SCOPE.search(pending)):
            nested += {"{": 1, "}": -1}.get(char, 0)
            pending = "" if nested == 0 and ")" in pending else pending
        elif char == "{":
            scopes.append(pending.strip())
            pending = ""
        elif char == "}":
            scopes.pop()
            pending = ""
        elif char == ";":
            yield list(scopes), re.sub(r"\b(public|private|protected):", "", pending).strip()
            pending = ""
        else:
            pending += char


def not_exported(text):
    text = COMMENT.sub("", text)
    for scopes, statement in declarations(text):
        match = FUNCTION.search(statement)
        if not match or "=" in statement[: match.start()] or NO_FUNCTION.search(statement):
            continue
        if any("SCOREMOD_API" in part for part in [statement, *scopes]):
            continue
        # A member or a friend that the same header defines further down.
        if not re.search(rf"inline [^;{{]*\b(?:\w+::)?{re.escape(match['name'])}\s*\(", text):
            yield statement


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
def test_what_is_declared_is_exported(header):
    assert list(not_exported(header.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "text, missing",
    [
        ("namespace a { struct S { int f() const; }; }", ["int f() const"]),
        ("namespace a { struct S { SCOREMOD_API int f() const; int x = g(); }; }", []),
        ("namespace a { class SCOREMOD_API S { public: S(); int f(int (*)(int)) const; }; }", []),
        ("namespace a { int f(int x = 0); }", ["int f(int x = 0)"]),
        ("namespace a { inline int f() { return g(1); } int g(int); }", ["int g(int)"]),
        ("struct S { S& operator+=(S); }; inline S& S::operator+=(S o) { return o; }", []),
    ],
)
def test_it_finds_what_is_missing(text, missing):
    assert list(not_exported(text)) == missing
