"""docs/explanation/results.md."""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import chain, combinations, pairwise

import numpy as np
from scipy.stats import binom, spearmanr, ttest_rel

from leaderboards import choices, error_rates
from leaderboards.comparisons import bases, differences
from leaderboards.encoders import WORST
from leaderboards.pages.board import boards
from leaderboards.paired import NEGLIGIBLE
from leaderboards.papers.tables import collect
from leaderboards.rank import FLOOR
from leaderboards.store import load_yaml
from tests.committed import records
from tests.statements.boards import KNN, LINEAR, MICRO, MINI, ROOT, Board, ahead, interval, span

ANGLE = "drift/v1 local_global_angle"


@cache
def tuned(scenario: str) -> dict[str, choices.Choice]:
    """The committed searches of a scenario by row."""
    found = choices.collect(ROOT / "leaderboards" / "tuned")
    return {each.row: each for each in found if each.scenario == scenario}


def small_scenarios() -> Iterator[str]:
    parts = (seeds, objectives, methods_over_their_bases, fedx, fedsc, orchestra, flesd, uniformity, other_protocols)
    return chain.from_iterable(part() for part in (*parts, drift))


def seeds() -> Iterator[str]:
    assert {len(row.headline) for row in MINI.rows.values()} == {3}
    five = {row.row for row in MICRO.rows.values() if len(row.headline) == 5}
    assert {len(row.headline) for row in MICRO.rows.values()} == {3, 5}
    assert {"fedavg-simclr", "fedavg-byol", "fedavg-align_uniform", "fedavg-spectral-correlation", "orchestra"} <= five
    distilled = [found.rows["flesd"].images / found.rows["fedavg-simclr"].images for found in (MICRO, MINI)]
    assert distilled == [0.9, 0.9]
    yield "`cifar10-micro` (99,200 images by the clients,"
    yield f"five seeds for {len(five)} rows, the main ones of all methods but the newer"
    yield "and what they build on, three for others) and `cifar10-mini`"
    assert {MICRO.rows[row].images for row in ("fedx-simclr", "fedx-local")} == {MICRO.rows["fedavg-simclr"].images}
    yield "FLESD's tenth fewer, FedX's third view not counted;"
    yield "(396,800 images, likewise; three seeds)"


def objectives() -> Iterator[str]:
    best = uniform, simclr, spectral = ("fedavg-align_uniform", "fedavg-simclr", "fedavg-spectral")
    middle = ("fedavg-moco", "fedavg-protocl")
    assert {MICRO.verdict(*pair) for pair in combinations(best, 2)} == {"no clear difference"}
    assert MICRO.all_are("more", best, ("fedavg-rotation", "fedavg-byol", "fedavg-simsiam"))
    assert MICRO.all_are("no clear difference", middle, ("fedavg-byol", "fedavg-simsiam"))
    yield "alignment and uniformity, SimCLR and the spectral loss are better than rotation, BYOL and SimSiam"
    named = (*best, *middle, "fedavg-rotation", "fedavg-byol", "fedavg-simsiam")
    rates = {row: MICRO.rows[row].settings["optimizer.lr"] for row in named}
    searched = tuned(MICRO.scenario)
    assert {row: searched[row].seed for row in named if row in searched} == {"fedavg-byol": 0, "fedavg-simsiam": 0}
    assert {row: rate for row, rate in rates.items() if rate != rates["fedavg-simclr"]} == {"fedavg-simsiam": 0.4}
    assert rates["fedavg-byol"] == 0.1
    yield "Of these eight only BYOL and SimSiam were tuned, under seed 0"
    assert MICRO.all_are("more", [uniform], middle)
    assert MICRO.all_are("no clear difference", [spectral], middle)
    yield "and alignment and uniformity is better than MoCo and ProtoCL"
    more = MINI.even(uniform, simclr)
    yield f"On `cifar10-mini` alignment and uniformity is {more:.1f} points above SimCLR, which does not count"


