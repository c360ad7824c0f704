"""The binding in C++ that makes PyTorch's calls: what it refuses, what it keeps, and that it is found."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from random import Random

import pytest
import torch

import scoremod
from scoremod import library
from scoremod.torch import eager_calls, execution, flex_attention, native, prepared_calls, repeated_calls

binding = native.binding


@pytest.fixture
def tensors(random):
    return [torch.randn(1, 2, n, 8, generator=random) for n in (3, 20, 20)]


def imported(**variables):
    """The output of a process that imports scoremod.torch with these environment variables."""
    code = "import scoremod\ntry:\n    import scoremod.torch\nexcept scoremod.EnvironmentError as error:\n    print('EnvironmentError:', error)"
    environment = {**os.environ, "SCOREMOD_LIBRARY": library.load()._name, **variables}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_binding_that_is_not_there_is_an_environment_error(tmp_path):
    assert imported() == ""
    for place in (tmp_path / "none.so", tmp_path / "text.so"):
        (tmp_path / "text.so").write_text("no library")
        said = imported(SCOREMOD_TORCH_LIBRARY=str(place))
        assert said.startswith(f"EnvironmentError: expected scoremod_torch.abi3.so of this version of scoremod at {place}; found: ")
        assert "python3-dev" in said and "SCOREMOD_TORCH_LIBRARY" in said


def test_a_binding_of_another_version_is_an_environment_error(monkeypatch):
    class Other:
        _name = library.load()._name

        def scoremod_version(self):
            return b"9.9.9"

    monkeypatch.setattr(library, "load", Other)
    with pytest.raises(scoremod.EnvironmentError, match=r"expected scoremod_torch.abi3.so of version 9.9.9, as the library is; found .*build or install both"):
        native._load()


def test_a_call_keeps_nothing(tensors):
    """Neither references to tensors, nor objects, nor the EagerCall once all caches have dropped it."""
    slopes = torch.ones(2)

    def run():
        return flex_attention(*tensors, lambda score, b, h, q_idx, kv_idx: score * slopes[h])

    with torch.no_grad():
        for _ in range(5):
            run()
        watched = [*tensors, slopes, None, True, False]
        gc.collect()
        before, objects = [sys.getrefcount(each) for each in watched], len(gc.get_objects())
        for _ in range(500):
            run()
        gc.collect()
        after = [sys.getrefcount(each) for each in watched]
    assert after[:4] == before[:4]
    assert all(abs(found - expected) < 100 for found, expected in zip(after, before, strict=True))
    assert len(gc.get_objects()) < objects + 100


def test_what_caches_drop_is_freed(tensors, nothing_compiled):
    with torch.no_grad():
        for n in (20, 19, 18, 18):
            flex_attention(tensors[0], tensors[1][:, :, :n], tensors[2][:, :, :n], return_lse=True)
    found = [*eager_calls._kept.values(), *(variant for site in repeated_calls._sites.values() for variant in site.variants)]
    found += [call.compiled.forward for call in eager_calls._kept.values()]
    gone = [weakref.ref(each) for each in found if type(each).__weakrefoffset__]
    assert len(gone) >= 2
    del found
    for cache in (eager_calls._kept, repeated_calls._sites, execution._kept, execution._open):
        cache.clear()
    gc.collect()
    assert [each() for each in gone] == [None] * len(gone)


def test_wrong_arguments_of_the_binding_are_errors(tensors):
    with torch.no_grad():
        flex_attention(*tensors)
    direction = next(reversed(eager_calls._kept.values())).compiled.forward
    signature = direction.of_all.signature
    with pytest.raises(TypeError, match="the tensors that the call was prepared for"):
        direction.run_known((tensors[0],))
    with pytest.raises(TypeError, match="another type"):
        direction.fix(object(), None, 0, (), 0)
    with pytest.raises(ValueError, match="bytes of each tensor"):
        direction.fix(signature, None, direction.handle, (1,), 0)
    with pytest.raises(RuntimeError, match="prepared"):
        binding.PreparedCall().run_known(())
    with pytest.raises(TypeError, match="nine arguments"):
        binding.repeated({})
    with pytest.raises(ValueError, match="strides"):
        binding.SizesLayout.make(None, 0, ("lse",), ())
    layout = prepared_calls.layout_of(next(reversed(eager_calls._kept.values())).compiled.sizes)
    for sizes, numbers in (((1,), ()), ((1,) * 9, (1,))):
        with pytest.raises(ValueError, match="expected the n"):
            prepared_calls.AtNewSizes.__new__(prepared_calls.AtNewSizes).open(signature, layout, sizes, numbers, 0)
    with torch.no_grad():
        assert torch.isfinite(flex_attention(*tensors)).all()


def test_threads_with_sizes_of_their_own(random):
    """Each puts its own call in the place of the last one, while others run theirs."""
    q, k, v = (torch.randn(1, 2, 60, 8, generator=random) for _ in range(3))

    def attend(n):
        return flex_attention(q[:, :, :n], k[:, :, : n + 7], v[:, :, : n + 7], lambda score, b, h, q_idx, kv_idx: score + q_idx - kv_idx)

    with torch.no_grad():
        expected = {n: attend(n) for n in range(1, 50)}
    wrong, begin = [], threading.Barrier(8)

    def work(seed):
        choose = Random(seed)
        begin.wait()
        with torch.no_grad():
            for _ in range(300):
                n = choose.randrange(1, 50)
                wrong.extend(n for _ in range(choose.randrange(1, 4)) if not torch.equal(attend(n), expected[n]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
