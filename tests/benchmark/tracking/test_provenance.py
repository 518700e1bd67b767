"""What a record says of its machine, against texts of /proc/cpuinfo and of torch."""

import hashlib

import numpy as np
import pytest
import torch

from benchmark.tracking import provenance
from datamodules import parts

EPYC = {"model name": "AMD EPYC", "cpu family": "25", "model": "17", "stepping": "1"}
MKL = "  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product\n  - Build settings: BLAS_INFO=mkl"


@pytest.mark.parametrize(
    ("cpuinfo", "built", "expected"),
    [
        (EPYC, MKL, "AMD EPYC, 1 threads; family 25 model 17 stepping 1, AVX2, MKL 2024.2"),
        (EPYC, "BLAS_INFO=open, X=1", "AMD EPYC, 1 threads; family 25 model 17 stepping 1, AVX2, BLAS open"),
        ({}, "", "M9, 1 threads; AVX2, BLAS unknown"),
    ],
)  # fmt: skip
def test_processors_of_one_name_are_told_apart(monkeypatch, cpuinfo, built, expected):
    provenance.arithmetic.cache_clear()
    monkeypatch.setattr(provenance, "_cpuinfo", lambda: cpuinfo)
    monkeypatch.setattr(provenance.platform, "processor", lambda: "M9")
    monkeypatch.setattr(torch.__config__, "show", lambda: built)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert provenance.hardware(torch.device("cpu")) == expected
    provenance.arithmetic.cache_clear()


@pytest.mark.parametrize(
    ("precision", "device", "machine", "real", "told"),
    [
        ("bf16-mixed", "cpu", "x86_64", False, True),
        ("bf16-mixed", "cpu", "x86_64", True, False),
        ("bf16-mixed", "cpu", "aarch64", False, False),
        ("bf16-mixed", "cuda", "x86_64", False, False),
        ("32-true", "cpu", "x86_64", False, False),
    ],
)
def test_emulated_bf16_is_told(precision, device, machine, real, told, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: real)
    assert ("emulates bf16" in provenance.emulated(precision, torch.device(device))) == told


def environment(hardware: str, commit: str = "c") -> dict[str, object]:
    return {"numerical_deviations": [], "commit": commit, "hardware": hardware, "ranks": 1}


def test_a_run_that_goes_on_after_the_text_has_grown_is_of_one_kind():
    old, new = "AMD EPYC, 1 threads", "AMD EPYC, 1 threads; family 25 model 17"
    assert provenance.numerical_deviations([environment(old), environment(new)]) == []
    lines = provenance.numerical_deviations([environment(old), environment("Intel"), environment(new, "c+")])
    assert lines == [
        "rounds were played by several commits: c, c+",
        f"rounds were played by several kinds of device: Intel, {new}",
    ]


@pytest.mark.parametrize("block", [1, 3, 1 << 16])
def test_the_hash_of_a_partition_is_of_each_client_in_turn(monkeypatch, block):
    """Against the definition, written out; whatever number of clients is worked on together."""
    monkeypatch.setattr(parts, "BLOCK", block)
    held = [np.array(each, dtype=np.int64) for each in ([4, 7], [], [0], [], [], [1, 2, 2**40], [3])]
    digest = hashlib.sha256()
    for indices in held:
        digest.update(len(indices).to_bytes(8, "little"))
        digest.update(b"".join(int(index).to_bytes(8, "little") for index in indices))
    assert provenance.partition_hash(held) == provenance.partition_hash(parts.Parts(held)) == digest.hexdigest()
