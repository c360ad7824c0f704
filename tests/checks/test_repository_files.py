"""Files at the top that other programs read: they parse, and say the same version."""

import os
import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_the_citation_has_the_projects_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    version = re.search(r"project\(scoremod VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]
    assert citation["version"] == version and citation["license"] == "Apache-2.0"


def test_hooks_run_programs_that_are_there():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    programs = {word for hook in hooks for word in hook["entry"].split() if word.startswith("tools/")}
    assert len(programs) == 3 and all((ROOT / program).is_file() for program in programs)


def test_templates_have_a_name_and_what_they_are_for():
    templates = list((ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"))
    assert len(templates) == 2
    for template in templates:
        head = yaml.safe_load(template.read_text(encoding="utf-8").split("---")[1])
        assert set(head) == {"name", "about"}


def workflow(name):
    return yaml.safe_load((ROOT / ".github/workflows" / name).read_text(encoding="utf-8"))


def commands_of(name):
    return [step["run"] for job in workflow(name)["jobs"].values() for step in job["steps"] if "run" in step]


def test_workflows_run_what_is_there():
    known = re.findall(r"^  (\w+) {2,}|^  (\w+) \[", (ROOT / "dev").read_text(encoding="utf-8"), re.MULTILINE)
    known = {name for pair in known for name in pair if name}
    asked = {command.split()[1] for name in ("ci.yml", "release.yml", "newest.yml") for command in commands_of(name) if command.startswith("./dev ")}
    assert asked == {"release", "docs", "newest"} and asked <= known
    assert ".ci/run" in commands_of("ci.yml") and (ROOT / ".ci/run").is_file()


def test_a_release_is_refused_for_a_tag_of_another_version():
    (command,) = [each for each in commands_of("release.yml") if "GITHUB_REF_NAME#v" in each and "grep" in each]
    version = re.search(r"project\(scoremod VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]
    for tag, code in ((f"v{version}", 0), ("v9.9.9", 1), (f"v{version}1", 1)):
        done = subprocess.run(["sh", "-c", command], cwd=ROOT, env={**os.environ, "GITHUB_REF_NAME": tag}, check=False)
        assert done.returncode == code, tag


def test_nothing_is_released_without_a_tag():
    jobs = workflow("release.yml")["jobs"]
    assert jobs["draft"]["if"] == "github.ref_type == 'tag'" and "--draft" in jobs["draft"]["steps"][-1]["run"]
    assert jobs["build"]["steps"][-1]["with"]["path"].split() == ["build/release-files", "build/site"]
