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
    """For each run its seed, and how many of its mutants were found, and how many survived."""
    lines = ["| commit | seed | folders | mutants | found | survived | of these equal for every input |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for run in report:
        survived, folders = run["survived"], ", ".join(run["folders"])
        equal = sum(each["verdict"].startswith("equal") for each in survived)
        lines.append(f"| {run['commit']} | {run['seed']} | {folders} | {run['found'] + len(survived)} | {run['found']} | {len(survived)} | {equal} |")
    return lines
