"""The suite from Python, as a notebook uses it: runs, scores, records, encoders, features. The commands call it too.

    from benchmark import api

    config = api.compose("digits", "fedavg", {"federation.rounds": 5})
    record = api.run(config)
    table = api.to_dataframe(api.load_records("runs"))
    encoder = api.encoder_of(api.folder_of(config))

Everything runs in this process, on one device; `python -m benchmark` starts several ranks. A mistake raises an error
whose text is the one line that the command would print.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from omegaconf import DictConfig
from rich.console import Console
from torch import nn

from benchmark.configuration import compose as composition
from benchmark.configuration import identity
from benchmark.configuration.instantiate import import_path
from benchmark.configuration.suites import listed, row_line
from benchmark.distributed.launch import RankProcesses
from benchmark.errors import ConfigError
from benchmark.experiment.experiment import Experiment
from benchmark.experiment.folder import load_folder
from benchmark.experiment.run import Run
from benchmark.federation.callbacks import Callback
from benchmark.tracking.progress import Display
from eval.features import Features
from leaderboards import store
from leaderboards.encoders import count, shown
from leaderboards.schema import Record

if TYPE_CHECKING:
    import pandas


def compose(scenario: str, method: str | type, overrides: Iterable[str] | Mapping[str, Any] = ()) -> DictConfig:
    """The config of one run.

    Args:
        scenario: a shipped scenario, or the path of a .yaml file.
        method: a shipped method, a row of a suite such as `fedavg-byol`, the path of a .yaml file, or a class.
        overrides: dotted key -> value, or `key=value` texts as on the command line, or one text. The value of
            `objective` may be a class too, also one that a cell of a notebook defines.

    Raises ConfigError: an unknown name or key, or a value that is not possible.
    """
    if isinstance(overrides, str):
        overrides = overrides.split()
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={_as_yaml(value)}" for key, value in overrides.items()]
    method, *line = row_line(scenario, _path(method) if isinstance(method, type) else method)
    return composition.compose(scenario, method, list(overrides), line)


def _as_yaml(value: Any) -> str:
    """A value as it is written on a command line, a class as its import path."""
    if isinstance(value, type):
        return _path(value)
    if value is None:
        return ""  # a key of type text would take `null` for a name
    text = yaml.safe_dump(value, default_flow_style=True, width=1 << 20, allow_unicode=True)
    return text.strip().removesuffix("...").strip()


def _path(cls: type) -> str:
    """A class's import path. Raises ConfigError: it is within a function or a class, where no path leads."""
    if "." in cls.__qualname__:
        raise ConfigError(f"{cls.__qualname__} is within a function or a class: define it in a module or a cell")
    return import_path(cls)


def folder_of(config: DictConfig) -> Path:
    """The folder of a run, `<output>/<scenario>/<row>/seed<k>`, whether it exists or not.

    Raises ConfigError: the output is not the path of a folder.
    """
    return identity.folder(config)


def run(config: DictConfig, *, callbacks: Sequence[Callback] = (), progress: bool = True) -> Record:
    """Trains and evaluates a run, and returns its record; what its folder has of it is resumed, or only read.

    Args:
        config: as `compose` returns it. callbacks: objects whose hooks the training calls; a finished run calls none.
        progress: whether to print it.

    Raises an error of the user's in one line: ConfigError, DataError, MethodError, DivergedError, ...
    """
    if not isinstance(config, DictConfig):
        raise ConfigError(f"run takes a config as compose returns it, not {type(config).__name__}")
    if not isinstance(callbacks, list | tuple) or not all(isinstance(each, Callback) for each in callbacks):
        raise ConfigError("run takes callbacks as a list of objects of classes of api.Callback: callbacks=[Mine()]")
    with _display(progress) as display:
        return Experiment(config, display, callbacks=callbacks).execute()


def evaluate(
    folder: str | Path, protocols: str | Sequence[str] = (), *, trust: bool = False, progress: bool = True
) -> Record:
    """Scores the encoders of a finished run and adds the scores to its record, which is returned.

    Args:
        folder: of the run. protocols: ids, or `all` or `papers`; none: those of its config.
        trust: whether its config may name code from outside the suite, see SECURITY.md.

    Raises ConfigError: no finished run; EvalError: an unknown protocol, or one that could not be measured.
    """
    with _display(progress) as display, opened(folder, display, trust=trust) as finished:
        evaluated = finished.evaluate(listed(protocols or list(finished.config.evaluation.protocols)))
        finished.finish(evaluated)
        return evaluated.record


