"""docs/studies."""

import math
from collections.abc import Iterator

import numpy as np

from benchmark.rng import Streams
from benchmark.tracking.provenance import partition_hash
from datamodules.partition import dirichlet_balanced
from leaderboards import choices
from leaderboards.papers.tables import collect
from leaderboards.rank import FLOOR
from leaderboards.twins import Agreement, agreement, moved, worst_served
from tests.committed import records
from tests.statements.boards import LINEAR, MICRO, MINI, ROOT, Board, ahead, interval, over, span


def flesd_study() -> Iterator[str]:
    one, two, five = (Board(f"cifar10-micro-t{count}") for count in (1, 2, 5))
    floor = over(MICRO.rows[FLOOR], one.rows["flesd"].seeds)
    assert one.score("fedavg") <= floor
    yield f"FLESD is at {one.score('flesd'):.1f} %, and FedAvg at {one.score('fedavg'):.1f} %"
    yield f"untrained encoder ({floor:.1f} %)"
    up = [one.rows[row].bytes_up for row in ("flesd", "fedavg")]
    yield f"sends {up[0] / 1e6:.1f} MB up a client, as many bytes as {up[0] / up[1]:.0f} rounds of FedAvg"
    assert {found.verdict("flesd", "fedavg") for found in (two, five)} == {"no clear difference"}
    gains, margins = zip(*((found.gain("flesd", "fedavg"), found.margin) for found in (two, five)), strict=True)
    yield f"FLESD is {gains[0]:.2f} points above, where {margins[0]:.2f} would count"
    yield f"then {-gains[1]:.2f} below, where {margins[1]:.2f} would, each the same way under all three seeds"
    for found, gain in zip((two, five), gains, strict=True):
        by_seed = found.compared("flesd", "fedavg").by_seed
        assert len(by_seed) == 3
        assert all(value * gain > 0 for value in by_seed.values())
        assert not {*found.rows["flesd"].hardware} & {*found.rows["fedavg"].hardware}
    yield "FLESD ran on another processor than FedAvg on these boards"
    yield f"FedAvg is {MINI.less('flesd', 'fedavg-simclr'):.1f} points ahead, which counts"
    differences = [found.compared("flesd", "flesd-idle") for found in (one, two)]
    yield f"the student comes within {max(abs(each.points) for each in differences):.1f} points in the mean"
    apart = max(abs(points) for each in differences for points in each.by_seed.values())
    yield f"(under single seeds it is up to {apart:.1f} away) from their similarities"
    spread = five.rows["flesd-idle"].cells[LINEAR].spread
    pair = five.compared("flesd", "flesd-idle")
    assert pair.interval is not None
    yield f"above its control, by {five.even('flesd', 'flesd-idle'):.1f} points"
    yield "({:.2f} to {:.2f}, at the edge of counting)".format(*pair.interval)
    yield f"its seeds lie far apart ({spread:.1f})"
    assert MICRO.even("flesd-kept1", "flesd-kept1-idle") < 0
    whole, few = (MICRO.rows[row].bytes_up or 0 for row in ("flesd", "flesd-kept1"))
    images = math.isqrt(round(whole / 4))  # a similarity has 4 bytes, one that is kept an index of 4 more
    yield f"each image keeps {few / images / 8 - 1:.0f} others"


