"""Counts comments that are hard to read, and homemade words that the field has a term for.

usage: words.py [--update | --all] [FOLDER]

It finds comments that begin with a word of OPENINGS, sentences of comments over MOST_WORDS words, and phrases of HOMEMADE. The phrases
are sought in comments, strings, identifiers and pages; `few_queries` and `kFewQueries` are "few queries" too. Each hit is printed with
its place. tools/checks/words_baseline.json says how many hits each file may have: exit code 1 where a file has more, or fewer.
--update lowers the baseline to what is found, and refuses if the total of a kind has risen. --all prints every hit.
"""

import ast
import bisect
import io
import json
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASELINE = "tools/checks/words_baseline.json"
FOLDERS = ("include", "src", "bindings", "bench", "tools", "python", "tests", "examples", "fuzz", "docs", "cmake")
CPP = {".cpp", ".hpp", ".cuh", ".cu", ".h", ".c"}
ENDINGS = CPP | {".py", ".md"}
# The check and its tests name what they find. Results and older headers are records.
SKIPPED = re.compile(r"tools/checks/words\.py|tests/checks/test_words\.py|bench/results/.*|.*/(?:__pycache__|node_modules)/.*")

OPENINGS = re.compile(r"(?:Of|What|Those|Likewise|The same|Where)\b")
MOST_WORDS = 30
# A homemade phrase and the field's term for it. A phrase is a regular expression, in which a blank parts two words.
HOMEMADE = (
    (r"cop(?:y|ies) of boxes|boxes copied|copy box", "TMA load (cp.async.bulk.tensor)"),
    (r"(?:begin|end|ask|ask for) products", "issue or commit WGMMA (wgmma.mma_async)"),
    (r"blocks? of threads", "CTA"),
    (r"(?:give|take) registers", "setmaxnreg.dec or setmaxnreg.inc"),
    (r"(?:await|pass|begin) turns?", "scheduler barrier of warpgroups (named barrier)"),
    (r"groups? meets|producers meet|everyone meets", "named barrier sync (bar.sync)"),
    (r"publish writes", "fence.proxy.async"),
    (r"(?:tensors?|numbers?|floats?|dtypes?|elements?) of eight bits|eight bit (?:tensors?|numbers?|floats?|dtypes?)", "FP8"),
    (r"few queries", "decode, split-KV"),
    (r"packed heads", "pack-GQA"),
    (r"heads? of keys|key heads?", "KV head"),
    (r"heads? of queries", "query head"),
    (r"blocks of (?:a|the) pool|pool's blocks", "pages of a paged KV cache"),
    (r"own deltas", "recomputed delta"),
    (r"spilled", "register spills"),
    (r"process(?:es)? beside", "helper process"),
    (r"at hand", "ready"),
    (r"tables? of differences|difference tables?", "relative-position table"),
    (r"copied operands?", "TMA-loaded bias"),
    (r"persistent blocks?", "persistent kernel"),
    (r"tile states?", "block mask"),
    (r"soften|softens|softened", "online softmax step"),
    (r"raises? (?:the |a )?references?|raised (?:the |a )?references?|references? (?:is to be )?raised", "running row max, rescale"),
    (r"split keys", "separate dK and dV kernels"),
    (r"(?:captured|operands?'?) (?:tensors?'? )?gains", "operand gradients"),
    (r"calls? binds?", "runtime arguments"),
    (r"keeps? registers in memory", "register spills"),
)
# Between two words of a phrase: blanks, the underscore or the hump of a name, a hyphen, or a line's end with a comment's mark.
_GAP = r"(?:[ \t]+|[_-]?|[ \t]*\n[ \t]*(?://[/!]?<?|\#)?[ \t]*)"
_BEGIN, _END = r"(?:(?<![A-Za-z0-9])|(?-i:(?=[A-Z])))", r"(?-i:(?![a-z0-9]))"
# A phrase in its letters alone is found quickly, and few files have it.
_PHRASES = [
    (
        re.compile(re.sub(r"[ ']", "", phrase)),
        re.compile(f"{_BEGIN}(?:{phrase.replace(' ', _GAP)}){_END}", re.IGNORECASE),
        term,
    )
    for phrase, term in HOMEMADE
]

