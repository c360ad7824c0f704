"""Every mistake is a message and an exit code: 2 for the caller's, 4 for the machine's. Nothing crashes."""

import json
import os
import random
import subprocess

import pytest

from built_command import PROBLEMS, find_command

SMALL = {"batch": 2, "heads_q": 4, "seq_q": 5, "dim_qk": 8}

BAD_FILES = {
    "empty": (b"", "empty"),
    "binary": (bytes(range(256)), "expected JSON"),
    "npy": (b"\x93NUMPY\x01\x00v\x00{'descr'", "expected JSON"),
    "truncated": (b'{"batch": 1, "heads_q"', "expected JSON"),
    "list": (b"[1, 2]", "expected an object"),
    "deep": (b"[" * 1_000_000, "nested at most 32 deep"),
    "repeated": (b'{"batch": 1, "batch": 1}', "twice"),
    "unknown_field": (json.dumps({**SMALL, "head_q": 4}).encode(), "did you mean 'heads_q'?"),
    "missing_field": (b'{"batch": 1}', "heads_q: expected a size"),
    "zero": (json.dumps({**SMALL, "batch": 0}).encode(), "batch: expected a size from 1"),
    "head_ratio": (json.dumps({**SMALL, "heads_kv": 3}).encode(), "heads_kv: expected a divisor"),
    "huge": (json.dumps({**SMALL, "batch": 2**30, "seq_q": 2**30, "dim_qk": 2**30}).encode(), "less than 2^63 bytes"),
    "program": (json.dumps({**SMALL, "program": "value = scores"}).encode(), "line 1, column 9"),
    "modifier": (json.dumps({**SMALL, "program": {"score_mod": ["alibbi"]}}).encode(), "did you mean 'alibi'?"),
    "operand": (json.dumps({**SMALL, "operands": [{"name": "x"}]}).encode(), "operands[0].name"),
    "input": (json.dumps({**SMALL, "inputs": {"x": {"npy": "x.npy"}}}).encode(), "inputs.x"),
    "nul_in_npy": (json.dumps({**SMALL, "inputs": {"q": {"npy": "q.npy\0.npy"}}}).encode(), "with a NUL in it: q.npy?.npy"),
    "missing_npy": (json.dumps({**SMALL, "inputs": {"q": {"npy": "none.npy"}}}).encode(), "none.npy: expected a .npy file"),
}


def assert_mistake(done, fragment):
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stdout in ("", b"")
    stderr = done.stderr if isinstance(done.stderr, str) else done.stderr.decode()
    assert stderr.startswith("scoremod: ") and fragment in stderr
    assert "terminate" not in stderr and "exception" not in stderr
    assert len(stderr) < 3000


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("command", ["run", "explain", "check"])
def test_bad_files(scoremod, tmp_path, command, name):
    if name == "missing_npy" and command == "explain":
        pytest.skip("explain reads no inputs")
    contents, fragment = BAD_FILES[name]
    (tmp_path / "bad.json").write_bytes(contents)
    assert_mistake(scoremod(command, "bad.json"), fragment)
    assert_mistake(scoremod(command, "-", input=contents), fragment)


