"""The tables of docs/internals/tested.md and the pages of planted faults.

Records of tools/checks: branches that tests take (coverage.py), mutants that they find (mutants.py), runs under sanitizers (random_share.py), and tests
that plant faults (planted_faults.py).
"""

import itertools


def share(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else "-"


def coverage(report):
    """For each folder how many lines and branches are taken, and how many branches have a reason."""
    lines = ["| folder | lines | taken | branches | taken | with a reason |", "| --- | --- | --- | --- | --- | --- |"]
    for name, of in report["folders"].items():
        taken, branches = share(of["lines_taken"], of["lines"]), share(of["branches_taken"], of["branches"])
        lines.append(f"| `src/{name}` | {of['lines']} | {taken} | {of['branches']} | {branches} | {of['branches_listed']} |")
    return lines


def mutants(report):
    """For each run its seed, how many of its mutants were found and survived, and what became of the survivors."""
    kinds = ("found by", "equal", "a choice", "undefined", "open")
    lines = ["| commit | seed | folders | mutants | found at once | survived | " + " | ".join(kinds) + " |", "| --- " * (6 + len(kinds)) + "|"]
    for run in report:
        verdicts = [each["verdict"] for each in run["survived"]]
        counts = [sum(verdict.startswith(kind) for verdict in verdicts) for kind in kinds]
        if sum(counts) != len(verdicts):
            raise ValueError(f"mutants: expected a verdict that begins with one of {', '.join(kinds)} for each survivor, found {verdicts}")
        folders = ", ".join(f"`src/{name}`" for name in run["folders"])
        cells = [run["commit"], run["seed"], folders, run["found"] + len(verdicts), run["found"], len(verdicts), *counts]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def sanitizers(runs):
    """For each run how many of the programs' tests ran, in which time, what failed and how many tests had a report."""
    if not runs:
        return ["No run is recorded yet."]
    lines = ["| commit | sanitizer | programs | tests | of | skipped | seconds | failed | with a report | machine |", "| --- " * 10 + "|"]
    for run in runs:
        programs = ", ".join(f"`{name}`" for name in run["programs"])
        counts = (run["tests"], run["of"], run["skipped"], round(run["seconds"]), len(run["failed"]), len(run["findings"]))
        lines.append(f"| {run['commit']} | {run['sanitizer']} | {programs} | {' | '.join(map(str, counts))} | {run['machine']} |")
    return lines


def by_suites(controls):
    """The names of tests, those of GoogleTest after their suites."""
    names = [control["test"].partition("::")[2].rpartition(".") for control in controls]
    suites = {suite: [f"`{name}`" for other, _, name in names if other == suite] for suite, _, _ in names}
    return "; ".join((f"`{suite}`: " if suite else "") + ", ".join(of) for suite, of in suites.items())


def planted(controls, is_shown):
    """For each file of tests those that plant a fault, and how many faults have a name there. is_shown: a function of the file's path."""
    lines = ["| file | tests that plant faults | named |", "| --- | --- | --- |"]
    for file, of in itertools.groupby(controls, lambda control: control["test"].partition("::")[0]):
        if is_shown(file):
            of = list(of)
            lines.append(
                f"| `{file.removeprefix('tests/').removesuffix('_test.cpp')}` | {by_suites(of)} | {sum(len(control['planted']) for control in of) or '-'} |"
            )
    return lines


def planted_in_kernels(controls):
    return planted(controls, lambda file: file.startswith("tests/unit/backend/"))


def planted_in_library(controls):
    return planted(controls, lambda file: file.endswith(".cpp") and not file.startswith("tests/unit/backend/"))


def planted_in_python(controls):
    return [line.rpartition(" | ")[0] + " |" for line in planted(controls, lambda file: file.endswith(".py"))]
