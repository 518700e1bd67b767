"""Images of each client, public images, and the clients that take part."""

import numpy as np
import pytest

from benchmark.configuration.compose import compose
from benchmark.errors import ConfigError
from benchmark.experiment import data, factory
from benchmark.rng import Streams
from benchmark.speed.scaling import POPULATION
from datamodules.errors import PartitionError
from datamodules.heterogeneity import MAX_CLIENTS
from datamodules.parts import Parts
from tests.run_helpers import TINY, build_run, execute_run


def in_turn(labels, min_size):
    """A user's function, with an argument that is a key of other partitions."""
    return [np.arange(k, len(labels), min_size + 1) for k in range(min_size + 1)]


PARTS = [np.arange(k + 2) for k in range(5)]


def config(*words, method="flesd"):
    return compose(TINY, method, list(words))


def taking_part(*words, method="flesd"):
    given = config(*words, method=method)
    return data.clients(given, factory.method(given, data.source(given)), PARTS)


@pytest.mark.parametrize("absent", [None, 0, 2, 4])
def test_places_lead_to_ids_and_ids_to_what_they_hold(absent):
    clients = data.Clients(PARTS, absent, {3: "wide"})
    ids = [k for k in range(5) if k != absent]
    assert len(clients) == len(ids)
    architectures = {k: "wide" if k == 3 else "default" for k in ids}
    assert [(client.id, client.examples, client.architecture) for client in clients] == [
        (k, k + 2, architectures[k]) for k in ids
    ]
    assert [client.id for client in clients[1:3]] == ids[1:3]
    assert clients[-1].id == ids[-1]
    with pytest.raises(IndexError):
        clients[len(ids)]


def test_who_gives_its_images_is_absent_under_methods_that_look_at_them_only():
    given = ("public.name=client", "public.client=2")
    assert [client.id for client in taking_part(*given)] == [0, 1, 3, 4]
    assert [client.id for client in taking_part(*given, method="fedavg")] == [0, 1, 2, 3, 4]
    assert len(taking_part("public.name=synthetic")) == 5
    given = config("public.name=client", "public.client=9")
    assert data.partition_data(given, data.source(given), with_public=False)[1] is None


def test_public_images_of_the_runs_own_dataset_are_no_clients():
    given = config("public.name=synthetic", "public.share=0.25")
    images = data.source(given)
    parts, shown = data.partition_data(given, images, with_public=True)
    held = np.concatenate(parts.parts)
    assert sorted([*held, *shown.held]) == list(range(len(images.train.labels)))
    for label in range(3):
        mine = images.train.labels[shown.held] == label
        assert mine.sum() == round(0.25 * (images.train.labels == label).sum())
    seeds = (config("public.name=synthetic", "public.share=0.25", f"seed={k}") for k in (1, 0))
    other, again = (data.partition_data(seed, images, with_public=True)[1] for seed in seeds)
    assert again.held.tolist() == shown.held.tolist() != other.held.tolist()


def test_clients_may_keep_the_public_images_and_one_may_not_train():
    given = ("public.name=synthetic", "public.share=0.25", "public.keep=true", "public.absent=0")
    images = data.source(config(*given))
    parts, shown = data.partition_data(config(*given), images, with_public=True)
    plain, _ = data.partition_data(config("public.name=null"), images, with_public=True)
    assert [part.tolist() for part in parts.parts] == [part.tolist() for part in plain.parts]
    removed = data.partition_data(config(*given[:2]), images, with_public=True)[1]
    assert shown.held.tolist() == removed.held.tolist()
    assert [client.id for client in taking_part(*given)] == [1, 2, 3, 4]
    assert len(taking_part(*given, method="fedavg")) == 5
    with pytest.raises(ConfigError, match=r"public\.absent=5: clients are 0 to 4"):
        taking_part("public.name=synthetic", "public.absent=5")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("public.name=client", "public.absent=0"), "public.absent means nothing"),
        (("public.name=digits", "public.keep=true"), "public.keep means nothing"),
        (("public.name=null", "public.share=0.5"), "say whose images"),
        (("public.client=1", "public.name=synthetic"), "public.client means nothing"),
        (("public.share=0", "public.name=synthetic"), r"in \(0, 1\]"),
        (("public.who=1",), "public.who"),
        (("public.client=one",), "public.client"),
    ],
)
def test_what_cannot_be_public_is_refused(words, message):
    """Where the config is composed, or where the images are divided."""
    with pytest.raises(ConfigError, match=message):  # noqa: PT012
        given = config(*words)
        data.partition_data(given, data.source(given), with_public=True)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ("[]", "federation.encoders.small: no client that takes part"),
        ("[0]", "federation.encoders.small: no client that takes part"),  # its images are public
        ("[1,2,3]", "encoder: no client that takes part"),
        ("[1,1]", "client 1 has 'small' already"),
        ("[11]", "client 11 is none of 0 to 3"),
    ],
)
def test_an_architecture_is_run_by_clients_there_are(clients, message, tmp_path):
    small = f"{{class: methods.networks.convnet, widths: [4], strides: [2], clients: {clients}}}"
    with pytest.raises(ConfigError, match=message):
        build_run(tmp_path, "flesd", "public.client=0", f"federation.encoders={{small: {small}}}")