def encoder_of(folder: str | Path, *, name: str | None = None, trust: bool = False) -> nn.Module:
    """The encoder of a finished run, in eval mode on the CPU: normalised images `[B, C, H, W]` -> features `[B, d]`.

    Args:
        folder, trust: see `evaluate`. name: of the encoder, where the run leaves several; None: the only or global one.

    Raises ConfigError: no finished run, or no encoder of this name.
    """
    with _display(False) as display, opened(folder, display, trust=trust) as finished:
        return finished.scoring.exported_encoder(name)[1]


def features_of(folder: str | Path, *, name: str | None = None, trust: bool = False) -> Features:
    """The features of a finished run's images, on the CPU, for a figure or a probe of one's own.

    `train_x` `[N, d]` and `test_x` `[T, d]` float32, with the labels `train_y` `[N]` and `test_y` `[T]` int64.

    Args:
        folder, trust: see `evaluate`. name: see `encoder_of`.

    Raises ConfigError: see `encoder_of`.
    """
    with _display(False) as display, opened(folder, display, trust=trust) as finished:
        evaluator = finished.evaluator
        encoder = finished.scoring.exported_encoder(name)[1].to(evaluator.device)
        features = evaluator.features(encoder, evaluator.images)
        on_cpu = {key: getattr(features, key).cpu() for key in ("train_x", "train_y", "test_x", "test_y")}
        return Features(**on_cpu, num_classes=features.num_classes)


def load_records(*folders: str | Path) -> list[Record]:
    """The records under some folders, such as `runs`, in order of scenario, row and seed; none: the committed ones.

    Raises RecordError: a missing folder, an invalid record, or two of one run that differ.
    """
    return [record for folder in folders for record in store.collect(folder)] if folders else store.committed()


def to_dataframe(records: Iterable[Record]) -> "pandas.DataFrame":
    """Records as a table: a row a run; columns for its names, each score as `<protocol> <metric>`, bytes and seconds.

    Of several encoders, whose number is in `encoders`, `accuracy` is the mean and `accuracy_worst` that of the worst.

    Raises ConfigError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ConfigError("to_dataframe needs pandas: pip install pandas") from error
    names = ("scenario", "row", "method", "objective", "seed")
    lines = [
        {
            **{key: record[key] for key in names},
            "rounds": record["rounds"]["done"],
            "encoders": count(record),
            **{f"{id} {metric}": value for id, scores in shown(record).items() for metric, value in scores.items()},
            **{f"bytes {way}": sum(record["bytes"][way].values()) for way in ("up", "down")},
            **{f"seconds {part}": value for part, value in record["seconds"].items()},
        }
        for record in records
    ]
    return pandas.DataFrame(lines)


@contextmanager
def opened(
    folder: str | Path,
    display: Display,
    overrides: Iterable[str] = (),
    *,
    trust: bool = False,
    processes: RankProcesses | None = None,
) -> Iterator[Run]:
    """A finished run with the state after its last round; its folder is locked until the context ends.

    Args:
        folder, trust: see `evaluate`. overrides: of keys that change how it runs, such as data.root.
        processes: the ranks of a command; None: this process.

    Raises ConfigError: no run, or an unfinished one.
    """
    folder = Path(folder)
    experiment = Experiment(load_folder(folder, overrides, trust=trust), display, processes, path=folder)
    display.begin(experiment.name)
    with experiment.open(training=False) as finished:
        loop = finished.loop
        loop.restore()
        if not loop.checkpoint.file.exists() and loop.rounds and (finished.folder / "result.json").exists():
            raise ConfigError(
                f"{folder} has its record, but its encoder is gone with {loop.checkpoint.file}: restore that file, "
                "or delete result.json and resume to train again"
            )
        if loop.round < loop.rounds and loop.stop_reason() is None:
            done = f"{loop.round} of {loop.rounds} rounds"
            command = f"resume {shlex.quote(str(folder))}{' trust=true' if trust else ''}"
            raise ConfigError(f"{folder} has done {done}: finish it first with `{command}`")
        yield finished


def _display(progress: bool) -> Display:
    return Display(Console(quiet=not progress))
