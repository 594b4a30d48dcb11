from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

CONFIGS = Path(__file__).parents[2] / "configs"


def composed(choice: str, *overrides: str):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose(choice, [*overrides])[choice.partition("/")[0]]


@pytest.mark.parametrize("choice", [f"optim/{path.stem}" for path in CONFIGS.glob("optim/*.yaml")])
def test_an_optimizer_built_from_a_config_is_saved_as_plain_containers(choice, tmp_path):
    recipe = instantiate(composed(choice, "+optim.options.betas=[0.8,0.9]"))
    optimizer, _ = recipe.build(torch.nn.Linear(4, 4), 10)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    groups = torch.load(tmp_path / "state.pt", weights_only=True)["param_groups"]
    assert [tuple(group["betas"]) for group in groups] == [(0.8, 0.9)] * 2


@pytest.mark.parametrize("name", ["sgd", "lamb", "lion"])
def test_another_optimizer_needs_its_name_alone(name):
    assert instantiate(composed("optim/adamw", f"optim.name={name}")).name == name


@pytest.mark.parametrize("choice", ["trainer/auto", "trainer/cpu"])
def test_a_trainer_of_this_machine_can_be_made(choice):
    trainer = instantiate(composed(choice, "+deterministic=false"), logger=False)
    assert trainer.world_size == 1
