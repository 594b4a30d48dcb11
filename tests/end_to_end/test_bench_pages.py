"""`bench.py` on results that are there: gone on with, side by side, and training runs on a page."""

import json

import pytest

from vitrail.bench.results import CELLS, Subject, write_tables
from vitrail.tracking import environment


def results(folder, *, ms):
    """A folder with the results of a measurement."""
    folder.mkdir(parents=True)
    row = {"backend": "eager", "forward_ms": ms, "forward_ms_p10": ms, "forward_ms_p90": ms}
    about = {"bench": "attention", "environment": environment.describe(), "config": {"seed": 0}}
    write_tables(folder, [row | {"refused": ""}], {**about, "keys": ["backend"]})


@pytest.mark.parametrize("word", ["compare=runs/a,runs/b", "compare=[runs/a,runs/b]"])
def test_two_folders_are_compared_in_a_folder_of_their_own(command, tmp_path, word):
    results(tmp_path / "runs/a", ms=1.0)
    results(tmp_path / "runs/b", ms=3.0)
    answer = command("bench", word)
    assert (answer.code, answer.err) == (0, "")
    [page] = tmp_path.glob("runs/*_bench_compare/report.html")
    assert answer.line("report:") == str(page.relative_to(tmp_path))
    assert "forward_ms, of 1 pair of rows: higher in B in 1; B / A is 3 in" in answer.out
    assert "compare=[runs/a,runs/b]" in page.read_text()


def test_folders_of_any_name_are_compared_as_they_are_typed(command, tmp_path):
    results(tmp_path / "runs/a b", ms=1.0)
    results(tmp_path / "runs/é", ms=3.0)
    answer = command("bench", "compare=runs/a b,runs/é")
    assert (answer.code, answer.err) == (0, "")
    assert "B / A is 3 in" in answer.out


def test_a_comparison_that_cannot_be_made_leaves_no_folder(command, tmp_path):
    answer = command("bench", "compare=runs/a,runs/b")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert answer.err.startswith("error: compare: there is no runs/a/results.json")
    assert not list(tmp_path.glob("runs/*"))


def test_training_runs_are_shown_on_one_page(command, run, tmp_path):
    answer = command("bench", f'runs="{run.folder.parent}/*"')
    assert (answer.code, answer.err) == (0, "")
    [page] = tmp_path.glob("runs/*_bench_runs/results.json")
    [row] = json.loads(page.read_text())["rows"]
    assert f"test accuracy {row['test/acc']:.4f}" in run.figures
    assert (row["steps"], row["attention"]) == (40, "eager in 1")
    text = page.with_name("report.html").read_text()
    for part in ("val/acc", "<svg", "aten::bmm", "of what is allowed"):
        assert part in text


@pytest.mark.parametrize(
    "word, message",
    {
        "into=nowhere": "into=nowhere is not a folder; name one that holds a measurement",
        "into=empty": "into=empty holds no measurement to go on with; name a folder that has cells",
        "runs=nowhere": "runs=nowhere leads to no training run",
        "runs=nowhere/a,nowhere/b": "runs=nowhere/a,nowhere/b leads to no training run",
        "compare=empty": "compare=empty does not name two folders; write compare=A,B",
        "experimnt=digits": "unknown key experimnt; did you mean experiment?",
        "modle=vit_tiny": "unknown key modle; did you mean model?",
    }.items(),
)
def test_what_leads_nowhere_is_refused_in_one_line(command, tmp_path, word, message):
    (tmp_path / "empty").mkdir()
    answer = command("bench", word)
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert message in answer.err
    assert not list(tmp_path.glob("runs/*"))


def test_a_folder_of_another_measurement_is_refused(command, tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    subject = Subject("step", {"seed": 0}, {}, "", "")
    (folder / CELLS).write_text(json.dumps(vars(subject)) + "\n")
    answer = command("bench", "into=kept", "bench=attention", "logger=none")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert "kept holds a measurement of step and this is one of attention" in answer.err
    assert not list(tmp_path.glob("runs/*"))


def test_the_folder_that_training_would_write_into_is_not_made(command, tmp_path):
    """bench.yaml replaces train.yaml's, also where a command composes its config once more."""
    answer = command("bench", "runs=nowhere", "++seed=1")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert "runs=nowhere leads to no training run" in answer.err
    assert not list(tmp_path.glob("runs/*"))
