"""A seed decides a run, and nothing else does."""

from .calls import read

SHORT = ("trainer.limit_train_batches=4", "trainer.log_every_n_steps=1", "deterministic=true")


def test_equal_seeds_give_equal_runs_and_others_do_not(train):
    first, second = (
        train(*SHORT, "seed=1"),
        train(*SHORT, "seed=1", "trainer.enable_model_summary=false"),
    )
    other = train(*SHORT, "seed=2")
    assert first.rows("train/loss") == second.rows("train/loss")
    assert first.report == second.report
    weights = read(second.last)["state_dict"]
    assert all(value.equal(weights[name]) for name, value in read(first.last)["state_dict"].items())
    assert first.rows("train/loss")[0] != other.rows("train/loss")[0]
    assert other.line("data") == first.line("data")
