"""The tables of docs/internals/tested.md: which branches tests take (tools/checks/coverage.py), and which mutants they find (tools/checks/mutants.py)."""


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
