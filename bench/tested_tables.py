"""The tables of docs/internals/tested.md and the pages of planted faults.

Records of tools/checks: branches that tests take (coverage.py), mutants that they find (mutants.py), runs under sanitizers (random_share.py), and tests
that plant faults (planted_faults.py). Others: what became of fuzzers (tools/fuzz/run_all.py), of random problems (tools/device/sdpa_problems.py) and of many
threads (tools/device/threads.py).
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


def fuzzers(report):
    """For each fuzzer how long it ran in all, how many inputs it ran, how far it came and what it found."""
    lines = ["| fuzzer | processes | minutes | inputs | edges | findings |", "| --- " * 6 + "|"]
    for name in sorted({row["fuzzer"] for row in report}):
        rows = [row for row in report if row["fuzzer"] == name]
        processes, seconds, inputs = sum(len(row["seeds"]) for row in rows), sum(row["seconds"] for row in rows), sum(row["inputs"] for row in rows)
        edges, findings = max(row["coverage"] for row in rows), sum(len(row["findings"]) for row in rows)
        lines.append(f"| `{name}` | {processes} | {seconds / 60:.0f} | {inputs} | {edges} | {findings} |")
    return lines


def sdpa_problems(report):
    """For each run its seed and machine, and how many problems there were of each outcome."""
    lines = ["| machine | commit | seed | longest | problems | right | refused | wrong | crashed | no memory | largest error |", "| --- " * 11 + "|"]
    for row in report:
        refused = "; ".join(f"{count} for {ids or 'the call'}" for ids, count in row["refused"].items()) or 0
        cells = [row["machine"], row["commit"], row["seed"], row["longest"], row["problems"], row["right"], refused]
        cells += [*(len(row[kind]) for kind in ("wrong", "crashed", "no_memory")), row["largest_ratio"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def threads(report):
    """For each run how often the threads did each thing, and what was wrong or grew."""
    lines = ["| machine | commit | seed | beside | threads | seconds | actions | wrong | errors | grew |", "| --- " * 10 + "|"]
    for row in report:
        actions = ", ".join(f"{count} {action}" for action, count in row["actions"].items())
        cells = [row["machine"], row["commit"], row["seed"], row["beside"], row["threads"], f"{row['seconds']:.0f}", actions]
        lines.append("| " + " | ".join(map(str, [*cells, row["wrong_count"], len(row["errors"]), ", ".join(row["grew"]) or "nothing"])) + " |")
    return lines
