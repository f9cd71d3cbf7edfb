"""Training settings: each with its default, range and meaning; YAML presets; `--set key=value`."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from gart.errors import UsageError
from gart.memory import parse_size
from gart.tracing import BACKWARD_MODES, LT_LAYOUTS, SH_MODES, TRACERS

STRATEGIES = ("mcmc", "adc", "error")
PRESETS = Path(__file__).with_name("presets")


def _setting(
    default: Any,
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    is_size: bool = False,
) -> Any:
    metadata = {
        "meaning": meaning,
        "low": low,
        "high": high,
        "choices": choices,
        "is_size": is_size,
    }
    return field(default=default, metadata=metadata)


@dataclass
class TrainConfig:
    """Everything that decides a training run, besides the capture and the device.

    Iteration numbers of the schedules are those of a run of 30,000 iterations; shorter runs shrink
    them (`gart.training.schedule`). Learning rates are those of 3DGS, densification is 3DGS-MCMC's
    unless `strategy` says otherwise.

    Raises:
        UsageError: a value is out of its range, on construction.
    """

    iterations: int = _setting(30_000, "optimisation steps, one view each", low=1)
    budget: int = _setting(1_000_000, "most Gaussians", low=1)
    seed: int = _setting(0, "seed of everything random", low=0, high=2**63 - 1)
    backward: str = _setting(
        "primitive", "how the tracer gathers gradients", choices=BACKWARD_MODES
    )
    lt_layout: str = _setting(
        "hits", "what it gathers them from; aabb is the papers' buffer", choices=LT_LAYOUTS
    )
    tracer: str = _setting(
        "tiles", "how rays find their hits: lists by tile, or a tree", choices=TRACERS
    )
    sh: str = _setting(
        "ray",
        "where colours are taken: at the ray, the mean, or to first order there",
        choices=SH_MODES,
    )
    transmittance_min: float = _setting(
        1e-4, "a ray ends where less light than this is left, in training", low=0, high=0.1
    )
    sh_degree: int = _setting(3, "final degree of the spherical harmonics", low=0, high=3)
    sh_every: int = _setting(1000, "iterations between two degrees", low=1)
    background: str = _setting(
        "capture",
        "colour behind the scene; `capture` takes the capture's own",
        choices=("capture", "black", "white", "random"),
    )

    ssim_weight: float = _setting(0.2, "weight of 1 - SSIM; L1 has the rest", low=0, high=1)
    opacity_reg: float = _setting(0.01, "weight of the mean opacity", low=0)
    scale_reg: float = _setting(0.01, "weight of the mean scale", low=0)

    lr_means: float = _setting(1.6e-4, "first step of the means, in scene extents", low=0)
    lr_means_final: float = _setting(1.6e-6, "last step of the means, in scene extents", low=0)
    lr_quats: float = _setting(1e-3, "learning rate of the quaternions", low=0)
    lr_scales: float = _setting(5e-3, "learning rate of the log scales", low=0)
    lr_opacity: float = _setting(5e-2, "learning rate of the opacity logits", low=0)
    lr_sh_dc: float = _setting(2.5e-3, "learning rate of the mean colour", low=0)
    lr_sh_rest: float = _setting(1.25e-4, "learning rate of higher harmonics", low=0)

    exposure: bool = _setting(
        False, "learn an affine colour transform for every photograph; held-out views have none"
    )
    lr_exposure: float = _setting(1e-2, "first learning rate of those transforms", low=0)
    lr_exposure_final: float = _setting(1e-3, "last learning rate of those transforms", low=0)

    refine_poses: bool = _setting(False, "correct the pose of every training photograph")
    refine_intrinsics: bool = _setting(
        False, "correct every lens: focal length, principal point, k1, k2"
    )
    lr_pose: float = _setting(
        1e-3, "first learning rate of poses, in radians and camera extents", low=0
    )
    lr_intrinsics: float = _setting(1e-4, "first learning rate of lenses, in focal lengths", low=0)
    refine_from: int = _setting(0, "first iteration that refines cameras", low=0)
    refine_until: int = _setting(
        15_000, "iteration at which cameras stay and rates are a hundredth", low=0
    )

    init_opacity: float = _setting(0.5, "opacity of the first Gaussians", low=1e-4, high=0.9999)
    init_scale: float = _setting(0.4, "first scale, in nearest-neighbour distances", low=1e-6)
    init_random: int = _setting(100_000, "Gaussians to begin with where no points are", low=1)

    strategy: str = _setting(
        "mcmc",
        "which Gaussians there are: 3DGS-MCMC, 3DGS's density control, or growth by error",
        choices=STRATEGIES,
    )
    coarse_until: int = _setting(
        0, "last iteration on photographs of half their size, unless cameras are refined", low=0
    )
    densify_from: int = _setting(500, "first iteration that densifies", low=0)
    densify_until: int = _setting(25_000, "iteration at which densification ends", low=0)
    densify_every: int = _setting(100, "iterations between two densifications", low=1)
    growth: float = _setting(
        0.05, "growth per densification until the budget (mcmc)", low=0, high=1
    )
    dead_opacity: float = _setting(
        0.005, "opacity at which a Gaussian is moved or removed", low=0, high=0.5
    )
    grad_threshold: float = _setting(
        2e-4, "gradient of the mean in the image from which a Gaussian grows (adc)", low=0
    )
    reset_every: int = _setting(3000, "iterations between two resets of opacity (adc)", low=1)
    noise: float = _setting(5e5, "exploration noise of the means", low=0)

    average_from: int = _setting(
        0,
        "the run gives the mean of its scenes from here on, unless it densifies later; 0 is never",
        low=0,
    )

    filter_variance: float = _setting(0.2, "3D smoothing filter, in pixels^2; 0 is off", low=0)
    filter_every: int = _setting(100, "iterations between two filter updates", low=1)

    morton_every: int = _setting(
        1000, "iterations between two sorts of the Gaussians in memory; 0 is never", low=0
    )
    memory_limit: int = _setting(
        0, "bytes it may take on the device (8GB); 0 is what is free", low=0, is_size=True
    )
    log_every: int = _setting(10, "iterations per line of metrics.jsonl", low=1)
    checkpoint_every: int = _setting(5000, "iterations between two checkpoints", low=1)
    checkpoint_keep: int = _setting(2, "checkpoints that are kept", low=1)

    def __post_init__(self) -> None:
        for f in fields(self):
            setattr(self, f.name, _checked(f, getattr(self, f.name)))
        if self.lr_means_final > self.lr_means:
            raise UsageError(
                f"lr_means_final is {self.lr_means_final:g}, above lr_means, {self.lr_means:g}; "
                "the step of the means must not grow, so lower lr_means_final"
            )
        if self.refines and self.refine_until <= self.refine_from:
            raise UsageError(
                f"refine_until is {self.refine_until}, not after refine_from, {self.refine_from}; "
                "cameras would stay as they are, so raise refine_until"
            )

    @property
    def refines(self) -> bool:
        """Whether poses or lenses are corrected."""
        return self.refine_poses or self.refine_intrinsics

    def as_dict(self) -> dict[str, int | float | str]:
        """Plain values by name, for YAML and JSON."""
        return asdict(self)


def preset_names() -> list[str]:
    """Names `load_config` takes besides files."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def load_config(source: str | Path = "default", overrides: Iterable[str] = ()) -> TrainConfig:
    """Settings of a preset name or YAML file, with `key=value` overrides on top.

    A run folder's `config.yaml` works too: its settings stand under `training`.

    Raises:
        UsageError: no such preset or file, not YAML, an unknown key, or a value not allowed.
    """
    settings = _read(source)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise UsageError(
                f"--set takes key=value, got {override!r}; write for example budget=500000"
            )
        settings[key.strip()] = value.strip()
    return config_from(settings, where="--set or --config")