def methods_over_their_bases() -> Iterator[str]:
    built = {
        "fedavg-simclr": ("fedprox", "scaffold", "feddecorr", "ldawa", "fedu2"),
        "fedavg-byol": ("fedu", "fedema"),
        "fedavg-align_uniform": ("ssd", "ssd-dsr", "ssd-pd"),
    }
    pairs = [(row, base) for base, rows in built.items() for row in rows]
    assert {MICRO.verdict(*pair) for pair in pairs} == {"no clear difference"}
    assert not {MINI.verdict(*pair) for pair in pairs} & {"more", "less"}
    largest = max(abs(found.gain(*pair)) for pair in pairs for found in (MICRO, MINI))
    yield f"no difference that rounds to more than {largest:.1f} points from the row they build on, on either board,"
    yield "and none that counts"
    assert not MICRO.leave_out_0(pairs)
    assert not MINI.leave_out_0([pair for pair in pairs if pair in MINI.declared])
    yield "nor does the interval of any of these pairs by itself leave 0 out"
    assert any({*MINI.rows[row].hardware} ^ {*MINI.rows[base].hardware} for row, base in pairs)
    assert not any(found.rows["fedprox"].activity for found in (MICRO, MINI))
    assert Board("icons").rows["fedprox"].idle
    yield f"FedProx has mu = {MICRO.rows['fedprox'].settings['method.mu']}, at which its term hardly acts on `icons`"
    yield f"changes beyond {MICRO.within(pairs)} and {MINI.within([pair for pair in pairs if pair in MINI.declared])}"


def fedx() -> Iterator[str]:
    fedx = [("fedx-simclr", "fedavg-simclr"), ("fedx-byol", "fedavg-byol"), ("fedu-fedx", "fedu")]
    near = [("fedx-moco", "fedavg-moco"), ("fedx-protocl", "fedavg-protocl")]
    assert [MICRO.verdict(*pair) for pair in fedx + near] == ["less", *["no clear difference"] * 4]
    below = [-MICRO.gain(*pair) for pair in fedx]
    assert min(below) > 0
    yield f"On `cifar10-micro` FedX over SimCLR is {below[0]:.1f} points below SimCLR alone, which counts"
    within = max(abs(MICRO.gain(*pair)) for pair in near)
    yield f"over BYOL and FedU it is {span(below[1:])} below these"
    yield f"and over MoCo and ProtoCL within {within:.1f} of them"
    yield "none of these four counts"
    yield f"On `cifar10-mini` it is {MINI.less('fedx', 'fedavg-simclr'):.1f} below SimCLR, which counts"
    lacking = ("fedx-no-global-contrast", "fedx-local")
    others = ("fedx-simclr", "fedx-no-local-relation", "fedx-no-global-relation")
    seeds = MICRO.rows[lacking[0]].seeds
    simclr = MICRO.rows["fedavg-simclr"]
    without, rest = ([ahead(MICRO.rows[row], simclr, seeds) for row in rows] for rows in (lacking, others))
    assert max(*without, *rest) < 0
    assert len(seeds) == 3
    yield "under the three seeds that all have"
    yield f"FedX is {span(without)} below its base without it, with it {span(rest)}"
    assert MICRO.all_are("no clear difference", ("fedx-no-global-contrast", "fedx-local", *others[1:]), ["fedx-simclr"])
    assert tuned(MICRO.scenario)["fedx"].seed == 0
    assert {row.settings["optimizer.lr"] for name, row in MICRO.rows.items() if "fedx" in name} == {0.05}
    yield "which a search without labels chose for FedX over SimCLR under seed 0, so"


def fedsc() -> Iterator[str]:
    noises = ("fedsc", "fedsc-sigma0.00104", "fedsc-sigma0.01", "fedsc-sigma0.1")
    assert MICRO.all_are("no clear difference", noises, ["fedavg-spectral-correlation"])
    yield "FedSC, without noise on its matrices or with noise up to sigma = 0.1, makes no clear difference"
    lower = -MICRO.even("fedsc-sigma1", "fedsc")
    yield f"with sigma = 1 it is {lower:.1f} points below itself without noise, which does not count"
    loss = MICRO.even("fedavg-spectral-correlation", "fedavg-spectral")
    yield f"FedAvg with that loss is {-loss:.1f} points below FedAvg with the spectral loss over pairs of different"
    mu = [MICRO.rows[row].settings["objective.mu"] for row in ("fedavg-spectral", "fedavg-spectral-correlation")]
    yield "images (at mu = {:.0f} in place of {:.0f}), which does not count".format(*mu)
    alone = MICRO.alone("fedavg-spectral", "fedavg-spectral-correlation")
    yield f"though the pair by itself is at {alone}"