def orchestra_study() -> Iterator[str]:
    few, even = Board("cifar10-micro-a0.001"), Board("cifar10-micro-iid")
    margins = span((few.margin, even.margin))
    rows = ("fedavg-simclr", "fedavg-byol", "fedavg-spectral")
    simclr, byol, spectral = losses = [even.score(row) - few.score(row) for row in rows]
    rise = few.score("orchestra") - even.score("orchestra")
    assert max(*losses, rise) < min(few.margin, even.margin)
    yield f"SimCLR loses {simclr:.1f} points, BYOL {byol:.1f} and the spectral loss {spectral:.1f},"
    yield f"where {margins} tell two rows of these boards apart"
    assert few.score("orchestra") > max(even.score("orchestra"), MICRO.score("orchestra"))
    assert not {*few.rows["orchestra"].hardware} & {*MICRO.rows["orchestra"].hardware}
    less = ahead(few.rows["orchestra"], MICRO.rows["orchestra"])
    yield f"Orchestra is highest at alpha 0.001, by {rise:.1f} points over alpha 100,000 and {less:.1f} over 0.1"

    labels, ratios = np.repeat(np.arange(10), 5000), []  # CIFAR-10's, in the order of its folders
    for record in (record for record in records() if record["scenario"] == "cifar10-micro-a0.001"):
        seed = Streams(record["seed"]).seed_for("partition")
        parts = dirichlet_balanced(labels, 10, alpha=0.001, seed=seed)
        assert partition_hash(parts) == record["provenance"]["partition"]
        assert {len(set(labels[part])) for part in parts} == {1, 2}
        ratios.append(max(map(len, parts)) / min(map(len, parts)))
    yield "a client holds one or two classes"
    yield f"the largest client has up to {max(ratios):.0f} times the images of the smallest"

    theirs = {cell.ours.row: float(cell.value) for cell in collect() if cell.paper == "orchestra" and cell.ours
              and cell.table[0] in "267" and cell.setting["data"] == "CIFAR-10"}  # fmt: skip
    rotation, target = "orchestra-no-rotation", "orchestra-no-target"
    few, two, reps = (f"orchestra-{size}" for size in ("g8", "l2", "reps"))
    noises = [row for row in MICRO.rows if row.startswith("orchestra-eps")]
    ours = {row: MICRO.gain(row, "orchestra") for row in (rotation, target, few, two, reps, *noises)}
    assert MICRO.all_are("no clear difference", ours, ["orchestra"])
    assert {MICRO.rows[row].seeds for row in ours} == {(0, 1, 2)}
    papers = {row: theirs[row] - theirs["orchestra"] for row in ours}
    assert MICRO.score("fedavg-byol") < MICRO.score("orchestra") < MICRO.score("fedavg-spectral")
    yield (
        f"without its rotation is {-ours[rotation]:.1f} points lower (paper: {-papers[rotation]:.1f}), "
        f"without its target {-ours[target]:.1f} ({-papers[target]:.1f}); "
        f"eight clusters make {ours[few]:.1f} ({papers[few]:.1f}), two local ones {ours[two]:.1f} ({papers[two]:.1f}), "
        f"all representations in place of centroids {ours[reps]:.1f} ({papers[reps]:.1f}), and noise, "
    )
    assert max(ours[row] for row in noises) < 0
    assert max(papers[row] for row in noises) < 0
    lost = span(ours[row] for row in noises).replace(" to ", " to -")
    least, most = (f"{end(papers[row] for row in noises):.1f}" for end in (max, min))
    yield f"-{lost} ({most} to {least}). None of this counts"


def fedsc_study() -> Iterator[str]:
    behind = -MICRO.gain("fedsc", "fedavg-spectral-correlation")
    pair = ("fedsc", "fedavg-spectral-correlation")
    assert behind == -MICRO.even(*pair) > 0
    yield f"over five seeds FedSC is {behind:.1f} points below FedAvg with the same loss ({interval(MICRO, *pair)})"
    assert len(MICRO.compared(*pair).by_seed) == 5
    three = MICRO.rows["fedsc-sigma0.1"].seeds
    shared = ahead(*(MICRO.rows[row] for row in pair), three)
    yield f"does not count ({-shared:.1f} over the table's three)"
    assert [MICRO.rows[row].settings["objective.mu"] for row in ("fedavg-spectral", "fedsc")] == [10, 4]
    yield "clipped at mu = 10 in place of 4"
    pair = ("fedavg-spectral", "fedsc")
    yield f"is {MICRO.even(*pair):.1f} points above FedSC over five seeds ({MICRO.alone(*pair)} by the pair itself)"
    yield f"where {MICRO.fit.margins[pair[0]][pair[1]]:.1f} would count"
    noisy = ("fedsc-sigma0.1", "fedsc")
    assert 80 < 0.1 / 0.00104 < 120
    yield "At sigma = 0.1, some hundred times what the code adds"
    yield f"where epsilon is {MICRO.rows['fedsc-sigma0.1'].epsilon:.3g},"
    yield f"FedSC is {-MICRO.even(*noisy):.1f} points below itself without noise, {interval(MICRO, *noisy)}; but"
    cost = -MICRO.even("fedsc-sigma1", "fedsc")
    learned = ahead(MICRO.rows["fedsc"], MICRO.rows[FLOOR], three)
    yield f"With sigma = 1 it is {cost:.1f} points lower, which does not count"
    yield f"of the {learned:.1f} by which FedSC is above the untrained encoder under the same three seeds"
    images = MICRO.rows["fedsc"].images / 50
    yield f"A visit trains on {images:,.0f} images of ten equal clients"