class TestHeldOut:
    DOMAINS = ("data.name=domains", "data.options={}", "partition.held_out=0.2")

    @pytest.mark.parametrize(
        ("words", "clients"),
        [(("partition.name=folders",), 8), (("partition.name=folders", "partition.clients=3"), 3), ((), 4),
         (("partition.name=iid", "partition.clients=1"), 1), (("data.limit=0.1",), 4),
         (("partition.name=folders", "data.limit=0.2"), 8), (("public.name=domains", "public.share=0.1"), 4),
         (("partition.name=folders", "public.name=domains", "public.share=0.1", "public.keep=true"), 8)],
    )  # fmt: skip
    def test_whatever_the_rule_nobody_has_an_image_of_the_same_clients(self, words, clients):
        given = config(*self.DOMAINS, *words)
        images = data.source(given)
        held, public = data.partition_data(given, images, with_public=True)
        out = {"handwriting-3", "handwriting-4"}  # of seed 0
        shown = [] if public is None else [public.held]
        everyone = set(np.unique((images.whole or images).train.clients).tolist())
        assert len(held.parts) == clients
        for rows in (np.concatenate(held.parts), *shown):
            assert set(images.train.clients[rows].tolist()) <= everyone - out
        expected = everyone - out if clients != 3 else {images.train.clients[part[0]] for part in held.parts}
        assert set(images.train.clients[np.concatenate(held.parts)].tolist()) == expected
        assert held.notes[0].startswith("2 of 10 clients, with 568 of 2,638 images, are held out: handwriting-3, ")
        if not words and images.whole is None:
            assert sum(map(len, held.parts)) == 2638 - 568

    def test_a_domain_is_left_out_by_the_names_of_its_clients_and_seeds_of_the_partition_fix_who(self):
        names = [f"display-{k}" for k in range(5)]
        given = config(*self.DOMAINS[:2], "partition.name=folders", f"partition.held_out=[{','.join(names)}]")
        assert data.clients_of(given, data.source(given)).names == tuple(f"handwriting-{k}" for k in range(5))
        fixed = [config(*self.DOMAINS, f"seed={seed}", "partition.seed=1") for seed in (0, 1)]
        one, other = (data.clients_of(each, data.source(each)).notes for each in fixed)
        assert one == other

    @pytest.mark.parametrize(
        ("words", "line"),
        [(("partition.held_out=0.1",), r"partition\.held_out: data set synthetic names no clients"),
         (("data.name=domains", "data.options={}", "partition.held_out=many"),
          r"partition\.held_out='many': a partition takes a number or a list, each a text or a whole number or null"),
         (("data.name=domains", "data.options={}", "partition.held_out=[anna]"), "no client 'anna': the clients"),
         (("data.name=domains", "data.options={}", "partition.name=folders", "partition.twin=random"),
          "partition.twin=random: give iid, or the concentration of Dirichlet draws")],
    )  # fmt: skip
    def test_what_cannot_be_meant_is_one_line(self, words, line):
        given = config(*words)
        with pytest.raises((ConfigError, PartitionError), match=line) as error:
            data.clients_of(given, data.source(given))
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("twin", ["iid", "0.1"])
    def test_a_twin_has_the_clients_and_the_images_of_the_natural_federation(self, twin):
        words = (*self.DOMAINS, "partition.name=folders", "partition.clients=6")
        natural, dealt = (data.clients_of(given := config(*words, *own), data.source(given))
                          for own in ((), (f"partition.twin={twin}",)))  # fmt: skip
        assert (dealt.names, dealt.held_out.tolist()) == (natural.names, natural.held_out.tolist())
        assert list(map(len, dealt.parts)) == list(map(len, natural.parts))
        assert sorted(np.concatenate(dealt.parts)) == sorted(np.concatenate(natural.parts))
        assert not any(map(np.array_equal, dealt.parts, natural.parts))
        assert any(note.startswith("images are dealt anew to clients of these sizes: ") for note in dealt.notes)

    def test_those_of_a_function_are_held_out_whatever_arguments_it_has(self):
        words = (f"partition.class={__name__}.in_turn", "partition.min_size=2", "partition.clients=null")
        given = config(*words, "partition.held_out=[2]")
        held = data.clients_of(given, data.source(given))
        assert [part[0] for part in held.parts] == [0, 1]
        assert held.held_out.tolist() == list(range(2, 79, 3))

    def test_those_that_a_file_names_are_held_out_before_small_ones_and_ids_count_the_others(self, tmp_path):
        file = tmp_path / "clients.csv"
        file.write_text("index,client\n" + "\n".join(f"{k},{'abcde'[k % 5]}" for k in range(79)))
        words = ("partition.name=file", f"partition.path={file}", "partition.held_out=[b]")
        given = config(*words, "public.name=client", "public.client=1")
        held = data.clients_of(given, data.source(given))
        assert held.names == ("a", "c", "d", "e")
        assert held.notes[1] == "numbers of clients count those that take part: 1 is c"