def orchestra() -> Iterator[str]:
    parts = [row for row in MICRO.rows if row.startswith("orchestra-") and row != "orchestra-no-rotation"]
    assert MICRO.all_are("no clear difference", parts, ["orchestra"])
    assert MICRO.score("fedavg-byol") < MICRO.score("orchestra") < MICRO.score("fedavg-simclr")
    assert {MICRO.fit.differ("orchestra", row) for row in ("fedavg-byol", "fedavg-simclr")} == {False}
    yield "On `cifar10-micro` Orchestra's mean is between those of SimCLR and BYOL, and the test tells it from neither"
    yield f"on `cifar10-mini` it is {-MINI.gain('orchestra', 'fedavg-byol'):.1f} points below BYOL"
    largest = max(abs(MICRO.gain(row, "orchestra")) for row in parts)
    yield f"private centroids make differences of at most {largest:.1f} points, of which none counts"
    assert not any(MICRO.fit.differ(row, "orchestra-no-rotation") for row in parts)
    pair = ("orchestra-no-rotation", "orchestra")
    yield f"Without its rotation it is {-MICRO.even(*pair):.1f} points lower, which does not count"
    yield f"on `cifar10-drift`, where the same is {Board('cifar10-drift').less(*pair):.1f} points, it does"


def flesd() -> Iterator[str]:
    rounds = {count: Board(f"cifar10-micro-t{count}") for count in (1, 2)}
    assert rounds[1].score("fedavg") <= MICRO.score(FLOOR) < rounds[1].score("flesd")
    largest = max(abs(rounds[count].gain("flesd", "flesd-idle")) for count in (1, 2))
    yield f"are within {largest:.1f} points of it in the mean after one round or two"
    five, twenty = -MICRO.even("flesd", "fedavg-simclr"), MINI.less("flesd", "fedavg-simclr")
    yield f"After the five of `cifar10-micro` FedAvg is {five:.1f} points ahead of it"
    simclr = MICRO.rows["fedavg-simclr"].headline
    behind = sorted(simclr[seed] - value for seed, value in MICRO.rows["flesd"].headline.items())
    assert behind[-1] > 2 * behind[-2]
    assert len(behind) == 5
    yield f"over the other four FedAvg is {sum(behind[:-1]) / 4:.1f} ahead"
    yield f"after the twenty of `cifar10-mini` {twenty:.1f}, of which the latter counts"
    assert not {*MINI.rows["flesd"].hardware} & {*MINI.rows["fedavg-simclr"].hardware}
    yield "there the two ran on different processors"


def uniformity() -> Iterator[str]:
    rows = ("ssd", "ssd-dsr", "ssd-pd", "ssd-hard", "fedavg-align_uniform")
    ssd, dsr, pd, hard, base = (MINI.score(row, "geometry/v1 uniformity_between") for row in rows)
    assert abs(dsr - base) < 0.05
    assert min(ssd, pd) > base + 0.05 > base - 0.05 > hard
    yield f"on `cifar10-mini` is {dsr:.2f}, and that of the base {base:.2f}"
    yield f"features are less uniform, at {pd:.2f} and {ssd:.2f}"
    yield f"has the lowest uniformity between clients, {hard:.2f}"
    pair = ("ssd-hard", "fedavg-align_uniform")
    within = [MINI.score(row, "geometry/v1 uniformity_within") for row in reversed(pair)]
    assert 0.8 * (base - hard) < within[0] - within[1] < base - hard
    yield f"falls almost as far, from {within[0]:.2f} to {within[1]:.2f}"
    published = {cell.ours.row: float(cell.value) for cell in collect() if cell.paper == "ssd" and cell.ours}
    assert 4.5 < published["fedavg-align_uniform"] - published["ssd-hard"] < 5.5
    yield f"It costs {MINI.less(*pair):.1f} points, in direction as in the paper, whose loss is some 5 by two"
    yield f"on `cifar10-micro` {-MICRO.even(*pair):.1f}, which does not count"


