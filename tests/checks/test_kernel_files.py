"""The kernels' folder and the path of one Hopper forward have no more files than this, so that a reader can follow one."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))
from kernel_files import device_files, folder_files, forward_files, host_files  # noqa: E402

SRC = ROOT / "src"
MOST_OF_FOLDER, MOST_OF_FORWARD = 60, 20

TREE = {
    "hopper/forward.cuh": ["hopper/tiles.cuh"],
    "hopper/tiles.cuh": ["shared/elements.cuh"],
    "hopper/backward.cuh": ["hopper/tiles.cuh"],
    "hopper/family.hpp": ["shared/elements.cuh"],
    "hopper/family.cpp": ["hopper/family.hpp", "operand_gradients/sums.hpp"],
    "hopper/shapes.cpp": ["hopper/family.hpp"],
    "shared/elements.cuh": [],
    "backend/kernels_backend.cpp": ["hopper/family.hpp", "portable/family.hpp"],
    "backend/unused.hpp": [],
    "portable/family.hpp": [],
    "operand_gradients/sums.hpp": [],
}


@pytest.fixture
def src(tmp_path):
    for name, includes in TREE.items():
        file = tmp_path / "backend" / "kernels" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f'#include "backend/kernels/{other}"\n' for other in includes) + '#include <vector>\n#include "elsewhere.hpp"\n')
    return tmp_path


def names(files):
    return [file.removeprefix("backend/kernels/") for file in files]


def test_files_of_a_forward_are_found(src):
    assert names(device_files(src)) == ["hopper/forward.cuh", "hopper/tiles.cuh", "shared/elements.cuh"]
    assert names(host_files(src)) == ["backend/kernels_backend.cpp", "hopper/family.cpp", "hopper/family.hpp", "hopper/shapes.cpp", "shared/elements.cuh"]
    assert names(forward_files(src)) == sorted({*names(device_files(src)), *names(host_files(src))})
    assert names(folder_files(src)) == sorted(TREE)


def test_the_folder_has_few_files():
    assert len(folder_files(SRC)) <= MOST_OF_FOLDER


def test_a_forward_has_few_files():
    files = forward_files(SRC)
    assert len(files) <= MOST_OF_FORWARD, "\n".join(files)


def test_the_page_lists_the_files_of_a_forward():
    page = (ROOT / "docs" / "internals" / "adding_a_kernel_family.md").read_text().split("## The files of one Hopper forward")[1]
    listed = [file.removeprefix("backend/kernels/") for file in re.findall(r"`([\w/]+\.[ch]\w+)`", page)]
    assert sorted(listed) == sorted(names(forward_files(SRC)))


def test_a_forward_has_its_main_files():
    """A rule that no longer follows the code would pass the others."""
    main = [
        "backend/kernels_backend.cpp",
        "backend/plan.cpp",
        "family.cpp",
        "family.hpp",
        "hopper/family.cpp",
        "hopper/shapes.cpp",
        "shared/softmax.cuh",
    ]
    assert set(main) <= set(names(forward_files(SRC)))
