import re

import pytest
import yaml

from gart.errors import UsageError
from gart.tracing import BACKWARD_MODES, SH_MODES, TraceSettings
from gart.training import TrainConfig, config_from, load_config, preset_names
from gart.training.config import PRESETS
from gart.training.schedule import Schedule


def refused(match: str):
    return pytest.raises(UsageError, match=f"^{re.escape(match)}$")


GROWTH_BY_ERROR = {
    "sh": "center",
    "strategy": "error",
    "densify_every": 300,
    "dead_opacity": 0.05,
    "average_from": 25_000,
}


def changed(preset: str) -> dict[str, object]:
    usual = TrainConfig().as_dict()
    return {k: v for k, v in load_config(preset).as_dict().items() if v != usual[k]}


def test_every_preset_loads():
    assert {"adc", "default", "demo", "fast", "mcmc", "paper"} == set(preset_names())
    for name in preset_names():
        load_config(name)
    assert changed("mcmc") == {}
    assert load_config("demo").iterations < 5000


def test_default_has_the_papers_length_and_budget_and_grows_by_error():
    assert changed("default") == GROWTH_BY_ERROR
    assert (load_config().iterations, load_config().budget) == (30_000, 1_000_000)


def test_fast_is_default_in_a_fifth_of_the_iterations_with_fewer_gaussians():
    fast = load_config("fast")
    assert changed("fast") == {
        **GROWTH_BY_ERROR,
        "iterations": 6_000,
        "budget": 400_000,
        "coarse_until": 12_000,
        "transmittance_min": 1e-3,
        "checkpoint_every": 6_000,
    }
    schedule = Schedule.of(fast)
    due = [i for i in range(1, fast.iterations + 1) if schedule.densifies(i)]
    assert len(due) == 82
    assert schedule.growing_steps(due[0]) == 41
    assert schedule.coarse_until == 2400


def test_paper_is_3dgarts_settings():
    paper = load_config("paper")
    stated = (paper.iterations, paper.budget, paper.sh, paper.sh_degree)
    assert stated == (30_000, 1_000_000, "ray", 3)
    assert (paper.backward, paper.lt_layout) == ("primitive", "aabb")
    assert TraceSettings().alpha_min == pytest.approx(1 / 255)  # not a setting of training
    assumed = (paper.filter_variance, paper.init_scale, paper.init_opacity, paper.noise)
    assert assumed == (0, 0.1, 0.5, 5e5)
    named = yaml.safe_load((PRESETS / "paper.yaml").read_text())
    written = {key: type(getattr(paper, key))(value) for key, value in named.items()}
    assert paper == TrainConfig(**written)
    matters = {key for key in paper.as_dict() if key.startswith(("lr_", "densify_"))}
    off = {"lr_exposure", "lr_exposure_final", "lr_pose", "lr_intrinsics"}
    assert matters - set(named) == off
    assert not paper.exposure


def test_overrides_are_parsed_by_type():
    config = load_config(
        "default",
        ["budget=2e5", "iterations = 1_000", "lr_means=3e-4", "backward=pixel", "seed=7"],
    )
    assert (config.budget, config.iterations, config.seed) == (200_000, 1000, 7)
    assert type(config.budget) is int
    assert config.lr_means == 3e-4
    assert config.backward == "pixel"


def test_yaml_round_trip_also_from_a_run_folder(tmp_path):
    config = load_config("demo", ["lr_means_final=1e-7", "sh=center"])
    plain, nested = tmp_path / "plain.yaml", tmp_path / "config.yaml"
    plain.write_text(yaml.safe_dump(config.as_dict()))
    nested.write_text(yaml.safe_dump({"gart": {"version": "1"}, "training": config.as_dict()}))
    assert load_config(plain) == config
    assert load_config(nested) == config


def test_yaml_reads_exponents_without_a_dot(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("lr_quats: 1e-4\n")  # a string to YAML 1.1
    assert load_config(path).lr_quats == 1e-4


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("budget=many", "budget is 'many'; allowed is a whole number of at least 1"),
        ("budget=0", "budget is '0'; allowed is a whole number of at least 1"),
        ("iterations=1.5", "iterations is '1.5'; allowed is a whole number of at least 1"),
        ("iterations=inf", "iterations is 'inf'; allowed is a whole number of at least 1"),
        ("ssim_weight=1.2", "ssim_weight is '1.2'; allowed is a number from 0 to 1"),
        ("lr_scales=nan", "lr_scales is 'nan'; allowed is a number of at least 0"),
        ("sh_degree=4", "sh_degree is '4'; allowed is a whole number from 0 to 3"),
        ("exposure=yes", "exposure is 'yes'; allowed is true or false"),
        ("backward=ray", "backward is 'ray'; allowed is one of primitive, hybrid, pixel"),
        ("budget", "--set takes key=value, got 'budget'; write for example budget=500000"),
        (
            "iteratons=5",
            "--set or --config names an unknown setting 'iteratons'; did you mean iterations?",
        ),
        (
            "lr_means_final=1",
            "lr_means_final is 1, above lr_means, 0.00016; "
            "the step of the means must not grow, so lower lr_means_final",
        ),
    ],
)
def test_a_wrong_override_is_refused(override, message):
    with refused(message):
        load_config("default", [override])


@pytest.mark.parametrize(("given", "value"), [("true", True), ("false", False), (True, True)])
def test_truth_values(given, value):
    assert config_from({"exposure": given}).exposure is value


def test_an_unlike_key_lists_the_settings():
    with pytest.raises(UsageError, match=r"'zzz'; the settings are iterations, budget, seed"):
        config_from({"zzz": 1})


@pytest.mark.parametrize("value", [True, None, [1]])
def test_values_of_other_types_are_refused(value):
    with refused(f"budget is {value!r}; allowed is a whole number of at least 1"):
        config_from({"budget": value})


def test_files_that_are_no_settings_are_refused(tmp_path):
    with refused(
        "--config nothing.yaml cannot be read (No such file or directory); "
        f"give a YAML file or one of the presets {', '.join(preset_names())}"
    ):
        load_config("nothing.yaml")
    path = tmp_path / "bad.yaml"
    path.write_text("budget: 1\n  seed: [")
    with refused(f"--config {path} is not valid YAML at line 2; write one `key: value` a line"):
        load_config(path)
    path.write_text("- 1\n")
    with refused(f"--config {path} holds no settings; write one `key: value` a line"):
        load_config(path)


def test_the_tracers_choices_are_the_settings():
    for sh in SH_MODES:
        assert TrainConfig(sh=sh).sh == sh
    with refused(f"sh is 'x'; allowed is one of {', '.join(SH_MODES)}"):
        TrainConfig(sh="x")
    with refused(f"backward is 'x'; allowed is one of {', '.join(BACKWARD_MODES)}"):
        TrainConfig(backward="x")