def other_protocols() -> Iterator[str]:
    close = [
        *("linear-lbfgs/v1 accuracy", "linear-sweep/v1 accuracy", "knn-by-k/v1 accuracy_k20"),
        *("semi/v1 accuracy_10pct", "clusters/v1 nmi"),
    ]
    loose = ["semi/v1 accuracy_1pct", "semi/v1 accuracy_5pct", "transfer-digits/v1 accuracy"]
    near, far = (span(map(order_agrees, keys), 2) for keys in (close, loose))
    scored = {len(MINI.of_seed(0, key)) - 1 for key in (*close, *loose)}
    yield f"under seed 0, order the {scored.pop()} rows that have their scores there much as the headline does"
    assert not scored
    yield f"the rank correlation is {near} for other linear probes, kNN, clusters and fine-tuning on 10 %"
    yield f"of the labels, {far} for fewer labels and transfer to the digits"
    yield f"orders rows less ({order_agrees('label-free/v1 score'):.2f})"
    digits = MINI.of_seed(0, "transfer-digits/v1 accuracy")
    lower = sum(value < digits[FLOOR] for row, value in digits.items() if row != FLOOR)
    yield f"On transfer to the digits {lower} of the {len(digits) - 1} rows are below the untrained encoder"
    barely = sum(0 < (digits[FLOOR] - value) * 359 / 100 < 1.01 for value in digits.values())  # 359 test images
    assert (barely, digits["local"] < digits[FLOOR]) == (2, True)
    by_knn = MINI.of_seed(0, "transfer-digits/v1 accuracy_knn")
    assert min(by_knn, key=by_knn.__getitem__) == FLOOR
    yield "by the linear probe, two of them by no more than one image, and by kNN none is"


def drift() -> Iterator[str]:
    angles = angles_on_mini()
    seeds = [[*MINI.by_seed(row, ANGLE)] for row in angles]
    assert ({*map(len, seeds)}, {*chain.from_iterable(seeds)}) == ({1}, {0, 1})
    yield f"Clients drift from their mean by {min(angles.values()):.0f} to {max(angles.values()):.0f} degrees"
    yield "(one seed a row, not the same for all)"


def angles_on_mini() -> dict[str, float]:
    return {row: angle for row, angle in MINI.cells(ANGLE).items() if row != "centralized"}


def order_agrees(key: str) -> float:
    """Spearman's correlation of a score with the headline, over the rows of `cifar10-mini` that have it at seed 0."""
    scores, headline = (MINI.of_seed(0, name) for name in (key, LINEAR))
    rows = [row for row in scores if row != FLOOR]
    return float(spearmanr(*([values[row] for row in rows] for values in (scores, headline))).statistic)


def ranks() -> Iterator[str]:
    found, shown = error_rates.read(), boards(records())
    for name, rows in shown.items():  # else `python -m leaderboards.error_rates` writes them again
        tested = [pair for pair in differences(rows, bases()) if pair.interval is not None]
        ranked = [row for row in rows if row.rank is not None]
        assert [found.get(name, {}).get(key, 0) for key in ("rows", "pairs")] == [len(ranked), len(tested)], name
    limit = binom.ppf(0.999, error_rates.BOARDS, 0.05) / error_rates.BOARDS  # a rate above 5 % goes beyond it
    ((bold, of_bold),) = ((name, of) for name, of in found.items() if of.get("bases", 0) > limit)
    assert max(of["ranks"] for of in found.values()) <= limit
    assert max(of["moderated"] for of in found.values() if "moderated" in of) <= limit
    yield f"than 5 % of boards like `{bold}`, on {100 * of_bold['bases']:.1f} %"
    yield "there FedU and FedEMA are less than 0.1 points from BYOL"
    added = {pair.row: [*pair.by_seed.values()] for pair in differences(shown[bold], bases())}
    assert max(map(abs, added["fedu"] + added["fedema"])) < 0.1
    assert max(np.ptp(values) for values in added.values()) > 1
    yield f"moderated variances, which are likelier, it is {100 * of_bold['moderated']:.1f} %"
    yield "The family-wise error rate is about 5 % or less"
    yield f"*less than {NEGLIGIBLE} either way*"


