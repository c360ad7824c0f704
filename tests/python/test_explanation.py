"""scoremod.explanation reads the output of `scoremod explain --json`."""

import scoremod
from scoremod.explanation import Explanation

PROBLEM = '{"batch": 1, "heads_q": 1, "seq_q": 32, "dim_qk": 8, "dtype": "f32", "backward": true, "program": "value = score"}'


def task(gradients, *backends):
    """An entry of `patterns`: the first of its candidates is chosen."""
    candidates = [{"backend": backend, "chosen": at == 0} for at, backend in enumerate(backends)]
    return {"direction": "backward" if gradients else "forward", "gradients": gradients, "candidates": candidates}


def of_tasks(*tasks, backward="kernels"):
    compiled = scoremod.explain(PROBLEM)
    answers = {answer["backend"]: answer for answer in compiled["backends"]}
    for name in ("cudnn", "kernels"):  # a build may have none
        answers.setdefault(name, {**answers["reference"], "backend": name})
    backends = [{**answer, "chosen_backward": answer["backend"] == backward} for answer in answers.values()]
    return Explanation("", (), {}, {**compiled, "backends": backends, "patterns": tasks})


def test_one_plan_of_all_gradients_is_taken_where_captured_tensors_learn():
    explanation = of_tasks(task([], "kernels"), task(["dq", "dk", "dv"], "kernels", "cudnn"), task(["dq", "dk", "dv", "d_x"], "cudnn", "kernels"))
    assert explanation.gradient_backends == dict.fromkeys(("dq", "dk", "dv", "d_x"), "cudnn")
    assert "with gradients of captured tensors: dq on cudnn, dk on cudnn, dv on cudnn, d_x on cudnn" in str(explanation)


def test_a_plan_of_captured_tensors_alone_leaves_the_others_where_they_are():
    explanation = of_tasks(task([], "cudnn"), task(["dq", "dk", "dv"], "cudnn"), task(["d_x"], "kernels"), backward="cudnn")
    assert explanation.gradient_backends == {"dq": "cudnn", "dk": "cudnn", "dv": "cudnn", "d_x": "kernels"}
    assert "d_x on kernels" in str(explanation)


def test_one_backend_for_all_is_said_once():
    explanation = of_tasks(task([], "kernels"), task(["dq", "dk", "dv"], "kernels"), task(["dq", "dk", "dv", "d_x"], "kernels"))
    assert set(explanation.gradient_backends.values()) == {"kernels"} and "captured tensors" not in str(explanation)


def test_there_is_nothing_to_choose_on_a_cpu():
    compiled = scoremod.explain(PROBLEM)
    explanation = Explanation("", (), {}, compiled)
    assert explanation.backward_backend == "cpu" and explanation.gradient_backends == {} and "captured tensors" not in str(explanation)


def test_what_no_backend_computes_has_none():
    assert of_tasks(task([], "kernels"), task(["dq", "dk", "dv"], "kernels"), task(["d_x"])).gradient_backends == dict.fromkeys(("dq", "dk", "dv"), "kernels")