def natural_study() -> Iterator[str]:
    natural, *twins = (Board(f"icons{twin}") for twin in ("", "-dirichlet", "-iid"))
    ranked = [row.row for row in natural.rows.values() if row.rank]
    dirichlet, random = (_agree(natural, twin) for twin in twins)
    assert not dirichlet.reversed
    assert not random.reversed
    yield f"of {dirichlet.alike} pairs with the Dirichlet twin and {random.alike} with the random one"
    assert dirichlet.interval[0] < dirichlet.tau < dirichlet.same[1]
    assert random.tau == random.same[1]
    yield f"on `icons`, where tau is {random.tau:.2f}, at the edge of that"
    yield f"(less than {random.same[1]:.2f} once in twenty)"
    dino = dirichlet.places["fedavg-dino"]
    assert moved(random.places)[0] == ("fedavg-dino", *dino)
    yield "DINO moves most, from {}th to {}th as under Dirichlet".format(*dino)
    yield f"tau is {dirichlet.tau:.2f} under Dirichlet, and seeds alone would leave less than {dirichlet.same[1]:.2f}"
    label = "fedavg-supervised"
    upper = {row: places for row, places in dirichlet.places.items() if places[0] <= len(dirichlet.places) / 2}
    assert moved(upper)[0][0] == label
    (here, there), (_, apart) = dirichlet.places[label], random.places[label]
    yield f"supervised FedAvg is {here}th on natural clients, {apart}st where images are dealt at random, and {there}th"
    lost = _lost(natural, twins[0])
    yield f"it loses {lost[label]:.1f} points, SimCLR {lost['fedavg-simclr']:.1f}"
    assert [row for row in ranked if lost[row] > lost[label]] == ["fedavg-dino"]
    yield f"of the {len(ranked) - 1} rows without labels DINO alone loses more"
    chosen = [each for each in choices.collect(ROOT / "leaderboards" / "tuned") if each.scenario == "icons"]
    assert {each.chosen_by for each in chosen} == {"accuracy"}
    edge = [each.row for each in chosen if each.at_the_edge]
    assert label in edge
    assert len(edge) == 5
    assert {each.row for each in chosen} == {*ranked, "centralized"}
    yield f"for five of the {len(chosen)} rows searched"
    yield "among them the row with labels, the best rate is at the edge of those tried"
    falls = [list(_lost(natural, twin).values()) for twin in twins]
    assert min(map(min, falls)) > 0
    yield f"all {len(ranked)} ranked rows are higher on `icons` than on either twin"
    yield f"in the mean by {np.mean(falls[0]):.1f} and {np.mean(falls[1]):.1f} points"

    yield from _typefaces(natural)
    served = worst_served(list(natural.rows.values()))
    assert served is not None
    assert served[1][0] > 0.8
    mean, worst, unseen = (
        natural.score("ssd", f"by-client/v1 accuracy{what}") for what in ("", "_worst_tenth", "_unseen")
    )
    yield f"under SSD the mean client is at {mean:.1f} %, the worst tenth at {worst:.1f} %"
    yield f"trained on at {unseen:.1f} %"
    last, lowest = ("material-symbols-light", "et"), list[bool]()
    for record in (each for each in records() if each["scenario"] == "icons" and each["row"] in ranked):
        clients = {name: value for name, value in record["scores"]["by-client/v1"].items() if " of " in name}
        lowest.append(min(clients.values()) in [clients.get(f"accuracy of {name}") for name in last])
    yield f"all but {lowest.count(False)} of {len(lowest)} runs of ranked rows no client is below `{last[0]}`"
    yield f"or `{last[1]}`"


