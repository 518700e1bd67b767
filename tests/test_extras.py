"""What an installed wheel says of itself, and what it says where an extra is not installed."""

import base64
import hashlib
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from benchmark.errors import ConfigError
from benchmark.tracking import checkout
from eval.clustering import clusters
from eval.features import EvalError, Features
from eval.tsne import tsne
from tests.run_helpers import build_run


@pytest.mark.parametrize("protocol", [clusters, tsne])
def test_a_protocol_without_scikit_learn(protocol, monkeypatch):
    for name in ("sklearn.cluster", "sklearn.manifold"):
        monkeypatch.setitem(sys.modules, name, None)
    rows, labels = torch.eye(8), torch.arange(8) % 2
    features = Features(train_x=rows, train_y=labels, test_x=rows, test_y=labels, num_classes=2)
    with pytest.raises(EvalError, match=r"needs scikit-learn: pip install 'fulcrum-ful\[clusters\]'"):
        protocol(features, torch.Generator())


@pytest.mark.parametrize("noise", [("privacy.noise_multiplier=1",), ("privacy.epsilon=5",)])
def test_noise_without_dp_accounting(noise, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmark.federation.accountant.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"epsilon needs dp-accounting: pip install 'fulcrum-ful\[dp\]'"):
        build_run(
            tmp_path, "fedavg", "privacy.mechanism=local", "privacy.clip=1", "federation.batch_norm=local", *noise
        )


@pytest.mark.parametrize(
    ("version", "changed", "expected"),
    [
        ("0.1.0", False, "v0.1.0"),
        ("0.1.0", True, "v0.1.0+"),
        ("1.0rc1", False, "v1.0rc1"),
        ("0.1.dev7+g6a21d08f1", False, "6a21d08f1"),
        ("0.1.dev7+g6a21d08f1", True, "6a21d08f1+"),
        ("0.1.dev7+g6a21d08f1.d20261127", False, "6a21d08f1+"),
        ("0.0.dev0", False, None),
    ],
)
def test_a_wheels_commit_is_that_of_its_version(version, changed, expected, tmp_path, monkeypatch):
    (tmp_path / "code.py").write_bytes(b"x = 1\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).rstrip(b"=").decode()
    folder = tmp_path / "some.dist-info"
    folder.mkdir()
    (folder / "RECORD").write_text(f"code.py,sha256={digest},6\nsome.dist-info/RECORD,,\n")
    if changed:
        (tmp_path / "code.py").write_bytes(b"x = 2\n")
    monkeypatch.setattr(checkout, "IS_CHECKOUT", False)
    monkeypatch.setattr(checkout, "ROOT", Path("/"))
    monkeypatch.setattr(checkout.metadata, "version", lambda _: version)
    monkeypatch.setattr(checkout.metadata, "files", lambda _: metadata.PathDistribution(folder).files)
    assert checkout.commit.__wrapped__() == expected
