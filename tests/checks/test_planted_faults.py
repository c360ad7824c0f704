"""tools/checks/planted_faults.py: the list of negative controls is that of the tests."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))
import planted_faults  # noqa: E402

CPP = """
TEST(KernelFaults, AreSeen) {
  EXPECT_FALSE(passes("a", "b"))
      << "rows of another step";
  EXPECT_TRUE(passes("", "")) << "what is right";
  EXPECT_DEATH(run(), "threads wait");
}

TEST(Sum, IsRight) { EXPECT_EQ(sum(1, 2), 3); }
TEST(SumNegativeControl, OneIsFound) { EXPECT_NE(sum(1, 1), 3); }

TEST(Tiles, AreRight) {
  const Fault empty{"a", "b"};
  EXPECT_FALSE(check(empty));
}

const Wrong kWrong[] = {
    {"NoSink", {}},
    {"AnotherSeed", {}},
};
TEST_P(FieldFaults, AreSeen) { EXPECT_FALSE(check(GetParam())); }
INSTANTIATE_TEST_SUITE_P(All, FieldFaults, ::testing::ValuesIn(kWrong));
"""
PYTHON = """
def test_a_wrong_tree_would_be_seen(seed):
    pass

def test_what_changes_is_seen():
    pass

def test_numbers():
    pass
"""
CONTROLS = [
    {"test": "tests/unit/sum_test.cpp::KernelFaults.AreSeen", "planted": ["rows of another step", "threads wait"]},
    {"test": "tests/unit/sum_test.cpp::SumNegativeControl.OneIsFound", "planted": []},
    {"test": "tests/unit/sum_test.cpp::Tiles.AreRight", "planted": []},
    {"test": "tests/unit/sum_test.cpp::FieldFaults.AreSeen", "planted": ["NoSink", "AnotherSeed"]},
    {"test": "tests/unit/test_trees.py::test_a_wrong_tree_would_be_seen", "planted": []},
]


def test_the_list_is_that_of_the_tests():
    recorded = json.loads((ROOT / planted_faults.RECORD).read_text(encoding="utf-8"))
    assert list(planted_faults.differences(recorded, planted_faults.collected())) == [], "run tools/checks/planted_faults.py"
    assert len(recorded) > 150 and sum(len(each["planted"]) for each in recorded) > 100


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    (folder / "sum_test.cpp").write_text(CPP, encoding="utf-8")
    (folder / "test_trees.py").write_text(PYTHON, encoding="utf-8")
    return tmp_path


def test_controls_are_known_by_name_or_by_their_fault(tree):
    assert planted_faults.collected(tree) == CONTROLS


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("KernelFaults", "KernelNegativeControls", "KernelFaults.AreSeen: is listed, and no such negative control is there"),
        ("TEST(Sum, IsRight)", "TEST(SumFaults, AreSeen)", "SumFaults.AreSeen: is a negative control, and not listed"),
        ("rows of another step", "rows of another tile", "KernelFaults.AreSeen: plants ['rows of another tile', 'threads wait'], listed with"),
        ('{"AnotherSeed", {}},', "", "FieldFaults.AreSeen: plants ['NoSink'], listed with ['NoSink', 'AnotherSeed']"),
    ],
)
def test_a_list_without_a_control_is_seen(tree, old, new, complaint):
    (tree / "tests/unit/sum_test.cpp").write_text(CPP.replace(old, new), encoding="utf-8")
    assert any(complaint in line for line in planted_faults.differences(CONTROLS, planted_faults.collected(tree)))