def adapt_study() -> Iterator[str]:
    found, start = Board("adapt"), "untrained-pretrained"
    whole, few = "fedavg-full", "fedavg-lora8"
    assert found.rows[start].rank is None
    gained = found.gain(whole, start, "more")
    yield f"all of the encoder under FedAvg {gained:.1f} points ({interval(found, whole, start)})"
    yield f"LoRA 8 {found.even(few, start):.1f} ({interval(found, few, start)})"
    assert found.score(start) == found.score("fedavg-frozen")
    assert found.all_are("no clear difference", [whole, few, "fedema-lora8"], ["fedavg-frozen"])
    yield f"Under FedAvg all of it is {found.even(whole, few):.1f} points above LoRA 8"
    yield f"which asks for {found.fit.margins[whole][few]:.1f}, not told apart"
    yield f"the pair by itself has {found.alone(whole, few)}"
    yield f"From scratch the same rounds reach {found.score('fedavg-scratch'):.1f} %"
    alone = {found.even(row, start) for row in ("local-full", "local-lora8")}
    assert max(map(abs, alone)) < 0.05
    drawn = [len(record["encoders"]) for record in records() if record["row"] == "local-full"]
    yield f"in the mean of the {min(drawn)} to {max(drawn)} that a run draws"
    yield f"at {found.score('local-full'):.1f} % with all of it and with LoRA 8"
    yield f"what all of it gains by averaging is {found.even(whole, 'local-full'):.1f} points"
    yield f"(the board's test asks for {found.fit.margins[whole]['local-full']:.1f}"
    yield f"the pair by itself has {found.alone(whole, 'local-full')})"
    yield f"from scratch they reach {found.score('local-scratch'):.1f} %"
    assert not {*found.rows["local-full"].hardware} & {*found.rows[whole].hardware}
    yield f"at epsilon 1 all of the encoder ends at {found.score(f'{whole}-eps1'):.1f} %"
    yield f"{found.less(f'{whole}-eps1', f'{few}-eps1'):.1f} points below LoRA 8, which counts"
    assert {found.verdict(f"{few}-eps{budget}", few) for budget in (1, 8)} == {"no clear difference"}
    yield "LoRA 8 is told from itself without noise under neither epsilon"
    yield f"FedEMA's rounds take away from the start: {found.less('fedema-lora8', start):.1f} points under LoRA 8"
    told = {row: found.verdict(f"fedema-{row}", start) == "less" for row in ("lora4", "lora16", "full")}
    assert told == {"lora4": False, "lora16": True, "full": False}
    yield "as it does under LoRA 16, but neither under LoRA 4 nor with all of it"
    each = [found.rows[f"{row}-lora8"].bytes_up / found.rows[f"{row}-full"].bytes_up for row in ("ssd", "fedema")]
    yield "SSD and FedEMA send more beside it, {:.1%} and {:.1%} of their own".format(*each).replace("%", " %")
    runs = [each for each in records() if each["scenario"] == "adapt" and each["row"] == few]
    (visits,) = {each["bytes"]["visits"] for each in runs}
    yield f"a run's {visits} visits are of {min(drawn)} to {max(drawn)} clients"
    assert found.less(f"{whole}-eps1", start) > 10
    parts = [found.rows[few].bytes_up / found.rows[whole].bytes_up]
    parts += [getattr(found.rows[few], key) / getattr(found.rows[whole], key) for key in ("flops", "memory")]
    yield "Under FedAvg with LoRA 8 a visit's bytes up are {:.1%}, its operations {:.0%} and its memory {:.0%}".format(
        *parts
    ).replace("%", " %")
    visits = [((row := found.rows[name]).bytes_up + row.bytes_down) / 1e6 for name in (few, whole)]
    yield f"{visits[0]:.2f} MB up and down in place of {visits[1]:.2f}"


def _agree(first: Board, second: Board) -> Agreement:
    found = agreement(list(first.rows.values()), list(second.rows.values()))
    assert found is not None
    return found


def _lost(natural: Board, twin: Board) -> dict[str, float]:
    """Points by which each ranked row is lower on a twin, over the seeds that both boards have."""
    rows = {row.row: row for row in natural.rows.values() if row.rank}
    return {name: ahead(row, twin.rows[name]) for name, row in rows.items()}


