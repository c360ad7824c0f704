"""python -m scoremod: Python's own commands, and those of the compiled one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import scoremod
from scoremod import compiled_command, diagnosis, pages
from scoremod.command import main

PACKAGE = str(Path(scoremod.__file__).resolve().parents[1])
COMMAND = next(place for place in compiled_command._places() if place.is_file())


def test_all_compiled_commands_are_handed_on():
    text = subprocess.run([COMMAND, "--help"], capture_output=True, text=True, check=True).stdout
    listed = re.findall(r"^  (\w+) {2,}", text.partition("Subcommands:")[2], re.MULTILINE)
    assert listed == list(compiled_command.COMMANDS)


def test_a_compiled_command_prints_and_gives_its_exit_code(capfd):
    assert main(["zoo"]) == 0
    assert "soft_cap" in capfd.readouterr().out
    assert main(["explain", "no_such_problem.json"]) == 2
    assert "no_such_problem.json" in capfd.readouterr().err


def test_where_no_command_is_it_says_how_to_get_one(monkeypatch, capfd):
    monkeypatch.setattr(compiled_command, "_places", lambda: [Path("/nowhere/scoremod")])
    assert main(["run", "problem.json"]) == 4
    assert "/nowhere/scoremod" in (said := capfd.readouterr().err) and "libcli11-dev" in said


def test_packages_of_nvidia_are_among_the_loaders_folders(monkeypatch, tmp_path):
    (tmp_path / "nvidia" / "cudnn" / "lib").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    folders = compiled_command.library_folders()
    assert folders[0] == "/mine" and str(tmp_path / "nvidia" / "cudnn" / "lib") in folders


@pytest.mark.parametrize("arguments", [[], ["--static"]])
def test_the_doctor_says_what_runs_and_why_not_the_others(arguments, capsys, monkeypatch):
    monkeypatch.setenv("SCOREMOD_BACKENDS", "-reference")
    assert main(["doctor", *arguments]) == 0
    said = capsys.readouterr().out
    for part in (
        f"scoremod: {scoremod.version()}, ",
        "numpy: ",
        "CUDA driver: ",
        "CUDA runtime: ",
        "cuDNN: ",
        "NVRTC: ",
        "plans are kept in: ",
        "SCOREMOD_BACKENDS: -reference",
    ):
        assert part in said
    host, cuda = said.split("\n\n")[1:]
    assert "tensors in host memory:\n  runs on cpu" in host
    if not Path("/dev/nvidia0").exists():
        assert "runs on none of them" in cuda or "no backend" in cuda
        assert "no_device" in cuda.partition("ids of these reasons: ")[2] or "no backend" in cuda


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"SCOREMOD_CACHE": "off"}, "memory alone (SCOREMOD_CACHE=off)"),
        ({}, "memory alone; set SCOREMOD_CACHE_DIR, XDG_CACHE_HOME or HOME to a folder to keep them in files"),
    ],
)
def test_the_doctor_says_why_plans_are_kept_in_memory_alone(settings, kept):
    named = ("SCOREMOD_CACHE", "SCOREMOD_CACHE_DIR", "XDG_CACHE_HOME", "HOME")
    environment = {name: value for name, value in os.environ.items() if name not in named} | {"PYTHONPATH": PACKAGE} | settings
    done = subprocess.run([sys.executable, "-m", "scoremod", "doctor", "--static"], env=environment, capture_output=True, text=True)
    assert f"plans are kept in: {kept}\n" in done.stdout, done.stderr


def test_the_doctor_names_libraries_that_only_packages_have(monkeypatch, tmp_path):
    monkeypatch.setattr(diagnosis, "_LIBRARIES", {"cuDNN": ("libno_such_library.so.9",), "C": ("libno_such_c.so", "libc.so.6")})
    cudnn, c = diagnosis._gpu_libraries()
    assert c == ("C", "libc.so.6") and cudnn[0] == "cuDNN" and "`scoremod docs guide/gpus` says how" in cudnn[1]
    (tmp_path / "libno_such_library.so.9").touch()
    monkeypatch.setattr(diagnosis, "library_folders", lambda: [str(tmp_path)])
    assert diagnosis._gpu_libraries()[0][1].startswith(f"{tmp_path / 'libno_such_library.so.9'}, found where PyTorch or JAX has loaded it")


def test_the_doctor_names_settings_that_make_no_sense(monkeypatch, capsys):
    monkeypatch.setenv("SCOREMOD_NEW_SIZES", "sometimes")
    monkeypatch.setenv("SCOREMOD_BACKEND", "cpu")
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "but a call raises: SCOREMOD_NEW_SIZES: expected wait or serve, found 'sometimes'" in said
    assert "SCOREMOD_BACKEND: cpu (scoremod reads no such variable" in said


def test_the_doctor_works_where_the_library_does_not():
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "SCOREMOD_LIBRARY": "/nowhere/libscoremod.so"}
    done = subprocess.run([sys.executable, "-m", "scoremod", "doctor"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "scoremod: expected libscoremod.so" in done.stdout and "numpy: " in done.stdout, done.stderr
    done = subprocess.run([sys.executable, "-m", "scoremod", "--version"], env=environment, capture_output=True, text=True)
    assert done.returncode == 4 and done.stderr.startswith("scoremod: expected libscoremod.so")


def test_all_commands_are_listed_and_a_wrong_one_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert all(re.search(rf"^    {name} ", said, re.MULTILINE) for name in (*compiled_command.COMMANDS, "draw", "docs", "doctor"))
    assert main([]) == 2
    assert capsys.readouterr().err == f"{said}scoremod: expected a command, found none\n"
    with pytest.raises(SystemExit, match="2"):
        main(["explian"])
    assert "'explain'" in capsys.readouterr().err


def test_the_help_names_pages_to_begin_with(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    named = re.findall(r"`scoremod docs (\w+)`", " ".join(capsys.readouterr().out.split()))
    assert named == ["start", "problem"] and all(len(pages.names_of(topic)) == 1 for topic in named)


def test_the_doctor_says_where_no_plans_are_kept():
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "SCOREMOD_CACHE": "off"}
    done = subprocess.run([sys.executable, "-m", "scoremod", "doctor", "--static"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "SCOREMOD_CACHE=off" in done.stdout, done.stderr
