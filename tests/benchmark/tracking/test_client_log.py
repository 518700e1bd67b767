"""`clients.jsonl`: a line a visit, each once, whatever ends the run; without it a run is the same run."""

import json
import math
from dataclasses import replace

import pytest
import torch

from benchmark.configuration.compose import compose
from benchmark.configuration.identity import identity
from benchmark.federation.loop import FederatedLoop
from benchmark.federation.updates import update_norms
from benchmark.tracking.callbacks import CLIENTS, ClientLog, RoundLog
from benchmark.tracking.progress import Display
from methods import trees
from methods.base import Cat, Each, Mean, Phase, Sum
from tests import run_helpers
from tests.benchmark.cli.cli_helpers import stop
from tests.run_helpers import TINY, OnVisitEnd, build_experiment, build_run, same, state, trained

ON = "log_clients=true"


def lines_of(folder):
    """The lines, without times."""
    lines = [json.loads(line) for line in (folder / CLIENTS).read_text().splitlines()]
    assert all(line.pop("seconds") > 0 for line in lines)
    return lines


def logged(folder, method, *overrides, name=""):
    """A run without evaluation whose clients are logged, and the results of its visits by round, phase and client.

    name: begins the names of clients.
    """
    run, visits = build_run(folder, method, *overrides), {}
    if name:
        run.loop.clients = [replace(client, name=f"{name} {client.id}") for client in run.loop.clients]

    def see(done):
        start, end = (dict(trees.leaves(message.get("weights", {}))) for message in (done.visit.message, done.message))
        both = start.keys() & end.keys()
        norm = math.sqrt(sum((end[path].double() - start[path].double()).square().sum() for path in both))
        visits[done.visit.round + 1, done.visit.phase.name, done.visit.client.id] = (done.loss, done.images, norm)

    run.folder.mkdir(parents=True)
    run.loop.callbacks = [OnVisitEnd(see), ClientLog(run.folder / CLIENTS)]
    run.loop.fit()
    return run, visits


def test_a_line_is_a_visit_of_a_client_with_the_norm_of_its_update(tmp_path):
    """SSD begins with a phase of all clients that does not train."""
    run, visits = logged(tmp_path, "ssd", name="site")
    lines, order = lines_of(run.folder), [phase.name for phase in run.loop.plan(0)]
    assert len(order) == 2
    assert [(line["round"], line["phase"], line["client"]) for line in lines] == sorted(
        visits, key=lambda visit: (visit[0], order.index(visit[1]), visit[2])
    )
    for line in lines:
        loss, images, norm = visits[line["round"], line["phase"], line["client"]]
        assert (line["loss"], line["images"], line["name"]) == (loss, images, f"site {line['client']}")
        assert line.get("norm") == (None if loss is None else {"weights": pytest.approx(norm, rel=1e-6)})


def test_only_what_is_trained_is_an_update():
    counts = torch.tensor([3, 4])
    sent, replied = {"w": {"a": torch.ones(2)}}, {"w": {"a": torch.tensor([4.0, 5.0]), "n": counts}, "n": {"n": counts}}
    replied |= {"difference": {"a": torch.tensor([6.0, 8.0])}, "rows": {"a": torch.ones(2)}}
    uplink = {"w": Mean(), "n": Sum(), "difference": Each(), "rows": Cat()}
    assert update_norms(Phase("fit", uplink=uplink), sent, replied) == {"w": 5.0, "difference": 10.0}
    assert update_norms(Phase("look", work="observe", uplink=uplink), sent, replied) == {}


def test_the_servers_own_workers_have_no_lines_and_clients_without_names_none(tmp_path):
    run, visits = logged(tmp_path, "fedmkd", "federation.rounds=1", "public.name=client", "public.client=1")
    lines = lines_of(run.folder)
    assert {line["phase"] for line in lines} == {"fit"} < {phase for _, phase, _ in visits}
    assert all("name" not in line for line in lines)


def test_what_is_sent_is_measured_before_masks_and_after_the_clip(tmp_path):
    words = (
        "privacy.mechanism=central", "privacy.clip=0.5", "privacy.noise_multiplier=1", "federation.batch_norm=local",
    )  # fmt: skip
    run, _ = logged(tmp_path, "fedavg", *words, "privacy.secure_aggregation=true", "federation.rounds=1")
    assert [line["norm"] for line in lines_of(run.folder)] == [{"weights": pytest.approx(0.5, rel=1e-5)}] * 2


def test_it_changes_nothing_of_the_run_and_off_it_is_not_there(tmp_path):
    plain, on = (compose(TINY, "scaffold", words) for words in ([], [ON]))
    assert identity(plain) == identity(on)
    assert (plain.row, plain.scenario) == (on.row, on.scenario)
    run, _ = logged(tmp_path / "on", "scaffold")
    assert same(state(run), state(trained("scaffold")))
    off = build_experiment(tmp_path / "off", "fedavg", "federation.rounds=1")
    off.execute()
    assert (off.folder / "rounds.jsonl").exists()
    assert not (off.folder / CLIENTS).exists()


class TestResumed:
    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, tmp_path_factory):
        """The lines of an unbroken run."""
        experiment = build_experiment(tmp_path_factory.mktemp("clients") / "whole", "scaffold", ON)
        experiment.execute()
        return lines_of(experiment.folder)

    @pytest.mark.parametrize(
        ("owner", "moment", "left"),
        [
            (Display, "on_visit_end", 4),  # within the third round
            (FederatedLoop, "save", 4),  # its lines are written, its checkpoint is not
            (RoundLog, "on_round_end", 4),  # its checkpoint is, and the next callbacks have not run
        ],
    )
    def test_no_line_is_lost_and_none_is_there_twice(self, tmp_path, whole, owner, moment, left):
        half = build_experiment(tmp_path, "scaffold", ON)
        if owner is FederatedLoop:
            with pytest.MonkeyPatch.context() as patch:
                save = FederatedLoop.save
                patch.setattr(FederatedLoop, "save", lambda loop: save(loop) if loop.round < 2 else 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    half.execute()
        else:
            stop(half, 2, owner, moment)
        assert len(lines_of(half.folder)) == left
        with (half.folder / CLIENTS).open("a") as stream:
            stream.write('{"round": 2, "phase": "f')  # of a kill while a line was written
        build_experiment(tmp_path, "scaffold", ON).execute()
        assert lines_of(half.folder) == whole

    def test_a_run_that_starts_over_begins_a_new_file(self, tmp_path, whole):
        half = build_experiment(tmp_path, "scaffold", ON)
        stop(half, 2)
        (half.folder / "checkpoint" / "state.pt").unlink()
        build_experiment(tmp_path, "scaffold", ON).execute()
        assert lines_of(half.folder) == whole

    @pytest.mark.ranks
    def test_two_ranks_write_the_lines_of_one(self, tmp_path, whole):
        ranks = run_helpers.by_hand(*({"LOCAL_RANK": str(k), "NODE_RANK": "0"} for k in (0, 1)))
        given = (run_helpers.call_by_name, __name__, "execute", tmp_path)
        children = [run_helpers.in_child(*given, environment=rank) for rank in ranks]
        assert [run_helpers.finish(child) for child in children] == [0, 0]
        assert lines_of(next(tmp_path.rglob(CLIENTS)).parent) == whole


def execute(folder):
    """A run on two ranks."""
    experiment = build_experiment(folder, "scaffold", ON, "devices=2", "accelerator=cpu")
    experiment.execute()
    experiment.processes.close()