def config_from(settings: Mapping[str, object], where: str = "the configuration") -> TrainConfig:
    """Settings from a mapping; values may be strings.

    Raises:
        UsageError: an unknown key, or a value not allowed.
    """
    known = [f.name for f in fields(TrainConfig)]
    for key in settings:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the settings are {', '.join(known)}"
            raise UsageError(f"{where} names an unknown setting {key!r}; {hint}")
    return TrainConfig(**dict(settings))  # type: ignore[arg-type]


def _read(source: str | Path) -> dict[str, object]:
    path = PRESETS / f"{source}.yaml" if str(source) in preset_names() else Path(source)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise UsageError(
            f"--config {source} cannot be read ({reason}); "
            f"give a YAML file or one of the presets {', '.join(preset_names())}"
        ) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        raise UsageError(
            f"--config {source} is not valid YAML{line}; write one `key: value` a line"
        ) from error
    if content is None:
        return {}
    if isinstance(content, dict) and isinstance(content.get("training"), dict):
        content = content["training"]
    if not isinstance(content, dict):
        raise UsageError(f"--config {source} holds no settings; write one `key: value` a line")
    return dict(content)


def _checked(f: Field[Any], value: object) -> int | float | str:
    """`value` as the field's type, or a UsageError that says what is allowed."""
    low, high, choices = (f.metadata[key] for key in ("low", "high", "choices"))
    allowed = f"one of {', '.join(choices)}" if choices else _range(f.type, low, high)
    if f.metadata["is_size"]:
        allowed = "a size such as 8GB, or 0"
    refused = UsageError(f"{f.name} is {value!r}; allowed is {allowed}")
    if f.type == "bool":
        truth = value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value))
        if truth is None:
            raise UsageError(f"{f.name} is {value!r}; allowed is true or false")
        return truth
    if f.type == "str":
        if value not in choices:
            raise refused
        return str(value)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise refused
    number: int | float
    if f.metadata["is_size"] and isinstance(value, str):
        try:
            value = parse_size(value)
        except ValueError:
            raise refused from None
    try:
        number = int(value) if isinstance(value, (int, str)) else value
    except ValueError:
        try:
            number = float(value)
        except ValueError:
            raise refused from None
    if not math.isfinite(number) or (f.type == "int" and number != int(number)):
        raise refused
    if (low is not None and number < low) or (high is not None and number > high):
        raise refused
    return int(number) if f.type == "int" else float(number)


def _range(kind: object, low: float | None, high: float | None) -> str:
    noun = "a whole number" if kind == "int" else "a number"
    if low is None:
        return noun
    return f"{noun} from {low:g} to {high:g}" if high is not None else f"{noun} of at least {low:g}"
