"""The check of words finds each kind of hit, nothing in plain text, and lets the baseline only fall."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))
import words  # noqa: E402

LONG = " ".join(["word"] * 31)
FITS = " ".join(["word"] * 30)
OPENINGS = ["Of a tile.", "What a tile has.", "Those of a tile.", "Likewise.", "The same of a tile.", "Where a tile is."]
FOUND = [
    *(("src/a.cpp", f"int x;\n// {opening}\nint y;\n", 2, "opening") for opening in OPENINGS),
    ("src/a.hpp", "int x;  ///< Of a tile.\n", 1, "opening"),
    ("src/a.cuh", "/*{hole}*/ int x; /*{}*/\n/// Of a tile.\n", 2, "opening"),
    ("include/a.h", "/* A tile.\n *\n * Of a tile. */\n", 3, "opening"),
    ("src/a.cpp", "int x = 1'000'000; const char* y = \"//\";  // Of a tile.\n", 1, "opening"),
    ("src/a.cpp", f"// First. Here: {LONG},\n// and more.\n", 1, "long"),
    ("src/a.cpp", f"// First.\n// Second. {LONG}.\n", 2, "long"),
    ("python/a.py", "x = 1  # Of a tile.\n", 1, "opening"),
    ("python/a.py", '"""A module.\n\nWhat it has.\n"""\n', 3, "opening"),
    ("python/a.py", f'def f():\n    """{LONG}."""\n', 2, "long"),
    ("src/a.cuh", "give_registers<40>();\n", 1, "homemade"),
    ("src/a.cpp", "struct HopperFewQueries;\n", 1, "homemade"),
    ("src/a.cpp", "constexpr bool kFewQueries = true;\n", 1, "homemade"),
    ("src/a.cpp", 'fail("Tensors of eight bits have no bias");\n', 1, "homemade"),
    ("src/a.cpp", "  // one block of\n  // threads has it\n", 1, "homemade"),
    ("python/a.py", "# one head of\n# keys\n", 1, "homemade"),
    ("docs/a.md", "A page.\n\nIt has the heads of\nkeys.\n", 3, "homemade"),
]
PLAIN = [
    ("src/a.cpp", "// A tile of what is needed. Where it lies, nobody knows.\n// Of course this goes on.\n"),
    ("src/a.cpp", f"// {FITS}. {FITS}.\n"),
    ("src/a.cpp", f"// N. Brisebarre, J.-M. Muller. {FITS}.\n"),
    ("src/a.cpp", f"// - {FITS}\n// - {FITS}\n\n// {FITS}\n"),
    ("src/a.cpp", "f(/*Of=*/1); /*{What}*/ int x; /*{}*/\n"),
    ("src/a.cpp", 'const char* x = "// Of a tile"; const char* y = R"(\n// Of a tile\n)";\n'),
    ("src/a.cpp", f"int x;  // {FITS}\nint y;  // {FITS}\n"),
    ("src/a.cpp", "int few, queries, sfew_queries, few_queriest;\n"),
    ("python/a.py", f'"""A program.\n\nusage: {LONG}\n    {LONG}\n\n    {LONG}\n"""\n'),
    ("python/a.py", 'x = "# Of a tile"\n'),
    ("docs/a.md", f"Of a tile, what it has. {LONG}.\n"),
]


@pytest.mark.parametrize(("name", "text", "line", "kind"), FOUND)
def test_finds(name, text, line, kind):
    assert [(at, own) for at, own, _ in words.hits_in(text, name)] == [(line, kind)]


@pytest.mark.parametrize(("name", "text"), PLAIN)
def test_lets_pass(name, text):
    assert words.hits_in(text, name) == []


@pytest.mark.parametrize(("phrase", "term"), [entry for entry in words.HOMEMADE if "(" not in entry[0]])
def test_a_phrase_is_found_in_prose_and_in_names(phrase, term):
    for plain in phrase.replace("?", "").split("|"):
        camel = "".join(word.capitalize() for word in plain.split())
        for text in (f"the {plain} of it", plain.replace(" ", "_"), f"k{camel}"):
            assert [found[2] for found in words.homemade_in(text)] == [term], text


@pytest.fixture
def tree(tmp_path):
    """A tree with two hits in one file, and a function that runs the check on it."""
    (tmp_path / "src").mkdir()
    (tmp_path / "tools/checks").mkdir(parents=True)
    source = tmp_path / "src/a.cpp"
    source.write_text("// Of a tile.\nint x;\n// Of another.\n")
    return source, lambda *arguments: words.main([*arguments, str(tmp_path)])


def test_the_baseline_only_falls(tree, capsys):
    source, run = tree
    assert run() == 1
    said = capsys.readouterr().out
    assert "src/a.cpp: 2 hits of kind opening, and the baseline allows 0" in said
    assert 'src/a.cpp:3: a comment begins with "Of": begin it with its subject' in said
    assert run("--update") == 0
    assert run() == 0

    source.write_text("// Of a tile.\n")
    capsys.readouterr()
    assert run() == 1
    assert "src/a.cpp: 1 hits of kind opening, and the baseline has 2: run words.py --update" in capsys.readouterr().out
    assert run("--update") == 0

    source.write_text("// Of a tile.\nint x;\n// Of another.\n")
    capsys.readouterr()
    assert run("--update") == 1
    assert "opening: 2 hits, and the baseline has 1" in capsys.readouterr().out
    assert run() == 1


def test_hits_may_move_to_another_file(tree):
    source, run = tree
    assert run("--update") == 0
    source.rename(source.with_name("b.cpp"))
    assert run() == 1
    assert run("--update") == 0
    assert json.loads((source.parents[1] / words.BASELINE).read_text()) == {"src/b.cpp": {"opening": 2}}
    source.with_name("b.cpp").unlink()
    assert run("--update") == 0
    assert json.loads((source.parents[1] / words.BASELINE).read_text()) == {}


def test_all_hits_are_shown(tree, capsys):
    _, run = tree
    assert run("--all") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_files_are_refused(tree, capsys):
    source, _ = tree
    for arguments in ([str(source)], ["src", str(source)]):
        assert words.main(arguments) == 2
        assert "expected at most one folder" in capsys.readouterr().err