@pytest.mark.parametrize(
    "path, said",
    [
        ("none.json", "No such file"),
        ("", "No such file"),
        (".", "Is a directory"),
        ("none/none.json", "No such file"),
        ("/dev/zero", "at most"),
    ],
)
def test_files_that_cannot_be_read(scoremod, path, said):
    assert_mistake(scoremod("explain", path), said)


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(scoremod, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for command in ("run", "explain", "check"):
        assert_mistake(scoremod(command, "pipe"), "pipe: cannot be read: it is a pipe that nobody writes to; expected")
    (tmp_path / "problem.json").write_text(json.dumps({**SMALL, "inputs": {"q": {"npy": "pipe"}}}))
    assert_mistake(scoremod("run", "problem.json"), "pipe: expected a .npy file: it is a pipe that nobody writes to")
    assert_mistake(scoremod("explain", "--device", "pipe", PROBLEMS[0]), "it is a pipe that nobody writes to")


def test_a_pipe_with_a_writer_is_read(scoremod):
    reader, writer = os.pipe()
    child = subprocess.Popen(["sh", "-c", f"sleep 0.2; cat '{PROBLEMS[0]}'"], stdout=writer)
    os.close(writer)
    done = scoremod("explain", f"/dev/fd/{reader}", pass_fds=(reader,))
    os.close(reader)
    assert child.wait() == 0
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "subcommand"),
        (["fly"], "expected one of explain, run, check, bench, zoo, compile, device, cache; found 'fly'"),
        (["cache", "fly"], "expected one of list, verify, prune, clear; found 'fly'"),
        (["run"], "PROBLEM is required"),
        (["run", "a", "b"], "b"),
        (["run", "-", "--colour"], "--colour"),
        (["run", "-", "--repeat", "0"], "--repeat: expected an integer from 1 to 1000000, found '0'"),
        (["run", "-", "--repeat", "x"], "found 'x'"),
        (["run", "-", "--repeat", "1.5"], "found '1.5'"),
        (["run", "-", "--threads", "-1"], "--threads: expected an integer from 0 to 1024, found '-1'"),
        (["run", "-", "--threads", "99999999999999999999"], "found '99999999999999999999'"),
        (["run", "-", "--seed", "-1"], "--seed: expected an integer from 0 to 18446744073709551615, found '-1'"),
        (["run", "-", "--backend", "gpu"], "gpu"),
        (["check", "-", "--backend", "gpu"], "gpu"),
        (["explain", "-", "--backend", "gpu"], "gpu"),
        (["explain", "-", "--disable", "no_such_step"], "no_such_step"),
        (["explain", "-", "--device", "."], ".: cannot be read: Is a directory"),
        (["explain", "-", "--device", "none.json"], "none.json: cannot be read: No such file"),
        (["compile", "-", "--device", ".", "-o", "plans"], ".: cannot be read: Is a directory"),
        (["zoo", "no_such_modifier"], "no_such_modifier"),
        (["zoo", "casual"], "did you mean 'causal'?"),
        (["zoo", "soft_cap", "cap"], "NAME=VALUE"),
        (["zoo", "soft_cap", "cup=3"], "cup"),
        (["zoo", "soft_cap", "cap=-3"], "-3"),
        (["zoo", "soft_cap", "cap=x"], "'x'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_command_lines(scoremod, arguments, said):
    assert_mistake(scoremod(*arguments, input=json.dumps(SMALL)), said)


def test_mutated_files_never_crash(scoremod, tmp_path):
    seed = int(os.environ.get("SCOREMOD_TEST_SEED", random.SystemRandom().randrange(2**32)))
    print("SCOREMOD_TEST_SEED =", seed)
    source = random.Random(seed)
    texts = [path.read_bytes() for path in PROBLEMS]
    for _ in range(60):
        text = bytearray(source.choice(texts))
        for _ in range(source.randint(1, 4)):
            at = source.randrange(len(text))
            text[at : at + source.randrange(3)] = source.choice([b"", b"0", b"-", b"\xff", b'"', b"{", b"]", b"9" * 30])
        (tmp_path / "mutated.json").write_bytes(text)
        done = scoremod("explain", "mutated.json", text=False)
        assert done.returncode in (0, 2), (done, text)


def test_a_reader_that_has_gone_ends_the_command_quietly(tmp_path):
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run([find_command(), "zoo"], stdout=write_end, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (4, b"")


def test_an_output_that_cannot_be_written_is_the_machines_fault(tmp_path):
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([find_command(), "zoo"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 4 and "No space left" in done.stderr


def test_a_limit_of_files_sizes_is_an_output_that_cannot_be_written(tmp_path):
    (tmp_path / "problem.json").write_text(json.dumps({**SMALL, "seq_q": 512}), encoding="utf-8")
    for redirected in ("--out out", "--json --repeat 1000 > report"):
        line = f'ulimit -f 1; "{find_command()}" run problem.json {redirected}'
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        assert done.returncode == 4 and done.stderr.endswith("cannot be written: File too large\n"), done
    assert list((tmp_path / "out").iterdir()) == []


ONE_OF_THE_SUITE = ["check", "--suite", "--random", "1", "--filter", "random/0", "--dtype", "f16", "--seed", "1"]


def test_an_output_that_is_no_regular_file_is_written_to_and_not_replaced(scoremod, tmp_path):
    (tmp_path / "link.json").symlink_to("named.json")
    os.mkfifo(tmp_path / "pipe")
    for out, read in ("link.json", "named.json"), ("pipe", "pipe"):
        with subprocess.Popen(["cat", "pipe"] if out == "pipe" else ["true"], cwd=tmp_path, stdout=subprocess.PIPE) as reader:
            done = scoremod(*ONE_OF_THE_SUITE, "--out", out)
            # Nobody else would end a reader of a pipe that was replaced.
            if not (tmp_path / "pipe").is_fifo():
                reader.kill()
            text = reader.communicate(timeout=60)[0]
        assert done.returncode == 0, done.stderr
        assert json.loads(text if out == "pipe" else (tmp_path / read).read_text(encoding="utf-8"))
    assert (tmp_path / "link.json").is_symlink() and (tmp_path / "pipe").is_fifo()
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("arguments", [["run", "-"], ["bench", "problem.json"], ONE_OF_THE_SUITE], ids=" ".join)
def test_an_empty_name_is_no_place_for_an_output(scoremod, tmp_path, arguments):
    (tmp_path / "problem.json").write_text(json.dumps(SMALL), encoding="utf-8")
    assert_mistake(scoremod(*arguments, "--out", "", input=json.dumps(SMALL)), "found an empty name")


def test_an_output_that_is_a_folder_is_refused_before_time_is_spent(scoremod):
    done = scoremod("check", "--suite", "--random", "1000", "--out", ".")
    assert done.returncode == 4 and done.stderr.endswith(".: cannot be written: Is a directory\n")


def test_writers_of_one_folder_do_not_meet(scoremod, tmp_path):
    (tmp_path / "o.npy.partial").mkdir()  # what another one was writing o.npy as, as far as anybody knows
    assert scoremod("run", "-", "--out", ".", input=json.dumps(SMALL)).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.npy", "o.npy.partial"]


def test_closed_standard_streams(tmp_path):
    (tmp_path / "problem.json").write_text(json.dumps(SMALL), encoding="utf-8")
    line = f'"{find_command()}" run problem.json --out out >&- 2>&- <&-'
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 4
    # The closed stream's number was not given to the file: it holds an array, no text.
    assert (tmp_path / "out" / "o.npy").read_bytes().startswith(b"\x93NUMPY")


@pytest.mark.parametrize("folder", ["file/out", "file", "/proc/none", "/dev/null"])
def test_a_folder_that_cannot_be_written(scoremod, tmp_path, folder):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    done = scoremod("run", "-", "--out", folder, input=json.dumps(SMALL))
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith("scoremod: environment: ")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "in the way"


def test_a_problem_beyond_the_machines_memory(scoremod):
    problem = {"batch": 2**20, "heads_q": 64, "seq_q": 2**20, "dim_qk": 64}
    for command in ("run", "check"):
        done = scoremod(command, "-", input=json.dumps(problem))
        assert done.returncode == 4 and "GiB" in done.stderr, (done.returncode, done.stderr)
