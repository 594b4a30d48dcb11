"""Bad input ends with one line on stderr, exit code 1, and nothing left behind."""

import re

import pytest
import torch

CLASHES = {
    "backend=sdpa_flsh": "backend=sdpa_flsh does not exist; did you mean sdpa_flash?",
    "data=synthetic data.image_size=100 model.patch_size=16": "100 is not a multiple of 16; use 96",
    "model.dim=100 model.heads=3": "dim=100 does not split over heads=3; use 2, 4 or 5 heads",
    "model.num_classes=3": "model.num_classes=3 is less than the 10 classes in Digits",
    "backend=sdpa_flash model.attention_dropout=0.1": "backend=sdpa_flash cannot drop attention",
    "precision=16-mixed": "precision=16-mixed computes in fp16",
    "precision=bf17": "precision must be bf16",
    "trainer=gpu": "trainer.accelerator=cuda needs a cuda device",
    "classifier.mixup=0.2 data.resize=native data.cache=false data.pad_to=2": "mixing needs images",
    "data.resize=native data.cache=false": "use data.pad_to=2, a multiple of model.patch_size",
    "data=image_folder data.root=nowhere": "nowhere is not a folder",
    "data=image_folder data.root=empty": "empty has no images in folders",
    "data=cifar10 data.root=nowhere data.dataset.download=false": "put cifar-10-python.tar.gz from",
    "hydra.run.dir=a_file/run": "a_file/run: Not a directory",
    "+trainer.max_epoch=1": "unknown key trainer.max_epoch; did you mean trainer.max_epochs or",
    "+model.dorpout=0.1": "unknown key model.dorpout; did you mean model.dropout?",
    "optim.name=adamm": "optim.name=adamm does not exist in timm",
    "optim.lr=-1": "optim.lr must be > 0, got -1",
    "seed=-1": "seed must be a whole number in [0, 4294967295], got -1",
    "seed=null": "seed must be a whole number in [0, 4294967295], got None",
    "ema_decay=1": "ema_decay must be in (0, 1)",
    "gate=maybe": "gate must be true or false, got maybe",
    "gate=null": "gate must be true or false, got None",
    "compile=maybe": "compile must be true or false, got maybe",
    "compile=auto": "compile=auto does not exist any more; use compile=true or false",
    "position=rope position.temperature=0": "position.temperature must be a number above 0, got 0",
    "model.attention_dropout=-0.1": "dropout must be in [0, 1), got -0.1",
    "model.registers=-1": "registers must be >= 0, got -1",
}
WITHOUT_OUR_MODEL = {
    "model=timm data=synthetic data.resize=native data.cache=false": "use a vit model",
    "model=timm data=synthetic backend=sdpa": "backend=sdpa has no use, because VisionTransf",
    "model=timm model.name=vit_tinyy_patch16_224": "is not a timm model; near it are vit_tiny_p",
    "experiment=cifar10": "did you mean cifar10_vit_tiny?",
}
FOREIGN = {
    **dict.fromkeys(
        ("cut.ckpt", "text.ckpt", "empty.ckpt", "module.ckpt"),
        "cannot be read: it is incomplete or not a checkpoint",
    ),
    **dict.fromkeys(
        ("weights.ckpt", "list.ckpt", "lightning.ckpt"),
        "was not written by vitrail (it does not describe itself)",
    ),
    "old.ckpt": "was written by vitrail 0.1.0, whose configs",
    "none.ckpt": "ckpt_path=none.ckpt is not a file; there is cut.ckpt,",
}


@pytest.fixture
def refused(tmp_path, command):
    """refused("train", "seed=x"): the one line that a command ends with; it must leave nothing."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "a_file").touch()

    def call(name: str, *overrides: str) -> str:
        before = {path for path in tmp_path.rglob("*") if path.name not in ("runs", "eval")}
        answer = command(name, *overrides)
        assert (answer.code, answer.out) == (1, "")
        assert re.fullmatch(r"error: .+\n", answer.err), answer.err
        after = {path for path in tmp_path.rglob("*") if path.name not in ("runs", "eval")}
        assert after == before, "nothing is left"
        return answer.err

    return call


@pytest.mark.parametrize("line, message", CLASHES.items(), ids=CLASHES)
def test_a_run_that_cannot_be_is_refused_before_it_begins(refused, line, message):
    small = ("model.dim=16", "model.depth=1", "model.heads=2")
    mine = [word for word in small if word.partition("=")[0] not in line]
    cpu = () if "trainer=" in line else ("trainer=cpu",)
    assert message in refused("train", *mine, *cpu, *line.split())


@pytest.mark.parametrize("line, message", WITHOUT_OUR_MODEL.items(), ids=WITHOUT_OUR_MODEL)
def test_so_is_one_that_names_another_model(refused, line, message):
    assert message in refused("train", "trainer=cpu", *line.split())


@pytest.fixture
def foreign(tmp_path, run):
    """Files that are no checkpoints of ours, where the commands are started."""
    (tmp_path / "cut.ckpt").write_bytes(run.best.read_bytes()[:-1000])
    (tmp_path / "text.ckpt").write_text("hello")
    (tmp_path / "empty.ckpt").touch()
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.ckpt")
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "weights.ckpt")
    torch.save([1, 2], tmp_path / "list.ckpt")
    lightning = {"epoch": 1, "global_step": 2, "state_dict": {}, "hyper_parameters": {"lr": 1}}
    torch.save(lightning, tmp_path / "lightning.ckpt")
    old = {**lightning, "hyper_parameters": {"vitrail": "0.1.0", "recipe": {}}}
    torch.save(old, tmp_path / "old.ckpt")


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize("command_name", ["train", "eval"])
def test_what_is_no_checkpoint_of_ours_is_refused_by_name(refused, command_name):
    for name, message in FOREIGN.items():
        assert message in refused(command_name, f"ckpt_path={name}"), name


def test_evaluation_refuses_what_the_checkpoint_decides_and_what_it_cannot_use(refused, run):
    ours = f'ckpt_path="{run.best}"'
    before = {*run.folder.rglob("*"), run.folder / "eval"}
    for override, message in {
        "model.dim=8": "unknown key model; the config has backend, batch_size, ckpt_path,",
        "data.root=empty": "data.root=empty has no use, because the data of this checkpoint",
        "split=dev": "split=dev is not in this dataset; it has train, test, val",
        "image_size=7": "7 is not a multiple of 2; use 6 or 8",
        "precision=16-mixed": "precision=16-mixed computes in fp16",
        "backend=flex2": "backend=flex2 does not exist",
    }.items():
        assert message in refused("eval", ours, override), override
    assert before >= {*run.folder.rglob("*")}, "nothing is left in the run's folder either"
    assert "ckpt_path has no value; write ckpt_path=…" in refused("eval")


def test_a_training_of_no_step_is_refused(train):
    answer = train("trainer.max_epochs=0")
    way_out = "raise trainer.max_epochs or trainer.max_steps"
    assert answer.err == f"error: no step was taken, so there is no checkpoint; {way_out}\n"
    assert answer.code == 1
