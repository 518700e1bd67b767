"""The setting `method.stays`: parts that stay with each client instead of travelling, under any method."""

import shlex
from typing import ClassVar

import pytest

from benchmark.audit.privacy_sheet import record_method
from benchmark.errors import ConfigError
from methods import trees
from methods.base import MethodError
from tests.methods.contract import PROJECTOR, STATISTICS, WEIGHTS, InterfaceContract
from tests.methods.toys import EVERYONE
from tests.methods.vits import SMALL
from tests.run_helpers import build_run, collect_visits, difference, execute_run, same, state, trained

HEAD = 4 * (PROJECTOR + 2 * 12)
"""Bytes of the projector, running statistics included."""


class Stays(InterfaceContract):
    variant = True
    method = "fedavg"


class TestProjectorStays(Stays):
    overrides = ("method.stays=[projector]",)
    sent = WEIGHTS - HEAD

    def test_a_client_returns_to_the_projector_it_left(self, tmp_path):
        run = build_run(tmp_path, self.method, *self.overrides, EVERYONE)
        method, starts = run.loop.method, {}
        receive = type(method).receive

        def noted(visit):
            receive(method, visit)
            starts[visit.client.id, visit.round] = trees.clone({"projector": method.tensors("projector")})

        method.receive = noted
        left = dict.fromkeys(range(4), trees.clone({"projector": method.tensors("projector")}))
        ends = collect_visits(run, lambda done: (done.visit, trees.clone(done.client_state["stays"])))
        run.loop.fit()
        assert len(ends) == 12
        for visit, end in sorted(ends, key=lambda each: each[0].round):
            start = starts[visit.client.id, visit.round]
            assert same(start, left[visit.client.id])
            assert difference(end, start) > 0
            left[visit.client.id] = end


class TestEncoderStays(Stays):
    overrides = ("method.stays=[encoder]",)
    batch_norm = ("average", "local")
    sent = HEAD
    refused: ClassVar = {f"{overrides[0]} federation.batch_norm=recalibrate": "needs a method with one global encoder"}

    def test_each_client_has_its_encoder_and_the_common_projector_and_all_are_evaluated(self, tmp_path):
        record, run = execute_run(tmp_path, self.method, *self.overrides)
        loop, exported = run.loop, run.loop.export()
        assert set(record["encoders"]) == set(exported) == {f"client{client}" for client in loop.client_state}
        for client in loop.client_state:
            model = exported[f"client{client}"]
            assert same(model["encoder"], loop.client_state[client]["stays"]["encoder"])
            assert same(model["projector"], loop.server["weights"]["projector"])


class TestProjectorStaysUnderScaffold(Stays):
    method, overrides = "scaffold", ("method.stays=[projector]",)

    def bill(self, run):
        sent, variates = WEIGHTS - HEAD, WEIGHTS - HEAD - 4 * (STATISTICS - 2 * 12)
        down = {("fit", "down", "weights"): sent, ("fit", "down", "c"): variates}
        return {**down, ("fit", "up", "delta_w"): sent, ("fit", "up", "delta_c"): variates}


@pytest.mark.parametrize("part", ["encoder", "projector"])
def test_one_client_is_local_training(part):
    alone = ("partition.clients=1", EVERYONE)
    split, local = trained("fedavg", f"method.stays=[{part}]", *alone).loop, trained("local", *alone).loop
    travelled, stayed = split.server["weights"], split.client_state[0]["stays"]
    assert set(travelled).isdisjoint(stayed)
    assert same({**travelled, **stayed}, local.client_state[0]["stays"])


def test_in_the_first_round_the_encoder_is_that_of_fedavg():
    once = ("federation.rounds=1", EVERYONE)
    split, whole = trained("fedavg", "method.stays=[projector]", *once).loop, trained("fedavg", *once).loop
    assert set(split.server["weights"]) == {"encoder"}
    assert same(split.server["weights"]["encoder"], whole.server["weights"]["encoder"])
    average = {"projector": whole.server["weights"]["projector"]}
    assert all(difference(split.client_state[client]["stays"], average) > 0 for client in range(4))


def test_a_decoder_that_stays_is_that_of_the_objective():
    mae = (SMALL, "objective=masked_reconstruction", "objective.decoder_width=6", "objective.decoder_depth=1")
    owns = ("method.stays=[decoder]", "objective.decoder=stays")
    ours, theirs = (trained("fedavg", *mae, "federation.rounds=2", own) for own in owns)
    assert same(state(ours), state(theirs))


