"""The tables and counters of the benchmark programs."""

import pytest
from counters import AVERAGED, LARGEST, SUMMED, read_counters, table_row
from measuring import markdown_table, measure_passes, short_name
from scenes import camera, random_gaussians

from gart.tracing import trace


def test_kernels_go_by_their_own_names():
    ring = "void gart::cuda::(anonymous namespace)::composite<16, true>(gart::Params, float*)"
    assert short_name(ring) == "composite"
    assert short_name("void gart::<unnamed>::composite<16>(int)") == "composite"
    assert short_name("Memset (Device)") == "Memset"


def test_a_table_has_a_column_for_every_key():
    rows = [{"a": 1, "b": 0.25}, {"a": 2, "c": None, "d": 1e-7}]
    assert markdown_table(rows).splitlines() == [
        "| a | b | c | d |",
        "| --- | --- | --- | --- |",
        "| 1 | 0.250 |  |  |",
        "| 2 |  |  | 1.0e-07 |",
    ]


def test_passes_are_timed_on_the_cpu():
    leaves = random_gaussians(20).map(lambda t: t.requires_grad_())
    tensors = list(leaves.tensors().values())
    found = measure_passes(lambda _: trace(leaves, camera()).color, tensors, 2, repetitions=2)
    assert found["forward"]["wall"] > 0
    assert found["backward"]["wall"] > 0
    assert leaves.means.grad is None  # nothing is added up between cameras


def test_counters_are_summed_by_kernel():
    metrics = [*SUMMED, *AVERAGED, *LARGEST]
    names = ",".join(f'"{name}"' for name in ("ID", "Kernel Name", *metrics))
    units = ",".join('""' for _ in range(len(metrics) + 2))

    def launch(number, kernel, ns, per_cycle, registers):
        summed = (ns, 8976e5, 1e6, 3e6, 5e6)
        values = (number, kernel, *summed, per_cycle, 50, registers, 2048)
        return ",".join(f'"{value}"' for value in values)

    text = "\n".join(
        [
            "==PROF== Connected",
            *(names, units),
            launch(0, "ring", "1,000,000", 1, 40),
            launch(1, "ring", "3000000", 3, 64),
            launch(2, "sort", "500000", 2, 32),
        ]
    )
    counters = read_counters(text)
    assert list(counters) == ["ring", "sort"]
    row = table_row("forward", "ring", counters["ring"])
    assert row["launches"] == 2
    assert row["ms"] == pytest.approx(4)
    assert row["issue limit ms"] == pytest.approx(2)
    assert row["DRAM limit ms"] == pytest.approx(8e6 / 3.8e12 * 1e3)
    assert row["instructions/cycle/SM"] == pytest.approx(2.5)
    assert row["% of peak issue"] == pytest.approx(62.5)
    assert row["registers"] == 64
    assert row["shared KB"] == 2
    assert read_counters("==ERROR== nothing") == {}