def _typefaces(icons: Board) -> Iterator[str]:
    found, dealt, mixed = (Board(f"typefaces{twin}") for twin in ("", "-dirichlet", "-iid"))
    assert found.rows.keys() == dealt.rows.keys() == mixed.rows.keys() == icons.rows.keys()
    label, ranked = "fedavg-supervised", [row.row for row in found.rows.values() if row.rank]
    twin, other = _agree(found, dealt), _agree(found, mixed)
    assert not {*twin.reversed, *other.reversed}
    yield f"Of {twin.alike} pairs that it and its Dirichlet twin both tell apart none has opposite orders, nor"
    yield f"of {other.alike} with the random one; tau is {twin.tau:.2f} under Dirichlet"
    assert twin.tau < twin.same[1]
    yield f"where seeds alone would leave less than {twin.same[1]:.2f} once in twenty, and"
    assert other.tau > other.same[1]
    yield f"{other.tau:.2f} with the random twin, where they would leave {other.same[0]:.2f}"
    assert moved(twin.places)[0][0] == label
    here, there = twin.places[label]
    assert other.places[label] == (here, here)
    yield f"of {len(ranked)} ranked rows it is {here}st on natural clients, at {found.score(label):.1f} %"
    yield f"(images in one place: {found.score('centralized'):.1f} %), {here}st on the random twin, and {there}th under"
    lost = _lost(found, dealt)
    yield f"loses {lost[label]:.1f} points, SimCLR {lost['fedavg-simclr']:.1f}"
    assert [row for row in ranked if lost[row] > lost[label]] == ["fedavg-barlow_twins"]
    assert {row for row in ranked if lost[row] < 0} == {"fedavg-rotation", "orchestra"}
    fell = np.mean(list(_lost(found, mixed).values()))
    yield f"the mean of all {len(ranked)} is {np.mean(list(lost.values())):.1f} points higher than under Dirichlet"
    yield f"and {fell:.1f} points higher than on the random twin"
    apart = _agree(dealt, mixed)
    assert apart.tau < apart.same[1]
    yield f"Between the two twins tau is {apart.tau:.2f} on `typefaces`, where seeds alone would leave less"
    yield f"than {apart.same[1]:.2f} once in twenty; on `icons` it is"
    explained = _agree(Board("icons-dirichlet"), Board("icons-iid"))
    assert explained.tau > explained.same[1]
    yield f"{explained.tau:.2f}, which seeds explain"
    yield f"On `typefaces` the untrained encoder has {found.score(FLOOR):.1f} %"
    below = [row for row in ranked if found.score(row) < found.score(FLOOR) and not found.rows[row].idle]
    assert set(below) == {"fedavg-byol", "fedema", "fedavg-simsiam", "fedavg-dino", "fedavg-barlow_twins"}
    level = {*below} - {"fedema"}
    assert found.all_are("no clear difference", level, [FLOOR])
    assert icons.all_are("no clear difference", {*below} - {"fedavg-dino"}, [FLOOR])
    yield f"DINO alone is told from it, as {icons.gain('fedavg-dino', FLOOR, 'more'):.1f} points higher"
    assert {len(found.rows[row].seeds) for row in level} == {3}
    assert len(found.rows["fedema"].seeds) == 5
    most = -min(found.gain(row, FLOOR) for row in level)
    yield f"SimSiam, DINO and Barlow Twins, of three seeds each, are up to {most:.1f} points lower"
    high, low = (-end for end in found.compared("fedema", FLOOR).interval)
    assert 0 < low < 0.1
    lower = f"by {low:.1f} to {high:.1f} points lower, in the mean by {found.less('fedema', FLOOR):.1f}"
    yield f"FedEMA, of five seeds, {lower}, is told from it by little"
    agree = _agree(found, icons)
    low, high = agree.interval
    yield f"`icons` and `typefaces`, tau is {agree.tau:.2f} ({low:.2f} to {high:.2f})"
    assert agree.same[1] < agree.tau < agree.same[0]
    yield f"seeds alone would leave {agree.same[0]:.2f}, and less than {agree.same[1]:.2f} once in twenty"
    assert not agree.reversed
    yield f"both boards tell {agree.alike} pairs apart in the same order and none in opposite ones"