_CPP_TOKEN = re.compile(
    r'(?P<raw>R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)")|(?P<string>"(?:\\.|[^"\\\n])*")|(?P<char>(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\')'
    r"|(?P<line>//[^\n]*)|(?P<block>/\*.*?\*/)",
    re.DOTALL,
)
# Initials and abbreviations end no sentence.
_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bcf)(?<!\bvs)(?<!\b[A-Z])[.!?][\"')`]*\s+")


class Block:
    """A comment or a paragraph of one: its text in one line, and the line that each part came from."""

    def __init__(self, lines):
        self.text, self.starts, self.numbers = "", [], []
        for number, line in lines:
            self.starts.append(len(self.text))
            self.numbers.append(number)
            self.text += line.strip() + " "

    def line_at(self, place):
        return self.numbers[bisect.bisect_right(self.starts, place) - 1]


def paragraphs(lines):
    """Blocks of (number, text) lines, parted at empty lines, at items of lists and at rows of tables."""
    part = []
    for number, text in lines:
        words = text.strip()
        if not words or re.match(r"[-*|]|\d+\. ", words):
            if part:
                yield Block(part)
            part = []
        if words:
            part.append((number, re.sub(r"^(?:[-*]|\d+\.) ", "", words)))
    if part:
        yield Block(part)


def groups_of(comments, text):
    """Runs of (line, column, comment) on lines after each other. A comment behind code is a run of its own."""
    lines = text.split("\n")
    run, before = [], None
    for number, column, comment in comments:
        stands_alone = not lines[number - 1][:column].strip()
        if run and (before != (number - 1, column) or not stands_alone):
            yield run
            run = []
        run.append((number, comment))
        before = (number, column) if stands_alone else None
    if run:
        yield run


def cpp_blocks(text):
    """Blocks of // comments and of /* */ comments. One without a blank is none: /*{hole}*/ of a generated text, /*name=*/."""
    line_comments, found_blocks = [], []
    for found in _CPP_TOKEN.finditer(text):
        number = text.count("\n", 0, found.start()) + 1
        if found["line"]:
            column = found.start() - (text.rfind("\n", 0, found.start()) + 1)
            line_comments.append((number, column, re.sub(r"^//[/!]?<?", "", found[0])))
        elif found["block"] and found[0][2] in " \n*":
            lines = [re.sub(r"^[ \t]*\*+", "", line) for line in ("*" + found[0][2:-2]).split("\n")]
            found_blocks += paragraphs(enumerate(lines, number))
    return [block for run in groups_of(line_comments, text) for block in paragraphs(run)] + found_blocks


def docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node, clean=False):
            yield node.body[0].value


def docstring_lines(literal):
    """Lines of prose: an indented example, a doctest and a `usage:` paragraph are none."""
    lines = list(enumerate(literal.value.split("\n"), literal.lineno))
    indents = [len(text) - len(text.lstrip()) for _, text in lines[1:] if text.strip()]
    margin, usage = min(indents, default=0), False
    for at, (number, text) in enumerate(lines):
        usage = (usage or text.strip().startswith("usage:")) and bool(text.strip())
        shown = at > 0 and text.startswith(" " * (margin + 4)) or text.lstrip().startswith((">>>", "..."))
        yield number, "" if usage or shown else text


def python_blocks(text):
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [(token.start[0], token.start[1], token.string.lstrip("#")) for token in tokens if token.type == tokenize.COMMENT]
    found = [block for run in groups_of(comments, text) for block in paragraphs(run)]
    for literal in docstrings(ast.parse(text)):
        found += paragraphs(docstring_lines(literal))
    return found


def blocks_of(text, ending):
    if ending == ".py":
        return python_blocks(text)
    return cpp_blocks(text) if ending in CPP else []


def sentences(block):
    """(place, sentence) of a block."""
    start = 0
    for end in [*(found.end() for found in _SENTENCE_END.finditer(block.text)), len(block.text)]:
        yield start, block.text[start:end]
        start = end


def words_of(sentence):
    return [word for word in sentence.split() if re.search(r"[A-Za-z0-9]", word)]