def below_the_floor() -> Iterator[str]:
    rows = [row for row in MICRO.rows.values() if row.row != FLOOR == row.floor]
    low = {row.row for row in rows if KNN in row.below}
    assert {"fedu", "fedsc", "fedsc-sigma1"} <= low
    assert not any(LINEAR in row.below for row in rows)
    yield f"By kNN {len(low)} of the {len(rows)} rows of a convnet on `cifar10-micro` are below the untrained encoder"
    yield f"({MICRO.score(FLOOR, KNN):.1f} %), among them FedSC and FedU"
    floor = MICRO.by_seed(FLOOR, KNN)
    assert not any(KNN in row.below for row in MINI.rows.values())
    drift = Board("cifar10-drift").rows
    under = {row.row for row in drift.values() if KNN in row.below}
    assert under == {"orchestra", "orchestra-no-rotation", "fedavg-byol", "fedema"}
    by = drift[FLOOR].cells[KNN].mean - drift["orchestra"].cells[KNN].mean
    share = f"{len(under)} of {len(drift) - 1}"
    yield f"on `cifar10-drift` {share} are, the rows of Orchestra, itself by {by:.1f} points, and of BYOL"

    def surely(row: str) -> bool:
        values = MICRO.by_seed(row, KNN)
        return ttest_rel(list(values.values()), [floor[seed] for seed in values]).pvalue < 0.05

    yield f"By a paired t-test at 5 % for each by itself, {sum(map(surely, low))} of these rows are below"
    yield f"of {len(low)} tests chance alone passes about {'one' if 0.5 < 0.05 * len(low) < 1.5 else '?'}"
    sizes = MINI.cells("spectrum/v1 dimensions_90")
    trained = [value for row, value in sizes.items() if row != FLOOR]
    yield "Counted by nine tenths of the variance"
    yield f"needs {sizes[FLOOR]:.0f}, the trained ones {min(trained):.0f} to {max(trained):.0f}"
    mini, micro = _leads(MINI), _leads(MICRO)
    others = {row: pair for row, pair in micro.items() if not row.startswith("orchestra")}
    yield f"rank correlation {_order(mini):.2f} over the {len(mini)} trained rows there"
    yield f"on `cifar10-micro` {_order(others):.2f} over {len(others)} rows"
    yield f"but {_order(micro):.2f} with the {len(micro) - len(others)} of Orchestra and its variants (all seed 0)"


def _leads(found: Board) -> dict[str, tuple[float, float]]:
    """Trained row -> its features' dimensions and the probe's lead over kNN in points, under seed 0."""
    wide, probe, knn = (found.of_seed(0, key) for key in ("spectrum/v1 dimensions_90", LINEAR, KNN))
    return {row: (size, probe[row] - knn[row]) for row, size in wide.items() if row != FLOOR}


def _order(pairs: Mapping[str, tuple[float, float]]) -> float:
    """Spearman's correlation."""
    return float(spearmanr(*zip(*pairs.values(), strict=True)).statistic)


def strong_drift() -> Iterator[str]:
    found, (chosen, other) = Board("cifar10-drift"), load_yaml("designs.yaml").values()
    assert not set(found.rows) & {*chosen, *other}
    drift = [record for record in records() if record["scenario"] == "cifar10-drift"]
    settings = [record["settings"] for record in drift if record["row"] != "centralized"]
    assert {(each["federation.rounds"], each["training.steps"]) for each in settings} == {(5, 62)}
    yield "five rounds of 62 steps"
    same = [MICRO.rows[row].headline for row in ("feddecorr", "fedx-simclr", "ldawa", "fedavg-moco")]
    on_micro = [{seed: row[seed] for seed in (0, 1, 2)} for row in same]
    chosen, other, micro = (separation(rows) for rows in (chosen.values(), other.values(), on_micro))
    assert chosen > max(other, micro)
    yield f"is {chosen:.1f} times the error's for this design, and {other:.1f} times for two rounds of 155 steps"
    yield f"on `cifar10-micro` it is {micro:.1f} times"

    ladder = ("fedavg-align_uniform", "fedavg-simclr", "orchestra", "fedavg-byol")
    steps = list(pairwise(ladder))
    steps += [("orchestra", "orchestra-no-rotation"), ("fedavg-simclr", "local"), ("centralized", "fedavg-simclr")]
    assert [found.verdict(*pair) for pair in steps] == ["more"] * 2 + ["no clear difference"] + ["more"] * 3
    gains = [f"{found.gain(*pair):.1f}" for pair in steps]
    rates = [found.rows[row].settings["optimizer.lr"] for row in ladder]
    assert rates == [0.1, 0.1, 0.03, 0.1]
    yield f"alignment and uniformity is {gains[0]} points above SimCLR, which is {gains[1]} above Orchestra"
    yield f"(at a rate of its own, {rates[2]})"
    yield f"Orchestra is {gains[2]} above BYOL, which does not count"
    yield f"without its rotation Orchestra is {gains[3]} points lower"
    worst = found.score("fedavg-simclr") - found.score("local", f"{LINEAR}{WORST}")
    yield f"Clients that train alone are {gains[4]} points below SimCLR in the mean, the worst of them {worst:.1f}"
    yield f"SimCLR on the images of all clients in one place, in as many steps as all of them make, {gains[5]} above it"
    bases = {"fedprox": 1, "scaffold": 1, "fedu2": 1, "fedema": 3, "ssd": 0}
    pairs = [(row, ladder[base]) for row, base in bases.items()]
    assert {found.verdict(*pair) for pair in pairs} == {"no clear difference"}
    largest = max(abs(found.gain(*pair)) for pair in pairs)
    yield f"the differences are at most {largest:.1f} points"
    pair = ("fedema", "fedavg-byol")
    assert found.leave_out_0(pairs) == [pair]
    yield f"FedEMA's interval by itself, {interval(found, *pair)}, leaves 0 out"
    yield f"For each pair by itself changes beyond {found.within(pairs)} points are excluded"

    angles = found.cells(ANGLE)
    assert [found.rows[row].cells[ANGLE].n for row in angles] == [1] * 6
    yield "(six rows, seed 0)"
    assert max(angles_on_mini().values()) < 10 < 20 < min(angles.values())
    yield f"Clients drift from their mean by {min(angles.values()):.0f} to {max(angles.values()):.0f} degrees"
    yield f"SimCLR's do so by {angles['fedavg-simclr']:.1f}, SCAFFOLD's by {angles['scaffold']:.1f}"


