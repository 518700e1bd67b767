"""Numbers that are computed or were measured beside the records: docs/explanation/scale.md, Orchestra's noise."""

from collections.abc import Iterator
from itertools import chain
from statistics import fmean

import torch

from benchmark.federation.accountant import Release, epsilon
from benchmark.speed import report
from datamodules.federated import CHUNK, RESIDENT, WHOLE
from methods import networks
from methods.maths import gaussian_sigma
from methods.orchestra import SENSITIVITY
from tests.committed import records
from tests.statements.boards import KNN, LINEAR, ROOT, Board, interval


def scale() -> Iterator[str]:
    """What has been measured, as docs/explanation/scale.md repeats it."""
    lines = chain.from_iterable(content["lines"] for content in report.read(ROOT / "docs/reference").values())
    terms = {line.what: float(report.format_number(line.value.median).replace(",", "")) for line in lines}
    small, large = terms["convnet: a visit without work"], terms["resnet18: a visit without work"]
    yield f"{small:.2f} ms (convnet), {large:.1f} ms (resnet18, 11.6 million numbers)"
    small_save, large_save = terms["convnet: saving the round"], terms["resnet18: saving the round"]
    yield f"{small_save:.1f} ms (convnet), {large_save:.0f} ms (resnet18)"
    yield f"At $C = 100$ and resnet18 all visits of a round cost {100 * large / 1000:.1f} s besides their steps"
    assert 6 < small * 1000 / 60 < 7
    yield f"At {small:.1f} ms a visit without work that is over six minutes"
    draw = terms["a cohort of 100 drawn from 1,000,000"]
    yield f"{draw:.0f} ms of a million"
    yield f"drawing one of a million clients and saving {(draw + large_save) / 1000:.2f} s"
    yield f"permutes all ids: {draw:.0f} ms, twice a round"
    yield f"{terms['the lists of that']:.0f} MiB for ten million images of a million clients,"
    yield f"computed in {terms['10,000,000 images dealt to 1,000,000 clients']:.1f} s"
    round_time, memory = (terms[f"100,000 clients over 10: {what}"] for what in ("a round", "peak memory"))
    grown = terms["100,000 clients: peak memory"] - terms["10 clients: peak memory"]
    yield f"to stay as they are, to {max(round_time, memory) - 1:.0%} ({grown:.0f} MB of lists)".replace("%", " %")
    write, read = terms["resnet18's memory of a client written"], terms["and read"]
    size = 4 * _numbers(networks.resnet18()) / 1e6
    yield f"writes {size:.0f} MB a visit ({write:.0f} ms) and reads as much ({read:.0f} ms)"
    yield f"a million names make it take {terms['a checkpoint that names 1,000,000 memories']:.1f} s"
    clearing = terms["clearing up among 20,000 memories"]
    yield f"{clearing:.0f} ms for 20,000, so about a second for a million"
    assert 0.5 < clearing * 50 / 1000 < 1.5
    decode = terms["a photograph of 500 x 375 decoded and resized"]
    hours = decode * 1.28e6 / 3.6e6
    yield f"takes {decode:.1f} ms a photograph on a core: 1.28 million are {hours:.2f} hours of one core"
    yield f"Views** of 224 pixels: {terms['views of 224 pixels'] // 100 * 100:.0f} a second"
    single, half = (terms[f"resnet18 at 224 pixels, {precision}"] for precision in ("fp32", "bf16"))
    yield f"resnet18 sees {single:.0f} images a second in fp32 and {half:.0f} in bf16 here"
    hours = 1.28e6 / half / 3600
    assert 10.5 < hours < 11.5
    yield f"eleven hours in bf16 and a hundred of them {hours * 100 / 24:.0f} days"
    yield from _sizes()


def _sizes() -> Iterator[str]:
    """What follows from sizes alone."""
    pixels, images = 3 * 224**2, 1_280_000
    yield f"its label a third: 16 bytes an image more, {16 * 10**7 / 2**20:.0f} MiB"
    yield f"at $d = 256$ a million clients are {256**2 * 4 * 10**6 / 1e9:.0f} GB"
    state = 4 * _numbers(networks.resnet18())
    yield f"a cohort of 100 over 1,000 rounds leaves up to 100,000 files, {state * 1e5 / 1e12:.1f} TB"
    yield f"1.28 million images at 224 pixels are {pixels * images / 1e9:.0f} GB as uint8 arrays"
    yield f"ImageNet-100 is {pixels * 126_689 / 1e9:.0f} GB"
    yield f"A data set** of up to {RESIDENT >> 20} MiB stays on a GPU whole"
    yield f"whole up to {WHOLE >> 20} MiB, which is {WHOLE // pixels:,} images of this size"
    yield f"{CHUNK} images or {CHUNK * pixels / 1e6:.0f} MB at a time"
    large = _numbers(networks.resnet50())
    yield f"at resnet50 ({large / 1e6:.1f} million numbers) {8 * large / 1e6:.0f} MB"


def _numbers(network: torch.nn.Module) -> int:
    return sum(values.numel() for values in network.parameters())


def half_precision() -> Iterator[str]:
    """bf16 beside fp32, of docs/reference/performance.md."""
    found, seconds = Board("cifar10-mini-precision"), dict[str, float]()
    for row, name in (("fedavg", "fp32"), ("fedavg-bf16", "bf16 (`training.precision=bf16-mixed`)")):
        cells = found.rows[row].cells
        linear, knn = (f"{cells[key].mean:.1f} ± {cells[key].spread:.1f} %" for key in (LINEAR, KNN))
        runs = [run for run in records() if (run["scenario"], run["row"]) == (found.scenario, row)]
        assert len(runs) == 5
        seconds[row] = fmean(run["seconds"]["clients"] for run in runs)
        rank = cells["geometry/v1 effective_rank"].mean
        yield f"| {name} | {linear} | {knn} | {rank:.1f} | {seconds[row]:.0f} s |"
    pair = ("fedavg-bf16", "fedavg")
    yield f"bf16 adds {found.even(*pair):.1f} points to the linear probe ({interval(found, *pair)})"
    yield f"changes beyond {found.within([pair])} points are excluded"
    yield f"Training took {seconds['fedavg-bf16'] / seconds['fedavg']:.2f} of the time"


def orchestra_noise() -> Iterator[str]:
    """The table of docs/methods/orchestra.md on local differential privacy."""
    budgets, width = (0.8, 1, 10), 512
    multipliers = [gaussian_sigma(budget, 0.001) for budget in budgets]
    sigmas = [SENSITIVITY * multiplier for multiplier in multipliers]
    norms = [sigma * (width**0.5 + 3 / 2**0.5) for sigma in sigmas]
    yield f"| sigma on every entry | {' | '.join(f'{sigma:.2f}' for sigma in sigmas)} |"
    yield "| smallest norm of a sum that exceeds the noise, at width 512 |"
    yield f"{' | '.join(f'{norm:.0f}' for norm in norms)} |"
    assert norms[2] < 500 / 8 < norms[1]
    yield "a cluster has about 62 rows: at epsilon 10 a compact one exceeds the noise, at epsilon 1 and 0.8 none does"
    yield "With 5,000 images a cluster has about 625 rows"
    lines = {
        5: "epsilon of 5 releases, at delta 0.00001",
        20: "of 20 releases",
        50: "of 50 releases (the average client of 100 rounds, half of the clients in each from the third on)",
    }
    for releases, words in lines.items():
        spent = [epsilon(((Release(multiplier), releases),), 1e-5) for multiplier in multipliers]
        yield f"| {words} | {' | '.join(f'{value:.1f}' for value in spent)} |"