def homemade_in(text):
    """(line, phrase, term) of each homemade phrase."""
    letters = re.sub(r"[^a-z0-9]+", "", text.lower())
    return [
        (text.count("\n", 0, found.start()) + 1, " ".join(found[0].split()), term)
        for quick, pattern, term in _PHRASES
        if quick.search(letters)
        for found in pattern.finditer(text)
    ]


def hits_in(text, name):
    """(line, kind, message) of each hit in the text of the file `name`, in order."""
    ending = Path(name).suffix
    found = []
    for block in blocks_of(text, ending):
        if opening := OPENINGS.match(block.text):
            found.append((block.line_at(0), "opening", f'a comment begins with "{opening[0]}": begin it with its subject'))
        for place, sentence in sentences(block):
            if (count := len(words_of(sentence))) > MOST_WORDS:
                found.append((block.line_at(place), "long", f"a sentence has {count} words: {MOST_WORDS} at most, 25 are better"))
    found += [(line, "homemade", f'"{phrase}": the field says {term}') for line, phrase, term in homemade_in(text)]
    return sorted(found)


def files_of(root):
    """The sources and pages of the library, with their names."""
    paths = [*root.glob("*.md"), *(path for folder in FOLDERS for path in (root / folder).rglob("*"))]
    named = sorted((path.relative_to(root).as_posix(), path) for path in paths if path.suffix in ENDINGS)
    # The changelog tells what was called how.
    return [(name, path) for name, path in named if not SKIPPED.fullmatch(name) and name != "CHANGELOG.md"]


def hits_of(root):
    found = {}
    for name, path in files_of(root):
        if hits := hits_in(path.read_text(encoding="utf-8"), name):
            found[name] = hits
    return found


def counts_of(hits):
    return {name: dict(sorted(Counter(kind for _, kind, _ in of_file).items())) for name, of_file in sorted(hits.items())}


def differences(counts, baseline):
    """(file, kind, found, allowed) where a file has not what the baseline says."""
    for name in sorted(counts.keys() | baseline.keys()):
        own, allowed = counts.get(name, {}), baseline.get(name, {})
        for kind in sorted(own.keys() | allowed.keys()):
            if own.get(kind, 0) != allowed.get(kind, 0):
                yield name, kind, own.get(kind, 0), allowed.get(kind, 0)


def totals(counts):
    return sum((Counter(of_file) for of_file in counts.values()), Counter())


def update(path, counts, baseline):
    """Writes the baseline. One that does not exist yet may hold anything."""
    if path.exists():
        risen = {kind: count for kind, count in totals(counts).items() if count > totals(baseline)[kind]}
        for kind, count in sorted(risen.items()):
            print(f"{kind}: {count} hits, and the baseline has {totals(baseline)[kind]}: mend the new ones, it never rises")
        if risen:
            return 1
    lines = [f"  {json.dumps(name)}: {json.dumps(of_file)}" for name, of_file in counts.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n" if lines else "{}\n", encoding="utf-8")
    print(f"baseline: {dict(sorted(totals(counts).items()))}")
    return 0


def report(hits, name, kind=None):
    for line, own_kind, message in hits[name]:
        if kind in (None, own_kind):
            print(f"{name}:{line}: {message}")


def check(hits, counts, baseline):
    status = 0
    for name, kind, found, allowed in differences(counts, baseline):
        status = 1
        if found < allowed:
            print(f"{name}: {found} hits of kind {kind}, and the baseline has {allowed}: run words.py --update")
        else:
            print(f"{name}: {found} hits of kind {kind}, and the baseline allows {allowed}; among these are the new ones:")
            report(hits, name, kind)
    return status


def main(arguments):
    options = {"--update", "--all"}
    folders = [argument for argument in arguments if argument not in options]
    root = Path(folders[0]).resolve() if folders else ROOT
    if len(folders) > 1 or not root.is_dir():
        print(f"words.py: expected at most one folder, that of a whole repository, found {' '.join(folders)}; leave it out to check this one", file=sys.stderr)
        return 2
    path = root / BASELINE
    baseline = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    hits = hits_of(root)
    counts = counts_of(hits)
    if "--update" in arguments:
        return update(path, counts, baseline)
    if "--all" in arguments:
        for name in hits:
            report(hits, name)
        return 0
    return check(hits, counts, baseline)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