def separation(rows: Iterable[Mapping[int, float]]) -> float:
    """Standard deviation of rows' means over that of what a fit of rows and seeds leaves; each row has all seeds."""
    values = np.array([[row[seed] for seed in sorted(row)] for row in rows])
    rest = values - values.mean(axis=1, keepdims=True) - values.mean(axis=0) + values.mean()
    df = (values.shape[0] - 1) * (values.shape[1] - 1)
    return values.mean(axis=1).std(ddof=1) / math.sqrt(np.square(rest).sum() / df)


def shares() -> Iterator[str]:
    drift = [each for each in records() if each["scenario"] == "cifar10-drift" and "shares/v1" in each["scores"]]
    scores = {record["row"]: record["scores"]["shares/v1"] for record in drift}
    simclr, orchestra = scores["fedavg-simclr"], scores["orchestra"]
    yield f"the most frequent class of {simclr['main_class']:.0f} % of the clients is found in FedAvg's weights"
    yield f"{orchestra['main_class']:.0f} % in Orchestra's replies, and {simclr['main_class_blind']:.0f} % by the guess"
    yield f"the distances are {simclr['distance']:.2f} and {orchestra['distance']:.2f},"
    yield f"and {simclr['distance_blind']:.2f} of the guess"

    found = {record["row"]: record for record in records() if record["scenario"] == "digits" and record["seed"] == 0}
    assert not found["fedsc"]["settings"]["method.sigma"]
    fedsc, flesd = (found[row]["scores"]["shares/v1"] for row in ("fedsc", "flesd"))
    yield f"gives a client's class shares to a distance of {fedsc['distance_R']:.2f}"
    yield f"and its weights to {fedsc['distance_weights']:.2f}, where the guess has {fedsc['distance_blind']:.2f}"
    assert f"{flesd['distance_blind']:.2f}" == f"{fedsc['distance_blind']:.2f}"
    yield f"give them to {flesd['distance']:.2f}"
    yield f"and the most frequent class of {flesd['main_class']:.0f} % of the clients"


def inversion() -> Iterator[str]:
    (record,) = [record for record in records() if "inversion/v1" in record["scores"]]
    assert (record["scenario"], record["row"], record["seed"]) == ("cifar10-micro", "ldawa", 0)
    scores = record["scores"]["inversion/v1"]
    yield f"SSIM is {scores['ssim']:.2f} where the guess has {scores['ssim_blind']:.2f}"
    yield f"PSNR {scores['psnr']:.1f} dB where the guess has {scores['psnr_blind']:.1f}"
