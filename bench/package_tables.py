"""The table of docs/internals/packages.md: Python packages that others need (tools/release/list_packages.py)."""


def packages(environments):
    """For each environment and licence the packages that only other packages ask for."""
    lines = ["| environment | licence | packages |", "| --- | --- | --- |"]
    for name, of in environments.items():
        needed = [each for each in of if not each["direct"]]
        for licence in sorted({each["licence"] for each in needed}):
            listed = ", ".join(f"{each['name']} {each['version']}" for each in needed if each["licence"] == licence)
            lines.append(f"| `{name}` | {licence} | {listed} |")
    return lines
