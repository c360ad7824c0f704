"""Pieces of C, C++ and JSON on other pages: what is whole runs, and what is a part of a function compiles in one."""

import json
import subprocess

import pytest
from native_page import blocks_of, build

CALL = """
#include <stdlib.h>

int main(void) {
  const size_t count = 2 * 1024 * 8 * 64;
  float* all = calloc(4 * count, sizeof *all);
  float slopes[8];
  for (int i = 0; i < 8; ++i) slopes[i] = 0.5f;
  for (size_t i = 0; all != NULL && i < count; ++i) all[2 * count + i] = 0.25f;
  const int failed = all == NULL || attend(all, all + count, all + 2 * count, slopes, all + 3 * count);
  if (!failed) printf("%g\\n", all[3 * count]);
  free(all);
  return failed;
}
"""

# The C++ snippets take these for given: a problem, its call's arguments and a device's memory.
FUNCTION = """
#include <scoremod/attention.hpp>
#include <scoremod/call.hpp>
#include <scoremod/dsl.hpp>
using namespace scoremod;
void piece(AttentionProblem problem, ForwardArgs args, void* stream, void* workspace) {
  (void)problem, (void)args, (void)stream, (void)workspace;
  %s
}
int main() {}
"""


def test_the_c_page_runs(tmp_path):
    block = blocks_of("docs/guide/c.md", "c")[0]
    done = subprocess.run([build(tmp_path, block + CALL, "c")], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(0.25)  # v is that everywhere


def test_the_queue_of_the_c_page_answers_its_request(tmp_path):
    (piece,) = [block for block in blocks_of("docs/guide/c.md", "c") if "scoremod_request_queue" in block]
    reply, calls = piece.split("\n\n", 1)
    empty = "/* exactly once for each request */"
    assert empty in reply
    given = "scoremod_attention* attention, scoremod_forward_args args, void* user, char* message"
    source = f"""
#include <scoremod/c_api.h>
#include <stdio.h>
{reply.replace(empty, '*(int*)user += 1; printf("%s%s", scoremod_status_name(status), message);')}
void piece({given});
void piece({given}) {{
{calls}}}
int main(void) {{
  scoremod_attention* attention = NULL;
  char* message = NULL;
  float q[1] = {{0}}, o[1] = {{0}}, lse[1] = {{0}};
  int replies = 0;
  scoremod_forward_args args = {{.struct_size = sizeof args}};
  args.q = args.k = args.v = (scoremod_const_buffer){{q, sizeof q}};
  args.o = (scoremod_buffer){{o, sizeof o}};
  args.lse = (scoremod_buffer){{lse, sizeof lse}};
  if (scoremod_attention_create("{{\\"batch\\": 1, \\"heads_q\\": 1, \\"seq_q\\": 1, \\"dim_qk\\": 1}}", NULL, &attention, &message)) return 1;
  piece(attention, args, &replies, NULL);
  scoremod_attention_destroy(attention);
  return replies != 1;
}}
"""
    done = subprocess.run([build(tmp_path, source, "c")], capture_output=True, text=True, check=True)
    assert done.stdout == "ok"


@pytest.mark.parametrize("name", ["fp8", "sinks_and_dropout"])
def test_the_problems_of_the_reference_are_some(name):
    scoremod = pytest.importorskip("scoremod")
    problems = [json.loads(block) for block in blocks_of(f"docs/reference/{name}.md", "json")]
    assert problems
    for problem in problems:
        assert scoremod.Attention(problem, backend="reference").problem["batch"] == problem["batch"]


@pytest.mark.parametrize("page", ["README.md", "docs/guide/gpus.md", "docs/guide/cpp.md"])
def test_the_pieces_of_cpp_compile(page, tmp_path):
    pieces = [block for block in blocks_of(page, "cpp") if "Attention::compile" in block and "#include" not in block]
    assert pieces
    for piece in pieces:
        build(tmp_path, FUNCTION % piece)


def test_the_problem_of_its_page_is_one():
    scoremod = pytest.importorskip("scoremod")
    (fixed,) = map(json.loads, blocks_of("docs/reference/problem.md", "json"))
    (open_sizes,) = map(json.loads, blocks_of("docs/reference/sizes.md", "json"))
    assert scoremod.Attention(fixed).problem["heads_q"] == 8
    # Without the sizes it is open, and with some it is a problem.
    assert [name for name, size in open_sizes.items() if size is None] == ["batch", "seq_q", "seq_kv"]
    small = {"batch": 1, "seq_q": 3, "seq_kv": 5, "dtype": "f32"}
    assert scoremod.Attention(open_sizes | small).problem["heads_kv"] == 8


def test_the_position_of_a_decode_step_compiles(tmp_path):
    (piece,) = [block for block in blocks_of("docs/guide/c.md", "c") if "query_offset" in block]
    build(
        tmp_path, f"#include <scoremod/c_api.h>\nint main(void) {{\n  scoremod_forward_args args = {{0}};\n{piece}  return args.options->has_scale;\n}}\n", "c"
    )


def test_the_pieces_of_c_compile(tmp_path):
    (piece,) = blocks_of("README.md", "c")
    declared = "const char* problem_json, scoremod_attention* attention, scoremod_forward_args args, char* message"
    build(
        tmp_path,
        f"#include <stddef.h>\n#include <scoremod/c_api.h>\nvoid piece({declared});\nvoid piece({declared}) {{\n{piece}}}\nint main(void) {{ return 0; }}\n",
        "c",
    )
