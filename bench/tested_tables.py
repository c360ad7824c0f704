"""The table of docs/internals/tested.md: which branches tests take (tools/checks/coverage.py)."""


def share(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else "-"


def coverage(report):
    """For each folder how many lines and branches are taken, and how many branches have a reason."""
    lines = ["| folder | lines | taken | branches | taken | with a reason |", "| --- | --- | --- | --- | --- | --- |"]
    for name, of in report["folders"].items():
        taken, branches = share(of["lines_taken"], of["lines"]), share(of["branches_taken"], of["branches"])
        lines.append(f"| `src/{name}` | {of['lines']} | {taken} | {of['branches']} | {branches} | {of['branches_listed']} |")
    return lines