class TestShift:
    GIVEN = ("partition.shift=[none,invert]", "evaluation.protocols=[clients/v2,by-client/v1]", "federation.rounds=1")

    def test_clients_train_on_the_images_of_their_group_and_each_group_has_its_score(self, tmp_path):
        record, run = execute_run(tmp_path / "run", "fedavg", *self.GIVEN)
        plain = build_run(tmp_path / "plain", "fedavg", "row=plain")
        for client, part in enumerate(run.data.parts):
            (one, other) = (each.data.source.train.images[part] for each in (plain, run))
            assert np.array_equal(other, one if client % 2 == 0 else 255 - one)
        assert "images by group of clients, client k in group k modulo 2: none, invert" in record["deviations"]
        for protocol in ("clients/v2", "by-client/v1"):
            assert {"accuracy of none", "accuracy of invert"} <= record["scores"][protocol].keys()
        assert record["provenance"]["dataset"] == plain.data.source.sha256
        assert record["settings"]["partition.shift"] == ["none", "invert"]
        assert record["scenario"] != "tiny"

    @pytest.mark.parametrize(
        ("words", "line"),
        [(("partition.shift=invert",), r"partition\.shift='invert': a partition takes a list, each a text or null"),
         (("partition.shift=[invrt]",), "'invrt' is no transform: give none"),
         (("data.name=domains", "data.options={}", "partition.name=folders", "partition.shift=[invert]"),
          r"partition\.shift is for clients that a rule makes")],
    )  # fmt: skip
    def test_what_cannot_be_meant_is_one_line(self, tmp_path, words, line):
        with pytest.raises((ConfigError, PartitionError), match=line) as error:
            build_run(tmp_path, "fedavg", *words)
        assert "\n" not in str(error.value)


def test_a_run_takes_the_slices_of_its_cohorts_alone(tmp_path, monkeypatch):
    """From its start to its record: what is worked out for all clients is of their arrays."""
    taken, slice_of = set(), Parts.__getitem__

    def counted(parts, client):
        taken.add(int(client))
        return slice_of(parts, client)

    monkeypatch.setattr(Parts, "__getitem__", counted)
    words = ["data.channels=1", "partition.name=lognormal", "data.options.examples=2000", "partition.clients=400"]
    words += ["federation.participation=0.01", "training.steps=1", "federation.rounds=2"]
    execute_run(tmp_path, "fedavg", *words, scenario=str(POPULATION))
    cohorts = {client for round in range(2) for client in Streams(0).cohort(round, 400, 0.01)}
    assert len(cohorts) == 8
    drawn = set(range(MAX_CLIENTS))  # in the figure of the partition
    assert cohorts <= taken <= cohorts | drawn
