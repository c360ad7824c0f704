"""./dev builds what a command runs, and no more."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def dev(tmp_path):
    """Runs a copy of ./dev in a folder with a blank in its name, where every package is installed and other programs only say
    how they were called. Returns these lines."""
    folder, programs = tmp_path / "a clone", tmp_path / "programs"
    (folder / ".venv" / "bin").mkdir(parents=True)
    programs.mkdir()
    shutil.copy(ROOT / "dev", folder)
    shutil.copy(ROOT / "requirements.in", folder)
    calls = tmp_path / "calls"
    made_from = subprocess.run([sys.executable, "-c", "import sys; print(sys.version)"], capture_output=True, text=True).stdout
    for requirements in sorted(ROOT.glob("requirements*.txt")):
        shutil.copy(requirements, folder)
        made_from += requirements.read_text()
    (folder / ".venv" / ".made_from").write_text(made_from)
    (programs / "python3").symlink_to(sys.executable)
    scripts = {programs / "dpkg-query": "echo installed", programs / "cmake": f'echo cmake "$@" >>"{calls}"'}
    scripts[folder / ".venv" / "bin" / "python"] = f'echo python "$@" >>"{calls}"'
    bench = folder / "build" / "release" / "bin" / "scoremod_bench"
    scripts[bench] = f'echo bench "$@" >>"{calls}"'
    for path, command in scripts.items():
        write_program(path, command)

    def run(*arguments, status=0, **variables):
        environment = {name: value for name, value in os.environ.items() if name != "CI"}
        environment |= {"PATH": f"{programs}:{os.environ['PATH']}", "JOBS": "3", "HOME": str(tmp_path)} | variables
        done = subprocess.run([folder / "dev", *arguments], env=environment, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr
        run.said = done.stdout
        return calls.read_text().splitlines()

    run.folder, run.programs = folder, programs
    return run


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("command", "target", "program"),
    [("demo", "scoremod", "python examples/minilm/demo.py --x"), ("bench", "scoremod_bench", "bench --x")],
)
def test_only_what_runs_is_built(dev, command, target, program):
    assert dev(command, "--x") == [
        "cmake --preset release",
        f"cmake --build --preset release --parallel 3 --target {target}",
        program,
    ]


def test_a_warning_is_an_error_in_ci_alone(dev):
    assert dev("build", CI="true")[0] == "cmake --preset release -DSCOREMOD_WERROR=ON"


def test_build_takes_targets(dev):
    assert dev("build", "dev", "scoremod", "scoremod_jax")[-1] == "cmake --build --preset dev --parallel 3 --target scoremod scoremod_jax"


def test_build_builds_all(dev):
    assert dev("build")[-1] == "cmake --build --preset release --parallel 3"


def test_modules_of_one_run_have_names_of_their_own():
    """pytest takes a second module of a name for the first."""
    of_torch = {ROOT / "tests" / folder for folder in ("torch", "device/torch", "foreign/torch")}
    modules = [path for path in (ROOT / "tests").rglob("test_*.py") if "__pycache__" not in path.parts]
    for run in ([m for m in modules if m.parent in of_torch], [m for m in modules if m.parent not in of_torch]):
        names = [module.name for module in run]
        assert sorted(names) == sorted(set(names))


@pytest.fixture
def tested(dev):
    """./dev test where the tests of each kind end with a status: tested(pytest=1) -> what was said."""
    (dev.folder / "tests" / "python").mkdir(parents=True)
    (dev.folder / "tests" / "python" / "test_some.py").touch()
    (dev.folder / "tools" / "wheel").mkdir(parents=True)
    (dev.folder / "tools" / "wheel" / "requirements.txt").touch()
    stamp = dev.folder / "build" / "wheel-tools" / ".made_from"
    stamp.parent.mkdir(parents=True)
    stamp.write_text(sys.version)

    def run(ctest=0, pytest=0, torch=0):
        write_program(dev.programs / "ctest", f"echo '100% tests passed by ctest'; exit {ctest}")
        write_program(dev.folder / ".venv/bin/python", f'[ -d "$SCOREMOD_TEST_CACHE" ] && echo 7 passed by pytest; exit {pytest}')
        write_program(dev.programs / "torchs python", f"echo 9 passed by torch; exit {torch}")
        failed = ctest or pytest or torch
        dev("test", status=1 if failed else 0, SCOREMOD_TORCH_PYTHON=str(dev.programs / "torchs python"), SCOREMOD_TEST_CACHE="")
        return dev.said

    return run


@pytest.mark.parametrize("failing", [{}, {"ctest": 8}, {"pytest": 1}, {"torch": 1}, {"ctest": 8, "torch": 2}])
def test_the_status_of_all_tests_counts_and_their_summaries_are_shown(tested, failing):
    said = tested(**failing)
    assert f"FAILED ({' '.join(failing)})" in said if failing else "everything passed" in said
    assert said.index("passed by ctest") < said.index("7 passed by pytest") < said.index("9 passed by torch")


@pytest.mark.parametrize("arguments", [[], ["7"]])
def test_a_soak_runs_all_seeded_tests_on_the_release(dev, arguments):
    calls = dev("soak", *arguments, SCOREMOD_TORCH_PYTHON="/torchs python")
    assert calls[1] == "cmake --build --preset release --parallel 3"
    programs = " ".join(f"build/release/bin/scoremod_{kind}_tests" for kind in ("unit", "property", "conformance"))
    minutes = arguments[0] if arguments else "20"
    assert calls[-1] == f"python tools/checks/soak.py {minutes} --venv .venv/bin/python --torch /torchs python {programs}"


@pytest.fixture
def fuzz(dev):
    """./dev fuzz, where a program stands for each fuzzer: fuzz(arguments, texts) -> the calls. texts: name -> what its program runs in place of saying that
    it is done."""
    torch = dev.folder / "torch python"
    (dev.folder / "fuzz").mkdir()
    shutil.copy(ROOT / "fuzz/requirements.txt", dev.folder / "fuzz")

    def run(arguments, texts, **options):
        done = {name: texts.get(name, f'echo Done {name} "$@"') for name in ("c_structs", "npy", "problem", "program", "record", "python_calls")}
        of_python = done.pop("python_calls")
        for name, text in done.items():
            write_program(dev.folder / f"build/fuzz/bin/fuzz_{name}", text)
        installs = f'mkdir -p build/fuzz-tools; echo pip "$@" >>"{dev.folder.parent / "calls"}"'
        write_program(torch, f'case "$1" in -c) echo 3.11 ;; -m) {installs} ;; *) shift; {of_python} ;; esac')
        return dev("fuzz", *arguments, JOBS="2", SCOREMOD_TORCH_PYTHON=str(torch), **options)

    return run


@pytest.mark.parametrize("failing", ["program", "record", "python_calls", None])
def test_all_fuzzers_run_and_one_that_fails_is_heeded(dev, fuzz, failing):
    names = ["c_structs", "npy", "problem", "program", "record", *["python_calls"] * (platform.machine() == "x86_64")]
    fuzz(["5"], {failing: "exit 1"}, status=1 if failing in names else 0)
    for name in names:
        assert f"Done {name} -max_total_time=5" in dev.said or name == failing


def test_the_fuzzer_of_python_takes_the_library_and_its_packages_once(dev, fuzz):
    calls = fuzz(["5", "python_calls"], {"python_calls": 'echo Done "$PYTHONPATH" "$@"'})
    assert [call for call in calls if call.startswith("cmake --build")] == ["cmake --build --preset release --parallel 2 --target scoremod scoremod_torch"]
    assert [call.startswith("pip -m pip install") and "--require-hashes" in call for call in calls if call.startswith("pip")] == [True]
    assert "Done build/fuzz-tools -max_total_time=5" in dev.said and "build/fuzz/corpus/python_calls fuzz/seeds/python_calls" in dev.said
    assert len([call for call in fuzz(["5", "python_calls"], {}) if call.startswith("pip")]) == 1


def test_as_many_fuzzers_run_at_once_as_jobs(fuzz):
    """The first two wait for each other, and the third finds that both have ended."""
    wait = "touch $0.begun; for i in $(seq 300); do [ -e {}.begun ] && break; sleep 0.1; done; [ -e {}.begun ] || exit 1; touch $0.ended; echo Done"
    other = {"program": "problem", "problem": "program"}
    texts = {name: wait.replace("{}", f"build/fuzz/bin/fuzz_{other[name]}") for name in other}
    ended = " && ".join(f"[ -e build/fuzz/bin/fuzz_{name}.ended ]" for name in other)
    fuzz(["5", "program", "problem", "record"], {**texts, "record": f"{ended} && echo Done"})


@pytest.fixture
def sanitize(dev):
    """./dev sanitize, where a build takes a time: sanitize(sleeps, *arguments) -> the calls, of which random_share.py is one."""
    torch = dev.folder / "torch python"
    write_program(dev.programs / "g++", 'echo "/lib/${1#*=}"')

    def run(sleeps, *arguments, status=0, build_status=0):
        # A dry run looks at the list of sources anew, and says of no build that it is done.
        says = f'case "$*" in *-n) echo "[1/2] Re-running CMake..." ;; *--build*) sleep {sleeps}; exit {build_status} ;; esac'
        calls = dev.folder.parent / "calls"
        calls.write_text("")
        write_program(dev.programs / "cmake", f'echo cmake "$@" >>"{calls}"\n{says}')
        write_program(torch, f'echo python "$@" with "$LD_PRELOAD" >>"{calls}"')
        return [call for call in dev("sanitize", *arguments, status=status, SCOREMOD_TORCH_PYTHON=str(torch)) if call.startswith("python")]

    run.dev = dev
    return run


def test_the_share_under_sanitizers_has_the_time_that_the_build_leaves(sanitize):
    (call,) = sanitize(2, "tsan", "100", "Cache|Queue")
    words = call.split()
    assert words[1] == "tools/checks/random_share.py" and 90 <= int(words[2]) <= 98
    assert "--filter Cache|Queue build/tsan/bin/scoremod_unit_tests" in call


def test_a_run_under_a_sanitizer_may_be_recorded(sanitize):
    (call,) = sanitize(0, "--record", "runs of asan.json", "asan", "100")
    assert "--record runs of asan.json --sanitizer asan build/asan/bin/scoremod_unit_tests" in call
    (call,) = sanitize(0, "tsan", "100")
    assert "--record" not in call


def test_pytorch_runs_with_the_sanitizer_and_what_it_looks_for_at_its_start(sanitize):
    (call,) = sanitize(0, "torch", "50")
    assert "tests/torch/test_swapped_tensors.py with /lib/libasan.so /lib/libstdc++.so.6" in call


@pytest.mark.parametrize("which", ["asan", "tsan", "torch"])
def test_a_build_that_is_not_done_in_time_is_no_failure(sanitize, which):
    assert sanitize(60, which, "1") == []
    assert "the build took all of 1 s, and no test ran" in sanitize.dev.said


@pytest.mark.parametrize("which", ["asan", "tsan", "torch"])
def test_a_build_that_fails_is_one(sanitize, which):
    assert sanitize(0, which, "50", status=1, build_status=1) == []


def test_a_build_without_backends_runs_what_depends_on_them(dev):
    write_program(dev.programs / "ctest", "echo '100% tests passed by ctest'")
    calls = dev("test", "no-cuda", SCOREMOD_TORCH_PYTHON="/no/torch")
    assert calls[:2] == ["cmake --preset no-cuda", "cmake --build --preset no-cuda --parallel 3"]
    (tests,) = [call for call in calls if "-m pytest" in call]
    files = [word for word in tests.split() if word.startswith("tests/")]
    assert files and all((ROOT / file).is_file() for file in files)


@pytest.fixture
def newest(dev):
    """./dev newest, where installing makes a Python that only says how it was called. `fails`: the framework whose tests fail."""
    (dev.folder / "tests" / "torch").mkdir(parents=True)
    shutil.copy(ROOT / "tests/torch/requirements.in", dev.folder / "tests/torch")
    calls, failing = dev.folder.parent / "calls", dev.folder / "failing"
    python = f"""case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && printf '#!/bin/sh\\necho "$0 $*" >>"{calls}"\\ngrep -q "$0 " "{failing}" && case "$*" in *pytest*) exit 1;; esac || :' >"$3/bin/python" &&
    chmod +x "$3/bin/python" ;;
  *torch_stand_ins*) echo stand-ins >>"{calls}" ;;
  *) exec "{sys.executable}" "$@" ;;
