"""The layer check must find each kind of violation planted in a small tree, and nothing in a tree without any."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "checks"))
import layers

CLEAN_TREE = {
    "include/scoremod/error.hpp": "#include <string>\n",
    "include/scoremod/program.hpp": '#include <vector>\n#include "scoremod/error.hpp"\n',
    "include/scoremod/c_api.h": "#include <stdint.h>\n",
    "src/base/canonical_bytes.hpp": "#include <span>\n",
    "src/ir/node.hpp": '#include "base/canonical_bytes.hpp"\n#include "scoremod/error.hpp"\n',
    "src/passes/simplify.cpp": '#include "ir/node.hpp"\n',
    "src/autodiff/rules.hpp": '#include "ir/node.hpp"\n',
    "src/backend/backend.hpp": '#include "ir/node.hpp"\n',
    "src/backend/registry.cpp": '#include "backend/cpu/tiled.hpp"\n',
    "src/backend/cpu/tiled.hpp": '#include <hwy/highway.h>\n#include "backend/backend.hpp"\n',
    "src/backend/cpu/tiled.cpp": '#include "tiled.hpp"\n#include <algorithm>\n',
    "src/backend/cudnn/lowering/lower.cpp": "#include <cudnn_frontend.h>\n",
    "src/backend/cudnn/lowering/lower.hpp": '#include "backend/backend.hpp"\n',
    "src/runtime/executor.cpp": '#include "backend/backend.hpp"\n',
    "tools/scoremod/main.cpp": '#include <CLI/CLI.hpp>\n#include "scoremod/program.hpp"\n#include "explain.hpp"\n',
    "tools/scoremod/explain.hpp": "#include <string>\n",
    "tools/cudnn/case.hpp": '#include "backend/cudnn/lowering/lower.hpp"\n#include "ir/node.hpp"\n',
    "tools/cudnn/main.cpp": '#include <CLI/CLI.hpp>\n#include "tools/cudnn/case.hpp"\n#include "scoremod/program.hpp"\n',
    "tests/unit/ir/node_test.cpp": '#include "ir/node.hpp"\n',
}


def violations_in(changes):
    """The check's findings in the clean tree with `changes` (path -> text) laid over it."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in {**CLEAN_TREE, **changes}.items():
            file = Path(folder) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return [str(violation) for violation in layers.check_tree(Path(folder))]


class LayersTest(unittest.TestCase):
    def expect_violation(self, path, text, *fragments):
        found = violations_in({path: text})
        self.assertEqual(len(found), 1, found)
        for fragment in (path + ":", *fragments):
            self.assertIn(fragment, found[0])

    def test_clean_tree_passes(self):
        self.assertEqual(violations_in({}), [])

    def test_lower_layer_may_not_include_higher(self):
        self.expect_violation("src/base/log.cpp", '#include "ir/node.hpp"\n', "layer base", "src/ir/node.hpp")

    def test_sibling_layers_may_not_include_each_other(self):
        self.expect_violation("src/passes/fold.cpp", '#include "autodiff/rules.hpp"\n', "layer passes may not")

    def test_backend_interface_may_not_name_a_backend(self):
        self.expect_violation("src/backend/support.cpp", '#include "backend/cpu/tiled.hpp"\n', "layer backend may not")

    def test_runtime_may_not_name_a_backend(self):
        self.expect_violation("src/runtime/executor.cpp", '#include "backend/cpu/tiled.hpp"\n', "layer runtime")

    def test_backends_may_not_name_each_other(self):
        self.expect_violation("src/backend/cudnn/plan.cpp", '#include "backend/cpu/tiled.hpp"\n', "backend/cudnn")

    def test_relative_path_does_not_escape(self):
        self.expect_violation("src/base/log.cpp", '#include "../ir/node.hpp"\n', "layer base")

    def test_public_header_may_not_include_internals(self):
        self.expect_violation("include/scoremod/problem.hpp", '#include "ir/node.hpp"\n', "users do not have it")

    def test_public_header_may_not_include_third_party(self):
        self.expect_violation("include/scoremod/problem.hpp", "#include <nlohmann/json.hpp>\n", "<nlohmann/json.hpp>")

    def test_public_header_has_a_layer(self):
        self.expect_violation("include/scoremod/error.hpp", '#include "scoremod/program.hpp"\n', "layer base may not")
        self.expect_violation("src/base/log.cpp", '#include "scoremod/program.hpp"\n', "layer base may not")
        self.expect_violation("include/scoremod/extra.hpp", "", "'extra.hpp' is not in the tables")

    def test_tool_may_not_include_internals(self):
        self.expect_violation("tools/scoremod/run.cpp", '#include "ir/node.hpp"\n', "only public headers")

    def test_programs_for_developers_stand_above_the_library(self):
        self.expect_violation("src/runtime/executor.cpp", '#include "tools/cudnn/case.hpp"\n', "layer runtime may not")
        self.expect_violation("tools/cudnn/case.cpp", '#include "backend/cpu/tiled.hpp"\n', "layer tools/cudnn may not")
        self.expect_violation("tools/cudnn/case.cpp", "#include <cudnn_frontend.h>\n", "tools/cudnn may not include")
        self.expect_violation("tools/scoremod/run.cpp", '#include "tools/cudnn/case.hpp"\n', "only public headers")

    def test_cudnn_frontend_is_seen_in_one_place(self):
        self.expect_violation("src/runtime/device.cpp", "#include <cudnn_frontend.h>\n", "only backend/cudnn, bench may")

    def test_third_party_header_stays_in_its_layer(self):
        self.expect_violation("src/ir/node.cpp", "#include <hwy/highway.h>\n", "only backend/cpu, backend/reference may")

    def test_unknown_layer_is_named(self):
        self.expect_violation("src/helpers/x.cpp", "", "'helpers' is not in the tables")

    def test_source_outside_a_layer_is_named(self):
        self.expect_violation("src/x.cpp", "", "'' is not in the tables")

    def test_long_file_is_named(self):
        self.expect_violation("tests/unit/x_test.cpp", "\n" * (layers.MAX_LINES + 1), "split it")
        self.assertEqual(violations_in({"tests/unit/x_test.cpp": "\n" * layers.MAX_LINES}), [])

    def test_exceptions_and_third_party_rules_name_known_layers(self):
        for allowed in layers.EXCEPTIONS.values():
            self.assertLessEqual(set(allowed), set(layers.USES))
        for places in layers.THIRD_PARTY.values():
            self.assertLessEqual(set(places), set(layers.USES) | set(layers.USER_FOLDERS))

    def test_table_has_no_cycle(self):
        for layer in layers.USES:
            for below in layers.reachable(layer) - {layer}:
                self.assertNotIn(layer, layers.reachable(below))


if __name__ == "__main__":
    unittest.main()
