"""`bench.py` on results that are there: gone on with, or side by side."""

import json
from dataclasses import asdict

import pandas as pd
import pytest

from vitrail.bench.results import RESULTS, Subject
from vitrail.tracking import environment


def results(folder, *, ms):
    """A folder with the results of a measurement."""
    folder.mkdir(parents=True)
    subject = Subject("attention", {"seed": 0}, environment.describe(), "", "", ["backend"])
    rounds = [0.99 * ms, ms, 1.01 * ms]
    row = {"backend": "eager", "time_ms": ms, "rounds_ms": rounds, "refused": ""}
    lines = [asdict(subject), {"cell": "a", "rows": [row]}]
    (folder / RESULTS).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("word", ["compare=runs/a,runs/b", "compare=[runs/a,runs/b]"])
def test_two_folders_are_compared_in_a_folder_of_their_own(command, tmp_path, word):
    results(tmp_path / "runs/a", ms=1.0)
    results(tmp_path / "runs/b", ms=3.0)
    answer = command("bench", word)
    assert (answer.code, answer.err) == (0, "")
    [page] = tmp_path.glob("runs/*_bench_compare/report.html")
    assert answer.line("report:") == str(page.relative_to(tmp_path))
    assert "slower" in answer.out
    assert "compare=[runs/a,runs/b]" in page.read_text()


def test_folders_of_any_name_are_compared_as_they_are_typed(command, tmp_path):
    results(tmp_path / "runs/a b", ms=1.0)
    results(tmp_path / "runs/é", ms=3.0)
    answer = command("bench", "compare=runs/a b,runs/é")
    assert (answer.code, answer.err) == (0, "")
    assert "slower" in answer.out


def test_training_runs_are_shown_on_one_page(command, run, tmp_path):
    answer = command("bench", f'compare="{run.folder.parent}/*"')
    assert (answer.code, answer.err) == (0, "")
    [page] = tmp_path.glob("runs/*_bench_compare/results.csv")
    [row] = pd.read_csv(page).to_dict("records")
    assert f"test accuracy {row['test/acc']:.4f}" in run.report
    assert row["steps"] == 40
    text = page.with_name("report.html").read_text()
    for part in ("val/acc", "<img", "aten::bmm", "eager"):
        assert part in text


@pytest.mark.parametrize(
    "words, message",
    {
        "into=nowhere": "into=nowhere is not a folder; name one that holds a measurement",
        "into=empty": "into=empty has no results.jsonl; name a folder of a measurement",
        "runs=nowhere": "runs= was renamed to compare=; write compare=nowhere",
        "runs=nowhere/a,b": "runs= was renamed to compare=; write compare=nowhere/a,b",
        "compare=empty": "compare=empty finds 0 measurements and no training; name two folders",
        "compare=a,b": "compare=a,b finds 0 measurements and no training",
        "compare=nowhere ++seed=1": "compare=nowhere finds 0 measurements",  # composed once more
        "experimnt=digits": "unknown key experimnt; did you mean experiment?",
        "modle=vit_tiny": "unknown key modle; did you mean model?",
    }.items(),
)
def test_what_leads_nowhere_is_refused_in_one_line(command, tmp_path, words, message):
    (tmp_path / "empty").mkdir()
    answer = command("bench", *words.split())
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert message in answer.err
    assert not list(tmp_path.glob("runs/*"))