def uplink_study() -> Iterator[str]:
    bases, micro = {"SimCLR": "fedavg-simclr", "SSD": "ssd"}, MICRO.rows
    assert MICRO.all_are("no clear difference", ["fedavg-simclr-int8", "fedavg-simclr-top1"], ["fedavg-simclr"])
    assert MICRO.all_are("no clear difference", ["ssd-int8", "ssd-top1"], ["ssd"])
    eight, few = (
        {name: ahead(micro[f"{row}-{how}"], micro[row]) for name, row in bases.items()} for how in ("int8", "top1")
    )
    whole, byte, part = (MICRO.rows[f"ssd{how}"].bytes_up for how in ("", "-int8", "-top1"))
    assert round(whole / byte) == 4
    assert min(eight.values()) > 0 > max(few.values())
    for row in bases.values():
        seeds = MICRO.rows[f"{row}-top1"].headline
        assert all(value < MICRO.rows[row].headline[seed] for seed, value in seeds.items())
    simclr, ssd = (f"{eight[name]:.1f}" for name in bases)
    yield f"Eight bits are a quarter of the bytes, and SimCLR is {simclr} points higher, SSD {ssd}"
    yield f"The largest 1 % take {part / 1e3:.0f} kB where all take {whole / 1e6:.1f} MB, and SimCLR is"
    yield f"{-few['SimCLR']:.1f} points lower, SSD {-few['SSD']:.1f}"
    compressed = [(f"{row}-{how}", row) for row in bases.values() for how in ("int8", "top1")]
    yield f"none of it counts, and changes beyond {MICRO.within(compressed)} points are excluded, for each pair"
    ends = [interval(MICRO, f"{row}-top1", row) for row in bases.values()]
    yield f"the intervals of both of the latter ({ends[0]} and {ends[1]}) leave 0 out"
    assert MICRO.leave_out_0(compressed) == [(f"{row}-top1", row) for row in bases.values()]
    shared = MICRO.rows["ssd-int8"].seeds
    gained = [ahead(micro[row], micro[FLOOR], shared) for row in bases.values()]
    yield f"the {gained[0]:.1f} and {gained[1]:.1f} points by which they are above the untrained encoder"

    lost = {share: Board(f"cifar10-micro-lost{share}") for share in (10, 30)}
    moved = {
        share: [ahead(found.rows[row], micro[base]) for row, base in (("fedavg", "fedavg-simclr"), ("ssd", "ssd"))]
        for share, found in lost.items()
    }
    assert all(simclr < 0 < ssd and max(-simclr, ssd) < MICRO.margin for simclr, ssd in moved.values())
    (first, second), (third, fourth) = moved[10], moved[30]
    sent = [
        record["bytes"]
        for record in records()
        if record["scenario"] in ("cifar10-micro-lost10", "cifar10-micro-lost30")
    ]
    assert {round(10 - 10 * each["up"]["weights"] / each["down"]["weights"]) for each in sent} == {1, 2, 3}
    yield f"With 10 % of the replies lost SimCLR is {-first:.1f} points lower and SSD {second:.1f} higher,"
    yield f"with 30 % {-third:.1f} lower and {fourth:.1f} higher"
    images = lost[30].rows["ssd"].images
    yield f"at 30 % a run has {images:,.0f} images in the mean in place of {MICRO.rows['ssd'].images:,.0f}"


def epsilon_study() -> Iterator[str]:
    crowd, bases = Board("cifar10-crowd"), ("fedavg", "ssd")
    assert {row.seeds for row in crowd.rows.values()} == {(0, 1, 2)}
    eight = [crowd.even(f"{base}-eps8", base) for base in bases]
    one = [-crowd.less("fedavg-eps1", "fedavg"), crowd.even("ssd-eps1", "ssd")]
    yield f"At epsilon 8 SimCLR is {-eight[0]:.1f} points lower than without noise and SSD {eight[1]:.1f} higher"
    yield f"neither counts, as that takes {crowd.margin:.1f} points or more"
    floor = crowd.score(FLOOR)
    simclr, ssd = (crowd.score(base) - floor for base in bases)
    bound = crowd.fit.margins["fedavg-eps1"]["fedavg"]
    assert -one[0] - bound < 0.01
    yield f"At epsilon 1 SimCLR is {-one[0]:.2f} points lower, where {bound:.2f} would count"
    yield f"a part of the {simclr:.1f} by which it is above"
    yield f"the untrained encoder ({floor:.1f} %)"
    yield f"SSD is {-one[1]:.1f} lower, of {ssd:.1f}, which does not count"
    assert 0.4 < -one[0] / simclr < 0.6
    assert max(crowd.compared("fedavg-eps8", "fedavg").by_seed.values()) < 0
    yield "So at epsilon 8 nothing counts, though SimCLR is lower under all three seeds"
    yield "at epsilon 1 SimCLR's mean is lower by about half of its gain"
    yield f"(by itself {crowd.alone('fedavg', 'fedavg-eps1')} points)"
    noise = [_multiplier(f"fedavg-eps{budget}") for budget in (8, 1)]
    yield f"a deviation of {noise[0]:.2f} (epsilon 8) and {noise[1]:.2f} (epsilon 1) times the clip"
    assert not any("0.3" in row for row in crowd.rows)
    yield "What epsilon 8 promises is little"
    yield "The suite lists epsilon 0.3 as well; it has not been run yet"


def _multiplier(row: str) -> float:
    (found,) = {record["privacy"]["noise_multiplier"] for record in records() if record["row"] == row}
    return found