@pytest.mark.parametrize(("objective", "hidden"), [("byol", 4), ("simsiam", 64)])
def test_a_predictor_that_stays_is_not_billed(objective, hidden):
    """Weights of two layers, the second's biases, and four numbers of BatchNorm for each hidden unit."""
    words = ("fedavg", f"objective={objective}", "federation.rounds=2")
    split, whole = (trained(*words, *own).loop.ledger.lines for own in (("method.stays=[predictor]",), ()))
    predictors = 2 * 4 * (8 * hidden + 8 * hidden + 8 + 4 * hidden)  # of two clients
    assert split == {line: size - predictors for line, size in whole.items()}


def test_a_target_starts_at_the_part_that_stayed(tmp_path):
    run = build_run(tmp_path, "fedavg", "objective=byol", "method.stays=[projector]", EVERYONE)
    method, seen = run.loop.method, []
    start = method.start_targets

    def started(known=()):
        start(known)
        pairs = method.objective.ema.items()
        seen.append(all(same(method.tensors(target), method.tensors(source)) for target, source in pairs))

    method.start_targets = started
    run.loop.fit()
    assert seen == [True] * 12


def test_networks_of_add_ons_and_objectives_may_stay_and_a_server_optimiser_steps_what_travels():
    loop = trained("fedx", "method.stays=[fedx]").loop
    assert set(loop.server["weights"]) == {"encoder", "projector"}
    assert all(set(loop.client_state[client]["stays"]) == {"fedx"} for client in loop.client_state)
    once, momentum = (
        ("fedavg", "federation.rounds=1"),
        "server_optimizer={class: methods.server.Momentum, momentum: 0.0}",
    )
    server = trained(*once, momentum, "method.stays=[projector]").loop.server
    assert set(server["optimizer"]["velocity"]) == {"encoder"}
    dino = ("objective=dino", "objective.outputs=8", "method.stays=[projector,prototypes,centre]")
    assert set(trained(*once, *dino).loop.server["weights"]) == {"encoder"}


def test_the_privacy_sheet_shows_what_stays_which_is_not_scored(tmp_path):
    split, whole = (record_method("fedavg", words) for words in (["method.stays=[projector]"], []))
    assert (split.keeps, whole.keeps) == (("projector",), ())
    assert split.kept_bytes == whole.entries[0].bytes - split.entries[0].bytes > 0
    assert split.entries[0].shape.startswith("encoder: ")
    words = ("method.stays=[projector]", "evaluation.protocols=[all]", "federation.rounds=1")
    scores = set(execute_run(tmp_path, "fedavg", *words)[0]["scores"])
    assert scores & {"projected/v1", "drift/v1"} == {"drift/v1"}  # of encoders


REFUSED = {
    ("fedavg", "projector"): "takes a list, each a text",
    ("fedavg", "[decoder]"): "FedAvg over SimCLR sends no 'decoder': choose among encoder, projector",
    ("fedavg", "[encoder,projector]"): "nothing would travel: choose method local instead",
    ("fedavg", "[projector] objective.projector=[]"): "the projector has no weights here that could stay",
    ("fedavg", "[target_encoder] objective=byol"): "sends no 'target_encoder': choose among encoder, projector, predic",
    ("fedavg", "[projector] objective=dino objective.outputs=8"): "projector: add centre to method.stays",
    ("fedema", "[projector] objective=dino objective.outputs=8"): "projector: add centre to method.stays",
    ("calibre", "[encoder] objective=dino objective.outputs=8"): "encoder: add centre to method.stays",
    ("local", "[projector]"): "Local over SimCLR sends no 'projector': leave it out",
    ("flesd", "[projector]"): "FLESD's clients send no weights",
    ("fedu", "[predictor]"): "FedU has to send the predictor: a client chooses .* method.threshold=0",
    ("fedu", "[encoder]"): "FedU has to send the encoder",
    ("fedema", "[encoder]"): "FedEMA has to send the encoder",
    (
        "progfedssl",
        f"[encoder] '{SMALL}' method.stages=3",
    ): "ProgFedSSL has to send the encoder: it grows at the server",
    ("lwfedssl", f"[encoder] '{SMALL}' method.stages=3"): "LWFedSSL has to send the encoder: it grows at the server",
    ("fedsc", "[projector]"): "FedSC has to send the projector: correlations",
    ("ssd", "[projector] heads.projector=[12,8]"): "SSD has to send the projector",
    ("orchestra", "[target_encoder]"): "Orchestra has to send the target_encoder: .* method.stateful=true",
    ("fedx", "[projector]"): "CrossDistillation has to send the projector: its teacher is the global model",
}


@pytest.mark.parametrize(("method", "words"), REFUSED)
def test_what_cannot_stay_is_refused_in_one_line(tmp_path, method, words):
    with pytest.raises((ConfigError, MethodError), match=REFUSED[method, words]) as error:
        build_run(tmp_path, method, *shlex.split(f"method.stays={words}"))
    assert "\n" not in str(error.value)
