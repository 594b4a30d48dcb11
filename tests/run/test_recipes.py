"""The parts of every recipe fit together, which is found without reading any data."""

import pytest
from hydra import compose, initialize_config_dir

from vitrail.run.plan import Plan
from vitrail.startup import configs

RECIPES = sorted(path.stem for path in configs().glob("experiment/*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_parts_of_a_recipe_fit_together(recipe):
    with initialize_config_dir(str(configs()), version_base="1.3"):
        config = compose("train", [f"experiment={recipe}", "trainer=cpu"])
    plan = Plan.asking(config, training=True)
    assert len(plan.layers) == config.model.depth
