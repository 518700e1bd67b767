"""The runs that a suite consists of."""

import pytest
import yaml

from benchmark.configuration.files import available
from benchmark.configuration.naming import folder
from benchmark.configuration.suites import suite
from benchmark.errors import ConfigError
from tests.run_helpers import TINY


class TestSuites:
    def written(self, tmp_path, **content):
        file = tmp_path / "mine.yaml"
        file.write_text(yaml.safe_dump(content))
        return str(file)

    def test_seed_by_seed(self, tmp_path):
        name = self.written(tmp_path, scenarios=[TINY], seeds=[0, 1], methods=["fedavg", "ssd method.alpha=5"])
        configs = suite(name, {}, ["training.epochs=2"])
        assert {config.training.epochs for config in configs} == {2}
        assert [(config.row, config.seed) for config in configs] == [
            ("fedavg", 0), ("ssd+alpha=5", 0), ("fedavg", 1), ("ssd+alpha=5", 1),
        ]  # fmt: skip
        assert len({folder(config) for config in configs}) == 4

    def test_parts_of_it(self, tmp_path):
        name = self.written(tmp_path, scenarios=[TINY], seeds=[0, 1, 2], methods=["fedavg", "ssd", "local"])
        chosen = suite(name, {"methods": "ssd,fedavg", "seeds": 4}, [])
        assert [(config.row, config.seed) for config in chosen] == [("ssd", 4), ("fedavg", 4)]
        every = suite(name, {"methods": "all", "seeds": [1]}, [])
        of_suite = ["fedavg", "ssd", "local"]
        assert [config.row for config in every] == [
            *of_suite,
            *(name for name in available("method") if name not in of_suite),
        ]

    def test_a_row_by_its_name(self):
        wanted = "fedx-local,scaffold-fedx,fedx-no-global-contrast"
        chosen = suite("fedx", {"methods": wanted, "seeds": [0]}, [])
        assert [config.row for config in chosen] == wanted.split(",")
        assert (chosen[0].method.global_contrast, chosen[2].method.global_contrast) == (0, 0)

    def test_all_takes_in_what_a_suite_has_more(self, tmp_path):
        more = ["fedavg objective=byol", "fedprox"]
        name = self.written(tmp_path, scenarios=[TINY], seeds=[0], methods=["fedavg"], more=more)
        assert [config.row for config in suite(name, {}, [])] == ["fedavg"]
        rows = [config.row for config in suite(name, {"methods": "all"}, [])]
        assert rows[:3] == ["fedavg", "fedavg-byol", "fedprox"]
        assert set(available("method")) < set(rows)

    def test_all_of_digits_is_every_method_and_every_row_of_fedx(self):
        rows = {config.row for config in suite("digits", {"methods": "all", "seeds": [0]}, [])}
        assert set(available("method")) <= rows
        fedx = {config.row for config in suite("fedx", {"seeds": [0]}, [])}
        assert {row.replace("-simclr", "") for row in fedx} <= rows  # digits' own rows are over SimCLR

    def test_a_suite_that_is_none(self, tmp_path):
        with pytest.raises(ConfigError, match="unknown keys \\['method'\\]"):
            suite(self.written(tmp_path, scenarios=[TINY], method=["fedavg"]), {}, [])
        with pytest.raises(ConfigError, match="is empty"):
            suite(self.written(tmp_path, scenarios=[TINY], methods=[], seeds=[0]), {}, [])
