from tests import run_helpers


def test_the_floor_is_the_initial_encoder_measured_by_the_same_probes(tmp_path):
    start = run_helpers.build_run(tmp_path / "other", "fedavg").loop
    start.restore()
    record, run = run_helpers.execute_run(tmp_path, "untrained")
    assert record["rounds"] == {"done": 3, "planned": 3}
    assert record["images"] == 0
    assert record["bytes"]["visits"] == 0
    assert "BatchNorm" in record["deviations"][0]
    assert set(record["scores"]) == {"knn/v1"}
    assert run_helpers.same(run.loop.server["weights"], start.server["weights"])
