from tests.run_helpers import build_run, execute_run, same


def test_the_floor_is_the_initial_encoder_measured_by_the_same_probes(tmp_path):
    start = build_run(tmp_path / "other", "fedavg").loop
    start.restore()
    record, run = execute_run(tmp_path, "untrained")
    assert record["rounds"] == {"done": 3, "planned": 3}
    assert record["images"] == record["bytes"]["visits"] == 0
    assert "BatchNorm" in record["deviations"][0]
    assert set(record["scores"]) == {"knn/v1"}
    assert same(run.loop.server["weights"], start.server["weights"])