esac"""
    (dev.programs / "python3").unlink()
    write_program(dev.programs / "python3", python)

    def run(*arguments, fails="", **options):
        calls.write_text("")
        failing.write_text(f"build/newest-{fails}/bin/python ")
        return dev("newest", *arguments, **options)

    return run


def test_the_newest_frameworks_are_tested_without_their_pins(dev, newest):
    calls = newest()
    assert calls[1] == "cmake --build --preset release --parallel 3 --target scoremod scoremod_jax scoremod_torch"
    tests = [call for call in calls if "-m pytest" in call]
    assert tests == [f"build/newest-{name}/bin/python -m pytest -q tests/{name}" for name in ("jax", "torch")]
    wanted = {name: (dev.folder / f"build/newest-{name}.txt").read_text().split() for name in ("jax", "torch")}
    assert {"jax", "jaxlib", "flax", "pytest"} <= set(wanted["jax"]) and "clang-tidy" not in wanted["jax"]
    assert {"torch", "transformers", "pytest"} <= set(wanted["torch"])
    assert not any("=" in each for each in wanted["jax"] + wanted["torch"])
    assert "stand-ins" in calls


def test_a_framework_that_fails_does_not_hide_the_other(newest):
    assert len([call for call in newest(fails="jax", status=1) if "-m pytest" in call]) == 2
    assert len([call for call in newest("torch", fails="jax") if "-m pytest" in call]) == 1


def test_a_framework_that_is_none_ends_it_before_anything_is_built(newest):
    assert newest("tensorflow", status=1) == []


def test_clang_checks_sources_for_so_many_seconds(dev):
    configure, check = dev("clang", "5")
    assert configure == "cmake --preset tidy -B build/clang -DCMAKE_CXX_COMPILER=clang++-16 -DCMAKE_C_COMPILER=clang-16"
    assert check == "python tools/checks/clang_syntax.py build/clang/compile_commands.json 5 --jobs 3"


def test_a_kind_of_tests_may_be_sanitized_alone(sanitize):
    (call,) = sanitize(0, "asan", "50", "", "unit")
    assert call.split()[-2:] == ["--filter", "build/asan/bin/scoremod_unit_tests"]


def test_a_release_has_files_with_their_hashes(dev):
    (dev.folder / "tools" / "wheel").mkdir(parents=True)
    (dev.folder / "tools" / "wheel" / "requirements.txt").touch()
    tools = dev.folder / "build" / "wheel-tools"
    write_program(tools / "bin" / "auditwheel", "cp build/wheels/plain/a.whl build/wheels/a-manylinux.whl")
    (tools / ".made_from").write_text(sys.version)
    makes = {"pip wheel": "build/wheels/plain/a.whl", "build_sdist": "build/sdist/a.tar.gz", "sbom.py": "build/release-files/scoremod.cdx.json"}
    cases = "".join(f'  *"{words}"*) echo "{words}" >{file} ;;\n' for words, file in makes.items())
    write_program(dev.folder / ".venv" / "bin" / "python", f'case "$*" in\n{cases}esac\necho python "$@" >>"{dev.folder.parent / "calls"}"')
    dev("release")
    files = dev.folder / "build" / "release-files"
    assert {file.name for file in files.iterdir()} == {"a-manylinux.whl", "a.tar.gz", "scoremod.cdx.json", "SHA256SUMS"}
    assert subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=files, capture_output=True).returncode == 0
    (files / "a.tar.gz").write_text("other")
    assert subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=files, capture_output=True).returncode == 1
    assert len((files / "SHA256SUMS").read_text().splitlines()) == 3
