"""Two folders side by side: a ratio for every figure, and no winner inside the noise."""

import csv
import json

import pytest

from vitrail.bench import run
from vitrail.bench.results import write_tables

from .made_up import MadeUp, config, row

HERE = {
    "vitrail": "0.1.0",
    "packages": {"torch": "2.14.1"},
    "cpu": {"name": "a [fast] cpu", "cores": 2, "threads": 2},
    "gpu": None,
}


def figure(name, tokens, ms, low, high, **more):
    return row(name, tokens, forward_ms=ms, forward_ms_p10=low, forward_ms_p90=high, **more)


def kept(folder, rows, *, bench="made_up", environment=HERE, settings=None, keys=MadeUp.keys):
    folder.mkdir(parents=True)
    about = {"bench": bench, "environment": environment, "config": settings or {"seed": 0}}
    write_tables(folder, rows, {**about, "keys": [*keys]})
    return str(folder)


@pytest.fixture
def compare(tmp_path):
    """Compare folders: the rows that this leaves, by backend, tokens and figure, and the page."""

    def call(*folders):
        (tmp_path / "out").mkdir(exist_ok=True)
        run(config(compare=list(folders)), tmp_path / "out", overrides=["compare=[A,B]"])
        results = json.loads((tmp_path / "out/results.json").read_text(encoding="utf-8"))
        rows = {(one["backend"], one["tokens"], one["figure"]): one for one in results["rows"]}
        return rows, (tmp_path / "out/report.html").read_text(encoding="utf-8")

    return call


def test_bands_apart_tell_which_is_lower_and_bands_that_meet_tell_no_difference(
    compare, tmp_path, capsys
):
    a = [
        figure("eager", 64, 10.0, 9.0, 11.0),
        figure("eager", 197, 20.0, 19.0, 21.0),
        figure("sdpa", 64, 5.0, 4.0, 6.0),
        figure("sdpa", 197, 8.0, 7.0, 9.0),
    ]
    b = [
        figure("sdpa", 197, 8.5, 9.0, 9.5, peak_mib=10.5),  # touches
        figure("sdpa", 64, 5.5, 4.5, 6.5),  # overlaps
        figure("eager", 197, 40.0, 38.0, 42.0),  # higher
        figure("eager", 64, 5.0, 4.5, 5.5),  # lower
    ]
    rows, page = compare(kept(tmp_path / "old", a), kept(tmp_path / "new", b))
    verdicts = {key[:2]: one["verdict"] for key, one in rows.items() if key[2] == "forward_ms"}
    assert verdicts == {
        ("eager", 64): "lower in B",
        ("eager", 197): "higher in B",
        ("sdpa", 64): "no difference",
        ("sdpa", 197): "no difference",
    }
    one = rows["eager", 197, "forward_ms"]
    assert (one["A old"], one["B new"], one["B / A"]) == (20.0, 40.0, 2.0)
    assert (one["A old_low"], one["B new_high"]) == (19.0, 42.0)
    assert rows["sdpa", 197, "peak_mib"]["verdict"] == "no band", "a ratio alone is no proof"
    assert rows["eager", 64, "peak_mib"]["verdict"] == "no difference"
    sentence = (
        "forward_ms, of 4 pairs of rows: lower in B in 1, higher in B in 1, no difference in 2; "
        "B / A is 1.081 in the median, from 0.5 to 2"
    )
    assert sentence in page
    assert sentence in capsys.readouterr().out
    with (tmp_path / "out/results.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows) == 8


def test_what_one_folder_lacks_is_listed_with_the_reason(compare, tmp_path):
    a = [row("eager", 64), row("sdpa", 64), row("none", 64)]
    b = [
        row("eager", 64),
        row("sdpa", 64, forward_ms=None, peak_mib=None, refused="cannot <x>"),
        row("flex", 64),
    ]
    rows, page = compare(kept(tmp_path / "old", a), kept(tmp_path / "new", b))
    assert {key[0] for key in rows} == {"eager"}
    alone = page[page.index("In one of them alone") :]
    assert "cannot &lt;x&gt;" in alone
    assert "not measured there" in alone
    assert alone.index("sdpa") < alone.index("flex")
    assert "none" not in alone.split("<tbody>")[1].split("</tbody>")[0]


def test_a_column_that_tells_the_folders_apart_is_what_is_compared(compare, tmp_path):
    a = [row("eager", count, dtype="float32") for count in (64, 197)]
    b = [row("eager", count, dtype="bfloat16") for count in (64, 197)]
    rows, page = compare(kept(tmp_path / "old", a), kept(tmp_path / "new", b))
    assert len(rows) == 4
    assert "dtype is float32 in A and bfloat16 in B" in page


def test_where_machines_and_settings_differ_is_on_the_page(compare, tmp_path):
    there = {**HERE, "packages": {"torch": "2.15.0"}, "gpu": {"cards": [{"name": "H200"}]}}
    rows = [row("eager", 64)]
    _, page = compare(
        kept(tmp_path / "a/x", rows),
        kept(tmp_path / "b/x", rows, environment=there, settings={"seed": 7}),
    )
    assert "A: a [fast] cpu, 2 of 2 cores, torch 2.14.1" in page
    assert "B: H200, torch 2.15.0" in page
    parts = ("Where the environments differ", "packages.torch", "Where the configs differ", "seed")
    places = [page.rindex(part) for part in parts]
    assert places == sorted(places)


def test_a_ratio_to_nothing_is_none(compare, tmp_path):
    zero = [row("eager", 64, peak_mib=0.0)]
    rows, _ = compare(kept(tmp_path / "old", zero), kept(tmp_path / "new", zero))
    assert rows["eager", 64, "peak_mib"]["B / A"] is None


def test_what_cannot_be_compared_is_refused_in_one_line(compare, tmp_path):
    rows = [row("eager", 64)]
    a = kept(tmp_path / "a", rows)
    step = kept(tmp_path / "step", rows, bench="step")
    other = kept(tmp_path / "other", [row("sdpa", 197)] * 2 + [row("eager", 65)])
    early = tmp_path / "early"
    early.mkdir()
    (early / "results.json").write_text('{"rows": []}')
    for folders, message in {
        (a,): "does not name two folders; write compare=A,B",
        (a, a, a): "does not name two folders",
        (
            a,
            "nowhere",
        ): "there is no nowhere/results.json; name folders of measurements that are fin",
        (
            a,
            step,
        ): f"{a} holds a measurement of made_up and {step} one of step; name two of one kind",
        (a, other): f"no row of {a} has its like in {other}; measure the same backend, tokens",
        (a, str(early)): "lacks bench; measure it again",
    }.items():
        with pytest.raises(ValueError, match="compare") as refusal:
            compare(*folders)
        assert message in str(refusal.value)
        assert "\n" not in str(refusal.value)


def test_one_word_is_no_two_folders(tmp_path):
    with pytest.raises(ValueError, match="compare=runs/a does not name two folders"):
        run(config(compare="runs/a"), tmp_path)
