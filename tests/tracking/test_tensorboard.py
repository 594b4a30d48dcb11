import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vitrail.tracking import tensorboard
from vitrail.tracking.loggers import open_loggers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard.*")


def opened(folder, resumed_at=None):
    return open_loggers(
        {"tensorboard": tensorboard.TensorBoardRun()},
        folder,
        config={"model": {"dim": 32, "pattern": None}},
        run_id=None,
        resumed_at=resumed_at,
    )


def read(folder) -> EventAccumulator:
    return EventAccumulator(str(folder / "tensorboard")).Reload()


def text(events, name) -> str:
    [event] = events.Tensors(f"{name}/text_summary")
    return event.tensor_proto.string_val[0].decode()


def test_curves_config_pictures_and_tables_lie_in_the_folder(tmp_path, fit):
    Image.new("RGB", (6, 4)).save(tmp_path / "confusion.png")
    with opened(tmp_path) as loggers:
        fit(loggers, epochs=1)
        loggers.show_summary({"test/acc": 0.5})
        loggers.show_picture("confusion", tmp_path / "confusion.png")
        loggers.show_table("receipt", [{"layer": "a", "why": None}])
    events = read(tmp_path)
    assert [point.step for point in events.Scalars("train/loss")] == list(range(10))
    assert "dim: 32" in text(events, "config")
    assert "| test/acc | 0.5 |" in text(events, "summary")
    assert "| a | None |" in text(events, "receipt")
    [image] = events.Images("confusion")
    assert (image.width, image.height) == (6, 4)


def test_a_resumed_run_hides_the_steps_that_are_taken_again(tmp_path):
    with opened(tmp_path) as loggers:
        for step in range(6):
            loggers[1].log_metrics({"loss": 1.0}, step=step)
    with opened(tmp_path, resumed_at=4) as loggers:
        for step in range(4, 8):
            loggers[1].log_metrics({"loss": 2.0}, step=step)
    values = [point.value for point in read(tmp_path).Scalars("loss")]
    assert values == [1.0] * 4 + [2.0] * 4


def test_a_missing_package_is_named_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install tensorboard, or choose logger=csv"):
        tensorboard.TensorBoardRun().open(tmp_path, run_id=None, resumed_at=None)
