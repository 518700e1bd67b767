"""docs/explanation/results.md, "Newer objectives and methods"."""

from collections.abc import Iterator

from tests.statements.boards import KNN, LINEAR, MICRO, Board, ahead, interval, over, span

OBJECTIVES = [f"fedavg-{name}" for name in ("vicreg", "dino", "swav", "barlow_twins")]
METHODS = ("calibre", "fedca", "fedmkd", "lwfedssl", "progfedssl")
SIMCLR, TRANSFORMER, FLOOR = "fedavg-simclr", "fedavg-vit", "untrained-vit"
DIGITS = Board("digits")


def newer() -> Iterator[str]:
    assert {len(MICRO.rows[row].headline) for row in (*OBJECTIVES, *METHODS, *transformers())} == {3}
    yield from objectives()
    yield f"Calibre is {-MICRO.even('calibre', SIMCLR):.1f} points below SimCLR, which does not count"
    yield from with_public_images()
    yield from with_a_transformer()
    yield from on_the_digits()


def objectives() -> Iterator[str]:
    assert sorted(OBJECTIVES, key=MICRO.score, reverse=True) == OBJECTIVES
    first, *others = OBJECTIVES
    assert MICRO.all_are("less", others, [SIMCLR])
    below = span(MICRO.gain(row, SIMCLR) for row in others)
    yield f"DINO, SwAV and Barlow Twins are {below} points below SimCLR, which counts"
    yield f"VICReg {-MICRO.even(first, SIMCLR):.1f}, which does not"
    shared = [ahead(MICRO.rows[SIMCLR], MICRO.rows[row]) for row in OBJECTIVES]
    yield f"over the three seeds that all have, {span(shared[1:])} and {shared[0]:.1f}"
    peers = (*OBJECTIVES, "fedavg-moco", "fedavg-protocl")
    margins = [MICRO.fit.margins[row][other] for row in OBJECTIVES for other in peers if other != row]
    yield f"nor from MoCo and ProtoCL, which would take {span(margins)} points"
    for row in OBJECTIVES:
        others = [other for other in (*OBJECTIVES, "fedavg-moco", "fedavg-protocl") if other != row]
        assert MICRO.all_are("no clear difference", [row], others)
    assert all(KNN in MICRO.rows[row].below for row in OBJECTIVES)


def with_public_images() -> Iterator[str]:
    fedca, simclr = MICRO.rows["fedca"], MICRO.rows[SIMCLR]
    yield f"FedCA (*reconstructed*) is {MICRO.less('fedca', SIMCLR):.1f} points below SimCLR, which counts"
    rates = [row.settings["optimizer.lr"] for row in (fedca, simclr)]
    assert rates == [0.01, 0.1]
    yield "at a tenth of its rate"
    share = fedca.settings["public.share"]
    assert share == MICRO.rows["fedmkd"].settings["public.share"]
    yield f"{50_000 * (1 - share):,.0f} further negatives"
    fedmkd, byol = MICRO.rows["fedmkd"], MICRO.rows["fedavg-byol"]
    yield f"FedMKD (*reconstructed*) is {MICRO.even('fedmkd', 'fedavg-byol'):.1f} points above BYOL"
    alone = MICRO.alone("fedmkd", "fedavg-byol")
    yield f"over the seeds that both have it is {ahead(fedmkd, byol):.1f} ({alone}), on another"
    assert not {*fedmkd.hardware} & {*byol.hardware}
    assert fedmkd.settings["optimizer.lr"] != byol.settings["optimizer.lr"]
    images, training = 50_000 * share, fedmkd.settings["federation.rounds"] * fedmkd.settings["method.distil_epochs"]
    yield f"it passes {images:,.0f} public images {(fedmkd.server_images or 0) / images:.0f} times, of which {training}"


def transformers() -> set[str]:
    return {row.row for row in MICRO.rows.values() if row.floor == FLOOR and row.row != FLOOR}


def with_a_transformer() -> Iterator[str]:
    assert transformers() == {"lwfedssl", "progfedssl", "fedavg-masked_reconstruction", TRANSFORMER}
    assert not any(LINEAR in MICRO.rows[row].below for row in transformers())
    yield f"Untrained it has {MICRO.score(FLOOR):.1f} %"
    yield f"SimCLR adds {MICRO.gain(TRANSFORMER, FLOOR):.1f} points to it"
    seeds = MICRO.rows[TRANSFORMER].seeds
    convnet, start = (over(MICRO.rows[row], seeds) for row in (SIMCLR, "untrained"))
    yield f"gains {convnet - start:.1f} over its {start:.1f} % under the same three seeds"
    masked = ("fedavg-masked_reconstruction", FLOOR)
    yield f"Masked reconstruction adds {MICRO.even(*masked):.1f} ({interval(MICRO, *masked)}), which does not count"
    layered, whole = MICRO.rows["lwfedssl"], MICRO.rows[TRANSFORMER]
    yield f"ends {abs(MICRO.gain('lwfedssl', TRANSFORMER)):.1f} points from SimCLR on the whole transformer"
    yield f"its clients send {100 * (layered.bytes_up or 0) / (whole.bytes_up or 1):.0f} % of the bytes"
    assert layered.server_images
    assert not MICRO.rows["progfedssl"].server_images
    yield "Prog-FedSSL (*reconstructed*), which has no such server,"
    yield f"is {-MICRO.even('progfedssl', TRANSFORMER):.1f} points below SimCLR, which does not count"


def on_the_digits() -> Iterator[str]:
    objectives = ("barlow_twins", "vicreg", "swav", "dino", "masked_reconstruction")
    pairs = {f"{method}-{objective}" for method in ("fedavg", "fedx", "ssd") for objective in objectives}
    without = {"fedx-masked_reconstruction"}  # which FedX's two views refuse
    assert {*METHODS, *pairs} - without <= {*DIGITS.rows}
    assert TRANSFORMER not in DIGITS.rows
    assert {len(row.headline) for row in DIGITS.rows.values()} == {3}
    yield f"an untrained convnet has {DIGITS.score('untrained'):.1f} % there"
    low, typical, _ = DIGITS.fit.margin_range
    yield f"the least difference that tells two rows apart is {low:.1f} points, {typical:.1f} for half of the pairs"
    below = {row.row for row in DIGITS.rows.values() if LINEAR in row.below and row.floor == "untrained"}
    assert below == {"fedx-swav", "ssd-swav"}
    worst = [DIGITS.gain(row, "untrained") for row in ("fedx-swav", "ssd-swav")]
    yield f"SwAV under FedX and SSD is {span(worst)} points below that convnet"
    assert DIGITS.all_are("no clear difference", below, ["untrained"])
    floor = "untrained-vit-mean"
    masked = [f"{method}-masked_reconstruction" for method in ("fedavg", "ssd")]
    assert [DIGITS.verdict(row, floor) for row in masked] == ["less", "no clear difference"]
    fedavg, ssd = (DIGITS.gain(row, floor) for row in masked)
    yield f"takes {-fedavg:.1f} points from its untrained transformer under FedAvg, which counts"
    yield f"under SSD it is {ssd:.1f} above it, {interval(DIGITS, masked[1], floor)}, so"
