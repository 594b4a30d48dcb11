"""What the loggers get from a run, and that nobody meets wandb who did not ask for it."""

import json

from .calls import SMALL, launch


def test_the_wandb_run_holds_the_nested_config_the_curves_and_the_receipt(run, offline_runs):
    [offline] = offline_runs(run.folder)
    assert offline.exit_code == 0
    assert offline.config["model"]["dim"] == 16
    assert offline.config["optim"]["schedule"]["warmup"] == 0.05
    assert offline.steps("train/loss") == [9, 19, 29, 39]
    assert offline.steps("val/acc") == [19, 39]
    assert offline.steps("lr") == [9, 19, 29, 39]
    assert f"{offline.summary['test/acc']:.4f}" in run.report
    tables = {
        path.name.partition("_")[0]: json.loads(path.read_text())
        for path in run.folder.glob("wandb/offline-run-*/files/media/table/*.json")
    }
    columns, [row] = tables["receipt"]["columns"], tables["receipt"]["data"]
    assert dict(zip(columns, row, strict=True))["chosen"] == "eager"
    kernels = {
        row[tables["kernels"]["columns"].index("kernel")] for row in tables["kernels"]["data"]
    }
    assert kernels >= {"aten::bmm", "aten::_softmax"}
    assert list(run.folder.glob("wandb/offline-run-*/files/media/images/test/confusion*.png"))
    assert run.line("W&B run:") == f"wandb sync '{run.folder}/wandb'"


def test_whoever_does_not_ask_for_wandb_does_not_import_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(f"""
import os, sys
from vitrail.cli import train
short = {[*SMALL, "trainer.max_steps=1", "trainer.log_every_n_steps=1"]!r}
for logger in ("csv", "wandb"):
    sys.argv = ["train.py", *short, "logger=" + logger, "hydra.run.dir=" + logger]
    os.environ["WANDB_MODE"] = "disabled"
    train()
    assert "wandb" not in sys.modules, logger
""")
    answer = launch(program, place=tmp_path)
    assert (answer.code, answer.err) == (0, "")
    assert "W&B" not in answer.out
    for logger in ("csv", "wandb"):
        assert (tmp_path / logger / "metrics.csv").is_file()
        assert not (tmp_path / logger / "wandb").exists()
